"""Foreign text is tamed once, and stays tame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.text import COMM_LIMIT, LABEL_LIMIT, printable


@given(st.binary() | st.text(), st.integers(0, 200))
def test_anything_becomes_one_short_printable_line(raw: bytes | str, limit: int) -> None:
    """In a terminal, in a log and in a label."""
    line = printable(raw, limit)
    assert line.isprintable()
    assert len(line) <= limit
    assert printable(line, limit) == line
    line.encode()


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"python3", "python3"),
        (b"caf\xc3\xa9 \xe2\x82\xac", "café €"),
        (b"\xff\xfea", "\ufffd\ufffda"),
        (b"a\nb\rc\td\x00", "a?b?c?d?"),
        (b"\x1b[31mred\x1b[0m", "?[31mred?[0m"),
        ("\u202eevil\u2028line", "?evil?line"),
        ("\ud800", "?"),
        ('"quoted" \\ {x}', '"quoted" \\ {x}'),
        ("", ""),
    ],
)
def test_what_is_harmless_stays_as_it_is(raw: bytes | str, line: str) -> None:
    """Names in any script; only what acts on a reader is replaced."""
    assert printable(raw) == line


def test_long_text_is_cut() -> None:
    """By characters, so that no half of one is left."""
    assert printable("x" * 1000) == "x" * LABEL_LIMIT
    assert printable("é".encode() * 1000, COMM_LIMIT) == "é" * COMM_LIMIT
