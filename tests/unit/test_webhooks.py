"""Webhooks: which targets are accepted, how deliveries are signed, what an answer means."""

from __future__ import annotations

import base64
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from stepwell_server.domain.hooks.webhooks import (
    KEPT_BODY_BYTES,
    Completed,
    Endpoint,
    Failed,
    Gone,
    Post,
    Secret,
    Target,
    check_secrets,
    check_url,
    judge,
    read_retry_after,
    request_of,
    sign,
)
from stepwell_server.domain.values.errors import InvalidField, InvalidWebhookUrl, SsrfBlocked
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import HOUR, SECOND

NOBODY: frozenset[tuple[str, int]] = frozenset()
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MICROS = int(NOON.timestamp()) * SECOND

keys = st.binary(min_size=24, max_size=64)
ids = st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="."), min_size=1)


# ---- where a target may be


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://example.com", Endpoint("example.com", 443, "/")),
        ("https://example.com:8443/in?a=1&b", Endpoint("example.com", 8443, "/in?a=1&b")),
        ("HTTPS://EXAMPLE.com./In", Endpoint("example.com", 443, "/In")),
        ("https://bücher.example/", Endpoint("xn--bcher-kva.example", 443, "/")),
        ("https://faß.de/", Endpoint("xn--fa-hia.de", 443, "/")),
        ("https://ⓔxample.com/", Endpoint("example.com", 443, "/")),
    ],
)
def test_an_https_url_of_a_public_name_is_accepted_and_its_host_spelt_in_one_way(url: str, endpoint: Endpoint) -> None:
    assert check_url(url, NOBODY) == endpoint


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "http://example.com",
        "ftp://example.com",
        "https:example.com",
        "https://",
        "https:///in",
        "https://user@example.com",
        "https://user:password@example.com",
        "https://@example.com",
        "https://example.com@127.0.0.1/",
        "https://example.com/#top",
        "https://example.com/#",
        "https://example.com:x/",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/\r\nhost: other",
        "https://exam\tple.com/",
        "\x00https://example.com/",
        "https://example.com\\@other.com/",
        "https://example.com/ü",
        "https://%65xample.com/",
        "https://exa_mple.com/",
        "https://[::1/",
        "https://[nonsense]/",
        "https://-a.com/",
        "https://a..com/",
        f"https://{'a' * 64}.com/",
        f"https://example.com/{'a' * 2048}",
    ],
)
def test_what_is_not_a_plain_https_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidWebhookUrl) as refused:
        check_url(url, NOBODY)

    assert refused.value.metadata["field"] == "url"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "93.184.216.34",
        "127.1",
        "127.0.1",
        "2130706433",
        "0177.0.0.1",
        "017700000001",
        "0x7f.0.0.1",
        "0x7f000001",
        "0X7F000001",
        "0x",
        "127.0.0.1.",
        "127.0.0.0x1",
        "\uff11\uff12\uff17.0.0.1",
        "127。0。0。1",
        "①②⑦.0.0.1",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2606:2800:220:1:248:1893:25c8:1946]",
        "[fe80::1%25eth0]",
        "localhost",
        "LOCALHOST.",
        "metadata",
        "app.localhost",
        "printer.local",
        "metadata.google.internal",
        "nas.home.arpa",
    ],
)
def test_an_address_in_any_notation_and_a_local_name_are_refused(host: str) -> None:
    with pytest.raises(SsrfBlocked):
        check_url(f"https://{host}/", NOBODY)


@pytest.mark.parametrize("port", [0, 22, 80, 442, 444, 6443, 65535])
def test_other_ports_than_those_of_https_are_refused(port: int) -> None:
    with pytest.raises(SsrfBlocked):
        check_url(f"https://example.com:{port}/", NOBODY)


def test_the_allow_list_lets_exactly_its_hosts_and_ports_through() -> None:
    allowed = frozenset({("localhost", 9001), ("127.0.0.1", 9002), ("::1", 9003)})

    assert check_url("https://LOCALHOST:9001/in", allowed) == Endpoint("localhost", 9001, "/in")
    assert check_url("https://127.0.0.1:9002/", allowed).authority == "127.0.0.1:9002"
    assert check_url("https://[0:0::1]:9003/", allowed).authority == "[::1]:9003"
    for url in ("https://localhost:9002/", "https://127.1:9002/", "https://localhost/"):
        with pytest.raises(SsrfBlocked):
            check_url(url, allowed)
    with pytest.raises(InvalidWebhookUrl):
        check_url("http://localhost:9001/in", allowed)


@given(st.text())
def test_whatever_stands_for_a_host_is_accepted_in_ascii_or_refused_by_us(host: str) -> None:
    try:
        endpoint = check_url(f"https://{host}/", NOBODY)
    except (InvalidWebhookUrl, SsrfBlocked):
        return
    assert endpoint.host.isascii()
    assert "." in endpoint.host
    assert endpoint.port in (443, 8443)


# ---- secrets and signatures


@given(keys)
def test_a_secret_is_read_as_it_is_written(key: bytes) -> None:
    assert check_secrets([Secret(key).text]) == (Secret(key),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        base64.b64encode(bytes(32)).decode(),
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
        "whsec_" + base64.b64encode(bytes(32)).decode() + "\n",
        "whsec_" + base64.b64encode(bytes(32)).decode().rstrip("="),
        "whsec_ü",
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidField) as refused:
        check_secrets([text])

    assert refused.value.metadata == {"field": "secrets"}


def test_there_are_at_most_two_secrets() -> None:
    texts = [Secret(bytes([n]) * 32).text for n in range(3)]

    assert len(check_secrets(texts[:2])) == 2
    with pytest.raises(InvalidField):
        check_secrets(texts)


def test_a_secret_never_shows() -> None:
    target = Target("default", "receipts", "https://example.com/", (Secret(b"hunter2" * 4),), 0, 0)

    assert "hunter2" not in repr(target)


def test_a_signature_is_that_of_the_published_example() -> None:
    (secret,) = check_secrets(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])

    signature = sign([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(keys, ids, st.text())
def test_a_receiver_that_knows_the_secret_accepts_the_signature_and_no_other_does(
    key: bytes, id_: str, text: str
) -> None:
    now = int(time.time())
    headers = {
        "webhook-id": id_,
        "webhook-timestamp": str(now),
        "webhook-signature": sign([Secret(key)], id_, now, text.encode()),
    }

    Webhook(Secret(key).text).verify(text.encode(), headers, json_parse=False)
    for secret, body in ((key + b"x", text), (key, text + "x")):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body.encode(), headers, json_parse=False)


def test_during_a_rotation_receivers_with_either_secret_accept() -> None:
    old, new = Secret(bytes(32)), Secret(bytes(range(32)))
    post = Post("hook-1", "receipts", Payload('{"a":1}'), 3, int(time.time()) * SECOND)
    target = Target("default", "receipts", "https://example.com/", (new, old), 0, 0)

    headers, body = request_of(target, check_url(target.url, NOBODY), post, "stepwell/1")

    for secret in (old, new):
        assert Webhook(secret.text).verify(body, headers) == {"a": 1}


@pytest.mark.parametrize("id_", ["", "a.b", "a b", "a\r\nb", "ä"])
def test_an_id_that_would_make_the_signature_ambiguous_or_break_the_header_is_not_signed(id_: str) -> None:
    with pytest.raises(ValueError, match="message id"):
        sign([Secret(bytes(32))], id_, 0, b"")


# ---- what is sent


def test_a_request_says_what_the_receiver_needs_to_know() -> None:
    target = Target("default", "receipts", "https://example.com:8443/in?a=1", (Secret(bytes(32)),), 0, 0)
    post = Post("hook-1", "workflow.completed", Payload('{"ä":1}'), 3, NOON_MICROS + 999_999)

    headers, body = request_of(target, check_url(target.url, NOBODY), post, "stepwell/1")

    assert body == '{"ä":1}'.encode()
    assert headers.pop("webhook-signature").startswith("v1,")
    assert headers == {
        "host": "example.com:8443",
        "content-type": "application/json",
        "content-length": "8",
        "connection": "close",
        "user-agent": "stepwell/1",
        "webhook-id": "hook-1",
        "webhook-timestamp": str(NOON_MICROS // SECOND),
        "stepwell-attempt": "3",
        "stepwell-hook-name": "workflow.completed",
    }


def test_bytes_are_sent_as_bytes() -> None:
    target = Target("default", "receipts", "https://example.com/", (Secret(bytes(32)),), 0, 0)
    post = Post("hook-1", "receipts", Payload(binary=b"\xff\x00", encoding="aes"), 1, 0)

    headers, body = request_of(target, check_url(target.url, NOBODY), post, "stepwell/1")

    assert (headers["content-type"], body) == ("application/octet-stream", b"\xff\x00")


# ---- what an answer means


@given(st.integers(100, 999))
def test_only_2xx_is_success_and_only_410_is_the_end(status: int) -> None:
    expected = Completed if 200 <= status < 300 else Gone if status == 410 else Failed

    assert isinstance(judge(status, None, b"", 0), expected)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_receiver_may_say_when_to_come_back(status: int) -> None:
    result = judge(status, "120", b"", NOON_MICROS)

    assert isinstance(result, Failed)
    assert result.retry_after == 120 * SECOND


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 500, 501])
def test_others_may_not(status: int) -> None:
    result = judge(status, "120", b"", NOON_MICROS)

    assert isinstance(result, Failed)
    assert result.retry_after is None


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("0", 0),
        (" 5 ", 5 * SECOND),
        ("3600", HOUR),
        ("3601", HOUR),
        ("0000000000005", 5 * SECOND),
        ("9" * 5000, HOUR),
        (format_datetime(NOON + timedelta(seconds=90), usegmt=True), 90 * SECOND),
        (format_datetime(NOON - timedelta(days=1), usegmt=True), 0),
        (format_datetime(NOON + timedelta(days=1), usegmt=True), HOUR),
        ("Sunday, 01-Mar-26 12:01:30 GMT", 90 * SECOND),
        ("Sun Mar  1 12:01:30 2026", 90 * SECOND),
        (None, None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("Sun, 01 Mar 99999999999 12:00:00 GMT", None),
        ("٣", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_at_most_an_hour(value: str | None, wait: int | None) -> None:
    assert read_retry_after(value, NOON_MICROS) == wait


@given(st.text() | st.text(alphabet="Sun, 01Mar26:+-G("), st.integers(0, 2 * NOON_MICROS))
def test_no_retry_after_can_do_harm(value: str, now: int) -> None:
    wait = read_retry_after(value, now)

    assert wait is None or 0 <= wait <= HOUR


@given(st.binary(max_size=3000))
def test_a_failure_keeps_the_beginning_of_the_answer_and_only_what_can_be_printed(body: bytes) -> None:
    result = judge(500, None, body, 0)

    assert isinstance(result, Failed)
    assert result.failure.message.isprintable()
    assert len(result.failure.message.encode()) <= KEPT_BODY_BYTES + len("the receiver answered 500: ")


def test_a_failure_says_what_the_receiver_said() -> None:
    result = judge(500, None, b"<h1>Oops</h1>\n", 0)

    assert isinstance(result, Failed)
    assert result.failure.message == "the receiver answered 500: <h1>Oops</h1>"
