"""A toy engine that keeps every promise and writes down what the real one would: legal histories to test the checker.

It executes one instance after the other, each with something that can happen to it, on a clock of its own.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tests.chaos.checker.view import EXHAUSTED
from tests.chaos.records import (
    NOBODY,
    Call,
    Change,
    Count,
    Effect,
    EventRow,
    Exit,
    Fact,
    Fault,
    GivenUp,
    History,
    InstanceRow,
    Plan,
    Program,
    Row,
    Scan,
    Seen,
    Stage,
    StepRow,
    TaskRow,
)
from tests.chaos.selftest.hook_simulation import run_hooks

SECOND = 1_000_000
LEASE = 3 * SECOND
LIMIT = 3
"""Most executions of a step."""
TWISTS = ("plain", "paused", "restarted", "terminated", "late event", "early event", "open")
"""What happens to an instance."""
LOSSES = {"killed": 1, "frozen": 1, "unbegun": 1, "interrupted": 1, "pausing": 1, "given up": 0, "exhausted": LIMIT}
"""What happens to its first body, with the leases that are lost by that and were not given up."""


@dataclass(slots=True)
class Instance:
    """An instance of the toy, as its rows are."""

    key: str
    task: Row
    row: Row
    steps: dict[tuple[int, str], Row] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)
    has_task: bool = True


class Toy:
    """The engine, its workers and its client, all in one thread."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.facts: list[Fact] = []
        self.now = 1_700_000_000 * SECOND
        self.numbers = 0
        self.fence = 0
        self.instances: list[Instance] = []

    # ---- the world

    def number(self) -> int:
        """The next of all numbers."""
        self.numbers += 1
        return self.numbers

    def mono(self) -> int:
        """The clock that processes share. It moves whenever it is read."""
        self.now += self.rng.randint(1, 2000)
        return self.now * 1000

    def write(self, *facts: Fact) -> None:
        """Write facts down."""
        self.facts += facts

    def change(self, table: Any, row: Row, kind: Any = "update") -> None:
        """Write a version of a row down."""
        self.mono()
        self.write(Change(self.number(), self.now, self.numbers, table, kind, dict(row)))

    def call(self, op: str, key: str, asked: Row, request_id: str = "", **answer: Any) -> str:
        """A call that is answered at once. Returns its request id."""
        call = self.ask(op, key, asked, request_id)
        self.answer(call, **answer)
        return call.request_id

    def ask(self, op: str, key: str, asked: Row, request_id: str = "") -> Call:
        """A call begins."""
        about = {"call": f"call-{self.number()}", "op": op, "key": key, "process": "client", "server": "a"}
        about["request_id"] = request_id or f"request-{self.number()}"
        call = Call(**about, phase="invoke", mono_ns=self.mono(), value=asked)  # type: ignore[arg-type]
        self.write(call)
        return call

    def answer(self, call: Call, **answer: Any) -> None:
        """It is over: acknowledged, unless the answer says otherwise."""
        self.write(replace(call, mono_ns=self.mono(), **{"phase": "ok", "value": {}} | answer))

    def fault(self, name: str, phase: Any = "begin", target: str = "worker-1") -> None:
        """Something breaks, or is whole again."""
        self.write(Fault(name, target, phase, self.mono(), self.now))

    # ---- an instance

    def create(self, name: str, workflow: str = "order", called: bool = True) -> Instance:
        """Store a new instance; its creator is not answered and asks twice more, and a rival is refused."""
        key, number, params = f"default/{workflow}/{name}", self.number(), {"name": name}
        row = {"id": number, "namespace": "default", "workflow": workflow, "instance_id": name, "run_number": 0}
        row |= {"status": "queued", "output": None, "error_name": None, "created_at": self.now, "updated_at": self.now}
        row |= {"started_at": None, "ended_at": None, "revision": 0, "labels": "{}"}
        row |= {"ended_fence": None, "params": json.dumps(params)}
        task = {"id": number, "run_number": 0, "status": "pending", "fence": 0, "revision": 1, "reason": "run"}
        task |= {"stop": "none", "session_id": None, "connection": None, "locked_until": None, "acked": False}
        task |= {"run_at": self.now, "open_steps": "", "frame_number": 0, "interruptions": 0, "priority": 1}
        task |= {"namespace": "default"}
        instance = Instance(key, task, row)
        self.instances.append(instance)
        self.change("workflow_instances", row, "insert")
        self.change("tasks", task, "insert")
        if called:
            answer = {"value": self.told(instance), "revision": 1}
            request_id = self.call("create", key, params, phase="info", code="UNAVAILABLE")
            self.call("create", key, params, request_id, **answer)
            self.call("create", key, params, request_id, **answer)
            self.call("create", key, params, phase="fail", code="ALREADY_EXISTS", reason="INSTANCE_ID_ALREADY_EXISTS")
        return instance

    def told(self, one: Instance) -> Row:
        """What a caller is told of an instance."""
        return {name: one.row[name] for name in ("status", "run_number", "created_at")}

    def move(self, one: Instance, now: str, **task: Any) -> None:
        """Write a new version of an instance and its task."""
        one.task |= {"revision": one.task["revision"] + 1} | task
        one.row |= {"status": now, "updated_at": self.now}
        self.change("tasks", one.task)
        self.change("workflow_instances", one.row)
        revision = one.task["revision"]
        self.write(Seen("client", "1", one.key, now, one.row["run_number"], revision, self.mono()))
        self.call("get", one.key, {}, value=self.told(one), revision=revision)

    def claim(self, one: Instance, session: str = "worker-1") -> None:
        """Lease it under a new fence."""
        self.fence += 1
        lease = {"session_id": session, "connection": 1, "locked_until": self.now + LEASE, "acked": False}
        self.move(one, "running", status="processing", fence=self.fence, **lease)

    def lapse(self, one: Instance, interruptions: int = 0) -> None:
        """The lease is over, and another takes it; if it was to pause, when somebody has resumed it."""
        self.now = max(self.now, one.task["locked_until"] + 1)
        free = {"session_id": None, "locked_until": None, "interruptions": interruptions}
        if one.task["stop"] == "pause":
            self.move(one, "paused", status="parked", stop="none", reason="takeover", **free)
            self.resume(one)
        else:
            self.move(one, "queued", status="pending", reason="takeover", **free)
        self.claim(one, "worker-2")

    def pause(self, one: Instance, now: str, **task: Any) -> None:
        """Somebody asks twice for a pause, and gets it."""
        asked = self.ask("pause", one.key, {})
        self.move(one, now, **task)
        paused = {"value": self.told(one), "revision": one.task["revision"]}
        self.answer(asked, **paused)
        self.call("pause", one.key, {}, asked.request_id, **paused)

    def resume(self, one: Instance) -> None:
        """Somebody ends the pause."""
        asked = self.ask("resume", one.key, {})
        self.move(one, "queued", status="pending", reason="resume", run_at=self.now)
        self.answer(asked, value=self.told(one), revision=one.task["revision"])

    def suspend(self, one: Instance, due: int) -> None:
        """Give it up until then."""
        free = {"session_id": None, "locked_until": None}
        self.move(one, "waiting", status="pending", reason="wake", run_at=due, **free)

    def step(self, one: Instance, name: str, type_: str, **columns: Any) -> Row:
        """Write a new version of a step."""
        place = one.row["run_number"], name
        is_new = place not in one.steps
        if is_new:
            row = {"task_id": one.row["id"], "run_number": place[0], "name": name, "type": type_, "attempts": 0}
            row |= {"result": None, "error_name": None, "wake_at": None, "next_retry_at": None, "event_type": ""}
            one.steps[place] = row | {"created_at": self.now, "max_attempts": LIMIT, "timeout": None}
        one.task |= {"revision": one.task["revision"] + 1, "open_steps": "", "interruptions": 0}
        one.steps[place] |= {"updated_at": self.now, "revision": one.task["revision"]} | columns
        self.change("workflow_steps", one.steps[place], "insert" if is_new else "update")
        self.change("tasks", one.task)
        return one.steps[place]

    # ---- what runs do

    def open(self, one: Instance, name: str) -> int:
        """Note that a body is about to begin. Returns the number of its execution."""
        attempt = one.steps.get((one.row["run_number"], name), {"attempts": 0})["attempts"] + 1
        attempt += one.task["interruptions"]
        one.task |= {"acked": True, "open_steps": json.dumps([[name, attempt]])}
        self.change("tasks", one.task)
        return int(attempt)

    def begin(self, one: Instance, name: str) -> Effect:
        """A body begins."""
        attempt, worker = self.open(one, name), one.task["session_id"]
        about = (f"execution-{self.number()}", one.key, one.row["run_number"], name, "start", worker, self.mono())
        start = Effect(*about, attempt=attempt, fence=one.task["fence"])  # type: ignore[arg-type]
        self.write(start)
        return start

    def end(self, start: Effect, phase: Any = "end") -> str:
        """A body ends. Returns its result."""
        value = json.dumps({"execution": start.execution})
        self.write(replace(start, phase=phase, mono_ns=self.mono(), value=value if phase == "end" else None))
        return value

    def do(self, one: Instance, name: str, twist: str = "") -> None:
        """A step with a body: its worker is lost before it or in it, if the twist says so."""
        match twist:
            case "killed" | "frozen":
                start = self.begin(one, name)
                self.lose(one, name, "F01" if twist == "killed" else "F02")
            case "pausing":
                self.begin(one, name)
                self.pause(one, "waiting_for_pause", stop="pause")
                self.lose(one, name, "F01")
            case "given up":
                self.begin(one, name)
                self.write(GivenUp("worker-1", one.task["id"], one.task["fence"], self.mono()))
                self.lose(one, name, "F22")
            case "unbegun":
                self.lose(one, name, "F01", self.open(one, name))
            case "interrupted":
                one.task["acked"] = True
                self.change("tasks", one.task)
                self.fault("F01")
                self.lapse(one, interruptions=1)
        last = self.begin(one, name)
        if twist == "frozen":
            self.fault("F02", "end")
            self.end(start)
        self.step(one, name, "do", status="completed", attempts=last.attempt, result=self.end(last))

    def lose(self, one: Instance, name: str, fault: str, attempt: int = 1, **columns: Any) -> None:
        """The holder is lost, and whoever takes over counts the execution that was open."""
        self.fault(fault)
        self.lapse(one)
        self.step(one, name, "do", attempts=attempt, **{"status": "pending"} | columns)

    def exhaust(self, one: Instance, name: str) -> None:
        """A step that no worker survives."""
        for attempt in range(1, LIMIT):
            self.begin(one, name)
            self.lose(one, name, "F01", attempt)
        self.begin(one, name)
        self.lose(one, name, "F01", LIMIT, status="errored", error_name=EXHAUSTED)

    def fail(self, one: Instance, name: str) -> None:
        """A step that fails once and is tried again."""
        self.end(self.begin(one, name), "fail")
        due = self.now + SECOND // 10
        self.step(one, name, "do", status="waiting", attempts=1, next_retry_at=due, error_name="Oops")
        self.suspend(one, due)
        self.now = due
        self.claim(one)
        self.step(one, name, "do", status="pending", next_retry_at=None)
        done = {"result": self.end(self.begin(one, name)), "error_name": None}
        self.step(one, name, "do", status="completed", attempts=2, **done)

    def sleep(self, one: Instance, name: str, twist: str = "") -> None:
        """A sleep, in which somebody pauses and resumes the instance, if the twist says so."""
        due = self.now + SECOND
        self.step(one, name, "sleep", status="waiting", wake_at=due)
        self.suspend(one, due)
        if twist == "paused":
            self.pause(one, "paused", status="parked")
            self.now = due + 5 * LEASE
            self.resume(one)
        self.now = max(self.now, due)
        self.claim(one)
        self.step(one, name, "sleep", status="completed")

    def send(self, one: Instance) -> Row:
        """Send an event."""
        one.task["revision"] += 1
        event = {"task_id": one.row["id"], "run_number": one.row["run_number"], "position": one.task["revision"]}
        payload = json.dumps({"number": self.number()})
        event |= {
            "type": "go",
            "payload": payload,
            "created_at": self.now,
            "delivered_at": None,
            "consumed_by_step": "",
        }
        one.events.append(event)
        self.change("workflow_events", event, "insert")
        self.change("tasks", one.task)
        told = {"event_id": event["position"], "created_at": event["created_at"]}
        self.call("event", one.key, {"type": "go", "payload": payload}, value=told)
        return event

    def wait(self, one: Instance, name: str, twist: str = "") -> None:
        """A wait for an event that comes before it, during it, or too late."""
        due = self.now + 2 * SECOND
        event = self.send(one) if twist == "early event" else None
        self.step(one, name, "wait_for_event", status="waiting", wake_at=due, event_type="go")
        self.suspend(one, due)
        if twist == "late event":
            self.now = due + 1
            self.send(one)
        elif event is None:
            event = self.send(one)
        self.claim(one)
        if event is None:
            self.step(one, name, "wait_for_event", status="errored", error_name="WaitForEventTimeoutError")
        else:
            event |= {"delivered_at": self.now, "consumed_by_step": name}
            self.step(one, name, "wait_for_event", status="completed", result=event["payload"])
            self.change("workflow_events", event)

    def finish(self, one: Instance, status: str, **columns: Any) -> None:
        """The run ends; its worker or somebody else wants it so."""
        self.mono()
        one.row |= {"status": status, "ended_at": self.now, "updated_at": self.now} | columns
        one.row["revision"] = one.task["revision"] + 1
        one.row["ended_fence"] = None if status == "terminated" else one.task["fence"]
        self.change("workflow_instances", one.row)
        self.change("tasks", one.task, "delete")
        one.has_task = False
        seen = Seen("client", "1", one.key, status, one.row["run_number"], one.row["revision"], self.mono())
        self.write(seen, Count("watches", 1))
        refused = {"phase": "fail", "code": "FAILED_PRECONDITION", "reason": "INSTANCE_TERMINAL"}
        self.call("event", one.key, {"type": "go", "payload": json.dumps({"number": self.number()})}, **refused)

    def restart(self, one: Instance) -> None:
        """Begin the next run."""
        self.fence += 1
        revision = one.task["revision"] + 1
        one.row |= {"run_number": one.row["run_number"] + 1, "status": "queued", "updated_at": self.now}
        one.task |= {"run_number": one.row["run_number"], "status": "pending", "fence": self.fence, "reason": "run"}
        one.task |= {"session_id": None, "locked_until": None, "revision": revision, "open_steps": ""}
        self.change("tasks", one.task)
        self.change("workflow_instances", one.row)
        self.call("restart", one.key, {}, value=self.told(one), revision=revision)

    # ---- whole runs

    def run(self, twist: str) -> None:
        """One instance from its creation to its end."""
        one = self.create(f"{twist.replace(' ', '-')}-{self.number()}")
        child = f"default/parcel/{one.row['instance_id']}-parcel"
        steps = {"first": LIMIT, "flaky": LIMIT, "nap": None, "approval": None, "spawn": LIMIT}
        output = ["first", "flaky", "spawn"]
        ends = {"terminated": ["terminated"], "open": [], "exhausted": ["errored"]}.get(twist, ["complete"])
        self.write(Program(one.key, ends, dict(steps), output, {"spawn": child}))
        self.claim(one)
        if twist == "exhausted":
            self.exhaust(one, "first")
            self.finish(one, "errored", error_name=EXHAUSTED)
            return
        self.do(one, "first", twist)
        if twist == "restarted":
            self.restart(one)
            self.claim(one)
            self.do(one, "first")
        self.fail(one, "flaky")
        self.sleep(one, "nap", twist)
        if twist == "terminated":
            self.finish(one, "terminated")
            self.call("terminate", one.key, {}, value=self.told(one), revision=one.row["revision"])
            return
        self.wait(one, "approval", twist)
        if twist == "open":
            self.step(one, "rest", "sleep", status="waiting", wake_at=self.now + 10**9 * SECOND)
            self.suspend(one, self.now + 10**9 * SECOND)
            return
        self.parcel(child)
        self.do(one, "spawn")
        results = {name: json.loads(one.steps[one.row["run_number"], name]["result"]) for name in output}
        self.finish(one, "complete", output=json.dumps(results))

    def parcel(self, key: str) -> None:
        """The child of an instance."""
        one = self.create(key.rpartition("/")[2], "parcel", called=False)
        self.write(Program(key, ["complete"], {"pack": LIMIT}, ["pack"]))
        self.claim(one)
        self.do(one, "pack")
        result = json.loads(one.steps[0, "pack"]["result"])
        self.finish(one, "complete", output=json.dumps({"pack": result}))

    def scan(self) -> None:
        """Page through all orders."""
        keys = [one.key for one in self.instances if one.row["workflow"] == "order"]
        self.write(Scan("client", "default", "order", keys, self.mono(), self.mono()))

    def snapshot(self) -> None:
        """What is there in the end, as both sides see it."""
        for source in ("api", "sql"):
            for one in self.instances:
                self.write(_instance_row(source, one), *_step_rows(source, one), *_event_rows(source, one))
        self.write(*(TaskRow(one.key, self.now, dict(one.task)) for one in self.instances if one.has_task))


def _instance_row(source: Any, one: Instance) -> InstanceRow:
    same = ("run_number", "status", "params", "output", "error_name", "created_at", "updated_at")
    return InstanceRow(
        source=source,
        key=one.key,
        error_message=None,
        labels={},
        started_at=None,
        ended_at=one.row["ended_at"],
        wake_at=one.task["run_at"] if one.row["status"] == "waiting" else None,
        revision=one.task["revision"] if one.has_task else one.row["revision"],
        **{name: one.row[name] for name in same},
    )


def _step_rows(source: Any, one: Instance) -> list[StepRow]:
    same = ("name", "type", "status", "attempts", "max_attempts", "timeout", "next_retry_at", "wake_at", "event_type")
    also = ("result", "error_name", "created_at", "updated_at")
    return [
        StepRow(source, one.key, run, error_message=None, **{column: row[column] for column in same + also})
        for (run, _), row in one.steps.items()
    ]


def _event_rows(source: Any, one: Instance) -> list[EventRow]:
    same = ("type", "payload", "created_at", "delivered_at")
    return [
        EventRow(
            source,
            one.key,
            row["run_number"],
            row["position"],
            consumed_by_step=row["consumed_by_step"] or None,
            **{column: row[column] for column in same},
        )
        for row in one.events
    ]


def _plan(seed: int, twists: list[str], *, excuse: bool) -> Plan:
    """What happens at least, and the leases that are lost at most."""
    operations, faults = {"create": 18, "event": 10}, {"F01": 1, "F02": 1, "F75": 1}
    overlaps = {"zombie-reports": 1, "exhausted": 1, "repeats": 1, "watches": 1}
    most = {"takeovers_at_most": sum(LOSSES.get(twist, 0) for twist in twists), "may_give_up": True}
    return Plan(seed, LEASE, "sqlite", operations, faults, overlaps, slots=4, excuse=excuse, **most)


@cache
def history(seed: int) -> History:
    """A legal history: everything that can happen to an instance, in some order, some of it more than once."""
    toy = Toy(seed)
    twists = [*TWISTS, *LOSSES, *toy.rng.choices((*TWISTS, *LOSSES), k=toy.rng.randint(0, 3))]
    toy.rng.shuffle(twists)
    toy.write(_plan(seed, twists, excuse=toy.rng.random() < 0.5))
    toy.write(Stage("warm", toy.mono(), toy.now))
    toy.fault("F75", target=NOBODY)
    run_hooks(toy)
    for twist in twists:
        toy.run(twist)
        toy.scan()
    toy.fault("F75", "end", NOBODY)
    toy.write(Stage("heal", toy.mono(), toy.now), Stage("quiet", toy.mono(), toy.now))
    for one in toy.instances:
        if one.row["workflow"] == "order" and not one.has_task:
            toy.call("get", one.key, {}, value=toy.told(one), revision=one.row["revision"])
    toy.snapshot()
    toy.write(Exit("worker-1", -9, True, toy.mono()))
    return History(tuple(toy.facts))
