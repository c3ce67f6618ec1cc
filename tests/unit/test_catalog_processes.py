from dataclasses import replace

import pytest

from exporter.model import (
    NOBODY,
    SOURCES,
    AllocatableDevice,
    Attribution,
    FileHolders,
    GpuByUuid,
    GpuFault,
    History,
    InFlight,
    Kubelet,
    NodeKind,
    Off,
    Owner,
    Policy,
    ProcessUsage,
    Reason,
    SourceRecord,
    Unrecognised,
    Visibility,
    Workload,
)
from tests import builders as b
from tests.builders import GIB, NOW
from tests.unit.reports import busy, mig_report, names, one, rows, used

# --- processes ---


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
