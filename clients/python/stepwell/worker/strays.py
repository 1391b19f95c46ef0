"""Tasks of a user's function that do not end when they are told to.

A coroutine that is thrown away is closed first: GeneratorExit is raised where it waits. A function that catches that as
well, in an endless loop, never gives its thread back, not even while the interpreter ends. So such a task is either
parked, where its next call of the SDK waits for ever, or kept until the process is gone.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar
from types import CoroutineType
from typing import Any, NoReturn, TypeAlias
from weakref import WeakSet

Task: TypeAlias = asyncio.Task[Any]

_family: ContextVar[object | None] = ContextVar("stepwell_family", default=None)


def found_family(context: Context) -> object:
    """Make one family of all tasks that are begun in a context, or in copies of it."""
    family = object()
    context.run(_family.set, family)
    return family


def current_family() -> object | None:
    """The family of the task that executes."""
    return _family.get()


async def park(loop: asyncio.AbstractEventLoop) -> NoReturn:
    """Never return. Nothing keeps the task, so that the garbage collector throws it away one day."""
    while True:
        await loop.create_future()


def _is_parked(task: Task) -> bool:
    waiting: object = task.get_coro()
    while isinstance(waiting, CoroutineType):
        if waiting.cr_code is park.__code__:
            return True
        waiting = waiting.cr_await
    return False


def forsake(task: Task) -> None:
    """Keep `asyncio.run` from waiting for a task that may never end, and from complaining when it is thrown away."""
    asyncio.tasks._unregister_task(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def throw_away(left: WeakSet[Task]) -> int:
    """Forsake tasks that have not ended, and all that descend from them; how many of them were not forsaken before.

    Parked ones are closed here, where all is still there that they may call. The others are kept for ever.
    """
    stubborn = _forsake_families({task for task in left if not task.done()})
    if left:
        gc.collect()
    return stubborn


def _forsake_families(tasks: set[Task]) -> int:
    everybody = asyncio.all_tasks()
    families = {_family_of(task) for task in tasks}
    for task in tasks | {task for task in everybody if _family_of(task) in families}:
        forsake(task)
        if not _is_parked(task):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))  # a list would be emptied when the interpreter ends
    return len(tasks & everybody)


def _family_of(task: Task) -> object | None:
    if sys.version_info >= (3, 12):
        return task.get_context().get(_family)
    return next((held.get(_family) for held in gc.get_referents(task) if isinstance(held, Context)), None)


def silence_once() -> None:
    """Let Python not say of the coroutine that it throws away just now that it ignored that."""
    if not isinstance(sys.unraisablehook, _Silence):
        sys.unraisablehook = _Silence(sys.unraisablehook)
    sys.unraisablehook.times += 1


class _Silence:
    """A hook that Python calls for so many times instead of its usual one."""

    def __init__(self, usual: Callable[[Any], None]) -> None:
        self.times = 0
        self._usual = usual

    def __call__(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "coroutine ignored GeneratorExit":
            self._usual(unraisable)
            return
        self.times -= 1
        if self.times == 0 and sys.unraisablehook is self:
            sys.unraisablehook = self._usual
