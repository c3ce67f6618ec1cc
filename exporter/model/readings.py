"""Readings: what became of asking a source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Reason(StrEnum):
    """Why a source gave nothing."""

    TIMEOUT = "timeout"  # asked in this cycle, no answer within the time a cycle waits
    BUSY = "busy"  # an earlier call is still in flight
    DENIED = "denied"  # permission
    UNAVAILABLE = "unavailable"  # nobody answers there: no library, no socket, no such path
    PROTOCOL = "protocol"  # an answer that cannot be understood
    BLIND = "blind"  # it can look, but not see what it must (hidepid, foreign pid namespace)
    PAUSED = "paused"  # switched off for now by the operator


class SourceError(Exception):
    """The only error that a source raises. `detail` is one printable line for the log."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Seen(Generic[T_co]):
    """An answer. `complete` is False where the source knows that it saw only part."""

    value: T_co
    at: float
    took: float
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Missed:
    """No answer in this cycle. It never means zero, empty or healthy."""

    reason: Reason
    at: float
    took: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Off:
    """The operator does not want this source; nothing that needs it applies."""


OFF = Off()

Reading: TypeAlias = Seen[T_co] | Missed | Off
