"""Parsing: the bytes of a request become a message, at a price that is known before it is paid."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError, Message

from stepwell_server.api.edge import counting as wire
from stepwell_server.api.edge.validate import Validator
from stepwell_server.domain.values.errors import MalformedRequest
from stepwell_server.domain.values.limits import Limits
from stepwell_server.engine.spine.turns import Turns

COUNTED_BYTES = 64 * 1024
"""Messages with more bytes are counted before they are parsed; of others a parser makes too little to matter."""


class Parser:
    """Parses requests. A message that has too much in it is refused before objects are made of it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._validator = Validator(limits)
        self._turns = Turns()

    async def parse(self, deserialize: Any, raw: bytes) -> Message:
        """The message of a unary call, checked."""
        message = await self.decode(deserialize, raw)
        del raw
        await self._turns.work(self._validator.parts(message))
        return message

    async def decode(self, deserialize: Any, raw: bytes) -> Message:
        """A message of a stream. Its reader checks its parts one by one."""
        if len(raw) > COUNTED_BYTES:
            await self._turns.work(wire.count(raw, deserialize.__self__.DESCRIPTOR, self._limits))
        try:
            message: Message = deserialize(raw)
        except DecodeError:
            raise MalformedRequest("the request is not a valid message of its type") from None
        self._validator.count(message)
        return message
