"""Hooks as a kind of the spine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stepwell_server.domain.hooks.hooks import HANDLER_NOT_FOUND, UNSERVED_FOR, Hook, check_hook_name
from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.handlers import Handler, Registration, TaskKind
from stepwell_server.domain.spine.jobs import Job
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.hooks.book import HookBook
from stepwell_server.engine.spine.assignments import Assignment, Leased
from stepwell_server.engine.spine.job_book import write_jobs
from stepwell_server.engine.spine.kinds import Kind
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.hooks import hooks as store
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.fates import Kept
from stepwell_server.storage.spine.names import History
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import HandlerWake

UNSERVED_AT_ONCE = 500
"""Hooks that fail together because no worker ever registered their names."""


@dataclass(frozen=True, slots=True)
class HookInput:
    """The input of a job that executes a hook."""

    hook: Hook

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        return 100 + (0 if self.hook.payload is None else self.hook.payload.size)

    def after(self, offset: int) -> HookInput:
        """The same: a hook has no parts."""
        return self


class HookKind(Kind):
    """Durable one-shot messages to a handler."""

    kind = TaskKind.HOOK
    defaults: ClassVar[Mapping[str, Any]] = {"description": ""}

    def book(self, rules: Rules) -> HookBook:
        """A book for one transaction."""
        return HookBook(rules, store.ending)

    def hand_out(self, tx: Tx, leased: Sequence[Leased], rules: Rules, at: Stamp) -> list[Assignment]:
        """Lease due hooks. Those whose last execution was lost with its holder fail here."""
        found = store.get_many(tx, [one.task.id for one in leased])
        jobs = []
        for one in leased:
            hook, job = found[one.task.id], Job(one.task, at.now, at.lease_now, rules)
            job.claim(one.owner, one.fence, hook.attempts, hook.policy)
            jobs.append(job)
        return [_assignment(task, found[task.id]) for task in write_jobs(tx, jobs, at, store.ending)]

    def inputs(self, tx: Tx, tasks: Sequence[Task]) -> Mapping[int, HookInput]:
        """These hooks."""
        found = store.get_many(tx, [task.id for task in tasks])
        return {number: HookInput(hook) for number, hook in found.items()}

    def check(self, registration: Registration) -> None:
        """Refuse a name that cannot be a hook's."""
        check_hook_name(registration.handler.name)

    def history(self) -> History:
        """How storage finds hooks of a name."""
        return store.refer_to

    def kept(self) -> Kept:
        """Where storage finds what became of hooks."""
        return store.KEPT

    # ---- hooks that no worker takes

    def gives_up_at(self, wakes: Iterable[HandlerWake]) -> Micros | None:
        """When the first hook fails whose name no worker ever registered."""
        return min(_unserved_until(wakes).values(), default=None)

    def give_up(self, tx: Tx, wakes: Iterable[HandlerWake], rules: Rules) -> list[Task]:
        """Fail one attempt of every hook that has been due for a day and whose name has no handler.

        Returns the tasks of those that are tried again: after another day they fail again.
        """
        until = _unserved_until(wakes)
        if not until:
            return []
        now = task_store.stamp(tx).now
        unknown = [handler for handler, at in until.items() if at <= now]
        found = store.lock_unserved(tx, unknown, UNSERVED_FOR, UNSERVED_AT_ONCE) if unknown else []
        if not found:
            return []
        at = task_store.stamp(tx)
        jobs = []
        for task, hook in found:
            job = Job(task, at.now, at.lease_now, rules)
            failure = Failure(HANDLER_NOT_FOUND, f"no worker hosts a hook named {hook.name}")
            job.give_up(hook.attempts, hook.policy, failure)
            jobs.append(job)
        return write_jobs(tx, jobs, at, store.ending)


def _assignment(task: Task, hook: Hook) -> Assignment:
    (execution,) = load_open(task.open_steps)  # runs say when a body begins; here it begins now
    return Assignment(task, HookInput(hook), execution.ends_at)


def _unserved_until(wakes: Iterable[HandlerWake]) -> dict[Handler, Micros]:
    """When the first hook of each handler fails that no worker ever registered."""
    unknown = [one for one in wakes if one.handler.kind is TaskKind.HOOK and not one.is_registered]
    return {one.handler: one.due_at + UNSERVED_FOR for one in unknown if one.due_at is not None}
