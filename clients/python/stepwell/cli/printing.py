"""How the command prints: tables and lines for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from stepwell.v1.common_pb2 import Failure, Payload

Cell: TypeAlias = str | Text

_WIDE = 1000
_LONGEST_TEXT = 160


def print_json(message: Message, *, one_line: bool = False) -> None:
    """Print a message as JSON, in the field names of the proto files. A payload stands there as the JSON that it is."""
    plain = _unfolded(message, _as_dict(message))
    print(json.dumps(plain, indent=None if one_line else 2), flush=one_line)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "") -> None:
    """Print rows, or that there are none, in the style of every list; cells are plain text, whatever they hold."""
    if title:  # rich would wrap it at the width of the table
        print_line(Text.assemble(to_text(title), style="italic"))
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for column in columns:
        table.add_column(column)
    for row in list(rows) or [["none"]]:
        table.add_row(*map(to_text, row))
    console = Console()
    console.width = _WIDE  # nothing is cut off: a pipe has no edge, and a terminal wraps by itself
    for line in console.render_lines(table):
        console.print(Segments([*_without_padding(line), Segment.line()]), end="")


def print_line(*parts: Cell) -> None:
    """Print one line, at once; like cells, its parts are plain text."""
    _print(Console(), parts)


def print_note(*parts: Cell) -> None:
    """The same about the command itself, on standard error, where it does not mix with what was asked for."""
    _print(Console(stderr=True), ("stepwell: ", *parts))


def clear() -> None:
    """Empty the terminal, if it is one."""
    Console().clear()


def to_text(cell: Cell) -> Text:
    """Make text safe to print: control characters become visible."""
    return cell if isinstance(cell, Text) else Text(escaped(cell))


def escaped(text: str) -> str:
    """The text on one line, with escapes for what moves the cursor, turns the direction around or cannot be seen."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def instant(at: datetime | None) -> str:
    """An instant in UTC, to the second; nothing if there is none."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def span(start: datetime | None, end: datetime | None) -> str:
    """How long it took, if it has an end."""
    return "" if start is None or end is None else duration(end - start)


def duration(length: timedelta) -> str:
    """A duration in its two largest units."""
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if not hours:
        return f"{minutes} min {int(seconds) % 60} s"
    return f"{days} d {hours % 24} h" if days else f"{hours} h {minutes % 60} min"


def payload(data: Payload) -> str:
    """A payload as one short line."""
    return shortened(data.json) if data.WhichOneof("body") != "binary" else f"{len(data.binary):,} bytes"


def indented(data: Payload) -> Text:
    """A payload over as many lines as it takes."""
    try:
        lines = json.dumps(json.loads(data.json), indent=2, ensure_ascii=False).split("\n")
    except ValueError:
        lines = [payload(data)]
    return Text("\n").join(map(to_text, lines))


def failure(told: Failure) -> str:
    """The failure, as one short line."""
    return shortened(f"{told.name}: {told.message}")


def shortened(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 1]}…"


def _print(console: Console, parts: Sequence[Cell]) -> None:
    console.print(Text.assemble(*map(to_text, parts)), soft_wrap=True)
    console.file.flush()


def _without_padding(line: list[Segment]) -> list[Segment]:
    """The line without spaces at its end, which a narrow terminal would show as a line of its own."""
    while line and not line[-1].text.strip():
        line.pop()
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []


def _as_dict(message: Message) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _unfolded(message: Message, plain: Any) -> Any:
    """`plain` is the message as JSON; the payloads in it are replaced by what they hold."""
    if isinstance(message, Payload):
        return _value(message) if message.WhichOneof("body") != "binary" else plain
    if not isinstance(plain, dict):
        return plain
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            pairs = zip(value, plain[field.name], strict=True)
            plain[field.name] = [_unfolded(item, as_plain) for item, as_plain in pairs]
        else:
            plain[field.name] = _unfolded(value, plain[field.name])
    return plain


def _value(data: Payload) -> Any:
    try:
        return json.loads(data.json) if data.HasField("json") else None
    except ValueError:  # a number with more digits than Python reads
        return data.json
