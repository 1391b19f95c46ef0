"""Ctrl-C, SIGTERM and a terminal that is closed: the first one asks to stop, the second one does not ask."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_stopped(work: Coroutine[Any, Any, None], at_once: Callable[[], None] = lambda: None) -> None:
    """Do the work until it ends or a signal comes, which cancels it. A second signal calls `at_once` and ends all."""
    loop = asyncio.get_running_loop()
    working = asyncio.create_task(work)
    asked = False

    def receive(number: signal.Signals) -> None:
        nonlocal asked
        if asked:
            at_once()
            os._exit(128 + number)
        asked = True
        working.cancel()

    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup means it
    for number in heard:
        loop.add_signal_handler(number, receive, number)
    try:
        with suppress(asyncio.CancelledError):
            await working
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
