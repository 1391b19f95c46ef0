"""A call on its way through the server: its caller, and its id in the log."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message
from grpc import StatusCode, aio

from stepwell.v1.transactions_pb2 import CommitRequest
from stepwell_server.api.edge import validate
from stepwell_server.api.edge.access import METHODS, OPEN_METHODS, Caller, Category, Policy, Principal
from stepwell_server.api.edge.shares import Turn
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import (
    Internal,
    PermissionDenied,
    ServerDeadline,
    StepwellError,
    Unauthenticated,
)
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine.ids import new_id

Context: TypeAlias = aio.ServicerContext[Any, Any]

M = TypeVar("M", bound=Message)
New = TypeVar("New")

ANYBODY = Principal("")
"""A caller that has not been asked who it is."""


@dataclass(slots=True)
class Call:
    """One RPC, unary or stream."""

    method: str
    streaming: bool
    context: Context
    policy: Policy
    tuning: Tuning = DEFAULT
    log_id: str = field(default_factory=new_id)
    principal: Principal = ANYBODY
    code: StatusCode = StatusCode.OK
    waiting_place: Callable[[], AbstractContextManager[None]] = nullcontext
    """Takes a place among those calls that wait, so that others can have the one of this call."""
    turn: Turn = field(default_factory=Turn)
    """To be taken by each of its messages."""
    granted: set[tuple[str, Category | None]] = field(default_factory=set)
    """Questions to which the policy said yes."""

    @property
    def caller(self) -> Caller:
        """The caller before it is authenticated."""
        return Caller(peer=self.context.peer(), metadata=dict(self.context.invocation_metadata() or ()))

    async def authenticate(self) -> None:
        """Ask the policy for the principal, within a deadline. Health is open to every caller."""
        if self.method in OPEN_METHODS:
            return
        try:
            deadline = self.tuning.policy_deadline
            async with asyncio.timeout(deadline) as limit:
                self.principal = await self.policy.authenticate(self.caller)
        except TimeoutError:
            if not limit.expired():
                raise
            late = f"the policy did not say within {deadline:g} seconds who the caller is"
            raise ServerDeadline(late, limit=deadline) from None

    def allows(self, namespace: str, category: Category | None = None) -> bool:
        """Whether the caller may do this there: the category of the method, or the one that is given.

        A method that is not in the table is denied to every caller.
        """
        category = category or METHODS.get(self.method)
        return category is not None and self.policy.allows(self.principal, category, namespace) is True

    def check(self, namespace: str, category: Category | None = None) -> None:
        """Refuse the call if its caller may not do this there. A stream asks when it has named a namespace."""
        if not self.allows(namespace, category):
            denied = category or METHODS.get(self.method) or "none"
            raise PermissionDenied("the caller may not do this here", category=denied)

    def permit(self, namespace: str, category: Category | None = None) -> None:
        """Refuse the call as `check` does, and remember the question for as long as a stream is open."""
        self.check(namespace, category)
        self.granted.add((namespace, category))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave to others, while the call only waits, what it has of the server."""
        with self.waiting_place(), self.turn.rest():
            yield

    def broken(self) -> Internal:
        """The refusal of a call that met a bug: the log has the rest under its id."""
        return Internal(f"internal error; the server's log has it as {self.log_id}", log_id=self.log_id)

    async def authorise(self) -> None:
        """Ask again, of a stream that is open for long, whether its caller may be here."""
        opened_by = self.principal.name
        await self.authenticate()
        if self.principal.name != opened_by:  # whose session it is, and whose place
            raise Unauthenticated("the credential belongs to another principal now; open a new stream")
        for namespace, category in list(self.granted):
            self.permit(namespace, category)


current: ContextVar[Call] = ContextVar("current_call")
"""The call that this task serves."""


def waiting(longest: Micros) -> AbstractContextManager[None]:
    """To be entered by a call that was asked to wait, for as long as it may."""
    return current.get().waiting() if longest else nullcontext()


def readable(item: M, read: Callable[[M], New]) -> New | StepwellError:
    """Read an item of a batch, or return the reason why it is refused: one bad item is refused alone."""
    try:
        validate.standard.check(item)
        return read(item)
    except StepwellError as refusal:
        return refusal


def asked_of(message: Message, request_id: str = "") -> Asked:
    """Identify a call, or an item of a batch, by its request_id and a hash of its content."""
    request_id = request_id or message.request_id  # type: ignore[attr-defined]
    call = current.get()
    return Asked(call.principal.name, call.method, request_id, _hash(message) if request_id else b"")


def _hash(message: Message) -> bytes:
    """Hash what a message asks for: all but its request_id and its trace, which a repetition need not have kept."""
    body = type(message)()
    body.CopyFrom(message)
    for part in (body, *_operations(body)):
        for name in ("request_id", "trace"):
            if name in part.DESCRIPTOR.fields_by_name:
                part.ClearField(name)
    return hashlib.sha256(body.SerializeToString(deterministic=True)).digest()


def _operations(message: Message) -> list[Message]:
    """The operations of a transaction that say what to do."""
    if not isinstance(message, CommitRequest):
        return []
    return [getattr(one, name) for one in message.operations if (name := one.WhichOneof("operation"))]
