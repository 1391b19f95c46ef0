"""Plants each bug of chaos_mutants.toml in a copy of the repository and counts the chaos runs until one notices.

    .venv/bin/python tests/mutants/chaos.py [--seeds N] [NAME ...]

A run notices if one of the invariants is broken that the bug is said to break; the seeds are 1, 2, 3 ... The exit code
is 0 if every bug was caught. A scenario that is not valid while nothing is planted proves nothing, and ends the whole.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from run import Copy, Mutant, copied

LIST = Path(__file__).with_name("chaos_mutants.toml")
SEEDS = 5
"""Runs that a bug may survive before it counts as missed."""
LONGEST_RUN = 400.0
LONGEST_END = 30.0

_VERDICT = re.compile(r"^verdict: (\w+)$", re.MULTILINE)
_BROKEN = re.compile(r"^  ([A-Z]\d+) \S", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Prey:
    """A planted bug, the scenario that must show it, and what it must be seen by."""

    mutant: Mutant
    breaks: frozenset[str]

    @property
    def scenario(self) -> str:
        """What is run."""
        return self.mutant.test

    def is_seen(self, ran: Ran) -> bool:
        """Whether a run has noticed."""
        return not self.breaks.isdisjoint(ran.broken)


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a run: its verdict, and the invariants that did not hold."""

    verdict: str
    broken: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class Hunt:
    """What became of a bug."""

    prey: Prey
    seeds: int
    ran: Ran
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether a run noticed."""
        return self.prey.is_seen(self.ran)

    def __str__(self) -> str:
        found = f"seeds {self.seeds}" if self.caught else f"SURVIVED ({self.ran.verdict})"
        broken = " ".join(self.ran.broken)
        return f"{self.prey.mutant.name:58} {self.prey.scenario:16} {found:20} {broken:28} {self.seconds:5.0f} s"


def run(copy: Copy, scenario: str, seed: int) -> Ran:
    """One short run of a scenario."""
    records = copy.folder / "records"
    shutil.rmtree(records, ignore_errors=True)
    output = _output(copy, "-m", "tests.chaos", scenario, "--short", "--seed", str(seed), "--folder", str(records))
    found = _VERDICT.search(output)
    return Ran(found[1] if found else "none", tuple(dict.fromkeys(_BROKEN.findall(output))), output)


def _output(copy: Copy, *arguments: str) -> str:
    """What Python says there. One that does not end is interrupted, so that it ends its servers and databases, too."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=copy.folder,
        env=copy.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    for signal_number, patience in ((signal.SIGINT, LONGEST_RUN), (signal.SIGKILL, LONGEST_END)):
        try:
            return process.communicate(timeout=patience)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal_number)
    return process.communicate()[0]


def hunt(prey: Prey, copy: Copy, seeds: int) -> Hunt:
    """Run its scenario with one seed after the other, until one notices."""
    began = time.monotonic()
    if prey.mutant.places(copy.folder) != 1:
        outdated = Ran(f"its line is there {prey.mutant.places(copy.folder)} times", (), "")
        return Hunt(prey, 0, outdated, 0.0)
    with prey.mutant.planted(copy.folder):
        for seed in range(1, seeds + 1):
            ran = run(copy, prey.scenario, seed)
            if prey.is_seen(ran):
                break
    return Hunt(prey, seed, ran, time.monotonic() - began)


def check_health(preys: Sequence[Prey], copy: Copy) -> None:
    """Every scenario must be valid while nothing is planted."""
    for scenario in sorted({prey.scenario for prey in preys}):
        ran = run(copy, scenario, 1)
        if ran.verdict != "valid":
            sys.exit(f"not even without a bug is {scenario} valid:\n{ran.output}")


def read(names: Sequence[str]) -> list[Prey]:
    """The bugs of the list: these, or all."""
    listed = tomllib.loads(LIST.read_text())["mutants"]
    unknown = {*names} - {one["name"] for one in listed}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    wanted = [one for one in listed if not names or one["name"] in names]
    return [Prey(breaks=frozenset(one.pop("breaks")), mutant=Mutant(test=one.pop("scenario"), **one)) for one in wanted]


def main() -> int:
    """Plant them all, one after the other, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs that a bug may survive")
    parser.add_argument("--trust", action="store_true", help="do not run the scenarios without a bug first")
    given = parser.parse_args()
    preys = read(given.names)
    hunts: list[Hunt] = []
    with copied() as copy:
        copy.check_imports()
        if not given.trust:
            check_health(preys, copy)
        for prey in preys:
            hunts.append(hunt(prey, copy, given.seeds))
            sys.stdout.write(f"{hunts[-1]}\n")
            sys.stdout.flush()
    caught = [one for one in hunts if one.caught]
    median = statistics.median(one.seeds for one in caught) if caught else 0
    sys.stdout.write(f"{len(caught)} of {len(hunts)} caught, median seeds to catch {median:g}\n")
    return 0 if len(caught) == len(hunts) else 1


if __name__ == "__main__":
    sys.exit(main())
