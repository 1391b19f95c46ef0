"""HookService: hooks that are stored, looked at, listed, tried again and cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import Row, update

from stepwell.v1 import hooks_pb2 as pb
from stepwell.v1.common_pb2 import BACKOFF_EXPONENTIAL, BACKOFF_LINEAR, Payload, RetryPolicy
from stepwell_server.domain.values.failures import Failure
from stepwell_server.storage.database.payloads import failure_from, failure_row
from stepwell_server.storage.hooks import hooks as stored_hooks
from stepwell_server.storage.schema import hooks
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.triggers import Triggers, at, item, outcome_of, retry, status_of
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import raised, returned, seconds
from tests.support.workers.workers import grant

DAY = 86_400.0


@pytest.fixture
def frozen(still: Served) -> Triggers:
    """Hooks of a server whose time stands still."""
    return Triggers(still.channel)


# ---- storing


async def test_a_hook_is_stored_as_it_was_asked_for(frozen: Triggers) -> None:
    now = await frozen.now()

    answer = await frozen.trigger("one", json='{"n": 1.50}', retry=retry(3, delay=2, backoff=BACKOFF_LINEAR))
    stored = await frozen.get("one")

    assert not answer.HasField("payload")
    assert stored.payload.json == '{"n": 1.50}'
    stored.ClearField("payload")
    assert stored == answer
    assert (stored.name, status_of(stored), stored.attempts) == ("note", "PENDING", 0)
    assert (stored.retry.max_attempts, stored.retry.delay.seconds, stored.retry.backoff) == (3, 2, BACKOFF_LINEAR)
    assert [at(one) for one in (stored.created_at, stored.process_at, stored.next_attempt_at)] == [now] * 3
    assert not any(stored.HasField(one) for one in ("failure", "last_attempt_at", "ended_at"))


async def test_what_is_not_said_is_the_default(triggers: Triggers) -> None:
    stored = await triggers.get((await triggers.trigger()).hook_id)

    assert stored.payload.json == "{}"
    assert (stored.retry.max_attempts, stored.retry.delay.seconds, stored.retry.max_delay.seconds) == (5, 1, 60)
    assert stored.retry.backoff == BACKOFF_EXPONENTIAL
    assert len(stored.hook_id) == len(stored.idempotency_key) == 32


async def test_a_binary_payload_is_kept_with_its_encoding(triggers: Triggers) -> None:
    sealed = Payload(binary=b"\x00\xff", encoding="sealed")

    await triggers.trigger("one", payload=sealed)

    assert (await triggers.get("one")).payload == sealed


@pytest.mark.parametrize("ahead", [0.000001, 3600, 200 * 365 * DAY])
async def test_a_time_ahead_is_kept_to_the_microsecond(frozen: Triggers, ahead: float) -> None:
    when = Timestamp()
    when.FromMicroseconds(round(await frozen.now() * 1_000_000) + round(ahead * 1_000_000))

    (result,) = await frozen.trigger_many(pb.TriggerHooksItem(name="note", hook_id="one", process_at=when))

    assert (result.hook.process_at, result.hook.next_attempt_at) == (when, when)
    assert (await frozen.get("one")).next_attempt_at == when


@pytest.mark.parametrize("behind", [0.000001, 3600, 50 * 365 * DAY])
async def test_a_time_in_the_past_is_now(frozen: Triggers, behind: float) -> None:
    now = await frozen.now()

    await frozen.trigger("one", process_at=now - behind)

    stored = await frozen.get("one")
    assert (at(stored.process_at), at(stored.next_attempt_at)) == (now, now)


async def test_a_time_in_the_past_overtakes_nobody(frozen: Triggers, still: Served, hire_at: Hire) -> None:
    for number, behind in enumerate((0, 7200, 3600)):
        await frozen.trigger(f"h{number}", process_at=await frozen.now() - behind)

    worker = await hire_at(still, hooks=("note",), credit=3)

    assert [(await worker.take()).task.key for _ in range(3)] == ["h0", "h1", "h2"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "INVALID_HOOK_NAME"),
    ({"name": "-note"}, "INVALID_HOOK_NAME"),
    ({"name": "n" * 65}, "INVALID_HOOK_NAME"),
    ({"name": "workflow.completed"}, "INVALID_HOOK_NAME"),
    ({"name": "queue.mine"}, "INVALID_HOOK_NAME"),
    ({"hook_id": "a.b"}, "INVALID_HOOK_ID"),
    ({"hook_id": "i" * 101}, "INVALID_HOOK_ID"),
    ({"json": "{"}, "PAYLOAD_NOT_JSON"),
    ({"json": "NaN"}, "PAYLOAD_NOT_JSON"),
    ({"json": '"' + "x" * 1024 * 1024 + '"'}, "PAYLOAD_TOO_LARGE"),
    ({"retry": RetryPolicy(max_attempts=0)}, "INVALID_FIELD"),
    ({"retry": retry(3, delay=366 * DAY)}, "DURATION_OUT_OF_RANGE"),
    ({"retry": retry(3, delay=10, max_delay=seconds(9))}, "INVALID_FIELD"),
    ({"request_id": "r" * 37}, "REQUEST_ID_INVALID"),
]


async def test_what_is_refused_is_refused_alone(triggers: Triggers) -> None:
    items = [item("first"), *(item(**fields) for fields, _ in REFUSED), item("last")]

    results = await triggers.trigger_many(*items)

    assert [outcome_of(one) for one in results] == ["first", *(reason for _, reason in REFUSED), "last"]
    assert await triggers.ids() == ["last", "first"]


async def test_a_batch_has_its_limit_and_may_be_empty(triggers: Triggers) -> None:
    assert await triggers.trigger_many() == []
    assert len(await triggers.trigger_many(*(item() for _ in range(100)))) == 100

    refused = await refusal(triggers.trigger_many(*(item() for _ in range(101))))

    assert refused.reason == "BATCH_TOO_LARGE"


async def test_a_namespace_that_does_not_exist_has_no_hooks(server: Served) -> None:
    nowhere = Triggers(server.channel, "nowhere")

    (result,) = await nowhere.trigger_many(item("one"))

    assert outcome_of(result) == "NAMESPACE_NOT_FOUND"
    calls = (nowhere.get("one"), nowhere.list(), nowhere.manage("Retry", "one"), nowhere.manage("Cancel", "one"))
    for call in calls:
        assert (await refusal(call)).reason == "NAMESPACE_NOT_FOUND"


# ---- ids


async def test_an_id_is_used_once_whatever_became_of_its_hook(triggers: Triggers, hire: Hire) -> None:
    twins = await triggers.trigger_many(item("one", json="1"), item("one", json="2"), item("two"))
    assert [outcome_of(one) for one in twins] == ["one", "HOOK_ID_ALREADY_EXISTS", "two"]
    await triggers.manage("Cancel", "two")
    worker = await hire(hooks=("note",))
    await (await worker.take()).tell(returned())

    again = await triggers.trigger_many(item("one"), item("two"), item("one", "other"))

    assert [outcome_of(one) for one in again] == ["HOOK_ID_ALREADY_EXISTS"] * 3
    assert (await triggers.get("one")).payload.json == "1"


async def test_two_callers_with_one_id_store_one_hook(triggers: Triggers) -> None:
    results = await asyncio.gather(*(triggers.trigger_many(item("one"), item(f"o{n}")) for n in range(10)))

    assert sorted(outcome_of(first) for first, _ in results) == ["HOOK_ID_ALREADY_EXISTS"] * 9 + ["one"]
    assert len(await triggers.ids()) == 11


async def test_a_request_that_is_repeated_finds_what_it_stored(triggers: Triggers, hire: Hire) -> None:
    for asked in (item(json="1", request_id="r1"), item("mine", json="1", request_id="r2")):
        first, twin = await triggers.trigger_many(asked, asked)
        later = (await triggers.trigger_many(asked))[0]
        assert first.hook.idempotency_key
        assert first == twin == later

    worker = await hire(hooks=("note",), credit=2)
    for _ in range(2):
        await (await worker.take()).tell(returned())
    (ended,) = await triggers.trigger_many(item("mine", json="1", request_id="r2"))

    assert status_of(ended.hook) == "COMPLETED"
    assert len(await triggers.ids()) == 2


async def test_a_request_id_with_another_body_is_refused(triggers: Triggers) -> None:
    first = await triggers.trigger("one", json="1", request_id="r")

    others = await triggers.trigger_many(
        item("one", json="2", request_id="r"), item("two", json="1", request_id="r"), item(json="1", request_id="r")
    )

    assert [outcome_of(one) for one in others] == ["IDEMPOTENCY_KEY_REUSED"] * 3
    assert [one.hook_id for one in (await triggers.list()).hooks] == [first.hook_id]


async def test_an_id_that_another_request_used_exists(triggers: Triggers) -> None:
    await triggers.trigger("one", request_id="r")

    results = await triggers.trigger_many(item("one", request_id="s"), item("one"))

    assert [outcome_of(one) for one in results] == ["HOOK_ID_ALREADY_EXISTS"] * 2


# ---- looking


async def test_a_hook_that_is_not_there_is_not_found(triggers: Triggers) -> None:
    for call in (triggers.get("x"), triggers.manage("Retry", "x"), triggers.manage("Cancel", "x"), triggers.get("")):
        assert (await refusal(call)).reason == "HOOK_NOT_FOUND"


async def test_hooks_are_listed_newest_first_by_name_and_status(triggers: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note", "ring"), credit=0)
    for hook_id, name in (("done", "note"), ("broken", "note"), ("held", "ring")):
        await triggers.trigger(hook_id, name, retry=retry(1))
        await worker.say(grant(1))
        job = await worker.take()
        if hook_id != "held":
            await job.tell(returned() if hook_id == "done" else raised())
    for hook_id, name in (("off", "note"), ("waits", "ring"), ("due", "note")):
        await triggers.trigger(hook_id, name)
    await triggers.manage("Cancel", "off")

    assert await triggers.ids() == ["due", "waits", "off", "held", "broken", "done"]
    assert await triggers.ids(name="note") == ["due", "off", "broken", "done"]
    assert await triggers.ids("PENDING") == ["due", "waits"]
    assert await triggers.ids("PROCESSING") == ["held"]
    assert await triggers.ids("PENDING", "PROCESSING") == ["due", "waits", "held"]
    assert await triggers.ids("PROCESSING", name="note") == []
    assert await triggers.ids("FAILED", "COMPLETED", "CANCELLED") == ["off", "broken", "done"]
    assert await triggers.ids("PROCESSING", "FAILED", name="ring") == ["held"]
    assert await triggers.ids(name="nobody") == []
    assert not any(one.HasField("payload") for one in (await triggers.list()).hooks)


async def test_pages_follow_each_other_whatever_comes_meanwhile(triggers: Triggers) -> None:
    await triggers.trigger_many(*(item(f"h{number}") for number in range(7)))
    pages, token = [], ""
    while True:
        page = await triggers.list("PENDING", "FAILED", page_size=3, page_token=token)
        pages.append([one.hook_id for one in page.hooks])
        token = page.next_page_token
        await triggers.trigger()
        if not token:
            break

    assert pages == [["h6", "h5", "h4"], ["h3", "h2", "h1"], ["h0"]]


async def test_a_token_is_good_for_its_own_question_only(triggers: Triggers) -> None:
    await triggers.trigger_many(*(item() for _ in range(30)))
    page = await triggers.list()
    assert len(page.hooks) == 25

    token = page.next_page_token
    for call in (
        triggers.list("PENDING", page_token=token),
        triggers.list(name="note", page_token=token),
        triggers.list(page_token=token[:-1]),
    ):
        assert (await refusal(call)).reason == "PAGE_TOKEN_INVALID"
    assert (await refusal(triggers.list(page_size=-1))).reason == "PAGE_SIZE_INVALID"
    assert (await refusal(triggers.list("UNSPECIFIED"))).reason == "INVALID_FIELD"


# ---- trying again


async def test_a_hook_that_failed_begins_anew_with_all_its_attempts(triggers: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=9)
    key = (await triggers.trigger("one", retry=retry(1))).idempotency_key
    await (await worker.take()).tell(raised(message="first"))

    reopened = await triggers.manage("Retry", "one")
    job = await worker.take()

    assert (status_of(reopened), reopened.attempts, reopened.HasField("ended_at")) == ("PENDING", 0, False)
    assert (job.hook.attempt, job.hook.idempotency_key) == (1, key)
    await job.tell(returned())
    done = await triggers.get("one")
    assert (status_of(done), done.attempts, done.HasField("failure")) == ("COMPLETED", 1, False)
    assert (await refusal(triggers.manage("Retry", "one"))).reason == "HOOK_COMPLETED"


async def test_what_an_earlier_life_of_a_hook_still_says_is_stale(triggers: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=9)
    await triggers.trigger("one", retry=retry(1))
    first = await worker.take()
    await first.tell(raised())
    await triggers.manage("Retry", "one")
    second = await worker.take()

    await first.send(returned())

    assert await first.stale() == "LEASE_LOST"
    assert (second.fence > first.fence, await triggers.status("one")) == (True, "PROCESSING")


async def test_a_retry_ends_a_wait_and_keeps_the_attempts(frozen: Triggers, still: Served, hire_at: Hire) -> None:
    worker = await hire_at(still, hooks=("note",), credit=9)
    await frozen.trigger("one", retry=retry(3, delay=3600))
    await frozen.trigger("far", process_at=await frozen.now() + DAY)
    await (await worker.take()).tell(raised())

    for hook_id, attempt in (("one", 2), ("far", 1)):
        await frozen.manage("Retry", hook_id)
        job = await worker.take()
        assert (job.task.key, job.hook.attempt) == (hook_id, attempt)
        before = await frozen.get(hook_id)
        assert await frozen.manage("Retry", hook_id) == _without_payload(before)  # it is executing
        await job.tell(returned())
        assert await frozen.status(hook_id) == "COMPLETED"
    assert await worker.beat()
    assert not worker.has("task")


async def test_a_retry_that_is_repeated_happens_once(triggers: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=9)
    await triggers.trigger("one", retry=retry(1))
    await (await worker.take()).tell(raised())
    await triggers.manage("Retry", "one", request_id="r")
    await (await worker.take()).tell(raised())

    again = await triggers.manage("Retry", "one", request_id="r")

    assert status_of(again) == "FAILED"
    assert (await refusal(triggers.manage("Retry", "two", request_id="r"))).reason == "IDEMPOTENCY_KEY_REUSED"


# ---- cancelling


async def test_a_hook_that_waits_is_cancelled_and_never_executed(
    frozen: Triggers, still: Served, hire_at: Hire
) -> None:
    worker = await hire_at(still, hooks=("note",), credit=9)
    await frozen.trigger("one", process_at=await frozen.now() + 10)

    cancelled = await frozen.manage("Cancel", "one", request_id="r")
    await frozen.advance(20)

    assert (status_of(cancelled), cancelled.attempts, at(cancelled.ended_at)) == (
        "CANCELLED",
        0,
        await frozen.now() - 20,
    )
    assert await frozen.manage("Cancel", "one", request_id="r") == cancelled
    assert (await refusal(frozen.manage("Cancel", "one"))).reason == "HOOK_ENDED"
    await worker.beat()
    assert not worker.has("task")


async def test_a_handler_that_is_executing_is_told_and_its_outcome_is_not_stored(
    triggers: Triggers, hire: Hire
) -> None:
    worker = await hire(hooks=("note",), credit=9)
    await triggers.trigger("one")
    job = await worker.take()
    await worker.beat(job)

    cancelled = await triggers.manage("Cancel", "one")

    assert await job.stale() == "LEASE_LOST"
    await job.send(returned())
    assert await job.stale() == "LEASE_LOST"
    assert (status_of(cancelled), cancelled.attempts) == ("CANCELLED", 1)
    assert cancelled.HasField("last_attempt_at")
    assert _without_payload(await triggers.get("one")) == cancelled


async def test_a_cancelled_hook_can_be_tried_again(triggers: Triggers, hire: Hire) -> None:
    worker = await hire(hooks=("note",), credit=9)
    await triggers.trigger("one")
    first = await worker.take()
    await triggers.manage("Cancel", "one")

    await triggers.manage("Retry", "one")
    second = await worker.take()

    assert (second.hook.attempt, second.hook.idempotency_key) == (1, first.hook.idempotency_key)
    await second.tell(returned())
    assert await triggers.status("one") == "COMPLETED"


async def test_a_worker_of_another_replica_is_told_of_a_cancel(
    start_server: StartServer, hire_at: Hire, postgres_url: str
) -> None:
    here, there = [await start_server(postgres_url) for _ in range(2)]
    worker = await hire_at(there, hooks=("note",))
    triggers = Triggers(here.channel)
    await triggers.trigger("one")
    job = await worker.take()

    await triggers.manage("Cancel", "one")

    assert await job.stale() == "LEASE_LOST"


def _without_payload(hook: pb.Hook) -> pb.Hook:
    shown = pb.Hook()
    shown.CopyFrom(hook)
    shown.ClearField("payload")
    return shown


async def with_long_failures(server: Served, triggers: Triggers) -> list[str]:
    """Ids of a hundred hooks that failed for long reasons."""
    ids = [f"h{number:02}" for number in range(100)]
    await triggers.trigger_many(*(item(name) for name in ids))
    long = failure_row(Failure("Error", "\N{GRINNING FACE}" * 4096, details="\N{GRINNING FACE}" * 16_384))
    await server.app.db.run_tx(lambda tx: tx.execute(update(hooks).values(**long)) and None)
    return ids


async def test_failures_are_read_of_those_hooks_alone_that_a_page_shows(
    server: Served, triggers: Triggers, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Failure] = []

    def counting(row: Row[Any]) -> Failure | None:
        failure = failure_from(row)
        if failure is not None:
            read.append(failure)
        return failure

    await with_long_failures(server, triggers)
    monkeypatch.setattr(stored_hooks, "failure_from", counting)

    page = await triggers.list(page_size=100)

    assert len(read) == len(page.hooks) < 100
    assert [one.failure.details for one in page.hooks] == [one.details for one in read]


async def test_a_list_of_hooks_with_long_failures_fits_into_messages(server: Served, triggers: Triggers) -> None:
    ids = await with_long_failures(server, triggers)

    seen, token = [], ""
    while len(seen) < len(ids):
        page = await triggers.list(page_size=100, page_token=token)
        seen += [one.hook_id for one in page.hooks]
        token = page.next_page_token

    assert sorted(seen) == ids and not token
