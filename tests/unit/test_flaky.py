"""A test that fails now and then is shown and forgiven, a few times; one that fails twice is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import flaky

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLUGIN = """
from tests.support.flaky import Retries

def pytest_addoption(parser):
    parser.addoption("--retry-failed", action="store_true")

def pytest_configure(config):
    if config.getoption("--retry-failed"):
        config.pluginmanager.register(Retries(most_flaky=1))
"""
UNSTEADY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_unsteady(number):
    seen = Path(f"seen-{{number}}")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests with the plugin, whose runs are counted by themselves."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a run starts in half the time
    monkeypatch.delenv(flaky.REPORT, raising=False)
    pytester.makeconftest(PLUGIN)
    return pytester


def test_a_test_that_passes_alone_is_shown_with_its_first_failure_and_forgiven(suite: pytest.Pytester) -> None:
    suite.makepyfile(UNSTEADY.format(count=1))

    run = suite.runpytest_subprocess("--retry-failed")

    assert run.ret == pytest.ExitCode.OK
    assert run.parseoutcomes() == {"flaky": 1}
    run.stdout.fnmatch_lines(["*test_unsteady?0?", "*AssertionError: the first time"])


def test_more_flaky_tests_than_allowed_fail_the_run(suite: pytest.Pytester) -> None:
    suite.makepyfile(UNSTEADY.format(count=2))

    assert suite.runpytest_subprocess("--retry-failed").ret == pytest.ExitCode.TESTS_FAILED


def test_flaky_tests_of_several_runs_are_counted_together(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flaky.REPORT, str(suite.path / "report"))
    suite.makepyfile(UNSTEADY.format(count=1))
    suite.runpytest_subprocess("--retry-failed")
    (suite.path / "seen-0").unlink()

    assert suite.runpytest_subprocess("--retry-failed").ret == pytest.ExitCode.TESTS_FAILED
    assert len(flaky.read_report(suite.path / "report")) == 2


def test_a_test_that_fails_twice_fails_the_run(suite: pytest.Pytester) -> None:
    suite.makepyfile(UNSTEADY.format(count=1) + "\ndef test_broken():\n    assert False\n")

    run = suite.runpytest_subprocess("--retry-failed")

    assert run.ret == pytest.ExitCode.TESTS_FAILED
    assert run.parseoutcomes() == {"failed": 1, "flaky": 1}


def test_a_broken_fixture_is_a_failure_as_well(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        "import pytest\n@pytest.fixture\ndef broken():\n    raise OSError\ndef test_it(broken):\n    pass\n"
    )

    assert suite.runpytest_subprocess("--retry-failed").ret == pytest.ExitCode.TESTS_FAILED
