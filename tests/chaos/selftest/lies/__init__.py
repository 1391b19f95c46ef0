"""All lies, each with the invariant that it breaks."""

from tests.chaos.selftest.lies import answers, hooks, runs, waits
from tests.chaos.selftest.lies.forger import LIES, Forger, Lie

__all__ = ["LIES", "Forger", "Lie", "answers", "hooks", "runs", "waits"]
