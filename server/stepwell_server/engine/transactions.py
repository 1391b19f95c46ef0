"""Use cases of transactions: several operations, all or nothing.

A transaction is a group of its own: the same calls that the committer groups are decided and written together, in a
group that waits for locks and is taken back whole if one of its calls is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepwell_server.domain.hooks.hooks import Hook, NewHook
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.workflows.instances import (
    Event,
    Instance,
    InstanceKey,
    InstanceStatus,
    NewEvent,
    NewInstance,
)
from stepwell_server.engine.hooks.hooks import Hooks
from stepwell_server.engine.spine.batches import NO_ITEM, Intake, event_call
from stepwell_server.engine.spine.group import Committed, HotCall, run_group
from stepwell_server.engine.spine.replica import Spine
from stepwell_server.engine.spine.requests import Request
from stepwell_server.engine.workflows.book import NewRun
from stepwell_server.engine.workflows.calls import Created, CreateRun, SendEvent, Stored
from stepwell_server.storage.database.database import Tx, TxOptions
from stepwell_server.storage.hooks import hooks as hook_store
from stepwell_server.storage.spine import requests
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.workflows import instances as workflows

Operation: TypeAlias = NewInstance | NewEvent | NewHook
Done: TypeAlias = Instance | Stored | Hook

_WHOLE = TxOptions(label="transaction")


@dataclass(frozen=True, slots=True)
class Transactions:
    """Many operations in one transaction."""

    spine: Spine
    intake: Intake
    hooks: Hooks

    async def commit(self, namespace: str, operations: Sequence[Operation], request: Request) -> list[Done]:
        """Execute operations in their order, all or none. A refusal says which of them it was."""
        self.intake.check_batch("operations", len(operations))
        await self.spine.registry.limits_of(namespace)
        calls = [await self._call(number, one) for number, one in enumerate(operations)]
        request_key, committed = request.key(namespace), list[Committed]()

        def work(tx: Tx) -> list[Done]:
            committed.clear()
            return requests.once(
                tx,
                request_key,
                lambda: self._execute(tx, calls, committed),
                dump=lambda done: [_dump(one) for one in done],
                load=lambda stored: [_load(tx, one) for one in stored],
            )

        done = await self.spine.db.run_tx(work, _WHOLE)
        for one in committed:
            self.spine.announce(one)
        return done

    async def _call(self, number: int, operation: Operation) -> HotCall:
        try:
            match operation:
                case NewInstance():
                    return CreateRun(NewRun(await self.intake.check_instance(operation)))
                case NewEvent():
                    return event_call(await self.intake.check_event(operation), NO_ITEM)
                case NewHook():
                    return self.hooks.call(await self.hooks.check(operation), NO_ITEM)
        except StepwellError as refusal:
            raise named(refusal, number) from None

    def _execute(self, tx: Tx, calls: Sequence[HotCall], committed: list[Committed]) -> list[Done]:
        keys = [key for call in calls for key in call.task_keys]
        if keys:
            task_store.lock_keys(tx, keys, waiting=True)  # all at once, in the order of everybody
        done: list[Done] = []
        for stage in _stages(calls):
            result = run_group(tx, stage, self.spine.committer.rules, waiting=True)
            for answer in result.answers:
                if isinstance(answer, StepwellError):
                    raise named(answer, len(done))
                done.append(answer.as_instance() if isinstance(answer, Created) else answer)
            committed.append(result.committed)
        return done


def _stages(calls: Sequence[HotCall]) -> list[list[HotCall]]:
    """The calls, cut where one is about an instance that an earlier one creates: that must be there first."""
    stages: list[list[HotCall]] = [[]]
    fresh: set[InstanceKey] = set()
    for call in calls:
        if isinstance(call, SendEvent) and call.new.key in fresh:
            stages.append([])
            fresh.clear()
        if isinstance(call, CreateRun):
            fresh.add(call.run.new.key)
        stages[-1].append(call)
    return stages


def named(refusal: StepwellError, number: int) -> StepwellError:
    """The refusal, which says whose it is: the place of its operation in the list."""
    refusal.metadata["operation"] = str(number)
    return refusal


def _dump(done: Done) -> list[Any]:
    match done:
        case Instance():
            return ["instance", done.id]
        case Hook():
            return ["hook", done.id]
        case Stored(event, status):
            return ["event", event.position, event.type, event.created_at, status]


def _load(tx: Tx, stored: list[Any]) -> Done:
    match stored:
        case ["instance", number]:
            return workflows.get_many(tx, [number])[number]
        case ["hook", number]:
            return hook_store.get_many(tx, [number])[number]
        case _:
            _, position, event_type, created_at, status = stored
            return Stored(Event(position, event_type, None, created_at), InstanceStatus(status))
