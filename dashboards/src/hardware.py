"""What is there and how it does: panels of GPUs, MIG devices, the node's counts, the GPU stack, telemetry.

Nothing comes in, panels for the node that is chosen go out. It must stay useful while NVML is silent: rows
remain, and say so.
"""

from __future__ import annotations

from dashboards.src.panels import Column, Panel, Query, grid, lines
from dashboards.src.promql import DEVICE, GPU, MEMORY, NODE, gpus, or_unknown_for, targets
from dashboards.src.promql import ON_GPU as HERE
from dashboards.src.shared import ANSWER, IDENTITY, PLACE, WHO

LABEL = "{{cluster}} {{node}} GPU {{gpu}}"
INVENTORY = f"{GPU}, minor, pci_bus_id, product, mig_mode"
CUT = 'gi!=""'
STATES = ("pci", "nvml", "capacity", "allocatable", "requested", "allocated")


def per_gpu(name: str) -> str:
    """A measurement by GPU: its pod is left out, so that a handover does not break the line."""
    return f"max by ({GPU}) ({HERE.metric(name)})"


# --- what is there ------------------------------------------------------------------------------------------


def inventory() -> Panel:
    """Every GPU of the node and how it does, also those that NVML does not show any more."""
    rows = gpus(HERE, GPU)
    now = f"max by ({INVENTORY}) ({HERE.metric('gpu_info')})"
    values = (
        f"sum by ({GPU}) ({HERE.metric('gpu_allocated')})",
        f"sum by ({GPU}) ({HERE.metric('processes')})",
        per_gpu("gpu_utilization_ratio"),
        f"{per_gpu('gpu_memory_used_bytes')} / {per_gpu('gpu_memory_total_bytes')}",
        per_gpu("gpu_memory_total_bytes"),
        per_gpu("gpu_temperature_celsius"),
        per_gpu("gpu_power_watts"),
    )
    return grid(
        "GPUs",
        "What NVML says of each GPU. A GPU that it no longer lists stays for an hour, as unknown. Given "
        "counts MIG devices one by one. MIG devices tell no utilisation.",
        (f"{now} or ({gpus(HERE, INVENTORY)} * NaN)", *(or_unknown_for(value, rows) for value in values)),
        (
            Column("A", "Listed", mappings=(ANSWER,), width=80),
            *PLACE[:3],
            Column("product", "Product"),
            Column("B", "Given", width=70),
            Column("C", "Processes", width=90),
            Column("D", "Utilisation", "percentunit"),
            Column("E", "Memory used", "percentunit"),
            Column("F", "Memory", "bytes"),
            Column("G", "Temperature", "celsius"),
            Column("H", "Power", "watt"),
            Column("mig_mode", "MIG mode"),
            Column("minor", "Minor", width=70),
            Column("pci_bus_id", "PCI address"),
            Column("uuid", "UUID"),
        ),
        "NVML has shown no GPU here for an hour, or no exporter is scraped.",
    )


def instances() -> Panel:
    """MIG devices and their memory, which compute instances of one GPU instance share."""
    rows = f"max by ({DEVICE}) ({HERE.metric('mig_info')})"
    info = f"max by ({DEVICE}, ci, profile, placement, namespace, pod, container) ({HERE.metric('mig_info')})"

    def shared(part: str) -> str:
        size = f"max by ({MEMORY}) ({HERE.metric(f'mig_memory_{part}_bytes')})"
        return f"{rows} * on ({MEMORY}) group_left () {size}"

    values = (
        f"max by ({DEVICE}) ({HERE.metric('gpu_allocated', CUT)})",
        f"sum by ({DEVICE}) ({HERE.metric('processes', CUT)})",
        shared("used"),
        shared("total"),
    )
    return grid(
        "MIG devices",
        "Memory is that of the GPU instance (GI); several compute instances (CI) share it. The pod is the "
        "one that has the device for itself, if exactly one has.",
        (info, *(or_unknown_for(f"({value})", rows) for value in values)),
        (
            *PLACE,
            Column("ci", "CI", width=50),
            Column("profile", "Profile"),
            Column("placement", "Placement"),
            Column("B", "Given", mappings=(ANSWER,), width=80),
            *WHO,
            Column("C", "Processes", width=90),
            Column("D", "Memory used", "bytes"),
            Column("E", "Memory", "bytes"),
            *IDENTITY,
        ),
        "NVML shows no MIG device here: no GPU is cut, or it does not answer.",
    )


def counts() -> Panel:
    """How many GPUs the node has by the word of each witness."""
    rows = f"(max by ({NODE}) ({targets(HERE)}) ^ 0)"
    said = (
        f"max by ({NODE}) ({HERE.own('node_gpus', f'state={chr(34)}{state}{chr(34)}')})" for state in STATES
    )
    return grid(
        "How many GPUs, by whose word",
        "PCI: on the bus. NVML: listed by the driver. Capacity and allocatable: the node object. Requested: "
        "by pods that have not ended. Given: by the kubelet, MIG devices included. Unknown: its source does "
        "not answer, or only in part.",
        [or_unknown_for(one, rows) for one in said],
        (
            *PLACE[:2],
            Column("A", "PCI"),
            Column("B", "NVML"),
            Column("C", "Capacity"),
            Column("D", "Allocatable"),
            Column("E", "Requested"),
            Column("F", "Given"),
        ),
        "No exporter is scraped on this node.",
    )


def components() -> Panel:
    """Pods of the GPU stack on this node."""
    ready = HERE.own("stack_component_ready")
    return grid(
        "GPU stack",
        "Device plugin, toolkit, driver, validator and the like, as the API server tells of their pods.",
        (f"max by ({NODE}, component, namespace, pod) ({ready})",),
        (
            *PLACE[:2],
            Column("component", "Component"),
            Column("A", "Ready", mappings=(ANSWER,)),
            *WHO[:2],
        ),
        "No pod of the GPU stack was seen on this node, or the API server was not asked or did not answer.",
    )


# --- over time ------------------------------------------------------------------------------------------


def telemetry() -> tuple[Panel, ...]:
    """What the hardware does."""
    limits = HERE.metric("gpu_temperature_threshold_celsius")
    off = "Nothing was collected, or telemetry is off (--collector.telemetry=off)."
    clocks = HERE.metric("gpu_clock_hertz", 'clock=~"sm|memory"')
    return (
        lines(
            "Utilisation",
            "Share of time in which a kernel ran. MIG devices do not tell it.",
            Query(per_gpu("gpu_utilization_ratio"), LABEL),
            unit="percentunit",
            nothing="No GPU told its utilisation in this time.",
            most=1,
        ),
        lines(
            "Memory activity",
            "Share of time in which GPU memory was read or written. MIG devices do not tell it.",
            Query(per_gpu("gpu_memory_activity_ratio"), LABEL),
            unit="percentunit",
            nothing="No GPU told its memory activity in this time.",
            most=1,
        ),
        lines(
            "Temperature",
            "Dashed: the lowest limit of each kind among the node's GPUs, as NVML tells it (slowdown, "
            "shutdown, ...). No dashed line: the driver tells no limit.",
            Query(per_gpu("gpu_temperature_celsius"), LABEL),
            Query(f"min by ({NODE}, threshold) ({limits})", "{{cluster}} {{node}} {{threshold}} limit"),
            unit="celsius",
            nothing=off,
            least=None,
            dashed="/ limit$/",
        ),
        lines(
            "Power",
            "Dashed: the limit that the GPU enforces.",
            Query(per_gpu("gpu_power_watts"), LABEL),
            Query(per_gpu("gpu_power_limit_watts"), f"{LABEL} limit"),
            unit="watt",
            nothing=off,
            dashed="/ limit$/",
        ),
        lines(
            "Clocks",
            "Clocks of the multiprocessors and of memory.",
            Query(f"max by ({GPU}, clock) ({clocks})", f"{LABEL} {{{{clock}}}}"),
            unit="hertz",
            nothing=off,
        ),
    )
