"""A second chance for tests that fail: each runs again at the end, alone, in a fresh process (`--retry-failed`).

A test that passes then is flaky. It is shown in a table with its first failure, and a run with more than five of them
fails. A test that fails twice fails the run. Where STEPWELL_FLAKY_REPORT names a file, flaky tests are appended to it
as lines of JSON, so that several runs are counted as one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

MOST_FLAKY = 5
MOST_RETRIED = 20
"""With more failures than this something is broken, and none of them gets a second chance."""
REPORT = "STEPWELL_FLAKY_REPORT"

_PYTEST = (sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider")
_LONGEST_RETRY = 300.0
_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Flaky:
    """A test that failed and then passed."""

    test: str
    failure: str
    """The first line of its first failure."""


class Retries:
    """The plugin. It acts in the process that collects the reports, after the last test."""

    def __init__(self, most_flaky: int = MOST_FLAKY) -> None:
        self.most_flaky = most_flaky
        self.flaky: list[Flaky] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Run what failed again, and correct the outcome of the session."""
        terminal: Any = session.config.pluginmanager.getplugin("terminalreporter")
        failed: dict[str, pytest.TestReport] = {}
        for outcome in ("failed", "error"):
            for report in terminal.stats.get(outcome, ()):
                if isinstance(report, pytest.TestReport):
                    failed.setdefault(report.nodeid, report)
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST_RETRIED:
            return
        terminal.write_line("")
        for test, report in failed.items():
            terminal.write_line(f"again, alone: {test}")
            if _passes(test, session.config.rootpath):
                self.flaky.append(Flaky(test, _first_line(report)))
                _move(terminal.stats, test)
        remaining = any(terminal.stats.get(outcome) for outcome in ("failed", "error"))
        if not remaining and _flaky_in_all(self.flaky) <= self.most_flaky:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the table of flaky tests."""
        if self.flaky:
            terminalreporter.section("flaky: failed, then passed alone")
            for line in table(self.flaky):
                terminalreporter.write_line(line)


def table(flaky: list[Flaky]) -> list[str]:
    """Two lines for each test: its name, and its first failure."""
    return [line for one in flaky for line in (one.test, f"    {one.failure}")]


def read_report(path: Path) -> list[Flaky]:
    """All flaky tests that were appended to a report."""
    return [Flaky(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _flaky_in_all(flaky: list[Flaky]) -> int:
    """Append these to the report, if there is one, and count what it holds."""
    if REPORT not in os.environ:
        return len(flaky)
    path = Path(os.environ[REPORT])
    with path.open("a") as report:
        report.writelines(json.dumps(asdict(one)) + "\n" for one in flaky)
    return len(read_report(path))


def _passes(test: str, root: Path) -> bool:
    try:
        return subprocess.run([*_PYTEST, test], cwd=root, timeout=_LONGEST_RETRY, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = f"{Path(crash.path).name}:{crash.lineno}: {crash.message}" if crash else report.longreprtext
    return text.strip().splitlines()[0][:_WIDTH] if text.strip() else "no text"


def _move(stats: dict[str, list[Any]], test: str) -> None:
    """Count a test as flaky, no longer as failed. One that failed in its teardown has also passed: that stays."""
    for outcome in ("failed", "error"):
        moved = [one for one in stats.get(outcome, ()) if getattr(one, "nodeid", None) == test]
        stats[outcome] = [one for one in stats.get(outcome, ()) if one not in moved]
        stats.setdefault("flaky", []).extend(moved)
