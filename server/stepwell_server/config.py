"""Settings: from flags, STEPWELL_... variables and a TOML file, in that order, validated once."""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self, TypeAlias, get_args, get_origin

from annotated_types import Ge
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from stepwell_server.domain.hooks.webhooks import AllowList, normal_host
from stepwell_server.domain.spine.leases import LeaseTimes
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.retry import Backoff, RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import to_micros

ENV_PREFIX = "STEPWELL_"
FAILPOINT = f"{ENV_PREFIX}FAILPOINT"
POSTGRESQL_OPTIONS = {"host", "port", "sslmode", "application_name"}

_LIMITS = Limits()

_OF_OTHERS = {FAILPOINT} | {
    ENV_PREFIX + name
    for name in (
        *("SERVER", "NAMESPACE", "TLS", "TLS_CA", "TOKEN"),  # of the command
        *("PYTHON", "TEST_PG", "TEST_ISOLATION", "MUTANTS", "FLAKY_REPORT"),  # of tests
    )
}
_NEARLY = 0.8
_SERVICE_LINK = re.compile(ENV_PREFIX + r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?)")
"""Variables that Kubernetes sets in every container for a service whose name begins with stepwell."""


class InvalidSettings(Exception):
    """The settings cannot be used; the text says which and why, one line each."""


Dispatch: TypeAlias = Literal["embedded", "external"]
BackoffName: TypeAlias = Literal["constant", "linear", "exponential"]
LogFormat: TypeAlias = Literal["console", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 host stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:7350 or [::1]:7350")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """True if only this machine can reach the address."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _seconds(value: object) -> object:
    """A number of seconds, also where it comes as text: a flag or a variable."""
    if isinstance(value, str):
        try:
            return timedelta(seconds=float(value))
        except (ValueError, OverflowError):
            raise ValueError("must be a number of seconds") from None
    return value


def _split_list(value: object) -> object:
    """A list, also where it comes as one text with commas: a variable."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _checked_address(address: str) -> str:
    split_address(address)
    return address


def _checked_host(address: str) -> str:
    host, _ = split_address(address)
    try:
        normal_host(host)
    except ValueError:
        raise ValueError("must be HOST:PORT with a host that can be a name or an address") from None
    return address


Address = Annotated[str, AfterValidator(_checked_address)]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(_checked_host)], ...], NoDecode, BeforeValidator(_split_list)]
Seconds = Annotated[timedelta, BeforeValidator(_seconds), Ge(timedelta(0))]


class LimitSettings(BaseModel):
    """Limits of what callers may send; `domain/values/limits.py` has the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    payload_bytes: int = Field(_LIMITS.payload_bytes, ge=1, le=3 * 512 * 1024, title="N", description="largest payload")
    batch_items: int = Field(_LIMITS.batch_items, ge=1, le=1000, title="N", description="most items in a batch call")
    steps_per_run: int = Field(_LIMITS.steps_per_run, ge=1, le=100_000, title="N", description="most steps of a run")
    pending_events: int = Field(
        _LIMITS.pending_events, ge=1, le=1_000_000, title="N", description="most undelivered events of an instance"
    )
    handlers: int = Field(
        _LIMITS.handlers, ge=1, le=1_000_000, title="N", description="most names of handlers in a namespace"
    )
    timer: Seconds = Field(timedelta(days=365), gt=timedelta(0), title="SECONDS", description="longest sleep or wait")
    streams_per_principal: int = Field(
        _LIMITS.streams_per_principal, ge=1, le=1_000_000, title="N", description="most open streams of one caller"
    )
    outbox_bytes: int = Field(
        _LIMITS.outbox_bytes, ge=1024, title="N", description="most bytes that wait for a worker to read them"
    )

    def to_limits(self) -> Limits:
        """The same as the domain knows it."""
        return Limits(**(self.model_dump() | {"timer": to_micros(self.timer)}))


class LeaseSettings(BaseModel):
    """How long work is held; `domain/spine/leases.py` says what each means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease: Seconds = Field(timedelta(seconds=30), ge=timedelta(seconds=1), title="SECONDS", description="a lease")
    ack_window: Seconds = Field(
        timedelta(seconds=10), gt=timedelta(0), title="SECONDS", description="how soon a task must be acknowledged"
    )
    reconnect_grace: Seconds = Field(
        timedelta(seconds=5), title="SECONDS", description="how long work is kept when a stream breaks"
    )

    def to_times(self) -> LeaseTimes:
        """The same as the domain knows it."""
        return LeaseTimes(to_micros(self.lease), to_micros(self.ack_window), to_micros(self.reconnect_grace))


class StepSettings(BaseModel):
    """How steps are executed that say nothing else; `domain/values/retry.py` says what each means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_attempts: int = Field(6, ge=1, le=1_000_000, title="N", description="most executions of a step")
    delay: Seconds = Field(timedelta(seconds=10), title="SECONDS", description="first delay before another execution")
    backoff: BackoffName = Field("exponential", description="how delays grow")
    timeout: Seconds = Field(
        timedelta(minutes=10), gt=timedelta(0), title="SECONDS", description="longest time of one execution"
    )

    def to_policy(self) -> StepPolicy:
        """The same as the domain knows it."""
        retry = RetryPolicy(self.max_attempts, to_micros(self.delay), Backoff(self.backoff))
        return StepPolicy(retry, to_micros(self.timeout))


class Settings(BaseSettings):
    """Everything an operator can decide. A field's title is what its flag takes."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", env_ignore_empty=True, frozen=True, extra="forbid"
    )

    listen: Address = Field("127.0.0.1:7350", title="HOST:PORT", description="the API; port 0 takes a free one")
    ops_listen: Address = Field(
        "127.0.0.1:7351", title="HOST:PORT", description="health and metrics: plaintext, no data, not for the world"
    )
    database: SecretStr = Field(
        SecretStr("sqlite:///stepwell.db"),
        title="URL",
        description="sqlite:///FILE (default sqlite:///stepwell.db) or postgresql://USER:PASSWORD@HOST/NAME",
    )
    virtual_clock: bool = Field(False, description="create the database with a clock that stands until it is moved")
    auto_migrate: bool = Field(True, description="bring the database to the newest schema at start")
    dispatch: Dispatch = Field(
        "embedded", description="embedded: this server hands out due tasks; external: dispatchers have it do so"
    )
    express: bool = Field(False, description="commit plain reports and creates without reading first (PostgreSQL)")
    process: bool = Field(True, description="hand out work on request (DispatcherService.Process)")
    insecure: bool = Field(False, description="let other machines in without TLS or without a policy")
    tls_cert: Path | None = Field(
        None, title="FILE", description="PEM file of the certificate chain; read again when it changes"
    )
    tls_key: Path | None = Field(None, title="FILE", description="PEM file of the certificate's private key")
    webhooks: bool = Field(False, description="deliver hooks to webhooks out on the internet")
    webhook_allow: Hosts = Field(
        (), title="HOST:PORT", description="a webhook that need not be public, such as one in a test; may be repeated"
    )
    webhook_ca_file: Path | None = Field(
        None, title="FILE", description="PEM file of authorities that webhooks' certificates may come from as well"
    )
    webhook_places: int = Field(10, ge=1, title="N", description="most deliveries to webhooks of one namespace at once")
    policy: str = Field("", title="MODULE:NAME", description="the authorisation policy")
    reflection: bool | None = Field(None, description="serve reflection; by default on loopback only")
    log_format: LogFormat = Field("console", description="how log lines look")
    log_level: LogLevel = Field("info", description="least important lines that are logged")
    unary_calls: int = Field(256, ge=1, title="N", description="most unary calls at once")
    waiting_calls: int = Field(
        2000,
        ge=1,
        title="N",
        description="most unary calls that wait at once for work or for an end; beside the others",
    )
    streams: int = Field(10_000, ge=1, title="N", description="most streams at once")
    health_watches: int = Field(1000, ge=1, title="N", description="most streams of health at once")
    call_rate: float = Field(
        500, gt=0, allow_inf_nan=False, title="N", description="most calls of one caller a second; a batch is one call"
    )
    call_burst: int = Field(1000, ge=1, title="N", description="most calls of one caller at once after a rest")
    unary_deadline: Seconds = Field(
        timedelta(seconds=30), gt=timedelta(0), title="SECONDS", description="deadline of unary calls that bring none"
    )
    message_deadline: Seconds = Field(
        timedelta(seconds=10),
        gt=timedelta(0),
        title="SECONDS",
        description="how soon the message of a unary call must have come",
    )
    drain_settle: Seconds = Field(
        timedelta(seconds=5),
        title="SECONDS",
        description="after SIGTERM, time for balancers to look away; by default none if nobody called for a minute",
    )
    drain_grace: Seconds = Field(
        timedelta(seconds=25), title="SECONDS", description="after that, time for calls in flight to end"
    )
    handler_retention: Seconds = Field(
        timedelta(days=30),
        ge=timedelta(days=2),
        title="SECONDS",
        description="how long a name is kept that no worker hosts and nothing refers to",
    )
    leases: LeaseSettings = Field(LeaseSettings(), description="how long work is held")
    steps: StepSettings = Field(StepSettings(), description="how steps are executed that say nothing else")
    limits: LimitSettings = Field(LimitSettings(), description="what callers may send")

    @property
    def database_url(self) -> URL:
        """The database, parsed. The scheme postgres: of libpq is postgresql:."""
        url = make_url(self.database.get_secret_value())
        return url.set(drivername="postgresql") if url.drivername == "postgres" else url

    @property
    def serves_loopback_only(self) -> bool:
        """True if only this machine can reach the API."""
        return is_loopback(self.listen)

    @property
    def serves_reflection(self) -> bool:
        """True if reflection is on: as set, or by default where only this machine can see it."""
        return self.serves_loopback_only if self.reflection is None else self.reflection

    @property
    def allowed_webhooks(self) -> AllowList:
        """The webhooks that need not be public, as the domain knows them."""
        return frozenset((normal_host(host), port) for host, port in map(split_address, self.webhook_allow))

    @model_validator(mode="after")
    def _database_is_known(self) -> Self:
        try:
            url = self.database_url
        except ArgumentError:
            raise ValueError("database must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME") from None
        if url.get_backend_name() not in ("sqlite", "postgresql"):
            raise ValueError("database must begin with sqlite: or postgresql:")
        unknown = sorted(set(url.query) - POSTGRESQL_OPTIONS)
        if unknown:
            raise ValueError(f"database has an option that is not known: {unknown[0]}")
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise ValueError("database must name a file, such as sqlite:///stepwell.db; there is no in-memory mode")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls-cert and tls-key go together")
        for file in (self.tls_cert, self.tls_key, self.webhook_ca_file):
            if file is not None and not file.is_file():
                raise ValueError(f"there is no file {file}")
        return self

    @model_validator(mode="after")
    def _failpoints_are_for_tests(self) -> Self:
        if os.environ.get(FAILPOINT) and not self.serves_loopback_only:
            raise ValueError(f"{FAILPOINT} makes the server crash: it is refused where other machines are let in")
        return self

    def warnings(self) -> list[str]:
        """Settings that are allowed and hardly meant, in one line each."""
        found, url = [], self.database_url
        if os.environ.get(FAILPOINT):
            found.append(f"{FAILPOINT} is set: this server will crash at {os.environ[FAILPOINT]}")
        remote = url.host is not None and not is_loopback(f"{url.host}:0") and not url.host.startswith("/")
        if url.get_backend_name() == "postgresql" and remote and "sslmode" not in url.query:
            found.append(
                "the database's URL has no sslmode, so the connection may be plaintext; say sslmode=verify-full"
            )
        if self.tls_key is not None and self.tls_key.stat().st_mode & stat.S_IROTH:
            found.append(f"everybody on this machine can read the TLS key {self.tls_key}")
        return found

    @model_validator(mode="after")
    def _strangers_are_kept_out(self) -> Self:
        if self.serves_loopback_only or self.insecure:
            return self
        if self.tls_cert is None or not self.policy:
            raise ValueError(
                f"listening on {self.listen} lets other machines in: "
                "give tls-cert, tls-key and policy, or say --insecure"
            )
        return self


def load(arguments: Sequence[str], program: str, epilog: str = "") -> Settings:
    """Settings from these arguments, the environment and the file that --config or STEPWELL_CONFIG names."""
    flags = vars(_parser(program, epilog).parse_args(arguments))
    file = flags.pop("config")
    nested = {name: flags.pop(name) for name in list(flags) if "." in name}
    for name, value in nested.items():
        group, _, leaf = name.partition(".")
        flags.setdefault(group, {})[leaf] = value
    try:
        return _with_file(file)(**flags)
    except ValidationError as error:
        raise InvalidSettings("\n".join(_readable(error))) from None
    except SettingsError as error:
        raise InvalidSettings(str(error)) from None


def unknown_variables() -> list[str]:
    """Variables that look like settings and are none, in one line each."""
    known = variables()
    lines = []
    for variable in sorted(os.environ):
        name = variable.upper()
        if not name.startswith(ENV_PREFIX) or name in {*known, *_OF_OTHERS} or _SERVICE_LINK.fullmatch(name):
            continue
        meant = difflib.get_close_matches(name, known, n=1, cutoff=_NEARLY)
        lines.append(f"{variable} is not a setting" + "".join(f"; did you mean {one}?" for one in meant))
    return lines


def variables() -> list[str]:
    """The variables that are settings."""
    return [ENV_PREFIX + name.replace(".", "__").upper() for name in ("config", *_names(Settings))]


def _names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The names of all settings, as a flag has them; a group's own as well."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        if isinstance(field.default, BaseModel):
            yield from _names(type(field.default), f"{name}.")


class _Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSettings(f"{message}; see {self.prog} --help")


def _parser(program: str, epilog: str) -> _Parser:
    """A flag for every setting. Those that are not given stay out, so that the environment and the file can speak."""
    parser = _Parser(
        prog=program,
        description="Every flag can also be a variable (--ops-listen: STEPWELL_OPS_LISTEN, --limits.timer: "
        "STEPWELL_LIMITS__TIMER) or stand in a TOML file (ops_listen = ...). Flags beat variables, and those the file.",
        epilog=epilog,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", default=os.environ.get(f"{ENV_PREFIX}CONFIG"), help="TOML file")
    _add_flags(parser, Settings)
    return parser


def _add_flags(parser: argparse._ActionsContainer, model: type[BaseModel], prefix: str = "") -> None:
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            _add_flags(parser.add_argument_group(field.description), type(field.default), f"{name}.")
            continue
        flag = f"--{prefix}{name}".replace("_", "-")
        takes: dict[str, Any] = {"metavar": field.title}
        if field.annotation in (bool, bool | None):
            takes = {"action": argparse.BooleanOptionalAction}
        elif get_origin(field.annotation) is Literal:
            takes = {"choices": get_args(field.annotation)}
        elif get_origin(field.annotation) is tuple:
            takes["action"] = "append"
        parser.add_argument(flag, dest=f"{prefix}{name}", help=_help(field), **takes)


def _help(field: FieldInfo) -> str:
    default = field.default
    if default in (None, "", False, ()) or isinstance(default, SecretStr):
        return field.description or ""
    shown = f"{default.total_seconds():.15g}" if isinstance(default, timedelta) else default
    return f"{field.description} (default {shown})"


def _with_file(path: str | None) -> type[Settings]:
    """Settings that also take what stands in this file, where nothing else says otherwise."""
    in_file = {} if path is None else _read_file(path)

    class FileSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, in_file)

    return FileSettings


def _read_file(path: str) -> dict[str, Any]:
    """A named file that is missing is an error, not an empty one."""
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise InvalidSettings(f"config: {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"config: {path}: {error}") from None


def _readable(error: ValidationError) -> list[str]:
    """One line per problem, in the words of the flags; what was given is left out, as it may be a secret."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        name = ".".join(str(part) for part in problem["loc"]).replace("_", "-")
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            text = "there is no such setting"
        lines.append(f"{name}: {text}" if name else text)
    return lines
