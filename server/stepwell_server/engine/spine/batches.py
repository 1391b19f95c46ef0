"""What callers bring: instances to create and events to store. Checked one by one, committed in their order."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from stepwell_server.domain.hooks.hooks import NewHook
from stepwell_server.domain.values.errors import BatchTooLarge, DatabaseUnavailable, StepwellError
from stepwell_server.domain.values.names import check_request_id
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.workflows.instances import Instance, NewEvent, NewInstance
from stepwell_server.engine.spine.claims import Handed
from stepwell_server.engine.spine.group import HotCall
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.replica import Spine
from stepwell_server.engine.spine.turns import Turns
from stepwell_server.engine.workflows.book import NewRun
from stepwell_server.engine.workflows.calls import Created, CreateRun, SendEvent, Stored
from stepwell_server.storage.workflows.instances import Started

New = TypeVar("New", NewInstance, NewEvent, NewHook)


@dataclass(frozen=True, slots=True)
class Item:
    """How a caller recognises one thing of a batch, and who that caller is."""

    request_id: str
    body: bytes
    principal: str = ""

    def hash(self) -> str | None:
        """What tells a repetition from a reuse."""
        return hashlib.sha256(self.body).hexdigest() if self.request_id else None


NO_ITEM = Item("", b"")
"""Not recognised by itself: it is part of something that is."""


@dataclass(frozen=True, slots=True)
class Intake:
    """Takes in batches of any size up to the limit; one caller is a batch of one."""

    spine: Spine
    turns: Turns = field(default_factory=Turns)

    async def create(self, items: Sequence[tuple[NewInstance | StepwellError, Item]]) -> list[Instance | StepwellError]:
        """Store new instances, each decided by itself. Where a worker is free, they are handed out at birth."""
        answers = await self.take(items, self.check_instance, self._creation)
        return [one.as_instance() if isinstance(one, Created) else one for one in answers]

    async def send(self, items: Sequence[tuple[NewEvent | StepwellError, Item]]) -> list[Stored | StepwellError]:
        """Store events, each decided by itself; those to one instance in this order."""
        return await self.take(items, self.check_event, event_call)

    async def take(
        self,
        items: Sequence[tuple[New | StepwellError, Item]],
        check: Callable[[New], Awaitable[New]],
        call: Callable[[New, Item], HotCall],
    ) -> list[Any]:
        """Commit what each item asks for, in their order. One that is refused, whenever, is refused alone."""
        self.check_batch("items", len(items))
        checked = [await self._checked(new, item, check) for new, item in items]
        return await self._commit([one if isinstance(one, StepwellError) else _sent(call, *one) for one in checked])

    # ---- checks

    def check_batch(self, field: str, size: int) -> None:
        """Refuse more items than a batch may have."""
        limit = self.spine.registry.limits.batch_items
        if size > limit:
            raise BatchTooLarge(f"a batch has at most {limit} {field}", field=field, size=size, limit=limit)

    async def _checked(
        self, new: New | StepwellError, item: Item, check: Callable[[New], Awaitable[New]]
    ) -> tuple[New, Item] | StepwellError:
        """The item, or why it is refused."""
        if isinstance(new, StepwellError):
            return new
        try:
            check_request_id(item.request_id)
            return await check(new), item
        except StepwellError as refusal:
            return refusal

    async def check_instance(self, new: NewInstance) -> NewInstance:
        """The instance with an id, or why it is refused."""
        if not new.key.instance_id:
            new = replace(new, key=replace(new.key, instance_id=uuid4().hex))
        new.check()
        await self.spine.registry.use(new.key.handler)
        await self.check_payload(new.key.namespace, "params", new.params)
        return new

    async def check_event(self, new: NewEvent) -> NewEvent:
        """The event, or why it is refused."""
        new.check()
        await self.spine.registry.use(new.key.handler)
        if new.payload is not None:
            await self.check_payload(new.key.namespace, "payload", new.payload)
        return new

    async def check_payload(self, namespace: str, name: str, payload: Payload) -> None:
        """Refuse what the namespace does not take; also a namespace that does not exist."""
        limits = await self.spine.registry.limits_of(namespace)
        deepest = self.spine.registry.limits.payload_depth
        await self.turns.work(payload.scan(name, most_bytes=limits.max_payload_bytes, deepest=deepest))

    # ---- commits

    def _creation(self, new: NewInstance, item: Item) -> CreateRun:
        seat = self.spine.dispatcher.reserve(new.key.handler)
        return CreateRun(NewRun(new, item.request_id or None, item.hash(), seat))

    async def _commit(self, calls: Sequence[tuple[HotCall, Sender] | StepwellError]) -> list[Any]:
        """Commit the calls in their order. A caller that goes away leaves them to be committed all the same."""
        answers = [one if isinstance(one, StepwellError) else self._enqueue(*one) for one in calls]
        waiting = [one for one in answers if isinstance(one, asyncio.Future)]
        if waiting:
            await asyncio.wait(waiting)  # unlike gather, it does not take them along when it is cancelled
        return [_outcome(one) for one in answers]

    def _enqueue(self, call: HotCall, sender: Sender) -> asyncio.Future[Any] | StepwellError:
        asked_at = asyncio.get_running_loop().time()
        try:
            answer = self.spine.committer.enqueue(call, sender)
        except StepwellError as refusal:
            if isinstance(call, CreateRun):
                self._born(call, asked_at, None)
            return refusal
        if isinstance(call, CreateRun):
            answer.add_done_callback(partial(self._born, call, asked_at))
        return answer

    def _born(self, call: CreateRun, asked_at: float, done: asyncio.Future[Any] | None) -> None:
        """Hand a newborn to the worker that was reserved for it, or let go of the worker."""
        error = None if done is None else done.exception()
        answer = None if done is None or error is not None else done.result()
        handed, run = None, call.run
        if isinstance(answer, Created) and answer.is_new and answer.task is not None and run.seat is not None:
            handed = Handed(answer.task, Started(run.new.params, answer.task.run_at, run.new.trace), is_fresh=True)
        is_lost = isinstance(error, DatabaseUnavailable)
        self.spine.dispatcher.born(run.new.key.handler, run.seat, handed, asked_at, is_lost=is_lost)


def _sent(call: Callable[[New, Item], HotCall], new: New, item: Item) -> tuple[HotCall, Sender]:
    return call(new, item), Sender(new.key.namespace, item.principal)


def event_call(new: NewEvent, item: Item) -> SendEvent:
    """The call that stores an event."""
    return SendEvent(new, item.request_id or None, item.hash())


def _outcome(answer: asyncio.Future[Any] | StepwellError) -> Any:
    """An answer or a refusal; what is neither is a bug and goes on."""
    if isinstance(answer, StepwellError):
        return answer
    error = answer.exception()
    if error is not None and not isinstance(error, StepwellError):
        raise error
    return error or answer.result()
