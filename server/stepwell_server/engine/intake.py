"""What callers bring: instances to create and events to store. Checked one by one, committed in their order."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from stepwell_server.domain.errors import BatchTooLarge, DatabaseUnavailable, StepwellError
from stepwell_server.domain.names import check_request_id
from stepwell_server.domain.payloads import Payload
from stepwell_server.domain.tasks import Task
from stepwell_server.domain.workflows import Instance, InstanceStatus, NewEvent, NewInstance, status_of
from stepwell_server.engine.claims import Handed
from stepwell_server.engine.groups import HotCall
from stepwell_server.engine.run_calls import Created, CreateRun, SendEvent, Stored
from stepwell_server.engine.runs import NewRun
from stepwell_server.engine.spine import Spine
from stepwell_server.storage.workflows import Started

New = TypeVar("New", NewInstance, NewEvent)


@dataclass(frozen=True, slots=True)
class Item:
    """How a caller recognises one thing of a batch."""

    request_id: str
    body: bytes

    def hash(self) -> str | None:
        """What tells a repetition from a reuse."""
        return hashlib.sha256(self.body).hexdigest() if self.request_id else None


@dataclass(frozen=True, slots=True)
class Intake:
    """Takes in batches of any size up to the limit; one caller is a batch of one."""

    spine: Spine

    async def create(self, items: Sequence[tuple[NewInstance, Item]]) -> list[Instance | StepwellError]:
        """Store new instances, each decided by itself."""
        self._check_batch(len(items))
        checked = [await self._checked(new, item, self._check_instance) for new, item in items]
        answers = await self._commit([self._creation(one) for one in checked])
        return [_instance(one, answer) for one, answer in zip(checked, answers, strict=True)]

    async def send(self, items: Sequence[tuple[NewEvent, Item]]) -> list[Stored | StepwellError]:
        """Store events, each decided by itself; those to one instance in this order."""
        self._check_batch(len(items))
        checked = [await self._checked(new, item, self._check_event) for new, item in items]
        calls = [
            one if isinstance(one, StepwellError) else SendEvent(one[0], one[1].request_id or None, one[1].hash())
            for one in checked
        ]
        return await self._commit(calls)

    # ---- checks

    def _check_batch(self, count: int) -> None:
        limit = self.spine.registry.limits.batch_items
        if count > limit:
            raise BatchTooLarge(f"a batch has at most {limit} items", field="items", limit=limit)

    async def _checked(
        self, new: New, item: Item, check: Callable[[New], Awaitable[New]]
    ) -> tuple[New, Item] | StepwellError:
        """The item, or why it is refused."""
        try:
            check_request_id(item.request_id)
            return await check(new), item
        except StepwellError as refusal:
            return refusal

    async def _check_instance(self, new: NewInstance) -> NewInstance:
        if not new.key.instance_id:
            new = replace(new, key=replace(new.key, instance_id=uuid4().hex))
        new.check()
        await self.spine.registry.require(new.key.handler)
        await self._check_payload(new.key.namespace, "params", new.params)
        return new

    async def _check_event(self, new: NewEvent) -> NewEvent:
        new.check()
        await self.spine.registry.require(new.key.handler)
        if new.payload is not None:
            await self._check_payload(new.key.namespace, "payload", new.payload)
        return new

    async def _check_payload(self, namespace: str, field: str, payload: Payload) -> None:
        limits = await self.spine.registry.limits_of(namespace)
        payload.check(field, most_bytes=limits.max_payload_bytes, deepest=self.spine.registry.limits.payload_depth)

    # ---- commits

    def _creation(self, checked: tuple[NewInstance, Item] | StepwellError) -> CreateRun | StepwellError:
        if isinstance(checked, StepwellError):
            return checked
        new, item = checked
        seat = self.spine.dispatcher.reserve(new.key.handler)
        return CreateRun(NewRun(new, item.request_id or None, item.hash(), seat))

    async def _commit(self, calls: Sequence[HotCall | StepwellError]) -> list[Any]:
        """Commit the calls in their order. A caller that goes away leaves them to be committed all the same."""
        answers = [one if isinstance(one, StepwellError) else self._enqueue(one) for one in calls]
        waiting = [one for one in answers if isinstance(one, asyncio.Future)]
        if waiting:
            await asyncio.wait(waiting)  # unlike gather, it does not take them along when it is cancelled
        return [_outcome(one) for one in answers]

    def _enqueue(self, call: HotCall) -> asyncio.Future[Any] | StepwellError:
        try:
            answer = self.spine.committer.enqueue(call)
        except StepwellError as refusal:
            if isinstance(call, CreateRun):
                self._born(call, None)
            return refusal
        if isinstance(call, CreateRun):
            answer.add_done_callback(partial(self._born, call))
        return answer

    def _born(self, call: CreateRun, done: asyncio.Future[Any] | None) -> None:
        """Hand a newborn to the worker that was reserved for it, or let go of the worker."""
        error = None if done is None else done.exception()
        answer = None if done is None or error is not None else done.result()
        handed, run = None, call.run
        if isinstance(answer, Created) and answer.is_new and answer.task is not None and run.seat is not None:
            handed = Handed(answer.task, Started(run.new.params, answer.task.run_at), is_fresh=True)
        is_lost = isinstance(error, DatabaseUnavailable)
        self.spine.dispatcher.born(run.new.key.handler, run.seat, handed, is_lost=is_lost)


def _outcome(answer: asyncio.Future[Any] | StepwellError) -> Any:
    """An answer or a refusal; what is neither is a bug and goes on."""
    if isinstance(answer, StepwellError):
        return answer
    error = answer.exception()
    if error is not None and not isinstance(error, StepwellError):
        raise error
    return error or answer.result()


def _instance(
    checked: tuple[NewInstance, Item] | StepwellError, answer: Created | StepwellError
) -> Instance | StepwellError:
    if isinstance(answer, StepwellError):
        return answer
    assert not isinstance(checked, StepwellError)
    return answer.instance or _newborn(checked[0], answer.task)


def _newborn(new: NewInstance, task: Task | None) -> Instance:
    assert task is not None
    status = status_of(task)
    return Instance(
        id=task.id,
        key=new.key,
        run_number=0,
        status=status,
        params=new.params,
        output=None,
        failure=None,
        labels=new.labels,
        created_at=task.run_at,
        updated_at=task.run_at,
        started_at=task.run_at if status is InstanceStatus.RUNNING else None,
        ended_at=None,
        revision=task.revision,
    )
