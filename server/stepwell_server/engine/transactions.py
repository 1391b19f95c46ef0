"""Use cases of transactions: several operations, all or nothing.

A transaction is a group of its own, of the same calls that the committer groups. It waits for locks, and it is taken
back whole if one of its calls is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.engine.spine.batches import Batches
from stepwell_server.engine.spine.births import things
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.group import run_group
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.operators import Operator
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.storage.database.database import Tx, TxOptions
from stepwell_server.storage.spine import requests
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.tasks import TaskKey

_WHOLE = TxOptions(label="transaction")


@dataclass(frozen=True, slots=True)
class Transactions:
    """Many operations in one transaction."""

    replica: Replica
    batches: Batches
    operators: Mapping[type, Operator[Any, Any]]
    """By the type of what is asked for."""

    async def commit(self, namespace: str, operations: Sequence[object], asked: Asked) -> list[Any]:
        """Execute operations in their order, all or none. A refusal says which of them it was."""
        self.batches.check_size("operations", len(operations))
        asked.check()
        await self.replica.registry.limits_of(namespace)
        operators = [self.operators[type(operation)] for operation in operations]
        calls = [await _call(number, *each) for number, each in enumerate(zip(operators, operations, strict=True))]
        committed = list[Committed]()

        def work(tx: Tx) -> list[Any]:
            committed.clear()
            return requests.once(
                tx,
                namespace,
                asked,
                lambda: self._execute(tx, calls, committed),
                dump=lambda done: [operator.dump(one) for operator, one in zip(operators, done, strict=True)],
                load=lambda kept: [operator.load(tx, one) for operator, one in zip(operators, kept, strict=True)],
            )

        done = await self.replica.db.run_tx(work, _WHOLE)
        for one in committed:
            self.replica.announce(one)
        return done

    def _execute(self, tx: Tx, calls: Sequence[HotCall], committed: list[Committed]) -> list[Any]:
        keys = [key for call in calls for key in call.task_keys]
        if keys:
            task_store.lock_keys(tx, keys, waiting=True)  # all at once, in the order in which all transactions lock
        done: list[Any] = []
        for stage in _stages(calls):
            result = run_group(tx, stage, self.replica.kinds, self.replica.rules, waiting=True)
            for answer in result.answers:
                if isinstance(answer, StepwellError):
                    raise named(answer, len(done))
                done += things([answer])
            committed.append(result.committed)
        return done


async def _call(number: int, operator: Operator[Any, Any], operation: object) -> HotCall:
    try:
        return operator.call(await operator.check(operation))
    except StepwellError as refusal:
        raise named(refusal, number) from None


def _stages(calls: Sequence[HotCall]) -> list[list[HotCall]]:
    """The calls, cut where one is about a task that an earlier one creates: that must be there first."""
    stages: list[list[HotCall]] = [[]]
    fresh: set[TaskKey] = set()
    for call in calls:
        if not fresh.isdisjoint(call.task_keys):
            stages.append([])
            fresh.clear()
        if call.creates is not None:
            fresh.add(call.creates)
        stages[-1].append(call)
    return stages


def named(refusal: StepwellError, number: int) -> StepwellError:
    """The refusal, which says whose it is: the place of its operation in the list."""
    refusal.metadata["operation"] = str(number)
    return refusal
