"""Births: calls that create something, each thing once by its key and each request once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stepwell_server.domain.spine.births import Birth, Found, Key, Keyed, Wanted
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Lease, Owner
from stepwell_server.domain.spine.tasks import NewTask
from stepwell_server.domain.values.asked import reused
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.engine.spine.books import Group, HotCall, Later
from stepwell_server.storage.database.database import Tx

New = TypeVar("New", bound=Keyed)
Thing = TypeVar("Thing", bound=Keyed)


@dataclass(frozen=True, slots=True)
class Created(Generic[Thing]):
    """The thing that a call created, now or when it was first sent."""

    thing: Thing
    is_new: bool = False
    """This very call has created it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A worker that is kept free for a task of this handler that is about to be created. None: none is free."""

    handler: Handler
    holder: Owner | None


@dataclass(frozen=True, slots=True)
class Store(Generic[New, Thing]):
    """The statements of a primitive that births need."""

    insert: Callable[[Tx, Sequence[Birth[New]]], set[int]]
    """Store what is not there yet, and return its numbers."""
    find: Callable[[Tx, Iterable[Birth[New]]], Sequence[Found[Thing]]]
    """The things that exist already, by key or by request."""
    task: Callable[[Birth[New]], NewTask]


@dataclass(slots=True)
class Births(Generic[New, Thing]):
    """The things of one kind that the calls of one group create."""

    store: Store[New, Thing]
    wanted: dict[Key, Wanted[New]] = field(default_factory=dict)
    stored: dict[Key, Birth[New]] = field(default_factory=dict)
    """Those of them that were not there yet."""
    found: dict[Key, Found[Thing]] = field(default_factory=dict)
    found_by_request: dict[tuple[str, str], Key] = field(default_factory=dict)

    def want(self, wanted: Wanted[New]) -> None:
        """Create this, unless there is something of its key."""
        self.wanted.setdefault(wanted.new.key, wanted)

    def write(self, tx: Tx, group: Group) -> None:
        """Store what is not there yet, and schedule its tasks."""
        if not self.wanted:
            return
        births = _births(group, self.wanted.values())
        numbers = self.store.insert(tx, births)
        for birth in births:
            if birth.id in numbers:
                self.stored[birth.new.key] = birth
                group.schedule(self.store.task(birth))
        if len(numbers) < len(births):
            self._find(tx, [birth for birth in births if birth.id not in numbers])

    def _find(self, tx: Tx, refused: Sequence[Birth[New]]) -> None:
        for found in self.store.find(tx, refused):
            key = found.thing.key
            self.found[key] = found
            if found.request_id is not None:
                self.found_by_request[key.namespace, found.request_id] = key

    def earlier(self, wanted: Wanted[New]) -> Key | None:
        """The key of what is there instead: by the same request, or under the same key."""
        key = wanted.new.key
        by_request = self.found_by_request.get((key.namespace, wanted.request_id or ""))
        return by_request if by_request is not None else key if key in self.found else None


def _births(group: Group, wanted: Iterable[Wanted[New]]) -> list[Birth[New]]:
    """Each under a number of its own; those that a worker is kept free for under a lease."""
    at, until = group.at.now, group.at.lease_now + group.rules.times.ack_window
    return [
        Birth(group.draw(), one, at, None if one.holder is None else Lease(one.holder, group.draw(), until))
        for one in wanted
    ]


@dataclass(frozen=True, slots=True)
class Create(HotCall, Generic[New, Thing]):
    """Create something. The answer is `Created`, or a refusal."""

    wanted: Wanted[New]
    reservation: Reservation | None = None
    """It ends with the call."""

    @property
    def entity(self) -> Hashable:
        """The key of what is created."""
        return self.wanted.new.key

    @property
    def numbers(self) -> int:
        """That of its task, and the fence of its lease."""
        return 1 if self.wanted.holder is None else 2

    def decide(self, group: Group) -> Later:
        """Create it; whether it was there is known when it is written."""
        births = self.births(group)
        births.want(self.wanted)
        return Later(lambda: self._outcome(group, births))

    def births(self, group: Group) -> Births[New, Thing]:
        """The things of this kind that the group creates."""
        raise NotImplementedError

    def newborn(self, group: Group, birth: Birth[New]) -> Thing:
        """Convert the thing that was just stored."""
        raise NotImplementedError

    def exists(self) -> StepwellError:
        """The refusal if there is something of that key."""
        raise NotImplementedError

    def _outcome(self, group: Group, births: Births[New, Thing]) -> Created[Thing] | StepwellError:
        birth = births.stored.get(self.wanted.new.key)
        if birth is not None and birth.wanted is self.wanted:
            return Created(self.newborn(group, birth), is_new=True)
        key = births.earlier(self.wanted) if birth is None else self.wanted.new.key
        if key is None:
            return reused(self.wanted.request_id)
        return self._repeated(group, births, key)

    def _repeated(self, group: Group, births: Births[New, Thing], key: Key) -> Created[Thing] | StepwellError:
        """The answer if there is one already: the same, if this is the same request."""
        birth = births.stored.get(key)  # of this group: it has had no task yet when it was found
        first = births.found[key] if birth is None else birth.wanted
        if self.wanted.request_id is None or self.wanted.request_id != first.request_id:
            return self.exists()
        if self.wanted.request_hash != first.request_hash:
            return reused(self.wanted.request_id)
        return Created(births.found[key].thing if birth is None else self.newborn(group, birth))


def things(answers: Iterable[Any]) -> list[Any]:
    """The things that calls created; refusals stay as they are."""
    return [answer.thing if isinstance(answer, Created) else answer for answer in answers]
