"""Every command, and how their errors end: one readable line and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from stepwell.cli import (
    dev,
    dispatchers,
    hooks,
    info,
    listings,
    namespaces,
    options,
    printing,
    server,
    top,
    wakes,
    workers,
    workflows,
)
from stepwell.errors import CallFailed
from stepwell.version import __version__

app = typer.Typer(
    name="stepwell",
    help="Durable workflows, hooks and jobs over one small server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("server", context_settings=server.PASS_ON, add_help_option=False)(server.server)
app.command("migrate", context_settings=server.PASS_ON, add_help_option=False)(server.migrate)
app.command("dev")(dev.dev)
app.command("worker")(workers.worker)
app.command("workers")(listings.workers)
app.command("dispatcher")(dispatchers.dispatcher)
app.command("info")(info.info)
app.command("top")(top.top)
app.add_typer(workflows.app, name="workflow")
app.add_typer(wakes.app, name="wake")
app.add_typer(hooks.app, name="hook")
app.add_typer(namespaces.app, name="namespace")


@app.command()
def version() -> None:
    """Print the version of this command."""
    print(__version__)


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version of this command.")
    ] = False,
) -> None:
    if context.invoked_subcommand not in ("server", "migrate"):  # which say so themselves
        for warning in options.misspelt_variables():
            printing.print_note(warning)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, or these arguments, and return the exit code."""
    try:
        app(arguments)
    except (CallFailed, OSError) as error:
        printing.print_note(str(error))
        return 1
    return 0
