"""`stepwell info`."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from stepwell.cli import options, printing
from stepwell.durations import to_datetime
from stepwell.v1 import server_pb2 as pb
from stepwell.v1.server_pb2_grpc import ServerServiceStub


@options.on_server
def info(target: options.Target, as_json: options.AsJson = False) -> None:
    """Show what a server says of itself."""
    answer = target.call(ask)
    if as_json:
        printing.print_json(answer)
        return
    printing.print_table(["", ""], _facts(answer), title=f"Stepwell {answer.version} at {target.server}")


async def ask(channel: aio.Channel) -> pb.GetServerInfoResponse:
    """Ask the server for its description."""
    return await ServerServiceStub(channel).GetServerInfo(pb.GetServerInfoRequest(), timeout=options.DEADLINE)


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
    return f"{printing.instant(to_datetime(instant))} UTC"
