"""The log lines of a library: standard `logging` under `lakewarden.*`, an event name and its fields.

    2026-11-22 01:20:56 WARNING lakewarden.gate gate.heartbeat-failed table=s3://lake/flights writer=arrivals error=…

The steps of a transaction are sentences instead, unless the logger's level is DEBUG:

    2026-11-22 01:20:56 INFO lakewarden.gate gate.completed arrivals batch 7: committed to lake/flights, version 12

A handler that wants the fields one by one, such as a JSON formatter, finds them on the record: `record.event` is the event
name, `record.fields` a dictionary. `lakewarden.spark_jobs` attaches a `NullHandler`, so nothing is printed until the program
configures logging.
"""

import json
import logging
from typing import Any

_QUOTED = frozenset(' "=\n\r\t')
"""A text with one of these characters is written as a JSON string."""


class EventLogger:
    """Writes events with fields to one standard logger."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, fields, exc_info=True)

    def step(self, level: int, event: str, sentence: str, fields: dict[str, Any]) -> None:
        """Log a step of a transaction: as a sentence, and with its fields at DEBUG."""
        self._log(level, event, fields, sentence=sentence)

    def _log(
        self,
        level: int,
        event: str,
        fields: dict[str, Any],
        *,
        exc_info: bool = False,
        sentence: str | None = None,
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"event": event, "fields": fields}
            if sentence is None or self._logger.isEnabledFor(logging.DEBUG):
                line = _line(event, fields)
            else:
                line = f"{event} {' '.join(sentence.split())}"
            self._logger.log(level, line, exc_info=exc_info, extra=extra, stacklevel=3)


def _line(event: str, fields: dict[str, Any]) -> str:
    return " ".join((event, *(f"{name}={_text(value)}" for name, value in fields.items())))


def _text(value: Any) -> str:
    if isinstance(value, str) and value and _QUOTED.isdisjoint(value):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
