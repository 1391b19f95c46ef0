"""All lies. A primitive adds a module of its own."""

from tests.chaos.selftest.lies import answers, hooks, waits, workflows
from tests.chaos.selftest.lies.forger import Lie

LIES = [one for module in (answers, workflows, waits, hooks) for one in vars(module).values() if isinstance(one, Lie)]
