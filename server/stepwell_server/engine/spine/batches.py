"""Batches: what callers bring, checked one by one, committed in their order; one caller is a batch of one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from stepwell_server.domain.spine.births import Keyed
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import BatchTooLarge, StepwellError
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.engine.spine.births import Create
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.spine.turns import Turns

New = TypeVar("New", bound=Keyed)


@dataclass(frozen=True, slots=True)
class Batches:
    """Takes in batches of any size up to the limit."""

    replica: Replica
    turns: Turns = field(default_factory=Turns)

    async def take(
        self,
        items: Sequence[tuple[New | StepwellError, Asked]],
        check: Callable[[New], Awaitable[New]],
        call: Callable[[New, Asked], HotCall],
    ) -> list[Any]:
        """Commit the call of each item, in their order. A refused item is refused alone, at any time."""
        self.check_size("items", len(items))
        checked = [await self._checked(new, asked, check) for new, asked in items]
        sent = [
            item if isinstance(item, StepwellError) else self._send(call(item, asked), item, asked)
            for item, (_, asked) in zip(checked, items, strict=True)
        ]
        waiting = [answer for answer in sent if isinstance(answer, asyncio.Future)]
        if waiting:  # a caller that goes away leaves them to be committed all the same
            await asyncio.wait(waiting)  # unlike gather, it does not take them along when it is cancelled
        return [_outcome(answer) for answer in sent]

    def check_size(self, field: str, size: int) -> None:
        """Refuse more items than a batch may have."""
        limit = self.replica.registry.limits.batch_items
        if size > limit:
            raise BatchTooLarge(f"a batch has at most {limit} {field}", field=field, size=size, limit=limit)

    async def check_payload(self, namespace: str, name: str, payload: Payload) -> None:
        """Refuse what the namespace does not take; also a namespace that does not exist."""
        registry = self.replica.registry
        limits = await registry.limits_of(namespace)
        deepest = registry.limits.payload_depth
        await self.turns.work(payload.scan(name, most_bytes=limits.max_payload_bytes, deepest=deepest))

    async def _checked(
        self, new: New | StepwellError, asked: Asked, check: Callable[[New], Awaitable[New]]
    ) -> New | StepwellError:
        """The item, or why it is refused."""
        if isinstance(new, StepwellError):
            return new
        try:
            asked.check()
            return await check(new)
        except StepwellError as refusal:
            return refusal

    def _send(self, call: HotCall, new: Keyed, asked: Asked) -> asyncio.Future[Any] | StepwellError:
        reservation = call.reservation if isinstance(call, Create) else None
        try:
            answer = self.replica.committer.enqueue(call, Sender(new.key.namespace, asked.principal))
        except StepwellError as refusal:
            if reservation is not None:
                self.replica.handout.release(reservation, None)
            return refusal
        if reservation is not None:
            answer.add_done_callback(partial(self.replica.handout.release, reservation))
        return answer


def _outcome(answer: asyncio.Future[Any] | StepwellError) -> Any:
    """An answer or a refusal; what is neither is a bug and goes on."""
    if isinstance(answer, StepwellError):
        return answer
    error = answer.exception()
    if error is not None and not isinstance(error, StepwellError):
        raise error
    return error or answer.result()
