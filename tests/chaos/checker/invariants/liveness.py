"""The end of a run: everything comes to rest, everybody answers again, and nothing died unasked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import Invocation, View
from tests.chaos.facts.run import Exit, Trouble

TAIL = 20
"""Calls per client and per server, the last ones after the heal, that must all be answered."""


def check(view: View) -> Iterator[Violation]:
    """All of them."""
    yield from _comes_to_rest(view)
    yield from _answers_again(view)
    yield from _dies_in_order(view)


def _comes_to_rest(view: View) -> Iterator[Violation]:
    """L1: after the heal, and after the last order, all work is done in time."""
    heal, quiet = view.stages.get("heal"), view.stages.get("quiet")
    if heal is None:
        return
    if quiet is None:
        yield Violation("L1", "run", "it never came to rest", "stuck")
        return
    last_order_ns = view.stages["warm"].mono_ns + view.plan.arrivals_us * 1000
    leases = (quiet.mono_ns - max(heal.mono_ns, last_order_ns)) / 1000 / view.plan.lease_us
    if leases > view.plan.drain_leases:
        yield Violation("L1", "run", f"it came to rest {leases:.1f} leases after the heal and the last order", "stuck")


def _answers_again(view: View) -> Iterator[Violation]:
    """L2: in the end every call is answered, if need be when it is repeated, of every client and by every server."""
    for who, calls in tails(view).items():
        answered = {call.request_id for call in calls if call.is_ok or call.is_refused}
        unanswered = [call for call in calls if call.request_id not in answered]
        if unanswered:
            last = unanswered[-1]
            code = last.reply.code if last.reply is not None else "never answered"
            yield Violation("L2", who, f"{len(unanswered)} of its last {len(calls)} calls failed: {last.op} {code}")


def tails(view: View) -> dict[str, list[Invocation]]:
    """The last calls of each client and to each server, of those that began after the heal."""
    heal = view.stages.get("heal")
    found: dict[str, list[Invocation]] = defaultdict(list)
    for call in view.calls:
        if heal is not None and call.invoke.mono_ns > heal.mono_ns:
            found[f"client {call.invoke.process}"].append(call)
            if call.invoke.server:
                found[f"server {call.invoke.server}"].append(call)
    return {who: calls[-TAIL:] for who, calls in found.items()}


def _dies_in_order(view: View) -> Iterator[Violation]:
    """P1: no process ends that was not told to, and none writes a traceback."""
    for exit_ in view.history.of(Exit):
        if not exit_.ordered:
            yield Violation("P1", exit_.process, f"it ended by itself, with {exit_.code}")
    for trouble in view.history.of(Trouble):
        yield Violation("P1", trouble.process, trouble.text[-300:])
