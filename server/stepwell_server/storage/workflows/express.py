"""Runs written by what a replica knows of them: guarded by the columns of their tasks, and without reading them.

A report counts if the task is as the replica last saw it: fence, revision and frame number, held, not told to stop, and
with nothing that came meanwhile. Whatever changes anything else of a run changes one of those. Steps are looked up
besides: they must not exist. What does not pass is left as it is, and the ordinary way finds out why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell_server.domain.spine.births import Wanted
from stepwell_server.domain.spine.tasks import Reason, Task
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.instances import PRIORITY, InstanceKey, NewInstance, Step
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.payloads import FAILURE, failure_row, to_text
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.workflows.instances import End


@dataclass(frozen=True, slots=True)
class Report:
    """What becomes of a run, and of its task as it was when it was last seen."""

    before: Task
    after: Task
    steps: Sequence[Step]
    """Those that have returned."""
    names: Sequence[str]
    """Steps that must not exist yet: those, and the ones that begin."""
    end: End | None = None
    """Of its instance; then its task is removed."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and when."""

    at: Stamp
    reported: frozenset[int] = frozenset()
    """Tasks that were as they had been seen."""
    born: Mapping[InstanceKey, tuple[int, int]] = field(default_factory=dict)
    """Of those that were not there yet: the number, and the fence of the lease or 0."""


def report(tx: Tx, reports: Sequence[Report], lease: Micros) -> Written:
    """Store these reports, as far as their tasks are as they had been seen."""
    before, after = [one.before for one in reports], [one.after for one in reports]
    named = [(one.before.id, one.before.run_number, name) for one in reports for name in one.names]
    steps = [(one.before, step) for one in reports for step in one.steps]
    ends = [one.end for one in reports if one.end is not None]
    row = tx.exec_driver_sql(
        _REPORTS,
        (
            [task.id for task in before],
            [task.fence for task in before],
            [task.revision for task in before],
            [task.frame_number for task in before],
            [task.frame_number for task in after],
            [task.revision for task in after],
            [task.step_count for task in after],
            [task.open_steps for task in after],
            lease,
            *_columns(named, 3),
            *_columns([_step_row(task, step) for task, step in steps], 10),
            *_columns([_end_row(end) for end in ends], 9),
        ),
    ).one()
    return Written(Stamp(row.stamp, row.lease_stamp), frozenset(row.done))


def bear(tx: Tx, wanted: Sequence[Wanted[NewInstance]], ack_window: Micros) -> Written:
    """Store these new instances with their tasks, as far as they are not there."""
    turns, fresh = zip(*sorted(enumerate(wanted, 1), key=lambda one: _sorted_by(one[1].new.key)), strict=True)
    row = tx.exec_driver_sql(
        _BIRTHS,
        (*_columns([_birth_row(one) for one in fresh], 8), list(turns), PRIORITY[Reason.RUN], ack_window),
    ).one()
    stored = frozenset(row.born)
    numbers = zip(fresh, row.ids, row.fences, strict=True)
    return Written(
        Stamp(row.stamp, row.lease_stamp),
        born={one.new.key: (number, fence) for one, number, fence in numbers if number in stored},
    )


def _function(name: str, returned: str, types: str) -> str:
    given = ", ".join(f"${place}::{one}" for place, one in enumerate(types.split(), 1))
    return f"SELECT {returned} FROM {name}({given})"


_REPORTS = _function(
    "express_reports_v1",
    "stamp, lease_stamp, done",
    "bigint[] bigint[] bigint[] bigint[] bigint[] bigint[] integer[] text[] bigint bigint[] integer[] text[] "
    "bigint[] integer[] text[] bigint[] text[] integer[] bigint[] text[] bigint[] bigint[] "
    "bigint[] text[] bigint[] bigint[] text[] text[] text[] text[] boolean[]",
)
_BIRTHS = _function(
    "express_births_v1",
    "stamp, lease_stamp, ids, fences, born",
    "text[] text[] text[] text[] text[] text[] text[] bigint[] integer[] integer bigint",
)


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """The same as one list for each column."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _sorted_by(key: InstanceKey) -> tuple[str, str, str]:
    """The order in which everybody inserts: of code points, which is that of bytes."""
    return key.namespace, key.workflow, key.instance_id


def _text(payload: Payload | None) -> str | None:
    text = to_text(payload)
    return None if text is None else text.decode()


def _step_row(task: Task, step: Step) -> tuple[Any, ...]:
    assert step.policy is not None
    retry = step.policy.retry
    policy = (retry.max_attempts, retry.delay, retry.backoff, retry.max_delay, step.policy.timeout)
    return task.id, task.run_number, step.name, step.revision, _text(step.result), *policy


def _end_row(end: End) -> tuple[Any, ...]:
    failure = failure_row(end.failure)
    return end.id, end.status, end.revision, end.fence, _text(end.output), *(failure[name] for name in FAILURE)


def _birth_row(one: Wanted[NewInstance]) -> tuple[Any, ...]:
    key, holder = one.new.key, one.holder
    owner = (None, None) if holder is None else (holder.session_id, holder.connection)
    return (*_sorted_by(key), _text(one.new.params), one.request_id, one.request_hash, *owner)
