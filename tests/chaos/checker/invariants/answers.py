"""A1 to A7 and the order of revisions: what callers, scans and watchers were told."""

from __future__ import annotations

from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.chaos.checker.promises import Promises
from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import ENDED, Invocation, View
from tests.chaos.facts.calls import Call
from tests.chaos.facts.workflows import EventRow, InstanceRow, StepRow

_UNANSWERED = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
"""What a client also says by itself, without a reason."""
_REASONS = {
    "RESOURCE_EXHAUSTED": {"SERVER_BUSY", "STREAM_LIMIT", "RATE_LIMITED"},
    "UNAVAILABLE": {"DATABASE_UNAVAILABLE", "SHUTTING_DOWN"},
    "DEADLINE_EXCEEDED": {"SERVER_DEADLINE"},
    "ABORTED": {"CONFLICT"},
}
"""Refusals that every correct caller may meet, whatever it calls."""


def check(view: View, primitives: Sequence[Promises]) -> Iterator[Violation]:
    """All of them, for the calls of these primitives."""
    yield from _repeats_are_answered_alike(view, primitives)
    yield from _scans_are_whole(view)
    yield from _watchers_go_forward(view)
    yield from _credits_hold(view)
    yield from _errors_are_listed(view, primitives)
    yield from _refusals_are_true(view)
    yield from _readers_are_shown_it(view)
    yield from _views_agree(view)
    yield from _revisions_follow_time(view)
    yield from _revisions_name_states(view)


def _repeats_are_answered_alike(view: View, primitives: Sequence[Promises]) -> Iterator[Violation]:
    """A1: one request gets one answer, however often it is asked."""
    same = ChainMap(*(dict(one.same_in_repeats) for one in primitives))
    answers: dict[tuple[str, str], list[Invocation]] = defaultdict(list)
    for call in view.calls:
        if (call.is_ok or call.is_refused) and call.invoke.request_id:
            answers[call.op, call.invoke.request_id].append(call)
    for (op, _), calls in answers.items():
        if len({call.is_ok for call in calls}) > 1:
            yield Violation("A1", calls[0].key, f"a repeated {op} was acknowledged, and refused")
        for name in same.get(op, ()):
            told = {call.answer[name] for call in calls if name in call.answer}
            if len(told) > 1:
                yield Violation(
                    "A1", calls[0].key, f"a repeated {op} was told of different {name}: {sorted(told, key=str)}"
                )


def _scans_are_whole(view: View) -> Iterator[Violation]:
    """A2, A5: a scan has everything that was there before it began, nothing twice, and nothing of others."""
    acked = {
        call.key: call.reply.mono_ns
        for call in reversed(view.calls)
        if call.op == "create" and call.is_ok and call.reply
    }
    for scan in view.scans:
        prefix, found = f"{scan.namespace}/{scan.workflow}/", Counter(scan.keys)
        twice = [key for key, times in found.items() if times > 1]
        if twice:
            yield Violation("A2", twice[0], f"it is {found[twice[0]]} times in a scan of {scan.process}")
        missing = [
            key for key, at in acked.items() if key.startswith(prefix) and at < scan.invoke_ns and key not in found
        ]
        if missing:
            yield Violation(
                "A2", missing[0], f"a scan of {scan.process} left it out, and {len(missing) - 1} more", "lost"
            )
        foreign = [key for key in found if not key.startswith(prefix) or key not in view.stories]
        if foreign:
            yield Violation("A5", foreign[0], f"{scan.process} asked for {prefix} and was told of it")


def _watchers_go_forward(view: View) -> Iterator[Violation]:
    """A3: who watches is never told of an older state after a newer one, and is told of the end."""
    newest: dict[tuple[str, str, str], int] = {}
    told: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
    for seen in view.seen:
        stream = (seen.process, seen.stream, seen.key)
        if seen.revision < newest.get(stream, 0):
            yield Violation(
                "A3", seen.key, f"{seen.process} was told of revision {seen.revision} after {newest[stream]}"
            )
        newest[stream] = max(seen.revision, newest.get(stream, 0))
        told[seen.process, seen.key].add((seen.status, seen.run_number))
    for (process, key), states in told.items():
        instance = view.stories[key].instance if key in view.stories else None
        if instance is not None and instance.status in ENDED and (instance.status, instance.run_number) not in states:
            yield Violation("A3", key, f"{process} watched it and was never told that it is {instance.status}")


def _credits_hold(view: View) -> Iterator[Violation]:
    """A4: nobody holds more than it has room for, through whichever of its connections it was handed that."""
    if not view.plan.slots:
        return
    moments: list[tuple[int, int, str]] = []
    for session, begin, end in view.holdings:
        moments += [(begin, 1, session), (end, -1, session)]
    holds, most = Counter[str](), Counter[str]()
    for _, step, session in sorted(moments, key=lambda moment: moment[:2]):
        holds[session] += step
        most[session] = max(most[session], holds[session])
    for session, tasks in most.items():
        if tasks > view.plan.slots:
            yield Violation("A4", session, f"it held {tasks} tasks at once, and has room for {view.plan.slots}")


def _errors_are_listed(view: View, primitives: Sequence[Promises]) -> Iterator[Violation]:
    """A6: every refusal has a code and a reason of the list."""
    listed = {(code, reason) for code, reasons in _REASONS.items() for reason in reasons}
    listed |= {(code, reason) for one in primitives for code, reasons in one.reasons.items() for reason in reasons}
    for reply in view.history.of(Call):
        if reply.phase not in ("fail", "info"):
            continue
        known = (reply.code, reply.reason) in listed or (not reply.reason and reply.code in _UNANSWERED)
        if not known:
            yield Violation(
                "A6", reply.key, f"{reply.op} was answered {reply.code} {reply.reason or 'without a reason'}"
            )


def _refusals_are_true(view: View) -> Iterator[Violation]:
    """A6: what is refused because it has ended had ended by then."""
    for call in view.calls:
        if call.reply is None or call.reply.reason != "INSTANCE_TERMINAL" or view.plan.clock_steps:
            continue
        by = view.wall_us(call.reply.mono_ns) + view.clock_slack_us
        versions = view.stories[call.key].versions if call.key in view.stories else []
        if not any(one.row["status"] in ENDED and one.at_us <= by for one in versions):
            yield Violation("A6", call.key, f"{call.op} was refused because it had ended, and it had not")


def _readers_are_shown_it(view: View) -> Iterator[Violation]:
    """A5: whoever asks about an instance is told of that one, and not of another that is called alike."""
    for call in view.calls:
        instance = view.stories[call.key].instance if call.key in view.stories else None
        told = call.answer.get("created_at") if "status" in call.answer else None
        if instance is not None and told is not None and told != instance.created_at:
            yield Violation("A5", call.key, f"{call.op} was told of an instance that was created at {told}")


def _views_agree(view: View) -> Iterator[Violation]:
    """A7: the API shows what the database has, once nothing moves any more."""
    if "quiet" not in view.stages:
        return
    rows: dict[tuple[Any, ...], Any] = {(one.source, one.key): one for one in view.history.of(InstanceRow)}
    rows |= {(one.source, one.key, one.run, one.name): one for one in view.history.of(StepRow)}
    for event in view.history.of(EventRow):
        rows[event.source, event.key, event.run, event.event_id] = replace(event, request_id=None)
    for name in {key[1:] for key in rows}:
        shown, stored = rows.get(("api", *name)), rows.get(("sql", *name))
        if isinstance(stored, StepRow):
            stored = _as_shown(stored, rows.get(("sql", stored.key)))
        if shown is None or stored is None:
            yield Violation("A7", str(name[0]), f"{name[1:] or 'it'} is only {'stored' if shown is None else 'shown'}")
            continue
        differing = [
            f"{field}: {getattr(shown, field)!r} instead of {getattr(stored, field)!r}"
            for field in type(shown).__slots__
            if field != "source" and getattr(shown, field) != getattr(stored, field)
        ]
        if differing:
            yield Violation("A7", str(name[0]), f"{name[1:] or 'it'} is shown with {'; '.join(differing)}")


def _as_shown(step: StepRow, instance: InstanceRow | None) -> StepRow:
    """A step as readers see it: what is open in a run that has ended is shown as cancelled."""
    has_ended = instance is not None and (instance.status in ENDED or step.run < instance.run_number)
    is_open = step.status not in ("completed", "errored")
    return replace(step, status="cancelled", next_retry_at=None) if has_ended and is_open else step


def _revisions_follow_time(view: View) -> Iterator[Violation]:
    """R1: who asks after an answer is told of nothing older. A repeated request is answered as it was then."""
    requests = Counter(call.invoke.request_id for call in view.calls if call.invoke.request_id)
    by_key: dict[str, list[Invocation]] = defaultdict(list)
    for call in view.calls:
        if call.is_ok and call.reply is not None and call.reply.revision and requests[call.invoke.request_id] < 2:
            by_key[call.key].append(call)
    for key, calls in by_key.items():
        ends = sorted((call.reply.mono_ns, call.reply.revision) for call in calls if call.reply)
        newest, position = 0, 0
        for call in sorted(calls, key=lambda one: one.invoke.mono_ns):
            while position < len(ends) and ends[position][0] < call.invoke.mono_ns:
                newest = max(newest, ends[position][1] or 0)
                position += 1
            assert call.reply is not None and call.reply.revision is not None
            if call.reply.revision < newest:
                yield Violation(
                    "R1", key, f"{call.op} was told of revision {call.reply.revision} after {newest} was told"
                )


def _revisions_name_states(view: View) -> Iterator[Violation]:
    """R2: all who were told of one revision were told of the same state."""
    states: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for call in view.calls:
        answer = call.answer
        if call.reply is not None and call.reply.revision and "status" in answer:
            states[call.key, call.reply.revision].add((answer["status"], answer["run_number"]))
    for seen in view.seen:
        states[seen.key, seen.revision].add((seen.status, seen.run_number))
    for (key, revision), found in states.items():
        if len(found) > 1:
            yield Violation("R2", key, f"revision {revision} was told as {' and as '.join(map(str, sorted(found)))}")
