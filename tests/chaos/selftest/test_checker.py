"""The checker sees: it accepts what the real system did, and every lie about one thing is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.checker.checker import check
from tests.chaos.facts.records import Recorder, from_line, load, to_line
from tests.chaos.facts.run import Plan, Stage
from tests.chaos.selftest.histories import FOLDER, recorded, view_of
from tests.chaos.selftest.lies import LIES
from tests.chaos.selftest.lies.forger import Forger, Lie
from tests.chaos.selftest.recordings import RECORDINGS
from tests.chaos.selftest.telling import told

MOST_BYTES = 300_000
INVARIANTS = [
    *(f"W{number}" for number in range(1, 12)),
    *("T1", "T2", "T3", "E1", "E2", "E3", "E4", "E5"),
    *(f"A{number}" for number in range(1, 8)),
    *(f"H{number}" for number in range(1, 6)),
    *("R1", "R2", "R3", "L1", "L2", "O1", "O2", "P1"),
]

every_recording = pytest.mark.parametrize("name", RECORDINGS)


@every_recording
def test_what_the_system_did_is_valid(name: str) -> None:
    verdict = check(recorded(name))
    assert verdict.status == "valid", str(verdict)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_a_lie_about_one_thing_has_a_place_and_is_found_and_named(lie: Lie) -> None:
    verdicts = [check(history) for history in told(lie)]

    assert verdicts, "no recorded history has a place for it: record one that has (tests/chaos/README.md)"
    for verdict in verdicts:
        if lie.breaks:
            assert {lie.breaks} <= {*verdict.broken} <= {lie.breaks, *lie.also}, str(verdict)
        else:
            assert verdict.status == "unknown", str(verdict)


def test_orders_that_come_after_the_heal_have_their_time() -> None:
    forger = Forger(view_of("orders"), 1)
    warm, quiet, plan = forger.any(Stage, name="warm"), forger.any(Stage, name="quiet"), forger.plan
    last_order_ns = quiet.mono_ns + 5 * plan.lease_us * 1000
    drain_ns = round(plan.drain_leases * plan.lease_us) * 1000
    forger.alter(plan, arrivals_us=(last_order_ns - warm.mono_ns) // 1000)
    forger.alter(quiet, mono_ns=last_order_ns + drain_ns - plan.lease_us * 1000)
    assert check(forger.history).status == "valid"

    forger.alter(forger.any(Stage, name="quiet"), mono_ns=last_order_ns + drain_ns + plan.lease_us * 1000)
    assert check(forger.history).broken == ["L1"]


def test_every_invariant_has_a_lie() -> None:
    assert {lie.breaks for lie in LIES if lie.breaks} == {*INVARIANTS}


@every_recording
def test_a_fact_is_the_same_when_it_is_read_again(name: str) -> None:
    for fact in recorded(name).facts:
        assert from_line(to_line(fact)) == fact


def test_the_recorded_histories_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    plan = Plan(1, 3_000_000, "sqlite", {})
    Recorder(tmp_path / "one.jsonl", durable=True).record(plan)
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"kind":"Plan","se')
    assert load(tmp_path).facts == (plan,)
