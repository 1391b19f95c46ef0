"""Request ids: what a call that changes something is recognised by when it is repeated.

They are random, but for calls that are made inside of a body (of a step, or a hook's handler). A body can be executed
again, in another process; there its calls get the same ids again, so that the server answers them and does nothing
twice. Such an id is made of what executes, of all that the call asks for, and of how many equal calls the body made
before: a body that takes another way next time gets ids of its own for what it asks for instead.
"""

from __future__ import annotations

import json
from contextvars import Context, ContextVar
from hashlib import blake2b
from itertools import count
from typing import TypeVar
from uuid import uuid4

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

_ID_BYTES = 16


class RequestIds:
    """The request ids of one execution of a body: what it is the execution of, and what it has asked for."""

    __slots__ = ("_asked", "_identity")

    def __init__(self, *identity: str | int) -> None:
        """`identity` is the same in every execution of the body, and no other body's."""
        self._identity = identity
        self._asked: dict[bytes, count[int]] = {}

    def enter(self, context: Context) -> Context:
        """The context, in which calls get these ids from now on: also in tasks and `to_thread`."""
        context.run(_ids.set, self)
        return context

    def next_for(self, message: Message) -> str:
        """The id of a call, from all that it asks for."""
        content = message.DESCRIPTOR.full_name.encode() + b"\0" + message.SerializeToString(deterministic=True)
        # setdefault and next are atomic: a body may call from several threads.
        number = next(self._asked.setdefault(_digest(content), count()))
        return _digest(json.dumps(self._identity).encode(), content, b"%d" % number).hex()


_ids: ContextVar[RequestIds | None] = ContextVar("stepwell_request_ids", default=None)


def identified(message: M) -> M:
    """The message, with a request id."""
    ids = _ids.get()
    message.request_id = uuid4().hex if ids is None else ids.next_for(message)  # type: ignore[attr-defined]
    return message


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=_ID_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()
