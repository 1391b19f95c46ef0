"""python -m tests.chaos.selftest record [NAME ...] [--seed N]: record the histories of the self-test anew.

A history is kept if its run kept every promise. The exit code is 0 if all were, and every lie has a place in one.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.checker.checker import check
from tests.chaos.facts import records
from tests.chaos.run import Run
from tests.chaos.selftest import histories
from tests.chaos.selftest.recordings import RECORDINGS
from tests.chaos.selftest.telling import without_a_place


def main() -> int:
    """Record what was asked for."""
    given = _parser().parse_args()
    failed = [name for name in given.names or RECORDINGS if not _record(name, given.seed)]
    homeless = without_a_place()
    if homeless:
        print(f"no history has a place for: {', '.join(homeless)}. Try another seed")
    return 1 if failed or homeless else 0


def _record(name: str, seed: int) -> bool:
    print(f"== {name}: {RECORDINGS[name].about}")
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    asyncio.run(Run(RECORDINGS[name], seed, folder, print).execute())
    history = records.load(folder)
    verdict = check(history)
    print(verdict)
    if verdict.status != "valid":
        print(f"{name} is not recorded. What the run wrote down is in {folder}")
        return False
    print(f"{name} is recorded: {histories.store(name, history)} bytes")
    shutil.rmtree(folder)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.selftest", description=__doc__)
    parser.add_argument("record", choices=["record"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECORDINGS)}; all by default")
    parser.add_argument("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
