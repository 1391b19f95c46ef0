"""`stepwell dispatcher`: the sidecar that turns due work into running work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, TypedDict, Unpack
from urllib.parse import urlsplit

import grpc
import typer

from stepwell.apps import App
from stepwell.cli import apps, arguments, logs, options, presence, printing, wakes
from stepwell.cli import signals as stopping
from stepwell.cli.wake_targets import Summons, WakeUrl
from stepwell.client.client import Client
from stepwell.dispatcher.dispatchers import Dispatcher, PollingDispatcher, StreamDispatcher
from stepwell.dispatcher.processors import FollowedProcessor, ProcessorsFailed, ServerProcessor, Unserved
from stepwell.durations import DurationLike
from stepwell.errors import CallFailed
from stepwell.worker.worker import Worker

_LOG = logging.getLogger("stepwell.dispatcher")

_MOST_NAMES = 100
_NOT_THERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Pauses(TypedDict, total=False):
    """Pauses between passes, if they are not to be as usual."""

    pause: DurationLike
    longest_pause: DurationLike


# A service that was woken needs a while to come up: it is not asked again and again meanwhile.
_PAUSES_OF_POSTS: Pauses = {"pause": "1 second", "longest_pause": "30 seconds"}


class Mode(StrEnum):
    """How it learns of what is due."""

    STREAM = "stream"
    POLL = "poll"


def _url(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise typer.BadParameter("must be http://HOST... or https://HOST...")
    return value


def _interval(value: str) -> timedelta:
    interval = arguments.duration(value)
    if not interval:
        raise typer.BadParameter("must be more than nothing")
    return interval


Interval = Annotated[timedelta, typer.Option(metavar="DURATION", parser=_interval, help="Time between two polls.")]
WakeUrlOption = Annotated[
    str, typer.Option("--wake-url", metavar="URL", callback=_url, help="POST here when due work has no worker.")
]
AppOption = Annotated[
    str, typer.Option("--app", metavar="MODULE[:APP]", help="Host this app while due work has no other worker.")
]
Idle = Annotated[
    timedelta,
    typer.Option(metavar="DURATION", parser=arguments.duration, help="With --app: leave after so long without work."),
]
WakeTimeout = Annotated[
    timedelta,
    typer.Option(metavar="DURATION", parser=_interval, help="With --wake-url: how long an answer may take."),
]
MaxTasks = Annotated[int, typer.Option(min=1, max=1000, help="Most tasks that are handed out in one pass.")]
MaxSteps = Annotated[int, typer.Option(min=0, help="Most steps of a run in one pass; 0: any number.")]


@dataclass(frozen=True, slots=True)
class Settings:
    """The work that was asked for."""

    mode: Mode
    interval: timedelta
    wake_url: str
    wake_timeout: timedelta
    app: App | None
    idle: timedelta

    def dispatcher(self, processor: FollowedProcessor, **pauses: Unpack[Pauses]) -> Dispatcher:
        """A dispatcher of the mode, which logs its errors."""
        if self.mode is Mode.POLL:
            return PollingDispatcher(processor, interval=self.interval, on_error=_log, **pauses)
        return StreamDispatcher(processor, on_error=_log, **pauses)


@options.in_namespace
def dispatcher(
    target: options.Target,
    mode: Annotated[Mode, typer.Option(help="Follow the next wake, or ask for it from time to time.")] = Mode.STREAM,
    interval: Interval = timedelta(seconds=5),
    wake_url: WakeUrlOption = "",
    wake_timeout: WakeTimeout = timedelta(seconds=10),
    app: AppOption = "",
    idle: Idle = timedelta(seconds=10),
    kind: wakes.Kinds = [],  # noqa: B006 - typer copies it
    name: wakes.Names = [],  # noqa: B006 - typer copies it
    max_tasks: MaxTasks = 1000,
    max_steps: MaxSteps = 0,
) -> None:
    """Have due work handed out until Ctrl-C or SIGTERM; or wake a service, or host an app, when it has no worker."""
    if wake_url and app:
        raise typer.BadParameter("--wake-url wakes somebody else, --app works itself: choose one")
    logs.log_to_terminal()
    found = apps.load_app(app) if app else None
    settings = Settings(mode, interval, wake_url, wake_timeout, found, idle)
    bounds = {"kinds": kind, "names": name or _names_of(found), "max_tasks": max_tasks, "max_steps": max_steps}
    asyncio.run(stopping.until_stopped(_serve(target, settings, bounds)))


async def _serve(target: options.Target, settings: Settings, bounds: Mapping[str, Any]) -> None:
    """Dispatch until cancelled. CallFailed if the server refuses; one that is not there is waited for."""
    async with target.client() as client, presence.told(client):
        server = ServerProcessor(client, **bounds)
        await _answered(server)
        if settings.wake_url:
            post = WakeUrl(settings.wake_url, target.namespace, settings.wake_timeout.total_seconds())
            sidecar = settings.dispatcher(Summons(server, post), **_PAUSES_OF_POSTS)
            await _run(sidecar, target, f"posts to {settings.wake_url} for what has no worker")
        elif settings.app is not None:
            host = Host(client, settings.app, settings, server)
            sidecar = settings.dispatcher(Summons(server, host))
            await _run(sidecar, target, f"hosts {host.hosted} while that has no other worker", host.leave)
        else:
            await _run(settings.dispatcher(server), target, "has what is due handed out")


async def _answered(server: ServerProcessor) -> None:
    """Return once the server has answered. CallFailed if its answer is a refusal."""
    while True:
        try:
            await server.next_wake()
            return
        except CallFailed as failure:
            if failure.code not in _NOT_THERE:
                raise


async def _run(
    sidecar: Dispatcher, target: options.Target, does: str, leave: Callable[[], None] = lambda: None
) -> None:
    sidecar.start()
    printing.print_line(f"dispatcher {does}, in {target.namespace} at {target.server}; Ctrl-C stops it")
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        leave()
        await sidecar.stop()
        printing.print_line("dispatcher has stopped")


class Host:
    """Summons a worker by being one, until there has been nothing to do for a while."""

    def __init__(self, client: Client, app: App, settings: Settings, server: ServerProcessor) -> None:
        self._client = client
        self._app = app
        self._settings = settings
        self._server = server
        self._leaves = asyncio.Event()

    @property
    def hosted(self) -> str:
        """Its handlers, in words."""
        return ", ".join(self._app.names) or "nothing"

    def leave(self) -> None:
        """Work no longer than to the end of the steps that execute."""
        self._leaves.set()

    async def __call__(self, _unserved: tuple[Unserved, ...]) -> int:
        """Work until idle, and have the server hand out meanwhile, for one that does not do so by itself."""
        async with (
            Worker(self._client, self._app) as worker,
            self._settings.dispatcher(self._server),
        ):
            _LOG.info("hosting worker=%s names=%s", worker.worker_id, self.hosted)
            await self._until_over(worker)
            _LOG.info("leaving worker=%s", worker.worker_id)
        return 1

    async def _until_over(self, worker: Worker) -> None:
        ended = asyncio.create_task(worker.ended(self._settings.idle))
        leaves = asyncio.create_task(self._leaves.wait())
        try:
            await asyncio.wait({ended, leaves}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await ended
        finally:
            ended.cancel()
            leaves.cancel()


def _names_of(app: App | None) -> list[str]:
    """The names to listen for, if the wire takes so many."""
    names = [] if app is None else list(dict.fromkeys(name for _, name in app.definitions))
    return names if len(names) <= _MOST_NAMES else []


def _log(error: BaseException) -> None:
    """One line: what failed is another process, and its traceback is not here."""
    for failure in error.exceptions if isinstance(error, ProcessorsFailed) else (error,):
        _LOG.warning("dispatch_failed: %s", failure)
