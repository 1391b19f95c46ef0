"""Sessions: how workers introduce themselves, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepwell_server.domain.spine.definitions import Definition
from stepwell_server.domain.spine.handlers import Handler, Registration
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.errors import (
    DuplicateHandler,
    InvalidField,
    NamespaceNotFound,
    ProtocolUnsupported,
)
from stepwell_server.domain.values.names import DESCRIPTION_LENGTH
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.definitions import declare
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.storage import namespaces
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.spine import handlers, sessions
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.sessions import Session

PROTOCOL = (1, 1)
"""Lowest and highest version of the worker protocol that is spoken."""
MOST_HANDLERS = 1000
WORKER_ID_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Hello:
    """How a worker introduces itself."""

    worker_id: str
    session_id: str
    """Its `session_key`, here and in all calls below."""
    sdk: str
    protocol_version: int
    namespace: str
    hosted: tuple[Registration, ...]
    held: tuple[Held, ...] = ()

    def check(self, kinds: Kinds) -> None:
        """Refuse what cannot be."""
        lowest, highest = PROTOCOL
        if not lowest <= self.protocol_version <= highest:
            spoken = f"this server speaks versions {lowest} to {highest} of the protocol, not {self.protocol_version}"
            raise ProtocolUnsupported(spoken, minimum=lowest, maximum=highest)
        for name, text in (("worker_id", self.worker_id), ("sdk", self.sdk)):
            if len(text) > WORKER_ID_LENGTH:
                raise InvalidField(f"{name} is longer than {WORKER_ID_LENGTH} characters", field=name)
        if len(self.hosted) > MOST_HANDLERS:
            raise InvalidField(f"a worker hosts at most {MOST_HANDLERS} handlers", field="handlers")
        seen: set[Handler] = set()
        for registration in self.hosted:
            handler = registration.handler
            kinds[handler.kind].check(registration)
            if len(registration.declared.get("description", "")) > DESCRIPTION_LENGTH:
                long = f"description is longer than {DESCRIPTION_LENGTH} characters"
                raise InvalidField(long, field="description")
            if handler in seen:
                raise DuplicateHandler("two handlers have the same kind and name", kind=handler.kind, name=handler.name)
            seen.add(handler)

    def session(self, replica_id: str, hosted: Mapping[Handler, Definition]) -> Session:
        """The session that it begins, or goes on with. Empty: it has no stream."""
        hashes = {handler: definition.hash for handler, definition in hosted.items()}
        return Session(self.session_id, self.namespace, self.worker_id, self.sdk, replica_id, hashes)


def register(tx: Tx, namespace: str, hosted: Mapping[Handler, Definition], most: int) -> frozenset[Handler]:
    """Store what a worker hosts; refuse a namespace that does not exist, or one name too many in it.

    Returns the handlers whose definition changed.
    """
    if namespaces.get(tx, namespace) is None:
        raise NamespaceNotFound("there is no such namespace", namespace=namespace)
    if not hosted:
        return frozenset()
    handlers.admit(tx, namespace, hosted, most)
    return declare(tx, hosted)


def touch(tx: Tx, session_id: str) -> Session | None:
    """The session, which is alive: a session without a stream says so by each of its calls."""
    session = sessions.get(tx, session_id)
    if session is not None and not session.replica_id:
        sessions.confirm(tx, [Owner(session_id, session.connection)])
    return session


async def state(replica: Replica, session_id: str, held: Held, offset: int = 0) -> Assignment:
    """All that a worker must know of a task that it holds, without the first parts if it has those."""

    def work(tx: Tx) -> Task | None:
        task = store.get(tx, [held.task_id]).get(held.task_id)
        mine = task is not None and task.owner is not None and task.owner.session_id == session_id
        return task if task is not None and mine and task.fence == held.fence else None

    task = await replica.db.run_tx(work, READ)
    if task is None:
        raise held.lost()
    (assignment,) = await replica.assignments([task])
    assert assignment.input is not None
    return Assignment(task, assignment.input.after(max(0, offset)))
