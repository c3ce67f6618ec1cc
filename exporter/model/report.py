"""The numbers that judge, and the outcome of one cycle."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.model.attribution import Attribution
from exporter.model.findings import NOTHING_FOUND, Diagnosis
from exporter.model.history import History
from exporter.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that the operator may set, and those that the design fixes. Seconds and counts."""

    interval: float = 15.0
    kubelet_grace: float = 60.0
    kubelet_restart_grace: float = 180.0
    baseline_limit: int = 256 * 2**20
    remember: int = 8192  # bound of each table of the history
    # Unattributed memory counts above the larger of bytes and share of the total; on MIG of the instance.
    orphaned_bytes: int = 512 * 2**20
    orphaned_share: float = 0.02
    orphaned_mig_bytes: int = 256 * 2**20
    orphaned_mig_share: float = 0.05
    expected_gpus: int | None = None  # how many the node should have, where the bus does not say
    ages: tuple[tuple[str, float], ...] = ()  # "<finding>.<kind>" → seconds, where the operator set one
    stuck_reads: int = 5  # scans without progress after which a process in state D is called stuck
    process_series: bool = True
    process_series_limit: int = 512
    telemetry: bool = True
    telemetry_extended: bool = False
    version: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class WebReload:
    """What became of the TLS files of the web configuration when they were last replaced."""

    succeeded: bool
    at: float  # when those in use were taken


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one cycle, and all that the next one needs of it."""

    policy: Policy
    snapshot: Snapshot
    attribution: Attribution
    history: History
    diagnosis: Diagnosis = NOTHING_FOUND
    took: float | None = None  # seconds that gathering and judging took, once that is known
    web_reload: WebReload | None = None  # where the metrics are served on TLS
