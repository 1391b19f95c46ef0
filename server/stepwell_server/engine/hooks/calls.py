"""Hot calls about hooks: store one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from stepwell_server.domain.hooks.hooks import Hook, HookStatus
from stepwell_server.domain.values.errors import HookIdAlreadyExists, IdempotencyKeyReused, StepwellError
from stepwell_server.engine.hooks.book import Triggered
from stepwell_server.engine.spine.group import Group, HotCall, Later
from stepwell_server.storage.hooks.hooks import HookBirth


@dataclass(frozen=True, slots=True)
class TriggerHook(HotCall):
    """Store a hook. The answer is the hook, or a refusal."""

    triggered: Triggered

    @property
    def entity(self) -> Hashable:
        """The key of the hook."""
        return self.triggered.new.key

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 400 + self.triggered.new.payload.size

    def decide(self, group: Group) -> Later:
        """Store it; whether it was there is known when it is written."""
        group.jobs.trigger(self.triggered)
        return Later(lambda: self._outcome(group))

    def _outcome(self, group: Group) -> Hook | StepwellError:
        new, book = self.triggered.new, group.jobs
        if new.key in book.stored:
            birth = book.stored[new.key]
            if birth.new is new:
                return _newborn(birth)
            return self._repeated(_newborn(birth), birth.request_id, birth.request_hash)
        request = (new.key.namespace, self.triggered.request_id)
        found = book.found_by_request.get(request) or book.found_by_id.get(new.key)
        if found is not None:
            twin = book.stored.get(found.hook.key)  # of this group: it has had no task yet when it was found
            hook = found.hook if twin is None else _newborn(twin)
            return self._repeated(hook, found.request_id, found.request_hash)
        return _reused(self.triggered.request_id)

    def _repeated(self, hook: Hook, request_id: str | None, request_hash: str | None) -> Hook | StepwellError:
        """The answer if there is one already: the same, if this is the same request."""
        mine = self.triggered
        if mine.request_id is None or mine.request_id != request_id:
            return HookIdAlreadyExists("a hook of that id exists", hook_id=mine.new.key.hook_id)
        return hook if mine.request_hash == request_hash else _reused(request_id)


def _reused(request_id: str | None) -> IdempotencyKeyReused:
    return IdempotencyKeyReused("this request_id was used for another request", request_id=request_id)


def _newborn(birth: HookBirth) -> Hook:
    new = birth.new
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
        process_at=birth.process_at,
        last_attempt_at=None,
        next_attempt_at=birth.process_at,
        ended_at=None,
        trace=new.trace,
    )
