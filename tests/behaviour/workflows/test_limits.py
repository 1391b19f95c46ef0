"""Limits and names: what is accepted, what is refused, and in whose words."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from stepwell import App, InstanceStatus, PayloadInvalid, workflow
from stepwell.testing import Harness
from stepwell.v1 import frames_pb2, namespaces_pb2, workers_pb2
from stepwell.v1 import workflows_pb2 as pb
from stepwell.v1.common_pb2 import Payload
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell.workflows.info import instance_info
from tests.behaviour.workflows.conftest import StartHarness
from tests.support.servers.servers import Served
from tests.support.workers.workflows import refused

MEBIBYTE = 1024 * 1024


@workflow("echo")
async def echo(event, step):
    return await step.do("say", lambda: event.payload)


async def create(h: Harness, **fields: Any) -> pb.CreateInstanceResponse:
    """CreateInstance as it is on the wire, past the checks of the SDK."""
    request = pb.CreateInstanceRequest(namespace=h.namespace, workflow="echo", **fields)
    return await h.client.call(h.client.stub(WorkflowServiceStub).CreateInstance, request, 10)


async def register(h: Harness, *names: str) -> None:
    """Say on the wire that a worker hosts these."""
    handlers = [frames_pb2.Handler(kind=frames_pb2.HANDLER_KIND_WORKFLOW, name=name) for name in names]
    hello = frames_pb2.Hello(
        worker_id="w", session_id=uuid4().hex, protocol_version=1, namespace=h.namespace, handlers=handlers
    )
    stub = WorkerServiceStub(h.client.channel)
    await h.client.call(stub.RegisterHandlers, workers_pb2.RegisterHandlersRequest(hello=hello), 10)


async def nothing(event, step):
    pass


async def test_a_workflow_name_has_at_most_64_characters(harness: StartHarness) -> None:
    """Behaviours 243, 245."""
    h = await harness(echo)
    await register(h, "a" * 64)

    for name in ("a" * 65, "", "-a", "a b", "a.b", "a\n"):
        assert await refused(register(h, name)) == "INVALID_WORKFLOW_NAME"
        with pytest.raises(ValueError, match="a workflow name is 1 to 64"):
            workflow(name)(nothing)


async def test_two_workflows_of_a_worker_cannot_have_one_name(harness: StartHarness) -> None:
    """Behaviour 250."""
    h = await harness(echo)

    assert await refused(register(h, "same", "same")) == "DUPLICATE_HANDLER"
    with pytest.raises(ValueError, match="'echo'"):
        App(workflows=[echo, echo])


@pytest.mark.parametrize("id", ["a", "_", "9-a", "A_b-C", "x" * 100])
async def test_an_instance_id_is_a_name(harness: StartHarness, id: str) -> None:
    """Behaviour 244."""
    h = await harness(echo)

    assert (await h.start(echo, id=id)).id == id


@pytest.mark.parametrize("id", ["-a", "a b", "a.b", "a:b", "abc\n", "ä", "x" * 101])
async def test_an_id_that_is_no_name_is_refused_in_these_words(harness: StartHarness, id: str) -> None:
    """Behaviours 244, 245, 247."""
    h = await harness(echo)

    assert await refused(create(h, instance_id=id)) == "INVALID_INSTANCE_ID"
    assert await refused(h.client.workflow(echo).create(id=id)) == "INVALID_INSTANCE_ID"
    assert await refused(h.client.workflow(echo).create_batch([{"id": id}])) == "INVALID_INSTANCE_ID"
    assert [one async for one in h.client.workflow(echo).list()] == []


async def test_an_id_that_is_given_cannot_be_empty(harness: StartHarness) -> None:
    """Behaviour 244: on the wire, empty means that none was given."""
    h = await harness(echo)

    assert await refused(h.client.workflow(echo).create(id="")) == "INVALID_INSTANCE_ID"


async def test_parameters_are_json_of_at_most_a_mebibyte(harness: StartHarness) -> None:
    """Behaviour 248."""
    h = await harness(echo)
    await create(h, instance_id="fits", params=Payload(json='"' + "x" * (MEBIBYTE - 2) + '"'))

    assert await refused(create(h, params=Payload(json='"' + "x" * (MEBIBYTE - 1) + '"'))) == "PAYLOAD_TOO_LARGE"
    assert await refused(create(h, params=Payload(json="{not json"))) == "PAYLOAD_NOT_JSON"
    with pytest.raises(PayloadInvalid):
        await h.client.workflow(echo).create(params=object())
    assert [one.id async for one in h.client.workflow(echo).list()] == ["fits"]


async def test_an_operator_sets_the_limits_of_a_namespace(served: Served) -> None:
    """Behaviour 249; those of the whole server are settings, see tests/unit/test_config.py."""

    @workflow("counting")
    async def counting(event, step):
        for number in range(event.payload):
            await step.do(str(number), lambda: None)
        await step.wait_for_event("end", type="end")

    limits = namespaces_pb2.NamespaceLimits(max_payload_bytes=100, max_steps_per_run=3, max_pending_events=2)
    request = namespaces_pb2.CreateNamespaceRequest(name=f"tight-{uuid4().hex[:8]}", limits=limits)
    await NamespaceServiceStub(served.channel).CreateNamespace(request)
    app = App(workflows=[echo, counting])
    async with Harness(app, address=served.addresses.listen, namespace=request.name) as h:
        assert await refused(h.client.workflow(echo).create(params="x" * 99)) == "PAYLOAD_TOO_LARGE"
        enough, too_many = await h.start(counting, 2), await h.start(counting, 3)
        error = (await too_many.status()).error
        assert error is not None and error.name == "MaxStepsExceeded"
        for _ in range(2):
            await enough.send_event("other")
        assert await refused(enough.send_event("other")) == "LIMIT_PENDING_EVENTS"


async def test_a_status_of_a_newer_server_is_unknown_not_an_error(harness: StartHarness) -> None:
    """Behaviour 252."""
    h = await harness(echo)
    stored = await (await h.start(echo)).fetch()
    stored.status = 99  # type: ignore[assignment]

    assert instance_info(stored).status == InstanceStatus.UNKNOWN
