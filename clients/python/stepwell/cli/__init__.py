"""The `stepwell` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command. Its libraries are an extra, so that services that only call the API need not carry them."""
    try:
        from stepwell.cli.commands import run
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        print("stepwell: the command needs two more packages: pip install 'stepwell[cli]'", file=sys.stderr)
        sys.exit(1)
    sys.exit(run())
