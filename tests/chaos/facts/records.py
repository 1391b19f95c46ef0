"""What a chaos run writes down, and what the checker reads: one JSON line per fact.

A run is a folder of `*.jsonl` files, one per process that records; a process that is started again takes a new file.
The order of files and lines means nothing. Facts of different processes are compared by CLOCK_MONOTONIC, which all
processes of one machine share, or by the database's clock:

- `*_ns` is CLOCK_MONOTONIC in nanoseconds (`time.monotonic_ns()`).
- `*_us`, and every time of a row, is the database's clock in epoch microseconds.

`key` is always "namespace/workflow/instance_id". Statuses are spelled as the schema spells them ("waiting_for_pause").
Payloads are the JSON text as it is stored, `None` where there is none.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

Row: TypeAlias = dict[str, Any]

NOBODY = "-"
"""The target of a fault that breaks nothing."""


def key_of(namespace: str, workflow: str, instance_id: str) -> str:
    """What an instance is called in every fact."""
    return f"{namespace}/{workflow}/{instance_id}"


# ---- what the run meant to do


@dataclass(frozen=True, slots=True)
class Plan:
    """What the run is about, written first. A run that did much less than this proves nothing."""

    seed: int
    lease_us: int
    database: Literal["sqlite", "postgresql"]
    operations: dict[str, int]
    """Requests that the clients mean to make, by op. Reads are not planned, and one that is repeated is still one."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each fault ("F01") must have begun, at least."""
    overlaps: dict[str, int] = field(default_factory=dict)
    """How often what makes a fault interesting must have happened: names of `checker.OVERLAPS`, or of `Count` facts."""
    least_per_operation: int = 50
    """Fewest acknowledged calls of each planned op; less if less was planned."""
    lateness_us: int = 0
    """How late a timer may fire while nothing is broken. 0: one lease."""
    heal_us: int = 0
    """How long after a fault its consequences are excused. 0: two leases."""
    arrivals_us: int = 0
    """How long after the run was warm the last order comes."""
    drain_leases: float = 10.0
    """Rest must come within this many leases of the heal and of the last order."""
    slots: int = 0
    """Runs that one worker takes at once. 0: not checked."""
    clock_steps: bool = False
    """The database's clock is moved during the run, so that its stamps go back."""
    excuse: bool = True
    """What is late during a fault is excused. False: it may be later only by as long as a fault may take to heal."""
    once: bool = False
    """Nothing may be executed twice: nobody was lost."""
    takeovers_at_most: int | None = None
    """Most leases that may end because their holders were lost. None: any number."""
    may_give_up: bool = False
    """Leases that workers gave up by themselves do not count for that."""


@dataclass(frozen=True, slots=True)
class Program:
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
class Stage:
    """A part of the run begins: "warm", "faults", "heal", "quiet" (all came to rest), "snapshot"."""

    name: Literal["warm", "faults", "heal", "quiet", "snapshot"]
    mono_ns: int
    wall_us: int
    """The wall clock of a process whose time is not tampered with."""


# ---- what clients saw


@dataclass(frozen=True, slots=True)
class Call:
    """A client's call begins (invoke), or is over: ok, fail (certainly not applied) or info (nobody knows).

    `fail` is for INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION and for what was never sent.
    """

    call: str
    """Unique per call, the same in both phases."""
    op: str
    """create, event, pause, resume, terminate, restart, get, list, wait, trigger, next_wake ..."""
    key: str
    phase: Literal["invoke", "ok", "fail", "info"]
    mono_ns: int
    process: str
    request_id: str = ""
    """The same in repetitions of one logical call, and in nothing else."""
    code: str = ""
    """Name of the gRPC status, of fail and info: "UNAVAILABLE"."""
    reason: str = ""
    """ErrorReason without its prefix: "INSTANCE_TERMINAL". Empty if no server has answered."""
    value: Row = field(default_factory=dict)
    """invoke: arguments ("type" and "payload" of an event). ok: what was answered: "status", "run_number",
    "created_at" of an instance; "event_id", "created_at" of an event; "hooks", each with its time; "wake_at", "now"."""
    revision: int | None = None
    """Of the instance that was answered."""
    server: str = ""
    """Replica that was asked, where the client knows."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A client paged through all instances of a workflow while others were created."""

    process: str
    namespace: str
    workflow: str
    keys: list[str]
    """In the order in which they came."""
    invoke_ns: int
    ok_ns: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A watcher was told of a state. `stream` is unique per connection."""

    process: str
    stream: str
    key: str
    status: str
    run_number: int
    revision: int
    mono_ns: int


@dataclass(frozen=True, slots=True)
class Told:
    """A follower of wakes was told of the next one, or its stream is over. `stream` is unique per connection."""

    stream: str
    server: str
    phase: Literal["told", "over"]
    mono_ns: int
    number: int = 0
    wake_at: int | None = None
    """None: nothing waits."""


# ---- what step bodies and handlers did


@dataclass(frozen=True, slots=True)
class Effect:
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
class Handling:
    """A handler of a hook begins or ends, written and fsynced by itself: the truth about executions of hooks."""

    execution: str
    """Unique per execution, the same in start and end."""
    hook_id: str
    phase: Literal["start", "end", "fail"]
    worker: str
    mono_ns: int
    attempt: int
    idempotency_key: str


# ---- what went wrong


@dataclass(frozen=True, slots=True)
class Fault:
    """The nemesis begins or ends a fault. One that has no length is only begun."""

    fault: str
    """As in the matrix: "F01"."""
    target: str
    """NOBODY: nothing is broken; what goes wrong is part of the site or the workload."""
    phase: Literal["begin", "end"]
    mono_ns: int
    wall_us: int
    details: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exit:
    """A process of the run has ended. `ordered`: the nemesis or the end of the run wanted it."""

    process: str
    code: int
    ordered: bool
    mono_ns: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """A process wrote what it never should: a traceback, a task that was never awaited."""

    process: str
    text: str
    mono_ns: int


@dataclass(frozen=True, slots=True)
class Count:
    """Something was counted where it happened: stale frames refused, replies dropped. Counts of one name add up."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A worker stopped a task by itself, because it had not been able to renew its lease."""

    worker: str
    task_id: int
    fence: int
    mono_ns: int
    told: bool = False
    """Not by itself: a server has said that the lease is lost."""


# ---- what the database says


@dataclass(frozen=True, slots=True)
class Change:
    """A row was written and committed, as triggers of the run's own noted it (`trail.py`).

    `seq` is the order of changes to one instance; `tx` is the same for all changes of a transaction.
    """

    seq: int
    at_us: int
    tx: int
    table: Literal["tasks", "workflow_instances", "workflow_steps", "workflow_events"]
    change: Literal["insert", "update", "delete"]
    row: Row
    """Columns of the row as it is after the change; of a delete, as it was."""


@dataclass(frozen=True, slots=True)
class InstanceRow:
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
class StepRow:
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
class EventRow:
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


@dataclass(frozen=True, slots=True)
class HookRow:
    """A hook in the final snapshot, by SQL."""

    hook_id: str
    status: str
    attempts: int
    max_attempts: int | None
    idempotency_key: str
    created_at: int
    process_at: int
    ended_at: int | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task in the final snapshot: the whole row, with the key of its instance. `now_us`: when it was read."""

    key: str
    now_us: int
    row: Row


Fact: TypeAlias = (
    Plan
    | Program
    | Stage
    | Call
    | Scan
    | Seen
    | Told
    | Effect
    | Handling
    | Fault
    | Exit
    | Trouble
    | Count
    | GivenUp
    | Change
    | InstanceRow
    | StepRow
    | EventRow
    | HookRow
    | TaskRow
)
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Fact.__args__}
F = TypeVar("F")


def to_line(fact: Fact) -> str:
    """A fact as one line of JSON, without its end."""
    return json.dumps({"kind": type(fact).__name__} | asdict(fact), separators=(",", ":"))


def from_line(line: str) -> Fact:
    """The fact of a line. A field that a reader does not know is an error: the two would not mean the same."""
    values = json.loads(line)
    kind: type[Fact] = KINDS[values.pop("kind")]
    return kind(**values)


class Recorder:
    """Appends facts to a file, each by one write, so that a kill between two leaves whole lines.

    `durable`: fsync each one; for effects, which must be known whatever happens next.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._durable = durable

    def record(self, *facts: Fact) -> None:
        """Write the facts down."""
        os.write(self._file, "".join(f"{to_line(one)}\n" for one in facts).encode())
        if self._durable:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class History:
    """All facts of a run."""

    facts: tuple[Fact, ...]

    def of(self, kind: type[F]) -> list[F]:
        """The facts of a kind, in the order of their files and lines."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def plan(self) -> Plan:
        """The one plan."""
        (plan,) = self.of(Plan)
        return plan


def load(folder: Path) -> History:
    """All facts of a folder. A last line that was cut short by a kill is left out; any other is an error."""
    return History(tuple(fact for path in sorted(folder.glob("*.jsonl")) for fact in _read(path)))


def _read(path: Path) -> Iterator[Fact]:
    *whole, _cut = path.read_text().split("\n")
    yield from map(from_line, whole)


def now_ns() -> int:
    """The clock that all processes of the machine share."""
    return time.monotonic_ns()


def wall_us() -> int:
    """The wall clock in microseconds."""
    return time.time_ns() // 1000
