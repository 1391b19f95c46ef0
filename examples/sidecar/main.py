"""A worker that is not running is woken when its work is due: scale from zero.

In four terminals, in this folder:

stepwell server
python main.py
stepwell dispatcher --wake-url http://127.0.0.1:8080/wake
stepwell worker main:app --idle 1s && stepwell workflow create reminder --params '{"after": "10 seconds"}'

The program is a supervisor, which starts a worker when it is woken. The worker of the last line only makes the workflow
known, and leaves. So the reminder that is created then is due, and nobody is there to execute it: the dispatcher hears
of that and posts to the supervisor, whose worker executes the first step, and leaves when it has had nothing to do for
a while. Ten seconds later the reminder is due again, and so is a worker. `stepwell workers` shows when there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass
from pathlib import Path

from stepwell import App, WorkflowEvent, WorkflowStep, workflow

HERE = Path(__file__).parent


@dataclass
class Reminder:
    """When to remind."""

    after: str = "10 seconds"


@workflow("reminder")
async def reminder(event: WorkflowEvent[Reminder], step: WorkflowStep) -> dict[str, str]:
    """Waits, and reminds; which process does so is none of its business."""
    first = await step.do("note", process_id)
    await step.sleep("wait", event.payload.after)
    return {"noted by": first, "reminded by": await step.do("remind", process_id)}


def process_id() -> str:
    return f"process {os.getpid()}"


app = App(workflows=[reminder])


class Supervisor:
    """Starts a worker when it is woken, unless one runs."""

    def __init__(self, server: str, idle: str) -> None:
        self._command = (sys.executable, "-m", "stepwell.cli", "worker", "main:app", "--server", server, "--idle", idle)
        self._worker: Process | None = None
        self._starting = asyncio.Lock()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of HTTP; what it says besides its first line does not matter here."""
        try:
            async with asyncio.timeout(10):
                request = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
            is_wake = request.startswith(b"POST /wake ")
            if is_wake:
                await self.wake()
            status = "202 Accepted" if is_wake else "404 Not Found"
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # nobody who can be answered
        finally:
            writer.close()

    async def wake(self) -> None:
        """See that a worker runs."""
        async with self._starting:
            if self._worker is None or self._worker.returncode is not None:
                self._worker = await asyncio.create_subprocess_exec(*self._command, cwd=HERE)
                print(f"woken: started worker {self._worker.pid}", flush=True)

    async def stop(self) -> None:
        """End the worker, if one runs."""
        if self._worker is not None and self._worker.returncode is None:
            self._worker.terminate()
            await self._worker.wait()


async def supervise(server: str, port: int, idle: str) -> None:
    """Listen until cancelled."""
    supervisor = Supervisor(server, idle)
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    listening = await asyncio.start_server(supervisor.answer, "127.0.0.1", port)
    print(f"supervisor listens on port {listening.sockets[0].getsockname()[1]}; no worker runs", flush=True)
    try:
        async with listening:
            await listening.serve_forever()
    finally:
        await supervisor.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Start a worker when woken.")
    parser.add_argument("--server", default=os.environ.get("STEPWELL_SERVER", "127.0.0.1:7350"))
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--idle", default="5 seconds", help="How long a worker stays without work.")
    options = parser.parse_args()
    try:
        asyncio.run(supervise(options.server, options.port, options.idle))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("supervisor has stopped")


if __name__ == "__main__":
    main()
