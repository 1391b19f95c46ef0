"""Leases: how long work is held, by whom, and what must happen in time."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from stepwell_server.domain.values.errors import InvalidSessionId, LeaseLost
from stepwell_server.domain.values.times import SECOND, Micros

_SESSION_ID = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The times of the protocol. All of them run on `lease_now()`, which is always real."""

    lease: Micros = 30 * SECOND
    """From an acknowledgement or renewal until the work is given to another."""
    ack_window: Micros = 10 * SECOND
    """From a claim until it must be acknowledged: a worker that never got the task cannot keep it."""
    reconnect_grace: Micros = 5 * SECOND
    """From the end of a stream without goodbye until its work is given to another."""

    @property
    def trusted_gap(self) -> Micros:
        """Leases expire only while the lease clock is fresh. If it is stale, renewals were impossible.

        Shorter than the shortest lease of a stream that lives, which is one that was not acknowledged yet.
        """
        return min(self.lease // 2, self.ack_window * 3 // 4)


def session_key(namespace: str, principal: str, session_id: str) -> str:
    """Return the key by which the server knows a session, and refuse a malformed id.

    The key differs for every namespace and principal: the id of a stranger's session names a session of the caller's
    own. So only the holder can reach a lease, or learn that there is one.
    """
    if _SESSION_ID.fullmatch(session_id) is None:
        raise InvalidSessionId("a session id is 32 hexadecimal digits", field="session_id")
    return hashlib.sha256("\0".join((namespace, session_id, principal)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Owner:
    """A holder of work: a session, through one of its connections. A later connection supersedes an earlier one."""

    session_id: str
    """Its `session_key`."""
    connection: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A lease, as its holder names it."""

    task_id: int
    fence: int

    def lost(self) -> LeaseLost:
        """The refusal of a report under a lease that is gone."""
        return LeaseLost("the task is no longer held", task_id=self.task_id, fence=self.fence)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that a task is born with: to whom, under which fence, until when it must be acknowledged."""

    owner: Owner
    fence: int
    until: Micros
