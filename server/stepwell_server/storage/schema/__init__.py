"""All tables, a file for each stem. Times are epoch microseconds in BIGINT; user data is text or bytes, never jsonb.

A change here needs a migration in `migrations/versions`; `make verify-migrations` compares the two.
"""

from stepwell_server.storage.schema.deployment import clock, deployment
from stepwell_server.storage.schema.hooks import hook_targets, hooks
from stepwell_server.storage.schema.metadata import metadata
from stepwell_server.storage.schema.namespaces import namespaces
from stepwell_server.storage.schema.spine import (
    declarations,
    fence_counter,
    handlers,
    lease_clock,
    requests,
    sessions,
    tasks,
)
from stepwell_server.storage.schema.workflows import (
    workflow_events,
    workflow_instances,
    workflow_labels,
    workflow_steps,
)

__all__ = [
    "clock",
    "declarations",
    "deployment",
    "fence_counter",
    "handlers",
    "hook_targets",
    "hooks",
    "lease_clock",
    "metadata",
    "namespaces",
    "requests",
    "sessions",
    "tasks",
    "workflow_events",
    "workflow_instances",
    "workflow_labels",
    "workflow_steps",
]
