"""Links: what the parts of a connection share: its worker, the way to the committer, and the way out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from stepwell_server.domain.spine.frames import News
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.values.errors import Conflict, DatabaseUnavailable, ServerBusy, StepwellError
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.calls import Renew, Shorten
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.handout import Handout
from stepwell_server.engine.spine.local_workers import LocalWorker
from stepwell_server.engine.spine.outbox import Message, Outbox, Told

LONGEST_RETRY = 2.0

TRY_AGAIN = (DatabaseUnavailable, ServerBusy, Conflict)
"""Refusals after which a call of a connection is made again."""


@dataclass(slots=True, eq=False)
class Link:
    """One stream of a worker, for the parts of its connection."""

    owner: Owner
    worker: LocalWorker
    committer: Committer
    handout: Handout
    outbox: Outbox
    end: StepwellError | None = None
    """Why the stream must end."""
    has_parted: bool = False
    retries: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks that do something in a moment, or again."""

    def send(self, *messages: Message) -> None:
        """Put messages into the outbox."""
        for message in messages:
            self.outbox.put(message)
        self.worker.is_full = self.outbox.is_full

    def stop(self, why: StepwellError) -> None:
        """End the stream with this."""
        self.end = why
        self.outbox.ready.set()

    def tell(self, held: Held, news: News) -> None:
        """Send the worker news of a task."""
        holders = self.handout.holders
        if news.stale is not None or any(answer.released for answer in news.answers):
            holders.drop(self.worker, held, ended=news.stale is None)
        elif held.task_id in self.worker.held:
            holders.set_timer(self.worker, held, news.next_timer)
        self.committer.timings.stale += news.stale is not None
        if news.is_worth_telling:
            self.send(Told(held, news))

    def holds(self, held: Held) -> bool:
        """Whether the worker holds this through the stream."""
        return self.worker.holds(held)

    def lose(self, held: Held) -> None:
        """Tell the worker that a lease is lost. A session holds its tasks through its newest stream."""
        self.tell(held, News(stale=held.lost()))

    def renewal(self, held: Held) -> Renew:
        """The call that renews a lease to this connection."""
        return Renew(held, self.owner, self.committer.rules.times)

    def shortening(self, held: Held) -> Shorten:
        """The call that leaves a lease a short grace."""
        return Shorten(held, self.owner, self.committer.rules.times)

    async def enqueue(self, call: HotCall, then: Callable[[asyncio.Future[Any]], object]) -> asyncio.Future[Any]:
        """Hand a call to the committer. While that is full, the stream is not read: the worker has to wait."""
        while True:
            try:
                answer = self.committer.enqueue(call, self.worker.sender)
            except ServerBusy:
                await asyncio.sleep(self.committer.tuning.report_retry)
                continue
            answer.add_done_callback(then)
            return answer

    def spawn(self, retry: Coroutine[Any, Any, None]) -> None:
        """Do something beside the stream, until it ends."""
        task = asyncio.create_task(retry)
        self.retries.add(task)
        task.add_done_callback(self.retries.discard)

    def part(self) -> None:
        """Do nothing more beside the stream: it has ended."""
        self.has_parted = True
        self.handout.leave(self.worker)
        for retry in self.retries:
            retry.cancel()
