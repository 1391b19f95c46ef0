"""MODULE:APP: finding the App that a worker is to host."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import typer

from stepwell.apps import App

AppName = Annotated[
    str, typer.Argument(metavar="MODULE[:APP]", help="The module, found from this folder, and its App (default: app).")
]


def load_app(name: str) -> App:
    """Import the module from the current folder and return its App. A usage error if there is none."""
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise  # the module is there, and misses one of its own
        raise typer.BadParameter(f"there is no module {module_name} in {os.getcwd()}") from None
    found = getattr(module, attribute or "app", None)
    if not isinstance(found, App):
        apps = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"it has {', '.join(apps)}" if apps else "write app = App(workflows=[...])"
        raise typer.BadParameter(f"the module {module_name} has no App called {attribute or 'app'}: {hint}")
    return found
