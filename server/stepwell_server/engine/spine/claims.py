"""Claims: due tasks leased to workers, in the transaction that also decides what they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Task
from stepwell_server.domain.spine.work import Rules
from stepwell_server.engine.spine.assignments import Ask, Capacity, Claimed, Leased
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.claims import lock_due
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import next_wakes

MOST_ASKED = 64
"""Handlers that one claim asks for. Its cost grows with them, and most of them have nothing due."""


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
            waiting = sorted(part, key=lambda handler: self._asked.get(handler, 0))
            for first in range(0, len(waiting), MOST_ASKED):
                asked = waiting[first : first + MOST_ASKED]
                self._turn += 1
                self._asked.update(dict.fromkeys(asked, self._turn))
                yield frozenset(asked)


def claim(tx: Tx, ask: Ask, kinds: Kinds, rules: Rules) -> Claimed:
    """Lease due tasks to these workers; of all that is due, so many, the most urgent and oldest."""
    served = ask.served()
    sessions = [capacity.owner.session_id for capacity in ask.capacities]
    due = lock_due(tx, served, ask.room, sessions, ask.patience)
    at = store.stamp(tx)
    placed = _placed(due, ask.capacities)
    assigned = kinds.hand_out(tx, _leased(tx, placed), rules, at) if placed else ()
    if ask.max_steps:
        assigned = tuple(replace(one, max_steps=ask.max_steps) for one in assigned)
    got = Counter(task.handler for task, _ in placed)
    short = [one.handler for one in served if got[one.handler] < one.credits]
    wakes = next_wakes(tx, short) if short else []
    return Claimed(assigned, tuple(wakes))


def give_back_lost(tx: Tx, known: Mapping[Owner, frozenset[int]], kinds: Kinds) -> tuple[list[Task], Stamp]:
    """Return what these hold and do not know of: the answer to a claim was lost, and no worker was ever told."""
    found = [task for owner in known for task in store.lock_held(tx, owner.session_id) if task.owner == owner]
    lost = {task.id: task for task in found if task.owner and task.id not in known[task.owner] and not task.acked}
    at = store.stamp(tx)
    returned = [task.given_back() for task in lost.values()]
    if returned:
        store.save(tx, returned)
        kinds.given_up(tx, lost, returned, at)
    return returned, at


def _placed(due: Sequence[Task], capacities: Sequence[Capacity]) -> list[tuple[Task, Owner]]:
    """Pair each task with the worker that has it in memory, if that can take it, else with the one with most room."""
    left = {capacity.owner: capacity.credits for capacity in capacities}
    assert len(left) == len(capacities), "a worker is named once"
    taken: Counter[tuple[Owner, str]] = Counter()
    placed = []
    for task in due:
        space = task.handler.namespace
        hosts = [one for one in capacities if left[one.owner] > 0 and task.handler in one.handlers]
        able = [host.owner for host in hosts if taken[host.owner, space] < host.share(space)]
        if able:
            owner = max(able, key=lambda one: (one.session_id == task.sticky_session, left[one]))
            left[owner] -= 1
            taken[owner, space] += 1
            placed.append((task, owner))
    return placed


def _leased(tx: Tx, placed: Sequence[tuple[Task, Owner]]) -> list[Leased]:
    """The same under fresh fences."""
    fences = dialect.draw_numbers(tx, len(placed))
    return [Leased(task, owner, fence) for (task, owner), fence in zip(placed, fences, strict=True)]
