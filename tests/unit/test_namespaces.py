"""The rules of namespaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell_server.domain.namespaces import NamespaceLimits, NamespaceSpec, Retention
from stepwell_server.domain.values.errors import DurationOutOfRange, InvalidField, UpdateMaskInvalid
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.times import DAY, MINUTE

kept = st.none() | st.integers(MINUTE, 3650 * DAY)
specs = st.builds(
    NamespaceSpec,
    name=st.just("billing"),
    description=st.text(max_size=20),
    retention=st.builds(Retention, kept, kept, kept),
    limits=st.builds(NamespaceLimits, st.integers(0, 1024), st.integers(0, 1024), st.integers(0, 1024)),
)
LEAVES = [
    "description",
    "retention.complete",
    "retention.errored",
    "retention.terminated",
    "limits.max_payload_bytes",
    "limits.max_steps_per_run",
    "limits.max_pending_events",
]


def leaf(spec: NamespaceSpec, path: str) -> object:
    value: object = spec
    for part in path.split("."):
        value = getattr(value, part)
    return value


@given(specs, specs, st.sets(st.sampled_from(LEAVES), min_size=1))
def test_an_update_takes_the_masked_leaves_and_keeps_the_others(
    current: NamespaceSpec, change: NamespaceSpec, mask: set[str]
) -> None:
    updated = current.updated(change, mask)

    for path in LEAVES:
        assert leaf(updated, path) == leaf(change if path in mask else current, path)


@given(specs, specs)
def test_masking_everything_gives_the_change(current: NamespaceSpec, change: NamespaceSpec) -> None:
    assert current.updated(change, ["description", "retention", "limits"]) == change


@pytest.mark.parametrize("path", ["name", "", "retention.", ".complete", "limits.name", "description.x"])
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(UpdateMaskInvalid):
        NamespaceSpec("a").updated(NamespaceSpec("a"), [path])


@pytest.mark.parametrize("time", [MINUTE - 1, 3650 * DAY + 1, 0])
def test_retention_outside_its_bounds_is_refused(time: int) -> None:
    with pytest.raises(DurationOutOfRange):
        Retention(terminated=time).check()


def test_a_namespace_cannot_raise_a_limit_above_the_servers() -> None:
    NamespaceLimits(max_payload_bytes=100).check(Limits(payload_bytes=100))

    with pytest.raises(InvalidField) as refused:
        NamespaceLimits(max_payload_bytes=101).check(Limits(payload_bytes=100))

    assert refused.value.metadata == {"field": "limits.max_payload_bytes", "limit": "100"}
