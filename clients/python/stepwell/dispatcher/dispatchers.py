"""Dispatchers: make a processor's passes when something is due, outside of any request.

    async with StreamDispatcher(ServerProcessor(client)):
        ...

`PollingDispatcher` looks every 5 seconds, `AlarmDispatcher` sleeps until the next wake, `StreamDispatcher` does so too
and is told by the server when that changes. Any number of them may work side by side. Each makes one pass at a time,
and all work that comes meanwhile makes one further pass.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from enum import Flag, auto
from types import TracebackType
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack

import grpc

from stepwell.backoff import Reconnects
from stepwell.clocks import Clock, LoopClock, Timer, sleep
from stepwell.dispatcher.alarms import Alarm, LoopAlarm
from stepwell.dispatcher.pauses import Pauses
from stepwell.dispatcher.processors import FollowedProcessor, NextWake, Processor, ProcessorsFailed
from stepwell.durations import DurationLike, to_seconds
from stepwell.errors import CallFailed

T = TypeVar("T")
U = TypeVar("U")
D = TypeVar("D", bound="Dispatcher")

OnError: TypeAlias = Callable[[BaseException], Awaitable[object] | object]

_LOG = logging.getLogger("stepwell.dispatcher")


class _Want(Flag):
    LOOK = auto()  # ask for the next wake
    HEAR = auto()  # heed what was told
    PASS = auto()


class Settings(TypedDict, total=False):
    """The options of every dispatcher."""

    on_error: OnError | None
    clock: Clock | None
    pause: DurationLike
    longest_pause: DurationLike


class AlarmSettings(Settings, total=False):
    """The options of every dispatcher with an alarm."""

    alarm: Alarm | None


@dataclass(frozen=True, slots=True)
class _Unknown:
    """The next wake could not be had, or only that of some processors."""

    rest: NextWake


class Dispatcher:
    """The common part of dispatchers; made on a running event loop, and used on its thread.

    `on_error` gets what processors raise and may be async; without it, that is logged. A pass that handles nothing is
    not repeated at once though something is due: there is a `pause` before the next, doubling to `longest_pause`.
    """

    def __init__(
        self,
        processor: Processor,
        *,
        on_error: OnError | None = None,
        clock: Clock | None = None,
        pause: DurationLike = "100 ms",
        longest_pause: DurationLike = "5 seconds",
    ) -> None:
        self._processor = processor
        self._on_error = on_error
        self._clock = clock or LoopClock()
        self._pauses = Pauses(to_seconds(pause), to_seconds(longest_pause))
        self._wanted = _Want(0)
        self._working: asyncio.Task[None] | None = None
        self._is_in_pass = False
        self._is_started = False
        self._is_stopped = False

    async def __aenter__(self: D) -> D:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def wake(self) -> None:
        """Make a pass now, or one more when the running one has ended, whatever the next wake is."""
        self._ask(_Want.PASS)

    def start(self) -> None:
        """Begin to make passes by itself. Doing so twice changes nothing."""
        if not self._is_started:
            self._is_started, self._is_stopped = True, False
            self._begin()

    async def stop(self) -> None:
        """Begin nothing new, not even by `wake`, and wait for the running pass, if there is one."""
        self._is_started, self._is_stopped = False, True
        self._wanted = _Want(0)
        self._halt()
        working = self._working
        if working is not None and working is not asyncio.current_task():
            if not self._is_in_pass:
                working.cancel()  # it only asks for the next wake
            await asyncio.wait({working})
            if self._working is working:  # it was cancelled before it began
                self._working = None
            if self._wanted:  # it was started again meanwhile
                self._ask(self._wanted)

    def _begin(self) -> None:
        """Set up what makes passes happen."""
        raise NotImplementedError

    def _halt(self) -> None:
        """Take that down."""
        raise NotImplementedError

    async def _do(self, wanted: _Want) -> None:
        """Do what is wanted, once."""
        raise NotImplementedError

    def _ask(self, want: _Want) -> None:
        if self._is_stopped:
            return
        self._wanted |= want
        if self._working is None:
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Do everything that is wanted, one after the other; what is wanted twice meanwhile is done once."""
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, _Want(0)
                await self._do(wanted)
        finally:
            self._working = None

    async def _pass(self, began_at: float | None = None) -> int:
        """One pass, and how many it handled.

        A pause after an empty one counts from its beginning, if that is given, or else from its end.
        """
        self._is_in_pass = True
        try:
            count = await self._guarded(self._processor.process(), _processed_of)
        finally:
            self._is_in_pass = False
        self._pauses.passed(count, self._clock.now() if began_at is None else began_at)
        return count

    async def _look(self) -> NextWake | _Unknown:
        """The next wake, as far as it is known now."""
        wake = await self._guarded(self._processor.next_wake(), _unknown_of)
        if isinstance(wake, NextWake):
            self._pauses.heed(wake)
        return wake

    async def _guarded(self, calling: Coroutine[Any, Any, T], otherwise: Callable[[BaseException], U]) -> T | U:
        """The answer, or what stands for it after a failure, which is reported."""
        try:
            return await calling
        except (Exception, asyncio.CancelledError) as error:
            if _is_being_cancelled():
                raise
            await self._report(error)
            return otherwise(error)

    async def _report(self, error: BaseException) -> None:
        """Call `on_error`; no error of it reaches the dispatcher."""
        if self._on_error is None:
            _LOG.error("dispatch_failed namespace=%s: %s", self._processor.namespace, error, exc_info=error)
            return
        try:
            told = self._on_error(error)
            if inspect.isawaitable(told):
                await told
        except (Exception, asyncio.CancelledError) as failure:
            if _is_being_cancelled():
                raise
            _LOG.error("error_callback_failed namespace=%s: %s", self._processor.namespace, failure, exc_info=failure)


class PollingDispatcher(Dispatcher):
    """Looks at the next wake when it starts and every `interval` from then on, and makes a pass if something is due.

    After a pass that handled something it looks again at once: what is due is not left to the next poll.
    """

    def __init__(
        self, processor: Processor, *, interval: DurationLike = "5 seconds", **settings: Unpack[Settings]
    ) -> None:
        super().__init__(processor, **settings)
        self.interval = to_seconds(interval)
        if self.interval <= 0:
            raise ValueError("the interval of polls must be more than nothing")
        self._timer: Timer | None = None
        self._polled_at = 0.0

    def _begin(self) -> None:
        self._poll()

    def _halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _poll(self) -> None:
        self._polled_at = self._clock.now()
        self._timer = self._clock.call_later(self.interval, self._poll)
        self._ask(_Want.LOOK)

    async def _do(self, wanted: _Want) -> None:
        polled_at = self._polled_at
        if _Want.PASS in wanted:
            handled = await self._pass()
        else:
            found = await self._look()
            wake = found.rest if isinstance(found, _Unknown) else found
            is_time = wake.is_due and polled_at >= self._pauses.until(wake)
            handled = await self._pass(polled_at) if is_time else 0
        if handled:
            self._ask(_Want.LOOK)


class AlarmDispatcher(Dispatcher):
    """Sets an alarm for the next wake, and makes a pass when it goes off.

    The alarm may be shared: an alarm that another process set is never moved to a later time, nor cleared. Without an
    `alarm` it is a timer in memory.
    """

    def __init__(self, processor: Processor, *, alarm: Alarm | None = None, **settings: Unpack[Settings]) -> None:
        super().__init__(processor, **settings)
        self._alarm = alarm or LoopAlarm(self._clock, self.ring)
        self._own: float | None = None
        self._told: tuple[float, NextWake] | None = None
        self._retry: Timer | None = None

    def ring(self) -> None:
        """The alarm has gone off: make a pass, and set it anew."""
        self._own = None
        self._ask(_Want.PASS)

    def _begin(self) -> None:
        self._ask(_Want.LOOK)

    def _halt(self) -> None:
        self._told = None
        if self._retry is not None:
            self._retry.cancel()

    async def stop(self) -> None:
        """Begin nothing new, by `wake` or alarm; wait for the running pass, and clear the alarm."""
        await super().stop()
        if self._is_stopped:  # it was not started again meanwhile
            await self._guarded(self._set_alarm(None), lambda _error: False)

    def _tell(self, wake: NextWake) -> None:
        """Take the news of a next wake, which replaces older news."""
        self._told = (self._clock.now(), wake)
        self._ask(_Want.HEAR)

    async def _do(self, wanted: _Want) -> None:
        times: list[float | None] = []
        if wanted & (_Want.PASS | _Want.LOOK):
            if _Want.PASS in wanted:
                await self._pass()
            if self._is_stopped:
                return
            times.append(await self._next_time())
        if self._told is not None:  # which may be older or newer than the answer
            (told_at, wake), self._told = self._told, None
            self._pauses.heed(wake)
            times.append(self._time_of(wake, told_at))
        if times:
            await self._arm(min((at for at in times if at is not None), default=None))

    async def _next_time(self) -> float | None:
        found = await self._look()
        now = self._clock.now()
        if isinstance(found, NextWake):
            return self._time_of(found, now)
        known = self._time_of(found.rest, now)
        again = self._pauses.failed(now)
        return again if known is None else min(known, again)

    def _time_of(self, wake: NextWake, seen_at: float) -> float | None:
        """When to make the next pass: not in the past, and not before a pause has ended."""
        if wake.delay is None:
            return None
        return max(seen_at + wake.delay, self._clock.now(), self._pauses.until(wake))

    async def _arm(self, at: float | None) -> None:
        """Set the alarm, and try again after a while if it cannot be set."""
        if not await self._guarded(self._set_alarm(at), lambda _error: False):
            if self._retry is not None:
                self._retry.cancel()
            now = self._clock.now()
            self._retry = self._clock.call_later(self._pauses.failed(now) - now, self._ask, _Want.LOOK)

    async def _set_alarm(self, at: float | None) -> bool:
        current = await self._alarm.get()
        is_own = current is not None and current == self._own
        self._own = at if at is None or current is None or is_own or at < current else None
        if at is None:
            if is_own:
                await self._alarm.clear()
        elif self._own is not None:
            await self._alarm.set(at)
        return True


class StreamDispatcher(AlarmDispatcher):
    """An alarm dispatcher that is told of every change of the next wake, and connects again when that ends."""

    def __init__(self, processor: FollowedProcessor, **settings: Unpack[AlarmSettings]) -> None:
        super().__init__(processor, **settings)
        self._source = processor
        self._following: asyncio.Task[None] | None = None
        self._reconnects = Reconnects()

    def _begin(self) -> None:
        self._following = asyncio.create_task(self._follow())

    def _halt(self) -> None:
        super()._halt()
        following, self._following = self._following, None
        if following is not None and following is not asyncio.current_task():
            following.cancel()

    async def stop(self) -> None:
        """Begin nothing new, by `wake`, alarm or stream; wait for the running pass, and for the stream to end."""
        following = self._following
        await super().stop()
        if following is not None and following is not asyncio.current_task():
            await asyncio.wait({following})

    async def _follow(self) -> None:
        while self._following is asyncio.current_task():
            await self._guarded(self._listen(), self._lost)
            await sleep(self._clock, self._reconnects.next_pause())

    async def _listen(self) -> None:
        async with aclosing(self._source.follow()) as wakes:  # type: ignore[type-var]
            async for wake in wakes:
                self._reconnects.served()
                self._tell(wake)

    def _lost(self, error: BaseException) -> None:
        """Look by a call of its own where there is a server that only will not have the stream."""
        if not (isinstance(error, CallFailed) and error.code is grpc.StatusCode.UNAVAILABLE):
            self._ask(_Want.LOOK)


def _processed_of(error: BaseException) -> int:
    return error.processed if isinstance(error, ProcessorsFailed) else 0


def _unknown_of(error: BaseException) -> _Unknown:
    return _Unknown(error.next_wake) if isinstance(error, ProcessorsFailed) else _Unknown(NextWake())


def _is_being_cancelled() -> bool:
    """Whether this very task is cancelled, and not something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
