"""Hooks inside a group: those that its calls store, and what their outcomes make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell_server.domain.hooks.events import handler_of, to_hook
from stepwell_server.domain.hooks.hooks import Hook, NewHook
from stepwell_server.domain.spine.births import Birth, Wanted
from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.jobs import JOB_PRIORITY
from stepwell_server.domain.spine.tasks import NewTask, Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.engine.spine.births import Births, Store
from stepwell_server.engine.spine.books import Group
from stepwell_server.engine.spine.ids import new_id
from stepwell_server.engine.spine.job_book import JobBook
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.hooks import hooks as store
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.tasks import Stamp


def _task_of(birth: Birth[NewHook]) -> NewTask:
    new = birth.new
    return NewTask(
        new.handler, new.key.hook_id, run_at=new.due_at(birth.at), priority=JOB_PRIORITY, id=birth.id, revision=1
    )


_STORE = Store(store.insert, store.find, _task_of)


@dataclass(slots=True)
class HookBook(JobBook):
    """The hooks of one group."""

    births: Births[NewHook, Hook] = field(default_factory=lambda: Births(_STORE))

    def bear(self, tx: Tx, group: Group) -> None:
        """Write new hooks. Their tasks are written by the group."""
        self.births.write(tx, group)
        if self.births.stored:
            handlers.note(tx, {birth.new.handler for birth in self.births.stored.values()})


def hears(event: EngineEvent, rules: Rules) -> bool:
    """Whether a namespace has a handler for an engine event."""
    return handler_of(event) in rules.registered


def tell(tx: Tx, events: Sequence[EngineEvent], rules: Rules, at: Stamp) -> list[Task]:
    """Store hooks for those of the events that a namespace has a handler for. Returns their tasks."""
    wanted = [to_hook(event, new_id()) for event in events if hears(event, rules)]
    if not wanted:
        return []
    numbers = dialect.draw_numbers(tx, len(wanted))
    births = [Birth(number, Wanted(new), at.now) for number, new in zip(numbers, wanted, strict=True)]
    store.insert(tx, births)
    handlers.note(tx, {new.handler for new in wanted})
    return list(task_store.insert(tx, [_task_of(birth) for birth in births], at).values())


def book_of(group: Group) -> HookBook:
    """The hooks of a group."""
    book = group.books[TaskKind.HOOK]
    assert isinstance(book, HookBook)
    return book
