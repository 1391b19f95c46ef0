"""One workflow's way through three processes, as events on one line: messages, and transactions from end to end."""

from __future__ import annotations

import importlib
import pkgutil
import re
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import message_factory
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message

import stepwell.v1 as contract
from bench.tracing import Kind, Mark

SELDOM = 0.5
"""An event that fewer of the workflows have is not part of the timeline: a heartbeat, for example."""
WRITES = re.compile(r"(?<!FOR )(?<!KEY )(?<!DO )\b(INSERT INTO|UPDATE|DELETE FROM) (\w+)", re.IGNORECASE)
READS = re.compile(r"\bFROM (?!json_)(\w+)", re.IGNORECASE)
CALLS = re.compile(r"^SELECT (\w+)\(", re.IGNORECASE)
FRAME = ("BEGIN", "COMMIT", "ROLLBACK")


class Event(NamedTuple):
    """Something that happened in a process."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Hop:
    """An event of the timeline, over many workflows."""

    event: str
    at_ms: float
    """Median, from the call of create."""
    share: float
    """Of the workflows that have it."""


@dataclass
class Transaction:
    """What one connection does from BEGIN to COMMIT, or a statement by itself."""

    began: float
    is_framed: bool
    statements: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        inside = [text for text in self.statements if not text.startswith(FRAME)]
        shown = dict.fromkeys(write for text in inside for write in writes(text)) or dict.fromkeys(map(read, inside))
        count = len(self.statements)
        return f"{', '.join(shown)} ({count} statement{'s' if count > 1 else ''})"


def hops(marks: dict[str, list[Mark]], spans: Sequence[tuple[float, float]]) -> list[Hop]:
    """The events that most workflows have, in order of their median time."""
    line = sorted(event for role, mine in marks.items() for event in events(role, mine))
    times: dict[str, list[float]] = defaultdict(list)
    for began, ended in spans:
        seen: Counter[str] = Counter()
        for event in line[bisect_left(line, (began, "")) : bisect_left(line, (ended, ""))]:
            seen[event.text] += 1
            nth = f" ({seen[event.text]})" if seen[event.text] > 1 else ""
            times[event.text + nth].append((event.at - began) * 1000)
        times["client has the result"].append((ended - began) * 1000)
    found = [Hop(text, statistics.median(at), len(at) / len(spans)) for text, at in times.items()]
    return sorted((hop for hop in found if hop.share >= SELDOM), key=lambda hop: hop.at_ms)


def events(role: str, marks: Sequence[Mark]) -> Iterator[Event]:
    """The messages and the transactions of a process."""
    for mark in marks:
        if mark.kind in (Kind.READS, Kind.WRITES):
            yield Event(mark.at, f"{role} {mark.kind} {described(mark)}")
    for began, ended, transaction in transactions(marks):
        yield Event(began, f"{role} begins {transaction}")
        yield Event(ended, f"{role} ends {transaction}")


# ---- transactions


def transactions(marks: Sequence[Mark]) -> Iterator[tuple[float, float, Transaction]]:
    """When each began and ended. A database that does not tell when a statement ends has them end with the last one."""
    closing = Kind.IS_ANSWERED if any(mark.kind is Kind.IS_ANSWERED for mark in marks) else Kind.ASKS
    under_way: dict[int, Transaction] = {}
    for mark in marks:
        if not mark.connection:
            continue
        begun = under_way.setdefault(mark.connection, Transaction(mark.at, mark.what.startswith("BEGIN")))
        if mark.kind is Kind.ASKS:
            begun.statements.append(mark.what)
        if mark.kind is closing and (not begun.is_framed or mark.what.startswith(FRAME[1:])):
            yield begun.began, mark.at, under_way.pop(mark.connection)


@cache
def writes(statement: str) -> list[str]:
    """The tables that a statement changes, and how."""
    return [f"{verb.split()[0].upper()} {table}" for verb, table in WRITES.findall(statement)]


@cache
def read(statement: str) -> str:
    """The function that a statement calls, or the table that it reads."""
    found = CALLS.match(statement.lstrip()) or READS.search(statement)
    return f"SELECT {found[1]}" if found else " ".join(statement.split()[:3])


# ---- messages


def described(mark: Mark) -> str:
    """A message's name and what is in it."""
    message = message_class(mark.what).FromString(mark.data)
    parts = Counter(contents(message))
    inside = ", ".join(part if many == 1 else f"{many} {part}" for part, many in parts.items())
    return mark.what.rpartition(".")[2] + (f": {inside}" if inside else "")


def contents(message: Message) -> Iterator[str]:
    """What the repeated parts of a message say: the name of the choice that each makes, or of the field."""
    for listed, value in message.ListFields():
        if listed.is_repeated and listed.message_type is not None and not listed.message_type.GetOptions().map_entry:
            for part in value:
                choices = [part.WhichOneof(oneof.name) for oneof in part.DESCRIPTOR.oneofs]
                yield next((choice for choice in choices if choice), listed.name)


@cache
def message_class(name: str) -> Any:
    """The class of a message of the contract."""
    for module in pkgutil.iter_modules(contract.__path__):
        importlib.import_module(f"{contract.__name__}.{module.name}")
    return message_factory.GetMessageClass(Default().FindMessageTypeByName(name))
