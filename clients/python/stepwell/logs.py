"""The worker's log: events with fields. A log that cannot be written breaks nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from logging import ERROR, INFO, WARNING

__all__ = ["ERROR", "INFO", "WARNING", "log"]

_LOG = logging.getLogger("stepwell.worker")


def log(
    level: int, event: str, *args: object, about: Mapping[str, object] | None = None, error: BaseException | None = None
) -> None:
    """Log an event, with the fields `about` it. Errors of the application's logging stay here.

    Its record factory may have set a field of the same name, which logging refuses: then they follow the event as text.
    """
    try:
        _LOG.log(level, event, *args, extra=about, exc_info=error, stacklevel=2)
    except Exception:
        fields = "".join(f" {key}={value}" for key, value in (about or {}).items())
        with suppress(Exception):
            _LOG.log(level, f"{event}%s", *args, fields, exc_info=error, stacklevel=2)
