"""Definitions of hooks: functions of a payload and, if they like, its context."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

from stepwell.durations import to_datetime
from stepwell.errors import to_failure
from stepwell.handlers import Handler, JobCall, JobContext, handler_of
from stepwell.kinds import Kind
from stepwell.retry import Retry
from stepwell.signatures import first_line
from stepwell.v1 import workers_pb2 as pb

P = TypeVar("P")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class HookDefinition(Generic[P]):
    """A hook as the SDK sees it: the name that it is triggered by, and its handler."""

    kind: ClassVar[Kind] = pb.HANDLER_KIND_HOOK
    name: str
    description: str
    retry: Retry | None
    handler: Handler = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler like the function that it was written as, for instance in a test of its own."""
        return self.handler.function(*args, **kwargs)

    def to_handler(self) -> pb.Handler:
        """Its part of Hello."""
        return pb.Handler(kind=self.kind, name=self.name, hook=pb.HookDefinition(description=self.description))

    def bind(self, task: pb.Task) -> JobCall:
        """One call of the handler, as its task asks for it."""
        given = task.hook
        context = JobContext(
            id=task.key,
            name=self.name,
            attempt=given.attempt,
            max_attempts=given.max_attempts or None,
            idempotency_key=given.idempotency_key,
            created_at=to_datetime(given.created_at),
        )
        return JobCall(
            body=self.handler.bind(given.payload, context),
            context=context,
            timeout=given.timeout.ToTimedelta().total_seconds() if given.HasField("timeout") else None,
            about={"hook": context.name, "hook_id": context.id, "attempt": context.attempt},
        )

    def outcome_of(self, error: BaseException | None) -> pb.Outcome:
        """The report about a handler that has ended, with an error or without."""
        if error is None:
            return pb.Outcome()
        return pb.Outcome(failure=to_failure(error, non_retryable=not self._is_retryable(error)))

    def _is_retryable(self, error: BaseException) -> bool:
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
    asked in the worker, also for hooks that other clients triggered.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f'a hook name is 1 to 64 letters, digits, "-", "_" or ".", beginning with a letter, digit or "_": {name!r}'
        )

    def define(function: Callable[..., Any]) -> HookDefinition[Any]:
        return HookDefinition(name, first_line(function.__doc__), retry, handler_of(function))

    return define
