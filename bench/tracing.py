"""Marks of what crosses a process's borders: messages and statements, each with its time. Nothing in the product knows.

The marks are taken by wrapping gRPC's and the drivers' own functions before the program starts, kept in memory, and
written to a file when it ends. Their clock is the machine's, so that marks of several processes lie on one line.

python -m bench.tracing FILE MODULE [ARGUMENT ...]      (runs the module, traced)
"""

from __future__ import annotations

import atexit
import pickle
import runpy
import sqlite3
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import asyncpg
import asyncpg.protocol
import grpc
from grpc.aio import _channel

SHAPES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
STATEMENTS = ("bind_execute", "bind_execute_many", "execute", "query")
OTHER_TRIPS = ("prepare", "bind")
"""Of asyncpg's protocol, as are the statements; each is one round trip."""


class Kind(StrEnum):
    """What happened."""

    WRITES = "writes"
    READS = "reads"
    ASKS = "asks"
    """A statement is sent to the database."""
    TRIP = "trip"
    """Something else is: to prepare a statement is a round trip, too."""
    IS_ANSWERED = "is answered"


class Mark(NamedTuple):
    """One crossing of a border."""

    at: float
    kind: Kind
    what: str
    """The message's full name, or the statement."""
    data: bytes = b""
    """The message."""
    connection: int = 0
    """To the database: which of them."""


Serialize: TypeAlias = Callable[[Any], bytes]
Parse: TypeAlias = Callable[[bytes], Any]
marks: list[Mark] = []


def main(file: str, module: str, *arguments: str) -> None:
    """Run a module as a program, and write down its marks when it ends."""
    atexit.register(lambda: Path(file).write_bytes(pickle.dumps([tuple(mark) for mark in marks])))
    _trace_messages()
    _trace_postgresql()
    _trace_sqlite()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def read(file: Path) -> list[Mark]:
    """The marks of a process that has ended."""
    return [Mark(*values) for values in pickle.loads(file.read_bytes())]


# ---- messages


def _trace_messages() -> None:
    """Wrap what turns messages into bytes and back, of all calls that are made and of all that are served."""
    for shape in SHAPES:
        setattr(_channel.Channel, shape, _calling(getattr(_channel.Channel, shape)))
        maker = f"{shape}_rpc_method_handler"
        setattr(grpc, maker, _serving(getattr(grpc, maker)))


def _calling(open_call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(open_call)
    def traced(
        self: Any,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        *others: Any,
        **more: Any,
    ) -> Any:
        return open_call(self, method, _written(request_serializer), _read(response_deserializer), *others, **more)

    return traced


def _serving(make_handler: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make_handler)
    def traced(behavior: Any, request_deserializer: Any = None, response_serializer: Any = None) -> Any:
        return make_handler(behavior, _read(request_deserializer), _written(response_serializer))

    return traced


def _written(serialize: Serialize | None) -> Serialize | None:
    def traced(message: Any) -> bytes:
        assert serialize is not None
        data = serialize(message)
        marks.append(Mark(time.perf_counter(), Kind.WRITES, message.DESCRIPTOR.full_name, data))
        return data

    return traced if serialize is not None else None


def _read(parse: Parse | None) -> Parse | None:
    def traced(data: bytes) -> Any:
        at = time.perf_counter()
        assert parse is not None
        message = parse(data)
        marks.append(Mark(at, Kind.READS, message.DESCRIPTOR.full_name, data))
        return message

    return traced if parse is not None else None


# ---- statements


def _trace_postgresql() -> None:
    """Mark every round trip of asyncpg: when it is asked and when it is answered."""

    def timed(name: str) -> Callable[..., Any]:
        plain = getattr(asyncpg.protocol.Protocol, name)

        async def traced(self: Any, state: Any, *arguments: Any, **more: Any) -> Any:
            statement = arguments[0] if name == "prepare" else getattr(state, "query", state)
            kind = Kind.ASKS if name in STATEMENTS else Kind.TRIP
            marks.append(Mark(time.perf_counter(), kind, str(statement), connection=id(self)))
            try:
                return await plain(self, state, *arguments, **more)
            finally:
                marks.append(Mark(time.perf_counter(), Kind.IS_ANSWERED, str(statement), connection=id(self)))

        return traced

    traced = {name: timed(name) for name in (*STATEMENTS, *OTHER_TRIPS)}
    asyncpg.protocol.Protocol = type("TracedProtocol", (asyncpg.protocol.Protocol,), traced)


def _trace_sqlite() -> None:
    """Mark when SQLite begins each statement; it does not say when one ends."""

    def note(connection: int, statement: str) -> None:
        marks.append(Mark(time.perf_counter(), Kind.ASKS, statement, connection=connection))

    def connect(plain: Callable[..., sqlite3.Connection], *arguments: Any, **more: Any) -> sqlite3.Connection:
        connection = plain(*arguments, **more)
        connection.set_trace_callback(partial(note, id(connection)))
        return connection

    for module in (sqlite3, sqlite3.dbapi2):
        setattr(module, "connect", partial(connect, module.connect))  # noqa: B010


if __name__ == "__main__":
    from bench import tracing  # the module that others import, not this second copy of it

    tracing.main(*sys.argv[1:])
