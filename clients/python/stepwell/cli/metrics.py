"""Measurements of a server, read from its ops listener in the text format of Prometheus."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from time import monotonic
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]

PREFIX = "stepwell_"
PATIENCE = 4.0
"""Seconds for which a listener may keep its answer."""
_TYPE = re.compile(r"# TYPE (\S+) (\S+)")
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class Series:
    """A metric under one set of labels: as it stands or, of two looks, what came between them."""

    name: str
    labels: Labels
    type: str
    value: float = 0.0
    """Of a histogram, how many values it has."""
    sum: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)
    """Of a histogram, how many values were up to each bound."""

    def since(self, before: Series | None) -> Series:
        """The difference to an earlier look. A gauge is as it stands, and so are the counts of a new server."""
        if before is None or self.type == "gauge" or self.value < before.value:
            return self
        came = {bound: count - before.buckets.get(bound, 0.0) for bound, count in self.buckets.items()}
        return replace(self, value=self.value - before.value, sum=self.sum - before.sum, buckets=came)

    def mean(self) -> float | None:
        """The mean of a histogram. None: it has no values."""
        return self.sum / self.value if self.buckets and self.value else None

    def quantile(self, share: float) -> float | None:
        """About the value that this share of a histogram's values does not exceed. None: it has no values."""
        if not self.buckets or not self.value:
            return None
        rank, lower, below = share * self.value, 0.0, 0.0
        for bound, count in sorted(self.buckets.items()):
            if count >= rank and count > below:
                return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
            lower, below = bound, count
        return lower


@dataclass(frozen=True, slots=True)
class Look:
    """The measurements of a server at one time: everything since it began."""

    series: Mapping[tuple[str, Labels], Series]
    at: float = field(default_factory=monotonic)

    def since(self, before: Look | None) -> list[Series]:
        """The difference to an earlier look; everything, if there is none."""
        earlier = {} if before is None else before.series
        return [series.since(earlier.get(key)) for key, series in self.series.items()]


def fetch(address: str) -> Look:
    """Ask the ops listener at this address. ConnectionError if it does not answer, or is none."""
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=PATIENCE)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode(errors="replace")
    except HTTPException:
        text = ""
    except OSError as error:
        raise ConnectionError(f"no ops listener answers at {address}: {error.strerror or error}") from None
    finally:
        connection.close()
    look = read(text)
    if not look.series:
        raise ConnectionError(f"what answers at {address} is not the ops listener of a Stepwell server")
    return look


def read(text: str) -> Look:
    """Our series on a page of metrics, in its order."""
    found: dict[tuple[str, Labels], Series] = {}
    name = type = ""
    for line in text.splitlines():
        if declared := _TYPE.match(line):
            name, type = declared.groups()
        elif name.startswith(PREFIX) and not name.endswith("_created") and (sample := _SAMPLE.fullmatch(line)):
            _add(found, name, type, sample)
    return Look(found)


def _add(found: dict[tuple[str, Labels], Series], name: str, type: str, sample: re.Match[str]) -> None:
    labels, value = dict(_LABEL.findall(sample[2] or "")), float(sample[3])
    bound = labels.pop("le", "")
    key = (name, tuple(labels.items()))
    series = found.setdefault(key, Series(*key, type))
    match sample[1].removeprefix(name):
        case "_bucket":
            series.buckets[float(bound)] = value
        case "_sum":
            series.sum = value
        case _:
            series.value = value
