"""Functions of users: how a job's handler is called with its payload and context, and how any function ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from stepwell import payloads
from stepwell.signatures import concrete, hints_of, is_async, is_generator
from stepwell.v1.common_pb2 import Payload

Body: TypeAlias = Callable[[], Any]
"""One execution of a user's function, to be called."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(slots=True)
class Outcome:
    """How a function of the user's ended: with a value, or with an error."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class JobContext:
    """One execution of a job, for its handler.

    `attempt` counts from 1, `max_attempts` is None if there is no maximum. `idempotency_key` is the same in every
    execution of this job, and no other job's: give it to the service that must recognise a repetition.
    """

    id: str
    name: str
    attempt: int
    max_attempts: int | None
    idempotency_key: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class JobCall:
    """One call of a job's handler, as its task asks for it: for at most `timeout` seconds, logged with `about`."""

    body: Body
    context: JobContext
    timeout: float | None
    about: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler's function, and what its signature says of how to call it."""

    function: Callable[..., Any]
    payload_type: Any
    takes_context: bool

    def bind(self, payload: Payload, context: JobContext) -> Body:
        """An execution, as a body. A payload that does not fit the handler's type fails it."""
        if is_async(self.function):

            async def execute() -> Any:
                return await self.function(*self._arguments(payload, context))

            return execute
        return lambda: self.function(*self._arguments(payload, context))

    def _arguments(self, payload: Payload, context: JobContext) -> tuple[Any, ...]:
        value = payloads.from_argument(payload, self.payload_type)
        return (value, context) if self.takes_context else (value,)


def handler_of(function: Callable[..., Any]) -> Handler:
    """Read the signature: `f(payload)` or `f(payload, ctx)`, async or not. TypeError if it is neither."""
    if not callable(function):
        raise TypeError(f"a handler is a function of (payload) or (payload, ctx), not {function!r}")
    if is_generator(function):
        raise TypeError(f"a handler returns when it is done, and does not yield: {function!r}")
    parameters = _parameters(function)
    takes_context = _takes_context(function, parameters)
    first = parameters[0] if parameters and parameters[0].kind in _POSITIONAL else None
    hints = hints_of(function if inspect.isroutine(function) else type(function).__call__)
    return Handler(function, concrete(hints.get(first.name)) if first else None, takes_context)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin that does not say: it gets the payload
        return [inspect.Parameter("payload", inspect.Parameter.POSITIONAL_ONLY)]


def _takes_context(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    """Whether there is a second parameter to fill. One with a default is the author's own."""
    takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    named = [parameter for parameter in parameters if parameter.kind not in _VARIABLE]
    required = [parameter for parameter in named if parameter.default is parameter.empty]
    if not (positional or takes_any) or len(required) > 2 or not all(parameter in positional for parameter in required):
        raise TypeError(f"a handler takes (payload) or (payload, ctx): {getattr(function, '__name__', function)!s}")
    return takes_any or len(required) == 2
