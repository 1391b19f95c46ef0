"""Deliveries over real HTTPS on loopback: what arrives, what the answer does, and where no connection ever goes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
import trustme
from standardwebhooks import Webhook

from stepwell_server.domain.hooks.addresses import IpAddress
from stepwell_server.domain.hooks.webhooks import Completed, Failed, Gone, Post, PostResult, Target
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.hooks.posts import Deliverer, PostLimits, dial, new_secret, resolve
from tests.support.servers.receivers import Receiver, for_ever, http, raw, receiving, then_silence

SECRET = new_secret()
PUBLIC = "93.184.216.34"
IN_A_MOMENT = PostLimits(connect=0.2, total=0.2)
HASTE = 10.0
"""Seconds within which must happen what waits for no limit."""


@pytest.fixture
async def receiver(authority: trustme.CA) -> AsyncIterator[Receiver]:
    """A receiver named localhost."""
    async with receiving(authority, "localhost") as one:
        yield one


class Lookups:
    """A resolver that gives its answers one after the other, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = answers
        self.count = 0

    async def __call__(self, host: str, port: int) -> list[IpAddress]:
        self.count += 1
        return [ip_address(text) for text in self.answers[min(self.count, len(self.answers)) - 1]]


class Dials:
    """Remembers who was dialled, and connects to somebody else, or to nobody."""

    def __init__(self, reached: tuple[str, int] | None = None) -> None:
        self.dialled: list[str] = []
        self.reached = reached

    async def __call__(self, address: IpAddress, port: int) -> socket.socket:
        self.dialled.append(f"{address}:{port}")
        if self.reached is None:
            raise ConnectionRefusedError(111, "Connection refused")
        host, port = self.reached
        return await dial(ip_address(host), port)


def target(url: str) -> Target:
    return Target("default", "receipts", url, (SECRET,), 0, 0)


def delivery(text: str = '{"order": 7}', *, attempt: int = 1) -> Post:
    return Post("hook-1", "receipts", Payload(text), attempt, int(time.time()) * SECOND)


async def deliver(
    receiver: Receiver, ca_file: Path, limits: PostLimits | None = None, sent: Post | None = None
) -> PostResult:
    deliverer = Deliverer(frozenset({("localhost", receiver.port)}), ca_file, limits=limits)
    async with asyncio.timeout(HASTE):
        return await deliverer.deliver(target(f"https://localhost:{receiver.port}/in?a=1"), sent or delivery())


def failure(result: PostResult) -> tuple[str, str]:
    assert isinstance(result, Failed)
    return result.failure.name, result.failure.message


# ---- what arrives


async def test_a_hook_arrives_signed_and_named(receiver: Receiver, ca_file: Path) -> None:
    assert await deliver(receiver, ca_file, sent=delivery('{"ä": 1}', attempt=3)) == Completed()

    (request,) = receiver.requests
    assert request.line == "POST /in?a=1 HTTP/1.1"
    assert Webhook(SECRET.text).verify(request.body, request.headers) == {"ä": 1}
    assert request.headers["webhook-id"] == "hook-1"
    assert request.headers["stepwell-attempt"] == "3"
    assert request.headers["host"] == f"localhost:{receiver.port}"
    assert receiver.server_names == ["localhost"]


async def test_every_delivery_has_a_connection_of_its_own(receiver: Receiver, ca_file: Path) -> None:
    for _ in range(2):
        assert await deliver(receiver, ca_file) == Completed()

    assert receiver.connections == 2


async def test_an_answer_may_come_before_the_receiver_has_read_all(receiver: Receiver, ca_file: Path) -> None:
    receiver.reads_bodies = False
    receiver.answer = then_silence(b"HTTP/1.1 413 x\r\ncontent-length: 8\r\n\r\ntoo much")

    result = await deliver(receiver, ca_file, sent=delivery('"' + "x" * 1_000_000 + '"'))

    assert failure(result) == ("WEBHOOK_FAILED", "the receiver answered 413: too much")


async def test_an_address_that_is_on_the_allow_list_needs_a_certificate_for_itself(
    authority: trustme.CA, ca_file: Path
) -> None:
    async with receiving(authority, "127.0.0.1") as receiver:
        deliverer = Deliverer(frozenset({("127.0.0.1", receiver.port)}), ca_file)

        assert await deliverer.deliver(target(f"https://127.0.0.1:{receiver.port}/"), delivery()) == Completed()


async def test_an_address_that_refuses_is_followed_by_the_next(receiver: Receiver, ca_file: Path) -> None:
    allowed = frozenset({("localhost", receiver.port)})
    deliverer = Deliverer(allowed, ca_file, resolve=Lookups(["127.0.0.2", "127.0.0.1"]))

    assert await deliverer.deliver(target(f"https://localhost:{receiver.port}/"), delivery()) == Completed()


# ---- what the answer does


async def test_a_failed_attempt_tells_what_the_receiver_said(receiver: Receiver, ca_file: Path) -> None:
    receiver.answer = http(500, b"database is on fire")

    result = await deliver(receiver, ca_file)

    assert failure(result) == ("WEBHOOK_FAILED", "the receiver answered 500: database is on fire")
    assert isinstance(result, Failed)
    assert result.retry_after is None


async def test_a_receiver_that_is_busy_says_for_how_many_seconds(receiver: Receiver, ca_file: Path) -> None:
    receiver.answer = http(429, retry_after="120")

    result = await deliver(receiver, ca_file)

    assert isinstance(result, Failed)
    assert result.retry_after == 120 * SECOND


async def test_a_receiver_that_is_busy_says_until_when(receiver: Receiver, ca_file: Path) -> None:
    sent = delivery()
    until = datetime.fromtimestamp(sent.now // SECOND, UTC) + timedelta(seconds=300)
    receiver.answer = http(503, retry_after=format_datetime(until, usegmt=True))

    result = await deliver(receiver, ca_file, sent=sent)

    assert isinstance(result, Failed)
    assert result.retry_after == 300 * SECOND


async def test_gone_is_told_apart(receiver: Receiver, ca_file: Path) -> None:
    receiver.answer = http(410, b"moved out")

    assert isinstance(await deliver(receiver, ca_file), Gone)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_nobody_follows_it(
    receiver: Receiver, authority: trustme.CA, ca_file: Path, status: int
) -> None:
    async with receiving(authority, "localhost") as elsewhere:
        receiver.answer = http(status, location=f"https://localhost:{elsewhere.port}/")

        assert failure(await deliver(receiver, ca_file)) == ("WEBHOOK_FAILED", f"the receiver answered {status}")

        assert (len(receiver.requests), elsewhere.connections) == (1, 0)


# ---- receivers that cost too much


async def test_a_receiver_that_does_not_answer_is_given_up(receiver: Receiver, ca_file: Path) -> None:
    receiver.answer = then_silence(b"")

    assert failure(await deliver(receiver, ca_file, IN_A_MOMENT)) == ("WEBHOOK_TIMEOUT", "no answer within 0.2 seconds")

    await asyncio.wait_for(receiver.left.wait(), HASTE)


async def test_a_receiver_that_shakes_no_hands_is_given_up(ca_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        limits = PostLimits(connect=0.2, total=HASTE)
        deliverer = Deliverer(frozenset({("127.0.0.1", port)}), ca_file, limits=limits)

        result = await deliverer.deliver(target(f"https://127.0.0.1:{port}/"), delivery())

        assert failure(result) == ("WEBHOOK_TIMEOUT", "no connection within 0.2 seconds")


async def test_a_lookup_that_does_not_end_is_given_up() -> None:
    async def never(host: str, port: int) -> list[IpAddress]:
        await asyncio.Event().wait()
        return []

    deliverer = Deliverer(limits=IN_A_MOMENT, resolve=never)

    assert failure(await deliverer.deliver(target("https://example.com/"), delivery()))[0] == "WEBHOOK_TIMEOUT"


async def test_lookups_have_threads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: threads.append(threading.current_thread().name) or [])

    assert await resolve("example.com", 443) == []

    assert [name.rpartition("_")[0] for name in threads] == ["webhook-resolver"]


@pytest.mark.parametrize(("status", "is_outage"), [(400, False), (404, False), (429, False), (500, True), (503, True)])
async def test_only_an_answer_of_5xx_looks_like_an_outage(
    receiver: Receiver, ca_file: Path, status: int, is_outage: bool
) -> None:
    receiver.answer = http(status)

    result = await deliver(receiver, ca_file)

    assert isinstance(result, Failed)
    assert result.is_outage is is_outage


@pytest.mark.parametrize(("status", "kind"), [(200, Completed), (500, Failed), (410, Gone)])
async def test_the_status_decides_however_slow_the_body_is(
    receiver: Receiver, ca_file: Path, status: int, kind: type[PostResult]
) -> None:
    receiver.answer = then_silence(b"HTTP/1.1 %d x\r\ncontent-length: 9\r\n\r\nslow" % status)

    result = await deliver(receiver, ca_file, IN_A_MOMENT)

    assert isinstance(result, kind)
    if isinstance(result, Failed | Gone):
        assert result.failure.message.endswith(": slow")


@pytest.mark.parametrize("framing", [b"", b"transfer-encoding: chunked\r\n", b"content-length: 99999999999\r\n"])
async def test_a_body_without_end_is_cut(receiver: Receiver, ca_file: Path, framing: bytes) -> None:
    piece = b"400\r\n%s\r\n" % (b"x" * 0x400) if b"chunked" in framing else b"x" * 0x400
    receiver.answer = for_ever(b"HTTP/1.1 500 x\r\n%s\r\n" % framing, piece)

    result = await deliver(receiver, ca_file, PostLimits(total=600))

    assert failure(result) == ("WEBHOOK_FAILED", "the receiver answered 500: " + "x" * 1024)
    await asyncio.wait_for(receiver.left.wait(), HASTE)


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [(b"HTTP/1.1 200 x\r\n", b"a: b\r\n"), (b"", b"HTTP/1.1 103 x\r\n\r\n"), (b"HTTP/1.1 200 x\r\na: ", b"b")],
)
async def test_headers_without_end_are_cut(receiver: Receiver, ca_file: Path, beginning: bytes, piece: bytes) -> None:
    receiver.answer = for_ever(beginning, piece)

    result = await deliver(receiver, ca_file, PostLimits(total=600))

    assert failure(result) == ("WEBHOOK_UNREACHABLE", "the receiver did not answer in HTTP: the answer is too long")


@pytest.mark.parametrize(("size", "kind"), [(32 * 1024, Completed), (32 * 1024 + 1, Failed)])
async def test_headers_may_have_32_kib(receiver: Receiver, ca_file: Path, size: int, kind: type[PostResult]) -> None:
    around = b"HTTP/1.1 200 x\r\ncontent-length: 0\r\na: %s\r\n\r\n"
    receiver.answer = raw(around % (b"b" * (size - len(around % b""))))

    assert isinstance(await deliver(receiver, ca_file), kind)


async def test_a_delivery_that_is_cancelled_hangs_up(receiver: Receiver, ca_file: Path) -> None:
    receiver.answer = then_silence(b"")
    delivering = asyncio.create_task(deliver(receiver, ca_file))
    await receiver.asked.wait()

    delivering.cancel()

    with pytest.raises(asyncio.CancelledError):
        await delivering
    await asyncio.wait_for(receiver.left.wait(), HASTE)


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 2", b"HTTP/1.1 101 x\r\nupgrade: y\r\n\r\n"])
async def test_what_is_no_answer_is_a_failure(receiver: Receiver, ca_file: Path, answer: bytes) -> None:
    receiver.answer = raw(answer)

    assert failure(await deliver(receiver, ca_file))[0] == "WEBHOOK_UNREACHABLE"


# ---- where no connection goes


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["::ffff:10.0.0.1"], [PUBLIC, "192.168.0.1"]],
)
async def test_a_name_with_any_address_that_is_not_public_is_not_dialled(addresses: list[str]) -> None:
    dials = Dials()
    deliverer = Deliverer(resolve=Lookups(addresses), dial=dials)

    result = await deliverer.deliver(target("https://example.com/"), delivery())

    assert failure(result) == ("SSRF_BLOCKED", "the host of url has an address that is not public")
    assert dials.dialled == []


async def test_the_allow_list_vouches_for_nobody_else(receiver: Receiver, ca_file: Path) -> None:
    deliverer = Deliverer(frozenset({("localhost", receiver.port + 1), ("other", receiver.port)}), ca_file)

    result = await deliverer.deliver(target(f"https://localhost:{receiver.port}/"), delivery())

    assert failure(result)[0] == "SSRF_BLOCKED"
    assert receiver.connections == 0


async def test_a_name_that_changes_its_address_is_asked_once_and_dialled_where_it_was_checked() -> None:
    lookups, dials = Lookups([PUBLIC], ["127.0.0.1"]), Dials()
    deliverer = Deliverer(resolve=lookups, dial=dials)

    result = await deliverer.deliver(target("https://rebinding.example/"), delivery())

    assert failure(result) == ("WEBHOOK_UNREACHABLE", "the connection failed: Connection refused")
    assert (lookups.count, dials.dialled) == (1, [f"{PUBLIC}:443"])


async def test_a_connection_that_ended_up_elsewhere_is_not_used(authority: trustme.CA, ca_file: Path) -> None:
    async with receiving(authority, "example.com") as receiver:
        deliverer = Deliverer(ca_file=ca_file, resolve=Lookups([PUBLIC]), dial=Dials(("127.0.0.1", receiver.port)))

        result = await deliverer.deliver(target("https://example.com/"), delivery())

        assert failure(result)[0] == "SSRF_BLOCKED"
        assert (receiver.server_names, receiver.requests) == ([], [])


async def test_a_certificate_for_another_name_is_refused(authority: trustme.CA, ca_file: Path) -> None:
    async with receiving(authority, "example.com") as receiver:
        result = await deliver(receiver, ca_file)

        assert failure(result)[0] == "WEBHOOK_UNREACHABLE"
        assert "certificate" in failure(result)[1]
        assert receiver.requests == []


async def test_a_certificate_of_an_authority_that_nobody_knows_is_refused(ca_file: Path) -> None:
    async with receiving(trustme.CA(), "localhost") as receiver:
        result = await deliver(receiver, ca_file)

        assert "certificate" in failure(result)[1]
        assert receiver.requests == []


async def test_proxies_of_the_environment_are_ignored(
    receiver: Receiver, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")

        assert await deliver(receiver, ca_file) == Completed()

        with pytest.raises(BlockingIOError):
            proxy.accept()


async def test_a_target_that_the_rules_no_longer_allow_gets_nothing() -> None:
    lookups = Lookups([PUBLIC])
    deliverer = Deliverer(resolve=lookups)

    for url, name in (("https://127.0.0.1/", "SSRF_BLOCKED"), ("http://example.com/", "INVALID_WEBHOOK_URL")):
        assert failure(await deliverer.deliver(target(url), delivery()))[0] == name
    assert lookups.count == 0


async def test_a_name_that_nobody_knows_is_a_failure() -> None:
    async def unknown(host: str, port: int) -> list[IpAddress]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    result = await Deliverer(resolve=unknown).deliver(target("https://example.com/"), delivery())

    assert failure(result) == ("WEBHOOK_UNREACHABLE", "the host could not be resolved: Name or service not known")
