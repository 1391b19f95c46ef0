"""What the engine measures of itself: which bound a value falls under, and what groups and sweeps are counted as."""

from __future__ import annotations

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Reason, Stop, Task, TaskStatus
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.spine.timings import Histogram, Measured, Stage, Timings, Way
from stepwell_server.telemetry import Metrics

LABELS = {
    "stage": {"inbox", "lock", "read", "decide", "write", "claim", "commit", "deliver"},
    "way": {"hot", "slow", "express"},
    "kind": {kind.value for kind in TaskKind},
    "le": None,
}
"""Every label of the engine's metrics, and all that it can say."""


def leased(kind: TaskKind, run_at: int, claimed_at: int) -> Task:
    """A task that a worker has just got."""
    return Task(
        id=1,
        handler=Handler("a-tenant", kind, "a-name"),
        key="a-key",
        run_number=0,
        reason=Reason.RUN,
        priority=9,
        run_at=run_at,
        status=TaskStatus.PROCESSING,
        fence=1,
        revision=1,
        frame_number=0,
        stop=Stop.NONE,
        wake_again=False,
        interruptions=0,
        acked=False,
        open_steps="",
        owner=Owner("a" * 32, 1),
        locked_until=claimed_at + SECOND,
        payload=None,
        claimed_at=claimed_at,
    )


def test_a_value_counts_under_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((1.0, 2.0))

    for value in (0.0, 1.0, 1.5, 2.0, 2.5):
        histogram.add(value)

    assert (histogram.counts, histogram.total) == ([2, 2, 1], 7.0)


def test_stages_follow_each_other_and_leave_no_time_out() -> None:
    measured = Measured()
    for stage in (Stage.LOCK, Stage.READ, Stage.DECIDE):
        measured.end(stage)
    timings = Timings()

    timings.note_group(Way.HOT, measured, [measured.began - 2.0, measured.began])

    assert [*measured.seconds] == [Stage.LOCK, Stage.READ, Stage.DECIDE, Stage.DELIVER]
    assert min(measured.seconds.values()) >= 0
    assert {stage: sum(found.counts) for stage, found in timings.stages.items() if sum(found.counts)} == {
        Stage.INBOX: 2,
        Stage.LOCK: 1,
        Stage.READ: 1,
        Stage.DECIDE: 1,
        Stage.DELIVER: 1,
    }
    assert timings.stages[Stage.INBOX].total == 2.0


def test_only_what_was_claimed_can_be_late() -> None:
    timings, measured = Timings(), Measured()
    measured.born = [leased(TaskKind.WORKFLOW, 5 * SECOND, 5 * SECOND)]
    measured.claimed = [leased(TaskKind.WORKFLOW, 5 * SECOND, 8 * SECOND), leased(TaskKind.HOOK, 0, SECOND // 2)]

    timings.note_group(Way.SLOW, measured, [measured.began], undecided=1)

    assert (timings.claimed[TaskKind.WORKFLOW], timings.claimed[TaskKind.HOOK]) == (2, 1)
    assert [timings.lateness[kind].total for kind in (TaskKind.WORKFLOW, TaskKind.HOOK)] == [3.0, 0.5]
    assert [sum(timings.lateness[kind].counts) for kind in (TaskKind.WORKFLOW, TaskKind.HOOK)] == [1, 1]
    assert (sum(timings.group_calls[Way.HOT].counts), sum(timings.group_calls[Way.SLOW].counts)) == (0, 1)
    assert timings.undecided == 1


def test_a_sweep_counts_what_it_took_back() -> None:
    timings = Timings()

    timings.note_sweep([leased(TaskKind.HOOK, 0, 0)], extended=False)
    timings.note_sweep([], extended=True)

    assert (timings.lapsed[TaskKind.HOOK], timings.lapsed[TaskKind.WORKFLOW], timings.extended) == (1, 0, 1)


def test_labels_are_fixed_words_and_all_there_from_the_start() -> None:
    metrics = Metrics()
    before = {(one.name, *one.labels.items()) for family in metrics.registry.collect() for one in family.samples}
    measured = Measured()
    measured.claimed = [leased(TaskKind.WORKFLOW, 0, SECOND)]

    metrics.timings.note_group(Way.HOT, measured, [measured.began])
    metrics.timings.note_sweep([leased(TaskKind.HOOK, 0, 0)], extended=True)

    families = [family for family in metrics.registry.collect() if family.name.startswith("stepwell_")]
    after = {(one.name, *one.labels.items()) for family in metrics.registry.collect() for one in family.samples}
    assert after == before
    for sample in (sample for family in families for sample in family.samples):
        for label, value in sample.labels.items():
            words = LABELS[label]
            assert words is None or value in words


def test_what_prometheus_reads_is_what_was_counted() -> None:
    metrics, measured = Metrics(), Measured()
    measured.claimed = [leased(TaskKind.HOOK, 0, late) for late in (SECOND // 100, SECOND // 4, 2 * 3600 * SECOND)]

    metrics.timings.note_group(Way.HOT, measured, [measured.began] * 5)

    def read(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"stepwell_{name}", labels)

    late = {bound: read("wake_lateness_seconds_bucket", kind="hook", le=bound) for bound in ("0.01", "0.2", "0.5")}
    assert late == {"0.01": 1, "0.2": 1, "0.5": 2}
    assert read("wake_lateness_seconds_bucket", kind="hook", le="3600.0") == 2
    assert read("wake_lateness_seconds_bucket", kind="hook", le="+Inf") == 3
    assert read("wake_lateness_seconds_count", kind="hook") == 3
    assert read("wake_lateness_seconds_sum", kind="hook") == 7200.26
    assert (read("group_calls_count", way="hot"), read("group_calls_sum", way="hot")) == (1, 5)
    assert read("claimed_total", kind="hook") == 3
