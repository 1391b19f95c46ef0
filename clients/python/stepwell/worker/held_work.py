"""What a worker holds: its runs and jobs, the runs it remembers, its credit and its leases. No network here either.

A connection feeds `receive` with what the server says and sends what `take_frames` gives. Between two connections
frames are not kept: those that matter are unacknowledged, and `welcomed` sends them again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

from stepwell.apps import App
from stepwell.clocks import Clock
from stepwell.errors import reason_name
from stepwell.logs import ERROR, INFO, WARNING, log
from stepwell.v1 import workers_pb2 as pb
from stepwell.worker import strays
from stepwell.worker.job import Job
from stepwell.worker.loop_turns import Turns
from stepwell.worker.outgoing import Reports
from stepwell.worker.run import Run
from stepwell.worker.server_terms import Terms, origin_of, terms_of
from stepwell.worker.threads import Pool
from stepwell.worker.work import Phase, Work
from stepwell.workflows.definition import WorkflowDefinition
from stepwell.workflows.handle import WorkflowCaller

_SECONDS_TO_END = 1.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a worker takes: tasks at a time, and suspended runs to remember."""

    max_tasks: int = 500
    cache: int = 1000


@dataclass(slots=True, eq=False)
class _Held:
    """A task that is leased to this worker. Its work is missing until all of its state is there."""

    task_id: int
    fence: int
    task: pb.Task
    work: Work | None = None
    renewed_at: float = 0.0
    reports: Reports = field(default_factory=Reports)  # of a run that had to start over: to be answered before another
    is_acked: bool = False  # its TaskAck is on its way
    resolved: list[pb.Resolved] = field(default_factory=list)  # what came before there was a run to hear it

    def renew(self, at: float) -> None:
        self.renewed_at = max(self.renewed_at, at)

    @property
    def is_quiet(self) -> bool:
        return self.reports.all_acked if self.work is None else self.work.is_quiet

    def last_renewal(self) -> float:
        return self.renewed_at if self.work is None else max(self.renewed_at, self.work.renewed_at)


@dataclass(slots=True)
class _Beats:
    """The heartbeats of one stream: which leases each one renewed, and when it was sent."""

    number: int = 0
    sent: dict[int, tuple[float, list[_Held]]] = field(default_factory=dict)

    def confirmed(self, number: int) -> float | None:
        sent_at = None
        for beat in [beat for beat in self.sent if beat <= number]:
            sent_at, renewed = self.sent.pop(beat)
            for held in renewed:
                held.renew(sent_at)
        return sent_at


class Holdings:
    """The work of one worker, by task, and the suspended runs by instance; also the host of all of it."""

    def __init__(
        self, app: App, client: WorkflowCaller | None, pool: Pool, clock: Clock, capacity: Capacity | None = None
    ) -> None:
        self.terms = Terms()
        self.clock = clock
        self.turns = Turns()
        self.pool = pool
        self.is_draining = False
        self.is_connected = False
        self.wake: Callable[[], None] = lambda: None  # called when there is something to send
        self.reconnect: Callable[[], None] = lambda: None  # called when the server must hear another Hello
        self.quiet = asyncio.Event()  # set when leaving interrupts nothing; kept up to date while draining
        self._app = app
        self._client = client
        self._capacity = capacity or Capacity()
        self._held: dict[int, _Held] = {}
        self._cache: OrderedDict[tuple[str, str], Run] = OrderedDict()
        self._left: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._outbox: list[pb.WorkerFrame] = []
        self._arrived: list[_Held] = []  # to be acknowledged with the next message
        self._acking: list[_Held] = []  # acknowledged by the message that is being written
        self._owed = 0
        self._beats = _Beats()
        self._greeted_at = clock.now()
        self._idle_since = clock.now()

    # For the connection.

    def held(self) -> list[pb.HeldTask]:
        """Every lease that the worker believes to hold."""
        return [pb.HeldTask(task_id=held.task_id, fence=held.fence) for held in self._held.values()]

    def greets(self) -> None:
        """A Hello is about to be sent: what its Welcome lists is renewed from now on, however long that takes."""
        self._greeted_at = self.clock.now()

    def welcomed(self, welcome: pb.Welcome) -> bool:
        """A stream is open: drop what is lost, send again what was not acknowledged, grant credit.

        False: the server believes that the worker holds what it has given up since its Hello. Another one must say so,
        or that would be nobody's until its lease is over.
        """
        terms = terms_of(welcome, self._greeted_at)
        if self.terms.database_id not in ("", terms.database_id):
            self.drop_everything()
        self.terms = terms
        self._outbox = []
        self._beats, self.is_connected = _Beats(), True
        kept = {(held.task_id, held.fence) for held in welcome.held}
        self._owed = 0
        for held in list(self._held.values()):
            if (held.task_id, held.fence) in kept:
                self._send_again(held)
            else:
                self._drop(held)
        if len(self._held) < len(kept):
            return False
        self._owed = max(0, min(self._capacity.max_tasks, terms.max_credit) - len(self._held))
        self._idle_since = self.clock.now()
        self.wake()
        return True

    def disconnected(self) -> None:
        """The stream is gone: frames are sent again when there is another."""
        self.is_connected = False
        self._outbox, self._arrived, self._acking = [], [], []
        self._turn_away()

    def take_frames(self) -> list[pb.WorkerFrame]:
        """Everything that is ready to be sent, with the credit that is due."""
        frames, self._outbox = self._outbox, []
        self._acking, self._arrived = self._acking + self._arrived, []
        if self._owed and self.is_connected and not self.is_draining:
            credit = pb.Credit(tasks=self._owed)
            frames.append(pb.WorkerFrame(credit=credit))
            self._owed = 0
        return frames

    def written(self) -> None:
        """What was taken last is on its way: begin what it acknowledges.

        Not earlier: the first bodies begin before any frame names them, and if one of them kills the process, all that
        the server has to count it by is that the task had arrived.
        """
        acking, self._acking = self._acking, []
        for held in acking:
            held.is_acked = True
            self._begin(held)
        self.rested()

    def receive(self, frame: pb.ServerFrame) -> None:
        """Take in what the server says. Unknown frames, and those about tasks not held, are ignored."""
        held = self._held.get(frame.task_id)
        match frame.WhichOneof("body"):
            case "ack" if held is not None and held.fence == frame.fence:
                self._acked(held, frame.number, frame.ack)
            case "task":
                self._task(frame.task_id, frame.fence, frame.task)
            case "task_state" if held is not None and held.fence == frame.fence:
                self._more_state(held, frame.task_state)
            case "heartbeat":
                self._heartbeat(frame.heartbeat)
            case "stale" if held is not None and held.fence == frame.fence:
                log(INFO, "lease_lost task_id=%s reason=%s", held.task_id, reason_name(frame.stale.reason))
                self._drop(held)
            case "refused":
                self._refused(held, frame)
            case "resolved" if held is not None and held.fence == frame.fence:
                self._resolved(held, frame.resolved)
            case "cancel" if held is not None and held.fence == frame.fence:
                self._cancel(held, frame.cancel)

    def heartbeat(self) -> None:
        """Renew every lease by its name, give up what was not renewed in time, ask again for what a pause holds up."""
        self.expire()
        if not self.is_connected:
            return
        self._beats.number += 1
        held = list(self._held.values())
        self._beats.sent[self._beats.number] = (self.clock.now(), held)
        self.send(pb.WorkerFrame(heartbeat=pb.Heartbeat(held=self.held(), heartbeat_number=self._beats.number)))
        for one in held:
            if isinstance(one.work, Run):
                one.work.ask_again()

    def expire(self) -> None:
        """Stop tasks whose last renewal is so old that another worker may have them soon; say so if none is left.

        Until another Hello does, the server believes that they are held. While others are, their stream is not given up
        for that: they would be left a short grace, and the server may be deaf for longer.
        """
        oldest = self.clock.now() - self.terms.holds_for
        given_up = [held for held in self._held.values() if held.last_renewal() <= oldest]
        for held in given_up:
            log(WARNING, "lease_not_renewed task_id=%s", held.task_id)
            self._drop(held)
        if given_up and not self._held and self.is_connected:
            self.reconnect()

    # For the runs and jobs: the Host.

    def send(self, frame: pb.WorkerFrame) -> None:
        """Send a frame with the next message; without a stream it is sent again later."""
        if self.is_connected:
            self._outbox.append(frame)
            self.wake()

    def let_go(self, work: Work) -> None:
        """The work is no longer held: remember a run that can go on, and take another task in its place."""
        held = self._held.get(work.task_id)
        if held is not None and held.work is work:
            self._remove(held)
        if isinstance(work, Run) and work.phase is Phase.RELEASED:
            self._remember(work)

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Tell a task to end whose outcome nobody wants any more; closing waits for it."""
        task.cancel()
        self._left.add(task)

    def start_over(self, run: Run) -> None:
        """Drop the run but keep its task, and replay it from what the server has, once its frames are answered."""
        held = self._held.get(run.task_id)
        if held is None or held.work is not run:
            return
        held.work = None
        held.reports = run.hand_over()
        self._need_state(held)

    def rested(self) -> None:
        """Some work has come to rest: see whether the worker can leave, if it wants to."""
        if self.is_draining and not self._acking and all(held.is_quiet for held in self._held.values()):
            self.quiet.set()

    # For the worker.

    def idle_for(self) -> float:
        """Seconds for which it has been connected and held nothing; 0 if it holds something."""
        return 0.0 if self._held else self.clock.now() - self._idle_since

    def drain(self) -> None:
        """Take no more tasks, begin no more bodies, and set `quiet` when all that executes has ended."""
        self.is_draining = True
        self._turn_away()
        self.rested()

    def name_bodies(self) -> None:
        """Say which bodies execute, where no frame has said so yet: they take their time, or are about to be left."""
        for held in self._held.values():
            if isinstance(held.work, Run):
                held.work.name_bodies()

    def drop_everything(self) -> None:
        """Stop and forget all that is held and remembered."""
        for held in list(self._held.values()):
            self._drop(held)
        for run in list(self._cache.values()):
            self._forget(run)
        self._cache.clear()

    async def close(self) -> None:
        """Drop everything, and see the functions end. One that does not must not keep the process from ending."""
        self.drop_everything()
        if asyncio.all_tasks() & set(self._left):
            await asyncio.wait(asyncio.all_tasks() & set(self._left), timeout=_SECONDS_TO_END)
        stubborn = strays.throw_away(self._left)
        if stubborn:
            log(WARNING, "functions_do_not_end count=%d: they catch their cancellation", stubborn)

    def _task(self, task_id: int, fence: int, task: pb.Task) -> None:
        held = self._held.get(task_id)
        if held is not None and held.fence != fence:
            self._drop(held)
            held = None
        if held is None:
            if self.is_draining:
                return  # not acknowledged: it goes back with our Goodbye
            held = _Held(task_id, fence, task, renewed_at=self.clock.now())
            self._held[task_id] = held
        elif held.work is not None or not held.reports.all_acked:
            return  # it came twice, or knows less than what is to be answered
        held.task = task
        if held.is_acked:
            self._begin(held)
        else:
            self._acknowledge(held)

    def _acknowledge(self, held: _Held) -> None:
        self._arrived.append(held)
        self._say(held, task_ack=pb.TaskAck())

    def _turn_away(self) -> None:
        """A worker that leaves does not take what is on its doorstep: unacknowledged, it goes back for free."""
        if not self.is_draining:
            return
        unbegun = [held for held in self._held.values() if held.work is None and not held.is_acked]
        unsaid = [held for held in unbegun if held not in self._acking]
        ids = {held.task_id for held in unsaid}
        self._arrived = []
        self._outbox = [one for one in self._outbox if not (one.HasField("task_ack") and one.task_id in ids)]
        for held in unsaid:
            self._remove(held)

    def _heartbeat(self, heartbeat: pb.ServerHeartbeat) -> None:
        asked_at = self._beats.confirmed(heartbeat.heartbeat_number)
        if asked_at is not None:  # clocks drift apart on a stream that lasts
            self.terms = replace(self.terms, origin=origin_of(heartbeat.now, asked_at))

    def _more_state(self, held: _Held, state: pb.TaskState) -> None:
        if held.work is None:
            held.task.workflow.steps.extend(state.steps)
            held.task.workflow.more = state.more
            self._begin(held)

    def _begin(self, held: _Held) -> None:
        """Begin, once the arrival is acknowledged and all of the state is here."""
        is_held = self._held.get(held.task_id) is held
        if not is_held or held.work is not None or not held.is_acked or held.task.workflow.more:
            return
        if held.task.handler.kind == pb.HANDLER_KIND_HOOK:
            self._begin_hook(held)
        else:
            self._begin_run(held)

    def _begin_hook(self, held: _Held) -> None:
        definition = self._app.hook_definitions.get(held.task.handler.name)
        if definition is None:
            self._refuse(held)
            return
        held.work = job = Job(self, definition, held.task_id, held.fence)
        job.begin(held.task.key, held.task.hook)
        held.task = pb.Task()  # its payload is the job's by now

    def _begin_run(self, held: _Held) -> None:
        """Go on with the run that is in memory, or begin one from the top."""
        task, key = held.task, (held.task.handler.name, held.task.key)
        remembered = self._cache.pop(key, None)
        if task.workflow.cached:
            if remembered is None or not _is_at(remembered, task.workflow):
                self._forget(remembered)
                self._need_state(held)
                return
            run = remembered
        else:
            self._forget(remembered)
            definition = self._app.workflow_definitions.get(task.handler.name)
            if definition is None:
                self._refuse(held)
                return
            run = self._new_run(definition, task.key)
        held.work = run
        run.attach(held.task_id, held.fence, task.workflow, held.reports.number)
        held.task = pb.Task()  # its payloads are the run's by now
        earlier, held.resolved = held.resolved, []
        for resolved in earlier:
            self._resolved(held, resolved)

    def _refuse(self, held: _Held) -> None:
        log(ERROR, "task_of_unknown_handler kind=%s name=%s", held.task.handler.kind, held.task.handler.name)
        self._remove(held)

    def _resolved(self, held: _Held, resolved: pb.Resolved) -> None:
        if held.work is None:
            held.resolved.append(resolved)
        elif isinstance(held.work, Run):
            held.work.resolved(resolved)

    def _new_run(self, definition: WorkflowDefinition[Any, Any], key: str) -> Run:
        return Run(self, definition, self._client, key)

    def _send_again(self, held: _Held) -> None:
        held.renew(self._greeted_at)
        for frame in held.reports.unacked() if held.work is None else held.work.unacked_frames():
            self.send(frame)
        if held.work is None and held.task.handler.kind == pb.HANDLER_KIND_HOOK:
            self._acknowledge(held)
        elif held.work is None:
            self._need_state(held)

    def _need_state(self, held: _Held) -> None:
        """Ask for all of a run's state. It has in it what is answered: else a body would be executed again."""
        if held.reports.all_acked:
            self._say(held, need_state=pb.NeedState())

    def _say(self, held: _Held, **body: Any) -> None:
        self.send(pb.WorkerFrame(task_id=held.task_id, fence=held.fence, **body))

    def _acked(self, held: _Held, number: int, ack: pb.Ack) -> None:
        if held.work is not None:
            held.work.acked(number, ack)
        elif ack.released or ack.stop == pb.STOP_CANCEL:
            self._remove(held)
        else:
            self._answered(held, number)

    def _answered(self, held: _Held, number: int) -> None:
        """A frame of a run that had to start over is answered, however: the next begins with what the server has."""
        report = held.reports.answered(number)
        if report is not None:
            held.renew(report.sent_at)
            self._need_state(held)
            self.rested()

    def _refused(self, held: _Held | None, frame: pb.ServerFrame) -> None:
        reason = reason_name(frame.refused.reason)
        log(WARNING, "frame_refused task_id=%s reason=%s: %s", frame.task_id, reason, frame.refused.message)
        if held is None or held.fence != frame.fence:
            return
        if held.work is None:
            self._answered(held, frame.number)
        else:
            held.work.refused(frame.number, reason, frame.refused.message)

    def _cancel(self, held: _Held, cancel: pb.Cancel) -> None:
        if not cancel.step:
            self._drop(held)
        elif isinstance(held.work, Run):
            held.work.cancel_step(cancel.step)

    def _drop(self, held: _Held) -> None:
        if held.work is None:
            self._remove(held)
        else:
            held.work.drop()

    def _remove(self, held: _Held) -> None:
        if self._held.get(held.task_id) is held:
            del self._held[held.task_id]
            self._idle_since = self.clock.now()
            self._owed += 1
            self.wake()
            self.rested()

    def _remember(self, run: Run) -> None:
        self._cache[run.name] = run
        while len(self._cache) > self._capacity.cache:
            self._forget(self._cache.popitem(last=False)[1])

    def _forget(self, run: Run | None) -> None:
        if run is not None:
            run.drop()


def _is_at(run: Run, task: pb.WorkflowInput) -> bool:
    return run.run_number == task.run_number and run.revision == task.known_revision
