"""Hook and TriggeredHook: what a client can do with hooks of a name, and with one that was triggered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

from grpc import StatusCode

from stepwell import checks
from stepwell.calls import PAGE, Caller, pages
from stepwell.durations import to_timestamp
from stepwell.errors import CallFailed, refusal_of
from stepwell.hooks.definition import HookDefinition
from stepwell.hooks.info import HookInfo, HookStatus, HookTarget, hook_info, hook_status_numbers, hook_target
from stepwell.payloads import to_payload
from stepwell.request_ids import identified
from stepwell.retry import Retry
from stepwell.v1 import hooks_pb2 as pb
from stepwell.v1.hooks_pb2_grpc import HookServiceStub

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHook(Generic[P]):
    """One hook of a `trigger_batch`."""

    payload: P | None = None
    id: str | None = None
    process_at: datetime | None = None
    retry: Retry | None = None
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Hook(Generic[P]):
    """Hooks of a name, on the server: triggers, finds and lists them, and says which webhook they go to."""

    client: Caller
    name: str
    retry: Retry | None = None

    async def trigger(
        self,
        payload: P | None = None,
        *,
        process_at: datetime | None = None,
        retry: Retry | None = None,
        id: str | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> TriggeredHook:
        """Store a hook, to be executed at once or not before `process_at`; answers when it is stored.

        `retry` is stored with it; left out, it is the definition's, and then the server's default. `trace` has W3C
        names, such as "traceparent": it is stored, given to the handler as `ctx.trace`, and sent with a webhook.
        """
        new = NewHook(payload=payload, id=id, process_at=process_at, retry=retry, trace=trace)
        result = await self.client.submit(trigger_all, trigger_item(self.name, new, self.retry))
        return self._triggered(result)

    async def trigger_batch(self, batch: Iterable[NewHook[P] | Mapping[str, Any]]) -> list[TriggeredHook]:
        """Store many hooks. The first one that is refused is raised; those before and after it are stored.

        All are looked at before the first is sent: an id that cannot be one refuses the whole batch.
        """
        news = [new if isinstance(new, NewHook) else NewHook(**new) for new in batch]
        items = [trigger_item(self.name, new, self.retry) for new in news]
        results = await self.client.submit_all(trigger_all, items)
        return [self._triggered(result) for result in results]

    async def get(self, id: str) -> TriggeredHook:
        """The hook of that id. CallFailed with HOOK_NOT_FOUND if there is none of this name."""
        hook = TriggeredHook(self.client, self.name, checks.text("id", id))
        if (await hook.fetch()).name != self.name:  # ids are unique across names
            raise CallFailed(
                StatusCode.NOT_FOUND, f"there is no hook {self.name} {id}", "HOOK_NOT_FOUND", {"hook_id": id}
            )
        return hook

    async def list(
        self, *, status: HookStatus | str | Iterable[HookStatus | str] | None = None
    ) -> AsyncIterator[HookInfo]:
        """The hooks of this name, newest first; with `status`, only those that stand so. They come without payload."""
        request = pb.ListHooksRequest(
            namespace=self.client.namespace,
            name=self.name,
            statuses=hook_status_numbers(status),
            page_size=PAGE,
        )
        async for page in pages(partial(self.client.call, self.client.stub(HookServiceStub).ListHooks), request):
            for hook in page.hooks:
                yield hook_info(hook)

    async def put_target(self, url: str, *, secrets: Iterable[str] = ()) -> HookTarget:
        """Send hooks of this name to an https URL from now on; also enables a target again.

        Without `secrets` to sign with, it keeps those it has, or gets a new one, which the answer holds, once.
        """
        request = pb.PutHookTargetRequest(
            namespace=self.client.namespace,
            name=self.name,
            url=checks.text("url", url),
            secrets=checks.texts("secrets", secrets),
        )
        answer = await self.client.call(self.client.stub(HookServiceStub).PutHookTarget, identified(request))
        return hook_target(answer.target, answer.secrets)

    async def delete_target(self) -> None:
        """Send hooks of this name to no webhook any more. Those that have not ended wait for a worker, or a target."""
        request = identified(pb.DeleteHookTargetRequest(namespace=self.client.namespace, name=self.name))
        await self.client.call(self.client.stub(HookServiceStub).DeleteHookTarget, request)

    def _triggered(self, result: pb.TriggerHooksResult) -> TriggeredHook:
        if result.HasField("error"):
            raise refusal_of(result.error)
        return TriggeredHook(self.client, self.name, result.hook.hook_id)


@dataclass(frozen=True, slots=True)
class TriggeredHook:
    """One hook, on the server: a handle that holds its id."""

    client: Caller
    name: str
    id: str

    async def status(self) -> HookInfo:
        """The hook as it stands now."""
        return hook_info(await self.fetch())

    async def retry(self) -> None:
        """Let it be executed at once: one that failed or was cancelled begins anew, one that waits no longer does."""
        request = identified(pb.RetryHookRequest(namespace=self.client.namespace, hook_id=self.id))
        await self.client.call(self.client.stub(HookServiceStub).RetryHook, request)

    async def cancel(self) -> None:
        """End it, if it has not ended. A handler that executes is told to stop."""
        request = identified(pb.CancelHookRequest(namespace=self.client.namespace, hook_id=self.id))
        await self.client.call(self.client.stub(HookServiceStub).CancelHook, request)

    async def fetch(self) -> pb.Hook:
        """The hook as the wire has it."""
        request = pb.GetHookRequest(namespace=self.client.namespace, hook_id=self.id)
        answer = await self.client.call(self.client.stub(HookServiceStub).GetHook, request)
        return answer.hook


def hooks_of(client: Caller, hook: HookDefinition[Any] | str) -> Hook[Any]:
    """The hooks of a name, on the server. TypeError if there is neither a definition nor a name."""
    if isinstance(hook, str):
        return Hook(client, hook)
    if not isinstance(hook, HookDefinition):
        raise TypeError(f"a hook is made by @hook(...), or the name of one, not {hook!r}")
    return Hook(client, hook.name, hook.retry)


async def targets_of(client: Caller) -> AsyncIterator[HookTarget]:
    """The webhooks of the client's namespace, without their secrets."""
    request = pb.ListHookTargetsRequest(namespace=client.namespace)
    async for page in pages(partial(client.call, client.stub(HookServiceStub).ListHookTargets), request):
        for target in page.targets:
            yield hook_target(target)


async def trigger_all(
    client: Caller, items: Sequence[pb.TriggerHooksItem], seconds: float
) -> Sequence[pb.TriggerHooksResult]:
    """Store hooks, each answered by itself."""
    request = pb.TriggerHooksRequest(namespace=client.namespace, items=items)
    return (await client.call(client.stub(HookServiceStub).TriggerHooks, request, seconds)).results


def trigger_item(name: str, new: NewHook[Any], default: Retry | None) -> pb.TriggerHooksItem:
    """A hook to store, for the wire. ValueError or PayloadInvalid if it cannot be sent."""
    if new.process_at is not None and not isinstance(new.process_at, datetime):
        raise ValueError(
            f"process_at is an instant, such as datetime.now(UTC) + timedelta(hours=1): {new.process_at!r}"
        )
    if new.retry is not None and not isinstance(new.retry, Retry):
        raise TypeError(f"retry is a Retry, not {new.retry!r}")
    if new.retry is not None and new.retry.is_retryable is not None:
        raise ValueError("is_retryable is asked in the worker: give it to @hook(..., retry=Retry(is_retryable=...))")
    retry = new.retry or default
    item = pb.TriggerHooksItem(
        name=name,
        hook_id=checks.new_id("a hook", new.id),
        payload=to_payload(new.payload),
        process_at=None if new.process_at is None else to_timestamp(new.process_at),
        retry=None if retry is None else retry.to_policy(),
        trace=checks.mapping("trace", new.trace),
    )
    return identified(item)
