"""Credentials: a token that goes with every call and stream, as `authorization: Bearer TOKEN`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from grpc import aio

Token: TypeAlias = str | Callable[[], str]
"""A token, or a function that knows the present one. It is called for each call and stream, and must not block."""


def authorised(channel: aio.Channel, token: Token | None) -> aio.Channel:
    """The channel, whose calls and streams carry the token; without one, the channel itself."""
    if token is None:
        return channel
    for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        setattr(channel, kind, _carrying(getattr(channel, kind), token))
    return channel


def _carrying(make: Callable[..., Any], token: Token) -> Callable[..., Any]:
    def method(*args: Any, **options: Any) -> Callable[..., Any]:
        call = make(*args, **options)

        def with_token(*args: Any, metadata: Any = None, **options: Any) -> Any:
            said = token if isinstance(token, str) else token()
            return call(*args, metadata=(*(metadata or ()), ("authorization", f"Bearer {said}")), **options)

        return with_token

    return method
