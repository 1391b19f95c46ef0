"""Births: what callers want created, once for each key and once for each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stepwell_server.domain.spine.leases import Lease, Owner
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.times import Micros


class Key(Protocol):
    """The key of a thing in its namespace."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    def __hash__(self) -> int: ...


class Keyed(Protocol):
    """Something that has a key, or will have it once it is created."""

    @property
    def key(self) -> Key:
        """Its key."""


New = TypeVar("New", bound=Keyed)
Thing = TypeVar("Thing", bound=Keyed)


@dataclass(frozen=True, slots=True)
class Wanted(Generic[New]):
    """Something to create, what its creator calls the request, and the worker that is kept free for it."""

    new: New
    request_id: str | None = None
    request_hash: str | None = None
    holder: Owner | None = None

    @classmethod
    def by(cls, new: New, asked: Asked, holder: Owner | None = None) -> Wanted[New]:
        """The things that a request wants created."""
        return cls(new, asked.request_id or None, asked.body_hash.hex() or None, holder)


@dataclass(frozen=True, slots=True)
class Birth(Generic[New]):
    """Something to insert under a number that was drawn for it."""

    id: int
    wanted: Wanted[New]
    at: Micros
    lease: Lease | None = None

    @property
    def new(self) -> New:
        """The thing that is inserted."""
        return self.wanted.new


@dataclass(frozen=True, slots=True)
class Found(Generic[Thing]):
    """Something that was there before, and the request that made it."""

    thing: Thing
    request_id: str | None
    request_hash: str | None
