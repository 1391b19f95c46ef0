"""PostgreSQL: any number of replicas over one database.

READ COMMITTED is set on every connection whatever the database's default, because the locking rules rely on each
statement seeing what was committed before it. Every wait has a limit, the innermost the shortest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import asyncpg
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.storage.database.database import CommitUnknown, Fault, T, TxOptions, Work

POOL_SIZE = 4
READING_POOL_SIZE = 4
RESERVED_POOL_SIZE = 3
"""For group commits, their slow lane, and leases with health: load cannot starve these."""
SINGLE_POOL_SIZE = 2
"""For statements that commit by themselves: reports and births, beside each other."""
CONNECT_TIMEOUT = 2.0
COMMAND_TIMEOUT = 5.0

_HURRIED = {
    "lock_timeout": "1s",
    "statement_timeout": "3s",
    "idle_in_transaction_session_timeout": "10s",
}
_INDEXED = {
    # A plan is made once, often while tables are empty, and kept: then a scan looks cheap, and stays in use when they
    # have grown. Every statement of ours has an index; use it from the first row on.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
SESSION = {
    "application_name": "stepwell",
    # Up to PostgreSQL 17 a plan in which a scan could not be avoided costs so much that it is compiled each time.
    "jit": "off",
    "client_connection_check_interval": "2s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

_ALONE = {
    "default_transaction_isolation": "read committed",  # no BEGIN says it
    "plan_cache_mode": "force_generic_plan",
}
"""For connections whose statements commit by themselves."""
_READING = {
    # Of connections without transactions: a statement sees what is committed before it in any case, and BEGIN and
    # COMMIT are two trips more.
    "default_transaction_read_only": "on",
}

_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
_OUTAGES = frozenset({"57P01", "57P02", "57P03", "57P05", "53300", "25006", "25P03"})
_TIMEOUTS = frozenset({"57014", "53200", "58030"})
"""Cancelled by a time limit, or out of memory or luck with I/O."""
_OF_THE_DISK = {"53100": Fault.FULL, "XX001": Fault.DAMAGED, "XX002": Fault.DAMAGED}


class PostgresqlBackend:
    """A pool of connections for everything, and fresh ones for migrations."""

    def __init__(self, url: URL, tuning: Tuning = DEFAULT) -> None:
        self._url = _for_asyncpg(url)
        self._pool = _pool(self._url, POOL_SIZE, tuning)
        self._reading = _pool(self._url, READING_POOL_SIZE, tuning, _READING)
        self._reserved = _pool(self._url, RESERVED_POOL_SIZE, tuning)
        self._single = _pool(self._url, SINGLE_POOL_SIZE, tuning, _ALONE)

    async def attempt(self, work: Work[T], options: TxOptions) -> T:
        """Run the function in one transaction; its statements are awaited underneath. Calls that read need none.

        Calls whose statements must all see the same moment do need one.
        """
        if options.single:
            async with self._single.connect() as connection:
                return await _by_itself(connection, work)
        if options.read_only and not (options.reserved or options.one_moment):
            async with self._reading.connect() as connection:
                return await connection.run_sync(work)
        pool = self._reserved if options.reserved else self._pool
        async with pool.connect() as connection:
            if options.read_only:
                await connection.execution_options(postgresql_readonly=True)
            if options.one_moment:
                await connection.execution_options(isolation_level="REPEATABLE READ")
            return await _in_transaction(connection, work)

    async def attempt_unhurried(self, work: Work[T]) -> T:
        """Run the function on a connection of its own that may wait as long as it takes."""
        engine = _engine(self._url, SESSION, None, poolclass=NullPool)
        async with engine.connect() as connection:
            return await _in_transaction(connection, work)

    def classify(self, error: BaseException) -> Fault:
        """Tell conflicts and outages from bugs, by SQLSTATE where there is one."""
        if isinstance(error, PoolTimeout):
            return Fault.BUSY
        original = error.orig if isinstance(error, DBAPIError) else error
        driver = getattr(original, "__cause__", None) or original
        state = _sqlstate(original)
        if state in _CONFLICTS or isinstance(driver, asyncpg.InvalidCachedStatementError):
            return Fault.CONFLICT
        if state in _OF_THE_DISK:
            return _OF_THE_DISK[state]
        if state in _TIMEOUTS:
            return Fault.TIMEOUT
        if state in _OUTAGES or state.startswith("08"):
            return Fault.DISCONNECTED
        # A connection that died in the middle of a message, or was never made, has no SQLSTATE.
        lost = (OSError, TimeoutError, InterfaceError, asyncpg.InternalClientError, asyncpg.InterfaceError)
        return Fault.DISCONNECTED if any(isinstance(one, lost) for one in (error, original, driver)) else Fault.BUG

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.dispose()
        await self._reading.dispose()
        await self._reserved.dispose()
        await self._single.dispose()


def _for_asyncpg(url: URL) -> URL:
    """The URL in the driver's words: it calls sslmode ssl, and the session has the application's name already."""
    options = {key: value for key, value in url.query.items() if key not in ("sslmode", "application_name")}
    if "sslmode" in url.query:
        options["ssl"] = url.query["sslmode"]
    return url.set(drivername="postgresql+asyncpg", query=options)


async def _in_transaction(connection: AsyncConnection, work: Work[T]) -> T:
    transaction = await connection.begin()
    result = await connection.run_sync(work)
    try:
        await transaction.commit()
    except Exception as error:
        if _sqlstate(getattr(error, "orig", error)) in _CONFLICTS:
            raise  # refused, so certainly not committed
        raise CommitUnknown from error
    return result


async def _by_itself(connection: AsyncConnection, work: Work[T]) -> T:
    """Run the function, whose one statement commits by itself."""
    try:
        return await connection.run_sync(work)
    except (DBAPIError, OSError, TimeoutError, asyncpg.InterfaceError) as error:
        if _may_have_happened(error):
            raise CommitUnknown from error
        raise


def _may_have_happened(error: BaseException) -> bool:
    """Whether a statement that failed like this may have been carried out: no answer of the database says otherwise."""
    original = error.orig if isinstance(error, DBAPIError) else error
    driver = getattr(original, "__cause__", None) or original
    if isinstance(driver, asyncpg.DataError | asyncpg.InvalidCachedStatementError):
        return False  # it was never sent
    state = _sqlstate(original)
    return not state or state.startswith(("08", "57P"))


def _sqlstate(error: object) -> str:
    for candidate in (error, getattr(error, "__cause__", None)):
        state = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if state:
            return str(state)
    return ""


def _pool(url: URL, size: int, tuning: Tuning, by_itself: Mapping[str, str] | None = None) -> AsyncEngine:
    """Connections with limits. With settings for them, each statement on them commits by itself."""
    session = {**SESSION, **_HURRIED, **_INDEXED, **(by_itself or {})}
    pooled = _engine(url, session, COMMAND_TIMEOUT, pool_size=size, max_overflow=0, pool_timeout=tuning.pool_timeout)
    return pooled if by_itself is None else pooled.execution_options(isolation_level="AUTOCOMMIT")


def _engine(
    url: URL,
    session: dict[str, str],
    command_timeout: float | None,
    isolation_level: str = "READ COMMITTED",
    **options: Any,
) -> AsyncEngine:
    return create_async_engine(
        url,
        isolation_level=isolation_level,
        hide_parameters=True,  # errors are logged, and parameters are users' data
        connect_args={
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": command_timeout,
            "server_settings": session,
        },
        **options,
    )
