"""Hooks and transactions of the server that only plays its part on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from stepwell.v1 import errors_pb2
from stepwell.v1 import hooks_pb2 as pb
from stepwell.v1 import transactions_pb2 as tx
from stepwell.v1.hooks_pb2_grpc import HookServiceServicer
from stepwell.v1.transactions_pb2_grpc import TransactionServiceServicer


class FakeHooks(HookServiceServicer):
    """Stores nothing, and says of every hook what the test told it to."""

    def __init__(self) -> None:
        self.triggers: list[pb.TriggerHooksRequest] = []
        self.reached = asyncio.Event()
        self.answers: asyncio.Event | None = None  # set: triggers wait for it
        self.calls: list[Any] = []
        self.refuse: Callable[[str], errors_pb2.ItemError | None] = lambda _id: None
        self.hooks: dict[str, pb.Hook] = {}

    async def TriggerHooks(self, request: pb.TriggerHooksRequest, context: Any) -> pb.TriggerHooksResponse:  # noqa: N802
        self.triggers.append(request)
        self.reached.set()
        if self.answers is not None:
            await self.answers.wait()
        return pb.TriggerHooksResponse(results=[self._store(item) for item in request.items])

    def _store(self, item: pb.TriggerHooksItem) -> pb.TriggerHooksResult:
        if error := self.refuse(item.hook_id):
            return pb.TriggerHooksResult(error=error)
        return pb.TriggerHooksResult(hook=pb.Hook(hook_id=item.hook_id or "made-up", name=item.name))

    async def GetHook(self, request: pb.GetHookRequest, context: Any) -> pb.GetHookResponse:  # noqa: N802
        if request.hook_id not in self.hooks:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such hook")
        return pb.GetHookResponse(hook=self.hooks[request.hook_id])

    async def ListHooks(self, request: pb.ListHooksRequest, context: Any) -> pb.ListHooksResponse:  # noqa: N802
        self.calls.append(pb.ListHooksRequest.FromString(request.SerializeToString()))
        page = int(request.page_token or 0)
        found = [pb.Hook(hook_id=f"h{page}", status=99 if page else pb.HOOK_STATUS_FAILED)]  # type: ignore[arg-type]
        return pb.ListHooksResponse(hooks=found, next_page_token="" if page else "1")

    async def RetryHook(self, request: pb.RetryHookRequest, context: Any) -> pb.RetryHookResponse:  # noqa: N802
        self.calls.append(request)
        return pb.RetryHookResponse()

    async def CancelHook(self, request: pb.CancelHookRequest, context: Any) -> pb.CancelHookResponse:  # noqa: N802
        self.calls.append(request)
        return pb.CancelHookResponse()

    async def PutHookTarget(self, request: pb.PutHookTargetRequest, context: Any) -> pb.PutHookTargetResponse:  # noqa: N802
        self.calls.append(request)
        target = pb.HookTarget(name=request.name, url=request.url)
        return pb.PutHookTargetResponse(target=target, secrets=[] if request.secrets else ["whsec_made-up"])

    async def ListHookTargets(self, request: pb.ListHookTargetsRequest, context: Any) -> pb.ListHookTargetsResponse:  # noqa: N802
        page = int(request.page_token or 0)
        found = [pb.HookTarget(name=f"t{page}", url="https://example.com", disabled=bool(page))]
        return pb.ListHookTargetsResponse(targets=found, next_page_token="" if page else "1")

    async def DeleteHookTarget(self, request: pb.DeleteHookTargetRequest, context: Any) -> pb.DeleteHookTargetResponse:  # noqa: N802
        self.calls.append(request)
        return pb.DeleteHookTargetResponse()


class FakeTransactions(TransactionServiceServicer):
    """Commits everything, after failing as often as the test wants."""

    def __init__(self) -> None:
        self.commits: list[tx.CommitRequest] = []
        self.failures: list[tuple[grpc.StatusCode, str, dict[str, str]]] = []

    async def Commit(self, request: tx.CommitRequest, context: Any) -> tx.CommitResponse:  # noqa: N802
        self.commits.append(request)
        if self.failures:
            await refuse(context, *self.failures.pop(0))
        return tx.CommitResponse()


async def refuse(context: Any, code: grpc.StatusCode, reason: str, metadata: dict[str, str] | None = None) -> None:
    """End a call as a server of Stepwell does; without a reason, as anybody on the way to it may."""
    if reason:
        status = Status(code=code.value[0], message="refused")
        status.details.add().Pack(ErrorInfo(reason=reason, domain="stepwell.v1", metadata=metadata))
        context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
    await context.abort(code, "refused")
