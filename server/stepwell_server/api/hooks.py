"""HookService."""

from __future__ import annotations

from functools import partial

from stepwell.v1 import hooks_pb2 as pb
from stepwell.v1.hooks_pb2_grpc import HookServiceServicer
from stepwell_server.api.edge.calls import Context, asked_of, readable
from stepwell_server.api.wire import common as convert
from stepwell_server.api.wire import hooks as wire
from stepwell_server.domain.hooks.hooks import HOOK_RETRY, HookFilter, HookKey, NewHook
from stepwell_server.domain.hooks.webhooks import Target
from stepwell_server.domain.values.errors import InvalidField, StepwellError
from stepwell_server.domain.values.pages import PageRequest
from stepwell_server.domain.values.payloads import EMPTY_OBJECT
from stepwell_server.engine.hooks.hooks import Hooks
from stepwell_server.engine.hooks.targets import Targets
from stepwell_server.engine.spine.ids import new_id

_STATUSES = {number: status for status, number in wire.HOOK_STATUSES.items()}


class HookServicer(HookServiceServicer):
    """Translates between the wire and `engine.hooks`."""

    def __init__(self, hooks: Hooks, targets: Targets) -> None:
        self._hooks = hooks
        self._targets = targets

    async def TriggerHooks(self, request: pb.TriggerHooksRequest, context: Context) -> pb.TriggerHooksResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        items = [(readable(one, partial(new_hook, namespace)), asked_of(one)) for one in request.items]
        del request  # all of it is in the items, and payloads are large
        outcomes = await self._hooks.trigger(items)
        return pb.TriggerHooksResponse(
            results=[
                pb.TriggerHooksResult(error=convert.item_error_to_pb(one))
                if isinstance(one, StepwellError)
                else pb.TriggerHooksResult(hook=wire.hook_to_pb(one))
                for one in outcomes
            ]
        )

    async def GetHook(self, request: pb.GetHookRequest, context: Context) -> pb.GetHookResponse:
        hook = await self._hooks.get(_key(request))
        return pb.GetHookResponse(hook=wire.hook_to_pb(hook, payload=True))

    async def ListHooks(self, request: pb.ListHooksRequest, context: Context) -> pb.ListHooksResponse:
        if any(one not in _STATUSES for one in request.statuses):
            raise InvalidField("statuses has an unspecified value; leave statuses empty to get all", field="statuses")
        namespace = convert.namespace_from_pb(request.namespace)
        wanted = HookFilter(namespace, request.name, tuple(_STATUSES[one] for one in request.statuses))
        page = await self._hooks.list(wanted, PageRequest(request.page_size, request.page_token))
        return pb.ListHooksResponse(hooks=map(wire.hook_to_pb, page.items), next_page_token=page.next_token)

    async def RetryHook(self, request: pb.RetryHookRequest, context: Context) -> pb.RetryHookResponse:
        hook = await self._hooks.retry(_key(request), asked_of(request))
        return pb.RetryHookResponse(hook=wire.hook_to_pb(hook))

    async def CancelHook(self, request: pb.CancelHookRequest, context: Context) -> pb.CancelHookResponse:
        hook = await self._hooks.cancel(_key(request), asked_of(request))
        return pb.CancelHookResponse(hook=wire.hook_to_pb(hook))

    async def PutHookTarget(self, request: pb.PutHookTargetRequest, context: Context) -> pb.PutHookTargetResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        asked = asked_of(request)
        target, made = await self._targets.put(namespace, request.name, request.url, request.secrets, asked)
        return pb.PutHookTargetResponse(target=_target_to_pb(target), secrets=[one.text for one in made])

    async def ListHookTargets(self, request: pb.ListHookTargetsRequest, context: Context) -> pb.ListHookTargetsResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        page = await self._targets.list(namespace, PageRequest(request.page_size, request.page_token))
        return pb.ListHookTargetsResponse(targets=map(_target_to_pb, page.items), next_page_token=page.next_token)

    async def DeleteHookTarget(
        self, request: pb.DeleteHookTargetRequest, context: Context
    ) -> pb.DeleteHookTargetResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        await self._targets.delete(namespace, request.name, asked_of(request))
        return pb.DeleteHookTargetResponse()


def new_hook(namespace: str, item: pb.TriggerHooksItem) -> NewHook:
    """A hook to store."""
    return NewHook(
        key=HookKey(namespace, item.hook_id),
        name=item.name,
        payload=convert.payload_from_pb(item.payload) or EMPTY_OBJECT,
        idempotency_key=new_id(),
        process_at=convert.timestamp_from_pb(item.process_at) if item.HasField("process_at") else None,
        retry=convert.retry_from_pb(item.retry, HOOK_RETRY),
        trace=dict(item.trace),
    )


def _target_to_pb(target: Target) -> pb.HookTarget:
    return pb.HookTarget(
        name=target.name,
        url=target.url,
        disabled=bool(target.disabled_reason),
        created_at=convert.timestamp_to_pb(target.created_at),
        updated_at=convert.timestamp_to_pb(target.updated_at),
    )


def _key(request: pb.GetHookRequest | pb.RetryHookRequest | pb.CancelHookRequest) -> HookKey:
    return HookKey(convert.namespace_from_pb(request.namespace), request.hook_id)
