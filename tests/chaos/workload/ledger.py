"""The ledger of a worker: handlers write down, and fsync, that they begin and end."""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos.facts.records import Recorder


class Ledger:
    """The effects of this process."""

    recorder: Recorder
    worker: str

    @classmethod
    def open(cls, folder: Path, worker: str) -> None:
        """Write to a file of this process's own."""
        cls.worker = f"{worker}-{os.getpid()}"
        cls.recorder = Recorder(folder / f"effects-{cls.worker}.jsonl", durable=True)


class DeliberateFailure(Exception):
    """What a handler raises before it succeeds."""
