"""Facts about a user's function from its signature and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, get_type_hints

_DESCRIPTION_CHARACTERS = 1024


def first_line(docstring: str | None) -> str:
    """The description that a docstring begins with."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    return lines[0][:_DESCRIPTION_CHARACTERS] if lines else ""


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types that a signature names; none if some cannot be resolved, such as classes inside of a function."""
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        return {}


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function gives something to await, as far as one can tell without calling it."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is not None:  # of a function or a method; inspect takes long to find the same
        return bool(code.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function, or the object, executes nothing but makes a generator."""
    while isinstance(function, partial):
        function = function.func
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


def concrete(hint: Any) -> Any:
    """The type to build a value into; None if the hint names none."""
    return None if isinstance(hint, TypeVar) or hint is type(None) else hint
