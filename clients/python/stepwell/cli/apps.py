"""MODULE:APP: finding the App that a worker is to host."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType, TracebackType
from typing import Annotated

import typer

from stepwell.apps import App

AppName = Annotated[
    str, typer.Argument(metavar="MODULE[:APP]", help="The module, found from this folder, and its App (default: app).")
]


def load_app(name: str) -> App:
    """Import the module from the current folder and return its App. A usage error if there is none."""
    module_name, _, attribute = name.partition(":")
    attribute = attribute or "app"
    if not module_name or "/" in module_name or module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").strip("./").replace("/", ".") or "MODULE"
        raise typer.BadParameter(f"name a module of this folder, not a file: {meant}:{attribute}")
    module = _imported(module_name)
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        apps = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"it has {', '.join(apps)}" if apps else "write app = App(workflows=[...])"
        raise typer.BadParameter(f"the module {module_name} has no App called {attribute}: {hint}")
    return found


def _imported(module_name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise typer.BadParameter(f"there is no module {module_name} in {os.getcwd()}") from None
        traceback.print_exception(error.with_traceback(_own_part(error.__traceback__)))
        print(f"stepwell: the module {module_name} cannot be imported", file=sys.stderr)
        raise typer.Exit(1) from None


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without its beginning, which is about this command and the import machinery."""
    machinery = (__file__, importlib.__file__)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((*machinery, "<frozen importlib")):
        trace = trace.tb_next
    return trace
