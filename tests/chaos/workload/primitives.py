"""The primitives that chaos runs use. A new one adds a folder, and its line here."""

from __future__ import annotations

from tests.chaos.workload.hooks.primitive import HOOKS
from tests.chaos.workload.primitive import Primitive
from tests.chaos.workload.workflows.primitive import WORKFLOWS

PRIMITIVES: dict[str, Primitive] = {one.load.primitive: one for one in (WORKFLOWS, HOOKS)}
