"""The `step` that a workflow function gets: what it can do once and remember, and what it can wait for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from stepwell.durations import DurationLike, InstantLike, to_datetime, to_duration, to_timedelta, to_timestamp, to_words
from stepwell.handlers import Body
from stepwell.payloads import from_payload
from stepwell.retry import Retry, to_retry
from stepwell.v1 import workers_pb2 as pb

T = TypeVar("T")
Params = ParamSpec("Params")

RetryLike: TypeAlias = Retry | Mapping[str, Any]
Config: TypeAlias = Mapping[str, Any]

_SHORTEST_EVENT_WAIT = timedelta(seconds=1)
_EVENT_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step's body is executed. None leaves a field to the server's default policy."""

    retry: Retry | None = None
    timeout: timedelta | None = None

    def to_policy(self) -> pb.StepPolicy | None:
        """The policy for the wire; None if nothing was said."""
        if self.retry is None and self.timeout is None:
            return None
        return pb.StepPolicy(
            retry=None if self.retry is None else self.retry.to_policy(),
            timeout=None if self.timeout is None else to_duration(self.timeout),
        )


@dataclass(frozen=True, slots=True)
class ReceivedEvent(Generic[T]):
    """The event that a step waited for."""

    type: str
    payload: T
    timestamp: datetime


@dataclass(frozen=True, slots=True)
class Timers:
    """How far ahead the server lets a step wait: so long, and until then; None if only the server can tell that."""

    longest: timedelta
    latest: datetime | None = None


class StepEngine(Protocol):
    """The engine of steps: the run that the workflow function belongs to."""

    @property
    def timers(self) -> Timers:
        """How far ahead the server lets a step wait."""

    async def do(self, name: str, body: Body, options: StepOptions) -> pb.StepState:
        """Execute a body unless its result is known already."""

    async def wait(self, wait: pb.Wait) -> pb.StepState:
        """Wait, unless that is over already."""


class StepDecorator(Protocol):
    """Makes a step of a function, async or not: call it as before, and await what it returns."""

    @overload
    def __call__(self, function: Callable[Params, Awaitable[T]], /) -> Callable[Params, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[Params, T], /) -> Callable[Params, Coroutine[Any, Any, T]]: ...


class WorkflowStep:
    """The steps of one run. A step is known by its name: what has been done under it is not done again."""

    __slots__ = ("_engine",)

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine

    @overload
    def do(
        self,
        name: str,
        fn: Callable[[], Awaitable[T]],
        config: Config | None = None,
        /,
        *,
        retries: RetryLike | None = None,
        timeout: DurationLike | None = None,
        into: Any = None,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def do(
        self,
        name: str,
        fn: Callable[[], T],
        config: Config | None = None,
        /,
        *,
        retries: RetryLike | None = None,
        timeout: DurationLike | None = None,
        into: Any = None,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def do(
        self, name: str, config: Config, fn: Callable[[], Awaitable[T]], /, *, into: Any = None
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def do(self, name: str, config: Config, fn: Callable[[], T], /, *, into: Any = None) -> Coroutine[Any, Any, T]: ...
    @overload
    def do(
        self,
        name: str,
        config: Config | None = None,
        /,
        *,
        retries: RetryLike | None = None,
        timeout: DurationLike | None = None,
        into: Any = None,
    ) -> StepDecorator: ...
    def do(self, name: str, *args: Any, into: Any = None, **config: Any) -> Any:
        """Execute a function once and remember what it returned; or decorate a function to do so when it is called.

        The function gets retried as `retries` says, each execution for at most `timeout`. An async function runs on the
        worker's loop, any other in a thread. `into` is a type to build the result into; without it, the
        result is plain JSON, the first time as on every replay.
        """
        if len(args) == 1 and not config and callable(args[0]):  # what nearly all steps are
            return self._do(name, args[0], _NO_OPTIONS, into)
        functions = [arg for arg in args if callable(arg)]
        configs = [arg for arg in args if arg is not None and not callable(arg)]
        _check_call(name, functions, configs)
        options = _options(*configs, config)
        if options.timeout is not None:
            self._check("timeout of a step", options.timeout)
        if functions:
            return self._do(name, functions[0], options, into)

        def decorate(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
            @wraps(function)
            def execute(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
                return self._do(name, partial(function, *args, **kwargs), options, into)

            return execute

        return decorate

    async def sleep(self, name: str, duration: DurationLike) -> None:
        """Wait this long, from the first time on that the step is reached."""
        length = to_timedelta(duration)
        self._check("duration of a sleep", length)
        await self._engine.wait(pb.Wait(name=name, sleep=to_duration(length)))

    async def sleep_until(self, name: str, instant: InstantLike) -> None:
        """Wait for an instant: a datetime with a time zone, or milliseconds since the epoch."""
        until, timers = to_timestamp(instant), self._engine.timers
        if timers.latest is not None and to_datetime(until) > timers.latest:
            longest = to_words(timers.longest)
            raise ValueError(f"the instant of a sleep is at most {longest} ahead, not {to_datetime(until)}")
        await self._engine.wait(pb.Wait(name=name, sleep_until=until))

    @overload
    async def wait_for_event(
        self,
        name: str,
        *,
        type: str,
        timeout: DurationLike = ...,  # noqa: ASYNC109
        into: Callable[..., T],
    ) -> ReceivedEvent[T]: ...
    @overload
    async def wait_for_event(
        self,
        name: str,
        *,
        type: str,
        timeout: DurationLike = ...,  # noqa: ASYNC109
        into: Any = None,
    ) -> ReceivedEvent[Any]: ...
    async def wait_for_event(
        self,
        name: str,
        *,
        type: str,
        timeout: DurationLike = "24 hours",  # noqa: ASYNC109 - the server's, and stored
        into: Any = None,
    ) -> ReceivedEvent[Any]:
        """Wait for an event of this type. WaitForEventTimeoutError if none was sent in time.

        `into` is a type to build the event's payload into.
        """
        if not isinstance(type, str) or not _EVENT_TYPE.fullmatch(type):
            raise ValueError(
                f'INVALID_EVENT_TYPE: 1 to 100 letters, digits, "-" or "_", not beginning with "-": {type!r}'
            )
        length = to_timedelta(timeout)
        longest = self._engine.timers.longest
        if not _SHORTEST_EVENT_WAIT <= length <= longest:
            told = f"the timeout is from 1 second to {to_words(longest)}, not {timeout!r}"
            raise ValueError(f"WAIT_FOR_EVENT_TIMEOUT_RANGE: {told}")
        wait = pb.EventWait(type=type, timeout=to_duration(length))
        state = await self._engine.wait(pb.Wait(name=name, event=wait))
        return ReceivedEvent(state.event_type or type, from_payload(state.result, into), to_datetime(state.event_at))

    async def _do(self, name: str, body: Body, options: StepOptions, into: Any) -> Any:
        state = await self._engine.do(name, body, options)
        return from_payload(state.result, into)

    def _check(self, argument: str, length: timedelta) -> None:
        longest = self._engine.timers.longest
        if length > longest:
            raise ValueError(f"the {argument} is at most {to_words(longest)}, not {to_words(length)}")


_NO_OPTIONS = StepOptions()


def _check_call(name: object, functions: list[Any], configs: list[Any]) -> None:
    """TypeError for what is easily written instead of `step.do("name", function)`."""
    if not isinstance(name, str):
        raise TypeError(f'a step begins with its name, such as step.do("ship", ship), not with {name!r}')
    for config in configs:
        if inspect.iscoroutine(config):
            config.close()
            raise TypeError(f"the step {name!r} needs a function, not what it returned: write lambda: f(x), not f(x)")
        if not isinstance(config, Mapping):
            raise TypeError(f"the step {name!r} needs a function, not {config!r}")
    if len(functions) > 1:
        raise TypeError(f"the step {name!r} has one function, not {len(functions)}")


def _options(*configs: Config) -> StepOptions:
    if not any(configs):
        return _NO_OPTIONS
    given = {key: value for config in configs for key, value in config.items() if value is not None}
    unknown = given.keys() - {"retries", "timeout"}
    if unknown:
        raise TypeError(f"a step has retries and timeout, not {', '.join(sorted(unknown))}")
    retries, timeout = given.get("retries"), given.get("timeout")
    if timeout is not None and not to_timedelta(timeout):
        raise ValueError(f"the timeout of a step is longer than nothing, not {timeout!r}")
    return StepOptions(
        None if retries is None else to_retry(retries),
        None if timeout is None else to_timedelta(cast("DurationLike", timeout)),
    )
