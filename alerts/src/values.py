"""Values of the configuration: a plain value goes in, a checked one comes out.

A value that cannot be used is a ValueError that says what to write.

Durations are seconds, sizes are bytes. `duration` writes seconds as Prometheus reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(d|h|m|s)")
_SIZES = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|)")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def seconds(value: object) -> float:
    """A duration such as 90s, 5m or 1h30m."""
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("write a duration with its unit, such as 90s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def optional_seconds(value: object) -> float | None:
    """A duration, or nothing."""
    return None if value in ("", None) else seconds(value)


def duration(length: float) -> str:
    """Seconds as Prometheus writes them, such as 1h30m."""
    rest = round(length * 1000)
    if rest == 0:
        return "0s"
    text = ""
    for unit, size in (*((name, round(length * 1000)) for name, length in _UNITS.items()), ("ms", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text


def size(value: object) -> int:
    """A size in bytes, such as 512MiB."""
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("write a size such as 512MiB or 1GiB")
    return round(float(match[1]) * _SIZES[match[2]])


def number(least: float, most: float) -> Callable[[object], float]:
    """A reader of numbers from `least` to `most`."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"write a number from {least:g} to {most:g}")
        return float(value)

    return read


def flag(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("write true or false")  # noqa: TRY004 - one error type for every bad value
    return value


def text(value: object) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise ValueError("write a text in quotes")  # noqa: TRY004
    return value


def pattern(value: object) -> str:
    """A regular expression that is not empty."""
    written = text(value)
    try:
        re.compile(written)
    except re.error as error:
        raise ValueError(f"write a regular expression: {error}") from error
    if "`" in written:
        raise ValueError("write a regular expression without backticks")
    if not written:
        raise ValueError("write a regular expression that matches the job of the exporter's targets")
    return written


def label(value: object) -> str:
    """The name of a label."""
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise ValueError("write the name of a label: letters, digits and _, no digit first")
    return value


def optional_label(value: object) -> str:
    """The name of a label, or nothing."""
    return "" if value in ("", None) else label(value)


def labels(value: object) -> tuple[str, ...]:
    """A list of names of labels."""
    if not isinstance(value, list):
        raise ValueError("write a list of names of labels, such as [region, pool]")  # noqa: TRY004
    return tuple(label(one) for one in value)


def runbook(value: object) -> str:
    """A URL with the alert's place in it."""
    written = text(value)
    if written.count("{alert}") != 1 or not re.match(r"https?://", written):
        raise ValueError("write a URL that contains {alert} once, such as https://HOST/runbooks/{alert}.md")
    return written
