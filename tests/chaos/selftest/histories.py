"""The recorded histories: one JSON line per fact, compressed, and nothing of the machine they were recorded on."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections import defaultdict
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from tests.chaos.checker.view import View
from tests.chaos.facts.records import History, from_line, to_line

FOLDER = Path(__file__).with_name("histories")

_DRAWN = re.compile(r"\b(?=\d*[a-f])[0-9a-f]{16,64}\b")
"""Ids and hashes. Short ones in their place say as much, and can be compressed."""
_MACHINE = re.compile(rf"(?<![\w*-])/[\w.-]+/|\d+\.\d+\.\d+\.\d+|localhost|\b{re.escape(socket.gethostname())}\b")
"""Paths, addresses and the name of this machine, as stack traces have them."""


@cache
def recorded(name: str) -> History:
    """The history of a recording."""
    lines = gzip.decompress(_path(name).read_bytes()).decode().splitlines()
    return History(tuple(map(from_line, lines)))


@cache
def view_of(name: str) -> View:
    """The same, arranged for questions."""
    return View(recorded(name))


def store(name: str, history: History) -> int:
    """Keep a history as that of a recording. Returns how many bytes it takes."""
    facts = (_scrubbed(json.loads(to_line(fact))) for fact in history.facts)
    text = _renamed("".join(f"{json.dumps(fact, separators=(',', ':'))}\n" for fact in facts))
    FOLDER.mkdir(exist_ok=True)
    _path(name).write_bytes(gzip.compress(text.encode(), mtime=0))
    return _path(name).stat().st_size


def _scrubbed(value: Any) -> Any:
    """A fact without any text that tells of the machine."""
    match value:
        case dict():
            return {name: _scrubbed(one) for name, one in value.items()}
        case list():
            return [_scrubbed(one) for one in value]
        case str() if _MACHINE.search(value):
            return ""
    return value


def _renamed(text: str) -> str:
    """The text with a number in place of every id that was drawn, always the same for the same."""
    numbers = count(1)
    names: dict[str, str] = defaultdict(lambda: f"id{next(numbers)}")
    return _DRAWN.sub(lambda drawn: names[drawn[0]], text)


def _path(name: str) -> Path:
    return FOLDER / f"{name}.jsonl.gz"
