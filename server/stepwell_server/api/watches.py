"""The stream of WatchInstances: which instances a client follows, and what it is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from stepwell.v1 import workflows_pb2 as pb
from stepwell_server.api.edge import streams, validate
from stepwell_server.api.edge.calls import Call
from stepwell_server.api.wire import common as convert
from stepwell_server.api.wire import workflows as wire
from stepwell_server.domain.values.errors import StepwellError, StreamLimit
from stepwell_server.domain.values.limits import PART_BYTES
from stepwell_server.domain.workflows.instances import Head, Instance, InstanceKey
from stepwell_server.engine.workflows.calls import not_found
from stepwell_server.engine.workflows.instances import Instances
from stepwell_server.engine.workflows.watches import Watcher

MOST_REFUSALS = 500
"""Refusals that wait to be sent before no more is read. So many targets are taken in at once."""


@dataclass(frozen=True, slots=True)
class _Followed:
    """An instance that is followed, and how much of it."""

    target: pb.WatchTarget
    instance_id: int


@dataclass(slots=True)
class WatchStream:
    """One stream."""

    instances: Instances
    call: Call
    watcher: Watcher = field(default_factory=Watcher)
    followed: dict[InstanceKey, _Followed] = field(default_factory=dict)
    refusals: list[pb.InstanceChange] = field(default_factory=list)
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    """The refusals are on their way, and there is room for others."""
    is_closed: bool = False

    async def serve(self, requests: AsyncIterator[pb.WatchInstancesRequest]) -> None:
        """Send changes until the client has closed its side. A client that does not read is cut off."""
        reader = asyncio.create_task(self._read(requests))
        try:
            async with streams.checked(self.call):
                while not self.is_closed or self.watcher.changed or self.refusals:
                    async for response in self._next():
                        await streams.write(self.call.context, response)
                await reader
        finally:
            reader.cancel()
            self.instances.watches.drop(self.watcher, list(self.watcher.known))

    async def _read(self, requests: AsyncIterator[pb.WatchInstancesRequest]) -> None:
        try:
            async for request in requests:
                validate.standard.check(request)
                for target in request.drop:
                    self._drop(_key(target))
                for first in range(0, len(request.add), MOST_REFUSALS):
                    await self._until_room()
                    await self._add(request.add[first : first + MOST_REFUSALS])
        finally:
            self.is_closed = True
            self.watcher.ready.set()

    async def _until_room(self) -> None:
        """Wait for the client to read what it was refused."""
        while len(self.refusals) >= MOST_REFUSALS:
            self.has_room.clear()
            with self.call.waiting():
                await self.has_room.wait()

    async def _add(self, targets: Sequence[pb.WatchTarget]) -> None:
        """Follow these. All are read at once, but those that were just created here."""
        permitted = [target for target in targets if self._may_follow(target)]
        watches = self.instances.watches
        heads: dict[InstanceKey, tuple[Head, int]] = {}
        for target in permitted:
            newborn = None if target.include_steps else watches.take_newborn(_key(target))
            if newborn is not None:
                heads[_key(target)] = newborn
        mark = watches.mark()
        unread = [key for key in map(_key, permitted) if key not in heads]
        if unread:
            found = await self.instances.get_many(unread)
            heads |= {key: (one.head, mark) for key, one in found.items()}
        for target in permitted:
            if _key(target) in heads:
                self._follow(target, *heads[_key(target)])
            else:
                self._refuse(target, not_found(_key(target)))

    def _follow(self, target: pb.WatchTarget, head: Head, mark: int) -> None:
        key = _key(target)
        self._drop(key)
        most = self.call.tuning.most_followed
        if len(self.followed) >= most:
            self._refuse(target, StreamLimit(f"a stream follows at most {most} instances", limit=most))
            return
        self.call.permit(key.namespace)
        self.followed[key] = _Followed(target, head.id)
        self.watcher.with_steps |= target.include_steps
        self.instances.watches.follow(self.watcher, head, target.known_revision, mark)

    def _may_follow(self, target: pb.WatchTarget) -> bool:
        try:
            self.call.check(convert.namespace_from_pb(target.namespace))
        except StepwellError as refusal:
            self._refuse(target, refusal)
            return False
        return True

    def _refuse(self, target: pb.WatchTarget, refusal: StepwellError) -> None:
        error = convert.item_error_to_pb(refusal)
        self.refusals.append(pb.InstanceChange(refusal=pb.WatchRefusal(target=target, error=error)))
        self.watcher.ready.set()

    def _drop(self, key: InstanceKey) -> None:
        followed = self.followed.pop(key, None)
        if followed is not None:
            self.instances.watches.drop(self.watcher, [followed.instance_id])

    async def _next(self) -> AsyncIterator[pb.WatchInstancesResponse]:
        """The next messages: what was refused and what has changed, split by size, or a keepalive."""
        changed: list[tuple[Head, int]] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(self.call.tuning.keepalive):
                changed = await self.watcher.take()
        refusals, self.refusals = self.refusals, []
        self.has_room.set()
        response, size = self._response(), 0
        async for change in self._news(refusals, changed):
            size += change.ByteSize()
            if response.changes and size > PART_BYTES:
                yield response
                response, size = self._response(), change.ByteSize()
            response.changes.append(change)
        if not self.is_closed or response.changes:
            yield response

    def _response(self) -> pb.WatchInstancesResponse:
        now = self.instances.now()
        return pb.WatchInstancesResponse(now=convert.timestamp_to_pb(now), draining=self.watcher.is_draining)

    async def _news(
        self, refusals: Sequence[pb.InstanceChange], changed: Sequence[tuple[Head, int]]
    ) -> AsyncIterator[pb.InstanceChange]:
        for refusal in refusals:
            yield refusal
        known = {head.id: revision for head, revision in changed}
        async for instance in self.instances.watches.read(list(known)):
            self.watcher.saw(instance)
            async for change in self._changes(instance, known[instance.id]):
                yield change

    async def _changes(self, instance: Instance, known: int) -> AsyncIterator[pb.InstanceChange]:
        """The instance, with the steps that changed if they were asked for; again for those that do not fit."""
        change = pb.InstanceChange(instance=wire.instance_to_pb(instance))
        followed = self.followed.get(instance.key)
        if followed is not None and followed.target.include_steps:
            size = change.ByteSize()
            async for one in self.instances.changed_steps(instance, known):
                step = wire.step_to_pb(one)
                size += step.ByteSize()
                if size > PART_BYTES and change.steps:
                    change.more_steps = True
                    yield change
                    change = pb.InstanceChange(instance=wire.instance_to_pb(instance, payloads=False))
                    size = step.ByteSize()
                change.steps.append(step)
        yield change


def _key(target: pb.WatchTarget) -> InstanceKey:
    return InstanceKey(convert.namespace_from_pb(target.namespace), target.workflow, target.instance_id)
