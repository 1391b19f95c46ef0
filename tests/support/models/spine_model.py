"""A model of the spine: tasks and leases by a few plain rules, for tests that compare it with the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stepwell_server.domain.spine.frames import FrameAnswer
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import Held, Owner
from stepwell_server.domain.spine.tasks import BEGUN_PRIORITY, Reason, Stop, TaskStatus, Verdict
from stepwell_server.engine.spine.calls import Answer

LEASE, ACK_WINDOW, GRACE, TRUSTED_GAP = 35, 15, 25, 17.5
"""Lease time is in minutes here."""

FREE = Handler("default", TaskKind.WORKFLOW, "free")
LIMITED = Handler("default", TaskKind.WORKFLOW, "limited")
LIMIT = 1
STALE = Answer(Verdict.STALE)


@dataclass
class Ticket:
    """A task, as far as anybody can tell."""

    id: int
    handler: Handler
    key: str
    priority: int
    due: bool
    status: TaskStatus = TaskStatus.PENDING
    fence: int = 0
    frame: int = 0
    revision: int = 0
    stop: Stop = Stop.NONE
    wake_again: bool = False
    reason: Reason = Reason.RUN
    interruptions: int = 0
    acked: bool = False
    open_steps: str = ""
    owner: Owner | None = None
    until: int | None = None
    charged: int = 0
    """Executions that were counted because their holder was lost."""

    def answer(self, verdict: Verdict) -> Answer:
        return Answer(verdict, self.stop, self.wake_again, self.revision)

    def let_go(self) -> None:
        self.status = TaskStatus.PARKED if self.stop is Stop.PAUSE else TaskStatus.PENDING
        self.stop, self.owner, self.until, self.acked = Stop.NONE, None, None, False
        self.revision += 1

    def forget_attempt(self) -> None:
        self.wake_again, self.interruptions, self.open_steps = False, 0, ""


@dataclass
class Model:
    """Every task there is, and lease time in minutes."""

    tickets: dict[int, Ticket] = field(default_factory=dict)
    now: int = 0
    last_tick: int = 0

    def held(self, handler: Handler | None = None) -> list[Ticket]:
        held = [one for one in self.tickets.values() if one.status is TaskStatus.PROCESSING]
        return [one for one in held if handler in (None, one.handler)]

    def claimable(self, handler: Handler, credits: int) -> tuple[list[Ticket], int]:
        """What is due of a handler, and how many of it may be had."""
        due = [one for one in self.tickets.values() if one.status is TaskStatus.PENDING and one.due]
        free = min(credits, LIMIT - len(self.held(handler))) if handler == LIMITED else credits
        return [one for one in due if one.handler == handler], max(free, 0)

    def claim(self, task_id: int, fence: int, owner: Owner) -> None:
        one = self.tickets[task_id]
        one.status, one.fence, one.frame = TaskStatus.PROCESSING, fence, 0
        one.owner, one.acked, one.until = owner, False, self.now + ACK_WINDOW
        one.revision += 1
        one.wake_again = False  # whoever claims looks at everything that has come
        one.charged += bool(one.open_steps)  # its last holder was executing something
        one.open_steps = ""

    # ---- by the holder, about the lease

    def renew(self, held: Held, owner: Owner) -> Answer:
        one = self.held_under(held)
        if one is None or one.owner not in [Owner(owner.session_id, n) for n in range(owner.connection + 1)]:
            return STALE
        one.owner, one.acked, one.until = owner, True, self.now + LEASE
        return one.answer(Verdict.ACCEPTED)

    def shorten(self, held: Held, owner: Owner) -> Answer:
        one = self.held_under(held)
        if one is None or one.owner != owner or one.until is None:
            return STALE
        one.until = min(one.until, self.now + GRACE)
        return one.answer(Verdict.ACCEPTED)

    def give_back(self, held: Held, owner: Owner) -> Answer:
        one = self.held_under(held)
        if one is None or one.owner != owner:
            return STALE
        answer = one.answer(Verdict.ACCEPTED)
        one.let_go()
        return answer

    def held_under(self, held: Held) -> Ticket | None:
        one = self.tickets.get(held.task_id)
        return one if one and (one.fence, one.status) == (held.fence, TaskStatus.PROCESSING) else None

    # ---- by the holder, numbered

    def frame_number(self, held: Held, after: int) -> int:
        """The number of a frame so many after the last that was applied."""
        one = self.tickets.get(held.task_id)
        return max(1, after + (one.frame if one else 0))

    def advance(self, held: Held, by: Owner, number: int, open_steps: str) -> FrameAnswer:
        return self._frame(held, by, number, lambda one: self._go_on(one, open_steps))

    def release(self, held: Held, by: Owner, number: int, *, due: bool, priority: int) -> FrameAnswer:
        return self._frame(held, by, number, lambda one: self._wait(one, priority, due=due))

    def finish(self, held: Held, by: Owner, number: int) -> FrameAnswer:
        return self._frame(held, by, number, self._end)

    def _frame(self, held: Held, by: Owner, number: int, apply: Callable[[Ticket], None]) -> FrameAnswer:
        one = self.tickets.get(held.task_id)
        if one is None or one.fence != held.fence or (one.owner and one.owner.session_id != by.session_id):
            return FrameAnswer(number, Verdict.STALE)
        if number <= one.frame:
            released = one.status is not TaskStatus.PROCESSING
            return FrameAnswer(number, Verdict.REPEATED, one.stop, released, revision=one.revision)
        if one.status is not TaskStatus.PROCESSING:
            return FrameAnswer(number, Verdict.STALE)
        stop, one.frame = one.stop, number
        apply(one)
        released = one.id not in self.tickets or one.status is not TaskStatus.PROCESSING
        return FrameAnswer(number, Verdict.ACCEPTED, stop, released, revision=one.revision)

    def _end(self, one: Ticket) -> None:
        if one.wake_again:
            self._wait(one, one.priority, due=True)
        else:
            del self.tickets[one.id]

    def _go_on(self, one: Ticket, open_steps: str = "") -> None:
        one.interruptions, one.open_steps = 0, open_steps
        one.revision += 1

    def _wait(self, one: Ticket, priority: int, *, due: bool) -> None:
        self._go_on(one)
        one.let_go()
        one.due, one.reason, one.priority = due or one.wake_again, Reason.WAKE, priority
        one.forget_attempt()

    # ---- from outside

    def wake(self, task_id: int, priority: int) -> bool:
        one = self.tickets.get(task_id)
        if one and one.status is TaskStatus.PENDING and not one.due:
            one.due, one.reason, one.priority = True, Reason.WAKE, priority
        if one and one.status is TaskStatus.PROCESSING:
            one.wake_again = True
        return one is not None

    def manage(self, one: Ticket, action: str, priority: int, fence: int) -> None:
        match action, one.status:
            case "pause", TaskStatus.PROCESSING:
                one.stop = Stop.PAUSE
            case "pause", _:
                one.status, one.stop = TaskStatus.PARKED, Stop.NONE
            case "resume", TaskStatus.PROCESSING:
                one.stop = Stop.NONE
            case "resume", TaskStatus.PARKED:
                one.status, one.due, one.reason, one.priority = TaskStatus.PENDING, True, Reason.RESUME, priority
                one.wake_again = False
            case "seize", _:
                one.let_go()
                one.forget_attempt()
                one.fence, one.status = fence, TaskStatus.PENDING

    # ---- time

    def tick(self) -> bool:
        gap = self.now - self.last_tick > TRUSTED_GAP
        for one in self.held():
            if gap and one.until is not None and one.until > self.last_tick:
                one.until = self.now + LEASE
        self.last_tick = self.now
        return gap

    def sweep(self) -> list[int]:
        trusted = self.now - self.last_tick < TRUSTED_GAP
        lapsed = [one for one in self.held() if trusted and one.until is not None and one.until <= self.now]
        for one in lapsed:
            one.interruptions += one.acked and not one.frame and not one.open_steps
            one.let_go()
            one.due, one.reason, one.priority = True, Reason.TAKEOVER, min(one.priority, BEGUN_PRIORITY)
        return sorted(one.id for one in lapsed)
