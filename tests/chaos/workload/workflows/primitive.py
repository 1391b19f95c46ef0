"""Workflows, as chaos runs use them."""

from __future__ import annotations

from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from tests.chaos.workload.primitive import Primitive
from tests.chaos.workload.workflows.answers import ANSWERS
from tests.chaos.workload.workflows.handlers import HANDLERS
from tests.chaos.workload.workflows.load import Orders
from tests.chaos.workload.workflows.snapshot import snapshot
from tests.chaos.workload.workflows.user import OrderUser

WORKFLOWS = Primitive(
    load=Orders,
    user=OrderUser,
    handlers={"workflows": HANDLERS},
    stubs=(WorkflowServiceStub,),
    answers=ANSWERS,
    snapshot=snapshot,
)
