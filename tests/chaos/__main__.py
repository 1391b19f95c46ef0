"""python -m tests.chaos SCENARIO [--seed N] [--short]: one run, what became of it, and how to repeat it."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import report
from tests.chaos.checker import checker
from tests.chaos.facts import records
from tests.chaos.run import Run
from tests.chaos.scenarios.scenario import Scenario
from tests.chaos.scenarios.scenarios import SCENARIOS, shortened, slowed, soak
from tests.chaos.site.vitals import Vitals


def main() -> int:
    """Run what was asked for; exit 0 if every run kept every promise."""
    given = _parser().parse_args()
    if given.list:
        for one in SCENARIOS.values():
            print(f"{one.name:24} {one.about}")
        return 0
    names = [name for name in SCENARIOS if name != "soak"] if given.scenario == "all" else [given.scenario]
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    outcomes = [one_run(SCENARIOS[name], seed, given) for name in names]
    if len(outcomes) > 1:
        print(report.table([one for one in outcomes if one is not None]))
    return 0 if all(one is None or one.status == "valid" for one in outcomes) else 1


def one_run(scenario: Scenario, seed: int, given: argparse.Namespace) -> report.Outcome | None:
    """Run a scenario and say what became of it. None: this machine cannot."""
    missing = [tool for tool in scenario.needs if not _has(tool)]
    if missing:
        print(f"== {scenario.name}: SKIPPED, this machine has no {', '.join(missing)}")
        return None
    if given.short:
        scenario = shortened(scenario)
    if scenario.name == "soak":
        scenario = soak(given.minutes)
    if given.lease:
        scenario = slowed(scenario, given.lease)
    folder = Path(given.folder or tempfile.mkdtemp(prefix=f"chaos-{scenario.name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"== {scenario.name}: {scenario.about}\n   seed {seed}, records in {folder}")
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"   {time.monotonic() - began:6.1f} s  {text}", flush=True)

    vitals = asyncio.run(_until_told(Run(scenario, seed, folder, say)))
    history = records.load(folder)
    outcome = report.Outcome(scenario, seed, checker.check(history), history, vitals)
    print(report.text(outcome, short=given.short))
    if outcome.status == "valid" and not given.keep and given.folder is None:
        shutil.rmtree(folder)
    return outcome


async def _until_told(run: Run) -> Vitals:
    """SIGTERM ends a run as Ctrl-C does: with everything that it started."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run.execute()


def _has(tool: str) -> bool:
    return Path(tool).exists() if tool.startswith("/") else shutil.which(tool) is not None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("scenario", nargs="?", default="all", choices=[*SCENARIOS, "all"], metavar="SCENARIO")
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument("--short", action="store_true", help="less of everything")
    parser.add_argument("--lease", type=float, help="seconds of a lease; all times follow (a busy machine needs more)")
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the soak")
    parser.add_argument("--folder", help="where to keep the records")
    parser.add_argument("--keep", action="store_true", help="keep the records of a run that was fine")
    parser.add_argument("--list", action="store_true", help="show the scenarios")
    return parser


if __name__ == "__main__":
    sys.exit(main())
