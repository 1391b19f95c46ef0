"""A call on its way through the server: who makes it, and what the log knows it by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

from google.protobuf.message import Message
from grpc import StatusCode, aio

from stepwell_server.api import validate
from stepwell_server.api.access import Principal
from stepwell_server.domain.errors import StepwellError
from stepwell_server.domain.times import Micros
from stepwell_server.engine.intake import NO_ITEM, Item
from stepwell_server.engine.requests import Request

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
    log_id: str = field(default_factory=lambda: uuid4().hex)
    principal: Principal = ANYBODY
    code: StatusCode = StatusCode.OK
    permit: Callable[[str], None] = lambda namespace: None
    """Refuses the call if its caller may not do this in that namespace. A stream asks when it has named one."""
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Takes a place among those calls that wait, so that others can have the one of this call."""
    authenticate: Callable[[], Awaitable[None]] | None = None
    namespaces: set[str] = field(default_factory=set)
    """Those that a stream has asked for."""

    async def authorise(self) -> None:
        """Ask again, of a stream that is open for long, whether its caller may be here."""
        if self.authenticate is not None:
            await self.authenticate()
        for namespace in list(self.namespaces):
            self.permit(namespace)


current: ContextVar[Call] = ContextVar("current_call")
"""The call that this task serves."""


def waiting(longest: Micros) -> AbstractContextManager[None]:
    """To be entered by a call that was asked to wait, for as long as it may."""
    return current.get().waiting() if longest else nullcontext()


def readable(item: M, read: Callable[[M], New]) -> New | StepwellError:
    """What an item of a batch asks for, or why it cannot be: one bad item is refused alone."""
    try:
        validate.check(item)
        return read(item)
    except StepwellError as refusal:
        return refusal


def item_of(message: Message, request_id: str = "") -> Item:
    """How one thing of a batch is recognised, whether it came alone or with others."""
    request_id = request_id or message.request_id  # type: ignore[attr-defined]
    return Item(request_id, _without_id(message)) if request_id else NO_ITEM


def request_of(message: Message) -> Request:
    """What a mutating use case must know of the call: the message without its request_id is what it asks."""
    call = current.get()
    return Request(
        principal=call.principal.name,
        method=call.method,
        request_id=message.request_id,  # type: ignore[attr-defined]
        body=_without_id(message),
    )


def _without_id(message: Message) -> bytes:
    body = type(message)()
    body.CopyFrom(message)
    body.ClearField("request_id")
    return body.SerializeToString(deterministic=True)
