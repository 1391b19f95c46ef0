"""A group: many hot calls decided one after the other in memory, and written by a few statements in one transaction."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.tasks import Stop, Task, TaskStatus
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.domain.values.times import Micros
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.books import Book, Group, HotCall, Undecided
from stepwell_server.engine.spine.claims import claim
from stepwell_server.engine.spine.kinds import Committed, Kinds, Listener
from stepwell_server.engine.spine.replies import asked_by, recall, remember, settled
from stepwell_server.engine.spine.timings import Measured, Stage
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.statements import Statement, ask_together, write
from stepwell_server.storage.spine import fates
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.tasks import Stamp, TaskKey
from stepwell_server.storage.spine.wakes import HandlerWake


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What became of a group: an answer, a refusal or `Undecided` per call, and what it changed."""

    answers: list[Any]
    committed: Committed
    measured: Measured


def run_group(tx: Tx, calls: Sequence[HotCall], kinds: Kinds, rules: Rules, *, waiting: bool) -> GroupResult:
    """Lock, stamp, read, decide every call, write, claim: a few statements each, however many calls there are."""
    measured = Measured()
    group = _open(tx, calls, kinds, rules, waiting=waiting)
    measured.end(Stage.LOCK)
    asked = asked_by(calls)
    recalled = recall(tx, calls, asked) if asked else {}
    _read(tx, group, calls, recalled)
    measured.end(Stage.READ)
    decided = _decide(group, calls, recalled)
    measured.end(Stage.DECIDE)
    _write(tx, group, kinds.listener)
    if asked:
        remember(tx, calls, decided, {place: key for place, key in asked.items() if place not in recalled})
    measured.end(Stage.WRITE)
    if group.claims:
        for late in group.claims:
            late.claimed = claim(tx, late.ask, kinds, rules)
        measured.end(Stage.CLAIM)
        measured.claimed = [assignment.task for late in group.claims for assignment in late.claimed.assigned]
    answers = [settled(answer) for answer in decided]
    born = [assignment for book in group.books.values() for assignment in book.assigned(group)]
    measured.born = [assignment.task for assignment in born]
    return GroupResult(answers, committed_of(group, born), measured)


def _open(tx: Tx, calls: Sequence[HotCall], kinds: Kinds, rules: Rules, *, waiting: bool) -> Group:
    books = kinds.books(rules)
    ids = {task_id for call in calls for task_id in call.task_ids}
    keys = {key for call in calls for key in call.task_keys}
    found = ask_together(tx, _asked(calls, ids, keys, books, waiting=waiting))
    by_key = {(task.handler, task.key): task for task in found.get("keys", ())}
    locked = found.get("ids", {}) | {task.id: task for task in by_key.values()}
    elsewhere: set[int | TaskKey] = set()
    if not waiting:
        missing, unseen = ids - locked.keys(), keys - by_key.keys()
        elsewhere |= store.existing(tx, missing) if missing else set()
        elsewhere |= store.existing_keys(tx, unseen) if unseen else set()
    named = {key: task.id for key, task in by_key.items()}
    numbers = iter(found.get("numbers", ()))
    return Group(rules, found["stamp"], locked, frozenset(elsewhere), books, named, numbers, kinds.kept())


def _asked(
    calls: Sequence[HotCall], ids: set[int], keys: set[TaskKey], books: Mapping[TaskKind, Book], *, waiting: bool
) -> dict[Hashable, Statement[Any]]:
    """What is asked at once, in this order: locks, the time after the last of them, and what can be read then."""
    asked: dict[Hashable, Statement[Any]] = {}
    if ids:
        asked["ids"] = store.locking(ids, waiting=waiting)
    if keys:
        asked["keys"] = store.locking_keys(keys, waiting=waiting)
    for kind, book in books.items():
        asked |= {(kind, "lock", place): one for place, one in enumerate(book.locking(calls, waiting=waiting))}
    asked["stamp"] = store.STAMPING
    numbers = sum(call.numbers for call in calls)
    if numbers:
        asked["numbers"] = store.drawing(numbers)
    for kind, book in books.items():
        for call in calls:
            call.foresee(book)
        asked |= {(kind, "read", place): one for place, one in enumerate(book.ahead())}
    return asked


def _read(tx: Tx, group: Group, calls: Sequence[HotCall], recalled: Mapping[int, Any]) -> None:
    for place, call in enumerate(calls):
        if place not in recalled and not _is_stuck(call, group):
            call.want(group)
    for book in group.books.values():
        book.read(tx, group)
    if group.fates_wanted:
        group.fates = fates.read(tx, group.fates_wanted, group.kept)


def _decide(group: Group, calls: Sequence[HotCall], recalled: Mapping[int, Any]) -> list[Any]:
    """An answer, a refusal or `Undecided` per call."""
    answers: list[Any] = []
    stuck: set[Hashable] = set()
    for place, call in enumerate(calls):
        if place in recalled:
            answers.append(recalled[place])
            if isinstance(recalled[place], Undecided):
                stuck.add(call.entity)
            continue
        if call.entity in stuck or _is_stuck(call, group):
            stuck.add(call.entity)
            answers.append(Undecided())
            continue
        try:
            answers.append(call.decide(group))
        except StepwellError as refusal:
            answers.append(refusal)
    return answers


def _is_stuck(call: HotCall, group: Group) -> bool:
    if not group.elsewhere:
        return False
    return not group.elsewhere.isdisjoint(call.task_ids) or not group.elsewhere.isdisjoint(call.task_keys)


def _write(tx: Tx, group: Group, listener: Listener) -> None:
    for book in group.books.values():
        book.bear(tx, group)
    writes = [one for book in group.books.values() for one in book.writes(group)]
    write(tx, [*writes, *store.writing(group.changed.values(), group.removed)])
    if group.fresh:
        group.inserted = store.insert(tx, list(group.fresh.values()), group.at)
    if group.rules.registered:
        events = [event for book in group.books.values() for event in book.events(group)]
        if events:
            group.told = listener(tx, events, group.rules, group.at)


def committed_of(group: Group, born: Sequence[Assignment]) -> Committed:
    """What everybody is told of a group that was written."""
    gone = [group.locked[task_id] for task_id in group.removed]
    claimed = [assignment for late in group.claims for assignment in late.claimed.assigned]
    written = [*group.changed.values(), *group.inserted.values(), *group.told]
    written += [assignment.task for assignment in claimed]
    must_look = {task.id for task in group.changed.values() if _must_look(task)}
    wakes = tuple(wake for late in group.claims for wake in late.claimed.wakes)
    committed = committed_by(written, gone, group.at, must_look, wakes)
    streamed = (assignment for late in group.claims if not late.by_call for assignment in late.claimed.assigned)
    return replace(
        committed,
        slots_freed=_freed(group),
        changes={kind: book.changes(group) for kind, book in group.books.items()},
        assigned=(*born, *streamed),
        images=_images(group, claimed),
    )


def _images(group: Group, claimed: Iterable[Assignment]) -> dict[int, Task | None]:
    """What is known of held tasks. One that was just claimed is known if nothing of it happens by itself."""
    images = {one.task.id: one.task if one.next_timer is None else None for one in claimed}
    return images | dict(image for book in group.books.values() for image in book.images(group))


def _freed(group: Group) -> frozenset[Handler]:
    """Handlers of tasks that were held before the group and are not after it."""
    after = ((before, group.task(before.id)) for before in group.locked.values())
    return frozenset(
        before.handler
        for before, task in after
        if before.status is TaskStatus.PROCESSING and (task is None or task.status is not TaskStatus.PROCESSING)
    )


def committed_by(
    written: Sequence[Task],
    others: Sequence[Task],
    at: Stamp,
    must_look: Iterable[int] = (),
    wakes: tuple[HandlerWake, ...] = (),
) -> Committed:
    """What a transaction changed that wrote these tasks, and removed the others."""
    everything = [*written, *others]
    tasks: dict[TaskKind, set[int]] = {}
    for task in everything:
        tasks.setdefault(task.handler.kind, set()).add(task.id)
    return Committed(
        frozenset(task.handler for task in everything),
        at,
        due=_earliest((task.handler, task.run_at) for task in written if task.status is TaskStatus.PENDING),
        slots_freed=frozenset(task.handler for task in others if task.status is TaskStatus.PROCESSING),
        leases_end=_earliest((task.handler, task.locked_until) for task in written if task.locked_until is not None),
        wakes=wakes,
        must_look=frozenset(must_look),
        tasks={kind: frozenset(ids) for kind, ids in tasks.items()},
    )


def _earliest(times: Iterable[tuple[Handler, Micros]]) -> dict[Handler, Micros]:
    """The first of these times of each handler."""
    first: dict[Handler, Micros] = {}
    for handler, at in times:
        first[handler] = min(at, first.get(handler, at))
    return first


def _must_look(task: Task) -> bool:
    """Whether the holder of a task must be told: something came for it, or it is to stop."""
    return task.status is TaskStatus.PROCESSING and (task.wake_again or task.stop is not Stop.NONE)
