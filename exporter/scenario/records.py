"""Records from a scenario's spelling of them: what differs from `exporter.codec`, in tables. Pure.

Plain data and its path come in, records go out; a CodecError names the path, the value and what is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any, TypeAlias

from exporter import device_ids
from exporter.codec import CodecError, decode
from exporter.model import (
    AllocatableDevice,
    Allocation,
    CapabilityNode,
    ContainerDev,
    ContainerStatus,
    ContainerView,
    DeviceNode,
    DeviceRef,
    Gpu,
    Hold,
    Kubelet,
    KubeletPod,
    LiveContainer,
    Memory,
    MigInstance,
    Node,
    NodeKind,
    Nvml,
    NvmlRow,
    Pci,
    PciGpu,
    Pod,
    PodName,
    PodNames,
    Pods,
    Process,
    ProcessTable,
    ProcessUsage,
    Telemetry,
)

Plain: TypeAlias = dict[str, Any]
Reader: TypeAlias = Callable[[Any, str], Any]

# A device file by its usual name: what it is for, its major, and its minor where there is only one.
_FILES: tuple[tuple[re.Pattern[str], NodeKind, int, int | None], ...] = tuple(
    (re.compile(name), kind, major, minor)
    for name, kind, major, minor in (
        (r"nvidia([0-9]+)", NodeKind.GPU, 195, None),
        (r"nvidiactl", NodeKind.CONTROL, 195, 255),
        (r"nvidia-modeset", NodeKind.MODESET, 195, 254),
        (r"nvidia-uvm", NodeKind.UVM, 511, 0),
        (r"nvidia-uvm-tools", NodeKind.UVM_TOOLS, 511, 1),
        (r"nvidia-cap([0-9]+)", NodeKind.CAPABILITY, 509, None),
        (r"nvidia-nvswitch([0-9]+)", NodeKind.NVSWITCH, 508, None),
        (r"nvidia-imex-channel([0-9]+)", NodeKind.IMEX, 507, None),
    )
)


def only(plain: Plain, allowed: tuple[str, ...], where: str) -> None:
    """Refuse keys that are not allowed."""
    for key in plain:
        if key not in allowed:
            raise CodecError(f"{where}.{key}", f"unknown key; there are {', '.join(allowed)}")


def needed(plain: Plain, key: str, kind: Any, where: str, what: str) -> Any:
    """A field that must be there; `what` says in the error what to give."""
    here = f"{where}.{key}"
    if key not in plain:
        raise CodecError(here, f"missing; give {what}")
    return decode(kind, plain[key], here)


def listing(names: Mapping[Any, object]) -> str:
    """Keys, for an error."""
    return ", ".join(map(str, names)) or "none"


def _device_node(name: Any, where: str) -> DeviceNode:
    for pattern, kind, major, minor in _FILES:
        if found := pattern.fullmatch(str(name)):
            return DeviceNode(kind, major, int(found[1]) if minor is None else minor)
    raise CodecError(where, f"{name!r} is no NVIDIA device file; give one such as nvidia0 or nvidia-uvm")


def _record(kind: Any) -> Reader:
    """Reads one record: gaps filled in, fields of the tables by their readers, all else by the codec."""

    def read(plain: Any, where: str) -> Any:
        if not isinstance(plain, dict):
            raise CodecError(where, f"{plain!r} is no mapping with the fields of {kind.__name__}")
        filled = _FILL[kind](plain, where) if kind in _FILL else plain
        special = _FIELDS.get(kind, {})
        built = {name: special[name](filled[name], f"{where}.{name}") for name in special if name in filled}
        rest = {name: one for name, one in filled.items() if name not in built}
        # The codec wants every field that has no default; `built` takes the place of this.
        rest |= {one.name: () for one in fields(kind) if one.name in built and _has_no_default(one)}
        return replace(decode(kind, rest, where), **built)

    return read


def _has_no_default(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _by(key: str, kind: Any, short: str = "") -> Reader:
    """Reads a mapping by identity into records; `short` is the field that a bare value means."""
    one = _record(kind)

    def read(plain: Any, where: str) -> tuple[Any, ...]:
        found = []
        for name, given in _mapping(plain, where, key or "pid").items():
            entry = given if isinstance(given, dict) or not short else {short: given}
            if key and isinstance(entry, dict):
                if key in entry:
                    raise CodecError(f"{where}.{name}.{key}", f"{entry[key]!r} beside {name}; leave it out")
                entry = {key: name, **entry}
            found.append(one(entry, f"{where}.{name}"))
        return tuple(found)

    return read


def _pairs(kind: Any) -> Reader:
    def read(plain: Any, where: str) -> tuple[tuple[str, Any], ...]:
        named = _mapping(plain, where, "name")
        return tuple((str(name), decode(kind, one, f"{where}.{name}")) for name, one in named.items())

    return read


def _mapping(plain: Any, where: str, key: str) -> Plain:
    if not isinstance(plain, dict):
        raise CodecError(where, f"{plain!r} is no mapping; give entries by {key}")
    return plain


def _holds(plain: Any, where: str) -> tuple[Hold, ...]:
    """Descriptors by device file, or `{descriptors, mappings}`."""
    found = []
    for name, given in _mapping(plain, where, "device file").items():
        here = f"{where}.{name}"
        counts = given if isinstance(given, dict) else {"descriptors": given}
        only(counts, ("descriptors", "mappings"), here)
        numbers: dict[str, int] = {
            kind: decode(int, count, f"{here}.{kind}") for kind, count in counts.items()
        }
        found.append(Hold(_device_node(name, here), **numbers))
    return tuple(found)


def _nodes(plain: Any, where: str) -> tuple[DeviceNode, ...]:
    names: tuple[str, ...] = decode(tuple[str, ...], plain, where)
    return tuple(_device_node(name, f"{where}[{i}]") for i, name in enumerate(names))


def _kubelet(plain: Any, where: str) -> Kubelet:
    """`pods`: namespace/name → container → resource → ids; `allocatable`: resource → ids, or not offered."""
    only(plain, ("pods", "allocatable"), where)
    pods, allocations = [], []
    for pod, containers in _mapping(plain.get("pods", {}), f"{where}.pods", "namespace/name").items():
        here = f"{where}.pods.{pod}"
        namespace, name = _namespaced(pod, here)
        listed = _mapping(containers, here, "container")
        pods.append(KubeletPod(namespace, name, tuple(sorted(listed))))
        for container, resources_ in listed.items():
            for resource, given, ref, replica in _devices(resources_, f"{here}.{container}"):
                allocations.append(Allocation(namespace, name, container, resource, given, ref, replica))
    offered = None
    if "allocatable" in plain:
        devices = _devices(plain["allocatable"], f"{where}.allocatable")
        offered = tuple(AllocatableDevice(resource, given, ref) for resource, given, ref, _ in devices)
    return Kubelet(tuple(pods), tuple(allocations), offered)


def _devices(plain: Any, where: str) -> Iterator[tuple[str, str, DeviceRef, str]]:
    """Ids by resource, as the kubelet spells them; with DRA by driver, whose name has no slash."""
    for resource, ids in _mapping(plain, where, "resource").items():
        spelled: tuple[str, ...] = decode(tuple[str, ...], ids, f"{where}.{resource}")
        for given in spelled:
            if "/" in resource:
                yield (resource, given, *device_ids.parse(resource, given))
            elif ref := device_ids.parse_dra(resource, given):
                yield resource, given, ref, ""


def _namespaced(text: Any, where: str) -> tuple[str, str]:
    namespace, slash, name = str(text).partition("/")
    if not (namespace and slash and name):
        raise CodecError(where, f"{text!r} is no pod; give namespace/name")
    return namespace, name


def _names(plain: Any, where: str) -> tuple[PodName, ...]:
    """Directories of /var/log/pods and the containers in them."""
    found = []
    for directory, containers in _mapping(plain, where, "directory").items():
        parts = str(directory).split("_")
        if len(parts) != 3:
            raise CodecError(f"{where}.{directory}", f"{directory!r}; give <namespace>_<name>_<uid>")
        namespace, name, uid = parts
        listed: tuple[str, ...] = decode(tuple[str, ...], containers, f"{where}.{directory}")
        found.append(PodName(uid, namespace, name, listed))
    return tuple(found)


def _pod_list(plain: Any, where: str) -> tuple[Pod, ...]:
    found = []
    for key, one in _mapping(plain, where, "namespace/name").items():
        here = f"{where}.{key}"
        namespace, name = _namespaced(key, here)
        given = {"namespace": namespace, "name": name, **_mapping(one, here, "field")}
        found.append(_record(Pod)(given, here))
    return tuple(found)


def _filled_memory(plain: Plain, where: str) -> Plain:
    if "free" in plain or not {"total", "used"} <= plain.keys():
        return plain
    figures: dict[str, int] = {name: decode(int, plain[name], f"{where}.{name}") for name in plain}
    return {**plain, "free": figures["total"] - figures["used"] - figures.get("reserved", 0)}


def _filled_table(plain: Plain, where: str) -> Plain:
    """Starts turned into ticks since boot, and live containers found from their processes."""
    boot: float = needed(plain, "boot_time", float, where, "seconds from the start, below 0")
    ticks: int = decode(int, plain.get("ticks_per_second", 100), f"{where}.ticks_per_second")

    def identified(pid: Any, one: Any, here: str, key: str) -> Plain:
        given = dict(_mapping(one, here, "field"))
        started: float = needed(given, "started", float, here, "seconds from the start")
        del given["started"]
        if started < boot:
            raise CodecError(
                f"{here}.started", f"{started:g} is before the boot at {boot:g}; give a later one"
            )
        return {**given, key: {"pid": decode(int, pid, here), "start": round((started - boot) * ticks)}}

    processes = {
        pid: identified(pid, one, f"{where}.processes.{pid}", "id")
        for pid, one in _mapping(plain.get("processes", {}), f"{where}.processes", "pid").items()
    }
    containers: dict[str, Plain] = {}
    for pid in sorted(processes):
        lives = processes[pid].get("cgroup")
        if isinstance(lives, dict) and lives.get("pod_uid") and lives.get("container_id"):
            containers.setdefault(
                lives["container_id"], {"pod_uid": lives["pod_uid"], "process": processes[pid]["id"]}
            )
    for name, one in _mapping(plain.get("containers", {}), f"{where}.containers", "container id").items():
        here = f"{where}.containers.{name}"
        given = dict(_mapping(one, here, "field"))
        containers[name] = identified(given.pop("pid", None), given, here, "process")
    defaults = {"boot_id": "5c3a9a0e-0000-4000-8000-000000000001", "ticks_per_second": ticks}
    quiet = {
        "unreadable": [],
        "scanned": len(processes),
        "truncated": 0,
        "driver_loaded": True,
        "capabilities": {},
        "missing": [],
    }
    return {**defaults, **quiet, **plain, "processes": processes, "containers": containers}


# What a scenario may leave out although the record has no default for it.
_FILL: dict[Any, Callable[[Plain, str], Plain]] = {
    Memory: _filled_memory,
    Nvml: lambda plain, _: {"count": len(plain.get("gpus", ())), **plain},
    ProcessTable: _filled_table,
    Pod: lambda plain, _: {"cgroup_uid": plain.get("uid", ""), "phase": "Running", **plain},
    Process: lambda plain, _: {"parent": 1, "state": "S", **plain},
    ProcessUsage: lambda plain, _: {"sm": None, "memory": None, "encoder": None, "decoder": None, **plain},
    ContainerStatus: lambda plain, _: {"kind": "app", **plain},
    CapabilityNode: lambda plain, _: {"ci": None, **plain},
}
# Fields that are written otherwise than in the record.
_FIELDS: dict[Any, dict[str, Reader]] = {
    Nvml: {"gpus": _by("uuid", Gpu)},
    Gpu: {
        "memory": _record(Memory),
        "telemetry": _record(Telemetry),
        "instances": _by("mig_uuid", MigInstance),
        "rows": _by("pid", NvmlRow, "memory"),
        "usage": _by("pid", ProcessUsage, "sm"),
    },
    MigInstance: {"memory": _record(Memory)},
    Telemetry: {"thresholds": _pairs(float), "clocks": _pairs(float)},
    ProcessTable: {
        "processes": _by("", Process),
        "containers": _by("container_id", LiveContainer),
        "capabilities": _by("minor", CapabilityNode),
    },
    Process: {"holds": _holds},
    ContainerDev: {"views": _by("container_id", ContainerView)},
    ContainerView: {"nodes": _nodes},
    Pods: {"pods": _pod_list},
    Pod: {
        "containers": _by("name", ContainerStatus),
        "gpu_requests": _pairs(int),
        "annotations": _pairs(str),
        "labels": _pairs(str),
    },
    Node: {"capacity": _pairs(int), "allocatable": _pairs(int), "labels": _pairs(str)},
    PodNames: {"names": _names},
    Pci: {"gpus": _by("address", PciGpu)},
}
RECORDS: dict[str, Reader] = {
    "nvml": _record(Nvml),
    "processes": _record(ProcessTable),
    "container_dev": _record(ContainerDev),
    "kubelet": _kubelet,
    "pods": _record(Pods),
    "node": _record(Node),
    "pod_names": _record(PodNames),
    "pci": _record(Pci),
}
