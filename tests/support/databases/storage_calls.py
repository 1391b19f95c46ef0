"""Every function of the storage floor that talks to the database, each with a call that asks it for a few rows."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, TypeAlias

from sqlalchemy import text

import stepwell_server.storage as floor
from stepwell_server.domain.hooks.hooks import HookFilter, HookKey, NewHook
from stepwell_server.domain.hooks.webhooks import Target
from stepwell_server.domain.namespaces import NamespaceSpec
from stepwell_server.domain.spine import births
from stepwell_server.domain.spine.births import Birth
from stepwell_server.domain.spine.definitions import Declaration, Definition
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.jobs import Execution, JobEnd, JobStatus
from stepwell_server.domain.spine.leases import LeaseTimes, Owner
from stepwell_server.domain.spine.tasks import NewTask, Reason, Stop, Task, TaskStatus
from stepwell_server.domain.values.asked import Asked, RequestKey
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.workflows.instances import (
    Event,
    InstanceFilter,
    InstanceKey,
    InstanceStatus,
    NewInstance,
    Step,
    StepStatus,
    StepType,
)
from stepwell_server.storage import deployments as server
from stepwell_server.storage import namespaces
from stepwell_server.storage.database import clock, dialect, statements
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.database.statements import Statement, Write
from stepwell_server.storage.hooks import hooks, targets
from stepwell_server.storage.spine import (
    claims,
    declarations,
    fates,
    handlers,
    leases,
    limits,
    names,
    requests,
    sessions,
    tasks,
    wakes,
)
from stepwell_server.storage.spine.claims import Served
from stepwell_server.storage.spine.sessions import Session
from stepwell_server.storage.workflows import express, runs
from stepwell_server.storage.workflows import instances as workflows
from stepwell_server.storage.workflows import pages as listings
from stepwell_server.storage.workflows.instances import End
from stepwell_server.storage.workflows.runs import RunRef, SentEvent, Wanted

Call: TypeAlias = Callable[[Tx], object]

FIRST, FEW = 1_000_000, 3
IDS = [FIRST + number for number in range(1, FEW + 1)]
"""The first rows of every table that is filled."""
RUNS = [RunRef(number, 0) for number in IDS]
ORDER, NOTE = Handler("default", TaskKind.WORKFLOW, "order"), Handler("default", TaskKind.HOOK, "note")
LONG_AGO, FAR = 1, 2**60
ANNA = Owner("s1", 1)
_KEPT = {TaskKind.WORKFLOW: workflows.KEPT, TaskKind.HOOK: hooks.KEPT}
_HISTORY = {TaskKind.WORKFLOW: workflows.refer_to, TaskKind.HOOK: hooks.refer_to}

_KEYS = [InstanceKey("default", "order", f"i{number}") for number in range(1, FEW + 1)]
_BIRTH = Birth(FAR, births.Wanted(NewInstance(_KEYS[0], Payload("{}"), {"region": "eu"}), "r1", ""), 1)
_HOOK_BIRTH = Birth(FAR, births.Wanted(NewHook(HookKey("default", "h1"), "note", Payload("{}"), "k"), "r1"), 1)
_HOOK: Any = SimpleNamespace(id=IDS[0], attempts=1, last_attempt_at=1)
_INSTANCE: Any = SimpleNamespace(id=IDS[0], run_number=0)
IMAGE = Task(
    *(IDS[0], ORDER, "i1", 0, Reason.RUN, 9, 0, TaskStatus.PROCESSING, 0, 1, 0, Stop.NONE, False, 0, False, ""),
    *(None, None, None),
)
"""A task of the crowd, once it is held."""
_STEP = Step("step1", StepType.DO, StepStatus.COMPLETED, 1, 1, 1, 1)
_EVENT = Event(FAR, "paid", Payload("{}"), 1)
_REPORT = express.Report(IMAGE, IMAGE, [], ["step1"])
_ASKED = Asked("anybody", "Do", "r1", sha256(b"").digest())
_REQUESTS = [RequestKey("default", "anybody", "Do", f"r{number}") for number in range(FEW)]
_TARGET = Target("default", "note", "https://example.com", (), 1, 1)
_DEFINITION = Definition.of({}, {})
_SESSION = Session("s1", "default", "w1", "sdk", "", {ORDER: _DEFINITION.hash})


def _asked() -> list[Statement[Any]]:
    """What hot calls ask at once."""
    return [
        tasks.locking(IDS, waiting=False),
        tasks.locking_keys([(ORDER, "i1"), (NOTE, "h1")], waiting=False),
        tasks.STAMPING,
        tasks.drawing(FEW),
        runs.steps_ahead([(one, "step1") for one in IDS], IDS, list),
    ]


def _writes(tx: Tx, position: int) -> list[Write]:
    """What hot calls write at once."""
    first, *others = _tasks(tx)
    return [
        runs.saving_steps((run, _STEP) for run in RUNS),
        runs.inserting_events([SentEvent(RUNS[0], "default", replace(_EVENT, position=position))]),
        runs.delivering((run, Event(1, "paid", None, 1, 1, "s")) for run in RUNS),
        workflows.ending([End(one, InstanceStatus.COMPLETE, 1, 1) for one in IDS[:2]]),
        workflows.copying_status(dict.fromkeys(IDS[2:], InstanceStatus.PAUSED), 1),
        hooks.ending(map(_end, IDS)),
        *tasks.writing(others or [first], [first.id if others else 0]),  # it is one statement whatever is there
    ]


def _write(tx: Tx) -> None:
    """Apart, then together."""
    for one in _writes(tx, FAR):
        statements.write(tx, [one])
    statements.write(tx, _writes(tx, FAR - 1))


def _tasks(tx: Tx) -> list[Task]:
    """Tasks that exist, or one that has just been made."""
    found = tasks.get(tx, IDS) or tasks.insert(tx, [NewTask(ORDER, "fresh", id=IDS[0])], tasks.stamp(tx))
    return list(found.values())


def _end(one: int) -> JobEnd:
    return JobEnd(one, 1, Execution(JobStatus.COMPLETED, 1, 1, None, 1))


CALLS: dict[Callable[..., Any], Call] = {
    clock.read: clock.read,
    clock.lock: clock.lock,
    clock.move: lambda tx: clock.move(tx, 1),
    dialect.draw_numbers: lambda tx: dialect.draw_numbers(tx, FEW),
    limits.count_held: lambda tx: limits.count_held(tx, [ORDER, NOTE]),
    handlers.registered: lambda tx: handlers.registered(tx, ORDER),
    handlers.unnoted: lambda tx: handlers.unnoted(tx, [ORDER, NOTE]),
    declarations.add: lambda tx: declarations.add(tx, {ORDER: _DEFINITION}, put=True),
    declarations.bring_into_force: lambda tx: declarations.bring_into_force(tx, {ORDER: _DEFINITION}),
    declarations.contested: lambda tx: declarations.contested(tx, {ORDER: ["1"], NOTE: ["2"]}),
    declarations.forget: lambda tx: declarations.forget(tx, {one: [Declaration("1", 1)] for one in (ORDER, NOTE)}),
    declarations.lock: lambda tx: declarations.lock(tx, [ORDER, NOTE]),
    declarations.of: lambda tx: declarations.of(tx, [ORDER, NOTE]),
    declarations.read: lambda tx: declarations.read(tx, {ORDER: "1", NOTE: "2"}),
    declarations.unknown: lambda tx: declarations.unknown(tx, {ORDER: _DEFINITION}),
    limits.limit: lambda tx: limits.limit(tx, NOTE, concurrency=5),
    handlers.list_registered: lambda tx: handlers.list_registered(tx, "default", TaskKind.WORKFLOW, 10, None),
    limits.lock: lambda tx: limits.lock(tx, [ORDER, NOTE]),
    wakes.next_wakes: lambda tx: [wakes.next_wakes(tx), wakes.next_wakes(tx, [ORDER, NOTE])],
    wakes.next_wakes_in: lambda tx: wakes.next_wakes_in(tx, "default"),
    handlers.note: lambda tx: handlers.note(tx, [ORDER, NOTE]),
    handlers.admit: lambda tx: handlers.admit(tx, "new", [Handler("new", TaskKind.HOOK, "new")], 5000),
    handlers.target: lambda tx: handlers.target(tx, NOTE, has_target=True),
    fates.read: lambda tx: fates.read(tx, IDS, _KEPT),
    handlers.use: lambda tx: handlers.use(tx, ORDER),
    handlers.register: lambda tx: handlers.register(tx, [ORDER, NOTE]),
    hooks.cancel: lambda tx: hooks.cancel(tx, _HOOK, 1),
    hooks.find: lambda tx: hooks.find(tx, [_HOOK_BIRTH]),
    hooks.get: lambda tx: hooks.get(tx, HookKey("default", "h1")),
    hooks.get_many: lambda tx: hooks.get_many(tx, IDS),
    hooks.insert: lambda tx: hooks.insert(tx, [_HOOK_BIRTH]),
    hooks.list_page: lambda tx: [
        hooks.list_page(tx, HookFilter("default", name, statuses), 10, after)
        for name in ("", "note")
        for statuses in ((), *((status,) for status in hooks.HookStatus))
        for after in (None, [FIRST, FIRST])
    ],
    hooks.lock: lambda tx: hooks.lock(tx, HookKey("default", "h2")),
    hooks.lock_unserved: lambda tx: hooks.lock_unserved(tx, [NOTE], 1, FEW),
    hooks.reopen: lambda tx: hooks.reopen(tx, _HOOK),
    leases.any_held: leases.any_held,
    leases.sweep: lambda tx: leases.sweep(tx, LeaseTimes()),
    leases.tick: lambda tx: leases.tick(tx, LeaseTimes()),
    listings.changed_sizes: lambda tx: listings.changed_sizes(tx, RUNS[0], 0),
    listings.changed_steps: lambda tx: listings.changed_steps(tx, RUNS[0], 0, [1, 2]),
    listings.history: lambda tx: [
        listings.history(tx, RUNS[0], 10, after, descending=descending)
        for after in (None, [1])
        for descending in (False, True)
    ],
    listings.instances: lambda tx: [
        listings.instances(tx, InstanceFilter("default", "order", statuses, labels), 10, after)
        for statuses in ((), (InstanceStatus.QUEUED,))
        for labels in ({}, {"region": "eu"}, {"region": "eu", "customer": "c2"})
        for after in (None, [FIRST, FIRST])
    ],
    names.forget: lambda tx: [names.forget(tx, FAR, 10, after, _HISTORY) for after in ([], ["default", "hook", ""])],
    namespaces.get: lambda tx: namespaces.get(tx, "default"),
    namespaces.insert: lambda tx: namespaces.insert(tx, NamespaceSpec("n1")),
    namespaces.list_page: lambda tx: namespaces.list_page(tx, 10, None),
    namespaces.lock: lambda tx: namespaces.lock(tx, "default"),
    namespaces.save: lambda tx: namespaces.save(tx, NamespaceSpec("default")),
    requests.delete_expired: lambda tx: requests.delete_expired(tx, FEW),
    requests.known: lambda tx: requests.known(tx, _REQUESTS),
    requests.once: lambda tx: requests.once(tx, "default", _ASKED, lambda: 1, dump=int, load=int),
    requests.recall: lambda tx: requests.recall(tx, "default", _ASKED),
    requests.remember: lambda tx: requests.remember(tx, "default", _ASKED, 1),
    requests.store: lambda tx: requests.store(tx, dict.fromkeys(_REQUESTS, 1)),
    runs.all_steps: lambda tx: runs.all_steps(tx, RUNS),
    runs.changed_by_themselves: lambda tx: runs.changed_by_themselves(tx, RUNS),
    runs.next_timer: runs.next_timer,
    runs.pending_events: lambda tx: runs.pending_events(tx, [Wanted(run, "paid", FEW) for run in RUNS]),
    runs.sent_before: lambda tx: runs.sent_before(tx, [("default", "e1"), ("default", "e2")]),
    runs.steps_of: lambda tx: runs.steps_of(tx, [(run, "step1") for run in RUNS], RUNS),
    server.read: server.read,
    sessions.confirm: lambda tx: sessions.confirm(tx, [ANNA]),
    sessions.connect: lambda tx: sessions.connect(tx, _SESSION),
    sessions.count_by_handler: lambda tx: sessions.count_by_handler(tx, "default"),
    sessions.delete_gone: sessions.delete_gone,
    sessions.disconnect: lambda tx: sessions.disconnect(tx, ANNA),
    sessions.hosted: sessions.hosted,
    sessions.get: lambda tx: sessions.get(tx, "s1"),
    sessions.held_by: lambda tx: sessions.held_by(tx, ["s1"]),
    sessions.list_page: lambda tx: sessions.list_page(tx, "default", 10, None),
    sessions.seen: sessions.seen,
    sessions.served: lambda tx: [sessions.served(tx), sessions.served(tx, "default")],
    targets.disable: lambda tx: targets.disable(tx, _TARGET, "gone"),
    targets.enabled: targets.enabled,
    targets.get: lambda tx: targets.get(tx, "default", "note"),
    targets.list_page: lambda tx: targets.list_page(tx, "default", 10, None),
    targets.put: lambda tx: targets.put(tx, "default", "note", "https://example.com", ()),
    targets.remove: lambda tx: targets.remove(tx, "default", "note"),
    tasks.existing: lambda tx: tasks.existing(tx, IDS),
    tasks.existing_keys: lambda tx: tasks.existing_keys(tx, [(ORDER, "i1"), (ORDER, "i2")]),
    tasks.get: lambda tx: tasks.get(tx, IDS),
    tasks.held: tasks.held,
    tasks.insert: lambda tx: tasks.insert(tx, [NewTask(ORDER, "i1"), NewTask(ORDER, "fresh")], tasks.stamp(tx)),
    express.report: lambda tx: express.report(tx, [_REPORT], 1),
    express.bear: lambda tx: express.bear(tx, [_BIRTH.wanted], 1),
    statements.ask: lambda tx: [statements.ask(tx, one) for one in _asked()],
    statements.write: _write,
    tasks.lock: lambda tx: [tasks.lock(tx, IDS, waiting=waiting) for waiting in (False, True)],
    claims.lock_due: lambda tx: claims.lock_due(tx, [Served(ORDER, FEW), Served(NOTE, FEW)], FEW, ["s1"], 1),
    tasks.lock_held: lambda tx: tasks.lock_held(tx, "s1"),
    tasks.lock_keys: lambda tx: [
        tasks.lock_keys(tx, [(ORDER, "i1"), (ORDER, "i2")], waiting=one) for one in (False, True)
    ],
    tasks.remove: lambda tx: tasks.remove(tx, IDS),
    tasks.save: lambda tx: tasks.save(tx, _tasks(tx)),
    tasks.stamp: tasks.stamp,
    workflows.copy_status: lambda tx: workflows.copy_status(tx, dict.fromkeys(IDS, InstanceStatus.PAUSED), 1),
    workflows.find: lambda tx: workflows.find(tx, [_BIRTH]),
    workflows.get: lambda tx: workflows.get(tx, _KEYS[0]),
    workflows.get_keys: lambda tx: workflows.get_keys(tx, _KEYS),
    workflows.get_many: lambda tx: workflows.get_many(tx, IDS),
    workflows.insert: lambda tx: workflows.insert(tx, [_BIRTH]),
    workflows.known: lambda tx: workflows.known(tx, IDS),
    workflows.lock: lambda tx: workflows.lock(tx, _KEYS[0]),
    workflows.restart: lambda tx: workflows.restart(tx, _INSTANCE, 1, 1),
    workflows.heads: lambda tx: workflows.heads(tx, IDS),
    workflows.sizes: lambda tx: workflows.sizes(tx, IDS),
    workflows.start: lambda tx: workflows.start(tx, IDS, 1),
}

_ONCE = {
    *("migrate", "upgrade", "check", "create", "configuration", "version", "lock_migrations"),
    *("check_encoding", "check_file"),
}
"""What is asked when a server starts, of tables with one row."""
_NO_TABLE = {"product", "take_snapshot", "ask_together"}


def functions() -> Iterator[Callable[..., Any]]:
    """Every public function of the floor whose first argument is a transaction, as far as it may meet a large table."""
    for module in pkgutil.walk_packages(floor.__path__, f"{floor.__name__}."):
        if module.ispkg or ".migrations." in module.name:
            continue
        for name, function in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
            first = next(iter(inspect.signature(function).parameters.values()), None)
            is_here = function.__module__ == module.name and not name.startswith("_")
            if is_here and first is not None and first.annotation == "Tx" and name not in _ONCE | _NO_TABLE:
                yield function


def crowd(tx: Tx, first: int, last: int) -> None:
    """Rows of every table, of these numbers: instances, hooks, their tasks, steps, events, labels; old replies."""
    if last < first:
        return
    numbers = f"generate_series({first}, {last}) AS n"
    held = "n % 1000 = 1"
    for statement in (
        f"""INSERT INTO handlers (namespace, kind, name, is_paused, created_at, registered_at)
            SELECT 'default', 'workflow', 'idle' || n, false, 0, 0 FROM {numbers}""",
        f"""INSERT INTO declarations (namespace, kind, name, hash, definition, first_seen)
            SELECT 'default', 'workflow', 'idle' || n, 'hash', '{{}}', n FROM {numbers}""",
        f"""INSERT INTO workflow_instances (id, namespace, workflow, instance_id, run_number, status, params, labels,
                                            created_at, updated_at, revision, first_fence, request_id)
            SELECT {FIRST} + n, 'default', 'order', 'i' || n, 0, 'queued', '{{}}', '{{}}', {FIRST} + n, 0, 1, 0,
                   'r' || n
            FROM {numbers}""",
        f"""INSERT INTO workflow_labels SELECT 'default', 'order', name, value, {FIRST} + n, {FIRST} + n
            FROM {numbers}, LATERAL (VALUES ('region', 'eu'), ('customer', 'c' || n % 10)) AS label(name, value)""",
        f"""INSERT INTO workflow_steps (task_id, run_number, name, position, revision, type, status, attempts,
                                        event_type, created_at, updated_at, wake_at)
            SELECT {FIRST} + n, 0, 'step' || place, place, place, 'do',
                   CASE place WHEN 2 THEN 'waiting' ELSE 'completed' END, 1, '', 0, 0, {FAR}
            FROM {numbers}, generate_series(1, 2) AS place""",
        f"""INSERT INTO workflow_events (task_id, run_number, position, namespace, type, created_at, delivered_at,
                                         consumed_by_step, request_id)
            SELECT {FIRST} + n, 0, place, 'default', 'paid', 0, CASE place WHEN 1 THEN 1 END, '',
                   'e' || n || '-' || place
            FROM {numbers}, generate_series(1, 2) AS place""",
        f"""INSERT INTO hooks (id, namespace, name, hook_id, status, payload, idempotency_key, attempts, retry_delay,
                               retry_backoff, created_at, process_at, request_id)
            SELECT {FIRST} + n, 'default', 'note', 'h' || n, CASE n % 2 WHEN 0 THEN 'open' ELSE 'failed' END, '{{}}',
                   '', 0, 1, 'exponential', {FIRST} + n, 0, 'r' || n
            FROM {numbers}""",
        f"""INSERT INTO tasks (id, namespace, kind, name, key, priority, run_at, status, run_number, reason, fence,
                               revision, frame_number, stop, wake_again, interruptions, acked, open_steps, created_at,
                               session_id, connection, locked_until)
            SELECT {FIRST} + n, 'default', CASE n % 2 WHEN 0 THEN 'hook' ELSE 'workflow' END,
                   CASE n % 2 WHEN 0 THEN 'note' ELSE 'order' END, CASE n % 2 WHEN 0 THEN 'h' ELSE 'i' END || n, 5,
                   {LONG_AGO} + n, CASE WHEN {held} THEN 'processing' ELSE 'pending' END, 0, 'run', 0, 1, 0, 'none',
                   false, 0, false, '', 0, CASE WHEN {held} THEN 's' || n END, CASE WHEN {held} THEN 1 END,
                   CASE WHEN {held} THEN {FAR} END
            FROM {numbers}""",
        f"""INSERT INTO requests SELECT 'default', 'anybody', 'Do', 'r' || n, sha256(''), '1', n FROM {numbers}""",
    ):
        tx.execute(text(statement))
