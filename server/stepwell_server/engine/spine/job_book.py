"""Jobs inside a transaction, of every kind whose tasks end with one outcome. Each such kind writes its own ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from stepwell_server.domain.spine.jobs import Job, JobEnd
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.engine.spine.books import Book, Group
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.statements import Write, write
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.tasks import Stamp

WriteEnds: TypeAlias = Callable[[Sequence[JobEnd]], Write]
"""Makes the statement that writes how executions ended, and perhaps their jobs with them, into the rows of a kind."""


@dataclass(slots=True)
class JobBook(Book):
    """The jobs of one group."""

    rules: Rules
    write_ends: WriteEnds
    _at: Stamp = field(default_factory=lambda: Stamp(0, 0))
    _jobs: dict[int, Job] = field(default_factory=dict)

    def read(self, tx: Tx, group: Group) -> None:
        """Take the time over. All else that a job needs is in its task."""
        self._at = group.at

    def open(self, task: Task) -> Job:
        """The job of a locked task, as the calls before this one left it."""
        job = self._jobs.get(task.id)
        if job is None:
            job = self._jobs[task.id] = Job(task, self._at.now, self._at.lease_now, self.rules)
        job.task = task
        return job

    def writes(self, group: Group) -> Iterable[Write]:
        """The statement that writes the ends of jobs."""
        return _ends(self._jobs.values(), group.at, self.write_ends)


def write_jobs(tx: Tx, jobs: Sequence[Job], at: Stamp, write_ends: WriteEnds) -> list[Task]:
    """Write jobs that a claim or the sweep has changed, with their tasks. Returns the tasks of those that go on."""
    gone = [job.task.id for job in jobs if job.ending is not None]
    kept = [job.task for job in jobs if job.ending is None]
    write(tx, [*_ends(jobs, at, write_ends), *store.writing(kept, gone)])
    return kept


def _ends(jobs: Iterable[Job], at: Stamp, write_ends: WriteEnds) -> list[Write]:
    ends = [JobEnd(job.task.id, at.now, job.ended) for job in jobs if job.ended is not None]
    return [write_ends(ends)] if ends else []
