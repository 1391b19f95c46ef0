"""WorkflowService."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceServicer
from stepwell_server.api.edge.calls import Context, asked_of, current, readable, waiting
from stepwell_server.api.watches import WatchStream
from stepwell_server.api.wire import common as convert
from stepwell_server.api.wire import workflows as wire
from stepwell_server.domain.values.errors import InvalidField, StepwellError
from stepwell_server.domain.values.pages import PageRequest
from stepwell_server.domain.values.payloads import EMPTY_OBJECT
from stepwell_server.domain.workflows.instances import InstanceFilter, InstanceKey, NewEvent, NewInstance
from stepwell_server.engine.workflows.calls import Stored
from stepwell_server.engine.workflows.instances import DEFAULT_WAIT, Instances
from stepwell_server.engine.workflows.workflows import Workflows

_STATUSES = {number: status for status, number in wire.STATUSES.items()}


class WorkflowServicer(WorkflowServiceServicer):
    """Translates between the wire and `engine.workflows`."""

    def __init__(self, workflows: Workflows, instances: Instances) -> None:
        self._workflows = workflows
        self._instances = instances

    async def ListWorkflows(self, request: pb.ListWorkflowsRequest, context: Context) -> pb.ListWorkflowsResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        page = await self._instances.list_workflows(namespace, PageRequest(request.page_size, request.page_token))
        found = [
            pb.Workflow(
                name=one.name,
                description=one.description,
                created_at=convert.timestamp_to_pb(one.created_at),
                worker_count=one.worker_count,
            )
            for one in page.items
        ]
        return pb.ListWorkflowsResponse(workflows=found, next_page_token=page.next_token)

    async def CreateInstance(self, request: pb.CreateInstanceRequest, context: Context) -> pb.CreateInstanceResponse:
        new, asked = new_instance(request.namespace, request), asked_of(_create_item(request))
        wait = convert.duration_from_pb(request.wait)
        del request  # all of it is in `new`, and payloads are large
        with waiting(wait):
            instance = await self._workflows.create(new, asked, wait)
        return pb.CreateInstanceResponse(instance=wire.instance_to_pb(instance))

    async def CreateInstances(self, request: pb.CreateInstancesRequest, context: Context) -> pb.CreateInstancesResponse:
        items = [(readable(one, partial(new_instance, request.namespace)), asked_of(one)) for one in request.items]
        skip = request.on_existing == pb.ON_EXISTING_SKIP
        del request
        outcomes = await self._workflows.create_many(items, skip_existing=skip)
        return pb.CreateInstancesResponse(
            results=[
                pb.CreateInstancesResult(skipped=True)
                if one is None
                else pb.CreateInstancesResult(error=convert.item_error_to_pb(one))
                if isinstance(one, StepwellError)
                else pb.CreateInstancesResult(instance=wire.instance_to_pb(one, payloads=False))
                for one in outcomes
            ]
        )

    async def GetInstance(self, request: pb.GetInstanceRequest, context: Context) -> pb.GetInstanceResponse:
        instance = await self._instances.get(_key(request))
        payloads = request.view != pb.INSTANCE_VIEW_BASIC
        return pb.GetInstanceResponse(instance=wire.instance_to_pb(instance, payloads=payloads))

    async def ListInstances(self, request: pb.ListInstancesRequest, context: Context) -> pb.ListInstancesResponse:
        page = await self._instances.list(_filter(request), PageRequest(request.page_size, request.page_token))
        instances = [wire.instance_to_pb(one) for one in page.items]
        return pb.ListInstancesResponse(instances=instances, next_page_token=page.next_token)

    async def PauseInstance(self, request: pb.PauseInstanceRequest, context: Context) -> pb.PauseInstanceResponse:
        instance = await self._workflows.pause(_key(request), asked_of(request))
        return pb.PauseInstanceResponse(instance=wire.instance_to_pb(instance, payloads=False))

    async def ResumeInstance(self, request: pb.ResumeInstanceRequest, context: Context) -> pb.ResumeInstanceResponse:
        instance = await self._workflows.resume(_key(request), asked_of(request))
        return pb.ResumeInstanceResponse(instance=wire.instance_to_pb(instance, payloads=False))

    async def TerminateInstance(
        self, request: pb.TerminateInstanceRequest, context: Context
    ) -> pb.TerminateInstanceResponse:
        instance = await self._workflows.terminate(_key(request), asked_of(request))
        return pb.TerminateInstanceResponse(instance=wire.instance_to_pb(instance, payloads=False))

    async def RestartInstance(self, request: pb.RestartInstanceRequest, context: Context) -> pb.RestartInstanceResponse:
        instance = await self._workflows.restart(_key(request), request.from_step, asked_of(request))
        return pb.RestartInstanceResponse(instance=wire.instance_to_pb(instance, payloads=False))

    async def SendEvent(self, request: pb.SendEventRequest, context: Context) -> pb.SendEventResponse:
        new, asked = new_event(request.namespace, request), asked_of(_event_item(request))
        del request  # all of it is in `new`, and payloads are large
        return stored_to_pb(await self._workflows.send_event(new, asked))

    async def SendEvents(self, request: pb.SendEventsRequest, context: Context) -> pb.SendEventsResponse:
        items = [(readable(one, partial(new_event, request.namespace)), asked_of(one)) for one in request.items]
        del request
        outcomes = await self._workflows.send_events(items)
        return pb.SendEventsResponse(
            results=[
                pb.SendEventsResult(error=convert.item_error_to_pb(one))
                if isinstance(one, StepwellError)
                else pb.SendEventsResult(stored=stored_to_pb(one))
                for one in outcomes
            ]
        )

    async def GetHistory(self, request: pb.GetHistoryRequest, context: Context) -> pb.GetHistoryResponse:
        run = request.run_number if request.HasField("run_number") else None
        run, page = await self._instances.history(
            _key(request),
            run,
            PageRequest(request.page_size, request.page_token),
            descending=request.order == pb.LIST_ORDER_NEWEST_FIRST,
        )
        entries = [wire.entry_to_pb(one) for one in page.items]
        return pb.GetHistoryResponse(entries=entries, next_page_token=page.next_token, run_number=run)

    async def WaitInstance(self, request: pb.WaitInstanceRequest, context: Context) -> pb.WaitInstanceResponse:
        given = request.HasField("timeout")
        longest = convert.duration_from_pb(request.timeout) if given else DEFAULT_WAIT
        with waiting(longest):
            instance = await self._instances.wait(_key(request), longest)
        return pb.WaitInstanceResponse(instance=wire.instance_to_pb(instance))

    async def WatchInstances(  # type: ignore[override]  # it writes to the context itself, to see a peer that does not read
        self, request_iterator: AsyncIterator[pb.WatchInstancesRequest], context: Context
    ) -> None:
        await WatchStream(self._instances, current.get()).serve(request_iterator)


def _key(request: object) -> InstanceKey:
    return InstanceKey(convert.namespace_from_pb(request.namespace), request.workflow, request.instance_id)  # type: ignore[attr-defined]


def _create_item(request: pb.CreateInstanceRequest) -> pb.CreateInstancesItem:
    """The request as an item of a batch, for its hash. Empty without a request id: payloads are large to copy."""
    if not request.request_id:
        return pb.CreateInstancesItem()
    return pb.CreateInstancesItem(
        workflow=request.workflow,
        instance_id=request.instance_id,
        params=request.params if request.HasField("params") else None,
        labels=request.labels,
        request_id=request.request_id,
    )


def _event_item(request: pb.SendEventRequest) -> pb.SendEventsItem:
    """The request as an item of a batch, for its hash. Empty without a request id: payloads are large to copy."""
    if not request.request_id:
        return pb.SendEventsItem()
    return pb.SendEventsItem(
        workflow=request.workflow,
        instance_id=request.instance_id,
        type=request.type,
        payload=request.payload if request.HasField("payload") else None,
        request_id=request.request_id,
    )


def new_instance(namespace: str, item: pb.CreateInstancesItem | pb.CreateInstanceRequest) -> NewInstance:
    """An instance to create."""
    key = InstanceKey(convert.namespace_from_pb(namespace), item.workflow, item.instance_id)
    params = convert.payload_from_pb(item.params) or EMPTY_OBJECT
    return NewInstance(key, params, dict(item.labels), dict(item.trace))


def new_event(namespace: str, item: pb.SendEventsItem | pb.SendEventRequest) -> NewEvent:
    """An event to store."""
    key = InstanceKey(convert.namespace_from_pb(namespace), item.workflow, item.instance_id)
    return NewEvent(key, item.type, convert.payload_from_pb(item.payload), dict(item.trace))


def _filter(request: pb.ListInstancesRequest) -> InstanceFilter:
    if any(one not in _STATUSES for one in request.statuses):
        raise InvalidField("statuses has an unspecified value; leave statuses empty to get all", field="statuses")
    return InstanceFilter(
        namespace=convert.namespace_from_pb(request.namespace),
        workflow=request.workflow,
        statuses=tuple(_STATUSES[one] for one in request.statuses),
        labels=dict(request.labels),
        created_from=convert.timestamp_from_pb(request.created_from) if request.HasField("created_from") else None,
        created_before=convert.timestamp_from_pb(request.created_before)
        if request.HasField("created_before")
        else None,
        with_payloads=request.view == pb.INSTANCE_VIEW_FULL,
        oldest_first=request.order == pb.LIST_ORDER_OLDEST_FIRST,
    )


def stored_to_pb(stored: Stored) -> pb.SendEventResponse:
    """An event that is stored."""
    return pb.SendEventResponse(
        event=wire.event_to_pb(stored.event, payload=False), status=wire.STATUSES[stored.status]
    )
