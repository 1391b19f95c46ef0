"""Callbacks that are called together: one that raises does not keep the others from being called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def call_back(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: Any) -> None:
    """Call back as the loop itself does: what is raised goes to its exception handler, and no further."""
    try:
        callback(*args)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        loop.call_exception_handler({"message": f"exception in callback {callback!r}", "exception": error})
