"""WorkflowService."""

from __future__ import annotations

from collections.abc import AsyncIterator

from google.protobuf.message import Message

from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceServicer
from stepwell_server.api import convert
from stepwell_server.api.calls import Context, current, request_of
from stepwell_server.api.watches import WatchStream
from stepwell_server.domain.errors import InvalidField, StepwellError
from stepwell_server.domain.pages import PageRequest
from stepwell_server.domain.payloads import EMPTY_OBJECT
from stepwell_server.domain.workflows import InstanceFilter, InstanceKey, NewEvent, NewInstance
from stepwell_server.engine.intake import Item
from stepwell_server.engine.run_calls import Stored
from stepwell_server.engine.workflows import DEFAULT_WAIT, Workflows

_STATUSES = {number: status for status, number in convert.STATUSES.items()}


class WorkflowServicer(WorkflowServiceServicer):
    """Translates between the wire and `engine.workflows`."""

    def __init__(self, workflows: Workflows) -> None:
        self._workflows = workflows

    async def ListWorkflows(self, request: pb.ListWorkflowsRequest, context: Context) -> pb.ListWorkflowsResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        page = await self._workflows.list_workflows(namespace, PageRequest(request.page_size, request.page_token))
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
        same = pb.CreateInstancesItem(workflow=request.workflow, instance_id=request.instance_id, labels=request.labels)
        if request.HasField("params"):
            same.params.CopyFrom(request.params)
        new = _new_instance(request.namespace, same)
        wait = convert.duration_from_pb(request.wait)
        instance = await self._workflows.create(new, _item(request.request_id, same), wait)
        return pb.CreateInstanceResponse(instance=convert.instance_to_pb(instance))

    async def CreateInstances(self, request: pb.CreateInstancesRequest, context: Context) -> pb.CreateInstancesResponse:
        items = [(_new_instance(request.namespace, one), _item(one.request_id, one)) for one in request.items]
        skip = request.on_existing == pb.ON_EXISTING_SKIP
        outcomes = await self._workflows.create_many(items, skip_existing=skip)
        return pb.CreateInstancesResponse(
            results=[
                pb.CreateInstancesResult(skipped=True)
                if one is None
                else pb.CreateInstancesResult(error=convert.item_error_to_pb(one))
                if isinstance(one, StepwellError)
                else pb.CreateInstancesResult(instance=convert.instance_to_pb(one, payloads=False))
                for one in outcomes
            ]
        )

    async def GetInstance(self, request: pb.GetInstanceRequest, context: Context) -> pb.GetInstanceResponse:
        instance = await self._workflows.get(_key(request))
        payloads = request.view != pb.INSTANCE_VIEW_BASIC
        return pb.GetInstanceResponse(instance=convert.instance_to_pb(instance, payloads=payloads))

    async def ListInstances(self, request: pb.ListInstancesRequest, context: Context) -> pb.ListInstancesResponse:
        page = await self._workflows.list(_filter(request), PageRequest(request.page_size, request.page_token))
        instances = [convert.instance_to_pb(one) for one in page.items]
        return pb.ListInstancesResponse(instances=instances, next_page_token=page.next_token)

    async def PauseInstance(self, request: pb.PauseInstanceRequest, context: Context) -> pb.PauseInstanceResponse:
        instance = await self._workflows.pause(_key(request), request_of(request))
        return pb.PauseInstanceResponse(instance=convert.instance_to_pb(instance, payloads=False))

    async def ResumeInstance(self, request: pb.ResumeInstanceRequest, context: Context) -> pb.ResumeInstanceResponse:
        instance = await self._workflows.resume(_key(request), request_of(request))
        return pb.ResumeInstanceResponse(instance=convert.instance_to_pb(instance, payloads=False))

    async def TerminateInstance(
        self, request: pb.TerminateInstanceRequest, context: Context
    ) -> pb.TerminateInstanceResponse:
        instance = await self._workflows.terminate(_key(request), request_of(request))
        return pb.TerminateInstanceResponse(instance=convert.instance_to_pb(instance, payloads=False))

    async def RestartInstance(self, request: pb.RestartInstanceRequest, context: Context) -> pb.RestartInstanceResponse:
        instance = await self._workflows.restart(_key(request), request.from_step, request_of(request))
        return pb.RestartInstanceResponse(instance=convert.instance_to_pb(instance, payloads=False))

    async def SendEvent(self, request: pb.SendEventRequest, context: Context) -> pb.SendEventResponse:
        same = pb.SendEventsItem(workflow=request.workflow, instance_id=request.instance_id, type=request.type)
        if request.HasField("payload"):
            same.payload.CopyFrom(request.payload)
        stored = await self._workflows.send_event(_new_event(request.namespace, same), _item(request.request_id, same))
        return _stored_to_pb(stored)

    async def SendEvents(self, request: pb.SendEventsRequest, context: Context) -> pb.SendEventsResponse:
        items = [(_new_event(request.namespace, one), _item(one.request_id, one)) for one in request.items]
        outcomes = await self._workflows.send_events(items)
        return pb.SendEventsResponse(
            results=[
                pb.SendEventsResult(error=convert.item_error_to_pb(one))
                if isinstance(one, StepwellError)
                else pb.SendEventsResult(stored=_stored_to_pb(one))
                for one in outcomes
            ]
        )

    async def GetHistory(self, request: pb.GetHistoryRequest, context: Context) -> pb.GetHistoryResponse:
        run = request.run_number if request.HasField("run_number") else None
        run, page = await self._workflows.history(
            _key(request),
            run,
            PageRequest(request.page_size, request.page_token),
            descending=request.order == pb.LIST_ORDER_NEWEST_FIRST,
        )
        entries = [convert.entry_to_pb(one) for one in page.items]
        return pb.GetHistoryResponse(entries=entries, next_page_token=page.next_token, run_number=run)

    async def WaitInstance(self, request: pb.WaitInstanceRequest, context: Context) -> pb.WaitInstanceResponse:
        given = request.HasField("timeout")
        longest = convert.duration_from_pb(request.timeout) if given else DEFAULT_WAIT
        instance = await self._workflows.wait(_key(request), longest)
        return pb.WaitInstanceResponse(instance=convert.instance_to_pb(instance))

    async def WatchInstances(
        self, request_iterator: AsyncIterator[pb.WatchInstancesRequest], context: Context
    ) -> AsyncIterator[pb.WatchInstancesResponse]:
        stream = WatchStream(self._workflows, current.get())
        async for response in stream.serve(request_iterator):
            yield response


def _key(request: object) -> InstanceKey:
    return InstanceKey(convert.namespace_from_pb(request.namespace), request.workflow, request.instance_id)  # type: ignore[attr-defined]


def _new_instance(namespace: str, item: pb.CreateInstancesItem) -> NewInstance:
    key = InstanceKey(convert.namespace_from_pb(namespace), item.workflow, item.instance_id)
    params = convert.payload_from_pb(item.params) if item.HasField("params") else EMPTY_OBJECT
    return NewInstance(key, params, dict(item.labels))


def _new_event(namespace: str, item: pb.SendEventsItem) -> NewEvent:
    key = InstanceKey(convert.namespace_from_pb(namespace), item.workflow, item.instance_id)
    return NewEvent(key, item.type, convert.payload_from_pb(item.payload) if item.HasField("payload") else None)


def _item(request_id: str, message: Message) -> Item:
    """What tells a repetition: the item, whether it came alone or in a batch."""
    if not request_id:
        return Item("", b"")
    body = type(message)()
    body.CopyFrom(message)
    body.ClearField("request_id")
    return Item(request_id, body.SerializeToString(deterministic=True))


def _filter(request: pb.ListInstancesRequest) -> InstanceFilter:
    if any(one not in _STATUSES for one in request.statuses):
        raise InvalidField("statuses must name statuses", field="statuses")
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


def _stored_to_pb(stored: Stored) -> pb.SendEventResponse:
    return pb.SendEventResponse(
        event=convert.event_to_pb(stored.event, payload=False), status=convert.STATUSES[stored.status]
    )
