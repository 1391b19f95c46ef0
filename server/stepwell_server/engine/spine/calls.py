"""Hot calls about tasks: schedule, claim, renew, advance, release, finish, give back, shorten, wake.

Each is a value whose `decide` looks at the locked task and says what becomes of it; the committer commits them in
groups. Calls from outside about one task, which may wait for its lock (pause, resume, seize), are at the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell_server.domain.spine.leases import Held, LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import NewTask, Reason, Stop, Task, Verdict, judge
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.spine.claims import Seat
from stepwell_server.engine.spine.group import Group, HotCall, Later
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.tasks import Stamp

_SMALL = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """What a holder learns from a frame: whether it counted, and what it must do."""

    verdict: Verdict
    stop: Stop = Stop.NONE
    wake_again: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Schedule(HotCall):
    """Store a task. The answer is the task, or None if its (handler, key) has one already."""

    new: NewTask

    @property
    def entity(self) -> Hashable:
        """The key, which has one task at most."""
        return self.new.handler, self.new.key

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return _SMALL + len(self.new.payload or "")

    def decide(self, group: Group) -> Later | None:
        """Add the task, unless an earlier call of the group made one of that key."""
        key = (self.new.handler, self.new.key)
        if key in group.fresh:
            return None
        group.schedule(self.new)
        return Later(lambda: group.inserted.get(key))


@dataclass(frozen=True, slots=True, eq=False)
class Claim(HotCall):
    """Lease due tasks to workers. The answer is what they got, perhaps nothing."""

    seats: Sequence[Seat]
    patience: Micros = 0
    """How long others' cached runs are left to them."""
    most: int | None = None
    """None: as many as the seats can take."""

    @property
    def entity(self) -> Hashable:
        """Itself: claims do not wait for each other."""
        return id(self)

    def decide(self, group: Group) -> Later:
        """Claim after the group is written, so that what it makes due can be had at once."""
        late = group.claim_later(self.seats, self.patience, self.most)
        return Later(lambda: late.claimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AboutHeld(HotCall):
    """A call by the holder of a task. It counts only under the fence of its lease."""

    held: Held

    @property
    def entity(self) -> Hashable:
        """The task."""
        return self.held.task_id

    @property
    def task_ids(self) -> Sequence[int]:
        """The task."""
        return (self.held.task_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AboutLease(_AboutHeld):
    """A call about the lease itself, by one connection of the session that holds it."""

    owner: Owner

    def decide(self, group: Group) -> Answer:
        """Change the lease if it is this connection's."""
        task = group.task(self.held.task_id)
        if task is None or judge(task, self.held) is not Verdict.ACCEPTED or not self._is_mine(task.owner):
            return Answer(Verdict.STALE)
        group.put(self._changed(task, group.at))
        return Answer(Verdict.ACCEPTED, task.stop, task.wake_again, task.revision)

    def _is_mine(self, holder: Owner | None) -> bool:
        return holder == self.owner

    def _changed(self, task: Task, at: Stamp) -> Task:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew(_AboutLease):
    """Extend a lease to its full length; also the acknowledgement of a task, and its move to a newer connection."""

    times: LeaseTimes

    def _is_mine(self, holder: Owner | None) -> bool:
        """True for the session's own task, unless a later connection of it has taken over."""
        return (
            holder is not None
            and holder.session_id == self.owner.session_id
            and holder.connection <= self.owner.connection
        )

    def _changed(self, task: Task, at: Stamp) -> Task:
        return task.renewed(self.owner, at.lease_now, self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorten(_AboutLease):
    """Leave a lease a short grace, because its connection broke, or its holder is told that it is lost."""

    times: LeaseTimes

    def _changed(self, task: Task, at: Stamp) -> Task:
        return task.shortened(at.lease_now, self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack(_AboutLease):
    """Return a task that was never delivered, as if it had not been claimed."""

    def _changed(self, task: Task, at: Stamp) -> Task:
        return task.given_back()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(_AboutLease):
    """Return a task whose holder goes away for good. It has said which bodies it interrupts."""

    def _changed(self, task: Task, at: Stamp) -> Task:
        return task.left(at.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame(_AboutHeld):
    """A numbered frame: applied once, acknowledged as often as it is sent."""

    number: int

    def decide(self, group: Group) -> Answer:
        """Apply the frame if it is the holder's and new."""
        task = group.task(self.held.task_id)
        verdict = judge(task, self.held, self.number)
        if task is None or verdict is Verdict.STALE:
            return Answer(Verdict.STALE)
        if verdict is Verdict.ACCEPTED:
            self._apply(group, task)
        after = group.task(self.held.task_id) or task
        return Answer(verdict, task.stop, task.wake_again, after.revision)

    def _apply(self, group: Group, task: Task) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance(_Frame):
    """Note a result, and which step bodies are open after it."""

    open_steps: str = ""

    def _apply(self, group: Group, task: Task) -> None:
        group.put(task.advanced(self.number, self.open_steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(_Frame):
    """Give a task up until its next time."""

    run_at: Micros
    reason: Reason
    priority: int

    def _apply(self, group: Group, task: Task) -> None:
        advanced = task.advanced(self.number, "")
        group.put(advanced.released(group.at.now, self.run_at, self.reason, self.priority))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(_Frame):
    """Give a task up for good. If more has come for its key meanwhile, it is due again instead."""

    def _apply(self, group: Group, task: Task) -> None:
        if task.wake_again:
            advanced = task.advanced(self.number, "")
            group.put(advanced.released(group.at.now, group.at.now, Reason.WAKE, task.priority))
        else:
            group.remove(task)


@dataclass(frozen=True, slots=True)
class Wake(HotCall):
    """Make a task due at once. The answer says whether there is one."""

    task_id: int
    priority: int
    reason: Reason = Reason.WAKE

    @property
    def entity(self) -> Hashable:
        """The task."""
        return self.task_id

    @property
    def task_ids(self) -> Sequence[int]:
        """The task."""
        return (self.task_id,)

    def decide(self, group: Group) -> bool:
        """Make it due, or remember it while somebody holds it."""
        task = group.task(self.task_id)
        if task is not None:
            group.put(task.woken(group.at.now, self.reason, self.priority))
        return task is not None


# ---- from outside: one task, in a transaction of its own that may wait for the lock


def pause(tx: Tx, task_id: int) -> Task | None:
    """Park a task, or tell its holder to stop. None: there is none."""
    return _change(tx, task_id, lambda task, at: task.paused())


def resume(tx: Tx, task_id: int, priority: int) -> Task | None:
    """Make a parked task due, or withdraw a pause. None: there is none."""
    return _change(tx, task_id, lambda task, at: task.resumed(at.now, priority))


def seize(tx: Tx, task_id: int) -> Task | None:
    """Take a task from whoever holds it: from now on everything under the old fence is stale. None: there is none."""
    (fence,) = dialect.draw_numbers(tx, 1)
    return _change(tx, task_id, lambda task, at: task.seized(fence))


def _change(tx: Tx, task_id: int, change: Any) -> Task | None:
    found = store.lock(tx, [task_id], waiting=True)
    if task_id not in found:
        return None
    changed: Task = change(found[task_id], store.stamp(tx))
    store.save(tx, [changed])
    return changed
