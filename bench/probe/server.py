"""The probe's server: streams in, one commit at a time, streams out. It keeps what it acknowledges, no more.

python -m bench.probe.server DATABASE_URL
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import uvloop
from grpc import aio

from bench.drivers.orders import announce, next_order
from bench.probe.messages import SERVICE, Batch, Command, Op, Outbox
from bench.probe.store import Committer, open_store

EVENT_NUMBER = 1000


class Server:
    """All workflows, the worker that runs them, and the callers that wait for them."""

    def __init__(self, committer: Committer) -> None:
        self.committer = committer
        self.worker: Outbox | None = None
        self.callers: dict[int, Callable[[Any], None]] = {}

    async def work(self, batches: AsyncIterator[Any], context: Any) -> None:
        """The worker's stream."""
        self.worker = Outbox(context.write)
        async for batch in batches:
            for command in batch.commands:
                self._from_worker(command)

    async def call(self, batches: AsyncIterator[Any], context: Any) -> None:
        """A client's stream."""
        outbox = Outbox(context.write)
        async for batch in batches:
            for command in batch.commands:
                if command.op == Op.START:
                    self._start(command, lambda end: outbox.put(op=Op.END, workflow=end.workflow, data=end.data))
                else:
                    self._pass_on(command)

    async def run(self, command: Any, _context: Any) -> Any:
        """One call that starts a workflow and answers with its end."""
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._start(command, ended.set_result)
        return await ended

    def _start(self, command: Any, ended: Callable[[Any], None]) -> None:
        self.callers[command.workflow] = ended
        self.committer.birth(
            command.workflow,
            command.number,
            command.data,
            lambda: self._tell(op=Op.START, workflow=command.workflow, number=command.number, data=command.data),
        )

    def _pass_on(self, event: Any) -> None:
        stored = lambda: self._tell(op=Op.EVENT, workflow=event.workflow, data=event.data)  # noqa: E731
        self.committer.result(event.workflow, EVENT_NUMBER, event.data, stored)

    def _from_worker(self, command: Any) -> None:
        workflow, number = command.workflow, command.number
        match command.op:
            case Op.RESULT:
                stored = lambda: self._tell(op=Op.RESULT, workflow=workflow, number=number)  # noqa: E731
                self.committer.result(workflow, number, command.data, stored)
            case Op.SLEEP:
                self.committer.result(workflow, number, {"at": command.at}, lambda: self._set_timer(command))
            case Op.END:
                self.committer.end(workflow, command.data, lambda: self.callers.pop(workflow)(command))

    def _set_timer(self, command: Any) -> None:
        wake = lambda: self._tell(op=Op.SLEEP, workflow=command.workflow)  # noqa: E731
        asyncio.get_running_loop().call_later(command.at - time.time(), wake)

    def _tell(self, **fields: Any) -> None:
        assert self.worker is not None, "no worker has come"
        self.worker.put(**fields)


async def main(url: str) -> None:
    """Serve until the harness has no more orders."""
    served = Server(Committer(await open_store(url)))
    handlers = {
        "Work": grpc.stream_stream_rpc_method_handler(served.work, Batch.FromString, Batch.SerializeToString),
        "Call": grpc.stream_stream_rpc_method_handler(served.call, Batch.FromString, Batch.SerializeToString),
        "Run": grpc.unary_unary_rpc_method_handler(served.run, Command.FromString, Command.SerializeToString),
    }
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(listen=f"127.0.0.1:{port}")
    await asyncio.to_thread(next_order)
    await server.stop(grace=0)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
