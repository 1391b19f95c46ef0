"""Definitions: what programs declare of a handler, and which of several is in force."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Definition:
    """The declaration of a handler, as canonical JSON: equal definitions have equal texts and hashes."""

    text: str
    hash: str
    """SHA-256 of the text, in hexadecimal digits."""

    @classmethod
    def of(cls, declared: Mapping[str, Any], defaults: Mapping[str, Any]) -> Definition:
        """The definition with these settings, and the defaults for what was not declared."""
        text = json.dumps({**defaults, **declared}, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return cls(text, hashlib.sha256(text.encode()).hexdigest())

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return dict(json.loads(self.text))


@dataclass(frozen=True, slots=True)
class Declaration:
    """When a definition was declared. The numbers are of one sequence, as a clock can step back."""

    hash: str
    first_seen: int
    put: int | None = None
    """When it was last put. None: only workers have declared it."""

    @property
    def place(self) -> int:
        """Where it stands among the declarations of its handler."""
        return max(self.first_seen, self.put or 0)


def in_force(declared: Iterable[Declaration], hosted: Collection[str], current: str | None) -> str | None:
    """Choose the definition in force: of those that living workers host, and the last put, the newest.

    Without any of them, what was in force stays.
    """
    known = list(declared)
    last_put = max((one for one in known if one.put is not None), key=lambda one: one.put or 0, default=None)
    counting = [one for one in known if one.hash in hosted or one is last_put]
    newest = max(counting, key=lambda one: one.place, default=None)
    return current if newest is None else newest.hash
