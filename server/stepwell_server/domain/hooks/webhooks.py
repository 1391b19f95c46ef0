"""Webhooks: which targets are accepted, how a delivery is signed, and what the receiver's answer means.

Signatures are those of Standard Webhooks, version 1.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

import idna

from stepwell_server.domain.hooks.addresses import parse_address
from stepwell_server.domain.values.errors import InvalidField, InvalidWebhookUrl, SsrfBlocked
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import HOUR, SECOND, Micros

URL_LENGTH = 2048
PORTS = (443, 8443)
SECRET_PREFIX = "whsec_"
SECRET_BYTES = range(24, 65)
NEW_SECRET_BYTES = 32
MOST_SECRETS = 2
LONGEST_RETRY_AFTER: Micros = HOUR
KEPT_BODY_BYTES = 1024

GONE = 410
_THROTTLED = (429, 502, 503, 504)

_UNSEEN = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_VISIBLE = re.compile(r"[!-~]*", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_MESSAGE_ID = re.compile(r"[!-\-/-~]+", re.ASCII)
_LOCAL_NAMES = ("localhost", "local", "internal", "home.arpa")

AllowList: TypeAlias = frozenset[tuple[str, int]]
"""Hosts with their ports that the operator vouches for, wherever they are."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a target's deliveries go: the parts of a URL that was checked, the host in ASCII."""

    host: str
    port: int
    path: str
    """With its query, if there is one."""

    @property
    def authority(self) -> str:
        """As it stands in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 443 else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that deliveries are signed with; it never shows in a representation."""

    key: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """The form in which people pass it on."""
        return SECRET_PREFIX + b64encode(self.key).decode()

    @property
    def fingerprint(self) -> str:
        """A fingerprint, which tells secrets apart without showing them."""
        return hashlib.sha256(self.key).hexdigest()


@dataclass(frozen=True, slots=True)
class Target:
    """A webhook as it is stored: the hooks of its name go there."""

    namespace: str
    name: str
    url: str
    secrets: tuple[Secret, ...]
    created_at: Micros
    updated_at: Micros
    disabled_reason: str = ""
    """Why nothing is delivered until it is put again. Empty: it is enabled."""


@dataclass(frozen=True, slots=True)
class Post:
    """One attempt to hand a hook to a receiver."""

    idempotency_key: str
    hook_name: str
    payload: Payload
    attempt: int
    """From 1."""
    now: Micros
    """The real time of the attempt: receivers compare it with their clocks."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The receiver has taken the hook."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt has failed; another one may do better."""

    failure: Failure
    retry_after: Micros | None = None
    """How long the receiver wants to be left alone. None: it did not say."""
    is_outage: bool = False
    """There was no answer, or one that says that the receiver is broken (5xx)."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The attempt has failed, and the receiver wants no more of this target."""

    failure: Failure


PostResult: TypeAlias = Completed | Failed | Gone


def check_url(url: str, allowed: AllowList) -> Endpoint:
    """Where the URL leads. Refused: what is no https URL of a host with a public name, on a port for it."""
    parts = _split(url)
    host = _ascii_host(parts)
    port = 443 if parts.port is None else parts.port
    endpoint = Endpoint(host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    if (host, port) not in allowed:
        _check_public(endpoint)
    return endpoint


def check_secrets(texts: Sequence[str]) -> tuple[Secret, ...]:
    """The secrets that the texts are. Refused: more than two, and what is not whsec_ with base64 of 24 to 64 bytes."""
    if len(texts) > MOST_SECRETS:
        raise InvalidField(f"secrets has more than {MOST_SECRETS} values", field="secrets", limit=MOST_SECRETS)
    return tuple(_secret(text) for text in texts)


def sign(secrets: Sequence[Secret], message_id: str, timestamp: int, body: bytes) -> str:
    """The signature header: one signature for each secret. The id must be visible ASCII without a dot."""
    if not _MESSAGE_ID.fullmatch(message_id):
        raise ValueError(
            "a message id must be visible ASCII without a dot"
        )  # a dot would make what is signed ambiguous
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    macs = (hmac.digest(secret.key, signed, hashlib.sha256) for secret in secrets)
    return " ".join("v1," + b64encode(mac).decode() for mac in macs)


def request_of(target: Target, endpoint: Endpoint, post: Post, user_agent: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of the attempt."""
    payload, timestamp = post.payload, post.now // SECOND
    body = payload.json.encode() if payload.binary is None else payload.binary
    headers = {
        "host": endpoint.authority,
        "content-type": "application/json" if payload.binary is None else "application/octet-stream",
        "content-length": str(len(body)),
        "connection": "close",
        "user-agent": user_agent,
        "webhook-id": post.idempotency_key,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(target.secrets, post.idempotency_key, timestamp, body),
        "stepwell-attempt": str(post.attempt),
        "stepwell-hook-name": post.hook_name,
    }
    return headers, body


def judge(status: int, retry_after: str | None, body: bytes, now: Micros) -> PostResult:
    """Judge an answer: only 2xx is success, 410 is the end, and a busy receiver may say when to come back."""
    if 200 <= status < 300:
        return Completed()
    failure = Failure("WEBHOOK_FAILED", _told(status, body))
    if status == GONE:
        return Gone(failure)
    wait = read_retry_after(retry_after, now) if status in _THROTTLED else None
    return Failed(failure, wait, is_outage=status >= 500)


def read_retry_after(value: str | None, now: Micros) -> Micros | None:
    """How long the header says to wait, in seconds or by an HTTP date; at most an hour. None: it says nothing clear."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        wait = int(value) * SECOND if len(value) < 20 else LONGEST_RETRY_AFTER
    else:
        try:
            at = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        wait = int(at.replace(tzinfo=at.tzinfo or UTC).timestamp()) * SECOND - now
    return min(max(wait, 0), LONGEST_RETRY_AFTER)


def normal_host(host: str) -> str:
    """The one ASCII spelling of a name (IDNA 2008, mapped by UTS 46) or of an address; ValueError if it is neither."""
    address = parse_address(host)
    if address is not None:
        return str(address)
    return idna.encode(host, uts46=True, std3_rules=True).decode().removesuffix(".")


def _split(url: str) -> SplitResult:
    if len(url) > URL_LENGTH:
        raise _invalid(f"url is longer than {URL_LENGTH} characters")
    if _UNSEEN.search(url):  # before it is parsed: parsers drop some of them, each its own
        raise _invalid("url has a blank, a control character or a backslash")
    try:
        parts = urlsplit(url)
        _ = parts.port  # is read when it is asked for
    except ValueError:
        raise _invalid("url is not a URL") from None
    if parts.scheme != "https":
        raise _invalid("url must begin with https://")
    if "@" in parts.netloc:
        raise _invalid("url must not have a user or a password")
    if "#" in url:
        raise _invalid("url must not have a fragment")
    if not _VISIBLE.fullmatch(parts.path + parts.query):
        raise _invalid("the path of url must be ASCII; encode the rest with %")
    return parts


def _ascii_host(parts: SplitResult) -> str:
    try:
        return normal_host(parts.hostname or "")
    except ValueError:
        raise _invalid("url has no host, or one that cannot be a name") from None


def _check_public(endpoint: Endpoint) -> None:
    """Refuse what cannot be public by its looks. The addresses of a name are judged when they are used."""
    host = endpoint.host
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):  # no public name ends in a number: 127.1, 0x7f000001
        raise _blocked("the host of url must be a name, not an address")
    if "." not in host or host.endswith(tuple(f".{name}" for name in _LOCAL_NAMES)):
        raise _blocked("the host of url is a local name")
    if endpoint.port not in PORTS:
        raise _blocked(f"the port of url must be {' or '.join(map(str, PORTS))}")


def _secret(text: str) -> Secret:
    try:
        key = b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not text.startswith(SECRET_PREFIX) or len(key) not in SECRET_BYTES:
        raise InvalidField(
            f"a secret must be {SECRET_PREFIX} and the base64 form of {SECRET_BYTES[0]} to {SECRET_BYTES[-1]} bytes",
            field="secrets",
        )
    return Secret(key)


def _told(status: int, body: bytes) -> str:
    """The kept part of an answer: the status, and the beginning of the body with nothing unprintable in it."""
    text = body[:KEPT_BODY_BYTES].decode(errors="ignore")
    shown = "".join(one if one.isprintable() else " " for one in text).strip()
    return f"the receiver answered {status}" + (f": {shown}" if shown else "")


def _invalid(problem: str) -> InvalidWebhookUrl:
    return InvalidWebhookUrl(problem, field="url")


def _blocked(problem: str) -> SsrfBlocked:
    return SsrfBlocked(problem, field="url")
