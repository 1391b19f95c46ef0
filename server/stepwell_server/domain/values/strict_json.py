"""Strict JSON, looked at without being built: linear in the text, a part at a time, in little memory.

Expressions reduce a part to its skeleton, in which one mark stands for each string and another for each other scalar. A
small machine follows the skeleton sign by sign and keeps nothing but the brackets that are open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeAlias

PART = 4 * 1024
"""Characters that are looked at at once."""

_HEX = r"[0-9a-fA-F]"
_PAIR = rf"[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
_ESCAPE = rf'\\(?:["\\/bfnrt]|u(?:[0-9a-ceA-CEfF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|{_PAIR}))'
_INSIDE = re.compile(rf'[^"\\\x00-\x1f]*+(?:{_ESCAPE}[^"\\\x00-\x1f]*+)*+')
_STRING = re.compile(rf'"{_INSIDE.pattern}"')
_OTHER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|true|false|null")
_SPACE = re.compile(r"[ \t\n\r]++")
_WHOLE_STRINGS = re.compile(rf'(?:[^"]++|{_STRING.pattern})*+')
_WORD = re.compile(r"[-+.0-9a-zA-Z]*+")
_DIGITS = re.compile(r"([0-9]{2})[0-9]++")
LONGEST_REST = 16
"""Characters of a scalar behind the end of a part, with two of its digits in a row at most."""

_TEXT, _ELSE = "\x01", "\x02"
"""The marks. JSON has neither of them, not even in a string."""


class NotJson(ValueError):
    """The text is no strict JSON."""


class TooDeep(ValueError):
    """The text has more levels of brackets than it may have."""


_State: TypeAlias = dict[str, Any]
"""Signs that may come next, each with the state after it. "after" is the state after a value, where one is due."""

_NOTHING: _State = {}
_AFTER_ITEM: _State = {"]": _NOTHING}
_AFTER_VALUE: _State = {"}": _NOTHING}
_COLON: _State = {}
_KEY: _State = {_TEXT: _COLON}
_FIRST_KEY: _State = {_TEXT: _COLON, "}": _NOTHING}
_FIRST_ITEM: _State = {"]": _NOTHING}


def _value(state: _State, after: _State) -> _State:
    """Make a value due in a state."""
    return state | {_TEXT: after, _ELSE: after, "[": _FIRST_ITEM, "{": _FIRST_KEY, "after": after}


_FIRST_ITEM.update(_value({}, _AFTER_ITEM))
_AFTER_ITEM[","] = _value({}, _AFTER_ITEM)
_AFTER_VALUE[","] = _KEY
_COLON[":"] = _value({}, _AFTER_VALUE)


def scan(text: str, deepest: int) -> Iterator[int]:
    """Refuse what is not one JSON value, or has more levels of brackets. Yields how many characters were looked at."""
    if len(text) <= PART and text.count("[") + text.count("{") <= deepest and "\\u" not in text:
        yield _parse(text)  # quicker, where that costs little whatever it is
        return
    if _TEXT in text or _ELSE in text:
        raise NotJson
    state, afterwards = _value({}, _NOTHING), list[_State]()
    for part, amount in _parts(text):
        for sign in _SPACE.sub("", _OTHER.sub(_ELSE, _STRING.sub(_TEXT, part))):
            if sign not in state:
                raise NotJson
            if sign in "[{":
                if len(afterwards) >= deepest:
                    raise TooDeep
                afterwards.append(state["after"])
            state = afterwards.pop() if sign in "]}" else state[sign]
        yield amount
    if state is not _NOTHING:
        raise NotJson


def _refuse(constant: str) -> NoReturn:
    raise NotJson


def _unread(number: str) -> None:
    """A number is only looked at, so that its length does not matter."""


_PARSER: Any = json.JSONDecoder(parse_constant=_refuse, parse_int=_unread, parse_float=_unread)


def _parse(text: str) -> int:
    try:
        _PARSER.decode(text)
    except ValueError:
        raise NotJson from None
    return len(text)


def _parts(text: str) -> Iterator[tuple[str, int]]:
    """The text in parts that cut no scalar in two, each with its length. A long string or number has empty ones."""
    end = 0
    while end < len(text):
        begin, end = end, _end(_WHOLE_STRINGS, text, end)
        if end > begin:
            part, amount, rest = text[begin:end], end - begin, ""
            while (more := _end(_WORD, text, end)) > end:
                yield "", amount
                rest = _DIGITS.sub(r"\1", rest + text[end:more])  # as good or bad a number as with all its digits
                if len(rest) > LONGEST_REST:
                    raise NotJson
                end, amount = more, more - end
            yield part + rest, amount
            continue
        end += 1
        while not text.startswith('"', end):
            begin, end = end, _end(_INSIDE, text, end)
            if end == begin:
                raise NotJson
            yield "", end - begin
        end += 1
        yield '""', 2


def _end(pattern: re.Pattern[str], text: str, begin: int) -> int:
    """Where a match ends that begins here and has no more characters than a part."""
    found = pattern.match(text, begin, begin + PART)
    return begin if found is None else found.end()
