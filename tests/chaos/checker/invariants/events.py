"""E1 to E5: events and the steps that wait for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.checker.invariants.timers import is_late
from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import ENDED, Invocation, Story, View
from tests.chaos.facts.workflows import EventRow, StepRow

_TIMED_OUT = "WaitForEventTimeoutError"


def check(view: View) -> Iterator[Violation]:
    """All of them."""
    for story in view.stories.values():
        yield from _acked_events_exist(story)
        yield from _events_exist_once(story)
        yield from _consumed_once(story)
        yield from _waits_take_the_oldest(story)
        yield from _deadlines_decide(view, story)
        yield from _events_wake(view, story)
        yield from _refused_after_the_end(story)


def _acked_events_exist(story: Story) -> Iterator[Violation]:
    """E1: an acknowledged event is there as it was sent, and one that was refused is not."""
    stored = {event.event_id: event for event in story.final_events}
    payloads = {event.payload for event in story.final_events}
    by_request: dict[str, list[Invocation]] = defaultdict(list)
    for call in story.calls:
        if call.op == "event":
            by_request[call.request_id].append(call)
    for calls in by_request.values():
        type_, payload = (calls[0].invoke.value.get(name) for name in ("type", "payload"))
        for call in calls:
            event_id = call.answer.get("event_id")
            event, told = f"event {event_id} ({payload})", (type_, payload, call.answer.get("created_at"))
            found = stored.get(event_id)
            if call.is_ok and found is None:
                yield Violation("E1", story.key, f"{event} was acknowledged, and is not there", "lost")
            elif call.is_ok and found is not None and told != (found.type, found.payload, found.created_at):
                yield Violation("E1", story.key, f"{event} was acknowledged, and is another: {found}", "lost")
        if all(call.is_refused for call in calls) and payload is not None and payload in payloads:
            yield Violation("E5", story.key, f"the event {payload} was refused, and is there")


def _events_exist_once(story: Story) -> Iterator[Violation]:
    """E1: an event that was sent once, however often it was repeated, is there once; one that nobody sent is not."""
    sent: dict[str | None, set[str]] = defaultdict(set)
    for call in story.calls:
        if call.op == "event" and "payload" in call.invoke.value:
            sent[call.invoke.value["payload"]].add(call.request_id)
    found = Counter(event.payload for event in story.final_events)
    for payload, times in found.items():
        if times > len(sent[payload]):
            yield Violation(
                "E1", story.key, f"the event {payload} was sent {len(sent[payload])} times, it is there {times} times"
            )


def _consumed_once(story: Story) -> Iterator[Violation]:
    """E1: an event is taken once, by a step of its run that is complete; what was taken stays taken."""
    for (run, event_id), versions in story.events.items():
        for before, after in pairwise(versions):
            taken = before.row["consumed_by_step"]
            if taken and after.row["consumed_by_step"] != taken:
                now = after.row["consumed_by_step"] or "nobody"
                yield Violation(
                    "E1", story.key, f"event {event_id} of run {run} was taken by {taken!r}, then by {now!r}"
                )
    for event in story.final_events:
        if (event.delivered_at is None) != (not event.consumed_by_step):
            yield Violation("E1", story.key, f"event {event.event_id} is taken by nobody, or at no time")
        elif event.consumed_by_step:
            step = story.final_steps.get((event.run, event.consumed_by_step))
            if step is None or step.status != "completed":
                state = "not there" if step is None else step.status
                yield Violation(
                    "E1", story.key, f"event {event.event_id} was taken by {event.consumed_by_step!r}, which is {state}"
                )


def _waits(story: Story) -> Iterator[tuple[StepRow, list[EventRow]]]:
    """The waits of all runs, each with the events that could be for it, the oldest first."""
    for (run, _), step in story.final_steps.items():
        if step.type == "wait_for_event":
            events = [event for event in story.final_events if event.run == run and event.type == step.event_type]
            yield step, sorted(events, key=lambda event: event.event_id)


def _taken(step: StepRow, story: Story) -> list[EventRow]:
    return [one for one in story.final_events if one.run == step.run and one.consumed_by_step == step.name]


def _waits_take_the_oldest(story: Story) -> Iterator[Violation]:
    """E2: a wait takes one event, of its type, the oldest that is in time."""
    for step, events in _waits(story):
        taken = _taken(step, story)
        if len(taken) != (1 if step.status == "completed" else 0):
            yield Violation(
                "E2", story.key, f"the wait {step.name!r} of run {step.run} is {step.status} with {len(taken)} events"
            )
            continue
        for event in taken:
            if event.type != step.event_type or event.payload != step.result:
                yield Violation("E2", story.key, f"the wait {step.name!r} has not what event {event.event_id} says")
            older = [one for one in events if one.event_id < event.event_id and _was_free(one, event.delivered_at)]
            if any(one.created_at <= (step.wake_at or 0) for one in older):
                yield Violation(
                    "E2",
                    story.key,
                    f"the wait {step.name!r} took event {event.event_id}, and not the older {older[0].event_id}",
                )


def _was_free(event: EventRow, at: int | None) -> bool:
    """Whether nobody had taken the event by then."""
    return event.delivered_at is None or (at is not None and event.delivered_at > at)


def _deadlines_decide(view: View, story: Story) -> Iterator[Violation]:
    """E3, E4: who was in time by its stamp is taken, who was not is not, whenever anybody looked."""
    for step, events in _waits(story):
        deadline = step.wake_at or 0
        for event in _taken(step, story):
            if event.created_at > deadline:
                late = event.created_at - deadline
                yield Violation(
                    "E3", story.key, f"the wait {step.name!r} took an event of {late} us after its deadline"
                )
        if step.status != "errored" or step.error_name != _TIMED_OUT:
            continue
        for event in events:
            if view.plan.clock_steps and _came_after(story, event, step):
                continue  # the clock was put back after the wait was over
            if event.created_at <= deadline and _was_free(event, step.updated_at):
                before = event.created_at < step.created_at and not view.plan.clock_steps
                early = deadline - event.created_at
                yield Violation(
                    "E4" if before else "E3",
                    story.key,
                    f"the wait {step.name!r} of run {step.run} timed out, and event {event.event_id} was there "
                    f"{early} us before its deadline",
                    "lost",
                )
                break


def _came_after(story: Story, event: EventRow, step: StepRow) -> bool:
    """Whether an event was stored when the wait had ended, in the order of commits."""
    ended = [version.seq for version in story.steps[step.run, step.name] if version.row["status"] == "errored"]
    return bool(ended) and story.events[event.run, event.event_id][0].seq > ended[0]


def _events_wake(view: View, story: Story) -> Iterator[Violation]:
    """E4: an event that is in time is taken soon, not only when somebody happens to look."""
    bound = view.plan.lateness_us or view.plan.lease_us
    now = story.task.now_us if story.task is not None else None
    for step, events in _waits(story):
        if step.status == "waiting":
            ready = [
                event for event in events if event.delivered_at is None and event.created_at <= (step.wake_at or 0)
            ]
            if ready and now is not None and now - ready[0].created_at > bound and not _is_parked(story):
                yield Violation(
                    "E4",
                    story.key,
                    f"the wait {step.name!r} still waits, and event {ready[0].event_id} is there",
                    "stuck",
                )
        for event in _taken(step, story):
            begin = max(event.created_at, step.created_at)
            end = event.delivered_at or begin
            if is_late(view, story, begin, end):
                late = (end - begin) / 1e6
                yield Violation(
                    "T2", story.key, f"the wait {step.name!r} took its event {late:.1f} s after it came", "late"
                )


def _is_parked(story: Story) -> bool:
    return story.task is not None and story.task.row["status"] == "parked"


def _refused_after_the_end(story: Story) -> Iterator[Violation]:
    """E5: an instance that has ended takes no event."""
    for (run, event_id), versions in story.events.items():
        born = versions[0]
        before = [version for version in story.versions if version.seq < born.seq]
        if before and before[-1].row["run_number"] == run and before[-1].row["status"] in ENDED:
            yield Violation("E5", story.key, f"event {event_id} of run {run} was stored after the run had ended")
