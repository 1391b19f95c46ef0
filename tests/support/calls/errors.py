"""What a refused call said."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
from grpc import aio

from stepwell.errors import CallFailed, failure_of


async def refusal(call: Awaitable[Any]) -> CallFailed:
    """The refusal of a call that must be refused."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return failure_of(caught.value)
