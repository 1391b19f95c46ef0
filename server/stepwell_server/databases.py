"""Databases: how they are opened, migrated and checked, and how operators hear of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from stepwell_server.api.edge.health import Health
from stepwell_server.config import FAILPOINT, Settings
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.storage import deployments
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import READ, Database, Fault
from stepwell_server.storage.database.dialect import Damaged, WrongEncoding, check_file
from stepwell_server.storage.database.failpoints import Failpoints
from stepwell_server.storage.database.hints import Hints, NoHints, PostgresqlHints
from stepwell_server.storage.database.postgresql import PostgresqlBackend
from stepwell_server.storage.database.sqlite import SqliteBackend
from stepwell_server.storage.deployments import Deployment
from stepwell_server.telemetry import Metrics

log = structlog.get_logger()


def open_database(url: URL, tuning: Tuning = DEFAULT) -> Database:
    """The database behind the URL. It is not contacted yet."""
    failpoints = Failpoints(os.environ.get(FAILPOINT, ""))
    if url.get_backend_name() == "sqlite":
        return Database(SqliteBackend(Path(url.database or "")), failpoints, tuning)
    return Database(PostgresqlBackend(url, tuning), failpoints, tuning)


def open_hints(url: URL, tuning: Tuning = DEFAULT) -> Hints:
    """How a server on this database hears of other servers' commits."""
    return NoHints() if url.get_backend_name() == "sqlite" else PostgresqlHints(url, tuning)


class CannotUseDatabase(Exception):
    """The database cannot be served; the text says why in one line."""


async def prepare_database(db: Database, settings: Settings) -> Deployment:
    """Bring the database to the newest schema, if that is wanted, and find out what it is."""
    if settings.auto_migrate:
        await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=settings.virtual_clock))
    await db.run_unhurried(migrate.check)
    return await db.run_tx(deployments.read, READ)


@contextmanager
def usable_database() -> Iterator[None]:
    """Say in one line why the database cannot be used."""
    try:
        yield
    except (StepwellError, SQLAlchemyError, OSError, migrate.SchemaMissing, WrongEncoding, Damaged) as error:
        raise CannotUseDatabase(f"cannot use the database: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """The driver's message, in one line."""
    while error.__cause__ is not None and error.__cause__ is not error:
        error = error.__cause__
    said = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    return said[0].rpartition("'>: ")[2]  # SQLAlchemy puts the class of the driver's error first


async def migrate_database(settings: Settings) -> str:
    """Bring the database to the newest schema and return its version."""
    db = open_database(settings.database_url)
    try:
        with usable_database():
            return (await prepare_database(db, settings)).schema_version
    finally:
        await db.close()


async def check_database(settings: Settings) -> str:
    """Return the version of the schema; refuse a database that is damaged or lacks what this server needs."""
    _check_there(settings.database_url)
    db = open_database(settings.database_url)
    try:
        with usable_database():
            await db.run_unhurried(check_file)
            return (await prepare_database(db, settings.model_copy(update={"auto_migrate": False}))).schema_version
    finally:
        await db.close()


def _check_there(url: URL) -> None:
    """Refuse a file of SQLite that opening it would make."""
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise CannotUseDatabase(f"cannot use the database: there is no file {url.database}")


class Reporter:
    """Tells operators how the database is: by the health service, metrics and the log."""

    def __init__(self, db: Database, health: Health, metrics: Metrics) -> None:
        self._db = db
        self._health = health
        self._metrics = metrics
        self._told: Counter[Fault] = Counter()

    async def report(self, reachable: bool) -> None:
        """Tell whether the last contact succeeded, and which transactions failed since the last report."""
        self._tell_faults()
        self._metrics.database_up.set(reachable)
        ready = reachable and not self._db.faults[Fault.DAMAGED]  # damage stays until a backup is restored
        if ready != self._health.ready:
            await self._health.set_ready(ready)

    def _tell_faults(self) -> None:
        """Count failed transactions, and log faults that only an operator can mend."""
        new = self._db.faults - self._told
        self._told = self._db.faults.copy()
        for fault, transactions in new.items():
            self._metrics.database_faults.labels(fault.name.lower()).inc(transactions)
            if fault in (Fault.FULL, Fault.DAMAGED):
                log.error(f"database_{fault.name.lower()}", transactions=transactions)
