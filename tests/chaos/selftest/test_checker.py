"""The checker sees: it accepts what is legal, and every lie about one thing is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.checker.checker import check
from tests.chaos.records import Plan, Recorder, Stage, from_line, load, to_line
from tests.chaos.selftest.lies import LIES, Forger, Lie
from tests.chaos.selftest.simulation import history

SEEDS = st.integers(0, 200)
INVARIANTS = [
    *(f"W{number}" for number in range(1, 12)),
    *("T1", "T2", "T3", "E1", "E2", "E3", "E4", "E5"),
    *(f"A{number}" for number in range(1, 8)),
    *(f"H{number}" for number in range(1, 6)),
    *("R1", "R2", "R3", "L1", "L2", "O1", "O2", "P1"),
]


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_what_is_legal_is_valid(seed: int) -> None:
    verdict = check(history(seed))
    assert verdict.status == "valid", str(verdict)


@pytest.mark.parametrize(("invariant", "lie"), LIES, ids=[lie.__name__ for _, lie in LIES])
@given(seed=SEEDS)
@settings(max_examples=4, deadline=None)
def test_a_lie_about_one_thing_is_found_and_named(invariant: str, lie: Lie, seed: int) -> None:
    forger = Forger(history(seed), seed)
    lie(forger)
    verdict = check(forger.history)
    if invariant:
        assert (verdict.status, invariant in verdict.broken) == ("invalid", True), str(verdict)
    else:
        assert verdict.status == "unknown", str(verdict)


def test_orders_that_come_after_the_heal_have_their_time() -> None:
    forger = Forger(history(1), 1)
    warm, quiet, plan = forger.any(Stage, name="warm"), forger.any(Stage, name="quiet"), forger.any(Plan)
    last_order_ns = quiet.mono_ns + 5 * plan.lease_us * 1000
    forger.alter(plan, arrivals_us=(last_order_ns - warm.mono_ns) // 1000)
    forger.alter(quiet, mono_ns=last_order_ns + 9 * plan.lease_us * 1000)
    assert check(forger.history).status == "valid"

    forger.alter(forger.any(Stage, name="quiet"), mono_ns=last_order_ns + 11 * plan.lease_us * 1000)
    assert check(forger.history).broken == ["L1"]


def test_every_invariant_has_a_lie() -> None:
    assert {invariant for invariant, _ in LIES if invariant} == {*INVARIANTS}


@given(SEEDS)
@settings(max_examples=4, deadline=None)
def test_a_fact_is_the_same_when_it_is_read_again(seed: int) -> None:
    for fact in history(seed).facts:
        assert from_line(to_line(fact)) == fact


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    plan = Plan(1, 3_000_000, "sqlite", {})
    Recorder(tmp_path / "one.jsonl", durable=True).record(plan)
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"kind":"Plan","se')
    assert load(tmp_path).facts == (plan,)
