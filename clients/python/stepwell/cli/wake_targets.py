"""Wake targets of a dispatcher: it wakes another service, or hosts an app itself.

Both are for due work that no connected worker can take. Other work is left to its worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from stepwell.dispatcher.processors import FollowedProcessor, NextWake, Unserved

_LOG = logging.getLogger("stepwell.dispatcher")

_LOOK_AGAIN = 5.0  # seconds after which to look behind work that is due and has a worker


class Summons:
    """A processor whose passes are worth making when due work has no worker; a pass summons one."""

    def __init__(self, server: FollowedProcessor, summon: Callable[[tuple[Unserved, ...]], Awaitable[int]]) -> None:
        self._server = server
        self._summon = summon

    @property
    def namespace(self) -> str:
        """The server's namespace."""
        return self._server.namespace

    async def process(self) -> int:
        """Summon a worker if one is missing."""
        unserved = (await self._server.next_wake()).unserved
        return await self._summon(unserved) if unserved else 0

    async def next_wake(self) -> NextWake:
        """When a worker may be missing next."""
        return _for_unserved(await self._server.next_wake())

    async def follow(self) -> AsyncIterator[NextWake]:
        """The same, and every change of it."""
        async with aclosing(self._server.follow()) as wakes:  # type: ignore[type-var]
            async for wake in wakes:
                yield _for_unserved(wake)


class WakeUrl:
    """Summons a worker by a POST that says which handlers are missing."""

    def __init__(self, url: str, namespace: str, timeout: float) -> None:
        self._url = url
        self._namespace = namespace
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirects)

    async def __call__(self, unserved: tuple[Unserved, ...]) -> int:
        """Post. OSError if it was not accepted. Nothing is handed out by that: the worker does it, when it is there."""
        async with asyncio.timeout(2 * self._timeout):
            status = await asyncio.to_thread(self._post, self._body(unserved))
        _LOG.info("posted status=%s url=%s for=%s", status, self._url, ",".join(_names(unserved)))
        return 0

    def _body(self, unserved: tuple[Unserved, ...]) -> bytes:
        missing = [{"kind": work.kind, "name": work.name, "due_at": work.due_at.isoformat()} for work in unserved]
        body = {"namespace": self._namespace, "names": _names(unserved), "unserved": missing}
        return json.dumps(body).encode()

    def _post(self, body: bytes) -> int:
        request = urllib.request.Request(self._url, body, {"content-type": "application/json"}, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as refusal:
            refusal.close()
            raise OSError(f"{self._url} answered {refusal.code}") from None
        except OSError as error:
            raise OSError(f"{self._url} cannot be reached: {getattr(error, 'reason', error)}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A POST that is redirected would become a GET: better refused."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def _for_unserved(wake: NextWake) -> NextWake:
    """Look again later where all due work has a worker: behind it there may be other work."""
    return replace(wake, delay=_LOOK_AGAIN) if wake.is_due and not wake.unserved else wake


def _names(unserved: tuple[Unserved, ...]) -> list[str]:
    return list(dict.fromkeys(work.name for work in unserved))
