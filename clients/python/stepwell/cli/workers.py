"""`stepwell worker`: host an app until told to stop."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer

from stepwell.cli import apps, options, printing, stopping
from stepwell.errors import CallFailed
from stepwell.worker import Worker
from stepwell.workflows import App

MaxTasks = Annotated[int, typer.Option(min=1, help="Most runs that it executes at once.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads for step functions that are not async.")]


@options.in_namespace
def worker(
    target: options.Target,
    app: apps.AppName,
    max_tasks: MaxTasks = 100,
    threads: Threads = 32,
) -> None:
    """Host the workflows of an app until Ctrl-C or SIGTERM; steps that execute then may finish."""
    log_to_terminal()
    found = apps.load_app(app)
    asyncio.run(stopping.until_stopped(serve(target, found, max_tasks, threads)))


async def serve(target: options.Target, app: App, max_tasks: int = 100, threads: int = 32) -> None:
    """Work until cancelled, then drain. CallFailed if the server does not take the worker."""
    async with target.client() as client:
        worker = Worker(client, app, max_tasks=max_tasks, threads=threads)
        try:
            async with worker:
                hosted = ", ".join(app.definitions) or "nothing"
                printing.print_line(f"worker {worker.worker_id} serves {hosted} at {target.server}; Ctrl-C stops it")
                try:
                    assert worker._serving is not None
                    await asyncio.shield(worker._serving)
                finally:
                    printing.print_line(f"worker {worker.worker_id} stops when its steps have ended")
        except CallFailed as failure:
            raise target.explained(failure) from None


def log_to_terminal() -> None:
    """Show what the worker and the user's own loggers have to say, on standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
