"""Threads for step bodies that are not async.

A pool of its own, as bodies are many and short: results that are ready together reach the loop in one call, where an
executor would wake it for each. Its threads do not keep a process from ending: a body that is stuck may stay so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeAlias

from stepwell.worker.loop_turns import call_back

Job: TypeAlias = Callable[[], Any]
Done: TypeAlias = Callable[[Any], None]


class Pool(Protocol):
    """Where functions are called that would block the loop."""

    def call(self, job: Job, done: Done) -> None:
        """Call `job`, which raises nothing, and give its result to `done` in a later turn of the loop.

        RuntimeError if there is not one thread to be had.
        """


class ThreadPool:
    """Up to `size` threads, started when they are needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._results: deque[tuple[Done, Any]] = deque()
        self._threads: list[Thread] = []
        self._unfinished = 0
        self._is_waking = False

    def call(self, job: Job, done: Done) -> None:
        """Call `job` in a thread, and give its result to `done` on the loop."""
        if len(self._threads) < min(self._size, self._unfinished + 1):
            self._start_thread()
        self._unfinished += 1
        self._jobs.put((job, done))

    def close(self) -> None:
        """Let idle threads end, and the others after what they are doing."""
        for _ in self._threads:
            self._jobs.put(None)

    def _start_thread(self) -> None:
        thread = Thread(target=self._work, name=f"stepwell-step-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more of them: those that there are take one job after the other
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            self._results.append((done, job()))
            # After the result is there, and the loop clears the flag before it looks: so none is left behind.
            if not self._is_waking:
                self._is_waking = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # the loop is closed: the result is not wanted
                    return

    def _deliver(self) -> None:
        self._is_waking = False
        while self._results:
            done, result = self._results.popleft()
            self._unfinished -= 1
            call_back(self._loop, done, result)
