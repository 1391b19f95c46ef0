"""What the contract says of refusals: read from the comments of errors.proto, whose text is the truth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ERRORS = Path(__file__).parents[3] / "proto/stepwell/v1/errors.proto"

_VALUE = re.compile(r"((?:^ +//.*\n)+) +ERROR_REASON_(\w+) = \d+;", re.MULTILINE)
_ALWAYS = re.compile(r"Metadata: ([^.]*)")
_SOMETIMES = re.compile(r"Metadata where [^:]*: ([^.]*)")
_KEY = re.compile(r'"(\w+)"')


@dataclass(frozen=True)
class Documented:
    """What the comment of a reason says of its metadata."""

    always: frozenset[str]
    sometimes: frozenset[str]

    def describes(self, given: set[str]) -> bool:
        """Whether these are the keys of a refusal of that reason."""
        return self.always <= given <= self.always | self.sometimes


def documented() -> dict[str, Documented]:
    """All reasons, by their names without the prefix."""
    return {name: _read(comment) for comment, name in _VALUE.findall(ERRORS.read_text())}


def _read(comment: str) -> Documented:
    text = " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
    return Documented(_keys(_ALWAYS, text), _keys(_SOMETIMES, text))


def _keys(clause: re.Pattern[str], text: str) -> frozenset[str]:
    return frozenset(key for found in clause.findall(text) for key in _KEY.findall(found))
