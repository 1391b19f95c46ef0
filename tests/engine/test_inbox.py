"""Shares of the committer's inbox: whose call is next, and whose is refused when it is full."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pytest

from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import ServerBusy
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.engine.spine import committer as committers
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.inbox import SERVER, Inbox, Sender, Waiting
from stepwell_server.engine.spine.kinds import Kinds

LOUD, QUIET, OTHER = Sender("a", "loud"), Sender("a", "quiet"), Sender("b", "other")


@dataclass(frozen=True)
class Numbered(HotCall):
    """A call that is known by a number."""

    number: int
    bytes: int = 200
    items: int = 1

    @property
    def entity(self) -> Hashable:
        return self.number

    @property
    def size(self) -> int:
        return self.bytes

    @property
    def weight(self) -> int:
        return self.items


def waiting(sender: Sender, number: int = 0, size: int = 200) -> Waiting:
    """A call on its way."""
    return Waiting(Numbered(number, size), sender, asyncio.get_running_loop().create_future())


def filled(*senders: Sender, tuning: Tuning = DEFAULT) -> Inbox:
    """An inbox with a call of each, in this order."""
    inbox = Inbox(tuning=tuning)
    for number, sender in enumerate(senders):
        inbox.put(waiting(sender, number))
    return inbox


def drained(inbox: Inbox) -> list[str]:
    """Whose calls come out, in order."""
    return [one.sender.name for one in inbox.empty()]


async def test_the_bytes_of_a_call_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Numbered] = []

    def size(call: Numbered) -> int:
        counted.append(call)
        return call.bytes

    monkeypatch.setattr(Numbered, "size", property(size))
    committer = Committer(None, Kinds.of(), Rules(), lambda committed: None)  # type: ignore[arg-type]
    committer.enqueue(Numbered(1), LOUD)
    committer._inbox.put_back(committer._next_group())
    committer._next_group()

    assert len(counted) == 1


async def test_senders_of_a_namespace_take_turns() -> None:
    inbox = filled(*[LOUD] * 4, *[QUIET] * 2)

    assert drained(inbox) == ["loud", "quiet", "loud", "quiet", "loud", "loud"]
    assert (len(inbox), inbox.size, inbox.tenants) == (0, 0, {})


async def test_namespaces_take_turns_however_many_senders_one_of_them_has() -> None:
    sessions = [Sender("a", f"s{number}") for number in range(4)]
    inbox = filled(*sessions, *[OTHER] * 4)

    assert drained(inbox) == ["s0", "other", "s1", "other", "s2", "other", "s3", "other"]


async def test_a_turn_that_was_taken_is_not_taken_again_by_the_next_group() -> None:
    inbox = filled(*[LOUD] * 3, *[OTHER] * 3)

    assert inbox.take().sender == LOUD
    assert inbox.take().sender == OTHER
    assert inbox.take().sender == LOUD


async def test_calls_of_one_sender_keep_their_order_also_when_they_are_put_back() -> None:
    inbox = filled(*[LOUD, OTHER] * 4)
    taken = [inbox.take() for _ in range(5)]

    inbox.put_back(taken)

    calls: dict[Sender, list[Any]] = {LOUD: [], OTHER: []}
    for one in inbox.empty():
        calls[one.sender].append(one.call.entity)
    assert calls == {LOUD: [0, 2, 4, 6], OTHER: [1, 3, 5, 7]}


async def test_a_full_inbox_refuses_whoever_has_most_in_it() -> None:
    inbox = Inbox(tuning=Tuning(inbox_items=4))
    calls = [waiting(LOUD, number) for number in range(3)]
    for call in (*calls, waiting(QUIET, 3)):
        inbox.put(call)

    with pytest.raises(ServerBusy) as refused:
        inbox.put(waiting(LOUD, 4))
    inbox.put(waiting(OTHER, 5))
    inbox.put(waiting(OTHER, 6))

    assert refused.value.retry_after is not None
    assert not calls[0].answer.done(), "the newest of the loud one make room"
    for evicted in calls[1:]:
        assert isinstance(evicted.answer.exception(), ServerBusy)
    assert sorted(one.call.entity for one in inbox.empty()) == [0, 3, 5, 6]  # type: ignore[type-var]


async def test_a_namespace_has_no_larger_share_for_having_more_senders() -> None:
    inbox = filled(*(Sender("a", f"s{number}") for number in range(6)), tuning=Tuning(inbox_items=6))

    for number in range(3):
        inbox.put(waiting(OTHER, 10 + number))
    with pytest.raises(ServerBusy):
        inbox.put(waiting(OTHER, 13))

    assert drained(inbox).count("other") == 3


async def test_large_calls_make_room_for_a_small_one() -> None:
    inbox = Inbox(tuning=Tuning(inbox_bytes=3000))
    large = [waiting(LOUD, number, 1400) for number in range(2)]
    for call in large:
        inbox.put(call)

    for number in range(3):
        inbox.put(waiting(OTHER, 10 + number, 100))
    with pytest.raises(ServerBusy):
        inbox.put(waiting(LOUD, 20, 2000))

    assert [call.answer.done() for call in large] == [False, True]
    assert drained(inbox) == ["loud", "other", "other", "other"]


async def test_a_group_has_calls_of_every_sender_that_waits() -> None:
    committer = Committer(None, Kinds.of(), Rules(), lambda committed: None)  # type: ignore[arg-type]
    for number in range(2000):
        committer.enqueue(Numbered(number), LOUD)
    for sender in (QUIET, OTHER, SERVER):
        committer.enqueue(Numbered(3000), sender)

    group = committer._next_group()

    assert {one.sender for one in group} == {LOUD, QUIET, OTHER, SERVER}


async def test_groups_are_small_while_namespaces_share_them_and_large_otherwise() -> None:
    committer = Committer(None, Kinds.of(), Rules(), lambda committed: None)  # type: ignore[arg-type]
    for number in range(3000):
        committer.enqueue(Numbered(number), LOUD)
    assert len(committer._next_group()) == DEFAULT.group_calls

    committer.enqueue(Numbered(1), OTHER)
    shared = [one.sender for one in committer._next_group()]
    assert (shared.count(LOUD), shared.count(OTHER)) == (committers.SHARE, 1)
    assert len(committer._next_group()) == committers.SHARE, "it may send again in a moment"

    again = Committer(None, Kinds.of(), Rules(), lambda committed: None, tuning=Tuning(shared_for=0.0))  # type: ignore[arg-type]
    for number in range(3000):
        again.enqueue(Numbered(number), LOUD)
    again.enqueue(Numbered(2), OTHER)
    again._next_group()
    assert len(again._next_group()) == DEFAULT.group_calls


async def test_each_namespace_has_a_share_of_a_group_however_many_there_are() -> None:
    committer = Committer(None, Kinds.of(), Rules(), lambda committed: None)  # type: ignore[arg-type]
    for namespace in range(20):
        for number in range(100):
            committer.enqueue(Numbered(number), Sender(str(namespace), "one"))

    taken = Counter(one.sender.namespace for one in committer._next_group())

    assert len(taken) == 20
    assert set(taken.values()) <= {committers.SHARE - 1, committers.SHARE}


async def test_heavy_calls_use_up_a_share_and_leave_the_others_theirs() -> None:
    committer = Committer(None, Kinds.of(), Rules(), lambda committed: None)  # type: ignore[arg-type]
    for number in range(50):
        committer.enqueue(Numbered(number, items=100), LOUD)
        committer.enqueue(Numbered(number), OTHER)

    shared = Counter(one.sender for one in committer._next_group())

    assert shared == {LOUD: 1, OTHER: committers.SHARE}


async def test_a_heavy_call_fills_an_inbox_as_its_items_would() -> None:
    inbox = Inbox(tuning=Tuning(inbox_items=10))
    heavy = Waiting(Numbered(1, items=9), LOUD, asyncio.get_running_loop().create_future())
    inbox.put(heavy)
    for number in range(2):
        inbox.put(waiting(OTHER, number))

    assert isinstance(heavy.answer.exception(), ServerBusy)
    assert drained(inbox) == ["other", "other"]
    assert (len(inbox), inbox.size) == (0, 0)


async def test_large_calls_use_up_a_share_sooner() -> None:
    committer = Committer(None, Kinds.of(), Rules(), lambda committed: None)  # type: ignore[arg-type]
    for number in range(100):
        committer.enqueue(Numbered(number, 4 * committers.SHARE_BYTES), LOUD)
    committer.enqueue(Numbered(1), OTHER)

    assert [one.sender for one in committer._next_group()] == [LOUD, OTHER, LOUD]
