"""H1 to H4: hooks are stored if they were asked for, never vanish, are never early, and keep their keys."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import View
from tests.chaos.facts.hooks import Handling, HookRow
from tests.chaos.facts.tasks import Change


@dataclass(slots=True)
class HookStory:
    """All that is known of one hook."""

    hook_id: str
    was_asked: bool = False
    """Somebody tried to store it, whatever became of that."""
    was_acked: bool = False
    told: set[int] = field(default_factory=set)
    """When it was stored, as its callers were told."""
    row: HookRow | None = None
    handlings: list[Handling] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    """Versions of its task, in the order of their commits."""

    @property
    def starts(self) -> list[Handling]:
        """Every execution."""
        return [one for one in self.handlings if one.phase == "start"]


def stories(view: View) -> dict[str, HookStory]:
    """Every hook that anybody knows of."""
    found: dict[str, HookStory] = {}

    def story(hook_id: str) -> HookStory:
        return found.setdefault(hook_id, HookStory(hook_id))

    for call in view.calls:
        if call.op == "trigger" and not call.is_refused:
            for hook_id in call.invoke.value["hooks"]:
                story(hook_id).was_asked = True
            for hook_id, created_at in call.answer.get("hooks", {}).items():
                story(hook_id).was_acked = True
                story(hook_id).told.add(created_at)
    for handling in view.history.of(Handling):
        story(handling.hook_id).handlings.append(handling)
    for change in view.changes:
        if change.table == "tasks" and change.row.get("kind") == "hook":
            story(change.row["key"]).changes.append(change)
    for row in view.history.of(HookRow):
        story(row.hook_id).row = row
    return found


def check(view: View) -> Iterator[Violation]:
    """All of them."""
    every = stories(view)
    for story in every.values():
        yield from _stored_if_asked(story)
        yield from _never_vanishes(story)
        yield from _never_early(view, story)
        yield from _one_key(story)
    yield from _keys_differ(every)


def _stored_if_asked(story: HookStory) -> Iterator[Violation]:
    """H1: what is stored was asked for once, and is executed only if it is stored."""
    if story.row is not None and not story.was_asked:
        yield Violation("H1", story.hook_id, "it is stored, and nobody asked for it")
    if story.row is not None and story.told - {story.row.created_at}:
        yield Violation("H1", story.hook_id, "callers were told that it was stored at another time")
    if story.row is None and story.handlings:
        yield Violation("H1", story.hook_id, "it was executed, and is not stored")


def _never_vanishes(story: HookStory) -> Iterator[Violation]:
    """H2: what was acknowledged ends completed, or failed after exactly as many executions as it may have."""
    if story.row is None:
        if story.was_acked:
            yield Violation("H2", story.hook_id, "it was acknowledged, and is not there", "lost")
        return
    row, begun, most = story.row, len(story.starts), story.row.max_attempts
    if row.status not in ("completed", "failed"):
        yield Violation("H2", story.hook_id, f"it is {row.status} when all has come to rest", "lost")
    if row.status == "completed" and not any(one.phase == "end" for one in story.handlings):
        yield Violation("H2", story.hook_id, "it is completed, and no execution of it returned", "lost")
    if most is not None and max(begun, row.attempts) > most:
        text = f"{begun} executions began and {row.attempts} are counted, of at most {most}"
        yield Violation("H2", story.hook_id, text, "attempts-over-limit")
    if row.status == "failed" and row.attempts != most:
        yield Violation("H2", story.hook_id, f"it failed after {row.attempts} executions of {most}", "lost")


def _never_early(view: View, story: HookStory) -> Iterator[Violation]:
    """H3: no execution begins before its time, by the trail nor by its own clock; only the first is shifted."""
    if story.row is None:
        return
    due = story.row.process_at
    for before, after in pairwise(story.changes):
        claimed = before.row["status"] == "pending" and after.row["status"] == "processing"
        if claimed and after.at_us < max(due, before.row["run_at"]):
            yield Violation("H3", story.hook_id, "it was leased before its time", "early-fired")
        if after.row["reason"] == "retry" and after.row["run_at"] - after.at_us > view.plan.heal_us + 60_000_000:
            yield Violation("H3", story.hook_id, "a later execution was shifted like the first")
    for start in story.starts:
        early = due - view.wall_us(start.mono_ns)
        if early > view.clock_slack_us:
            yield Violation("H3", story.hook_id, f"an execution began {early} us before its time", "early-fired")


def _one_key(story: HookStory) -> Iterator[Violation]:
    """H4: every execution has the same key."""
    keys = {one.idempotency_key for one in story.handlings}
    keys |= {story.row.idempotency_key} if story.row is not None else set()
    if len(keys) > 1:
        yield Violation("H4", story.hook_id, f"it has {len(keys)} keys")


def _keys_differ(every: dict[str, HookStory]) -> Iterator[Violation]:
    """H4: no two hooks have the same key."""
    owners: dict[str, list[str]] = defaultdict(list)
    for story in every.values():
        if story.row is not None:
            owners[story.row.idempotency_key].append(story.hook_id)
    for hooks in owners.values():
        if len(hooks) > 1:
            yield Violation("H4", hooks[0], f"{len(hooks)} hooks have its key")


def lateness_us(view: View) -> list[int]:
    """From the time of each hook to its first execution."""
    late = []
    for story in stories(view).values():
        if story.row is not None and story.starts:
            first = min(view.wall_us(one.mono_ns) for one in story.starts)
            late.append(max(0, first - max(story.row.process_at, story.row.created_at)))
    return sorted(late)


def executions_per_hook(view: View) -> dict[str, int]:
    """How many hooks had how many executions that did not fail on purpose."""
    counted: Counter[int] = Counter()
    for story in stories(view).values():
        failed = sum(one.phase == "fail" for one in story.handlings)
        counted[len(story.starts) - failed] += 1
    return {str(times): counted[times] for times in sorted(counted)}
