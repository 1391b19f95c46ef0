"""Plants each bug of the lists beside this in a copy of the repository and sees whether the test named for it notices.

    .venv/bin/python tests/mutants/run.py [NAME ...]

The exit code is 0 if every bug was caught. A test that would not run, or a line that is no longer there, is a failure.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("server", "clients/python", ".")
PYTEST = ("-m", "pytest", "-q", "-x", "--timeout", "60", "-p", "no:randomly", "-p", "no:cacheprovider")
PACKAGES = ("stepwell_server", "stepwell", "tests.support.replicas.spine")
LONGEST_RUN = 300.0
LISTS = ("mutants.toml", "workflow_mutants.toml", "webhook_mutants.toml", "hook_mutants.toml", "wake_mutants.toml")

PASSED, FAILED = 0, 1
"""Exit codes of pytest. All others mean that the test was not run."""
TOO_LONG = 124
"""In place of an exit code: it did not end."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug, and the test that must catch it."""

    name: str
    file: str
    old: str
    new: str
    test: str

    @contextmanager
    def planted(self, copy: Path) -> Iterator[None]:
        """The copy with the bug in it."""
        path = copy / self.file
        healthy = path.read_text()
        path.write_text(healthy.replace(self.old, self.new))
        try:
            yield
        finally:
            path.write_text(healthy)

    def places(self, copy: Path) -> int:
        """How often its line occurs. Once is right."""
        return (copy / self.file).read_text().count(self.old)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the repository that tests run in."""

    folder: Path
    environment: dict[str, str]
    longest: float = LONGEST_RUN
    """Seconds for one run of pytest."""

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python there, as long as it may take."""
        command = [sys.executable, *arguments]
        try:
            return subprocess.run(
                command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=self.longest
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, TOO_LONG, "", f"took longer than {self.longest:g} s")

    def check_imports(self) -> None:
        """Make sure that the copy is what is tested, and not what is installed."""
        code = "import importlib, sys; [print(importlib.import_module(name).__file__) for name in sys.argv[1:]]"
        done = self.python("-c", code, *PACKAGES)
        for line in done.stdout.splitlines():
            if not Path(line).resolve().is_relative_to(self.folder):
                sys.exit(f"{line} would be tested instead of the copy in {self.folder}")
        if done.returncode:
            sys.exit(done.stderr)


@contextmanager
def copied() -> Iterator[Copy]:
    """Everything that git knows or would know, elsewhere, with one PostgreSQL for all runs."""
    sys.path.insert(0, str(ROOT))
    from tests.support.databases.postgres import PostgresServer

    with tempfile.TemporaryDirectory(prefix="stepwell-mutants-") as temporary, PostgresServer.start() as postgres:
        folder = Path(temporary).resolve()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        yield Copy(
            folder,
            os.environ
            | {
                "PYTHONPATH": os.pathsep.join(str(folder / source) for source in SOURCES),
                "PYTHONDONTWRITEBYTECODE": "1",  # a bug of the same length, planted in the same second, would not show
                "CI": "1",  # hypothesis tries the same examples every time
                "STEPWELL_MUTANTS": "1",
                "STEPWELL_TEST_PG": postgres.uri,
            },
        )


def read(names: Sequence[str]) -> list[Mutant]:
    """The mutants of the list: these, or all."""
    files = [Path(__file__).with_name(one) for one in LISTS]
    mutants = [Mutant(**one) for file in files for one in tomllib.loads(file.read_text())["mutants"]]
    unknown = {*names} - {one.name for one in mutants}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [one for one in mutants if not names or one.name in names]


def verdict(mutant: Mutant, copy: Copy) -> str:
    """What became of the bug."""
    if mutant.places(copy.folder) != 1:
        return f"OUTDATED: its line is there {mutant.places(copy.folder)} times"
    with mutant.planted(copy.folder):
        code = copy.python(*PYTEST, *shlex.split(mutant.test)).returncode
    words = {PASSED: "SURVIVED", FAILED: "caught", TOO_LONG: f"BROKEN: took longer than {copy.longest:g} s"}
    return words.get(code, f"BROKEN: pytest ended with {code}")


def check_health(mutants: Sequence[Mutant], copy: Copy) -> None:
    """Make sure that every test passes while nothing is planted. Each file of tests has a run of its own."""
    files: dict[str, set[str]] = defaultdict(set)
    for test in {one.test for one in mutants}:
        files[test if "-k" in test else test.partition("::")[0]].add(test)
    for name, tests in sorted(files.items()):
        done = copy.python(*PYTEST, *(part for test in sorted(tests) for part in shlex.split(test)))
        if done.returncode != PASSED:
            sys.exit(f"not even without a bug does {name} pass:\n{done.stdout}{done.stderr}")


def main(names: Sequence[str]) -> int:
    """Plant them all, one after the other, and print a table."""
    mutants = read(names)
    missed = 0
    with copied() as copy:
        copy.check_imports()
        check_health(mutants, copy)
        for mutant in mutants:
            began = time.monotonic()
            found = verdict(mutant, copy)
            missed += found != "caught"
            sys.stdout.write(f"{mutant.name:50} {found:10} {time.monotonic() - began:5.1f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(mutants) - missed} of {len(mutants)} caught\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
