"""Hot calls about runs: create one, send it an event, take its worker's frames."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.frames import Frame, FrameAnswer, RunNews, StepDone, StepFailed, Suspend, Wait
from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.jobs import Job
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.tasks import Stop, Task, Verdict, judge
from stepwell_server.domain.values.errors import (
    IdempotencyKeyReused,
    InstanceIdAlreadyExists,
    InstanceNotFound,
    InvalidField,
    RunSuperseded,
    StepwellError,
)
from stepwell_server.domain.workflows.instances import (
    Event,
    Instance,
    InstanceKey,
    InstanceStatus,
    NewEvent,
    NewInstance,
    status_of,
    terminal,
)
from stepwell_server.domain.workflows.runs import Run
from stepwell_server.engine.spine.calls import Answer
from stepwell_server.engine.spine.group import Group, HotCall, Later
from stepwell_server.engine.workflows.book import NewRun, Reads, ref
from stepwell_server.storage.database.database import LostRace
from stepwell_server.storage.spine.tasks import TaskKey
from stepwell_server.storage.workflows.instances import Fate
from stepwell_server.storage.workflows.runs import SentEvent


@dataclass(frozen=True, slots=True)
class Created:
    """An instance that a create made, or that it had made when it was first sent."""

    new: NewInstance
    instance: Instance | None
    """As it was found. None: it is new, and `task` is its task."""
    task: Task | None
    is_new: bool = False
    """This very call has made it."""

    def as_instance(self) -> Instance:
        """The instance, as it was found or as it was just stored."""
        if self.instance is not None:
            return self.instance
        assert self.task is not None
        status, born_at = status_of(self.task), self.task.run_at
        return Instance(
            id=self.task.id,
            key=self.new.key,
            run_number=0,
            status=status,
            params=self.new.params,
            output=None,
            failure=None,
            labels=self.new.labels,
            created_at=born_at,
            updated_at=born_at,
            started_at=born_at if status is InstanceStatus.RUNNING else None,
            ended_at=None,
            revision=self.task.revision,
            trace=self.new.trace,
        )


@dataclass(frozen=True, slots=True)
class CreateRun(HotCall):
    """Create an instance. The answer is `Created`, or a refusal."""

    run: NewRun

    @property
    def _key(self) -> TaskKey:
        return self.run.new.key.handler, self.run.new.key.instance_id

    @property
    def entity(self) -> Hashable:
        """The key of the instance."""
        return self._key

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 300 + self.run.new.params.size

    def decide(self, group: Group) -> Later:
        """Create it; whether it was there is known when it is written."""
        group.runs.create(self.run)
        return Later(lambda: self._outcome(group))

    def _outcome(self, group: Group) -> Created | StepwellError:
        key, book = self._key, group.runs
        if key in group.inserted:
            if book.births[key] is self.run:
                return Created(self.run.new, None, group.inserted[key], is_new=True)
            first = book.births[key]
            return self._repeated(None, group.inserted[key], first.request_id, first.request_hash)
        request = (self.run.new.key.namespace, self.run.request_id)
        found = book.found_by_request.get(request) or book.found_by_key.get(self.run.new.key)
        if found is not None:
            return self._repeated(found.instance, None, found.request_id, found.request_hash)
        return IdempotencyKeyReused("this request_id was used for another request", request_id=self.run.request_id)

    def _repeated(
        self, instance: Instance | None, task: Task | None, request_id: str | None, request_hash: str | None
    ) -> Created | StepwellError:
        """The answer if there is one already: the same, if this is the same request."""
        if self.run.request_id is None or self.run.request_id != request_id:
            key = self.run.new.key
            return InstanceIdAlreadyExists(
                "an instance of that id exists; restart it to run it again",
                workflow=key.workflow,
                instance_id=key.instance_id,
            )
        if self.run.request_hash != request_hash:
            return IdempotencyKeyReused("this request_id was used for another request", request_id=request_id)
        return Created(self.run.new, instance, task)


@dataclass(frozen=True, slots=True)
class Stored:
    """An event that is stored, and where its instance stands."""

    event: Event
    status: InstanceStatus


@dataclass(frozen=True, slots=True)
class SendEvent(HotCall):
    """Store an event. The answer is `Stored`, or a refusal."""

    new: NewEvent
    request_id: str | None = None
    request_hash: str | None = None

    @property
    def _key(self) -> TaskKey:
        return self.new.key.handler, self.new.key.instance_id

    @property
    def entity(self) -> Hashable:
        """The key of the instance."""
        return self._key

    @property
    def task_keys(self) -> Sequence[TaskKey]:
        """The task of the instance, if it lives."""
        return (self._key,)

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 200 + (0 if self.new.payload is None else self.new.payload.size)

    def note_reads(self, reads: Reads, group: Group) -> None:
        """Its run's waits; or what became of the instance; and whether it was sent before."""
        task = group.task_of(self._key)
        if task is None:
            reads.without_task.add(self.new.key)
        else:
            reads.runs.add(ref(task))
        if self.request_id is not None:
            reads.requests.add((self.new.key.namespace, self.request_id))

    def decide(self, group: Group) -> Stored:
        """Store it, and wake the run if that waits for it."""
        task = group.task_of(self._key)
        earlier = None if self.request_id is None else group.runs.sent.get((self.new.key.namespace, self.request_id))
        if earlier is not None:
            return self._again(earlier, task, group)
        if task is None:
            raise self._absent(group)
        run = group.runs.open(task)
        event = run.receive(self.new.type, self.new.payload, self.new.trace)
        group.put(run.task)
        sent = SentEvent(ref(task), self.new.key.namespace, event, self.request_id, self.request_hash)
        group.runs.note_sent(sent)
        return Stored(event, status_of(run.task))

    def _again(self, earlier: SentEvent, task: Task | None, group: Group) -> Stored:
        if earlier.request_hash != self.request_hash:
            raise IdempotencyKeyReused("this request_id was used for another request", request_id=self.request_id)
        if task is not None:
            return Stored(earlier.event, status_of(task))
        ended = self._ended(group)
        return Stored(earlier.event, InstanceStatus.TERMINATED if ended is None else ended)

    def _ended(self, group: Group) -> InstanceStatus | None:
        """How the instance ended: in an earlier call of the group, or before. None: there is none."""
        task_id = group.by_key.get(self._key)
        fate = None if task_id is None else group.runs.fate(task_id)
        found = group.runs.without_task.get(self.new.key)
        if found is not None and not found.status.ended:
            raise LostRace  # it was restarted after we looked for its task
        return fate.status if fate is not None else None if found is None else found.status

    def _absent(self, group: Group) -> StepwellError:
        ended = self._ended(group)
        return not_found(self.new.key) if ended is None else terminal(self.new.key, ended)


@dataclass(frozen=True, slots=True)
class ReportFrames(HotCall):
    """Take a worker's frames about a run, in order, and tell it what is news; also without frames. The answer is
    `RunNews`."""

    held: Held
    session_id: str
    frames: tuple[Frame, ...] = ()
    size_hint: int = 200
    namespace: str | None = None
    """Of the session: tasks of others are not there for it. None: the server itself asks."""
    connection: int | None = None
    """Of the session, for whoever would hear of it. None: any."""
    tell_all: bool = False
    """Say again what the worker may not have heard of: an earlier stream or reply may have been lost with it."""
    by_call: bool = False
    """The worker has no stream: what came since its last report it hears of only now."""

    @property
    def entity(self) -> Hashable:
        """The task."""
        return self.held.task_id

    @property
    def task_ids(self) -> Sequence[int]:
        """The task."""
        return (self.held.task_id,)

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return self.size_hint

    def note_reads(self, reads: Reads, group: Group) -> None:
        """The steps in question, and the waits; or what became of the instance if the lease is lost."""
        task = self.task(group)
        if task is None:
            reads.fates.add(self.held.task_id)
            return
        if task.handler.kind is not TaskKind.WORKFLOW:
            return
        run = ref(task)
        reads.runs.add(run)
        if self._tells_all(task):
            reads.untold.add(run)
        for frame in self.frames:
            if frame.step_name is not None:
                reads.names.add((run, frame.step_name))
            reads.names.update((run, one.name) for one in frame.opens)
            if isinstance(frame.body, Wait) and frame.body.event_type:
                reads.waits_to_come[run, frame.body.event_type] += 1
        reads.names.update((run, one.name) for one in load_open(task.open_steps))

    def decide(self, group: Group) -> RunNews:
        """Apply what is new, then end the waits that are over and the executions that take too long."""
        task = self.task(group)
        if task is None:
            return self._lost(group)
        run = group.open(task)
        answers: list[FrameAnswer] = []
        lost = not self.frames and not self.is_mine(run.task)
        reports = sum(map(_is_report, self.frames))
        for frame in self.frames:
            reports -= _is_report(frame)
            if isinstance(run, Run):
                run.reports_follow = reports > 0
            answer = self._answer(run, frame)
            # What came before counts all the same. What follows, an end perhaps, may rest on what does not count.
            if answer is None or run.is_contradicted:
                lost = True
                break
            answers.append(answer)
        news = RunNews(tuple(answers), revision=run.task.revision)
        if run.ending is None and self.is_mine(run.task):
            news = run.news(tuple(answers), again=self._tells_all(task))
        if run.ending is not None:
            group.remove(run.task)
        elif run.task != task:
            group.put(run.task)
        return replace(news, stale=self.held.lost()) if lost else news

    def task(self, group: Group) -> Task | None:
        """The task, if its lease is the one in question, and not with another session or namespace."""
        task = group.task(self.held.task_id)
        if task is None or task.fence != self.held.fence or self.namespace not in (None, task.handler.namespace):
            return None
        return task if task.owner is None or task.owner.session_id == self.session_id else None

    def _tells_all(self, task: Task) -> bool:
        return (self.tell_all or (self.by_call and task.wake_again)) or any(
            frame.number <= task.frame_number
            or (isinstance(frame.body, Suspend) and frame.body.has_missed(task.resolved_revision))
            for frame in self.frames
        )

    def _answer(self, run: Run | Job, frame: Frame) -> FrameAnswer | None:
        """None: the lease is lost."""
        if frame.number <= run.task.frame_number:
            return run.repeat(frame)
        if run.has_parked:  # by a frame before this one: the run pauses here
            run.task = run.task._replace(frame_number=frame.number)
            return FrameAnswer(frame.number, Verdict.ACCEPTED, Stop.PAUSE, True, revision=run.task.revision)
        if run.ending is not None or not self.is_mine(run.task):
            return None
        expected = run.task.frame_number + 1
        if frame.number != expected:
            gap = InvalidField(f"the next frame of this task has number {expected}", field="number", expected=expected)
            return FrameAnswer(frame.number, Verdict.ACCEPTED, run.task.stop, revision=run.task.revision, refusal=gap)
        return run.apply(frame, self.session_id)

    def is_mine(self, task: Task) -> bool:
        """Whether its worker holds the task, which is one of `task`."""
        if task.owner is None:
            return False
        has_moved = self.connection is not None and self.connection < task.owner.connection
        return not has_moved and judge(task, self.held) is Verdict.ACCEPTED

    def _lost(self, group: Group) -> RunNews:
        """The lease is gone: by this worker's own finish, which is then acknowledged again, or by somebody else."""
        task_id, namespace = self.held.task_id, self.namespace
        fate = group.runs.fate(task_id, namespace)
        ended_fence = group.jobs.ended_fence(task_id, namespace) if fate is None else fate.ended_fence
        if ended_fence == self.held.fence:
            ended = tuple(FrameAnswer(frame.number, Verdict.REPEATED, released=True) for frame in self.frames)
            return RunNews(ended)
        return RunNews(stale=_why_lost(fate, self.held))


@dataclass(frozen=True, slots=True)
class EndOvertime(HotCall):
    """End executions that take too long, of a task whose holder has no stream and is told when it reports next: until
    then its task says that something came. The answer is an `Answer`."""

    report: ReportFrames
    """One without frames."""

    @property
    def entity(self) -> Hashable:
        """The task."""
        return self.report.entity

    @property
    def task_ids(self) -> Sequence[int]:
        """The task."""
        return self.report.task_ids

    def note_reads(self, reads: Reads, group: Group) -> None:
        """What is executing, and the waits."""
        self.report.note_reads(reads, group)

    def decide(self, group: Group) -> Answer:
        """A job whose execution took too long is lost to its holder; a run is still held, and its step has failed."""
        task = self.report.task(group)
        if task is None or not self.report.is_mine(task):
            return Answer(Verdict.STALE)
        run = group.open(task)
        if isinstance(run, Job):
            news = self.report.decide(group)
            return Answer(Verdict.ACCEPTED if news.stale is None else Verdict.STALE, task.stop, revision=news.revision)
        if run.expire():
            run.task = run.task._replace(wake_again=True)
            group.put(run.task)
        return Answer(Verdict.ACCEPTED, task.stop, run.task.wake_again or run.overdue(), run.task.revision)


def _is_report(frame: Frame) -> bool:
    """Whether it says what came of an execution."""
    return isinstance(frame.body, StepDone | StepFailed)


def not_found(key: InstanceKey) -> InstanceNotFound:
    """The refusal of a call about an instance that is not there."""
    return InstanceNotFound("there is no such instance", workflow=key.workflow, instance_id=key.instance_id)


def _why_lost(fate: Fate | None, held: Held) -> StepwellError:
    if fate is not None and (fate.status.ended or held.fence < fate.first_fence):
        return RunSuperseded("the run was ended or restarted", task_id=held.task_id, fence=held.fence)
    return held.lost()
