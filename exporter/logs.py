"""Logging to standard error: one line per event, as text or as JSON, with nothing in it that a terminal would
act on.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from exporter.text import printable

LINE_LIMIT = 2_000


def configure(level: str, *, as_json: bool) -> None:
    """Set the root logger up. Called once, before any source is made."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line = f"{when} {record.levelname.lower()} {printable(record.getMessage(), LINE_LIMIT)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "message": printable(record.getMessage(), LINE_LIMIT),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
