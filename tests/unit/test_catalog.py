import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exporter.catalog import FAMILIES, PREFIX, SUBJECTS, Family
from exporter.exposition import Format, expose
from exporter.model import (
    NOBODY,
    SOURCES,
    AllocatableDevice,
    Attribution,
    DeviceKey,
    FileHolders,
    GpuByUuid,
    GpuFault,
    History,
    InFlight,
    Kubelet,
    Memory,
    Missed,
    NodeKind,
    Off,
    Owner,
    Pci,
    Pods,
    Policy,
    ProcessUsage,
    Reason,
    Report,
    Snapshot,
    SourceRecord,
    Telemetry,
    Unrecognised,
    Use,
    Visibility,
    Workload,
)
from exporter.report import advance
from tests import builders as b
from tests.builders import GIB, NOW

DEVICE = "uuid gpu"
OWNED = f"{DEVICE} namespace pod container"
INSTANCE = f"{DEVICE} gi mig_uuid"
INSTANCE_OWNED = f"{INSTANCE} namespace pod container"
PROCESS = f"{INSTANCE} pid namespace pod container"

# The metric contract of the design, typed out: what users' queries are written against.
CONTRACT = {
    "gpu_info": f"{DEVICE} minor pci_bus_id product mig_mode",
    "driver_info": "driver_version cuda_version nvml_version",
    "exporter_build_info": "version simulated",
    "node_info": "node",
    "gpu_memory_total_bytes": OWNED,
    "gpu_memory_used_bytes": OWNED,
    "gpu_memory_free_bytes": OWNED,
    "gpu_memory_reserved_bytes": OWNED,
    "gpu_memory_attributed_bytes": OWNED,
    "gpu_memory_unattributed_bytes": OWNED,
    "gpu_memory_baseline_bytes": OWNED,
    "gpu_utilization_ratio": OWNED,
    "gpu_memory_activity_ratio": OWNED,
    "gpu_encoder_utilization_ratio": OWNED,
    "gpu_decoder_utilization_ratio": OWNED,
    "gpu_temperature_celsius": OWNED,
    "gpu_temperature_threshold_celsius": f"{OWNED} threshold",
    "gpu_power_watts": OWNED,
    "gpu_power_limit_watts": OWNED,
    "gpu_energy_joules_total": OWNED,
    "gpu_clock_hertz": f"{OWNED} clock",
    "gpu_allocated": INSTANCE,
    "gpu_last_active_timestamp_seconds": INSTANCE,
    "mig_info": f"{INSTANCE_OWNED} ci profile placement",
    "mig_memory_total_bytes": INSTANCE_OWNED,
    "mig_memory_used_bytes": INSTANCE_OWNED,
    "mig_memory_free_bytes": INSTANCE_OWNED,
    "mig_memory_attributed_bytes": INSTANCE_OWNED,
    "mig_memory_unattributed_bytes": INSTANCE_OWNED,
    "allocation_info": f"{INSTANCE_OWNED} resource pod_uid",
    "process_memory_bytes": PROCESS,
    "process_sm_utilization_ratio": PROCESS,
    "process_memory_utilization_ratio": PROCESS,
    "process_encoder_utilization_ratio": PROCESS,
    "process_decoder_utilization_ratio": PROCESS,
    "process_start_time_seconds": PROCESS,
    "process_info": f"{PROCESS} comm state owner visibility pod_uid",
    "process_series_dropped": "",
    "workload_memory_bytes": INSTANCE_OWNED,
    "workload_processes": INSTANCE_OWNED,
    "processes": f"{INSTANCE} owner",
    "device_holders": "device_file owner",
    "source_up": "source",
    "source_paused": "source",
    "source_duration_seconds": "source",
    "source_last_success_timestamp_seconds": "source",
    "source_errors_total": "source reason",
    "node_gpus": "state",
    "cycle_timestamp_seconds": "",
    "cycle_duration_seconds": "",
    "nvml_faults": f"{DEVICE} call error",
    "nvml_call_in_flight_info": f"{DEVICE} call",
    "nvml_call_in_flight_since_timestamp_seconds": f"{DEVICE} call",
    "device_ids_unrecognised": "resource",
    "processes_scanned": "",
    "processes_unreadable": "",
    "processes_truncated": "",
    "history_forgotten_total": "",
}
COUNTERS = {"gpu_energy_joules_total", "source_errors_total", "history_forgotten_total"}

BY_NAME = {family.name: family for family in FAMILIES}
WORKED = Telemetry(
    utilization=0.5,
    memory_activity=0.25,
    encoder=0.0,
    decoder=0.0,
    temperature=61.0,
    thresholds=(("slowdown", 90.0), ("shutdown", 95.0)),
    power=310.5,
    power_limit=700.0,
    energy=12_345.5,
    clocks=(("sm", 1.98e9), ("memory", 2.6e9)),
)
ALL_SAMPLED = ProcessUsage(4000, 0.4, 0.2, 0.0, 0.0)


def rows(report: Report, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """Samples of a family by their labels; a duplicate is an error."""
    family = BY_NAME[name]
    found: dict[frozenset[tuple[str, str]], float] = {}
    for values, number in family.samples(report):
        labels = frozenset(zip(family.labels, values, strict=True))
        assert labels not in found, f"{name}: {sorted(labels)} twice"
        found[labels] = number
    return found


def one(report: Report, name: str, **labels: str) -> float | None:
    """The one sample with these labels, or None where there is none."""
    matching = [number for found, number in rows(report, name).items() if labels.items() <= set(found)]
    assert len(matching) <= 1, f"{name}: {len(matching)} series match {labels}"
    return matching[0] if matching else None


def names(report: Report) -> set[str]:
    """The families that have a sample."""
    return {family.name for family in FAMILIES if rows(report, family.name)}


def with_sources(look: Snapshot, reading: Missed | Off, *sources: str) -> Snapshot:
    """The look with this reading for the named sources, or for all."""
    changes: dict[str, Any] = dict.fromkeys(sources or SOURCES, reading)
    return replace(look, **changes)


def busy() -> Report:
    """A node on which every family of the catalog has something to say."""
    mig = tuple(b.mig_instance(gi, index=1, used=GIB) for gi in (1, 2))
    gpus = (
        b.gpu(0, used=3 * GIB, rows=(b.row(4000),), telemetry=WORKED),
        b.gpu(1, mig_enabled=True, instances=mig, used=2 * GIB),
    )
    call = InFlight("nvmlDeviceGetMemoryInfo_v2", 1, b.gpu_uuid(1), NOW - 3)
    looked = b.snapshot(
        nvml=b.nvml(*gpus, faults=(GpuFault(1, b.gpu_uuid(1), "nvmlDeviceGetPowerUsage", "unknown error"),)),
        kubelet=b.kubelet(b.allocation()),
        pods=(b.pod(gpus=1),),
        in_flight=call,
    )
    attribution = Attribution(
        uses=(b.use(usage=ALL_SAMPLED), b.use(4100, b.key(1, 1, 0))),
        grants=(b.grant(b.key()),),
        devices=(
            b.device_use(owner=b.TRAINER, allocated=True, attributed=GIB, unattributed=2 * GIB, baseline=0),
            b.device_use(b.key(1), attributed=None, unattributed=None, baseline=None),
            b.device_use(b.key(1, 1, 0), attributed=GIB),
            b.device_use(b.key(1, 2, 0)),
        ),
        holders=(FileHolders(b.device_node(minor=0), Owner.POD, 7),),
    )
    history = History(
        indices=((b.gpu_uuid(0), 0), (b.gpu_uuid(1), 1)),
        last_active=((b.gpu_uuid(0), NOW - 60),),
        sources=tuple(SourceRecord(source, last_success=NOW) for source in SOURCES),
        cycles=9,
    )
    return b.report(looked, attribution, history=history)


def all_off() -> Report:
    """A node of which nothing is wanted."""
    return b.report(with_sources(b.snapshot(), Off()))


def test_the_catalog_is_the_contract_of_the_design() -> None:
    assert {name: set(labels.split()) for name, labels in CONTRACT.items()} == {
        family.name: set(family.labels) for family in FAMILIES
    }
    assert {family.name for family in FAMILIES if family.kind == "counter"} == COUNTERS


def test_names_are_given_once_and_labels_are_no_measured_or_secret_things() -> None:
    assert Counter(family.name for family in FAMILIES).most_common(1)[0][1] == 1
    never = {"cmdline", "command", "environment", "user", "container_id", "value", "node", "instance", "job"}
    for family in FAMILIES:
        assert len(set(family.labels)) == len(family.labels)
        assert family.name == "node_info" or not never & set(family.labels)
        assert family.kind == ("counter" if family.name.endswith("_total") else "gauge")
        assert family.full_name == PREFIX + family.name
        assert family.help.endswith(".")
    assert tuple(family for _, group in SUBJECTS for family in group) == FAMILIES


def test_pid_is_a_label_of_process_families_only() -> None:
    assert {family.name for family in FAMILIES if "pid" in family.labels} == {
        name for name in CONTRACT if name.startswith("process_") and name != "process_series_dropped"
    }


def test_a_busy_node_has_every_family() -> None:
    assert names(busy()) == set(CONTRACT)


def test_nothing_but_the_exporter_itself_is_left_when_every_source_is_off() -> None:
    report = all_off()
    own = {"exporter_build_info", "node_info", "cycle_timestamp_seconds", "history_forgotten_total"}
    assert names(report) == own | {"process_series_dropped", "cycle_duration_seconds"}


def test_what_the_exporter_says_of_itself_needs_no_source() -> None:
    marked = {family.name for family in FAMILIES if family.about_exporter}
    assert marked == {
        "exporter_build_info",
        "node_info",
        "cycle_timestamp_seconds",
        "source_last_success_timestamp_seconds",
        "source_errors_total",
        "history_forgotten_total",
    }


# --- GPUs ---


def test_a_gpu_is_described_once() -> None:
    report = b.report(b.snapshot(nvml=b.nvml(b.gpu(0, minor=3))))
    assert rows(report, "gpu_info") == {
        frozenset(
            {
                ("uuid", b.gpu_uuid(0)),
                ("gpu", "0"),
                ("minor", "3"),
                ("pci_bus_id", "0000:01:00.0"),
                ("product", "NVIDIA H100 80GB HBM3"),
                ("mig_mode", "disabled"),
            }
        ): 1
    }


@pytest.mark.parametrize(("mode", "label"), [(True, "enabled"), (False, "disabled"), (None, "")])
def test_mig_mode_is_empty_where_there_is_no_mig(mode: bool | None, label: str) -> None:
    report = b.report(b.snapshot(nvml=b.nvml(b.gpu(mig_enabled=mode))))
    assert one(report, "gpu_info", mig_mode=label) == 1


def test_the_index_sticks_to_the_uuid() -> None:
    looked = b.snapshot(nvml=b.nvml(b.gpu(0, uuid="GPU-b")))
    report = b.report(looked, history=History(indices=(("GPU-a", 0), ("GPU-b", 1))))
    assert one(report, "gpu_memory_used_bytes", uuid="GPU-b", gpu="1") == 0
    fresh = b.report(looked, history=History())
    assert one(fresh, "gpu_memory_used_bytes", uuid="GPU-b", gpu="0") == 0


def test_idle_is_zero() -> None:
    report = b.report()
    for name in (
        "gpu_memory_used_bytes",
        "gpu_memory_attributed_bytes",
        "gpu_memory_unattributed_bytes",
        "gpu_memory_baseline_bytes",
        "gpu_utilization_ratio",
        "gpu_memory_activity_ratio",
        "gpu_allocated",
    ):
        assert list(rows(report, name).values()) == [0], name


def test_a_measured_value_is_exported_as_it_is() -> None:
    report = busy()
    uuid = b.gpu_uuid(0)
    assert one(report, "gpu_memory_total_bytes", uuid=uuid) == 80 * GIB
    assert one(report, "gpu_memory_used_bytes", uuid=uuid) == 3 * GIB
    assert one(report, "gpu_memory_attributed_bytes", uuid=uuid) == GIB
    assert one(report, "gpu_memory_unattributed_bytes", uuid=uuid) == 2 * GIB
    assert one(report, "gpu_utilization_ratio") == 0.5
    assert one(report, "gpu_memory_activity_ratio") == 0.25
    assert one(report, "gpu_encoder_utilization_ratio") == 0
    assert one(report, "gpu_temperature_celsius") == 61
    assert one(report, "gpu_temperature_threshold_celsius", threshold="shutdown") == 95
    assert one(report, "gpu_power_watts") == 310.5
    assert one(report, "gpu_power_limit_watts") == 700
    assert one(report, "gpu_energy_joules_total") == 12_345.5
    assert one(report, "gpu_clock_hertz", clock="sm") == 1.98e9


def test_unsupported_values_have_no_series() -> None:
    bare = replace(b.gpu(telemetry=Telemetry(temperature=30.0)), memory=None, minor=None)
    report = b.report(
        b.snapshot(nvml=b.nvml(bare)),
        Attribution(
            devices=(b.device_use(allocated=None, attributed=None, unattributed=None, baseline=None),)
        ),
    )
    found = names(report)
    assert "gpu_temperature_celsius" in found
    assert not {name for name in found if name.startswith("gpu_memory_")}
    assert not found & {
        "gpu_utilization_ratio",
        "gpu_energy_joules_total",
        "gpu_clock_hertz",
        "gpu_allocated",
    }
    assert one(report, "gpu_info", minor="") == 1


def test_reserved_memory_is_absent_where_the_driver_does_not_tell() -> None:
    old = Memory(total=16 * GIB, used=GIB, free=15 * GIB, version=1)
    report = b.report(b.snapshot(nvml=b.nvml(b.gpu(frame_buffer=old))))
    assert one(report, "gpu_memory_used_bytes") == GIB
    assert not rows(report, "gpu_memory_reserved_bytes")


def test_the_owner_of_a_gpu_is_on_its_series() -> None:
    report = busy()
    owned = {"namespace": "team-a", "pod": "train-0", "container": "main"}
    assert one(report, "gpu_temperature_celsius", **owned) == 61
    assert one(report, "gpu_memory_used_bytes", uuid=b.gpu_uuid(0), **owned) == 3 * GIB
    nobody = {"namespace": "", "pod": "", "container": ""}
    assert one(report, "gpu_memory_used_bytes", uuid=b.gpu_uuid(1), **nobody) == 2 * GIB


def test_telemetry_that_is_off_leaves_memory_and_utilisation() -> None:
    without = replace(busy(), policy=Policy(telemetry=False))
    assert names(busy()) - names(without) == {
        "gpu_temperature_celsius",
        "gpu_temperature_threshold_celsius",
        "gpu_power_watts",
        "gpu_power_limit_watts",
        "gpu_energy_joules_total",
        "gpu_clock_hertz",
    }


def test_without_nvml_its_gauges_vanish_and_the_kubelets_stay() -> None:
    report = busy()
    blind = replace(report, snapshot=replace(report.snapshot, nvml=b.missed()))
    gone = {name for name in CONTRACT if name.startswith(("gpu_", "mig_", "driver_", "workload_"))}
    gone |= {"nvml_faults", "processes"}
    kept = {"gpu_allocated"}
    assert names(blind) == set(CONTRACT) - (gone - kept)
    assert one(blind, "gpu_allocated", uuid=b.gpu_uuid(0)) == 1
    assert one(blind, "node_gpus", state="nvml") is None


def test_a_lost_gpu_keeps_its_name_and_loses_its_values() -> None:
    lost = b.gpu(0, lost="GPU is lost", rows=None, telemetry=WORKED)
    report = b.report(b.snapshot(nvml=b.nvml(lost, b.gpu(1))))
    uuid = b.gpu_uuid(0)
    assert one(report, "gpu_info", uuid=uuid) == 1
    assert one(report, "nvml_faults", uuid=uuid, error="GPU is lost", call="") == 1
    for name in ("gpu_memory_used_bytes", "gpu_temperature_celsius", "gpu_memory_attributed_bytes"):
        assert one(report, name, uuid=uuid) is None
    assert one(report, "processes", uuid=uuid, owner="pod") is None
    assert one(report, "gpu_memory_used_bytes", uuid=b.gpu_uuid(1)) == 0


# --- MIG ----------------------------------------------------------------------------------------------------


def mig_report(*devices: tuple[int, int], owners: dict[tuple[int, int], Workload] | None = None) -> Report:
    """GPU 0 in MIG mode with the given (gi, ci), each instance with 1 GiB in use."""
    instances = tuple(b.mig_instance(gi, ci, used=GIB) for gi, ci in devices)
    looked = b.snapshot(nvml=b.nvml(b.gpu(mig_enabled=True, instances=instances)))
    owned = owners or {}
    uses = tuple(
        b.device_use(b.key(0, gi, ci), owner=owned.get((gi, ci), NOBODY), attributed=GIB)
        for gi, ci in devices
    )
    return b.report(looked, Attribution(devices=(b.device_use(), *uses), holders=()))


def test_a_mig_device_names_its_parent_and_its_place() -> None:
    report = mig_report((7, 0))
    labels = {"gi": "7", "ci": "0", "profile": "1g.10gb", "placement": "6:1", "mig_uuid": b.mig_uuid(0, 7)}
    assert one(report, "mig_info", uuid=b.gpu_uuid(0), **labels) == 1
    assert one(report, "mig_memory_used_bytes", gi="7", mig_uuid=b.mig_uuid(0, 7)) == GIB
    assert one(report, "mig_memory_attributed_bytes", gi="7") == GIB


def test_an_unknown_placement_is_empty() -> None:
    instance = replace(b.mig_instance(), start=None)
    report = b.report(b.snapshot(nvml=b.nvml(b.gpu(mig_enabled=True, instances=(instance,)))))
    assert one(report, "mig_info", placement="") == 1


def test_compute_instances_of_one_gpu_instance_share_one_memory_series() -> None:
    report = mig_report((1, 0), (1, 1), (2, 0))
    assert len(rows(report, "mig_info")) == 3
    assert len(rows(report, "mig_memory_used_bytes")) == 2
    assert one(report, "mig_memory_used_bytes", gi="1", mig_uuid="") == GIB
    # What each compute instance has of it is no sum that somebody read.
    assert one(report, "mig_memory_attributed_bytes", gi="1") is None


def test_a_shared_gpu_instance_takes_what_attribution_says_of_it_as_a_whole() -> None:
    report = mig_report((1, 0), (1, 1))
    whole = b.device_use(DeviceKey(b.gpu_uuid(0), 1), attributed=3 * GIB, unattributed=0)
    attribution = replace(report.attribution, devices=(*report.attribution.devices, whole))
    report = replace(report, attribution=attribution)
    assert one(report, "mig_memory_attributed_bytes", gi="1", mig_uuid="") == 3 * GIB
    assert one(report, "mig_memory_unattributed_bytes", gi="1", mig_uuid="") == 0
    assert {dict(labels)["mig_uuid"] for labels in rows(report, "gpu_allocated")} == {
        "",
        b.mig_uuid(0, 1, 0),
        b.mig_uuid(0, 1, 1),
    }
    assert one(report, "gpu_allocated", gi="1", mig_uuid="") is None


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (Workload("team-a", "train-0", "main"), ("team-a", "train-0", "main")),
        (Workload("team-a", "train-0", "side"), ("team-a", "train-0", "")),
        (Workload("team-b", "train-0", "main"), ("", "", "")),
        (NOBODY, ("", "", "")),
    ],
)
def test_a_shared_gpu_instance_has_an_owner_only_if_all_its_parts_agree(
    second: Workload, expected: tuple[str, str, str]
) -> None:
    report = mig_report((1, 0), (1, 1), owners={(1, 0): b.TRAINER, (1, 1): second})
    owner = dict(zip(("namespace", "pod", "container"), expected, strict=True))
    assert one(report, "mig_memory_used_bytes", gi="1", **owner) == GIB


# --- allocations ---


def test_allocated_is_one_zero_or_absent() -> None:
    attribution = Attribution(
        devices=(
            b.device_use(b.key(0), allocated=True),
            b.device_use(b.key(1), allocated=False),
            b.device_use(b.key(2), allocated=None),
        )
    )
    report = b.report(b.snapshot(nvml=b.nvml(b.gpu(0), b.gpu(1), b.gpu(2))), attribution)
    assert one(report, "gpu_allocated", uuid=b.gpu_uuid(0), gi="", mig_uuid="") == 1
    assert one(report, "gpu_allocated", uuid=b.gpu_uuid(1)) == 0
    assert one(report, "gpu_allocated", uuid=b.gpu_uuid(2)) is None


def test_last_active_is_absent_on_mig_and_where_utilisation_is_unknown() -> None:
    gpus = (b.gpu(0), b.gpu(1, mig_enabled=True), b.gpu(2, telemetry=Telemetry()), b.gpu(3))
    history = History(last_active=tuple((b.gpu_uuid(index), NOW - index) for index in range(3)))
    report = b.report(b.snapshot(nvml=b.nvml(*gpus)), history=history)
    assert list(rows(report, "gpu_last_active_timestamp_seconds").values()) == [NOW]


def test_replicas_given_to_one_container_are_one_row_and_two_containers_are_two() -> None:
    side = Workload("team-a", "train-0", "side")
    grants = (
        b.grant(b.key(), given=b.allocation(replica="0"), shared=True),
        b.grant(b.key(), given=b.allocation(replica="1"), shared=True),
        b.grant(b.key(), given=b.allocation(container="side", replica="2"), workload=side, shared=True),
    )
    report = b.report(b.snapshot(), Attribution(grants=grants))
    assert len(rows(report, "allocation_info")) == 2
    labels = {"resource": "nvidia.com/gpu", "pod_uid": b.pod_uid(), "container": "side", "gi": ""}
    assert one(report, "allocation_info", uuid=b.gpu_uuid(0), **labels) == 1
    assert one(report, "node_gpus", state="allocated") == 1


def test_a_grant_carried_over_from_before_a_restart_is_not_exported() -> None:
    report = b.report(b.snapshot(), Attribution(grants=(b.grant(b.key(), current=False),)))
    assert not rows(report, "allocation_info")


def test_the_counts_of_the_node() -> None:
    looked = b.snapshot(
        nvml=b.nvml(b.gpu(0), count=2),
        pci=Pci((b.pci_gpu(0), b.pci_gpu(1), b.pci_gpu(2, driver="vfio-pci"))),
        node=b.node(4, allocatable=3),
        pods=(
            b.pod(gpus=2),
            b.pod("done", uid=b.pod_uid(2), phase="Succeeded", gpus=1),
            b.pod("none", uid=b.pod_uid(3)),
        ),
    )
    absent = b.allocation("GPU-that-nvml-does-not-show")
    report = b.report(looked, Attribution(grants=(b.grant(b.key()), b.grant(None, given=absent))))
    counts = {dict(labels)["state"]: number for labels, number in rows(report, "node_gpus").items()}
    assert counts == {
        "pci": 2,
        "nvml": 2,
        "capacity": 4,
        "allocatable": 3,
        "allocated": 2,
        "requested": 2,
    }


def test_other_resources_are_not_counted_as_gpus_and_none_is_zero() -> None:
    report = b.report(b.snapshot(node=b.node(4, resource="nvidia.com/mig-1g.10gb")))
    assert one(report, "node_gpus", state="capacity") == 0
    assert one(report, "node_gpus", state="requested") == 0
    assert one(report, "node_gpus", state="allocated") == 0


def test_a_count_is_absent_while_its_source_is_missed_or_partial() -> None:
    looked = b.snapshot(
        nvml=b.seen(b.nvml(), complete=False),
        pci=b.missed(),
        node=b.missed(),
        kubelet=b.seen(b.kubelet(), complete=False),
        pods=b.seen(Pods(()), complete=False),
    )
    assert not rows(b.report(looked), "node_gpus")


# --- processes ---


def used(*uses: Use, policy: Policy | None = None) -> Report:
    """The quiet node with these uses of its GPU."""
    return b.report(b.snapshot(), Attribution(uses=uses, holders=()), policy=policy)


def test_a_process_is_described_with_its_workload() -> None:
    report = used(b.use(visibility=Visibility.HOLDER, state="zombie", owner=Owner.ORPHAN, used=None))
    labels = {
        "uuid": b.gpu_uuid(0),
        "gpu": "0",
        "gi": "",
        "mig_uuid": "",
        "pid": "4000",
        "namespace": "team-a",
        "pod": "train-0",
        "container": "main",
        "comm": "python",
        "state": "zombie",
        "owner": "orphan",
        "visibility": "holder",
        "pod_uid": b.pod_uid(),
    }
    assert rows(report, "process_info") == {frozenset(labels.items()): 1}
    assert not rows(report, "process_memory_bytes")


def test_a_process_has_one_row_per_device() -> None:
    report = used(b.use(used=GIB), b.use(device=b.key(1), used=0))
    assert one(report, "process_memory_bytes", pid="4000", uuid=b.gpu_uuid(0)) == GIB
    assert one(report, "process_memory_bytes", pid="4000", uuid=b.gpu_uuid(1)) == 0


def test_the_start_time_needs_the_scan_and_the_process() -> None:
    known, phantom = b.use(start=12_345), b.use(4001, start=None)
    report = used(known, phantom)
    start = b.BOOT_TIME + 123.45
    assert list(rows(report, "process_start_time_seconds").values()) == [pytest.approx(start)]
    blind = replace(report, snapshot=replace(report.snapshot, processes=b.missed()))
    assert not rows(blind, "process_start_time_seconds")


def test_utilisation_of_a_process_is_what_was_sampled_and_else_absent() -> None:
    sampled = ProcessUsage(4000, sm=0.75, memory=0.0, encoder=None, decoder=None)
    report = used(b.use(usage=sampled), b.use(4001))
    assert list(rows(report, "process_sm_utilization_ratio").values()) == [0.75]
    assert list(rows(report, "process_memory_utilization_ratio").values()) == [0]
    assert not rows(report, "process_encoder_utilization_ratio")


def test_the_limit_keeps_the_largest_memory_and_counts_what_it_drops() -> None:
    sizes: dict[int, int | None] = {1: None, 2: 0, 3: 5, 4: 7, 5: 5}
    uses = [b.use(pid, used=size) for pid, size in sizes.items()]
    policy = Policy(process_series_limit=3)
    for order in (uses, uses[::-1]):
        report = used(*order, policy=policy)
        assert {dict(labels)["pid"] for labels in rows(report, "process_info")} == {"3", "4", "5"}
        assert one(report, "process_series_dropped") == 2
        assert one(report, "processes", owner="pod") == 5
    assert one(used(*uses), "process_series_dropped") == 0


def test_process_series_can_be_switched_off() -> None:
    report = replace(busy(), policy=Policy(process_series=False))
    assert not {name for name in names(report) if name.startswith("process_")}
    assert {"processes", "workload_memory_bytes", "workload_processes"} <= names(report)


def test_processes_are_counted_by_owner_with_zeros() -> None:
    fork = b.use(4002, client=False, visibility=Visibility.HOLDER, used=None)
    report = used(b.use(), b.use(4001, owner=Owner.HOST, workload=NOBODY), fork)
    counts = {dict(labels)["owner"]: number for labels, number in rows(report, "processes").items()}
    assert counts == {"pod": 1, "host": 1, "system": 0, "orphan": 0, "unknown": 0}


def test_processes_of_a_mig_gpu_are_counted_per_mig_device() -> None:
    report = mig_report((1, 0), (2, 0))
    attribution = replace(report.attribution, uses=(b.use(device=b.key(0, 2, 0)),))
    report = replace(report, attribution=attribution)
    assert len(rows(report, "processes")) == 2 * len(Owner)
    assert one(report, "processes", gi="1", owner="pod") == 0
    assert one(report, "processes", gi="2", mig_uuid=b.mig_uuid(0, 2), owner="pod") == 1
    # A holder whose instance is not known is on the parent, and counted there.
    attribution = replace(attribution, uses=(*attribution.uses, b.use(4001, b.key(0))))
    report = replace(report, attribution=attribution)
    assert one(report, "processes", gi="", owner="pod") == 1


@pytest.mark.parametrize("blind", ["scan", "rows", "nvml"])
def test_unknown_clients_are_not_counted_as_none(blind: str) -> None:
    looked = {
        "scan": b.snapshot(processes=b.missed()),
        "rows": b.snapshot(nvml=b.nvml(b.gpu(rows=None, rows_problem="foreign pid namespace"))),
        "nvml": b.snapshot(nvml=b.missed(Reason.BUSY)),
    }[blind]
    report = b.report(looked, Attribution(uses=(b.use(visibility=Visibility.HOLDER, used=None),)))
    assert not names(report) & {"processes", "workload_processes", "workload_memory_bytes"}
    assert one(report, "process_info", pid="4000") == 1


def test_a_workload_is_the_sum_of_its_processes() -> None:
    report = used(
        b.use(1, used=GIB),
        b.use(2, used=2 * GIB, owner=Owner.ORPHAN),
        b.use(3, used=None, visibility=Visibility.HOLDER),  # a client that NVML does not list
        b.use(4, used=None, visibility=Visibility.HOLDER, client=False),
        b.use(5, used=GIB, owner=Owner.HOST, workload=NOBODY),
        b.use(6, used=0, workload=Workload("team-b", "serve-0", "main")),
    )
    assert one(report, "workload_memory_bytes", namespace="team-a", pod="train-0") == 3 * GIB
    assert one(report, "workload_processes", namespace="team-a", pod="train-0") == 3
    assert one(report, "workload_memory_bytes", namespace="team-b", pod="serve-0") == 0
    assert len(rows(report, "workload_processes")) == 2


@pytest.mark.parametrize("order", [1, -1])
def test_a_size_that_nvml_does_not_give_makes_the_workloads_sum_unknown(order: int) -> None:
    uses = (b.use(1, used=GIB), b.use(2, used=None))[::order]
    report = used(*uses)
    assert not rows(report, "workload_memory_bytes")
    assert list(rows(report, "workload_processes").values()) == [2]


# --- device files ---


def test_device_files_of_gpus_are_zero_filled_by_owner() -> None:
    report = b.report(b.snapshot(nvml=b.nvml(b.gpu(0, minor=2))))
    counts = rows(report, "device_holders")
    assert {dict(labels)["device_file"] for labels in counts} == {"nvidia2"}
    assert list(counts.values()) == [0] * len(Owner)


def test_device_files_are_known_from_the_bus_while_nvml_is_silent() -> None:
    report = b.report(b.snapshot(nvml=b.missed(), pci=b.pci()))
    assert one(report, "device_holders", device_file="nvidia0", owner="pod") == 0


@pytest.mark.parametrize(
    ("kind", "minor", "name"),
    [
        (NodeKind.GPU, 11, "nvidia11"),
        (NodeKind.CONTROL, 255, "nvidiactl"),
        (NodeKind.MODESET, 254, "nvidia-modeset"),
        (NodeKind.UVM, 0, "nvidia-uvm"),
        (NodeKind.UVM_TOOLS, 1, "nvidia-uvm-tools"),
        (NodeKind.CAPABILITY, 66, "nvidia-cap66"),
        (NodeKind.IMEX, 0, "nvidia-imex-channel0"),
        (NodeKind.NVSWITCH, 3, "nvidia-nvswitch3"),
        (NodeKind.NVLINK, 0, "nvidia-nvlink"),
    ],
)
def test_device_files_have_their_usual_names(kind: NodeKind, minor: int, name: str) -> None:
    holders = (
        FileHolders(b.device_node(kind, minor), Owner.POD, 2),
        FileHolders(b.device_node(kind, minor), Owner.SYSTEM, 1),
    )
    report = b.report(b.snapshot(), Attribution(holders=holders))
    assert one(report, "device_holders", device_file=name, owner="pod") == 2
    assert one(report, "device_holders", device_file=name, owner="system") == 1


def test_without_a_scan_nobody_is_said_to_hold_nothing() -> None:
    report = b.report(b.snapshot(processes=b.missed()))
    assert not rows(report, "device_holders")


# --- the exporter itself ---


def test_a_source_is_up_down_paused_or_off() -> None:
    looked = replace(
        b.snapshot(processes=b.missed(took=7.5), nvml=b.missed(Reason.PAUSED, took=0)), pods=Off(), node=Off()
    )
    report = b.report(looked)
    up = {dict(labels)["source"]: number for labels, number in rows(report, "source_up").items()}
    assert up == {"nvml": 0, "processes": 0, "container_dev": 1, "kubelet": 1, "pod_names": 1, "pci": 1}
    assert one(report, "source_paused", source="nvml") == 1
    assert one(report, "source_paused", source="processes") == 0
    assert one(report, "source_duration_seconds", source="processes") == 7.5
    assert one(report, "source_duration_seconds", source="kubelet") == 0.01


def test_errors_of_a_source_are_counted_from_zero_for_every_reason() -> None:
    record = SourceRecord("nvml", last_success=NOW - 30, errors=((Reason.TIMEOUT, 4),))
    report = b.report(history=History(sources=(record,)))
    assert one(report, "source_errors_total", source="nvml", reason="timeout") == 4
    assert one(report, "source_errors_total", source="nvml", reason="paused") == 0
    assert len(rows(report, "source_errors_total")) == len(SOURCES) * len(Reason)
    assert rows(report, "source_last_success_timestamp_seconds") == {
        frozenset({("source", "nvml")}): NOW - 30
    }


def test_faults_and_the_call_in_flight_name_the_gpu_if_they_can() -> None:
    fault = GpuFault(5, "", "nvmlDeviceGetHandleByIndex_v2", "GPU is lost")
    call = InFlight("nvmlInit_v2", None, "", NOW - 90)
    report = b.report(b.snapshot(nvml=b.nvml(b.gpu(), faults=(fault,)), in_flight=call))
    assert one(report, "nvml_faults", uuid="", gpu="5", call=fault.call, error="GPU is lost") == 1
    labels = {"call": "nvmlInit_v2", "gpu": "", "uuid": ""}
    assert one(report, "nvml_call_in_flight_info", **labels) == 1
    assert one(report, "nvml_call_in_flight_since_timestamp_seconds", **labels) == NOW - 90
    assert not names(b.report()) & {"nvml_faults", "nvml_call_in_flight_info"}


def test_ids_that_nobody_can_read_are_counted_per_resource() -> None:
    odd = b.allocation("gpu-7", resource="example.com/gpu", ref=Unrecognised("gpu-7"))
    again = AllocatableDevice("example.com/gpu", "gpu-7", Unrecognised("gpu-7"))
    fine = AllocatableDevice("nvidia.com/gpu", "GPU-x", GpuByUuid("GPU-x"))
    report = b.report(b.snapshot(kubelet=Kubelet((), (odd,), (again, fine))))
    assert one(report, "device_ids_unrecognised", resource="example.com/gpu") == 1
    assert one(report, "device_ids_unrecognised", resource="nvidia.com/gpu") == 0
    old = b.report(b.snapshot(kubelet=Kubelet((), (odd,), None)))
    assert one(old, "device_ids_unrecognised", resource="example.com/gpu") == 1


def test_the_scan_says_what_it_did_not_see() -> None:
    report = b.report(b.snapshot(processes=b.process_table(unreadable=(7, 8), truncated=1)))
    assert one(report, "processes_scanned") == 200
    assert one(report, "processes_unreadable") == 2
    assert one(report, "processes_truncated") == 1


def test_simulated_data_says_so() -> None:
    assert one(b.report(), "exporter_build_info", version="0.1.0", simulated="false") == 1
    demo = b.report(policy=Policy(version="0.1.0", simulated=True))
    assert one(demo, "exporter_build_info", simulated="true") == 1


# --- whole reports ---

SERIES_BUDGET = 2_500


def whole_gpus_with_64_processes() -> Report:
    """Eight GPUs, each with eight processes of a pod of its own."""
    gpus = tuple(
        b.gpu(index, rows=tuple(b.row(1000 * index + n) for n in range(8)), telemetry=WORKED)
        for index in range(8)
    )
    owners = [Workload("team-a", f"train-{index}", "main") for index in range(8)]
    attribution = Attribution(
        uses=tuple(
            b.use(1000 * index + n, b.key(index), workload=owners[index], usage=ALL_SAMPLED)
            for index in range(8)
            for n in range(8)
        ),
        grants=tuple(b.grant(b.key(index), workload=owners[index]) for index in range(8)),
        devices=tuple(b.device_use(b.key(index), owner=owners[index], allocated=True) for index in range(8)),
        holders=tuple(
            FileHolders(b.device_node(kind, minor), owner, 1)
            for owner in Owner
            for kind, minors in (
                (NodeKind.GPU, range(8)),
                (NodeKind.UVM, range(1)),
                (NodeKind.CONTROL, range(1)),
            )
            for minor in minors
        ),
    )
    report = b.report(b.snapshot(nvml=b.nvml(*gpus)))
    history = replace(
        report.history,
        last_active=tuple((item.uuid, NOW) for item in gpus),
        sources=tuple(SourceRecord(source, last_success=NOW) for source in SOURCES),
    )
    return replace(report, attribution=attribution, history=history)


def eight_gpus_with_56_mig_devices() -> Report:
    """Eight GPUs of seven MIG devices each, every one given to a pod with one process."""
    places = [(index, gi) for index in range(8) for gi in range(7, 14)]
    gpus = tuple(
        b.gpu(
            index,
            mig_enabled=True,
            instances=tuple(b.mig_instance(gi, index=index) for gi in range(7, 14)),
            telemetry=replace(WORKED, utilization=None, memory_activity=None),
        )
        for index in range(8)
    )
    owners = {place: Workload("team-a", f"notebook-{place[0]}-{place[1]}", "main") for place in places}
    uses = tuple(
        b.use(100 * index + gi, b.key(index, gi, 0), workload=owners[index, gi]) for index, gi in places
    )
    capability_nodes = range(2 * len(places))
    attribution = Attribution(
        uses=uses,
        grants=tuple(b.grant(b.key(index, gi, 0), workload=owners[index, gi]) for index, gi in places),
        devices=(
            *(b.device_use(b.key(index), attributed=None, unattributed=None) for index in range(8)),
            *(b.device_use(b.key(*place, 0), owner=owner, allocated=True) for place, owner in owners.items()),
        ),
        holders=tuple(
            FileHolders(b.device_node(NodeKind.CAPABILITY, minor), Owner.POD, 1) for minor in capability_nodes
        ),
    )
    report = b.report(b.snapshot(nvml=b.nvml(*gpus)))
    history = replace(
        report.history, sources=tuple(SourceRecord(source, last_success=NOW) for source in SOURCES)
    )
    return replace(report, attribution=attribution, history=history)


@pytest.mark.parametrize("build", [whole_gpus_with_64_processes, eight_gpus_with_56_mig_devices])
def test_a_large_node_stays_within_the_series_budget(build: Callable[[], Report]) -> None:
    report = build()
    series = sum(len(rows(report, family.name)) for family in FAMILIES)
    assert series < SERIES_BUDGET
    text = expose(report, Format.TEXT).decode()
    assert series == sum(not line.startswith("#") for line in text.splitlines())


def degraded() -> list[Report]:
    """The busy node with each source missed in turn, and with all."""
    report = busy()
    looks = [with_sources(report.snapshot, b.missed(), *sources) for sources in ((), *zip(SOURCES))]
    return [replace(report, snapshot=look) for look in looks]


def test_the_real_join_gives_no_series_twice() -> None:
    """A GPU with a phantom and two threads of one process; one in MIG mode with a shared GPU instance."""
    places = ((1, 0), (1, 1), (2, 0))
    instances = tuple(b.mig_instance(gi, ci, index=1) for gi, ci in places)
    look = b.snapshot(
        nvml=b.nvml(
            b.gpu(0, rows=(b.row(4000), b.row(4001), b.row(9999))),
            b.gpu(
                1,
                mig_enabled=True,
                instances=instances,
                rows=(b.row(4100, gi=1, ci=0), b.row(4100, gi=1, ci=1)),
            ),
        ),
        processes=b.process_table(
            b.process(
                4000, pod_uid=b.pod_uid(), holds=(b.hold(), b.hold(NodeKind.UVM)), numbers=(4000, 4001)
            ),
            b.process(4100, holds=(b.hold(minor=1),), numbers=(4100,)),
            b.process(4200, holds=(b.hold(minor=1), b.hold(NodeKind.UVM))),
            missing=(9999,),
        ),
        kubelet=b.kubelet(b.allocation(), b.allocation(container="side")),
        pods=(b.pod(gpus=1),),
    )
    report = None
    for step, reading in enumerate((look.nvml, b.missed(), look.nvml)):
        moved = replace(look, nvml=reading, at=NOW + 15 * step, monotonic=b.MONOTONIC + 15 * step)
        report = advance(Policy(), report, moved)
        for family in FAMILIES:
            rows(report, family.name)
    assert report is not None
    assert one(report, "process_memory_bytes", pid="4000") == 2 * GIB
    assert one(report, "mig_memory_attributed_bytes", gi="1", mig_uuid="") == 2 * GIB
    assert len(rows(report, "allocation_info")) == 2


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_label_values_are_text_and_as_many_as_labels(family: Family) -> None:
    for report in (busy(), b.report(), all_off(), mig_report((1, 0), (1, 1)), *degraded()):
        for values, number in family.samples(report):
            assert len(values) == len(family.labels)
            assert all(type(item) is str for item in values)
            assert math.isfinite(number)


def test_promtool_finds_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: install the Debian package prometheus"
    for report in (busy(), b.report(), whole_gpus_with_64_processes(), eight_gpus_with_56_mig_devices()):
        checked = subprocess.run(
            [promtool, "check", "metrics"],
            input=expose(report, Format.TEXT),
            capture_output=True,
            check=False,
        )
        assert (checked.returncode, checked.stdout.decode(), checked.stderr.decode()) == (0, "", "")
