"""Hot calls about tasks: claim, renew, shorten, give back, leave, report.

Each is a value whose `decide` looks at the locked task and says what becomes of it; the committer commits them in
groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stepwell_server.domain.spine.frames import Frame, FrameAnswer, News
from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.leases import Held, LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import Stop, Task, Verdict, judge
from stepwell_server.domain.spine.work import Work
from stepwell_server.domain.values.errors import InvalidField
from stepwell_server.engine.spine.assignments import Ask
from stepwell_server.engine.spine.books import Book, Group, HotCall, Later
from stepwell_server.storage.spine.tasks import Stamp


@dataclass(frozen=True, slots=True)
class Answer:
    """What the holder of a lease learns: whether it counts, and what it must do."""

    verdict: Verdict
    stop: Stop = Stop.NONE
    wake_again: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Claim(HotCall):
    """Lease due tasks to workers. The answer is what they got, perhaps nothing."""

    ask: Ask
    by_call: bool = False
    """The worker has no stream: its tasks leave in the answer, and not through the hand-out."""

    @property
    def entity(self) -> Hashable:
        """Itself: claims do not wait for each other."""
        return id(self)

    def decide(self, group: Group) -> Later:
        """Claim after the group is written, so that what it makes due can be had at once."""
        late = group.claim_later(self.ask, by_call=self.by_call)
        return Later(lambda: late.claimed)


@dataclass(frozen=True, slots=True)
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


# ---- the lease


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Renew(_AboutLease):
    """Extend a lease to its full length; also the acknowledgement of a task, and its move to a newer connection."""

    leaves_images: ClassVar[bool] = True
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


@dataclass(frozen=True, slots=True)
class Shorten(_AboutLease):
    """Leave a lease a short grace, because its connection broke, or its holder is told that it is lost."""

    times: LeaseTimes

    def _changed(self, task: Task, at: Stamp) -> Task:
        return task.shortened(at.lease_now, self.times)


@dataclass(frozen=True, slots=True)
class GiveBack(_AboutLease):
    """Return a task that was never delivered, as if it had not been claimed."""

    def _changed(self, task: Task, at: Stamp) -> Task:
        return task.given_back()


@dataclass(frozen=True, slots=True)
class Leave(_AboutLease):
    """Return a task whose holder goes away for good. It has said which bodies it interrupts."""

    def _changed(self, task: Task, at: Stamp) -> Task:
        return task.left(at.now)


# ---- reports


@dataclass(frozen=True, slots=True)
class _ByHolder(_AboutHeld):
    """A call about the work of a task, by the session that holds it, or for it."""

    session_id: str
    namespace: str | None = field(default=None, kw_only=True)
    """Of the session: tasks of others are not there for it. None: the server itself asks."""
    connection: int | None = field(default=None, kw_only=True)
    """Of the session, where a later one would take the answer over. None: any."""

    def task(self, group: Group) -> Task | None:
        """The task, if its lease is the one in question, and not with another session or namespace."""
        task = group.task(self.held.task_id)
        if task is None or task.fence != self.held.fence or self.namespace not in (None, task.handler.namespace):
            return None
        return task if task.owner is None or task.owner.session_id == self.session_id else None

    def is_mine(self, task: Task) -> bool:
        """Whether its worker holds the task, which is one of `task`."""
        if task.owner is None:
            return False
        has_moved = self.connection is not None and self.connection < task.owner.connection
        return not has_moved and judge(task, self.held) is Verdict.ACCEPTED


@dataclass(frozen=True, slots=True)
class ReportFrames(_ByHolder):
    """Take a worker's frames about a task, in order, and tell it what is news; also without frames. The answer is
    `News`."""

    frames: tuple[Frame, ...] = ()
    size_hint: int = 200
    tell_all: bool = field(default=False, kw_only=True)
    """Say again what the worker may not have heard of: an earlier stream or reply may have been lost with it."""
    by_call: bool = field(default=False, kw_only=True)
    """The worker has no stream: what came since its last report it hears of only now."""

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return self.size_hint

    def express(self, images: Mapping[int, Task]) -> TaskKind | None:
        """That of the task, if these are the next frames of the holder that it has."""
        image = images.get(self.held.task_id)
        if image is None or not self.frames or self.tell_all or self.by_call or self.connection is not None:
            return None
        is_next = all(frame.number == number for number, frame in enumerate(self.frames, image.frame_number + 1))
        is_holder = image.owner is not None and image.owner.session_id == self.session_id
        is_there = image.fence == self.held.fence and self.namespace in (None, image.handler.namespace)
        return image.handler.kind if is_next and is_holder and is_there else None

    def foresee(self, book: Book) -> None:
        """What the frames are about, if the lease is not lost."""
        book.foresee(self.held.task_id, self.frames)

    def want(self, group: Group) -> None:
        """What the frames are about; or what became of the task if the lease is lost."""
        task = self.task(group)
        if task is not None:
            group.books[task.handler.kind].want(task, self.frames, again=self._tells_all(task))
            return
        group.fates_wanted.add(self.held.task_id)

    def decide(self, group: Group) -> News:
        """Apply what is new, then end the waits that are over and the executions that take too long."""
        task = self.task(group)
        if task is None:
            return self._lost(group)
        work = group.open(task)
        work.begin_batch(self.frames)
        answers: list[FrameAnswer] = []
        lost = not self.frames and not self.is_mine(work.task)
        for frame in self.frames:
            answer = self._answer(work, frame)
            # What came before counts all the same. What follows, an end perhaps, may rest on what does not count.
            if answer is None or work.is_contradicted:
                lost = True
                break
            answers.append(answer)
        news = News(tuple(answers), revision=work.task.revision)
        if work.ending is None and self.is_mine(work.task):
            news = work.news(tuple(answers), again=self._tells_all(task))
        group.settle(work, task)
        return replace(news, stale=self.held.lost()) if lost else news

    def _tells_all(self, task: Task) -> bool:
        return (self.tell_all or (self.by_call and task.wake_again)) or any(
            frame.number <= task.frame_number or frame.body.has_missed(task.resolved_revision) for frame in self.frames
        )

    def _answer(self, work: Work, frame: Frame) -> FrameAnswer | None:
        """None: the lease is lost."""
        if frame.number <= work.task.frame_number:
            return work.repeat(frame)
        if work.has_parked:  # by a frame before this one: it pauses here
            work.task = work.task._replace(frame_number=frame.number)
            return FrameAnswer(frame.number, Verdict.ACCEPTED, Stop.PAUSE, True, revision=work.task.revision)
        if work.ending is not None or not self.is_mine(work.task):
            return None
        expected = work.task.frame_number + 1
        if frame.number != expected:
            gap = InvalidField(f"the next frame of this task has number {expected}", field="number", expected=expected)
            return FrameAnswer(frame.number, Verdict.ACCEPTED, work.task.stop, revision=work.task.revision, refusal=gap)
        return work.apply(frame, self.session_id)

    def _lost(self, group: Group) -> News:
        """The lease is gone: by this worker's own last frame, which is then acknowledged again, or otherwise."""
        fate = group.fates.get(self.held.task_id)
        if fate is None or self.namespace not in (None, fate.namespace):
            return News(stale=self.held.lost())
        if fate.ended_fence == self.held.fence:
            return News(tuple(FrameAnswer(one.number, Verdict.REPEATED, released=True) for one in self.frames))
        is_over = fate.supersedes(self.held)
        return News(stale=group.books[fate.kind].superseded(self.held) if is_over else self.held.lost())


@dataclass(frozen=True, slots=True)
class EndOvertime(_ByHolder):
    """End executions that take too long, of a task whose holder has no stream and is told when it reports next: until
    then its task says that something came. The answer is an `Answer`."""

    def foresee(self, book: Book) -> None:
        """What is executing, and the waits."""
        book.foresee(self.held.task_id, ())

    def want(self, group: Group) -> None:
        """What is executing, and the waits."""
        task = self.task(group)
        if task is not None:
            group.books[task.handler.kind].want(task, (), again=False)

    def decide(self, group: Group) -> Answer:
        """Say whether the task is still held afterwards, and whether its holder has something to ask for."""
        task = self.task(group)
        if task is None or not self.is_mine(task):
            return Answer(Verdict.STALE)
        work = group.open(task)
        has_news = work.end_overtime()
        group.settle(work, task)
        if work.ending is not None or not self.is_mine(work.task):
            return Answer(Verdict.STALE)
        return Answer(Verdict.ACCEPTED, task.stop, has_news, work.task.revision)
