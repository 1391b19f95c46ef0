"""The programs run from end to end, so that a change of the product does not break them unseen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import loads

ROOT = Path(__file__).parents[2]
SMALL = ("--ordinary", "--alone", "3", "--instances", "10", "--in-flight", "5")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def run(module: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What a program keeps as JSON."""
    kept = tmp_path / "kept.json"
    command = [sys.executable, "-m", module, *SMALL, "--json", str(kept), *arguments]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=170)
    document: dict[str, Any] = json.loads(kept.read_text())
    return document


def test_ours_and_the_ceiling_are_measured_under_every_load(tmp_path: Path) -> None:
    contestants = ("stepwell-sqlite", "probe-sqlite")
    kept = run(
        "bench.workflows", tmp_path, "--rounds", "1", "--sleepers", "3", "--signals", "5", "--contestants", *contestants
    )
    assert kept["absent"] == {}
    for name in contestants:
        assert {
            loads.RATE,
            loads.A_CALL_EACH,
            loads.ALONE,
            loads.SLEEPERS,
            loads.SIGNALS_RATE,
        } <= kept["rounds"][0][name].keys()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_timeline_goes_from_create_to_the_result_through_all_processes(tmp_path: Path, database: str) -> None:
    kept = run("bench.anatomy", tmp_path, "--database", database)
    events = [hop["event"] for hop in kept["timeline"]]
    assert events[0].startswith("client writes")
    assert events[-1] == "client has the result"
    assert any(event.startswith("worker writes ConnectRequest: step_done") for event in events)
    assert any(event.startswith("server ends ") for event in events)
    alone = kept["counts"]["one at a time"]
    assert alone["statements"] > 0
    assert ("round trips to the database" in alone) == (database == "postgresql")
