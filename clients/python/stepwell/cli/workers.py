"""`stepwell worker`: host an app until told to stop."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any

import typer

from stepwell.apps import App
from stepwell.cli import apps, arguments, logs, options, printing
from stepwell.cli import signals as stopping
from stepwell.worker.worker import Worker

ConnectTimeout = Annotated[
    timedelta,
    typer.Option(metavar="DURATION", parser=arguments.duration, help="How long to wait for a server to be there."),
]
Grace = Annotated[
    timedelta,
    typer.Option(metavar="DURATION", parser=arguments.duration, help="How long what executes may take to end, then."),
]
Idle = Annotated[
    timedelta | None,
    typer.Option(metavar="DURATION", parser=arguments.duration, help="Leave when it had nothing to do for so long."),
]
MaxTasks = Annotated[int, typer.Option(min=1, help="Most runs and hooks that it executes at once.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads for functions that are not async.")]


@options.in_namespace
def worker(
    target: options.Target,
    app: apps.AppName,
    max_tasks: MaxTasks = 500,
    threads: Threads = 32,
    grace: Grace = timedelta(seconds=10),
    connect_timeout: ConnectTimeout = timedelta(seconds=30),
    idle: Idle = None,
) -> None:
    """Host what an app has until Ctrl-C or SIGTERM."""
    logs.log_to_terminal()
    found = apps.load_app(app)
    settings = {"max_tasks": max_tasks, "threads": threads, "grace": grace, "connect_timeout": connect_timeout}
    asyncio.run(stopping.until_stopped(serve(target, found, idle, **settings)))


async def serve(target: options.Target, app: App, idle: timedelta | None = None, **settings: Any) -> None:
    """Work until cancelled or idle, then drain. CallFailed if the server does not take the worker."""
    async with target.client() as client:
        worker = Worker(client, app, **settings)
        try:
            async with worker:
                hosted = ", ".join(app.names) or "nothing"
                printing.print_line(f"worker {worker.worker_id} serves {hosted} at {target.server}; Ctrl-C stops it")
                try:
                    await worker.ended(idle)
                finally:
                    printing.print_line(f"worker {worker.worker_id} stops when what it executes has ended")
        except TimeoutError:
            raise TimeoutError(f"no server answers at {target.server}") from None
