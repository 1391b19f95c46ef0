"""A history, arranged for questions: what is known of each instance, and which calls were answered how."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from tests.chaos.facts.calls import Call
from tests.chaos.facts.fact import Row, key_of
from tests.chaos.facts.records import History
from tests.chaos.facts.run import NOBODY, Fault, Plan, Stage
from tests.chaos.facts.tasks import Change, GivenUp, TaskRow
from tests.chaos.facts.workflows import Effect, EventRow, InstanceRow, Program, Scan, Seen, StepRow

ENDED = ("complete", "errored", "terminated")
FINAL = ("completed", "errored")
EXHAUSTED = "StepMaxAttemptsExceeded"
"""The error of a step whose executions were all lost."""

CLOCKS_APART_US = 2000
"""How differently two processes of a machine may read one clock, at most."""
FOREVER = 2**62
ALMOST = 0.75
"""Part of its room from which on a worker counts as full."""

StepKey: TypeAlias = tuple[int, str]
"""Run and name."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call from its beginning to its end. `reply` is None if its client was lost, which is as good as info."""

    invoke: Call
    reply: Call | None

    @property
    def op(self) -> str:
        """What was called."""
        return self.invoke.op

    @property
    def key(self) -> str:
        """Which instance it is about."""
        return self.invoke.key

    @property
    def request_id(self) -> str:
        """What repetitions have in common; a call without one is like no other."""
        return self.invoke.request_id or self.invoke.call

    @property
    def is_ok(self) -> bool:
        """Whether it was acknowledged."""
        return self.reply is not None and self.reply.phase == "ok"

    @property
    def is_refused(self) -> bool:
        """Whether it certainly had no effect."""
        return self.reply is not None and self.reply.phase == "fail"

    @property
    def answer(self) -> Row:
        """What was answered; empty if nothing was."""
        return self.reply.value if self.reply is not None and self.is_ok else {}


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a body. `end` is None if it was killed or cancelled, or failed unasked."""

    start: Effect
    end: Effect | None

    def returned(self, step: Change) -> bool:
        """Whether the result of a step is what it returned."""
        end = self.end
        return end is not None and end.phase == "end" and loads(end.value) == loads(step.row["result"])


@dataclass(slots=True)
class Story:
    """All that is known of one instance. Changes are in the order of their commits."""

    key: str
    program: Program | None = None
    calls: list[Invocation] = field(default_factory=list)
    executions: dict[StepKey, list[Execution]] = field(default_factory=lambda: defaultdict(list))
    tasks: list[Change] = field(default_factory=list)
    versions: list[Change] = field(default_factory=list)
    """Of the instance's row."""
    steps: dict[StepKey, list[Change]] = field(default_factory=lambda: defaultdict(list))
    events: dict[tuple[int, int], list[Change]] = field(default_factory=lambda: defaultdict(list))
    """By run and event id."""
    instance: InstanceRow | None = None
    final_steps: dict[StepKey, StepRow] = field(default_factory=dict)
    final_events: list[EventRow] = field(default_factory=list)
    task: TaskRow | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it had come to an end in the snapshot."""
        return self.instance is not None and self.instance.status in ENDED

    @property
    def has_copies(self) -> bool:
        """Whether a restart may have kept results of an earlier run."""
        return any(call.op == "restart" and call.invoke.value.get("from_step") for call in self.calls)

    def has_ledger(self, step: str) -> bool:
        """Whether the step's body writes down what it does: those of a program do."""
        return self.program is not None and step in self.program.steps

    def of_step(self, step: str) -> list[Execution]:
        """The executions of a step in all runs."""
        return [one for (_, name), executions in self.executions.items() if name == step for one in executions]

    def called(self, *ops: str) -> bool:
        """Whether anybody tried one of these on it."""
        return any(call.op in ops for call in self.calls)

    def acked(self, op: str) -> dict[str, list[Invocation]]:
        """Every request that was acknowledged, with all its calls."""
        requests: dict[str, list[Invocation]] = defaultdict(list)
        for call in self.calls:
            if call.op == op:
                requests[call.request_id].append(call)
        return {request_id: calls for request_id, calls in requests.items() if any(call.is_ok for call in calls)}

    def was_paused(self, begin_us: int, end_us: int) -> bool:
        """Whether it was paused, or was to pause, at any time between the two."""
        return any(begin <= end_us and begin_us <= end for begin, end in self._pauses())

    def paused_until(self, begin_us: int, end_us: int) -> int:
        """The last moment between the two at which it was paused, or was to pause; the first if it never was."""
        ends = [min(end, end_us) for begin, end in self._pauses() if begin <= end_us and begin_us <= end]
        return max([begin_us, *ends])

    def _pauses(self) -> Iterator[tuple[int, int]]:
        for before, after in pairwise([*self.tasks, None]):
            assert before is not None
            if is_stopped(before.row):
                yield before.at_us, FOREVER if after is None else after.at_us

    def task_with(self, step: Change) -> Change | None:
        """The version of the task that was written with a version of a step: the first of its revision or later.

        A result that ends the run is newer than the task, which is deleted as it was before.
        """
        of_run = [task for task in self.tasks if task.row["run_number"] == step.row["run_number"]]
        since = (task for task in of_run if task.row["revision"] >= step.row["revision"])
        return next(since, of_run[-1] if of_run else None)

    def claims(self) -> dict[int, Change]:
        """By fence: the change that began its lease."""
        found: dict[int, Change] = {}
        for task in self.tasks:
            if task.row["status"] == "processing" and task.change != "delete":
                found.setdefault(task.row["fence"], task)
        return found


class View:
    """The whole history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.plan: Plan = history.plan
        self.calls = _invocations(history.of(Call))
        self.executions = _executions(history.of(Effect))
        self.changes = sorted(history.of(Change), key=lambda change: change.seq)
        self.faults = sorted(history.of(Fault), key=lambda fault: fault.mono_ns)
        self.stages = {stage.name: stage for stage in history.of(Stage)}
        self.scans = history.of(Scan)
        self.seen = sorted(history.of(Seen), key=lambda seen: seen.mono_ns)
        self.has_snapshot = any(row.source == "sql" for row in history.of(InstanceRow))
        self.keys: dict[int, str] = {}
        """Of instances, by the number of their rows."""
        self.stories: dict[str, Story] = {}
        self._tell()

    @cached_property
    def broken(self) -> list[tuple[int, int]]:
        """When something was broken, or not yet healed, by the wall clock."""
        real = [fault for fault in self.faults if fault.target != NOBODY]
        return [(begin.wall_us, end + self._heal_us) for begin, end in windows(real)]

    def whole_since(self, begin_us: int, end_us: int) -> int:
        """Since when nothing was broken any more, of the time between the two: the first if nothing ever was.

        In a run that excuses nothing all must go on while something is broken, after as long as that takes to heal.
        """
        ends = [end for begin, end in self.broken if begin <= end_us and begin_us <= end]
        if not self.plan.excuse:
            return begin_us + (self._heal_us if ends else 0)
        return min(end_us, max([begin_us, *ends]))

    @property
    def _heal_us(self) -> int:
        return self.plan.heal_us or 2 * self.plan.lease_us

    @cached_property
    def claims(self) -> list[Change]:
        """Every beginning of a lease."""
        begun = [claim for story in self.stories.values() for claim in story.claims().values()]
        return sorted(begun, key=lambda claim: claim.seq)

    def is_full(self, at_us: int) -> bool:
        """Whether those who held anything at that time had hardly room for more."""
        holders: dict[int, str] = {}
        for change in self.changes:
            if change.at_us > at_us:
                break
            if change.table == "tasks":
                holders.pop(change.row["id"], None)
                if change.change != "delete" and change.row["status"] == "processing":
                    holders[change.row["id"]] = change.row["session_id"]
        sessions = set(holders.values())
        return len(holders) >= ALMOST * self.plan.slots * len(sessions) > 0

    @cached_property
    def holdings(self) -> list[tuple[str, int, int]]:
        """Sessions with what they held: from which change to which. A lease counts as held for as long as it is kept.

        What is given out and never arrives is kept by nobody, and neither is what a holder has given up or lost.
        """
        held: dict[tuple[int, int], tuple[str, int, int]] = {}
        until: dict[tuple[int, int], int] = {}
        for change in self.changes:
            row = change.row
            if change.table == "tasks" and change.change != "delete" and row["status"] == "processing":
                lease = (row["id"], row["fence"])
                if change.at_us > self.let_go.get(lease, FOREVER):
                    continue
                session, begin, end = held.get(lease, (row["session_id"], change.seq, change.seq))
                kept = (row["locked_until"] or 0) > until.get(lease, 0)
                held[lease] = (session, begin, change.seq if kept else end)
                until[lease] = row["locked_until"] or 0
        return list(held.values())

    @cached_property
    def given_up(self) -> dict[tuple[int, int], int]:
        """By task and fence: when its worker gave a lease up by itself."""
        given_up = (one for one in self.history.of(GivenUp) if not one.told)
        return {(one.task_id, one.fence): self.wall_us(one.mono_ns) for one in given_up}

    @cached_property
    def let_go(self) -> dict[tuple[int, int], int]:
        """By task and fence: when its worker stopped to hold a lease, by itself or as it was told."""
        return {(one.task_id, one.fence): self.wall_us(one.mono_ns) for one in self.history.of(GivenUp)}

    @cached_property
    def last_lease(self) -> dict[tuple[str | None, int | None], int]:
        """By session and connection: when it last got a lease or renewed one. Who says goodbye does so no more."""
        last: dict[tuple[str | None, int | None], int] = {}
        until: dict[tuple[int, int], int] = {}
        for change in self.changes:
            row = change.row
            if change.table == "tasks" and change.change != "delete" and row["status"] == "processing":
                lease, end = (row["id"], row["fence"]), row["locked_until"] or 0
                if end > until.get(lease, 0):
                    last[row["session_id"], row["connection"]] = change.at_us
                until[lease] = end
        return last

    def wall_us(self, mono_ns: int) -> int:
        """A moment by the clock of the machine, which the database's is, too."""
        began = self.stages["warm"]
        return began.wall_us + (mono_ns - began.mono_ns) // 1000

    @cached_property
    def clock_slack_us(self) -> int:
        """How differently two processes may read one moment, by the machine's two clocks, which part if one is set."""
        parted = [stage.wall_us - self.wall_us(stage.mono_ns) for stage in self.stages.values()]
        return CLOCKS_APART_US + max(map(abs, parted), default=0)

    def story(self, key: str) -> Story:
        """What is known of an instance, from now on."""
        return self.stories.setdefault(key, Story(key))

    def _tell(self) -> None:
        for program in self.history.of(Program):
            self.story(program.key).program = program
        for call in self.calls:
            if call.key:
                self.story(call.key).calls.append(call)
        for execution in self.executions:
            start = execution.start
            self.story(start.key).executions[start.run, start.step].append(execution)
        self._tell_changes()
        self._tell_snapshot()

    def _tell_changes(self) -> None:
        for change in self.changes:
            if change.table == "workflow_instances":
                row = change.row
                self.keys[row["id"]] = key_of(row["namespace"], row["workflow"], row["instance_id"])
        for change in self.changes:
            row = change.row
            key = self.keys.get(row["id"] if "id" in row else row["task_id"])
            if key is None:
                continue
            story = self.story(key)
            match change.table:
                case "tasks":
                    story.tasks.append(change)
                case "workflow_instances":
                    story.versions.append(change)
                case "workflow_steps":
                    story.steps[row["run_number"], row["name"]].append(change)
                case "workflow_events":
                    story.events[row["run_number"], row["position"]].append(change)

    def _tell_snapshot(self) -> None:
        for instance in self.history.of(InstanceRow):
            if instance.source == "sql":
                self.story(instance.key).instance = instance
        for step in self.history.of(StepRow):
            if step.source == "sql":
                self.story(step.key).final_steps[step.run, step.name] = step
        for event in self.history.of(EventRow):
            if event.source == "sql":
                self.story(event.key).final_events.append(event)
        for task in self.history.of(TaskRow):
            self.story(task.key).task = task


def windows(faults: Iterable[Fault]) -> list[tuple[Fault, int]]:
    """Each fault with the wall time of its end; one that is never ended ends where it begins."""
    pairs: list[tuple[Fault, int]] = []
    open_: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        before = open_.pop((fault.fault, fault.target), None)
        if fault.phase == "begin":
            open_[fault.fault, fault.target] = fault
        if before is not None:
            pairs.append((before, fault.wall_us if fault.phase == "end" else before.wall_us))
    return pairs + [(fault, fault.wall_us) for fault in open_.values()]


def is_stopped(task: Row) -> bool:
    """Whether the instance of a task is paused, or is to pause."""
    return bool(task["status"] == "parked" or task["stop"] != "none")


def loads(text: str | None) -> Any:
    """What a payload says; None if there is none."""
    return None if text is None else json.loads(text)


def _invocations(calls: list[Call]) -> list[Invocation]:
    replies = {call.call: call for call in calls if call.phase != "invoke"}
    invokes = sorted((call for call in calls if call.phase == "invoke"), key=lambda call: call.mono_ns)
    return [Invocation(invoke, replies.get(invoke.call)) for invoke in invokes]


def _executions(effects: list[Effect]) -> list[Execution]:
    ends = {effect.execution: effect for effect in effects if effect.phase != "start"}
    starts = sorted((effect for effect in effects if effect.phase == "start"), key=lambda effect: effect.mono_ns)
    return [Execution(start, ends.get(start.execution)) for start in starts]
