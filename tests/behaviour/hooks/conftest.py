"""Fixtures of the checklist's half that is about hooks: those of workflows, as both live on one server."""

from __future__ import annotations

from tests.behaviour.workflows.conftest import (
    StartHarness,
    database_url,
    harness,
    leases_lapse,
    postgres_database,
    served,
    sqlite_file,
    virtual_servers,
)

__all__ = [
    "StartHarness",
    "database_url",
    "harness",
    "leases_lapse",
    "postgres_database",
    "served",
    "sqlite_file",
    "virtual_servers",
]
