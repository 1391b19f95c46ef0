"""Holders: which worker of this replica holds what, and what is asked about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from stepwell_server.domain.spine.frames import News
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.spine.calls import ReportFrames
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.local_workers import LocalWorker

log = structlog.get_logger()


class Holders:
    """One per replica. A task that a worker holds through a stream of this replica is here."""

    def __init__(self, committer: Committer, changed: Callable[[], None]) -> None:
        self._committer = committer
        self._changed = changed
        self._holders: dict[int, LocalWorker] = {}
        self._endings: dict[Held, asyncio.Future[bool]] = {}
        """Executions whose end a caller waits for."""

    def __contains__(self, held: Held) -> bool:
        worker = self._holders.get(held.task_id)
        return worker is not None and worker.holds(held)

    def hold(self, worker: LocalWorker, held: Held) -> None:
        """A worker holds this task through its present stream."""
        worker.held[held.task_id] = held
        self._holders[held.task_id] = worker

    def drop(self, worker: LocalWorker, held: Held, *, ended: bool) -> None:
        """A worker no longer holds this task: its execution has ended, or it was taken away."""
        self._settle(held, ended=ended)
        if worker.holds(held):
            del worker.held[held.task_id]
            worker.timers.pop(held.task_id, None)
            worker.must_repeat.discard(held.task_id)
            if self._holders.get(held.task_id) is worker:
                self._forget(held.task_id)

    def leave(self, worker: LocalWorker) -> None:
        """A worker's stream has ended."""
        for task_id, held in worker.held.items():
            if self._holders.get(task_id) is worker:
                self._forget(task_id)
                self._settle(held, ended=False)

    def _forget(self, task_id: int) -> None:
        del self._holders[task_id]
        self.forget_images([task_id])

    # ---- images

    def keep_images(self, images: Mapping[int, Task | None]) -> None:
        """Keep what is known of tasks that are held here, and drop what is no longer enough."""
        if self._committer.express is None:
            return
        for task_id, image in images.items():
            if image is not None and task_id in self._holders:
                self._committer.express.images[task_id] = image
            else:
                self._committer.express.images.pop(task_id, None)

    def forget_images(self, task_ids: Iterable[int]) -> None:
        """Drop what is known of tasks: they are not held here, or another replica has changed them."""
        self.keep_images(dict.fromkeys(task_ids))

    def set_timer(self, worker: LocalWorker, held: Held, at: Micros | None) -> None:
        """Something of a held task happens by itself at this time."""
        if at is None or held.task_id not in worker.held:
            worker.timers.pop(held.task_id, None)
        elif worker.timers.get(held.task_id) != at:
            worker.timers[held.task_id] = at
            self._changed()

    # ---- questions

    def look(self, task_ids: Iterable[int], *, tell_all: bool = False) -> None:
        """Something came for these tasks, or they were taken away: tell those of our workers that hold them."""
        for task_id in task_ids:
            worker = self._holders.get(task_id)
            if worker is not None:
                self.ask(worker, worker.held[task_id], tell_all=tell_all)

    def ask(self, worker: LocalWorker, held: Held, *, tell_all: bool = False) -> None:
        """Ask what is news of a held task, and tell its worker."""
        worker.timers.pop(held.task_id, None)
        tell_all = tell_all or held.task_id in worker.must_repeat
        if worker.is_full:
            self._ask_later(worker, held)
            return
        try:
            question = ReportFrames(
                held, worker.owner.session_id, connection=worker.owner.connection, tell_all=tell_all
            )
            news = self._committer.enqueue(question, worker.sender)
        except StepwellError as error:
            log.warning("look_failed", reason=error.reason)
            self._ask_later(worker, held)
            return
        news.add_done_callback(lambda done: self._heard(worker, held, done, told_all=tell_all))

    def _heard(self, worker: LocalWorker, held: Held, done: asyncio.Future[News], *, told_all: bool) -> None:
        if done.cancelled() or not worker.holds(held):
            return
        if done.exception() is not None:
            self._ask_later(worker, held)
            return
        if told_all:  # another question may have found, and lost, what this one says nothing of
            worker.must_repeat.discard(held.task_id)
        worker.tell(held, done.result())

    def _ask_later(self, worker: LocalWorker, held: Held) -> None:
        """The answer did not come, though what it was about may be committed."""
        worker.must_repeat.add(held.task_id)
        asyncio.get_running_loop().call_later(self._committer.tuning.question_retry, self._ask_if_held, worker, held)

    def _ask_if_held(self, worker: LocalWorker, held: Held) -> None:
        if self._holders.get(held.task_id) is worker and worker.holds(held):
            self.ask(worker, held)

    # ---- ends

    async def ended(self, handed: Iterable[Held], seconds: float) -> int:
        """How many of these executions have ended within so many seconds: suspended, finished or failed."""
        if not seconds:
            return 0
        waits = {held: self._endings.setdefault(held, asyncio.get_running_loop().create_future()) for held in handed}
        for held, wait in waits.items():
            if held.task_id not in self._holders and not wait.done():
                wait.set_result(True)  # before we could ask
        try:
            if waits:
                await asyncio.wait(waits.values(), timeout=seconds)
        finally:
            for held in waits:
                self._endings.pop(held, None)
        return sum(wait.done() and wait.result() for wait in waits.values())

    def _settle(self, held: Held, *, ended: bool) -> None:
        wait = self._endings.get(held)
        if wait is not None and not wait.done():
            wait.set_result(ended)
