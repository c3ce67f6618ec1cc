from dataclasses import replace

import pytest

from exporter.model import (
    NOBODY,
    Attribution,
    DeviceKey,
    History,
    Memory,
    Pci,
    Pods,
    Policy,
    Telemetry,
    Workload,
)
from tests import builders as b
from tests.builders import GIB, NOW
from tests.unit.reports import WORKED, busy, mig_report, names, one, rows

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
    without = replace(busy(), policy=Policy(telemetry=False, telemetry_extended=True))
    assert names(busy()) - names(without) == {
        "gpu_temperature_celsius",
        "gpu_temperature_threshold_celsius",
        "gpu_power_watts",
        "gpu_power_limit_watts",
        "gpu_energy_joules_total",
        "gpu_clock_hertz",
    }


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
