"""`python -m stepwell_server`: what `stepwell server` and `stepwell migrate` start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import structlog
import uvloop

from stepwell_server import app, config, databases, telemetry
from stepwell_server.api.edge.access import PolicyNotFound
from stepwell_server.api.edge.listeners import CannotListen
from stepwell_server.storage.database.sqlite import CannotOpen
from stepwell_server.storage.deployments import ClockModeMismatch

_REFUSALS = (
    config.InvalidSettings,
    databases.CannotUseDatabase,
    CannotOpen,
    ClockModeMismatch,
    CannotListen,
    PolicyNotFound,
)
_CHECK = "--check"
_CHECK_HELP = "--check changes nothing: it says whether the schema is what this version needs and SQLite's file whole."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `serve` (the default) or `migrate`. A refusal is one readable line and exit code 1, bad settings 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given.pop(0) if given and given[0] in ("serve", "migrate") else "serve"
    try:
        uvloop.run(_migrate(given) if command == "migrate" else _serve(given))
    except _REFUSALS as refusal:
        print(f"stepwell: {refusal}", file=sys.stderr)
        return 2 if isinstance(refusal, config.InvalidSettings) else 1
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(arguments: Sequence[str]) -> None:
    await app.serve(_settings(arguments, "stepwell server"), _announce)


async def _migrate(arguments: Sequence[str]) -> None:
    settings = _settings([one for one in arguments if one != _CHECK], "stepwell migrate", _CHECK_HELP)
    version = await (databases.check_database if _CHECK in arguments else databases.migrate_database)(settings)
    print(f"the database is at schema {version}")


def _settings(arguments: Sequence[str], program: str, epilog: str = "") -> config.Settings:
    settings = config.load(arguments, program, epilog)
    telemetry.configure_logs(settings.log_format, settings.log_level)
    for warning in config.unknown_variables():
        structlog.get_logger().warning("unknown_variable", warning=warning)
    return settings


def _announce(addresses: app.Addresses) -> None:
    """Print one line, for a process that waits until the server serves."""
    _settle()
    print(f"listening on {addresses.listen} (ops {addresses.ops_listen})", flush=True)


def _settle() -> None:
    """Spare the collector what is loaded by now, as it stays; and let it look at a burst of calls as a whole."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


if __name__ == "__main__":
    sys.exit(main())
