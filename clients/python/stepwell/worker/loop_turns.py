"""Turns of the event loop, counted once for all runs that wait for some of them to pass, and its callbacks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Turns:
    """Calls back after so many turns of the loop, with one loop callback per turn however many wait."""

    __slots__ = ("_due", "_is_counting", "_loop", "now")

    def __init__(self) -> None:
        self.now = 0
        self._loop = asyncio.get_running_loop()
        self._due: deque[list[Callable[[], None]]] = deque()
        self._is_counting = False

    def after(self, turns: int, callback: Callable[[], None]) -> None:
        """Call back when `turns` turns have passed, at least one."""
        while len(self._due) < turns:
            self._due.append([])
        self._due[turns - 1].append(callback)
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.now += 1
        callbacks = self._due.popleft()
        if self._due:
            self._loop.call_soon(self._turn)
        else:
            self._is_counting = False
        for callback in callbacks:
            call_back(self._loop, callback)


def call_back(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: Any) -> None:
    """Call back as the loop does: an exception goes to its handler, and keeps no other callback from being called."""
    try:
        callback(*args)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        loop.call_exception_handler({"message": f"exception in callback {callback!r}", "exception": error})
