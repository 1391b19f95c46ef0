"""Use cases of workers without a stream: each exchange of the stream as a call of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from stepwell_server.domain.spine.frames import Frame, News
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.tasks import Task, Verdict
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import SessionHasStream, SessionNotRegistered
from stepwell_server.domain.values.times import SECOND, Micros
from stepwell_server.engine.sessions import Hello, register, state, touch
from stepwell_server.engine.spine.assignments import Ask, Assignment, Capacity, Claimed
from stepwell_server.engine.spine.calls import Answer, Claim, EndOvertime, Renew, ReportFrames
from stepwell_server.engine.spine.claims import Rotation
from stepwell_server.engine.spine.handout import LONGEST_PAUSE
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.engine.spine.waits import Waits
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine import requests, sessions
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.claims import STICKY
from stepwell_server.storage.spine.sessions import Session

LONGEST_CLAIM: Micros = 30 * SECOND
"""How long a claim can wait for work."""
MOST_CLAIMED = 100


class WorkerCalls:
    """Calls of workers without a stream."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._waits = Waits(replica.tuning.drain_wait)
        self._rotation = Rotation()

    def drain(self) -> None:
        """Let claims that wait for work come back without: the replica goes away."""
        self._waits.drain()

    async def register(self, hello: Hello) -> int:
        """Declare what a session without a stream hosts. Returns its connection number."""
        hello.check(self._replica.kinds)
        defined = self._replica.kinds.define(hello.hosted)

        def work(tx: Tx) -> tuple[int, Committed]:
            known = sessions.get(tx, hello.session_id)
            if known is not None and known.replica_id:
                raise SessionHasStream("this session is connected by a stream")
            redefined = register(tx, hello.namespace, defined, self._replica.registry.limits.handlers)
            number = sessions.connect(tx, hello.session("", defined))
            return number, Committed(redefined, store.stamp(tx), redefined=redefined)

        number, committed = await self._replica.db.run_tx(work)
        self._replica.announce(committed)
        return number

    async def claim(
        self, namespace: str, session_id: str, most: int, wait: Micros, only: frozenset[Handler], asked: Asked
    ) -> list[Assignment]:
        """Lease due tasks to a session without a stream, waiting for some to become due."""
        session = await self._caller(namespace, session_id)
        asked.check()
        replayed = await self._replica.db.run_tx(lambda tx: _recall(tx, namespace, asked))
        if replayed is not None:
            return await self._replica.assignments(replayed)
        hosted = frozenset(session.handlers)
        wanted = hosted & only if only else hosted
        capacity = Capacity(Owner(session_id, session.connection), wanted, min(most, MOST_CLAIMED))
        claimed = await self._claim_within(capacity, Sender(namespace, session_id), wait)
        leases = [[held.task_id, held.fence] for held in (assignment.held for assignment in claimed.assigned)]
        await self._replica.db.run_tx(lambda tx: requests.remember(tx, namespace, asked, leases))
        return await self._replica.assignments([assignment.task for assignment in claimed.assigned])

    async def give_back(self, left_out: Iterable[Assignment]) -> None:
        """Return claimed tasks that do not fit into the answer, uncounted, before the next claim."""
        answers = [self._replica.handout.deliveries.give_back(assignment) for assignment in left_out]
        await asyncio.gather(*filter(None, answers), return_exceptions=True)

    async def _claim_within(self, capacity: Capacity, sender: Sender, wait: Micros) -> Claimed:
        loop, bus = asyncio.get_running_loop(), self._replica.bus
        ends, was_draining = self._waits.ends(wait / SECOND), self._waits.is_draining
        pause = self._replica.tuning.claim_pause
        patience = 0 if bus.time.virtual else STICKY
        while True:
            number = bus.number
            claimed = await self._claim_once(capacity, sender, patience)
            if claimed.assigned or loop.time() >= ends or self._waits.is_draining is not was_draining:
                return claimed
            with suppress(TimeoutError):
                if bus.due_handlers(capacity.handlers.__contains__):  # others take it, or hold it back
                    async with self._waits.until(min(ends, loop.time() + pause)):
                        await bus.changed_since(number)
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    async with self._waits.until(ends):
                        await bus.wait_until_due(capacity.handlers.__contains__)

    async def _claim_once(self, capacity: Capacity, sender: Sender, patience: Micros) -> Claimed:
        """Ask for what is due as far as is known, then for the rest, until something is handed out."""
        due = {handler for handler, _ in self._replica.bus.due_handlers(capacity.handlers.__contains__)}
        claimed = Claimed()
        for asked in self._rotation.of(due, capacity.handlers - due):
            ask = Ask([replace(capacity, handlers=asked)], patience)
            claimed = await self._replica.committer.submit(Claim(ask, by_call=True), sender)
            if claimed.assigned:
                break
        return claimed

    async def renew(self, namespace: str, session_id: str, held: Sequence[Held]) -> list[Answer]:
        """Extend leases of a session without a stream. That is also its chance to learn what is over by itself."""
        await self._replica.registry.limits_of(namespace)
        session = await self._replica.db.run_tx(lambda tx: touch(tx, session_id))
        owner = Owner(session_id, 0 if session is None else session.connection)
        times = self._replica.rules.times
        sender = Sender(namespace, session_id)
        submit = self._replica.committer.submit

        async def kept(one: Held) -> Answer:
            renewal = submit(Renew(one, owner, times), sender)
            overtime = submit(EndOvertime(one, session_id), sender)
            renewed, after = await asyncio.gather(renewal, overtime)
            answer: Answer = renewed if renewed.verdict is Verdict.STALE else after
            return answer

        return list(await asyncio.gather(*map(kept, held)))

    async def commit(self, namespace: str, session_id: str, held: Held, frames: tuple[Frame, ...]) -> News:
        """Apply frames about one task."""
        await self._replica.db.run_tx(lambda tx: touch(tx, session_id))
        size = sum(frame.size for frame in frames)
        report = ReportFrames(held, session_id, frames, size, namespace=namespace, by_call=True)
        news: News = await self._replica.committer.submit(report, Sender(namespace, session_id))
        if news.stale is not None and not news.answers:
            raise news.stale
        return news

    async def state(self, session_id: str, held: Held, offset: int = 0) -> Assignment:
        """All that a worker must know of a task that it holds, without the first parts if it has those."""
        return await state(self._replica, session_id, held, offset)

    async def _caller(self, namespace: str, session_id: str) -> Session:
        await self._replica.registry.limits_of(namespace)
        session = await self._replica.db.run_tx(lambda tx: touch(tx, session_id))
        if session is None or session.namespace != namespace:
            raise SessionNotRegistered("register the handlers of this session first")
        if session.replica_id:
            raise SessionHasStream("this session is connected by a stream")
        return session


def _recall(tx: Tx, namespace: str, asked: Asked) -> list[Task] | None:
    """The tasks of an earlier claim with this request id that are still held under the same fence."""
    leases = requests.recall(tx, namespace, asked)
    if leases is None:
        return None
    fences = dict(leases)
    found = store.get(tx, fences)
    return [task for task in found.values() if task.fence == fences[task.id] and task.owner is not None]
