import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from exporter.catalog import FAMILIES, PREFIX, SUBJECTS, Family
from exporter.exposition import Format, expose
from exporter.model import (
    SOURCES,
    NodeKind,
    Policy,
    Report,
)
from exporter.report import advance
from tests import builders as b
from tests.builders import GIB, NOW
from tests.unit.reports import (
    all_off,
    busy,
    eight_gpus_with_56_mig_devices,
    mig_report,
    names,
    one,
    rows,
    whole_gpus_with_64_processes,
    with_sources,
)

DEVICE = "uuid gpu"
OWNED = f"{DEVICE} namespace pod container"
INSTANCE = f"{DEVICE} gi mig_uuid"
INSTANCE_OWNED = f"{INSTANCE} namespace pod container"
DETAIL = f"{INSTANCE_OWNED} finding kind pid comm pod_uid explained_by"
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
    "gpu_ecc_errors_total": f"{OWNED} error",
    "gpu_ecc_lifetime_errors_total": f"{OWNED} error",
    "gpu_remapped_rows_total": f"{OWNED} error",
    "gpu_row_remap_pending": OWNED,
    "gpu_row_remap_failure": OWNED,
    "gpu_clock_event": f"{OWNED} reason",
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
    "findings": f"{INSTANCE_OWNED} finding kind",
    "finding_info": DETAIL,
    "finding_memory_bytes": DETAIL,
    "finding_since_timestamp_seconds": DETAIL,
    "finding_undetermined": "finding kind uuid gi reason",
    "finding_not_applicable_info": "finding kind uuid gi reason",
    "gpu_memory_orphaned_bytes": f"{INSTANCE} cause",
    "stack_component_ready": "component namespace pod container",
    "web_config_reload_success": "",
    "web_config_reload_success_timestamp_seconds": "",
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
COUNTERS = {
    "gpu_energy_joules_total",
    "gpu_ecc_errors_total",
    "gpu_ecc_lifetime_errors_total",
    "gpu_remapped_rows_total",
    "source_errors_total",
    "history_forgotten_total",
}


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


def test_pid_is_a_label_of_process_families_and_of_findings_told_one_by_one() -> None:
    without = {"process_series_dropped", "finding_undetermined", "finding_not_applicable_info"}
    assert {family.name for family in FAMILIES if "pid" in family.labels} == {
        name for name in CONTRACT if name.startswith(("process_", "finding_"))
    } - without


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


def test_without_nvml_its_gauges_vanish_and_the_kubelets_stay() -> None:
    report = busy()
    blind = replace(report, snapshot=replace(report.snapshot, nvml=b.missed()))
    gone = {name for name in CONTRACT if name.startswith(("gpu_", "mig_", "driver_", "workload_"))}
    gone |= {"nvml_faults", "processes"}
    kept = {"gpu_allocated"}
    assert names(blind) == set(CONTRACT) - (gone - kept)
    assert one(blind, "gpu_allocated", uuid=b.gpu_uuid(0)) == 1
    assert one(blind, "node_gpus", state="nvml") is None


# --- whole reports ---

SERIES_BUDGET = 2_500


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
