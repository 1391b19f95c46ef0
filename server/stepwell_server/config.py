"""Settings: from flags, STEPWELL_... variables and a TOML file, in that order, validated once."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from stepwell_server.domain.limits import Limits
from stepwell_server.domain.times import to_micros

ENV_PREFIX = "STEPWELL_"

_LIMITS = Limits()


class InvalidSettings(Exception):
    """The settings cannot be used; the text says which and why, one line each."""


class Dispatch(StrEnum):
    """Who turns due tasks into work."""

    EMBEDDED = "embedded"
    EXTERNAL = "external"


class LogFormat(StrEnum):
    """How log lines look."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    """The least important lines that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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


def _checked_address(address: str) -> str:
    split_address(address)
    return address


Address = Annotated[str, AfterValidator(_checked_address)]


class LimitSettings(BaseModel):
    """What callers may send; `domain/limits.py` has the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    payload_bytes: int = Field(_LIMITS.payload_bytes, ge=1, le=2 * 1024 * 1024, description="largest payload")
    batch_items: int = Field(_LIMITS.batch_items, ge=1, le=1000, description="most items in one batch call")
    steps_per_run: int = Field(_LIMITS.steps_per_run, ge=1, le=100_000, description="most steps of one run")
    pending_events: int = Field(_LIMITS.pending_events, ge=1, description="most undelivered events of an instance")
    timer: timedelta = Field(timedelta(days=365), gt=timedelta(0), description="longest sleep or wait")
    streams_per_principal: int = Field(_LIMITS.streams_per_principal, ge=1, description="most streams of one caller")

    def to_limits(self) -> Limits:
        """The same as the domain knows it."""
        return Limits(**(self.model_dump() | {"timer": to_micros(self.timer)}))


class Settings(BaseSettings):
    """Everything an operator can decide. Durations are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    listen: Address = Field("127.0.0.1:7350", description="HOST:PORT of the API; port 0 takes a free one")
    ops_listen: Address = Field(
        "127.0.0.1:7351", description="HOST:PORT of health and metrics: plaintext, no data, not for the world"
    )
    database: SecretStr = Field(
        SecretStr("sqlite:///stepwell.db"), description="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
    )
    virtual_clock: bool = Field(False, description="create the database with a clock that stands until it is moved")
    auto_migrate: bool = Field(True, description="bring the database to the newest schema at start")
    dispatch: Dispatch = Field(Dispatch.EMBEDDED, description="who turns due tasks into work")
    insecure: bool = Field(False, description="allow other machines in without TLS or without a policy")
    tls_cert: Path | None = Field(None, description="PEM file of the certificate chain; read again when it changes")
    tls_key: Path | None = Field(None, description="PEM file of the certificate's private key")
    policy: str = Field("", description="module:name of the authorisation policy")
    reflection: bool | None = Field(None, description="serve reflection; by default on loopback only")
    log_format: LogFormat = Field(LogFormat.CONSOLE, description="how log lines look")
    log_level: LogLevel = Field(LogLevel.INFO, description="least important lines that are logged")
    unary_calls: int = Field(256, ge=1, description="most unary calls at once")
    unary_deadline: timedelta = Field(
        timedelta(seconds=30), gt=timedelta(0), description="deadline of unary calls that bring none"
    )
    drain_settle: timedelta = Field(
        timedelta(seconds=5), ge=timedelta(0), description="after SIGTERM, time for balancers to look away"
    )
    drain_grace: timedelta = Field(
        timedelta(seconds=25), ge=timedelta(0), description="after that, time for calls in flight to end"
    )
    limits: LimitSettings = Field(LimitSettings(), description="what callers may send")

    @property
    def database_url(self) -> URL:
        """The database, parsed."""
        return make_url(self.database.get_secret_value())

    @property
    def serves_loopback_only(self) -> bool:
        """True if only this machine can reach the API."""
        return is_loopback(self.listen)

    @property
    def serves_reflection(self) -> bool:
        """True if reflection is on: as told, or where nobody else can see it."""
        return self.serves_loopback_only if self.reflection is None else self.reflection

    @model_validator(mode="after")
    def _database_is_known(self) -> Self:
        try:
            url = self.database_url
        except ArgumentError:
            raise ValueError("database must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME") from None
        if url.get_backend_name() not in ("sqlite", "postgresql"):
            raise ValueError("database must begin with sqlite: or postgresql:")
        if url.get_backend_name() == "sqlite" and not url.database:
            raise ValueError("database must name a file, such as sqlite:///stepwell.db; there is no in-memory mode")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls-cert and tls-key go together")
        return self

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


def load(arguments: Sequence[str], program: str) -> Settings:
    """Settings from these arguments, the environment and the file that --config or STEPWELL_CONFIG names."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--config", type=Path)
    known, rest = first.parse_known_args(arguments)
    try:
        return _with_file(known.config)(
            _cli_settings_source=_flags(rest, program),
        )
    except ValidationError as error:
        raise InvalidSettings("\n".join(_readable(error))) from None
    except SettingsError as error:
        raise InvalidSettings(str(error)) from None


def _flags(arguments: Sequence[str], program: str) -> CliSettingsSource[argparse.ArgumentParser]:
    return CliSettingsSource(Settings, cli_parse_args=list(arguments), cli_prog_name=program)


def _with_file(path: Path | None) -> type[Settings]:
    """Settings that also read this file. A named file that is missing is an error, not an empty one."""
    if path is not None and not path.is_file():
        raise InvalidSettings(f"config: there is no file {path}")

    class FileSettings(Settings):
        model_config = SettingsConfigDict(toml_file=path)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    return FileSettings


def _readable(error: ValidationError) -> list[str]:
    """One line per problem, in the words of the flags; what was given is left out, as it may be a secret."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        name = ".".join(str(part) for part in problem["loc"]).replace("_", "-")
        text = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{name}: {text}" if name else text)
    return lines
