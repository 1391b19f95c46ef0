"""Webhooks end to end: hooks that the server delivers over real HTTPS, to receivers on loopback that it was told of."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from standardwebhooks import Webhook

from stepwell.v1 import hooks_pb2 as pb
from stepwell_server.engine.hooks.posts import new_secret
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, at, item, retry, status_of, until_known
from tests.support.patience import PATIENCE
from tests.support.servers.receivers import Answer, Receiver, http, receiving
from tests.support.servers.servers import Served, StartServer, start_in_process
from tests.support.workers.frames import finish, returned


@pytest.fixture
async def receiver(authority: trustme.CA) -> AsyncIterator[Receiver]:
    """A receiver named localhost, or by any name that somebody may give it."""
    async with receiving(authority, "localhost", "receiver.example.com") as one:
        yield one


@pytest.fixture
def delivering(receiver: Receiver, ca_file: Path) -> dict[str, Any]:
    """What a server must be told to deliver to the receiver."""
    allowed = [f"localhost:{receiver.port}"]
    return {"webhooks": True, "webhook_allow": allowed, "webhook_ca_file": ca_file}


@pytest.fixture
async def still(start_server: StartServer, delivering: dict[str, Any], database_url: str) -> Served:
    """A server that delivers, and whose time stands still."""
    return await start_server(database_url, virtual_clock=True, **delivering)


@pytest.fixture
def hooks(still: Served) -> Triggers:
    """Its hooks."""
    return Triggers(still.channel)


@pytest.fixture
def url(receiver: Receiver) -> str:
    """Where the receiver is."""
    return f"https://localhost:{receiver.port}/in"


class Gate:
    """An answer that waits until it is let through, and counts who waits."""

    def __init__(self, answer: Answer) -> None:
        self.opened = asyncio.Event()
        self.waiting = self.most = 0
        self._answer = answer

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.opened.wait()
        self.waiting -= 1
        await self._answer(writer)

    async def reached(self, count: int) -> None:
        """Return once so many wait."""
        await until(lambda: self.waiting >= count)


async def until(condition: Callable[[], bool]) -> None:
    """Return once it holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


# ---- what arrives


async def test_a_hook_is_delivered_once_and_signed(hooks: Triggers, receiver: Receiver, url: str) -> None:
    secret = (await hooks.put(url)).secrets[0]
    stored = await hooks.trigger("one", json='{"order": 7}')

    hook = await hooks.until("one", "COMPLETED")

    (request,) = receiver.requests
    assert Webhook(secret).verify(request.body, request.headers) == {"order": 7}
    assert request.headers["webhook-id"] == stored.idempotency_key
    assert (request.headers["stepwell-attempt"], request.headers["stepwell-hook-name"]) == ("1", "note")
    assert (hook.attempts, hook.HasField("failure")) == (1, False)


async def test_hooks_that_waited_for_a_target_are_delivered_when_it_is_put(
    hooks: Triggers, receiver: Receiver, url: str
) -> None:
    await hooks.trigger_many(*(item(f"h{number}") for number in range(3)))
    await hooks.trigger("other", "ring")

    await hooks.put(url)
    for number in range(3):
        await hooks.until(f"h{number}", "COMPLETED")

    assert (len(receiver.requests), await hooks.status("other")) == (3, "PENDING")


async def test_a_hook_is_not_delivered_before_its_time(hooks: Triggers, receiver: Receiver, url: str) -> None:
    await hooks.put(url)
    await hooks.trigger("one", process_at=await hooks.now() + 60)

    await hooks.advance(59)
    assert receiver.requests == []
    await hooks.advance(1)

    await hooks.until("one", "COMPLETED")


async def test_both_secrets_of_a_rotation_verify(hooks: Triggers, receiver: Receiver, url: str) -> None:
    old, new = new_secret().text, new_secret().text
    await hooks.put(url, secrets=[old])
    rotated = await hooks.put(url, secrets=[new, old])
    await hooks.trigger("one")
    await hooks.until("one", "COMPLETED")

    (request,) = receiver.requests
    assert list(rotated.secrets) == []
    for secret in (old, new):
        assert Webhook(secret).verify(request.body, request.headers) == {}


async def test_what_happens_to_instances_is_delivered(
    hooks: Triggers, still: Served, receiver: Receiver, url: str, hire_at: Hire
) -> None:
    await hooks.put(url, "workflow.completed")
    await until_known(still, "workflow.completed")
    worker = await hire_at(still)
    await Flows(still.channel).create("one")

    await (await worker.take()).tell(finish())

    await until(lambda: bool(receiver.requests))
    told = json.loads(receiver.requests[0].body)
    assert (told["event"], told["instance_id"]) == ("workflow.completed", "one")


# ---- retries


async def test_a_failure_is_tried_again_with_the_same_id(hooks: Triggers, receiver: Receiver, url: str) -> None:
    await hooks.put(url)
    receiver.answer = http(500, b"on fire")
    await hooks.trigger("one", retry=retry(3, delay=10))
    await until(lambda: bool(receiver.requests))
    hook = await hooks.until("one", "PENDING")

    assert (hook.attempts, hook.failure.message) == (1, "the receiver answered 500: on fire")
    assert at(hook.next_attempt_at) == await hooks.now() + 10
    await hooks.advance(10)
    receiver.answer = http(200)
    await hooks.advance(20)

    assert (await hooks.until("one", "COMPLETED")).attempts == 3
    assert [one.headers["stepwell-attempt"] for one in receiver.requests] == ["1", "2", "3"]
    assert len({one.headers["webhook-id"] for one in receiver.requests}) == 1


async def test_the_last_attempt_fails_the_hook(hooks: Triggers, receiver: Receiver, url: str) -> None:
    await hooks.put(url)
    receiver.answer = http(400)

    await hooks.trigger("one", retry=retry(1))

    hook = await hooks.until("one", "FAILED")
    assert (hook.attempts, hook.failure.name) == (1, "WEBHOOK_FAILED")


@pytest.mark.parametrize(("asked", "waits"), [("120", 120), ("1", 10), ("86400", 3600)])
async def test_a_receiver_that_is_busy_is_left_alone(
    hooks: Triggers, receiver: Receiver, url: str, asked: str, waits: int
) -> None:
    await hooks.put(url)
    receiver.answer = http(503, retry_after=asked)
    await hooks.trigger("one", retry=retry(3, delay=10))
    await until(lambda: bool(receiver.requests))
    hook = await hooks.until("one", "PENDING")

    assert at(hook.next_attempt_at) == await hooks.now() + waits
    receiver.answer = http(200)
    await hooks.advance(waits - 1)
    assert len(receiver.requests) == 1
    await hooks.advance(1)
    await hooks.until("one", "COMPLETED")


async def test_a_redirect_is_a_failure_and_is_not_followed(
    hooks: Triggers, receiver: Receiver, url: str, authority: trustme.CA
) -> None:
    async with receiving(authority, "localhost") as elsewhere:
        receiver.answer = http(302, location=f"https://localhost:{elsewhere.port}/")
        await hooks.put(url)
        await hooks.trigger("one", retry=retry(1))

        assert "302" in (await hooks.until("one", "FAILED")).failure.message
        assert elsewhere.connections == 0


# ---- receivers that want no more


async def test_gone_disables_the_target_until_it_is_put_again(hooks: Triggers, receiver: Receiver, url: str) -> None:
    (secret,) = (await hooks.put(url)).secrets
    receiver.answer = http(410)
    await hooks.trigger("one", retry=retry(3, delay=1))
    await until(lambda: bool(receiver.requests))
    hook = await hooks.until("one", "PENDING")
    assert (await hooks.targets())["note"].disabled

    await hooks.trigger("two")
    await hooks.advance(3600)
    assert (hook.attempts, len(receiver.requests)) == (1, 1)
    receiver.answer = http(200)
    again = await hooks.put(url)

    for hook_id in ("one", "two"):
        await hooks.until(hook_id, "COMPLETED")
    assert not again.target.disabled
    assert Webhook(secret).verify(receiver.requests[-1].body, receiver.requests[-1].headers) == {}
    assert not (await hooks.targets())["note"].disabled


async def test_a_target_that_was_deleted_gets_nothing_and_its_hooks_wait_for_a_worker(
    hooks: Triggers, still: Served, receiver: Receiver, url: str, hire_at: Hire
) -> None:
    await hooks.put(url)
    await hooks.delete_target(request_id="r")
    await hooks.delete_target(request_id="r")
    await hooks.trigger("one")
    await hooks.advance(1)

    assert (await refusal(hooks.delete_target())).reason == "HOOK_TARGET_NOT_FOUND"
    assert (await hooks.targets(), receiver.requests) == ({}, [])
    job = await (await hire_at(still, hooks=("note",))).take()
    assert (job.task.key, job.hook.attempt) == ("one", 1)
    await job.tell(returned())


async def test_a_hook_that_is_cancelled_is_not_delivered_to_its_end(
    hooks: Triggers, receiver: Receiver, url: str
) -> None:
    receiver.answer = gate = Gate(http(200))
    await hooks.put(url)
    await hooks.trigger("one")
    await gate.reached(1)

    cancelled = await hooks.manage("Cancel", "one")
    receiver.answer = http(200)
    await hooks.trigger("two")
    await hooks.until("two", "COMPLETED")

    assert (status_of(cancelled), cancelled.attempts) == ("CANCELLED", 1)
    assert await hooks.status("one") == "CANCELLED"


# ---- how many at a time


async def test_a_target_gets_no_more_than_five_at_a_time_from_all_replicas(
    start_server: StartServer, delivering: dict[str, Any], postgres_url: str, receiver: Receiver, url: str
) -> None:
    here, there = [Triggers((await start_server(postgres_url, **delivering)).channel) for _ in range(2)]
    receiver.answer = gate = Gate(http(200))
    await here.put(url)

    await asyncio.gather(
        here.trigger_many(*(item(f"a{number}") for number in range(12))),
        there.trigger_many(*(item(f"b{number}") for number in range(12))),
    )
    await gate.reached(5)
    gate.opened.set()
    for hook in (*(f"a{number}" for number in range(12)), *(f"b{number}" for number in range(12))):
        await here.until(hook, "COMPLETED")

    assert gate.most == 5
    assert len(receiver.requests) == len({one.headers["webhook-id"] for one in receiver.requests}) == 24


async def test_a_slow_target_delays_no_other(hooks: Triggers, receiver: Receiver, url: str) -> None:
    gate = Gate(http(200))

    async def answer(writer: asyncio.StreamWriter) -> None:
        slow = receiver.requests[-1].headers["stepwell-hook-name"] == "slow"
        await (gate if slow else http(200))(writer)

    receiver.answer = answer
    await hooks.put(url, "slow")
    await hooks.put(url)
    await hooks.trigger_many(*(item(f"s{number}", "slow") for number in range(9)))
    await gate.reached(5)

    await hooks.trigger("one")

    await hooks.until("one", "COMPLETED")
    gate.opened.set()
    await hooks.until("s8", "COMPLETED")


# ---- replicas that are lost


async def test_a_delivery_whose_replica_was_lost_is_made_again_by_another(
    start_server: StartServer, delivering: dict[str, Any], database_url: str, receiver: Receiver, url: str
) -> None:
    delivering |= {"leases": {"lease": 3, "ack_window": 3}}
    receiver.answer = gate = Gate(http(200))
    async with start_in_process(database_url, **delivering) as lost:
        hooks = Triggers(lost.channel)
        await hooks.put(url)
        await hooks.trigger("one", retry=retry(2))
        await gate.reached(1)
    receiver.answer = http(200)

    hook = await Triggers((await start_server(database_url, **delivering)).channel).until("one", "COMPLETED")

    assert hook.attempts == 2
    assert len({one.headers["webhook-id"] for one in receiver.requests}) == 1


# ---- where nothing goes

REFUSED = [
    ("http://receiver.example.com/", "INVALID_WEBHOOK_URL"),
    ("https://user:pass@receiver.example.com/", "INVALID_WEBHOOK_URL"),
    ("https://receiver.example.com/#part", "INVALID_WEBHOOK_URL"),
    ("", "INVALID_WEBHOOK_URL"),
    ("https://127.0.0.1/", "SSRF_BLOCKED"),
    ("https://2130706433/", "SSRF_BLOCKED"),
    ("https://0x7f.1/", "SSRF_BLOCKED"),
    ("https://[::1]/", "SSRF_BLOCKED"),
    ("https://[::ffff:10.0.0.1]/", "SSRF_BLOCKED"),
    ("https://10.0.0.1/", "SSRF_BLOCKED"),
    ("https://169.254.169.254/latest/meta-data", "SSRF_BLOCKED"),
    ("https://localhost/", "SSRF_BLOCKED"),
    ("https://metadata.google.internal/", "SSRF_BLOCKED"),
    ("https://receiver.example.com:25/", "SSRF_BLOCKED"),
]


async def test_targets_that_are_not_public_are_not_taken(hooks: Triggers) -> None:
    for url, reason in REFUSED:
        assert (await refusal(hooks.put(url))).reason == reason, url
    good = "https://receiver.example.com/"
    assert (await refusal(hooks.put(good, "a b"))).reason == "INVALID_HOOK_NAME"
    for secrets in (["whsec_short"], ["x"], [new_secret().text] * 3):
        assert (await refusal(hooks.put(good, secrets=secrets))).reason == "INVALID_FIELD"
    assert await hooks.targets() == {}


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
async def test_a_public_name_that_leads_inside_is_not_followed(
    hooks: Triggers, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    look_up = socket.getaddrinfo

    def rebound(host: str, *asked: Any, **options: Any) -> list[Any]:
        return look_up(address if host == "receiver.example.com" else host, *asked, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    await hooks.put("https://receiver.example.com:8443/")
    await hooks.trigger("one", retry=retry(1))

    hook = await hooks.until("one", "FAILED")

    assert hook.failure.name == "SSRF_BLOCKED"
    assert receiver.connections == 0


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    start_server: StartServer, sqlite_url: str, receiver: Receiver, url: str
) -> None:
    server = await start_server(sqlite_url, webhooks=True, webhook_allow=[f"localhost:{receiver.port}"])
    hooks = Triggers(server.channel)
    await hooks.put(url)
    await hooks.trigger("one", retry=retry(1))

    assert "certificate" in (await hooks.until("one", "FAILED")).failure.message
    assert receiver.requests == []


# ---- targets


async def test_targets_are_listed_without_their_secrets(hooks: Triggers, url: str) -> None:
    first = await hooks.put(url, "b", request_id="r")
    again = await hooks.put(url, "b", request_id="r")
    await hooks.put(f"{url}2", "a")

    targets = await hooks.targets()

    assert first == again
    assert list(targets) == ["a", "b"]
    assert (targets["b"], targets["a"].url) == (first.target, f"{url}2")
    assert (await refusal(hooks.put(f"{url}3", "b", request_id="r"))).reason == "IDEMPOTENCY_KEY_REUSED"


async def test_a_secret_is_shown_when_it_is_made_and_never_again(hooks: Triggers, url: str) -> None:
    made = await hooks.put(url, request_id="r")
    kept = await hooks.put(url)
    repeated = await hooks.put(url, request_id="r")  # the first answer may have been lost
    given = await hooks.put(url, secrets=[new_secret().text])
    too_late = await hooks.put(url, request_id="r")

    assert (len(made.secrets), list(kept.secrets)) == (1, [])
    assert repeated.secrets == made.secrets
    assert (list(given.secrets), list(too_late.secrets)) == ([], [])


async def test_targets_are_paged_by_name(hooks: Triggers, url: str) -> None:
    for name in ("c", "a", "b"):
        await hooks.put(url, name)

    first = await hooks.stub.ListHookTargets(pb.ListHookTargetsRequest(page_size=2))
    rest = await hooks.stub.ListHookTargets(pb.ListHookTargetsRequest(page_token=first.next_page_token))

    assert [one.name for one in (*first.targets, *rest.targets)] == ["a", "b", "c"]
    assert rest.next_page_token == ""


async def test_a_server_that_was_not_told_to_delivers_nothing(
    start_server: StartServer, delivering: dict[str, Any], database_url: str, receiver: Receiver, url: str
) -> None:
    async with start_in_process(database_url, **delivering) as before:
        await Triggers(before.channel).put(url)
    hooks = Triggers((await start_server(database_url)).channel)

    refused = await refusal(hooks.put(url, "other"))
    await hooks.trigger("one")

    assert refused.reason == "WEBHOOKS_DISABLED"
    assert list(await hooks.targets()) == ["note"]
    assert (await hooks.status("one"), receiver.connections) == ("PENDING", 0)
    await hooks.delete_target()
