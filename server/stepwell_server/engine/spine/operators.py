"""Operators: how an operation of a transaction is checked, called, and its answer kept for a repetition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stepwell_server.engine.spine.books import HotCall
from stepwell_server.storage.database.database import Tx

New = TypeVar("New")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Operator(Generic[New, Done]):
    """The part of a primitive in one type of operation."""

    check: Callable[[New], Awaitable[New]]
    call: Callable[[New], HotCall]
    dump: Callable[[Done], Any]
    """The stored part of the answer, as JSON."""
    load: Callable[[Tx, Any], Done]
