"""TransactionService: many things at once, all or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc import StatusCode, aio

from stepwell.v1 import transactions_pb2 as pb
from stepwell.v1 import workflows_pb2
from stepwell.v1.common_pb2 import RetryPolicy
from stepwell.v1.transactions_pb2_grpc import TransactionServiceStub
from stepwell_server.storage.database.failpoints import AFTER_COMMIT, BEFORE_COMMIT
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows, status_name
from tests.support.calls.triggers import Triggers, item, status_of, until_known
from tests.support.servers.servers import Served, StartServer, start_process
from tests.support.workers.frames import finish, payload, suspend, wait_for
from tests.support.workers.workers import HandWorker, UnaryWorker


class Commits:
    """Transactions in the words of a test."""

    def __init__(self, channel: Any, namespace: str = "") -> None:
        self.stub: Any = TransactionServiceStub(channel)
        self.namespace = namespace

    async def commit(self, *operations: pb.Operation, request_id: str = "") -> list[pb.OperationResult]:
        """Commit these operations."""
        request = pb.CommitRequest(namespace=self.namespace, operations=operations, request_id=request_id)
        return list((await self.stub.Commit(request)).results)


def create(instance_id: str = "", workflow: str = "order", **fields: Any) -> pb.Operation:
    """Create an instance."""
    new = workflows_pb2.CreateInstancesItem(workflow=workflow, instance_id=instance_id, **fields)
    return pb.Operation(create_instance=new)


def send(instance_id: str, event_type: str = "go", json: str = "1") -> pb.Operation:
    """Send an event."""
    new = workflows_pb2.SendEventsItem(
        workflow="order", instance_id=instance_id, type=event_type, payload=payload(json)
    )
    return pb.Operation(send_event=new)


def trigger(hook_id: str = "", name: str = "note", **fields: Any) -> pb.Operation:
    """Store a hook."""
    return pb.Operation(trigger_hook=item(hook_id, name, **fields))


@pytest.fixture
def commits(server: Served) -> Commits:
    """Transactions of the server."""
    return Commits(server.channel)


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker of "order" and "note" that has no credit yet."""
    return await hire(hooks=("note",), credit=0)


# ---- all


async def test_everything_is_done_and_answered_in_order(
    commits: Commits, flows: Flows, triggers: Triggers, worker: HandWorker
) -> None:
    await flows.create("old")

    results = await commits.commit(
        trigger("h1", json='"a"'), create("new", labels={"a": "b"}), send("old", json='"e"'), trigger("h2")
    )

    assert [one.WhichOneof("result") for one in results] == ["hook", "instance", "event", "hook"]
    first, created, event, second = (getattr(one, one.WhichOneof("result") or "") for one in results)
    assert (first.hook_id, status_of(first), second.hook_id) == ("h1", "PENDING", "h2")
    assert not first.HasField("payload")
    assert (created.instance_id, status_name(created.status)) == ("new", "QUEUED")
    assert not created.HasField("params")
    assert status_name(event.status) == "QUEUED"
    assert (await triggers.get("h1")).payload.json == '"a"'
    assert dict((await flows.get("new")).labels) == {"a": "b"}
    (entry,) = (await flows.history("old")).entries
    assert entry.event.payload.json == '"e"'


async def test_what_was_committed_is_handed_out(commits: Commits, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=2)

    await commits.commit(create("one"), trigger("h"))

    assert sorted([(await worker.take()).task.key for _ in range(2)]) == ["h", "one"]


async def test_an_event_reaches_an_instance_of_the_same_transaction(commits: Commits, flows: Flows, hire: Hire) -> None:
    worker = await hire(credit=9)

    results = await commits.commit(
        create("a"), send("a", json='"1"'), create("b"), send("b", json='"2"'), send("a", json='"3"')
    )
    assert [one.WhichOneof("result") for one in results] == ["instance", "event", "instance", "event", "event"]

    for _ in range(2):
        job = await worker.take()
        await job.send(wait_for("w", "go"), suspend())
        step = (await job.resolved())["w"]
        assert step.result.json == {"a": '"1"', "b": '"2"'}[job.task.key]


async def test_an_event_wakes_an_instance_that_waits_for_it(commits: Commits, flows: Flows, hire: Hire) -> None:
    worker = await hire(credit=9)
    await flows.create("one")
    await (await worker.take()).report(wait_for("w", "go"), suspend())

    await commits.commit(trigger("h"), send("one", json='"x"'))

    job = await worker.take()
    assert job.steps["w"].result.json == '"x"'
    await job.tell(finish())


async def test_nothing_is_asked_and_nothing_is_done(commits: Commits) -> None:
    assert await commits.commit() == []


# ---- or nothing

REFUSED: list[tuple[pb.Operation, str]] = [
    (create("old"), "INSTANCE_ID_ALREADY_EXISTS"),
    (create("fresh"), "INSTANCE_ID_ALREADY_EXISTS"),
    (create("-"), "INVALID_INSTANCE_ID"),
    (create("x", "nobody"), "WORKFLOW_NOT_FOUND"),
    (create("x", params=payload("{")), "PAYLOAD_NOT_JSON"),
    (send("nobody"), "INSTANCE_NOT_FOUND"),
    (send("over"), "INSTANCE_TERMINAL"),
    (send("old", ""), "INVALID_EVENT_TYPE"),
    (trigger("used"), "HOOK_ID_ALREADY_EXISTS"),
    (trigger("hook"), "HOOK_ID_ALREADY_EXISTS"),
    (trigger(name="workflow.completed"), "INVALID_HOOK_NAME"),
    (trigger(retry=RetryPolicy(max_attempts=0)), "INVALID_FIELD"),
    (pb.Operation(), "INVALID_FIELD"),
]


async def test_one_that_is_refused_undoes_the_others_and_is_named(
    commits: Commits, flows: Flows, triggers: Triggers, worker: HandWorker
) -> None:
    await flows.create("old")
    await flows.create("over")
    await flows.manage("Terminate", "over")
    await triggers.trigger("used")

    for operation, reason in REFUSED:
        before = [create("fresh"), trigger("hook"), send("old"), send("fresh")]
        refused = await refusal(commits.commit(*before, operation, trigger("after")))
        assert (refused.reason, refused.metadata.get("operation")) == (reason, "4"), operation

    assert await triggers.ids() == ["used"]
    assert {one.instance_id for one in (await flows.list()).instances} == {"old", "over"}
    assert not (await flows.history("old")).entries


async def test_the_first_refusal_is_the_one_that_is_told(commits: Commits, flows: Flows, worker: HandWorker) -> None:
    await flows.create("old")

    refused = await refusal(commits.commit(trigger("h"), send("nobody"), create("old"), trigger("h")))

    assert (refused.reason, refused.metadata["operation"]) == ("INSTANCE_NOT_FOUND", "1")
    assert set(refused.metadata) == {"workflow", "instance_id", "operation"}


async def test_a_transaction_has_its_limit_and_its_namespace(server: Served, commits: Commits) -> None:
    assert len(await commits.commit(*(trigger() for _ in range(100)))) == 100

    assert (await refusal(commits.commit(*(trigger() for _ in range(101))))).reason == "BATCH_TOO_LARGE"
    assert (await refusal(Commits(server.channel, "nowhere").commit(trigger()))).reason == "NAMESPACE_NOT_FOUND"


async def test_nobody_is_told_of_what_was_undone(
    server: Served, commits: Commits, flows: Flows, triggers: Triggers, hire: Hire
) -> None:
    await hire(hooks=("workflow.enqueued",), credit=0)
    await until_known(server, "workflow.enqueued")

    await refusal(commits.commit(create("one"), send("nobody")))
    assert await triggers.ids() == []
    await commits.commit(create("one"), create("two"))

    assert len(await triggers.ids(name="workflow.enqueued")) == 2


# ---- once


async def test_a_transaction_that_is_repeated_is_done_once(
    commits: Commits, flows: Flows, triggers: Triggers, worker: HandWorker
) -> None:
    operations = (create(), trigger(), create("one"), send("one"))

    first = await commits.commit(*operations, request_id="r")
    await flows.manage("Terminate", "one")
    again = await commits.commit(*operations, request_id="r")

    assert [_what(one) for one in again] == [_what(one) for one in first]
    assert again[3] == first[3]
    assert len((await flows.list()).instances) == 2
    assert len(await triggers.ids()) == 1
    refused = await refusal(commits.commit(*operations[:2], request_id="r"))
    assert refused.reason == "IDEMPOTENCY_KEY_REUSED"


async def test_a_transaction_that_was_refused_can_be_sent_again(
    commits: Commits, flows: Flows, worker: HandWorker
) -> None:
    operations = (trigger("h"), send("one"))
    assert (await refusal(commits.commit(*operations, request_id="r"))).reason == "INSTANCE_NOT_FOUND"

    await flows.create("one")

    assert len(await commits.commit(*operations, request_id="r")) == 2


async def test_request_ids_of_operations_are_left_out(commits: Commits, triggers: Triggers) -> None:
    await commits.commit(trigger("a", request_id="r"))
    await commits.commit(trigger("b", request_id="r"))

    assert await triggers.ids() == ["b", "a"]


def _what(result: pb.OperationResult) -> tuple[str, str, str]:
    return result.instance.instance_id, result.hook.hook_id, result.hook.idempotency_key


# ---- side by side


async def test_transactions_that_cross_each_other_wait_and_do_not_deadlock(
    start_server: StartServer, hire_at: Hire, postgres_url: str
) -> None:
    servers = [await start_server(postgres_url) for _ in range(2)]
    await hire_at(servers[0], credit=0)
    flows = Flows(servers[0].channel)
    await flows.create("x")
    await flows.create("y")
    commits = [Commits(one.channel) for one in servers]
    deadlocks = await _deadlocks(servers[0])

    async with asyncio.timeout(60):
        for _ in range(10):
            await asyncio.gather(
                *(commits[0].commit(send("x"), send("y"), trigger()) for _ in range(5)),
                *(commits[1].commit(trigger(), send("y"), send("x")) for _ in range(5)),
            )

    assert await _deadlocks(servers[0]) == deadlocks
    for key in ("x", "y"):
        assert len((await flows.history(key, page_size=100)).entries) == 100


async def _deadlocks(server: Served) -> int:
    """How many transactions PostgreSQL has ended because they waited for each other."""
    asked = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    return int(await server.app.db.run_tx(lambda tx: tx.exec_driver_sql(asked).scalar_one()))


async def test_of_transactions_that_want_the_same_one_wins_whole(
    commits: Commits, flows: Flows, triggers: Triggers, worker: HandWorker
) -> None:
    async def attempt(number: int) -> bool:
        try:
            await commits.commit(trigger(f"before{number}"), create("one"), trigger(f"after{number}"))
        except Exception:
            return False
        return True

    won = [number for number, ok in enumerate(await asyncio.gather(*map(attempt, range(8)))) if ok]

    assert len(won) == 1
    assert await triggers.ids() == [f"after{won[0]}", f"before{won[0]}"]


# ---- crashes


@pytest.mark.parametrize("point", [BEFORE_COMMIT, AFTER_COMMIT])
async def test_a_crash_leaves_all_or_nothing_and_a_repetition_completes_it(
    database_url: str, start_server: StartServer, point: str
) -> None:
    operations = (create("one"), trigger("h"), send("one"))
    crash = {"STEPWELL_FAILPOINT": f"{point}/transaction:1"}
    async with (
        start_process(database_url, **crash) as process,
        aio.insecure_channel(process.listen, options=[("grpc.enable_retries", 0)]) as channel,
    ):
        await UnaryWorker(channel).register()
        refused = await refusal(Commits(channel).commit(*operations, request_id="r"))
    assert refused.code == StatusCode.UNAVAILABLE

    server = await start_server(database_url)
    triggers, flows = Triggers(server.channel), Flows(server.channel)
    stored = (await triggers.ids(), [one.instance_id for one in (await flows.list()).instances])
    assert stored == (([], []) if point == BEFORE_COMMIT else (["h"], ["one"]))

    await Commits(server.channel).commit(*operations, request_id="r")

    assert (await triggers.ids(), len((await flows.history("one")).entries)) == (["h"], 1)
