"""SQLite: one file, one server process, one writer thread.

WAL with `synchronous=FULL`: a commit that was acknowledged survives a power cut. Every writing transaction begins with
BEGIN IMMEDIATE, so that it never finds out halfway that another one wrote first (SQLITE_BUSY_SNAPSHOT).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool

from stepwell_server.storage.database.database import CALL, Fault, T, TxOptions, Work

REAL_CLOCK = "stepwell_real_clock"
"""SQL function that every connection registers: SQLite's own clock has whole seconds."""

READERS = 2
BUSY_TIMEOUT = 5.0
PRIVATE = 0o600
"""The mode of the file: it holds all that users have stored, and the secrets of webhooks."""

_UNAVAILABLE = (
    "database is locked",
    "database table is locked",
    "disk i/o error",
    "unable to open",
)
_OF_THE_FILE = {
    sqlite3.SQLITE_FULL: Fault.FULL,
    sqlite3.SQLITE_CORRUPT: Fault.DAMAGED,
    sqlite3.SQLITE_NOTADB: Fault.DAMAGED,
}
_PRIMARY = 0xFF
"""The part of an error's code that says its kind; the rest says where."""


class CannotOpen(Exception):
    """The file cannot be had, or another server has it."""


class SqliteBackend:
    """The embedded database. Writes share one thread and connection, reads have a few of their own."""

    def __init__(self, path: Path) -> None:
        path = path.resolve()  # one file has one lock, by whatever link it is reached
        if not path.parent.is_dir():
            raise CannotOpen(f"there is no folder {path.parent} for the database")
        self._guard = _lock_file(path)
        _keep_private(path)
        self._writer = _engine(path, StaticPool, "BEGIN IMMEDIATE")
        self._reader = _engine(path, QueuePool, "BEGIN", pool_size=READERS, max_overflow=0)
        event.listen(self._reader, "connect", _forbid_writes)
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._read_threads = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")

    async def attempt(self, work: Work[T], options: TxOptions) -> T:
        """Run the function in one transaction, in one hop to the thread that owns the connection."""
        loop = asyncio.get_running_loop()
        if options.read_only:
            return await loop.run_in_executor(self._read_threads, _in_transaction, self._reader, work)
        return await loop.run_in_executor(self._write_thread, _in_transaction, self._writer, work)

    async def attempt_unhurried(self, work: Work[T]) -> T:
        """Run the function in one transaction; nothing here has a time limit but the busy timeout."""
        return await self.attempt(work, CALL)

    def classify(self, error: BaseException) -> Fault:
        """Full disks and damaged files are told; locks and broken disks took too long; all else is our bug."""
        original = error.orig if isinstance(error, DBAPIError) else error
        code = getattr(original, "sqlite_errorcode", 0) & _PRIMARY
        if code in _OF_THE_FILE:
            return _OF_THE_FILE[code]
        if isinstance(original, sqlite3.OperationalError) and str(original).lower().startswith(_UNAVAILABLE):
            return Fault.TIMEOUT
        return Fault.BUG

    async def close(self) -> None:
        """Close the file and let another server have it."""
        await asyncio.get_running_loop().run_in_executor(self._write_thread, self._writer.dispose)
        self._reader.dispose()
        self._write_thread.shutdown()
        self._read_threads.shutdown()
        self._guard.close()


def _in_transaction(engine: Engine, work: Work[T]) -> T:
    with engine.begin() as tx:
        return work(tx)


def _engine(path: Path, pool: type[StaticPool | QueuePool], begin: str, **options: Any) -> Engine:
    engine = create_engine(
        f"sqlite+pysqlite:///{path}",
        poolclass=pool,
        hide_parameters=True,  # errors are logged, and parameters are users' data
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT, "isolation_level": None},
        **options,
    )
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.create_function(REAL_CLOCK, 0, _real_clock)


def _forbid_writes(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")


def _real_clock() -> int:
    """The database's clock: this process is the database, so its wall clock is the one."""
    return time.time_ns() // 1000


def _keep_private(path: Path) -> None:
    """Let only the owner read the file, and the files that SQLite puts beside it, which get the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE))
        for file in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
            if file.exists() and file.stat().st_mode & 0o077 and file.stat().st_uid == os.geteuid():
                file.chmod(PRIVATE)
    except OSError as error:
        raise CannotOpen(f"cannot open {path}: {error.strerror}") from None


def _lock_file(path: Path) -> IO[bytes]:
    """Hold a lock beside the file for as long as the server runs; the system frees it when the process dies."""
    try:
        guard = path.with_name(path.name + ".lock").open("ab")
    except OSError as error:
        raise CannotOpen(f"cannot lock {path}: {error.strerror}") from None
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        guard.close()
        raise CannotOpen(
            f"{path} is in use by another server; SQLite serves one at a time (PostgreSQL serves many)"
        ) from None
    return guard
