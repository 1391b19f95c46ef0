"""The probe's protocol: one kind of message, sent in batches in every direction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "stepwell.bench.Probe"
NAP = 2.0
MOST = 500
"""Commands in a message."""


class Op(IntEnum):
    """What a command says, and which way it goes."""

    START = 1
    """Client to server, then server to worker: run a workflow of a shape."""
    RESULT = 2
    """Worker to server: a step's result. Server to worker: it is stored."""
    SLEEP = 3
    """Worker to server: wake me. Server to worker: now."""
    EVENT = 4
    """Client to server, then server to worker: what a workflow waits for."""
    END = 5
    """Worker to server, then server to client: the workflow's result."""


class Shape(IntEnum):
    """The workflows of the loads."""

    THREE_STEPS = 1
    SLEEPER = 2
    WAITER = 3


def _messages() -> tuple[Any, Any]:
    """Build the message classes without generated code, so that the probe is these files alone."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="probe.proto", package="stepwell.bench", syntax="proto3")
    command = file.message_type.add(name="Command")
    types = {
        "op": field.TYPE_INT32,
        "workflow": field.TYPE_INT64,
        "number": field.TYPE_INT32,
        "at": field.TYPE_DOUBLE,
        "data": field.TYPE_STRING,
    }
    for number, (name, kind) in enumerate(types.items(), start=1):
        command.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    file.message_type.add(name="Batch").field.add(
        name="commands",
        number=1,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_REPEATED,
        type_name=".stepwell.bench.Command",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"stepwell.bench.{name}") for name in ("Command", "Batch")]
    return message_factory.GetMessageClass(found[0]), message_factory.GetMessageClass(found[1])


Command, Batch = _messages()


class Outbox:
    """Sends whatever is queued as one message, and meanwhile queues."""

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write
        self._queue: deque[Any] = deque()
        self._filled = asyncio.Event()
        self._sending = asyncio.create_task(self._send())

    def put(self, **fields: Any) -> None:
        """Queue a command."""
        self._queue.append(Command(**fields))
        self._filled.set()

    async def _send(self) -> None:
        while True:
            await self._filled.wait()
            commands = [self._queue.popleft() for _ in range(min(len(self._queue), MOST))]
            if not self._queue:
                self._filled.clear()
            await self._write(Batch(commands=commands))
