"""The price of a message is bounded: every field that can repeat has a limit, and nothing is done beyond it."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from stepwell.v1 import workflows_pb2
from stepwell_server.api import bounds, parsing, wire
from stepwell_server.api.parsing import Parser
from stepwell_server.api.validate import Validator
from stepwell_server.domain.errors import InvalidRequest
from stepwell_server.domain.limits import Limits
from tests.support import raw
from tests.support.requests import METHODS, Path, message, name_of, repeated

LIMITS = Limits()
PATHS = [(method.input_type, path) for method in METHODS for path in repeated(method.input_type)]
named = pytest.mark.parametrize(("kind", "path"), PATHS, ids=[name_of(kind, path) for kind, path in PATHS])


def test_every_field_that_can_repeat_has_a_limit() -> None:
    names = {path[-1].full_name.removeprefix("stepwell.v1.") for _, path in PATHS}

    assert names == set(bounds.MOST)


@named
def test_elements_are_counted_before_one_is_looked_at(
    kind: Descriptor, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = bounds.most(path[-1], LIMITS)
    if any(f"stepwell.v1.{field.containing_type.name}.{field.name}" in BATCH_ITEMS for field in path[:-1]):
        kind, path = path[-1].containing_type, path[-1:]  # items are checked each by itself
    parsed: Any = GetMessageClass(kind).FromString(message(path, most + 1))
    validator = Validator(LIMITS)
    looked_at: list[str] = []
    check = validator.check

    def counting(value: Any, path: str = "") -> None:
        looked_at.append(path)
        check(value, path)

    monkeypatch.setattr(validator, "check", counting)
    with pytest.raises(InvalidRequest) as refused:
        validator.check(parsed)

    where = refused.value.metadata.pop("field")
    assert where.endswith(path[-1].name)
    assert refused.value.metadata == {"size": str(most + 1), "limit": str(most)}
    assert len(looked_at) <= len(path)


BATCH_ITEMS = {
    f"stepwell.v1.{name}.items" for name in ("CreateInstancesRequest", "SendEventsRequest", "TriggerHooksRequest")
}


@named
async def test_a_large_message_is_refused_before_it_is_parsed(
    kind: Descriptor, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = message(path, 40_000)
    values = 0
    read = wire._value

    def counting(*at: Any) -> tuple[int, int]:
        nonlocal values
        values += 1
        return read(*at)

    class Unparsed:
        DESCRIPTOR = kind

        def parse(self, raw: bytes) -> NoReturn:
            raise AssertionError("it was parsed")

    monkeypatch.setattr(wire, "_value", counting)
    monkeypatch.setattr(wire, "MOST_FIELDS", 5000)
    with pytest.raises(InvalidRequest) as refused:
        await Parser(LIMITS).parse(Unparsed().parse, body)

    assert len(body) > parsing.COUNTED_BYTES
    assert refused.value.metadata["field"] == path[0].name
    assert values <= min(5000, 2 * bounds.most(path[0], LIMITS) if len(path) == 1 else 5000) + 1


async def test_numbers_that_come_packed_are_counted_as_well() -> None:
    request = workflows_pb2.ListInstancesRequest(statuses=[1] * 100_000)  # type: ignore[list-item]

    with pytest.raises(InvalidRequest) as refused:
        await Parser(LIMITS).parse(workflows_pb2.ListInstancesRequest.FromString, request.SerializeToString())

    assert refused.value.metadata["field"] == "statuses"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(raw.string_field(999, b"") * 260_000, id="unknown fields"),
        pytest.param(raw.varint_field(8, 1) * 260_000, id="one field again and again"),
        pytest.param(raw.string_field(1, b"\x00" * 100_000)[:-1], id="cut short"),
        pytest.param(b"\xff" * 100_000, id="no number ends"),
        pytest.param(b"\x0b\x0c" * 50_000, id="groups"),
    ],
)
def test_bytes_that_are_no_honest_message_are_refused_before_they_are_parsed(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        for _ in wire.count(body, workflows_pb2.ListInstancesRequest.DESCRIPTOR, LIMITS):
            pass


async def test_a_large_message_that_keeps_the_limits_is_parsed() -> None:
    labels = {str(number): "x" for number in range(32)}
    items = [workflows_pb2.CreateInstancesItem(workflow="order", labels=labels) for _ in range(100)]
    for item in items:
        item.params.json = '"' + "x" * 30_000 + '"'
    request = workflows_pb2.CreateInstancesRequest(items=items)

    parsed = await Parser(LIMITS).parse(workflows_pb2.CreateInstancesRequest.FromString, request.SerializeToString())

    assert parsed == request
