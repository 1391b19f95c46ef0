"""One WatchInstances stream per client, shared by all waits for instances and all watches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from grpc import aio

from stepwell.backoff import Reconnects
from stepwell.errors import CallFailed, failure_of, refusal_of
from stepwell.tuning import DEFAULT, Tuning
from stepwell.v1 import workflows_pb2 as pb

if TYPE_CHECKING:
    from stepwell.v1.workflows_pb2_grpc import WorkflowServiceAsyncStub

Key: TypeAlias = tuple[str, str]

_TARGETS_PER_MESSAGE = 1000
_DROP_SECONDS = 0.1


class Follower:
    """Follows an instance: gets its newest state, without states that it was too slow for."""

    __slots__ = ("_change", "_error", "_is_partial", "_newest", "_seen", "_steps", "_waiter", "wants_steps")

    def __init__(self, *, wants_steps: bool) -> None:
        self.wants_steps = wants_steps
        self._newest: pb.Instance | None = None
        self._change: pb.Instance | None = None
        self._is_partial = False  # pieces of the newest state are still to come
        self._steps: dict[str, pb.Step] = {}
        self._seen: dict[str, tuple[int, ...]] = {}
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, change: pb.InstanceChange) -> None:
        """Hand over a newer state when all of its pieces are here; what was told before is ignored."""
        known = -1 if self._newest is None else self._newest.revision
        if change.instance.revision < known:
            return
        if change.instance.revision > known:
            self._newest, self._is_partial = change.instance, True
        if self.wants_steps:
            self._steps.update((step.name, step) for step in change.steps if self._is_new(step))
        if self._is_partial and not (self.wants_steps and change.more_steps):
            self._change, self._is_partial = self._newest, False
            self._wake()

    def _is_new(self, step: pb.Step) -> bool:
        """Whether the step has changed. All of them are sent again when another follower begins."""
        state = (step.status, step.attempts, step.updated_at.seconds, step.updated_at.nanos)
        is_new = self._seen.get(step.name) != state
        self._seen[step.name] = state
        return is_new

    def fail(self, error: Exception) -> None:
        """There will be no more states."""
        self._error = error
        self._wake()

    async def next(self) -> tuple[pb.Instance, list[pb.Step]]:
        """The newest state that was not taken yet, and the steps that changed up to it."""
        while self._change is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        change, self._change = self._change, None
        steps, self._steps = list(self._steps.values()), {}
        return change, steps

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Watches:
    """Follows instances of one namespace over one stream, through every reconnect."""

    def __init__(self, stub: WorkflowServiceAsyncStub, namespace: str, address: str, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._stub = stub
        self._namespace = namespace
        self._address = address
        self._followers: dict[Key, set[Follower]] = {}
        self._revisions: dict[Key, int] = {}
        self._added: dict[Key, None] = {}
        self._dropped: dict[Key, None] = {}
        self._has_news = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._reconnects = Reconnects()

    @contextmanager
    def follow(
        self, workflow: str, instance_id: str, *, steps: bool = False, known_revision: int = 0
    ) -> Iterator[Follower]:
        """Follow an instance inside a `with` block, beginning with its present state, unless that one is known."""
        key = (workflow, instance_id)
        follower = Follower(wants_steps=steps)
        others = self._followers.setdefault(key, set())
        self._revisions[key] = 0 if others else known_revision  # others may still wait for the present state
        others.add(follower)
        self._dropped.pop(key, None)
        self._added[key] = None
        self._has_news.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        try:
            yield follower
        finally:
            self._unfollow(key, follower)

    async def close(self, error: Exception) -> None:
        """End the stream, and with it the waiting of those who follow."""
        self._fail_all(error)
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})

    def _unfollow(self, key: Key, follower: Follower) -> None:
        followers = self._followers.get(key, set())
        followers.discard(follower)
        if not followers and self._followers.pop(key, None) is not None:
            self._revisions.pop(key, None)
            self._added.pop(key, None)
            if not self._dropped:  # nothing urgent: those that end together are dropped together
                asyncio.get_running_loop().call_later(_DROP_SECONDS, self._has_news.set)
            self._dropped[key] = None

    async def _serve(self) -> None:
        """Keep a stream open. If there can be none, all followers get the error."""
        try:
            while True:
                failure = await self._stream()
                if failure is not None and self._reconnects.are_pointless_after(failure):
                    self._fail_all(failure)
                    return
                await asyncio.sleep(self._reconnects.next_pause())
        except Exception as error:
            self._fail_all(error)
        finally:
            self._serving = None

    async def _stream(self) -> CallFailed | None:
        call: Any = self._stub.WatchInstances()
        self._added, self._dropped = dict.fromkeys(self._followers), {}
        self._has_news.set()
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(call))
                try:
                    while (message := await _read(call, self._tuning.silence)) is not aio.EOF and not message.draining:
                        self._reconnects.served()
                        self._receive(message)
                except aio.AioRpcError as error:
                    return failure_of(error, self._address)
                except TimeoutError:
                    return CallFailed(grpc.StatusCode.UNAVAILABLE, "the server fell silent")
                finally:
                    writer.cancel()
        finally:
            call.cancel()
        return None

    async def _write(self, call: Any) -> None:
        try:
            while True:
                await self._has_news.wait()
                self._has_news.clear()
                while self._added or self._dropped:
                    await call.write(self._take_changes())
        except (aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError):
            return  # the stream has ended: the reader learns why

    def _take_changes(self) -> pb.WatchInstancesRequest:
        added = [self._added.popitem()[0] for _ in range(min(len(self._added), _TARGETS_PER_MESSAGE))]
        dropped = [self._dropped.popitem()[0] for _ in range(min(len(self._dropped), _TARGETS_PER_MESSAGE))]
        return pb.WatchInstancesRequest(add=map(self._target, added), drop=map(self._target, dropped))

    def _target(self, key: Key) -> pb.WatchTarget:
        return pb.WatchTarget(
            namespace=self._namespace,
            workflow=key[0],
            instance_id=key[1],
            known_revision=self._revisions.get(key, 0),
            include_steps=any(follower.wants_steps for follower in self._followers.get(key, ())),
        )

    def _receive(self, message: pb.WatchInstancesResponse) -> None:
        for change in message.changes:
            if change.HasField("instance"):
                key = (change.instance.workflow, change.instance.instance_id)
                if not change.more_steps:
                    self._saw(key, change.instance.revision)
                for follower in self._followers.get(key, ()):
                    follower.tell(change)
            elif change.HasField("refusal"):
                target = change.refusal.target
                for follower in self._followers.get((target.workflow, target.instance_id), ()):
                    follower.fail(refusal_of(change.refusal.error))

    def _saw(self, key: Key, revision: int) -> None:
        """Need no state up to this one again. But who has just come is yet to be sent the present one, with steps."""
        if key in self._followers and key not in self._added:
            self._revisions[key] = revision

    def _fail_all(self, failure: Exception) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.fail(failure)


async def _read(call: Any, silence: float) -> Any:
    """The next message of a stream. TimeoutError after too long a silence."""
    async with asyncio.timeout(silence):
        return await call.read()
