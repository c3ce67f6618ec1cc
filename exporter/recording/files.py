"""Recordings as files: a document in, gzipped JSON out, and back. Else a refusal in one line."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.codec import CodecError, decode
from exporter.model import Snapshot

FORMAT = 1
LARGEST = 256 * 2**20  # bytes, unpacked
_RAW = ("kubelet", "pods", "node", "pod_names", "proc")


class RecordingError(Exception):
    """A recording that cannot be read or written. The text is one line: file, problem and remedy."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: " + " ".join(problem.split()))


@dataclass(frozen=True, slots=True)
class Look:
    """One look: the Snapshot that it gave, and what it was parsed from."""

    snapshot: Snapshot
    raw: dict[str, Any]


def save(path: Path, document: dict[str, Any]) -> None:
    """Write a recording in one piece. Raises RecordingError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # No time stamp and no name in the header: what is the same is the same file.
        with scratch.open("xb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise RecordingError(
            path, f"cannot be written ({error.strerror}); give --output=FILE.json.gz"
        ) from error


def load(path: Path) -> tuple[Look, ...]:
    """The looks of a recording. Raises RecordingError where it is damaged or of another version."""
    document = _document(path)
    if not isinstance(document, dict) or not isinstance(document.get("looks"), list):
        raise RecordingError(path, "is no recording; give a file that `record` has written")
    if document.get("format") != FORMAT:
        found = json.dumps(document.get("format"))[:20]
        raise RecordingError(
            path, f"has format {found}, and this version reads format {FORMAT}; record it anew"
        )
    if not document["looks"]:
        raise RecordingError(path, "has no look in it; record it anew")
    try:
        return tuple(_look(plain, f"looks[{i}]") for i, plain in enumerate(document["looks"]))
    except CodecError as error:
        raise RecordingError(path, f"is damaged ({error}); record it anew") from error


def _look(plain: Any, where: str) -> Look:
    if not isinstance(plain, dict) or plain.keys() != {"snapshot", "raw"}:
        raise CodecError(where, "no look")
    raw = plain["raw"]
    if not isinstance(raw, dict) or set(raw) != set(_RAW):
        raise CodecError(f"{where}.raw", f"not of {', '.join(_RAW)}")
    return Look(decode(Snapshot, plain["snapshot"], f"{where}.snapshot"), raw)


def _document(path: Path) -> Any:
    try:
        with gzip.open(path) as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise RecordingError(path, f"unpacks to more than {LARGEST // 2**20} MiB; it is no recording")
        return json.loads(data)
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise RecordingError(path, f"is damaged ({error}); give it whole") from error
    except OSError as error:
        raise RecordingError(path, f"cannot be read ({error.strerror}); give a recording") from error
