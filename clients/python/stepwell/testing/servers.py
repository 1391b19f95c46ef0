"""A virtual-clock server as a child process, with a database that is thrown away with it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from tempfile import TemporaryDirectory
from types import TracebackType

from stepwell.durations import DurationLike, to_seconds

_LISTENING = re.compile(r"listening on (\S+) \(ops \S+\)")
_LOG_LINES = 1000
_SECONDS_TO_STOP = 5.0


class ServerDidNotStart(Exception):
    """The server ended, or was silent for too long, before it served; the text is what it said."""


class VirtualServer:
    """A server on a database of its own, whose clock stands still: `async with VirtualServer() as server:`.

    `flags` are further ones of `stepwell server`, such as "--limits.steps-per-run=10". Variables of the environment
    that would configure a server are kept from it.
    """

    def __init__(self, *flags: str, start_timeout: DurationLike = "30 seconds") -> None:
        self._flags = flags
        self._start_timeout = to_seconds(start_timeout)
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._address = ""

    @property
    def address(self) -> str:
        """HOST:PORT of the API."""
        return self._address

    @property
    def log(self) -> str:
        """The last lines that the server has logged."""
        return "".join(self._log)

    async def __aenter__(self) -> VirtualServer:
        if importlib.util.find_spec("stepwell_server") is None:
            raise ServerDidNotStart("the server is not installed: pip install 'stepwell[server]'")
        async with contextlib.AsyncExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="stepwell-test-", ignore_cleanup_errors=True))
            self._process = await self._spawn(folder)
            stack.push_async_callback(self._stop)
            self._reading = asyncio.create_task(self._read_log())
            self._address = await self._listening()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _spawn(self, folder: str) -> Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stepwell_server", "serve", "--virtual-clock"),
            *("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"),
            *("--database", f"sqlite:///{folder}/stepwell.db", "--drain-settle", "0", "--drain-grace", "1"),
            *("--leases.reconnect-grace", "0"),  # so that no test waits for a worker that it let die
            *self._flags,
            stdout=PIPE,
            stderr=PIPE,
            env=environment,
            # Of its own group: a Ctrl-C at the terminal is for the tests, which then stop the server.
            start_new_session=True,
        )

    async def _listening(self) -> str:
        """The address, from the one line that the server prints when it serves."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(self._start_timeout):
                line = (await self._process.stdout.readline()).decode()
                if not line:
                    await asyncio.gather(self._reading, self._process.wait())
        except TimeoutError:
            raise ServerDidNotStart(f"no answer in {self._start_timeout:g} seconds. Its log:\n{self.log}") from None
        found = _LISTENING.search(line)
        if found is None:
            raise ServerDidNotStart(f"the server ended before it served. Its log:\n{line}{self.log}")
        return found[1]

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._log.append(line.decode(errors="replace"))

    async def _stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(_SECONDS_TO_STOP):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading
        assert self._process.stdout is not None
        await self._process.stdout.read()  # to its end, or the pipe is left open
