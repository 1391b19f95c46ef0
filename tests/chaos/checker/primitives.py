"""The promises of all primitives. A new one adds a module of invariants, and its entry here."""

from __future__ import annotations

from tests.chaos.checker import figures
from tests.chaos.checker.invariants import attempts, events, hooks, leases, timers, wakes, workflows
from tests.chaos.checker.promises import Promises

WORKFLOWS = Promises(
    checks=(workflows.check, leases.check, attempts.check, timers.check, events.check),
    figures=figures.of_workflows,
    overlaps={
        "zombie-reports": figures.zombie_reports,
        "takeovers": figures.takeovers,
        "exhausted": figures.exhausted,
        "near-deadline": figures.near_deadline,
        "repeats": figures.repeats,
    },
    same_in_repeats=workflows.SAME_IN_REPEATS,
    reasons=workflows.REASONS,
)
HOOKS = Promises(checks=(hooks.check, wakes.check), figures=figures.of_hooks)
PRIMITIVES = (WORKFLOWS, HOOKS)
