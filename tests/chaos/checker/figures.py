"""What a run amounts to in numbers: how much happened, how often bodies ran, how long it took to recover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.chaos.checker.invariants import hooks
from tests.chaos.checker.invariants.timers import firings
from tests.chaos.checker.view import EXHAUSTED, Execution, Story, View
from tests.chaos.facts.hooks import HookRow
from tests.chaos.facts.run import Fault

NEAR_US = 20_000
"""An event this close to a deadline is a race."""


def of_workflows(view: View) -> dict[str, Any]:
    """How many runs and calls there were, and how they fared."""
    phases = Counter(call.reply.phase if call.reply is not None else "info" for call in view.calls)
    codes = Counter(call.reply.code for call in view.calls if call.reply is not None and call.reply.code)
    ended = sum(story.has_ended for story in view.stories.values())
    return {
        "seed": view.plan.seed,
        "instances": f"{ended} ended of {sum(story.instance is not None for story in view.stories.values())}",
        "calls": {phase: phases[phase] for phase in ("ok", "fail", "info")},
        "codes": dict(codes.most_common()),
        "faults": dict(sorted(Counter(fault.fault for fault in view.faults if fault.phase == "begin").items())),
        "takeovers": takeovers(view),
        "zombie reports": zombie_reports(view),
        "exhausted steps": exhausted(view),
        "repeated requests": repeats(view),
        "events near a deadline": near_deadline(view),
        "executions per step": executions_per_step(view),
        "recovery in leases": recovery(view),
        "lateness of timers in ms": lateness(view),
        "longest time without progress in leases": longest_standstill(view),
    }


def of_hooks(view: View) -> dict[str, Any]:
    """What there is to say of hooks, if there were any."""
    rows = view.history.of(HookRow)
    if not rows:
        return {}
    late = quantiles([one / 1000 for one in hooks.lateness_us(view)])
    return {
        "hooks": dict(Counter(row.status for row in rows)),
        "executions per hook": hooks.executions_per_hook(view),
        "lateness of hooks in ms": late,
    }


def zombie_reports(view: View) -> int:
    """Bodies that ended when another lease of their instance had begun: what they reported was late."""
    return sum(is_late(view, one) for one in view.executions)


def is_late(view: View, execution: Execution) -> bool:
    """Whether a body ended when another lease of its instance had begun."""
    start, end = execution.start, execution.end
    if end is None or start.fence is None:
        return False
    others = (one.start for executions in view.stories[start.key].executions.values() for one in executions)
    return any((one.fence or 0) > start.fence and one.mono_ns < end.mono_ns for one in others)


def taken_over(view: View) -> list[tuple[int, int]]:
    """Task and fence of the leases that ended because their holder was lost."""
    return [
        (before.row["id"], before.row["fence"])
        for story in view.stories.values()
        for before, after in pairwise(story.tasks)
        if before.row["status"] == "processing"
        and after.row["status"] != "processing"
        and after.row["reason"] == "takeover"
    ]


def takeovers(view: View) -> int:
    """How many there were."""
    return len(taken_over(view))


def exhausted(view: View) -> int:
    """Steps that ended because their holders were lost as often as they may be executed."""
    return sum(step.error_name == EXHAUSTED for story in view.stories.values() for step in story.final_steps.values())


def near_deadline(view: View) -> int:
    """Events that were stored within milliseconds of the deadline of a wait for them."""
    return sum(
        event.run == run and event.type == step.event_type and abs(event.created_at - (step.wake_at or 0)) <= NEAR_US
        for story in view.stories.values()
        for (run, _), step in story.final_steps.items()
        if step.type == "wait_for_event"
        for event in story.final_events
    )


def repeats(view: View) -> int:
    """Requests that were made again because their first answer was lost."""
    asked = Counter(call.invoke.request_id for call in view.calls if call.invoke.request_id)
    lost = {call.invoke.request_id for call in view.calls if not call.is_ok and not call.is_refused}
    return sum(times > 1 and request_id in lost for request_id, times in asked.items())


def executions_per_step(view: View) -> dict[str, int]:
    """How many steps had how many executions that did not fail on purpose."""
    counted: Counter[int] = Counter()
    for story in view.stories.values():
        counted.update(completing(executions) for executions in story.executions.values())
    return {str(times): counted[times] for times in sorted(counted)}


def completing(executions: Sequence[Execution]) -> int:
    """How many of these did not fail on purpose."""
    return sum(one.end is None or one.end.phase == "end" for one in executions)


def recovery(view: View) -> dict[str, float]:
    """From the death of a holder to the next sign of life of what it held: p50, p99 and most, in leases."""
    times = sorted(one / view.plan.lease_us for story in view.stories.values() for one in _recoveries(view, story))
    return quantiles(times)


def _recoveries(view: View, story: Story) -> list[int]:
    """Microseconds from the fault that cut an execution short to the next execution of the instance."""
    every = sorted(
        (one for executions in story.executions.values() for one in executions), key=lambda one: one.start.mono_ns
    )
    found = []
    for cut in every:
        if cut.end is not None:
            continue
        fault = _fault_after(view.faults, cut.start.mono_ns)
        later = [one.start.mono_ns for one in every if fault is not None and one.start.mono_ns > fault.mono_ns]
        if fault is not None and later:
            found.append((later[0] - fault.mono_ns) // 1000)
    return found


def _fault_after(faults: list[Fault], mono_ns: int) -> Fault | None:
    return next((fault for fault in faults if fault.phase == "begin" and fault.mono_ns >= mono_ns), None)


def lateness(view: View) -> dict[str, float]:
    """How late timers fired, in milliseconds, faults or not."""
    late = [firing.lateness_us / 1000 for story in view.stories.values() for firing in firings(story) if firing.by_time]
    return quantiles(sorted(late))


def longest_standstill(view: View) -> float:
    """The longest time in which no body began or ended, while some run was not at its end."""
    moments = sorted(effect.mono_ns for one in view.executions for effect in (one.start, one.end) if effect is not None)
    return round(max((after - before for before, after in pairwise(moments)), default=0) / 1000 / view.plan.lease_us, 2)


def quantiles(ordered: list[float]) -> dict[str, float]:
    """The middle, the ninety-ninth of a hundred, and the largest."""
    if not ordered:
        return {}
    return {
        "n": len(ordered),
        "p50": round(ordered[len(ordered) // 2], 2),
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 2),
        "max": round(ordered[-1], 2),
    }
