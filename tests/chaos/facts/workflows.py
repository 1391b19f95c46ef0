"""Facts about workflow instances: what each is to do, what was seen of it, and what is there in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.facts.fact import Fact


@dataclass(frozen=True, slots=True)
class Program(Fact):
    """What one instance is to do, written before it is created. Children have one, too."""

    key: str
    ends: list[str]
    """Statuses it may end with. Empty: it need not end."""
    steps: dict[str, int | None] = field(default_factory=dict)
    """Every step that a run may have, in the order in which it has them, one after the other; each with the most
    executions of its body. None: no maximum, or no body."""
    output: list[str] = field(default_factory=list)
    """Steps whose results make up the output of a complete run: the JSON object {step name: result}."""
    children: dict[str, str] = field(default_factory=dict)
    """Key of the child that a step creates, by that step's name."""


@dataclass(frozen=True, slots=True)
class Scan(Fact):
    """A client paged through all instances of a workflow while others were created."""

    process: str
    namespace: str
    workflow: str
    keys: list[str]
    """In the order in which they came."""
    invoke_ns: int
    ok_ns: int


@dataclass(frozen=True, slots=True)
class Seen(Fact):
    """A watcher was told of a state. `stream` is unique per connection."""

    process: str
    stream: str
    key: str
    status: str
    run_number: int
    revision: int
    mono_ns: int


@dataclass(frozen=True, slots=True)
class Effect(Fact):
    """A step body begins or ends, written and fsynced by the body itself: the truth about executions.

    `fence` and `attempt` are those of the lease that it runs under, where the body can learn them.
    """

    execution: str
    """Unique per execution, the same in start and end."""
    key: str
    run: int
    step: str
    phase: Literal["start", "end", "fail"]
    """end: it returns `value`. fail: it raises, on purpose. Neither: it was killed or cancelled."""
    worker: str
    mono_ns: int
    attempt: int | None = None
    fence: int | None = None
    value: str | None = None
    """JSON text of what it returns. Holds the execution, so that results of two executions differ."""


@dataclass(frozen=True, slots=True)
class InstanceRow(Fact):
    """An instance in the final snapshot, by the API or by SQL. The two must be equal but for `source`."""

    source: Literal["api", "sql"]
    key: str
    run_number: int
    status: str
    params: str | None
    output: str | None
    error_name: str | None
    error_message: str | None
    labels: dict[str, str]
    created_at: int
    updated_at: int
    started_at: int | None
    ended_at: int | None
    wake_at: int | None
    revision: int


@dataclass(frozen=True, slots=True)
class StepRow(Fact):
    """A step of any run in the final snapshot. `timeout` is in microseconds."""

    source: Literal["api", "sql"]
    key: str
    run: int
    name: str
    type: str
    status: str
    attempts: int
    max_attempts: int | None
    timeout: int | None
    next_retry_at: int | None
    wake_at: int | None
    event_type: str
    result: str | None
    error_name: str | None
    error_message: str | None
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class EventRow(Fact):
    """An event of any run in the final snapshot."""

    source: Literal["api", "sql"]
    key: str
    run: int
    event_id: int
    type: str
    payload: str | None
    created_at: int
    delivered_at: int | None
    consumed_by_step: str | None
    request_id: str | None = None
    """By SQL only: the API does not show it."""
