"""Claims: due tasks given to whoever can take them, in the transaction that also decides what they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepwell_server.domain.hooks.hooks import Hook
from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Reason, Task
from stepwell_server.domain.values.times import Micros
from stepwell_server.domain.workflows.instances import Step
from stepwell_server.domain.workflows.runs import RunRules
from stepwell_server.engine.hooks import book as jobs
from stepwell_server.engine.workflows.book import Reads, RunBook, changed_statuses, ref
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.claims import Served, lock_due
from stepwell_server.storage.spine.handlers import HandlerWake
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.workflows import instances as workflows
from stepwell_server.storage.workflows.instances import Started

MOST_ASKED = 64
"""Handlers that one claim asks for. What it costs grows with them, and most of them have nothing."""


class Rotation:
    """Whose turn it is to be asked, where more handlers are due than one claim asks for."""

    def __init__(self) -> None:
        self._asked: dict[Handler, int] = {}
        self._turn = 0

    def of(self, due: Collection[Handler], others: Collection[Handler] = ()) -> Iterator[frozenset[Handler]]:
        """Those that are due, so many at a time, beginning with those that were not asked for the longest; then others.

        Others may be due as well, by a commit that this replica has not heard of.
        """
        if len(due) + len(others) <= MOST_ASKED:
            self._asked.clear()
        for part in (due, others):
            waiting = sorted(part, key=lambda one: self._asked.get(one, 0))
            for first in range(0, len(waiting), MOST_ASKED):
                asked = waiting[first : first + MOST_ASKED]
                self._turn += 1
                self._asked.update(dict.fromkeys(asked, self._turn))
                yield frozenset(asked)


@dataclass(frozen=True, slots=True)
class Seat:
    """A connected worker: what it hosts, and how many tasks it can take."""

    owner: Owner
    handlers: frozenset[Handler]
    credits: int
    shares: Mapping[str, int] = field(default_factory=dict)
    """How many of them may be of a namespace, where that is bounded."""

    def share(self, namespace: str) -> int:
        """How many tasks of this namespace it can take."""
        return min(self.credits, self.shares.get(namespace, self.credits))


@dataclass(frozen=True, slots=True)
class Handed:
    """A task that was leased to a worker, and what the worker must know."""

    task: Task
    started: Started | None = None
    resolved: tuple[Step, ...] = ()
    """Steps that changed in the claim itself."""
    known_revision: int = 0
    """Revision of the run that the worker is believed to have in memory. 0: none."""
    is_fresh: bool = False
    """The run has no steps yet."""
    hook: Hook | None = None
    """The hook, if it is one."""
    max_steps: int = 0
    """How many steps the run may make before it is given back. 0: as many as it likes."""
    next_timer: Micros | None = None
    """When something of it happens by itself: a wait is over, or an execution takes too long."""

    @property
    def size(self) -> int:
        """About how many bytes it is, without the steps."""
        payload = self.hook.payload if self.hook is not None else None if self.started is None else self.started.params
        return 300 + (0 if payload is None else payload.size)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim got, and when the handlers that gave less than was asked for are due next."""

    handed: tuple[Handed, ...] = ()
    wakes: tuple[HandlerWake, ...] = ()


def claim(tx: Tx, seats: Sequence[Seat], rules: RunRules, patience: Micros, most: int | None = None) -> Claimed:
    """Lease due tasks to these seats; of all that is due, so many, the most urgent and oldest."""
    asked = _asked(seats)
    room = sum(seat.credits for seat in seats)
    sessions = [seat.owner.session_id for seat in seats]
    due = lock_due(tx, asked, room if most is None else min(room, most), sessions, patience)
    at = store.stamp(tx)
    assigned = _assign(due, seats)
    handed = _hand_out(tx, assigned, rules, at) if assigned else ()
    got = Counter(task.handler for task, _ in assigned)
    short = [one.handler for one in asked if got[one.handler] < one.credits]
    wakes = handlers.next_wakes(tx, short) if short else []
    return Claimed(handed, tuple(wakes))


def give_back_lost(tx: Tx, known: Mapping[Owner, frozenset[int]]) -> tuple[list[Task], Stamp]:
    """Return what these hold and do not know of: a claim whose answer was lost, so that nobody was ever told."""
    found = [task for owner in known for task in store.lock_held(tx, owner.session_id) if task.owner == owner]
    lost = {task.id: task for task in found if task.owner and task.id not in known[task.owner] and not task.acked}
    at = store.stamp(tx)
    returned = [task.given_back() for task in lost.values()]
    if returned:
        store.save(tx, returned)
        workflows.copy_status(tx, changed_statuses(lost, returned), at.now)
    return returned, at


def _asked(seats: Sequence[Seat]) -> list[Served]:
    credits: Counter[Handler] = Counter()
    for seat in seats:
        for handler in seat.handlers:
            credits[handler] += seat.share(handler.namespace)
    return [Served(handler, count) for handler, count in credits.items() if count > 0]


def _assign(due: Sequence[Task], seats: Sequence[Seat]) -> list[tuple[Task, Owner]]:
    """Each task to the worker that has it in memory, if that one can take it, else to the one with most room."""
    left = {seat.owner: seat.credits for seat in seats}
    assert len(left) == len(seats), "a worker has one seat"
    taken: Counter[tuple[Owner, str]] = Counter()
    assigned = []
    for task in due:
        space = task.handler.namespace
        hosts = [seat for seat in seats if left[seat.owner] > 0 and task.handler in seat.handlers]
        able = [seat.owner for seat in hosts if taken[seat.owner, space] < seat.share(space)]
        if able:
            owner = max(able, key=lambda one: (one.session_id == task.sticky_session, left[one]))
            left[owner] -= 1
            taken[owner, space] += 1
            assigned.append((task, owner))
    return assigned


def _hand_out(tx: Tx, assigned: Sequence[tuple[Task, Owner]], rules: RunRules, at: Stamp) -> tuple[Handed, ...]:
    fences = dialect.draw_numbers(tx, len(assigned))
    leased = [(task, owner, fence) for (task, owner), fence in zip(assigned, fences, strict=True)]
    runs = [one for one in leased if _is_run(one[0])]
    hooks = [one for one in leased if not _is_run(one[0])]
    handed = _hand_out_runs(tx, runs, rules, at) if runs else []
    if hooks:
        for task, hook in jobs.claim(tx, hooks, rules, at):
            (execution,) = load_open(task.open_steps)  # runs say when a body begins; here it begins now
            handed.append(Handed(task, hook=hook, next_timer=execution.ends_at))
    return tuple(handed)


def _hand_out_runs(tx: Tx, leased: Sequence[tuple[Task, Owner, int]], rules: RunRules, at: Stamp) -> list[Handed]:
    tasks = {task.id: task for task, _, _ in leased}
    book = RunBook(rules)
    book.read(tx, _reads(tasks.values()), tasks, at)
    handed = []
    for task, owner, fence in leased:
        run = book.open(task)
        resolved = run.claim(owner, fence)
        known, run.task = run.task.cached_revision, run.task._replace(cached_revision=0)
        timer = run.next_timer()
        handed.append(Handed(run.task, None, tuple(resolved), known, _is_fresh(task), next_timer=timer))
    store.save(tx, [one.task for one in handed])
    book.write_steps(tx)
    started = workflows.start(tx, tasks, at.now)
    return [replace(one, started=started.get(one.task.id)) for one in handed]


def _reads(tasks: Iterable[Task]) -> Reads:
    reads = Reads()
    for task in tasks:
        if not _is_fresh(task):
            reads.runs.add(ref(task))
            reads.names.update((ref(task), one.name) for one in load_open(task.open_steps))
    return reads


def _is_run(task: Task) -> bool:
    return task.handler.kind is TaskKind.WORKFLOW


def _is_fresh(task: Task) -> bool:
    """Whether nothing of the run was ever stored: it has just been created, and nobody has held it."""
    return task.reason is Reason.RUN and task.revision <= 1
