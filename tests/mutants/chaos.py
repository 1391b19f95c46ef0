"""Plants each bug of chaos_mutants.toml in a copy of the repository and counts the chaos runs until one notices.

    .venv/bin/python tests/mutants/chaos.py [--seeds N] [NAME ...]

A run notices if its verdict is invalid; the seeds are 1, 2, 3 ... The exit code is 0 if every bug was caught. A
scenario that is not valid while nothing is planted proves nothing, and ends the whole.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
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

_VERDICT = re.compile(r"^verdict: (\w+)$", re.MULTILINE)
_BROKEN = re.compile(r"^  ([A-Z]\d+) \S", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a run: its verdict, and the invariants that did not hold."""

    verdict: str
    broken: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class Hunt:
    """What became of a bug."""

    mutant: Mutant
    seeds: int
    ran: Ran
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether a run noticed."""
        return self.ran.verdict == "invalid"

    def __str__(self) -> str:
        found = f"{' '.join(self.ran.broken):24} {self.seeds:2}" if self.caught else f"SURVIVED: {self.ran.verdict}"
        return f"{self.mutant.name:58} {self.mutant.test:24} {found} {self.seconds:6.0f} s"


def run(copy: Copy, scenario: str, seed: int) -> Ran:
    """One short run of a scenario."""
    records = copy.folder / "records"
    shutil.rmtree(records, ignore_errors=True)
    done = copy.python("-m", "tests.chaos", scenario, "--short", "--seed", str(seed), "--folder", str(records))
    found = _VERDICT.search(done.stdout)
    broken = dict.fromkeys(_BROKEN.findall(done.stdout))
    return Ran(found[1] if found else "none", tuple(broken), done.stdout + done.stderr)


def hunt(mutant: Mutant, copy: Copy, seeds: int) -> Hunt:
    """Run its scenario with one seed after the other, until one notices."""
    began = time.monotonic()
    if mutant.places(copy.folder) != 1:
        outdated = Ran(f"its line is there {mutant.places(copy.folder)} times", (), "")
        return Hunt(mutant, 0, outdated, 0.0)
    with mutant.planted(copy.folder):
        for seed in range(1, seeds + 1):
            ran = run(copy, mutant.test, seed)
            if ran.verdict == "invalid":
                break
    return Hunt(mutant, seed, ran, time.monotonic() - began)


def check_health(mutants: Sequence[Mutant], copy: Copy) -> None:
    """Every scenario must be valid while nothing is planted."""
    for scenario in sorted({mutant.test for mutant in mutants}):
        ran = run(copy, scenario, 1)
        if ran.verdict != "valid":
            sys.exit(f"not even without a bug is {scenario} valid:\n{ran.output}")


def read(names: Sequence[str]) -> list[Mutant]:
    """The mutants of the list: these, or all. What catches them is a scenario."""
    listed = tomllib.loads(LIST.read_text())["mutants"]
    mutants = [Mutant(test=one.pop("scenario"), **one) for one in listed]
    unknown = {*names} - {one.name for one in mutants}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [one for one in mutants if not names or one.name in names]


def main() -> int:
    """Plant them all, one after the other, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs that a bug may survive")
    parser.add_argument("--trust", action="store_true", help="do not run the scenarios without a bug first")
    given = parser.parse_args()
    mutants = read(given.names)
    hunts: list[Hunt] = []
    with copied() as copy:
        copy.check_imports()
        if not given.trust:
            check_health(mutants, copy)
        for mutant in mutants:
            hunts.append(hunt(mutant, copy, given.seeds))
            sys.stdout.write(f"{hunts[-1]}\n")
            sys.stdout.flush()
    caught = [one for one in hunts if one.caught]
    median = statistics.median(one.seeds for one in caught) if caught else 0
    sys.stdout.write(f"{len(caught)} of {len(hunts)} caught, median seeds to catch {median:g}\n")
    return 0 if len(caught) == len(hunts) else 1


if __name__ == "__main__":
    sys.exit(main())
