"""Hooks of the toy engine: triggered, executed, tried again, lost with their workers, and followed by their wakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.chaos.records import Handling, HookRow, Row, Told

if TYPE_CHECKING:
    from tests.chaos.selftest.simulation import Toy

SECOND = 1_000_000
LIMIT = 3
TWISTS = ("plain", "scheduled", "fails once", "lost", "exhausted")
"""What happens to a hook."""
AHEAD = 40 * SECOND
"""How far a scheduled one is ahead: long enough for followers to be held to it."""


@dataclass(slots=True)
class ToyHook:
    """A hook of the toy, as its rows are."""

    hook_id: str
    created_at: int
    process_at: int
    task: Row
    attempts: int = 0
    status: str = "open"
    ended_at: int | None = None

    @property
    def key(self) -> str:
        """What every execution of it has."""
        return f"key-{self.hook_id}"


def run_hooks(toy: Toy) -> None:
    """One hook after the other, with a follower of wakes from the first to the last."""
    number = 1
    toy.write(Told("stream-1", "a", "told", toy.mono(), number))
    hooks = []
    for twist in TWISTS:
        hook = _trigger(toy, twist)
        number += 1
        toy.write(Told("stream-1", "a", "told", toy.mono(), number, hook.process_at))
        if twist == "scheduled":
            toy.now += AHEAD // 2
            _ask(toy, hook.process_at)
            toy.now = max(toy.now, hook.process_at)
        _execute(toy, hook, twist)
        number += 1
        toy.write(Told("stream-1", "a", "told", toy.mono(), number))
        toy.now += 2 * SECOND
        _ask(toy, None)
        hooks.append(hook)
    toy.write(Told("stream-1", "a", "over", toy.mono()))
    toy.write(*map(_row, hooks))


def _trigger(toy: Toy, twist: str) -> ToyHook:
    hook_id = f"{twist.replace(' ', '-')}-{toy.number()}"
    process_at = toy.now + (AHEAD if twist == "scheduled" else 0)
    task = {"id": toy.number(), "kind": "hook", "key": hook_id, "status": "pending", "run_at": process_at}
    task |= {"fence": 0, "revision": 1, "reason": "run", "session_id": None, "connection": None, "locked_until": None}
    task |= {"namespace": "default"}
    hook = ToyHook(hook_id, toy.now, process_at, task)
    toy.change("tasks", task, "insert")
    answer = {"hooks": {hook_id: hook.created_at}}
    request_id = toy.call("trigger", "", {"hooks": [hook_id]}, value=answer)
    toy.call("trigger", "", {"hooks": [hook_id]}, request_id, value=answer)
    return hook


def _ask(toy: Toy, wake_at: int | None) -> None:
    toy.call("next_wake", "", {}, value={"wake_at": wake_at, "now": toy.now})


def _execute(toy: Toy, hook: ToyHook, twist: str) -> None:
    endings = {"fails once": ["fail", "end"], "lost": ["", "end"], "exhausted": ["fail"] * LIMIT}.get(twist, ["end"])
    for ending in endings:
        toy.now = max(toy.now, hook.task["run_at"])
        _claim(toy, hook)
        hook.attempts += 1
        about = {"execution": f"handling-{toy.number()}", "hook_id": hook.hook_id, "worker": "worker-1"}
        about |= {"attempt": hook.attempts, "idempotency_key": hook.key}
        _note(toy, about, "start")
        if ending:
            _note(toy, about, ending)
        if ending != "end" and hook.attempts < LIMIT:
            free = {"status": "pending", "reason": "retry" if ending else "takeover", "session_id": None}
            hook.task |= free | {"run_at": toy.now, "locked_until": None}
            toy.change("tasks", hook.task)
    hook.status, hook.ended_at = "completed" if endings[-1] == "end" else "failed", toy.now
    toy.change("tasks", hook.task, "delete")


def _claim(toy: Toy, hook: ToyHook) -> None:
    toy.fence += 1
    hook.task |= {"status": "processing", "fence": toy.fence, "session_id": "worker-1", "connection": 1}
    hook.task["locked_until"] = toy.now + 3 * SECOND
    toy.change("tasks", hook.task)


def _note(toy: Toy, about: dict[str, Any], phase: Any) -> None:
    toy.write(Handling(**about, phase=phase, mono_ns=toy.mono()))


def _row(hook: ToyHook) -> HookRow:
    about = (hook.hook_id, hook.status, hook.attempts, LIMIT, hook.key)
    return HookRow(*about, hook.created_at, hook.process_at, hook.ended_at)
