"""Coalescing: one batch in flight, each caller its own answer, a failed batch never mixed anew."""

from __future__ import annotations

import asyncio
from itertools import repeat

import grpc
import pytest

from stepwell import CallFailed
from stepwell.client.batching import HEAD_START, Coalescer, MostItems, until_available
from stepwell.tuning import Tuning
from stepwell.v1.errors_pb2 import ERROR_REASON_SERVER_BUSY, ERROR_REASON_UNSPECIFIED, ItemError
from stepwell.v1.workflows_pb2 import SendEventsItem, SendEventsResult


class Wire:
    """Takes batches, and answers when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.seconds: list[float] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, items: list[SendEventsItem], seconds: float) -> list[str]:
        self.seconds.append(seconds)
        self.batches.append([item.type for item in items])
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [f"stored {item.type}" for item in items]


@pytest.fixture
def wire() -> Wire:
    return Wire()


async def submit(
    coalescer: Coalescer[SendEventsItem, str], *types: str, seconds: float = 30
) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(coalescer.submit(SendEventsItem(type=type), seconds)) for type in types]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_what_comes_while_one_is_in_flight_goes_with_the_next(wire: Wire) -> None:
    coalescer = Coalescer(wire.send, MostItems())
    first = await submit(coalescer, "a")
    others = await submit(coalescer, "b", "c")
    assert wire.batches == [["a"]]

    wire.gate.set()
    assert await asyncio.gather(*first, *others) == ["stored a", "stored b", "stored c"]
    assert wire.batches == [["a"], ["b", "c"]]


async def test_a_failed_batch_fails_for_its_callers_and_no_others(wire: Wire) -> None:
    coalescer = Coalescer(wire.send, MostItems())
    doomed = await submit(coalescer, "a", "b")
    wire.error = ConnectionError("down")
    wire.gate.set()
    for task in doomed:
        with pytest.raises(ConnectionError):
            await task

    wire.error = None
    assert await asyncio.gather(*await submit(coalescer, "c")) == ["stored c"]
    assert wire.batches == [["a", "b"], ["c"]]


async def test_a_caller_that_gives_up_does_not_disturb_the_others(wire: Wire) -> None:
    coalescer = Coalescer(wire.send, MostItems())
    gives_up, stays = await submit(coalescer, "a", "b")
    gives_up.cancel()
    wire.gate.set()

    assert await stays == "stored b"
    assert gives_up.cancelled()


async def test_who_gives_up_before_it_was_sent_is_not_sent(wire: Wire) -> None:
    coalescer = Coalescer(wire.send, MostItems())
    (first,) = await submit(coalescer, "a")
    gives_up, stays = await submit(coalescer, "b", "c")
    gives_up.cancel()
    await asyncio.wait({gives_up})
    wire.gate.set()

    assert await asyncio.gather(first, stays) == ["stored a", "stored c"]
    assert wire.batches == [["a"], ["c"]]


async def test_a_deadline_counts_from_the_call_not_from_when_it_is_sent(wire: Wire) -> None:
    coalescer = Coalescer(wire.send, MostItems())
    (first,) = await submit(coalescer, "a")
    (late,) = await submit(coalescer, "b", seconds=0.01)

    with pytest.raises(CallFailed) as failed:
        await late
    assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED

    wire.gate.set()
    assert await first == "stored a"
    assert wire.batches == [["a"]]


async def test_a_batch_has_the_time_that_is_left_and_those_in_it_keep_their_own(wire: Wire) -> None:
    coalescer = Coalescer(wire.send, MostItems())
    (first,) = await submit(coalescer, "a", seconds=0.01)
    hurried, patient = await submit(coalescer, "b", seconds=5) + await submit(coalescer, "c", seconds=20)
    with pytest.raises(CallFailed):
        await first
    wire.gate.set()

    assert await asyncio.gather(hurried, patient) == ["stored b", "stored c"]
    assert 5 < wire.seconds[1] < 20


async def test_a_batch_ends_before_its_callers_give_up_so_that_they_are_told_why(wire: Wire) -> None:
    coalescer = Coalescer(wire.send, MostItems())
    (asked,) = await submit(coalescer, "a", seconds=20)
    wire.gate.set()
    await asked

    assert wire.seconds[0] <= 20 - HEAD_START


async def test_a_batch_is_bounded_in_items_and_in_bytes(wire: Wire) -> None:
    wire.gate.set()
    coalescer = Coalescer(wire.send, MostItems())

    await asyncio.gather(*await submit(coalescer, *["x"] * 101))
    await asyncio.gather(*await submit(coalescer, *["y" * 2_000_000] * 2))

    assert [len(batch) for batch in wire.batches] == [100, 1, 1, 1]


class Small(Wire):
    """Takes few items at once, and says how many."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    async def send(self, items: list[SendEventsItem], seconds: float) -> list[str]:
        if len(items) > self.limit:
            raise too_large(self.limit)
        return await super().send(items, seconds)


def too_large(limit: int) -> CallFailed:
    return CallFailed(grpc.StatusCode.INVALID_ARGUMENT, "too many", "BATCH_TOO_LARGE", {"limit": str(limit)})


async def test_a_server_that_takes_fewer_items_gets_fewer_from_then_on() -> None:
    wire, most = Small(2), MostItems()
    wire.gate.set()
    coalescer = Coalescer(wire.send, most)

    answers = await asyncio.gather(*await submit(coalescer, *"abcde"))

    assert answers == [f"stored {type}" for type in "abcde"]
    assert (wire.batches, most.number) == ([["a", "b"], ["c", "d"], ["e"]], 2)


@pytest.mark.parametrize("limit", [0, 1])
async def test_a_server_that_takes_no_item_at_all_is_not_asked_again(wire: Wire, limit: int) -> None:
    wire.error = too_large(limit)
    wire.gate.set()

    (asked,) = await submit(Coalescer(wire.send, MostItems()), "a")

    with pytest.raises(CallFailed, match="BATCH_TOO_LARGE"):
        await asked


async def test_closing_cancels_those_who_wait(wire: Wire) -> None:
    coalescer = Coalescer(wire.send, MostItems())
    tasks = await submit(coalescer, "a") + await submit(coalescer, "b")

    await coalescer.close()

    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task


class Flaky:
    """A server that stores items when it can, and remembers which it was sent, and under which request_id."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)  # codes of items of type "b", one for each time
        self.reason = ERROR_REASON_UNSPECIFIED
        self.batches: list[list[tuple[str, str]]] = []
        self.seconds: list[float] = []

    async def send(self, items: list[SendEventsItem], seconds: float) -> list[SendEventsResult]:
        self.batches.append([(item.type, item.request_id) for item in items])
        self.seconds.append(seconds)
        return [self._answer(item) for item in items]

    def _answer(self, item: SendEventsItem) -> SendEventsResult:
        if item.type == "b" and self.failures:
            return SendEventsResult(error=ItemError(code=self.failures.pop(0), reason=self.reason))
        return SendEventsResult(stored={})


RESOURCE_EXHAUSTED, ABORTED, UNAVAILABLE = 8, 10, 14
ITEMS = [SendEventsItem(type=type, request_id=f"request-{type}") for type in "abc"]


def pausing(seconds: float) -> Tuning:
    return Tuning(pauses=lambda: repeat(seconds))


async def test_only_what_was_unavailable_is_sent_again_under_its_own_id() -> None:
    server = Flaky(UNAVAILABLE, UNAVAILABLE)

    results = await until_available(server.send, ITEMS, 30, pausing(0))

    assert [result.HasField("stored") for result in results] == [True] * 3
    assert server.batches[1:] == [[("b", "request-b")]] * 2
    assert server.seconds == sorted(server.seconds, reverse=True)


async def test_so_is_what_the_server_was_too_busy_for() -> None:
    server = Flaky(RESOURCE_EXHAUSTED)
    server.reason = ERROR_REASON_SERVER_BUSY

    results = await until_available(server.send, ITEMS, 30, pausing(0))

    assert [result.HasField("stored") for result in results] == [True] * 3


@pytest.mark.parametrize(
    ("failures", "pause", "tries"),
    [([UNAVAILABLE] * 9, 31, 1), ([ABORTED], 0, 1), ([UNAVAILABLE] * 9 + [ABORTED], 0, 10)],
    ids=["the time is over", "it was another error", "it became another error"],
)
async def test_it_is_answered_as_it_is_when(failures: list[int], pause: float, tries: int) -> None:
    server = Flaky(*failures)

    results = await until_available(server.send, ITEMS, 30, pausing(pause))

    assert [result.error.code for result in results] == [0, failures[tries - 1], 0]
    assert len(server.batches) == tries
