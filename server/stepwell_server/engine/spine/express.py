"""Express groups: calls that are decided by what the replica knows, and written by one statement under a guard.

A task that a worker of this replica holds changes by its reports, as a rule. So the replica keeps images: tasks as they
were last written, of which nothing else need be known. A report is decided by the image, with the same rules as under
the lock, and written if the stored task still is what the image says. Where it is not, nothing of that report was
written, and the call goes the ordinary way, which locks, reads and decides anew. Nothing rests on an image being right.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell_server.domain.spine.handlers import TaskKind
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.engine.spine import kinds as contract
from stepwell_server.engine.spine import replies
from stepwell_server.engine.spine.books import Group
from stepwell_server.engine.spine.group import GroupResult, committed_of
from stepwell_server.engine.spine.inbox import Waiting
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.engine.spine.timings import Measured, Stage
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine.tasks import Stamp


@dataclass(frozen=True, slots=True)
class Part:
    """Calls that may be decided by images together: reports or births of one kind."""

    kind: TaskKind
    calls: Sequence[Waiting]

    def halves(self) -> tuple[Part, Part]:
        """The same in two."""
        middle = len(self.calls) // 2
        return Part(self.kind, self.calls[:middle]), Part(self.kind, self.calls[middle:])


@dataclass(slots=True)
class Decided:
    """Calls of one kind that are decided by images, and wait to be written."""

    kind: TaskKind
    express: contract.Express
    group: Group
    measured: Measured
    waiting: list[Waiting] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    refused: list[Waiting] = field(default_factory=list)
    """Those that must be decided under their locks."""

    def write(self) -> Callable[[Tx], Any]:
        """The function that writes them."""
        return self.express.write(self.group, [one.call for one in self.waiting])

    def settle(self, written: Any) -> tuple[list[Waiting], list[Waiting], GroupResult]:
        """Those that were written, those that were not, and what the group changed, with the answers of the former."""
        self.measured.end(Stage.COMMIT)
        settled = self.express.settle(self.group, [one.call for one in self.waiting], written)
        done = [one for one, is_written in zip(self.waiting, settled, strict=True) if is_written]
        missed = [one for one, is_written in zip(self.waiting, settled, strict=True) if not is_written]
        answers = [
            replies.settled(answer) for answer, is_written in zip(self.answers, settled, strict=True) if is_written
        ]
        born = [assignment for book in self.group.books.values() for assignment in book.assigned(self.group)]
        self.measured.born = [assignment.task for assignment in born]
        return done, missed, GroupResult(answers, committed_of(self.group, born), self.measured)


@dataclass(slots=True)
class Express:
    """The images of a replica, and what is decided by them."""

    kinds: Kinds
    rules: Rules
    now: Callable[[], Stamp]
    """About what the database's clocks say. Only the ends of executions are decided by it, and those under the lock."""
    images: dict[int, Task] = field(default_factory=dict)

    def split(self, group: Sequence[Waiting]) -> tuple[list[Part], list[Waiting]]:
        """Groups of calls that may be decided by images, and the rest, each in their order.

        Of one entity only the first call may, and none behind another one that would outdate the image.
        """
        express: dict[tuple[TaskKind, bool], list[Waiting]] = {}
        rest: list[Waiting] = []
        taken: set[Hashable] = set()
        for waiting in group:
            call = waiting.call
            kind = None if call.entity in taken else call.express(self.images)
            if kind is not None and self.kinds[kind].express is not None:
                express.setdefault((kind, call.creates is None), []).append(waiting)
            else:
                rest.append(waiting)
            if kind is not None or not call.leaves_images:
                taken.add(call.entity)
        return [Part(kind, calls) for (kind, _), calls in express.items()], rest

    def decide(self, part: Part) -> Decided:
        """Decide calls as if their tasks were locked and nothing else had to be read."""
        measured = Measured()
        express = self.kinds[part.kind].express
        assert express is not None
        group = Group(self.rules, self.now(), {}, frozenset(), self.kinds.books(self.rules))
        express.begin(group)
        decided = Decided(part.kind, express, group, measured)
        for waiting in part.calls:
            self._decide(decided, waiting)
        measured.end(Stage.DECIDE)
        return decided

    def _decide(self, decided: Decided, waiting: Waiting) -> None:
        call, group = waiting.call, decided.group
        if call.express(self.images) is not decided.kind:  # its worker has left meanwhile
            decided.refused.append(waiting)
            return
        group.locked.update((task_id, self.images[task_id]) for task_id in call.task_ids)
        try:
            answer = call.decide(group)
            is_admitted = decided.express.admits(group, call, answer)
        except StepwellError:  # the lock decides whether it stays so
            is_admitted = False
        if is_admitted:
            decided.waiting.append(waiting)
            decided.answers.append(answer)
        else:
            self.forget(decided, waiting)
            decided.refused.append(waiting)

    def forget(self, decided: Decided, waiting: Waiting) -> None:
        """Leave a call to the ordinary way, and drop its image."""
        decided.express.forget(decided.group, waiting.call)
        for task_id in waiting.call.task_ids:
            decided.group.locked.pop(task_id, None)
            self.images.pop(task_id, None)
