"""Turns of the loop: everybody who waits for one is called back."""

from __future__ import annotations

from stepwell.worker.loop_turns import Turns
from tests.sdk.stage import settle


async def test_a_callback_that_raises_does_not_keep_the_others_from_being_called(raised: list[BaseException]) -> None:
    turns, called = Turns(), []
    turns.after(1, lambda: called.append("before"))
    turns.after(1, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    turns.after(1, lambda: called.append("after"))
    turns.after(2, lambda: called.append("later"))
    await settle()

    assert called == ["before", "after", "later"]
    assert [type(error) for error in raised] == [ZeroDivisionError]
