"""python -m tests.chaos.checker FOLDER: check the records of a run again."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.chaos.checker.checker import check
from tests.chaos.facts.records import load

if __name__ == "__main__":
    verdict = check(load(Path(sys.argv[1])))
    sys.stdout.write(f"{verdict}\n")
    sys.exit(0 if verdict.status == "valid" else 1)
