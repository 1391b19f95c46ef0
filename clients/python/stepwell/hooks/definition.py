"""What an author writes: hooks, as functions of a payload and, if they like, its context."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, overload

from stepwell.handlers import Handler, JobContext, handler_of
from stepwell.retry import Retry
from stepwell.signatures import first_line

P = TypeVar("P")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class HookDefinition(Generic[P]):
    """A hook as the SDK sees it: the name that it is triggered by, and its handler."""

    name: str
    description: str
    retry: Retry | None
    handler: Handler = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler like the function that it was written as, for instance in a test of its own."""
        return self.handler.function(*args, **kwargs)

    def is_retryable(self, error: BaseException) -> bool:
        """What the author's own test says of an error."""
        return self.retry is None or self.retry.allows(error)


class HookDecorator(Protocol):
    """Makes a hook of a function, async or not."""

    @overload
    def __call__(self, function: Callable[[P], Any], /) -> HookDefinition[P]: ...
    @overload
    def __call__(self, function: Callable[[P, JobContext], Any], /) -> HookDefinition[P]: ...
    @overload
    def __call__(self, function: Callable[..., Any], /) -> HookDefinition[Any]: ...


def hook(name: str, *, retry: Retry | None = None) -> HookDecorator:
    """Make a hook of `async def f(payload)` or `f(payload, ctx)`. It registers nothing: give the result to an App.

    `retry` is the policy of hooks that are triggered by this definition and say nothing else; its `is_retryable` is
    asked in the worker, whoever triggered the hook.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f'a hook name is 1 to 64 letters, digits, "-", "_" or ".", beginning with a letter, digit or "_": {name!r}'
        )

    def define(function: Callable[..., Any]) -> HookDefinition[Any]:
        return HookDefinition(name, first_line(function.__doc__), retry, handler_of(function))

    return define
