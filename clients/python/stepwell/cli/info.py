"""`stepwell info`."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.cli import options
from stepwell.v1 import server_pb2 as pb
from stepwell.v1.server_pb2_grpc import ServerServiceStub


def info(
    server: options.Server = options.DEFAULT_SERVER,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what a server says of itself."""

    async def ask(channel: aio.Channel) -> pb.GetServerInfoResponse:
        return await ServerServiceStub(channel).GetServerInfo(pb.GetServerInfoRequest(), timeout=options.DEADLINE)

    answer = options.call(ask, server, tls=tls, tls_ca=tls_ca)
    if as_json:
        options.print_json(answer)
        return
    options.print_table(["", ""], _facts(answer), title=f"Stepwell {answer.version} at {server}")


def _facts(answer: pb.GetServerInfoResponse) -> list[tuple[str, str]]:
    database = answer.database
    kind = pb.DatabaseKind.Name(database.kind).removeprefix("DATABASE_KIND_").lower()
    mode = pb.DispatchMode.Name(answer.dispatch_mode).removeprefix("DISPATCH_MODE_").lower()
    return [
        ("database", f"{kind} {database.version}, schema {database.schema_version}, id {database.database_id}"),
        ("replica", f"{answer.replica_id}, up since {_readable(answer.started_at)}"),
        ("clock", f"{_readable(answer.now)}{' (virtual)' if answer.virtual_clock else ''}"),
        ("dispatch", mode),
        ("worker protocol", f"{answer.min_protocol_version} to {answer.max_protocol_version}"),
        ("largest payload", f"{answer.limits.max_payload_bytes:,} bytes"),
        ("most steps of a run", f"{answer.limits.max_steps_per_run:,}"),
    ]


def _readable(instant: Timestamp) -> str:
    return f"{instant.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"
