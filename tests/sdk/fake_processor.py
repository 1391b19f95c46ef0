"""A processor that does what a test says, on a clock that moves when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from stepwell.dispatcher.processors import NextWake
from tests.sdk.stage import ManualClock, settle


@dataclass
class FakeProcessor:
    clock: ManualClock
    wakes_at: float | None = None
    count: int = 1
    """What a pass returns."""
    backlog: int | None = None
    """After so many passes nothing is due any more."""
    number: int = 1
    namespace: str = "default"
    passes: list[float] = field(default_factory=list)
    """When each pass began."""
    looks: int = 0
    running: int = 0
    most_running: int = 0
    pass_fails: BaseException | None = None
    look_fails: BaseException | None = None
    gate: asyncio.Event | None = None
    """Passes last until it is set."""
    look_gate: asyncio.Event | None = None
    look_takes: float = 0.0
    """Seconds that pass while it is asked for the next wake."""

    async def process(self) -> int:
        self.passes.append(self.clock.now())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.pass_fails is not None:
                raise self.pass_fails
            if self.backlog is not None:
                self.backlog -= 1
                self.wakes_at = self.wakes_at if self.backlog else None
            return self.count
        finally:
            self.running -= 1

    async def next_wake(self) -> NextWake:
        self.looks += 1
        self.clock.advance(self.look_takes)
        if self.look_gate is not None:
            await self.look_gate.wait()
        if self.look_fails is not None:
            raise self.look_fails
        return self.wake()

    def wake(self) -> NextWake:
        return NextWake(None if self.wakes_at is None else self.wakes_at - self.clock.now(), self.number)


@dataclass
class FakeSource(FakeProcessor):
    """The same with a stream, which a test tells what to say."""

    streams: list[asyncio.Queue[NextWake | BaseException | None]] = field(default_factory=list)

    async def follow(self) -> AsyncIterator[NextWake]:
        said: asyncio.Queue[NextWake | BaseException | None] = asyncio.Queue()
        self.streams.append(said)
        while (wake := await said.get()) is not None:
            if isinstance(wake, BaseException):
                raise wake
            yield wake

    async def tell(self) -> None:
        """Send the present next wake."""
        self.streams[-1].put_nowait(self.wake())
        await settle()

    async def end(self, error: BaseException | None = None) -> None:
        """End the stream, well or with an error."""
        self.streams[-1].put_nowait(error)
        await settle()


async def after(clock: ManualClock, seconds: float, step: float = 0.01) -> None:
    """Let so much time pass, in small steps, and everything happen that is due."""
    await settle()
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await settle()
