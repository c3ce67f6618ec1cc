"""Device ids as the kubelet's device plugins and DRA drivers spell them, made out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class GpuByUuid:
    """A whole GPU by UUID."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GpuByMinor:
    """A whole GPU by device minor (GKE, DRA), which is not the NVML index."""

    minor: int


@dataclass(frozen=True, slots=True)
class MigByUuid:
    """A MIG device by its UUID."""

    mig_uuid: str


@dataclass(frozen=True, slots=True)
class MigByInstance:
    """A MIG device by its parent (UUID in old drivers' ids, minor at GKE) and instance numbers; ci None = any
    of the GI.
    """

    uuid: str | None
    minor: int | None
    gi: int
    ci: int | None


@dataclass(frozen=True, slots=True)
class MigByPlacement:
    """A MIG device of a DRA claim: parent minor, GPU-instance profile id, first memory slice."""

    minor: int
    profile_id: int
    start: int


@dataclass(frozen=True, slots=True)
class Passthrough:
    """A device handed to a virtual machine: there is no NVML device behind it."""

    name: str


@dataclass(frozen=True, slots=True)
class Advisory:
    """An id of a scheme whose kubelet choice is not the device that the container gets (HAMi, Volcano,
    gpushare, KAI).
    """

    scheme: str
    raw: str


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """An id that no matcher knows. It is data: counted, exported, and it makes verdicts undetermined."""

    raw: str


DeviceRef: TypeAlias = (
    GpuByUuid
    | GpuByMinor
    | MigByUuid
    | MigByInstance
    | MigByPlacement
    | Passthrough
    | Advisory
    | Unrecognised
)
