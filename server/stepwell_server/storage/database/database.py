"""The database: the only way to a transaction.

`run_tx` takes a plain function of the transaction. The function cannot await, so no user code, network call or stream
write can happen inside a transaction. On SQLite the whole function is one hop to the writer's thread. On PostgreSQL
its statements are awaited underneath, by SQLAlchemy's greenlet bridge (docs/adr/0002).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import structlog
from sqlalchemy import Connection

from stepwell_server.domain.values.errors import (
    Conflict,
    DatabaseSlow,
    DatabaseUnavailable,
    ServerBusy,
    StepwellError,
)
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.storage.database.failpoints import AFTER_COMMIT, BEFORE_COMMIT, Failpoints

T = TypeVar("T")
Tx: TypeAlias = Connection
Work: TypeAlias = Callable[[Tx], T]

MOST_ATTEMPTS = 5
SHORTEST_BACKOFF = 0.005
LONGEST_BACKOFF = 0.1

log = structlog.get_logger()


class Fault(Enum):
    """The meaning of a driver's error for its transaction."""

    CONFLICT = auto()  # lost against another transaction; rolled back whole, so it can be run again
    DISCONNECTED = auto()  # the database went away; run again only if it cannot have committed
    TIMEOUT = auto()  # the database is there and took too long, or its disk refuses; trying again makes it worse
    FULL = auto()  # its disk has no room for this; rolled back whole
    DAMAGED = auto()  # what it has stored cannot be read; only an operator can help
    BUSY = auto()  # all connections are in use
    BUG = auto()  # ours: nothing to retry


@dataclass(frozen=True, slots=True)
class TxOptions:
    """How a transaction is run. The label names it in logs and at failpoints."""

    label: str = "call"
    read_only: bool = False
    attempts: int = MOST_ATTEMPTS
    reserved: bool = False
    """On a connection that calls cannot use up: for group commits, leases and health."""
    one_moment: bool = False
    """All statements see the same moment. For transactions that only read."""
    single: bool = False
    """It is one statement, which commits by itself where the database can do that: on connections of its own."""


CALL = TxOptions()
"""A transaction of a call that changes something."""
READ = TxOptions(label="read", read_only=True)
"""A transaction that only reads."""
READ_ONE_MOMENT = TxOptions(label="read", read_only=True, one_moment=True)
"""A transaction that only reads, and draws a conclusion from several statements together."""
UNHURRIED = TxOptions(label="unhurried")
"""A transaction that takes as long as it takes."""


class LostRace(Exception):
    """Raised by the work itself: what it saw changed before it could lock it. The transaction is run again."""

    def __init__(self, lost: Collection[Hashable] = ()) -> None:
        self.lost = frozenset(lost)
        """The parts of the work that lost, where the rest can go on without them."""


class CommitUnknown(Exception):
    """The connection was lost while committing: the transaction may or may not have happened."""


class Backend(Protocol):
    """One database product. `storage/database/sqlite.py` and `storage/database/postgresql.py` are the two there are."""

    async def attempt(self, work: Work[T], options: TxOptions) -> T:
        """Run the function in one transaction and commit. An unknown outcome is raised as `CommitUnknown`."""

    async def attempt_unhurried(self, work: Work[T]) -> T:
        """Like `attempt`, alone on a connection without time limits: for migrations."""

    def classify(self, error: BaseException) -> Fault:
        """Classify an error."""

    async def close(self) -> None:
        """Close every connection."""


class Database:
    """A backend with the rules for retries, cancellation and reachability around it."""

    def __init__(self, backend: Backend, failpoints: Failpoints | None = None, tuning: Tuning = DEFAULT) -> None:
        self.backend = backend
        """The database product. A test puts a faulty one in its place."""
        self._tuning = tuning
        self.failpoints = failpoints or Failpoints()
        self._running: set[asyncio.Task[Any]] = set()
        self.reachable = True
        """Whether the last contact succeeded."""
        self.faults: Counter[Fault] = Counter()
        """How many transactions failed since this process began, by cause."""

    async def run_tx(self, work: Work[T], options: TxOptions = CALL) -> T:
        """Run the function in a transaction, again if it lost a conflict, and return what it returned.

        Shielded: a caller that is cancelled stops waiting, while the transaction ends whole. The function may run
        several times, so it must not change anything but the database.
        """
        # Transactions outlive callers that went away, so they are counted and not the callers.
        if len(self._running) >= self._tuning.transactions and not options.reserved:
            raise ServerBusy("too many transactions at once; repeat the call", retry_after=0.5)
        task = asyncio.create_task(self._run(work, options))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def run_unhurried(self, work: Work[T]) -> T:
        """Run the function in a transaction without time limits: for migrations, which do once what is left to do.

        So it is run again also if its commit may have happened.
        """
        return await self._insist(lambda: self.backend.attempt_unhurried(work), UNHURRIED, repeatable=True)

    async def close(self) -> None:
        """Let running transactions end, then close every connection."""
        while self._running:
            await asyncio.wait(self._running)
        await self.backend.close()

    async def _run(self, work: Work[T], options: TxOptions) -> T:
        watched = self._watched(work, options)
        attempt = partial(self.backend.attempt, watched, options)
        result = await self._insist(attempt, options, repeatable=options.read_only)
        self.failpoints.reach(AFTER_COMMIT, options.label)
        return result

    async def _insist(self, attempt: Callable[[], Awaitable[T]], options: TxOptions, *, repeatable: bool) -> T:
        """Attempt it again while that may help. `repeatable`: also if the last attempt may have committed."""
        number = 1
        while True:
            try:
                result = await attempt()
            except Exception as error:
                if number >= options.attempts or not self._worth_another(error, repeatable):
                    self._raise(error)
                log.debug("transaction_retried", label=options.label, attempt=number, error=type(error).__name__)
                await asyncio.sleep(_backoff(number))
                number += 1
            else:
                self.reachable = True
                return result

    def _watched(self, work: Work[T], options: TxOptions) -> Work[T]:
        def watched(tx: Tx) -> T:
            if options.single:  # afterwards it may be committed
                self.failpoints.reach(BEFORE_COMMIT, options.label)
                return work(tx)
            result = work(tx)
            self.failpoints.reach(BEFORE_COMMIT, options.label)
            return result

        return watched

    def _worth_another(self, error: Exception, repeatable: bool) -> bool:
        if isinstance(error, CommitUnknown):
            return repeatable
        return isinstance(error, LostRace) or self.backend.classify(error) in (Fault.CONFLICT, Fault.DISCONNECTED)

    def _raise(self, error: Exception) -> NoReturn:
        """Raise what the caller is to know of the error: a refusal, or the error itself if it is our bug."""
        match error:
            case StepwellError():
                raise error
            case CommitUnknown():
                fault = Fault.DISCONNECTED
            case LostRace():
                fault = Fault.CONFLICT
            case _:
                fault = self.backend.classify(error)
        self.faults[fault] += 1
        match fault:
            case Fault.CONFLICT:
                raise Conflict("the transaction lost against others too often; repeat the call") from error
            case Fault.DISCONNECTED:
                self.reachable = False
                raise DatabaseUnavailable("the database does not answer; repeat the call", retry_after=1.0) from error
            case Fault.TIMEOUT:
                raise DatabaseSlow("the database took too long; repeat the call", retry_after=1.0) from error
            case Fault.FULL:
                full = "the disk of the database is full: nothing of this was stored; repeat it when there is room"
                raise DatabaseSlow(full, retry_after=1.0) from error
            case Fault.DAMAGED:
                damaged = "the database is damaged: nothing of this was stored; its operator must restore it"
                raise DatabaseUnavailable(damaged, retry_after=1.0) from error
            case Fault.BUSY:
                raise ServerBusy("all database connections are in use; repeat the call", retry_after=0.5) from error
            case Fault.BUG:
                raise error

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StepwellError):
            log.debug("transaction_failed", error=repr(error))  # its caller may have gone


def _backoff(attempt: int) -> float:
    """Full jitter, so that those who collided do not meet again."""
    return random.uniform(0, min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2**attempt))
