"""How runs are written by what is known of them: reports of plain results, and births of plain instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepwell_server.domain.spine.births import Birth
from stepwell_server.domain.spine.events import EngineEvent
from stepwell_server.domain.spine.frames import News
from stepwell_server.domain.spine.leases import Lease
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.workflows.events import created
from stepwell_server.domain.workflows.images import is_plain, steps_named
from stepwell_server.domain.workflows.instances import InstanceKey
from stepwell_server.engine.spine.books import Group, HotCall
from stepwell_server.engine.spine.calls import ReportFrames
from stepwell_server.engine.workflows.book import book_of, end_of, ended_event, task_of
from stepwell_server.engine.workflows.calls import CreateRun
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.spine.tasks import born
from stepwell_server.storage.workflows import express as store
from stepwell_server.storage.workflows.express import Report, Written

Hears = Callable[[EngineEvent, Rules], bool]
"""Whether somebody is told of an engine event: then it is stored by the transaction that makes it."""


def nobody_hears(event: EngineEvent, rules: Rules) -> bool:
    """Nobody is told of anything."""
    return False


@dataclass(frozen=True, slots=True)
class ExpressRuns:
    """What workflows bring to express groups. A group has reports or births, and not both."""

    hears: Hears

    def begin(self, group: Group) -> None:
        """Take the time over."""
        book_of(group).at = group.at

    def admits(self, group: Group, call: HotCall, answer: Any) -> bool:
        """Whether the call has made something plain, and nobody is told of it."""
        match call:
            case CreateRun():
                return not self.hears(created(call.wanted.new.key, group.at.now), group.rules)
            case ReportFrames() if isinstance(answer, News):
                run, before = book_of(group).runs[call.held.task_id], group.locked[call.held.task_id]
                if answer.stale is not None or not is_plain(run, before, call.frames, answer.answers):
                    return False
                return run.ending is None or not self.hears(ended_event(run, group.at.now), group.rules)
            case _:
                return False

    def forget(self, group: Group, call: HotCall) -> None:
        """Take a run, or an instance to create, out of the group."""
        match call:
            case CreateRun():
                book_of(group).births.wanted.pop(call.wanted.new.key, None)
            case ReportFrames():
                task_id = call.held.task_id
                book_of(group).runs.pop(task_id, None)
                group.changed.pop(task_id, None)
                group.removed.discard(task_id)

    def write(self, group: Group, calls: Sequence[HotCall]) -> Callable[[Tx], Written]:
        """What writes the reports, or the births."""
        reports = [_report(group, call) for call in calls if isinstance(call, ReportFrames)]
        if reports:
            return partial(store.report, reports=reports, lease=group.rules.times.lease)
        wanted = list(book_of(group).births.wanted.values())
        return partial(store.bear, wanted=wanted, ack_window=group.rules.times.ack_window)

    def settle(self, group: Group, calls: Sequence[HotCall], written: Written) -> list[bool]:
        """Take over what was written, with its time; what was not is out of the group."""
        group.at = written.at
        settled = []
        for call in calls:
            is_written = _settle(group, call, written)
            if not is_written:
                self.forget(group, call)
            settled.append(is_written)
        return settled


def _report(group: Group, call: ReportFrames) -> Report:
    run, before = book_of(group).runs[call.held.task_id], group.locked[call.held.task_id]
    end = None if run.ending is None else end_of(run)
    return Report(before, run.task, [*run.changed.values()], sorted(steps_named(call.frames)), end)


def _settle(group: Group, call: HotCall, written: Written) -> bool:
    match call:
        case ReportFrames() if call.held.task_id in written.reported:
            task = group.changed.get(call.held.task_id)
            if task is not None:
                group.put(task._replace(locked_until=written.at.lease_now + group.rules.times.lease))
            return True
        case CreateRun() if call.wanted.new.key in written.born:
            _bear(group, call, *written.born[call.wanted.new.key])
            return True
        case _:
            return False


def _bear(group: Group, call: CreateRun, number: int, fence: int) -> None:
    key: InstanceKey = call.wanted.new.key
    until, holder = group.at.lease_now + group.rules.times.ack_window, call.wanted.holder
    birth = Birth(number, call.wanted, group.at.now, None if holder is None else Lease(holder, fence, until))
    book_of(group).births.stored[key] = birth
    group.inserted[key.handler, key.instance_id] = born(task_of(birth), number, group.at)
