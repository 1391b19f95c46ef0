"""`stepwell dev`: a server and a worker in one terminal."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import grpc
import typer
from grpc import aio

from stepwell.apps import App
from stepwell.cli import apps, logs, options, printing, server, workers
from stepwell.cli import signals as stopping
from stepwell.v1 import server_pb2
from stepwell.v1.server_pb2_grpc import ServerServiceStub

Database = Annotated[str, typer.Option(metavar="URL", help="Database of the server, if one is started.")]

_SECONDS_TO_ANSWER = 2.0
_SECONDS_TO_STOP = 35.0


class ServerEnded(Exception):
    """The server that was started for this session ended by itself."""


def dev(
    app: apps.AppName,
    database: Database = "sqlite:///stepwell.db",
    address: options.Server = options.DEFAULT_SERVER,
    namespace: options.Namespace = "default",
) -> None:
    """Start a server, or join the one that runs, and host an app; Ctrl-C stops both."""
    logs.log_to_terminal()
    target = options.Target(address, tls=False, tls_ca=None, namespace=namespace)
    found = apps.load_app(app)
    try:
        asyncio.run(_develop(target, found, database))
    except ServerEnded as ended:
        print(f"stepwell: {ended}", file=sys.stderr)
        raise typer.Exit(1) from None


async def _develop(target: options.Target, app: App, database: str) -> None:
    if await _answers(target.server):
        printing.print_line(f"a server runs at {target.server} already: joining it")
        await stopping.until_stopped(workers.serve(target, app))
        return
    async with _started(target.server, database) as process:
        printing.print_line(f"a server runs at {target.server} on {database}")
        await stopping.until_stopped(_serve_beside(process, target, app), at_once=process.kill)


async def _serve_beside(process: Process, target: options.Target, app: App) -> None:
    """Work as long as the server lives."""
    working = asyncio.create_task(workers.serve(target, app))
    living = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({working, living}, return_when=asyncio.FIRST_COMPLETED)
        if living.done():
            raise ServerEnded(f"the server ended with exit code {living.result()}")
        await working
    finally:
        living.cancel()
        working.cancel()
        await asyncio.wait({working, living})


async def _answers(address: str) -> bool:
    async with aio.insecure_channel(address) as channel:
        try:
            await ServerServiceStub(channel).GetServerInfo(
                server_pb2.GetServerInfoRequest(), timeout=_SECONDS_TO_ANSWER
            )
        except aio.AioRpcError as error:
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


@asynccontextmanager
async def _started(address: str, database: str) -> AsyncIterator[Process]:
    """A server in a session of its own, so that Ctrl-C reaches the worker first; it goes last."""
    server.check_installed()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stepwell_server", "serve", "--listen", address, "--ops-listen", "127.0.0.1:0"),
        *("--database", database, "--log-level", "warning", "--drain-settle", "0"),
        stdout=PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():  # it says that it listens, or on standard error why not
            raise ServerEnded(f"the server did not start (exit code {await process.wait()})")
        yield process
    finally:
        await _stop(process)


async def _stop(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_SECONDS_TO_STOP):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
