"""Hot calls about runs: create one, send it an event."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from stepwell_server.domain.spine.births import Birth
from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.asked import reused
from stepwell_server.domain.values.errors import (
    InstanceIdAlreadyExists,
    InstanceNotFound,
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
from stepwell_server.engine.spine.births import Births, Create
from stepwell_server.engine.spine.books import Group, HotCall
from stepwell_server.engine.workflows.book import book_of, ref
from stepwell_server.storage.database.database import LostRace
from stepwell_server.storage.spine.tasks import TaskKey
from stepwell_server.storage.workflows.runs import SentEvent


class CreateRun(Create[NewInstance, Instance]):
    """Create an instance."""

    __slots__ = ()

    @property
    def creates(self) -> TaskKey:
        """The task of the instance."""
        return self.wanted.new.key.handler, self.wanted.new.key.instance_id

    def express(self, images: Mapping[int, Task]) -> TaskKind | None:
        """Of a plain instance: one without labels and trace."""
        new = self.wanted.new
        return None if new.labels or new.trace else TaskKind.WORKFLOW

    @property
    def entity(self) -> Hashable:
        """The task of the instance: events to it are decided after it is created."""
        return self.creates

    @property
    def size(self) -> int:
        """About how many bytes it brings."""
        return 300 + self.wanted.new.params.size

    def births(self, group: Group) -> Births[NewInstance, Instance]:
        """The instances that the group creates."""
        return book_of(group).births

    def newborn(self, group: Group, birth: Birth[NewInstance]) -> Instance:
        """The instance as it was just stored."""
        task = group.inserted[birth.new.key.handler, birth.new.key.instance_id]
        status = status_of(task)
        return Instance(
            id=birth.id,
            key=birth.new.key,
            run_number=0,
            status=status,
            params=birth.new.params,
            output=None,
            failure=None,
            labels=birth.new.labels,
            created_at=birth.at,
            updated_at=birth.at,
            started_at=birth.at if status is InstanceStatus.RUNNING else None,
            ended_at=None,
            revision=task.revision,
            trace=birth.new.trace,
        )

    def exists(self) -> InstanceIdAlreadyExists:
        """The refusal if there is an instance of that id."""
        key = self.wanted.new.key
        return InstanceIdAlreadyExists(
            "an instance of that id exists; restart it to run it again",
            workflow=key.workflow,
            instance_id=key.instance_id,
        )


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

    def want(self, group: Group) -> None:
        """Its run's waits; or what became of the instance; and whether it was sent before."""
        book, task = book_of(group), group.task_of(self._key)
        if task is None:
            book.want_instance(self.new.key)
        else:
            book.want_waits(task)
        if self.request_id is not None:
            book.want_request(self.new.key.namespace, self.request_id)

    def decide(self, group: Group) -> Stored:
        """Store it, and wake the run if that waits for it."""
        task = group.task_of(self._key)
        book = book_of(group)
        earlier = None if self.request_id is None else book.sent.get((self.new.key.namespace, self.request_id))
        if earlier is not None:
            return self._again(earlier, task, group)
        if task is None:
            raise self._absent(group)
        run = book.open(task)
        event = run.receive(self.new.type, self.new.payload, self.new.trace)
        group.put(run.task)
        sent = SentEvent(ref(task), self.new.key.namespace, event, self.request_id, self.request_hash)
        book.note_sent(sent)
        return Stored(event, status_of(run.task))

    def _again(self, earlier: SentEvent, task: Task | None, group: Group) -> Stored:
        if earlier.request_hash != self.request_hash:
            raise reused(self.request_id)
        if task is not None:
            return Stored(earlier.event, status_of(task))
        ended = self._ended(group)
        return Stored(earlier.event, InstanceStatus.TERMINATED if ended is None else ended)

    def _ended(self, group: Group) -> InstanceStatus | None:
        """How the instance ended: in an earlier call of the group, or before. None: there is none."""
        book, task_id = book_of(group), group.by_key.get(self._key)
        here = None if task_id is None else book.ended_here(task_id)
        found = book.without_task.get(self.new.key)
        if found is not None and not found.status.ended:
            raise LostRace  # it was restarted after we looked for its task
        return here or (None if found is None else found.status)

    def _absent(self, group: Group) -> StepwellError:
        ended = self._ended(group)
        return not_found(self.new.key) if ended is None else terminal(self.new.key, ended)


def not_found(key: InstanceKey) -> InstanceNotFound:
    """The refusal of a call about an instance that is not there."""
    return InstanceNotFound("there is no such instance", workflow=key.workflow, instance_id=key.instance_id)
