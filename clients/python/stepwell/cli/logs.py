"""Logs of a worker that runs in a terminal: one event a line, with its fields behind it."""

from __future__ import annotations

import logging

from stepwell.cli.printing import escaped

_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldsFormatter(logging.Formatter):
    """Shows the fields that came with an event (`extra`), which logging leaves out by itself."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """The line, without a traceback."""
        fields = (f" {key}={value}" for key, value in vars(record).items() if key not in _OF_EVERY_RECORD)
        line = super().formatMessage(record) + "".join(fields)
        return escaped(line) if record.name.startswith("stepwell.") else line  # servers had a say in it


def log_to_terminal() -> None:
    """Show what the worker and the user's own loggers have to say, on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(FieldsFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
