"""Stored replies: a call whose request was answered before is answered again, and not decided.

The rows that a request made may be gone when it is repeated. So its reply is stored by itself, in the same transaction,
for a day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell_server.domain.values.asked import RequestKey, reused
from stepwell_server.domain.values.errors import StepwellError
from stepwell_server.engine.spine.books import HotCall, Later, Undecided
from stepwell_server.storage.database.database import LostRace, Tx
from stepwell_server.storage.spine import requests


def asked_by(calls: Sequence[HotCall]) -> dict[int, RequestKey]:
    """The requests of these calls, by their places."""
    return {place: key for place, call in enumerate(calls) if (key := call.request) is not None}


def recall(tx: Tx, calls: Sequence[HotCall], asked: Mapping[int, RequestKey]) -> dict[int, Any]:
    """Answer the calls whose requests are not to be decided, by their places in the group, now that all is locked.

    Of two calls with one request the second waits for the next group, which finds the reply to the first.
    """
    known = requests.known(tx, set(asked.values()))
    answers, decided = dict[int, Any](), set[RequestKey]()
    for place, key in asked.items():
        if key in known:
            body_hash, reply = known[key]
            answers[place] = calls[place].load(reply) if body_hash == key.body_hash else reused(key.request_id)
        elif key in decided:
            answers[place] = Undecided()
        decided.add(key)
    return answers


def remember(tx: Tx, calls: Sequence[HotCall], answers: Sequence[Any], decided: Mapping[int, RequestKey]) -> None:
    """Store the replies to what was accepted. Raises `LostRace` if another transaction has answered one by now."""
    fresh = dict[RequestKey, Any]()
    for place, key in decided.items():
        answer = settled(answers[place])
        reply = None if isinstance(answer, Undecided | StepwellError) else calls[place].dump(answer)
        if reply is not None:
            fresh[key] = reply
    lost = requests.store(tx, fresh) if fresh else ()
    if lost:
        raise LostRace(lost)


def settled(answer: Any) -> Any:
    """The answer, now that the group is written."""
    return answer.answer() if isinstance(answer, Later) else answer
