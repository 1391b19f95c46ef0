"""WorkflowService in the words of a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpc import aio

from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.support.workers.frames import payload, seconds


class Flows:
    """Instances of one workflow in one namespace."""

    def __init__(self, channel: aio.Channel, workflow: str = "order", namespace: str = "") -> None:
        self.stub: Any = WorkflowServiceStub(channel)
        self.workflow = workflow
        self.namespace = namespace

    def key(self, instance_id: str) -> dict[str, Any]:
        """What an instance is known by."""
        return {"namespace": self.namespace, "workflow": self.workflow, "instance_id": instance_id}

    async def create(self, instance_id: str = "", params: str = "", *, wait: float = 0.0, **fields: Any) -> pb.Instance:
        """Create an instance."""
        request = pb.CreateInstanceRequest(**self.key(instance_id), **fields)
        if params:
            request.params.CopyFrom(payload(params))
        if wait:
            request.wait.CopyFrom(seconds(wait))
        instance: pb.Instance = (await self.stub.CreateInstance(request)).instance
        return instance

    def item(self, instance_id: str = "", **fields: Any) -> pb.CreateInstancesItem:
        """An instance of a batch."""
        return pb.CreateInstancesItem(workflow=self.workflow, instance_id=instance_id, **fields)

    async def create_many(
        self, *items: pb.CreateInstancesItem, on_existing: pb.OnExisting.ValueType = pb.ON_EXISTING_UNSPECIFIED
    ) -> list[pb.CreateInstancesResult]:
        """Create a batch."""
        request = pb.CreateInstancesRequest(namespace=self.namespace, items=items, on_existing=on_existing)
        return list((await self.stub.CreateInstances(request)).results)

    async def get(
        self, instance_id: str, view: pb.InstanceView.ValueType = pb.INSTANCE_VIEW_UNSPECIFIED
    ) -> pb.Instance:
        """Read an instance."""
        request = pb.GetInstanceRequest(**self.key(instance_id), view=view)
        instance: pb.Instance = (await self.stub.GetInstance(request)).instance
        return instance

    async def status(self, instance_id: str) -> str:
        """Where an instance stands."""
        return status_name((await self.get(instance_id)).status)

    async def event(self, instance_id: str, event_type: str, json: str = "", **fields: Any) -> pb.SendEventResponse:
        """Send an event."""
        request = pb.SendEventRequest(**self.key(instance_id), type=event_type, **fields)
        if json:
            request.payload.CopyFrom(payload(json))
        answer: pb.SendEventResponse = await self.stub.SendEvent(request)
        return answer

    async def manage(self, verb: str, instance_id: str, **fields: Any) -> pb.Instance:
        """Pause, resume, terminate or restart an instance."""
        request = getattr(pb, f"{verb}InstanceRequest")(**self.key(instance_id), **fields)
        instance: pb.Instance = (await getattr(self.stub, f"{verb}Instance")(request)).instance
        return instance

    async def history(self, instance_id: str, **fields: Any) -> pb.GetHistoryResponse:
        """One page of a history."""
        answer: pb.GetHistoryResponse = await self.stub.GetHistory(
            pb.GetHistoryRequest(**self.key(instance_id), **fields)
        )
        return answer

    async def steps(self, instance_id: str, **fields: Any) -> Mapping[str, pb.Step]:
        """Steps of the current run, by name."""
        page = await self.history(instance_id, page_size=100, **fields)
        return {entry.step.name: entry.step for entry in page.entries if entry.HasField("step")}

    async def list(self, **fields: Any) -> pb.ListInstancesResponse:
        """One page of the instances."""
        request = pb.ListInstancesRequest(namespace=self.namespace, workflow=self.workflow, **fields)
        answer: pb.ListInstancesResponse = await self.stub.ListInstances(request)
        return answer

    async def wait(self, instance_id: str, longest: float = 10.0) -> pb.Instance:
        """Wait for the end of an instance."""
        request = pb.WaitInstanceRequest(**self.key(instance_id), timeout=seconds(longest))
        instance: pb.Instance = (await self.stub.WaitInstance(request)).instance
        return instance


def status_name(status: pb.InstanceStatus.ValueType) -> str:
    """The name of a status, without its prefix."""
    return pb.InstanceStatus.Name(status).removeprefix("INSTANCE_STATUS_")


def step_status(step: Any) -> str:
    """The name of a step's status, without its prefix."""
    return pb.StepStatus.Name(step.status).removeprefix("STEP_STATUS_")
