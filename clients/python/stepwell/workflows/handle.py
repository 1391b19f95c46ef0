"""Workflow and Instance: what a client can do with a workflow and with one execution of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from stepwell import checks
from stepwell.calls import PAGE, Caller, pages
from stepwell.durations import DurationLike, InstantLike, to_duration, to_seconds, to_timedelta, to_timestamp, to_words
from stepwell.errors import WorkflowFailed, WorkflowTerminated, refusal_of
from stepwell.payloads import from_payload, to_payload
from stepwell.request_ids import identified
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell.views import stored_failure
from stepwell.workflows.info import (
    HistoryEntry,
    InstanceChange,
    InstanceInfo,
    InstanceStatus,
    history_entry,
    instance_info,
    status_numbers,
    status_of,
    step_entry,
)

P = TypeVar("P")
R = TypeVar("R")

Order: TypeAlias = Literal["newest", "oldest"]

_ORDERS = {"newest": pb.LIST_ORDER_NEWEST_FIRST, "oldest": pb.LIST_ORDER_OLDEST_FIRST}


class InstanceFollower(Protocol):
    """Follows an instance on the client's stream."""

    async def next(self) -> tuple[pb.Instance, list[pb.Step]]:
        """The newest state that was not taken yet, and the steps that changed up to it."""


class WorkflowCaller(Caller, Protocol):
    """The client, as handles of workflows and instances see it."""

    def follow(
        self, workflow: str, instance_id: str, *, steps: bool = False, known_revision: int = 0
    ) -> AbstractContextManager[InstanceFollower]:
        """Follow an instance inside a `with` block, beginning with its present state, unless that one is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInstance(Generic[P]):
    """One instance of a `create_batch`."""

    id: str | None = None
    params: P | None = None
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Workflow(Generic[P, R]):
    """A workflow on the server: starts, finds and lists its instances."""

    client: WorkflowCaller
    name: str
    result_type: Any = None

    async def create(
        self,
        id: str | None = None,
        params: P | None = None,
        labels: Mapping[str, str] | None = None,
        wait: DurationLike | None = None,
    ) -> Instance[R]:
        """Start an instance; answers when it is stored or, with `wait`, when it has ended or the wait is over.

        The instance keeps what the wait brought: `result()` asks the server only if it had not ended by then.
        """
        if wait is not None:
            return await self._create_and_wait(NewInstance(id=id, params=params, labels=labels), wait)
        item = create_item(self.name, NewInstance(id=id, params=params, labels=labels))
        result = await self.client.submit(create_all, item)
        if result.HasField("error"):
            raise refusal_of(result.error)
        return self._created(result.instance)

    async def create_batch(self, batch: Iterable[NewInstance[P] | Mapping[str, Any]]) -> list[Instance[R]]:
        """Start many instances. Ids that exist already are skipped, and left out of the answer.

        All are looked at before the first is sent, so that an id which cannot be one refuses the whole batch. The first
        one that the server refuses for another reason is raised; those before and after it are stored.
        """
        news = [new if isinstance(new, NewInstance) else NewInstance(**new) for new in batch]
        items = [create_item(self.name, new) for new in news]
        results = await self.client.submit_all(create_missing, items)
        for result in results:
            if result.HasField("error"):
                raise refusal_of(result.error)
        return [self._created(result.instance) for result in results if result.HasField("instance")]

    async def get(self, id: str) -> Instance[R]:
        """The instance of that id. CallFailed with INSTANCE_NOT_FOUND if there is none."""
        instance: Instance[R] = Instance(self.client, self.name, checks.text("id", id), self.result_type)
        await instance.fetch(view=pb.INSTANCE_VIEW_BASIC)
        return instance

    async def list(
        self,
        *,
        status: InstanceStatus | str | Iterable[InstanceStatus | str] | None = None,
        labels: Mapping[str, str] | None = None,
        created_from: InstantLike | None = None,
        created_before: InstantLike | None = None,
        order: Order = "newest",
    ) -> AsyncIterator[InstanceInfo[R]]:
        """The instances that match all filters, by time of creation. They come without params and output."""
        request = pb.ListInstancesRequest(
            namespace=self.client.namespace,
            workflow=self.name,
            statuses=status_numbers(status),
            labels=checks.labels(labels),
            created_from=None if created_from is None else to_timestamp(created_from),
            created_before=None if created_before is None else to_timestamp(created_before),
            view=pb.INSTANCE_VIEW_BASIC,
            page_size=PAGE,
            order=_order_number(order),
        )
        call = partial(self.client.call, self.client.stub(WorkflowServiceStub).ListInstances)
        async for page in pages(call, request):
            for instance in page.instances:
                yield instance_info(instance)

    async def _create_and_wait(self, new: NewInstance[P], wait: DurationLike) -> Instance[R]:
        item = create_item(self.name, new)
        request = pb.CreateInstanceRequest(
            namespace=self.client.namespace,
            workflow=item.workflow,
            instance_id=item.instance_id,
            params=item.params if item.HasField("params") else None,
            labels=item.labels,
            wait=to_duration(wait),
            request_id=item.request_id,
        )
        method = self.client.stub(WorkflowServiceStub).CreateInstance
        answer = await self.client.call(method, request, self.client.timeout + to_seconds(wait))
        ended = answer.instance if status_of(answer.instance).is_terminal else None
        return Instance(self.client, self.name, answer.instance.instance_id, self.result_type, ended)

    def _created(self, instance: pb.Instance) -> Instance[R]:
        """An instance that was just stored. If it has ended since, its end is not known: the output is not here."""
        known = None if status_of(instance).is_terminal else instance
        return Instance(self.client, self.name, instance.instance_id, self.result_type, known)


@dataclass(frozen=True, slots=True)
class Instance(Generic[R]):
    """One execution of a workflow, on the server: a handle that holds its id, and what is known of it.

    Known is how it was stored when it was created or, if `create` waited for it, how it ended.
    """

    client: WorkflowCaller
    workflow: str
    id: str
    result_type: Any = None
    _known: pb.Instance | None = field(default=None, repr=False, compare=False)

    async def status(self) -> InstanceInfo[R]:
        """The instance as it is now."""
        return instance_info(await self.fetch(), self.result_type)

    async def result(self, timeout: DurationLike | None = None) -> R:  # noqa: ASYNC109 - also takes text
        """Wait for the current run to end, and return its output.

        WorkflowFailed if it errored, WorkflowTerminated if it was terminated, TimeoutError if it has not ended in time.
        """
        instance = await self._ended(None if timeout is None else to_timedelta(timeout))
        match status_of(instance):
            case InstanceStatus.ERRORED:
                error = stored_failure(instance.failure)
                raise WorkflowFailed(error.name, error.message)
            case InstanceStatus.TERMINATED:
                raise WorkflowTerminated(f"the instance {self.id} was terminated")
        result: R = from_payload(instance.output, self.result_type)
        return result

    async def send_event(self, type: str, payload: Any = None) -> None:
        """Send an event: to the step that waits for its type, or kept until one does."""
        result = await self.client.submit(send_all, event_item(self.workflow, self.id, type, payload))
        if result.HasField("error"):
            raise refusal_of(result.error)

    async def pause(self) -> None:
        """Stop the instance: at once, or at the next step boundary if it executes."""
        request = identified(pb.PauseInstanceRequest(**self._named()))
        await self.client.call(self.client.stub(WorkflowServiceStub).PauseInstance, request)

    async def resume(self) -> None:
        """Let a paused instance go on; anything else stays as it is."""
        request = identified(pb.ResumeInstanceRequest(**self._named()))
        await self.client.call(self.client.stub(WorkflowServiceStub).ResumeInstance, request)

    async def terminate(self) -> None:
        """End the instance for good."""
        request = identified(pb.TerminateInstanceRequest(**self._named()))
        await self.client.call(self.client.stub(WorkflowServiceStub).TerminateInstance, request)

    async def restart(self, from_step: str | None = None) -> None:
        """Begin a new run; with `from_step`, keep the results of the steps before that one."""
        object.__setattr__(self, "_known", None)
        kept_from = checks.text("from_step", from_step or "")
        request = identified(pb.RestartInstanceRequest(**self._named(), from_step=kept_from))
        await self.client.call(self.client.stub(WorkflowServiceStub).RestartInstance, request)

    async def history(self, run_number: int | None = None) -> list[HistoryEntry]:
        """The steps and events of a run, oldest first; of the current run if none is named."""
        if run_number is not None and not isinstance(run_number, int):
            raise TypeError(f"run_number is a number, not {run_number!r}")
        request = pb.GetHistoryRequest(
            namespace=self.client.namespace,
            workflow=self.workflow,
            instance_id=self.id,
            run_number=run_number,
            page_size=PAGE,
        )
        entries: list[HistoryEntry] = []
        async for page in pages(partial(self.client.call, self.client.stub(WorkflowServiceStub).GetHistory), request):
            entries.extend(map(history_entry, page.entries))
            request.run_number = page.run_number  # a restart meanwhile must not mix two runs
        return entries

    async def watch(self, *, steps: bool = False) -> AsyncIterator[InstanceChange[R]]:
        """The instance now and whenever it changes, until it has ended; with `steps`, also the steps that changed."""
        with self.client.follow(self.workflow, self.id, steps=steps) as follower:
            while True:
                instance, changed = await follower.next()
                yield InstanceChange(instance_info(instance, self.result_type), tuple(map(step_entry, changed)))
                if status_of(instance).is_terminal:
                    return

    async def fetch(self, *, view: pb.InstanceView.ValueType = pb.INSTANCE_VIEW_FULL) -> pb.Instance:
        """The instance as the wire has it."""
        request = pb.GetInstanceRequest(**self._named(), view=view)
        answer = await self.client.call(self.client.stub(WorkflowServiceStub).GetInstance, request)
        return answer.instance

    async def _ended(self, longest: timedelta | None) -> pb.Instance:
        """The instance when its current run has ended. TimeoutError if that takes longer."""
        instance = self._known
        if instance is not None and status_of(instance).is_terminal:
            return instance
        known_revision = 0 if instance is None else instance.revision
        with self.client.follow(self.workflow, self.id, known_revision=known_revision) as follower:
            try:
                async with asyncio.timeout(None if longest is None else longest.total_seconds()):
                    while instance is None or not status_of(instance).is_terminal:
                        instance, _ = await follower.next()
            except TimeoutError:
                within = "" if longest is None else f" within {to_words(longest)}"
                stands = "" if instance is None else f": it is {status_of(instance)}"
                raise TimeoutError(f"{self.workflow} {self.id} has not ended{within}{stands}") from None
        return instance

    def _named(self) -> dict[str, str]:
        return {"namespace": self.client.namespace, "workflow": self.workflow, "instance_id": self.id}


async def create_all(
    client: Caller, items: Sequence[pb.CreateInstancesItem], seconds: float
) -> Sequence[pb.CreateInstancesResult]:
    """Create instances, each answered by itself. An id that exists refuses its item."""
    return await _create(client, items, seconds, pb.ON_EXISTING_ERROR)


async def create_missing(
    client: Caller, items: Sequence[pb.CreateInstancesItem], seconds: float
) -> Sequence[pb.CreateInstancesResult]:
    """Create instances, each answered by itself. An id that exists skips its item."""
    return await _create(client, items, seconds, pb.ON_EXISTING_SKIP)


async def send_all(client: Caller, items: Sequence[pb.SendEventsItem], seconds: float) -> Sequence[pb.SendEventsResult]:
    """Send events, each answered by itself."""
    request = pb.SendEventsRequest(namespace=client.namespace, items=items)
    return (await client.call(client.stub(WorkflowServiceStub).SendEvents, request, seconds)).results


async def _create(
    client: Caller, items: Sequence[pb.CreateInstancesItem], seconds: float, on_existing: pb.OnExisting.ValueType
) -> Sequence[pb.CreateInstancesResult]:
    request = pb.CreateInstancesRequest(namespace=client.namespace, items=items, on_existing=on_existing)
    return (await client.call(client.stub(WorkflowServiceStub).CreateInstances, request, seconds)).results


def create_item(workflow: str, new: NewInstance[Any]) -> pb.CreateInstancesItem:
    """An instance to create, for the wire. PayloadInvalid if its parameters cannot be sent."""
    item = pb.CreateInstancesItem(
        workflow=workflow,
        instance_id=checks.new_id("an instance", new.id),
        params=to_payload(new.params),
        labels=checks.labels(new.labels),
    )
    return identified(item)


def event_item(workflow: str, instance_id: str, type: str, payload: Any) -> pb.SendEventsItem:
    """An event to send, for the wire. PayloadInvalid if its payload cannot be sent."""
    item = pb.SendEventsItem(
        workflow=workflow, instance_id=instance_id, type=checks.text("type", type), payload=to_payload(payload)
    )
    return identified(item)


def _order_number(order: str) -> pb.ListOrder.ValueType:
    number = _ORDERS.get(order)
    if number is None:
        raise ValueError(f'order is "newest" or "oldest", not {order!r}')
    return number
