"""Bodies: one execution of a user's function, on the loop if it is async, else in the worker's threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Protocol, TypeAlias

from stepwell.clocks import Clock, Timer
from stepwell.handlers import Body, Outcome
from stepwell.signatures import is_async
from stepwell.worker.strays import found_family
from stepwell.worker.threads import Pool


async def outcome_of(function: Callable[[], Awaitable[Any]]) -> Outcome:
    """Await a user's function, whatever it raises: a SystemExit of its task would end the worker.

    A cancellation and Ctrl-C pass: they are not the function's own.
    """
    try:
        return Outcome(await function())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return Outcome(error=error)


def ended_with(task: asyncio.Task[Outcome]) -> Outcome:
    """The outcome of a task that is done. A function that raised CancelledError by itself has failed like any other."""
    return Outcome(error=asyncio.CancelledError()) if task.cancelled() else task.result()


class Surroundings(Protocol):
    """The surroundings of an execution."""

    @property
    def clock(self) -> Clock:
        """The clock of timeouts."""

    @property
    def pool(self) -> Pool:
        """Where bodies run that are not async."""

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Forsake a task: tell it to end, and see whether it does when the worker closes."""


Ended: TypeAlias = Callable[[Outcome], None]


class Execution:
    """One execution of a body. It reports how it ended once, or never if it is abandoned before."""

    __slots__ = ("_around", "_begun_at", "_ended", "_task", "_timer")

    def __init__(self, ended: Ended, around: Surroundings) -> None:
        self._ended: Ended | None = ended
        self._around = around
        self._begun_at: float | None = None  # None as long as no thread is free
        self._task: asyncio.Task[Outcome] | None = None
        self._timer: Timer | None = None

    def start(self, body: Body, context: Context) -> None:
        """Begin. The outcome is reported in a later turn of the loop."""
        if is_async(body):
            self._await(body, context)
            return
        try:
            self._around.pool.call(lambda: self._call(body, context), lambda outcome: self._called(outcome, context))
        except RuntimeError as error:  # there is no thread
            asyncio.get_running_loop().call_soon(self._report, Outcome(error=error))

    def limit(self, seconds: float, error: type[Exception]) -> None:
        """Fail the execution with `error` when it takes longer. A thread cannot be stopped: its result is dropped."""
        if self._timer is None:
            self._timer = self._around.clock.call_later(seconds, self._expire, seconds, error)

    def abandon(self) -> None:
        """Stop the body if it can be stopped, and never report."""
        self._ended = None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._around.leave(self._task)

    def _await(self, body: Callable[[], Awaitable[Any]], context: Context) -> None:
        self._begun_at = self._around.clock.now() if self._begun_at is None else self._begun_at
        found_family(context)
        self._task = asyncio.get_running_loop().create_task(outcome_of(body), context=context)
        self._task.add_done_callback(lambda task: self._report(ended_with(task)))

    def _call(self, body: Body, context: Context) -> Outcome:
        """In a thread: call the body, unless it was abandoned before a thread was free."""
        if self._ended is None:
            return Outcome()
        self._begun_at = self._around.clock.now()
        try:
            return Outcome(context.run(body))
        except BaseException as error:
            return Outcome(error=error)

    def _called(self, outcome: Outcome, context: Context) -> None:
        if self._ended is not None and inspect.isawaitable(outcome.value):  # a lambda that called an async function
            self._await(lambda: outcome.value, context)
        else:
            self._report(outcome)

    def _expire(self, seconds: float, error: type[Exception]) -> None:
        if self._ended is None:
            return
        left = seconds if self._begun_at is None else self._begun_at + seconds - self._around.clock.now()
        if left > 0:  # it had to wait for a thread
            self._timer = self._around.clock.call_later(left, self._expire, seconds, error)
            return
        ended = self._ended
        self.abandon()
        ended(Outcome(error=error()))

    def _report(self, outcome: Outcome) -> None:
        ended = self._ended
        self._ended = None
        if self._timer is not None:
            self._timer.cancel()
        if ended is not None:
            ended(outcome)
