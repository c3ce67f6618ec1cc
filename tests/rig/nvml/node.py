"""Documents for the stand-in NVML library: what a node's GPUs say about themselves.

In: what a test wants to be different. Out: plain dicts in the shape that README.md describes, and the file.
Nothing here checks the document; the library does, and it ends the process that loaded it on an unknown key.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | float | bool | None"
Object: TypeAlias = dict[str, Json]

MIB = 1 << 20
GIB = 1 << 30


def node(*devices: Object, **overrides: Json) -> Object:
    """A node with these GPUs and a driver that lists a process under its thread-group id."""
    document: Object = {
        "driver_version": "570.148.08",
        "nvml_version": "12.570.148.08",
        "cuda_version": 12080,
        "devices": list(devices),
    }
    return document | overrides


def gpu(index: int, **overrides: Json) -> Object:
    """An idle A100 with MIG off, as its `index`-th of a node whose minors follow the NVML order."""
    device: Object = {
        "uuid": gpu_uuid(index),
        "minor": index,
        "pci": f"00000000:{0x3B + index:02X}:00.0",
        "pci_device_id": 0x20B010DE,
        "pci_subsystem_id": 0x134F10DE,
        "name": "NVIDIA A100-SXM4-40GB",
        "serial": f"{1563921000000 + index}",
        "architecture": 7,
        "brand": 14,
        "compute_capability": [8, 0],
        "mig_mode": 0,
        "virtualization": 0,
        "memory": memory(40 * GIB, reserved=640 * MIB),
        "bar1": {"total": 64 * GIB, "used": MIB, "free": 64 * GIB - MIB},
        "utilization": {"gpu": 0, "memory": 0},
        "encoder": 0,
        "decoder": 0,
        "temperature": 35,
        "thresholds": {"shutdown": 92, "slowdown": 89, "gpu_max": 85, "mem_max": 95},
        "power_mw": 55_000,
        "power_limit_mw": 400_000,
        "power_management_limit_mw": 400_000,
        "energy_mj": 1_000_000,
        "clocks": {"graphics": 210, "sm": 210, "memory": 1215, "video": 585},
        "max_clocks": {"graphics": 1410, "sm": 1410, "memory": 1215, "video": 1290},
        "numa_node": None,
        "addressing_mode": "NONE",
        "confidential": False,
        "persistence": 1,
        "compute_mode": 0,
        "performance_state": 0,
        "fans": None,
        "ecc_mode": 1,
        "ecc_errors": {"corrected": 0, "uncorrected": 0},
        "pcie_kbs": {"tx": 0, "rx": 0},
        "display_mode": 0,
        "display_active": 0,
        "compute": [],
        "graphics": [],
        "mps": [],
        "process_utilization": [],
    }
    return device | overrides


def mig_gpu(index: int, *instances: Object, **overrides: Json) -> Object:
    """An A100 with MIG on and these instances; what MIG makes unsupported is unsupported."""
    unsupported: Object = {"utilization": None, "encoder": None, "decoder": None, "process_utilization": None}
    mig: Object = {"max": 7, "instances": list(instances)}
    return gpu(index, mig_mode=1, mig=mig) | unsupported | overrides


def mig_instance(slot: int, gi: int, *, parent: int = 0, **overrides: Json) -> Object:
    """A 1g.5gb instance with its one compute instance, in the `slot` of the `parent`-th GPU."""
    instance: Object = {
        "slot": slot,
        "uuid": f"MIG-{parent:08x}-{gi:04x}-5000-8000-{slot:012x}",
        "gi": gi,
        "ci": 0,
        "gi_profile": 19,
        "ci_profile": 0,
        "profile": "1g.5gb",
        "gpu_slices": 1,
        "compute_slices": 1,
        "multiprocessors": 14,
        "copy_engines": 1,
        "placement": {"start": slot, "size": 1},
        "ci_placement": {"start": 0, "size": 1},
        "memory": memory(4864 * MIB),
        "bar1": {"total": 8 * GIB, "used": 0, "free": 8 * GIB},
    }
    return instance | overrides


def process(
    pid: int, memory: int | None, gi: int | None = None, ci: int | None = None, **more: Json
) -> Object:
    """One row of a process list; `memory` in bytes, None where the driver says N/A."""
    return {"pid": pid, "memory": memory, "gi": gi, "ci": ci} | more


def memory(total: int, used: int = 0, reserved: int = 0) -> Object:
    """Memory in bytes as version 2 of the call counts it: `used` does not contain `reserved`."""
    return {"total": total, "used": used, "free": total - used - reserved, "reserved": reserved}


def gpu_uuid(index: int) -> str:
    """The UUID that gpu(index) has unless it is overridden."""
    return f"GPU-{index:08x}-1111-4222-8333-{index:012x}"


def write(path: Path, document: Mapping[str, Json]) -> None:
    """Replace the document in one step, so that a running reader sees the old one or the new one."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        json.dump(document, file, indent=1)
    os.chmod(scratch, 0o644)
    os.replace(scratch, path)


def place(library: Path, directory: Path, document: Mapping[str, Json]) -> Path:
    """Give a test its own node: link the built library into `directory` and write nvml.json beside it.

    Returns the path of the document. Clients find the library with LD_LIBRARY_PATH=`directory`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / library.name).symlink_to(library.resolve())
    path = directory / "nvml.json"
    write(path, document)
    return path
