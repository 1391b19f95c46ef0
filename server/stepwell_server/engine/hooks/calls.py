"""Hot calls about hooks: store one."""

from __future__ import annotations

from stepwell_server.domain.hooks.hooks import Hook, HookStatus, NewHook
from stepwell_server.domain.spine.births import Birth
from stepwell_server.domain.values.errors import HookIdAlreadyExists
from stepwell_server.engine.hooks.book import book_of
from stepwell_server.engine.spine.births import Births, Create
from stepwell_server.engine.spine.books import Group


class TriggerHook(Create[NewHook, Hook]):
    """Store a hook."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 400 + self.wanted.new.payload.size

    def births(self, group: Group) -> Births[NewHook, Hook]:
        """The hooks that the group stores."""
        return book_of(group).births

    def newborn(self, group: Group, birth: Birth[NewHook]) -> Hook:
        """The hook as it was just stored."""
        new, due_at = birth.new, birth.new.due_at(birth.at)
        return Hook(
            id=birth.id,
            key=new.key,
            name=new.name,
            status=HookStatus.PENDING,
            payload=new.payload,
            attempts=0,
            retry=new.retry,
            idempotency_key=new.idempotency_key,
            failure=None,
            created_at=birth.at,
            process_at=due_at,
            last_attempt_at=None,
            next_attempt_at=due_at,
            ended_at=None,
            trace=new.trace,
        )

    def exists(self) -> HookIdAlreadyExists:
        """The refusal if there is a hook of that id."""
        return HookIdAlreadyExists("a hook of that id exists", hook_id=self.wanted.new.key.hook_id)
