"""python -m tests.chaos.selftest record [NAME ...] [--seed N]: record the histories of the self-test anew."""

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


def main() -> int:
    """Record what was asked for; exit 0 if every run kept every promise, and only then keep its history."""
    given = _parser().parse_args()
    return max(_record(name, given.seed) for name in given.names or RECORDINGS)


def _record(name: str, seed: int) -> int:
    print(f"== {name}: {RECORDINGS[name].about}")
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    asyncio.run(Run(RECORDINGS[name], seed, folder, print).execute())
    history = records.load(folder)
    verdict = check(history)
    print(verdict)
    if verdict.status != "valid":
        print(f"{name} is not recorded. What the run wrote down is in {folder}")
        return 1
    print(f"{name} is recorded: {histories.store(name, history)} bytes. Now run the self-test")
    shutil.rmtree(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.selftest", description=__doc__)
    parser.add_argument("record", choices=["record"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECORDINGS)}; all by default")
    parser.add_argument("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
