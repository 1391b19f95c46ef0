"""`stepwell server` and `stepwell migrate`: start the server's own program, which the SDK never imports."""

from __future__ import annotations

import importlib.util
import os
import sys

import typer

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def server(context: typer.Context) -> None:
    """Start a server (see `stepwell server --help`)."""
    _replace_by_server("serve", context.args)


def migrate(context: typer.Context) -> None:
    """Bring a database to the newest schema (see `stepwell migrate --help`)."""
    _replace_by_server("migrate", context.args)


def _replace_by_server(command: str, arguments: list[str]) -> None:
    """Become the server's process, so that signals and exit codes are its own."""
    check_installed()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "stepwell_server", command, *arguments])


def check_installed() -> None:
    """End with a line that says what to install, if the server's program is not there."""
    if importlib.util.find_spec("stepwell_server") is None:
        print("stepwell: the server is not installed: pip install 'stepwell[server]'", file=sys.stderr)
        raise typer.Exit(1)
