"""Namespaces: what one is, and which changes to it are allowed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

from stepwell_server.domain.values.errors import DurationOutOfRange, InvalidField, InvalidNamespace, UpdateMaskInvalid
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.names import DESCRIPTION_LENGTH, is_name
from stepwell_server.domain.values.times import DAY, MINUTE, Micros

DEFAULT_NAMESPACE = "default"
MOST_PATHS = 20
SHORTEST_RETENTION = MINUTE
LONGEST_RETENTION = 3650 * DAY


@dataclass(frozen=True, slots=True)
class Retention:
    """How long an ended instance is kept, by the status it ended with. None means for ever."""

    complete: Micros | None = None
    errored: Micros | None = None
    terminated: Micros | None = None

    def check(self) -> None:
        """Refuse a time that is shorter than a minute or longer than ten years."""
        for name in _names(self):
            kept = getattr(self, name)
            if kept is not None and not SHORTEST_RETENTION <= kept <= LONGEST_RETENTION:
                raise DurationOutOfRange(
                    f"retention.{name} must be between 1 minute and 3,650 days", field=f"retention.{name}"
                )


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """Limits that a namespace sets for itself, below the server's. 0 means the server's."""

    max_payload_bytes: int = 0
    max_steps_per_run: int = 0
    max_pending_events: int = 0

    @classmethod
    def of_server(cls, server: Limits) -> NamespaceLimits:
        """The limits that hold where a namespace sets none."""
        return cls(server.payload_bytes, server.steps_per_run, server.pending_events)

    def check(self, server: Limits) -> None:
        """Refuse a limit that is negative or above the server's."""
        highest = {
            "max_payload_bytes": server.payload_bytes,
            "max_steps_per_run": server.steps_per_run,
            "max_pending_events": server.pending_events,
        }
        for name, most in highest.items():
            if not 0 <= getattr(self, name) <= most:
                raise InvalidField(f"limits.{name} must be between 0 and {most}", field=f"limits.{name}", limit=most)


@dataclass(frozen=True, slots=True)
class NamespaceSpec:
    """The settings of a namespace that a caller decides."""

    name: str
    description: str = ""
    retention: Retention = field(default_factory=Retention)
    limits: NamespaceLimits = field(default_factory=NamespaceLimits)

    def check(self, server: Limits) -> None:
        """Refuse a name, text or number that breaks its rule."""
        check_name(self.name)
        if len(self.description) > DESCRIPTION_LENGTH:
            raise InvalidField(f"description is longer than {DESCRIPTION_LENGTH} characters", field="description")
        self.retention.check()
        self.limits.check(server)

    def updated(self, change: NamespaceSpec, mask: Iterable[str]) -> NamespaceSpec:
        """This one with the masked fields of `change`. A mask that names nothing, or something unknown, is refused."""
        paths = list(dict.fromkeys(mask))
        if not 0 < len(paths) <= MOST_PATHS:
            raise UpdateMaskInvalid(f"update_mask must name 1 to {MOST_PATHS} fields", field="update_mask", path="")
        result = self
        for path in paths:
            result = _take(result, change, path)
        return result


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace as it is stored."""

    spec: NamespaceSpec
    created_at: Micros
    updated_at: Micros


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a namespace."""
    if not is_name(name):
        raise InvalidNamespace(
            'a namespace is named by 1 to 64 letters, digits, "-" or "_", not beginning with "-"',
            field="name",
            namespace=name,
        )


def _take(current: NamespaceSpec, change: NamespaceSpec, path: str) -> NamespaceSpec:
    part, _, leaf = path.partition(".")
    if path in ("description", "retention", "limits"):
        return replace(current, **{path: getattr(change, path)})
    if part in ("retention", "limits") and leaf in _names(getattr(change, part)):
        inner = replace(getattr(current, part), **{leaf: getattr(getattr(change, part), leaf)})
        return replace(current, **{part: inner})
    raise UpdateMaskInvalid("update_mask names a field that cannot be changed", field="update_mask", path=path)


def _names(part: Retention | NamespaceLimits) -> list[str]:
    return [one.name for one in fields(part)]
