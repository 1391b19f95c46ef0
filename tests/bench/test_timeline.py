"""Marks of processes become one line of events."""

from __future__ import annotations

from collections.abc import Iterator

from bench.timeline import described, hops, read, transactions, writes
from bench.tracing import Kind, Mark
from stepwell.v1 import frames_pb2, workers_pb2


def statements(*texts: str, connection: int = 1, answered: bool = True) -> Iterator[Mark]:
    """Asked at whole seconds, answered half a second later."""
    for second, text in enumerate(texts):
        yield Mark(float(second), Kind.ASKS, text, connection=connection)
        if answered:
            yield Mark(second + 0.5, Kind.IS_ANSWERED, text, connection=connection)


def test_a_transaction_goes_from_begin_to_the_answer_of_commit() -> None:
    found = list(transactions([*statements("BEGIN", "SELECT a FROM tasks", "UPDATE tasks SET a = 1", "COMMIT;")]))
    assert [(began, ended, str(made)) for began, ended, made in found] == [(0.0, 3.5, "UPDATE tasks (4 statements)")]


def test_a_statement_by_itself_is_a_transaction() -> None:
    found = list(transactions([*statements("SELECT pg_notify($1, $2)", "SELECT 1 FROM clock")]))
    assert [(ended, str(made)) for _, ended, made in found] == [
        (0.5, "SELECT pg_notify (1 statement)"),
        (1.5, "SELECT clock (1 statement)"),
    ]


def test_transactions_of_two_connections_are_kept_apart() -> None:
    texts = ("BEGIN", "SELECT a FROM tasks", "COMMIT")
    marks = sorted([*statements(*texts, connection=1), *statements(*texts, connection=2)], key=lambda mark: mark.at)
    assert [str(made) for _, _, made in transactions(marks)] == ["SELECT tasks (3 statements)"] * 2


def test_without_answers_a_transaction_ends_where_its_commit_begins() -> None:
    marks = [*statements("BEGIN IMMEDIATE", "INSERT INTO steps VALUES (1)", "COMMIT", answered=False)]
    assert [(ended, str(made)) for _, ended, made in transactions(marks)] == [(2.0, "INSERT steps (3 statements)")]


def test_locks_and_conflicts_are_no_writes() -> None:
    assert writes("SELECT * FROM tasks FOR NO KEY UPDATE SKIP LOCKED") == []
    assert writes("INSERT INTO requests VALUES (1) ON CONFLICT DO UPDATE SET a = 1") == ["INSERT requests"]
    assert read("SELECT id FROM json_to_recordset($1) AS given JOIN x ON 1 = 1 AND y IN (SELECT z FROM tasks)") == (
        "SELECT tasks"
    )


def test_a_message_is_described_by_what_is_in_it() -> None:
    done = frames_pb2.WorkerFrame(step_done=frames_pb2.StepDone())
    message = workers_pb2.ConnectRequest(frames=[done, done, frames_pb2.WorkerFrame(finish=frames_pb2.Finish())])
    mark = Mark(0.0, Kind.READS, message.DESCRIPTOR.full_name, message.SerializeToString())
    assert described(mark) == "ConnectRequest: 2 step_done, finish"


def test_the_timeline_takes_medians_and_leaves_out_what_happens_seldom() -> None:
    message = workers_pb2.ConnectRequest.DESCRIPTOR.full_name
    spans = [(start, start + 0.010) for start in (0.0, 1.0, 2.0)]
    marks = [Mark(start + 0.002, Kind.READS, message) for start, _ in spans]
    marks += [Mark(start + 0.004, Kind.READS, message) for start, _ in spans]
    marks.append(Mark(1.005, Kind.WRITES, message))
    found = hops({"server": sorted(marks, key=lambda mark: mark.at)}, spans)
    assert [(hop.event, round(hop.at_ms, 3), hop.share) for hop in found] == [
        ("server reads ConnectRequest", 2.0, 1.0),
        ("server reads ConnectRequest (2)", 4.0, 1.0),
        ("client has the result", 10.0, 1.0),
    ]
