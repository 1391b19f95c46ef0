"""Hooks and the wakes of their dispatchers, as chaos runs use them."""

from __future__ import annotations

from stepwell.v1.dispatchers_pb2_grpc import DispatcherServiceStub
from stepwell.v1.hooks_pb2_grpc import HookServiceStub
from tests.chaos.workload.hooks.answers import ANSWERS
from tests.chaos.workload.hooks.handlers import HANDLERS
from tests.chaos.workload.hooks.load import Hooks
from tests.chaos.workload.hooks.snapshot import snapshot
from tests.chaos.workload.hooks.user import HookUser
from tests.chaos.workload.primitive import Primitive

HOOKS = Primitive(
    load=Hooks,
    user=HookUser,
    handlers={"hooks": HANDLERS},
    stubs=(HookServiceStub, DispatcherServiceStub),
    answers=ANSWERS,
    snapshot=snapshot,
)
