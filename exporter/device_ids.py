"""Every spelling of a GPU in a device plugin's or DRA id to one DeviceRef. Pure and total; never raises.

What comes in is what the kubelet lists: a resource name with a device id, or a DRA driver's name with a
device name. A new spelling is a new row of MATCHERS and a new line in tests/unit/test_device_ids.py. Ids are
data of third parties: patterns are anchored and linear, and what no row knows is `Unrecognised`, never an
error.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from exporter.model import (
    Advisory,
    DeviceRef,
    GpuByMinor,
    GpuByUuid,
    MigByInstance,
    MigByPlacement,
    MigByUuid,
    Passthrough,
    Unrecognised,
)
from exporter.text import printable

SHARED_SUFFIX = ".shared"  # what NVIDIA's plugin appends to the resource with sharing.*.renameByDefault
SHARED = "shared"
DRA_DRIVER = "gpu.nvidia.com"

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_N = r"(?:0|[1-9][0-9]{0,5})"  # no leading zeros: a number has one spelling
_PCI = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"

Builder = Callable[[re.Match[str]], DeviceRef]


# --- builders -----------------------------------------------------------------------------------------------


def _gpu(found: re.Match[str]) -> DeviceRef:
    return GpuByUuid(found["uuid"])


def _gpu_minor(found: re.Match[str]) -> DeviceRef:
    return GpuByMinor(int(found["minor"]))


def _mig(found: re.Match[str]) -> DeviceRef:
    return MigByUuid(found["uuid"])


def _mig_of_uuid(found: re.Match[str]) -> DeviceRef:
    return MigByInstance(found["uuid"], None, int(found["gi"]), int(found["ci"]))


def _mig_of_minor(found: re.Match[str]) -> DeviceRef:
    return MigByInstance(None, int(found["minor"]), int(found["gi"]), None)


def _placement(found: re.Match[str]) -> DeviceRef:
    return MigByPlacement(int(found["minor"]), int(found["profile"]), int(found["start"]))


def _passthrough(found: re.Match[str]) -> DeviceRef:
    return Passthrough(printable(found[0]))


def _advisory(scheme: str) -> Builder:
    return lambda found: Advisory(scheme, printable(found[0]))


# --- spellings ----------------------------------------------------------------------------------------------

# The first row whose patterns match the whole resource and the whole id wins. Group `replica` marks a device
# that several containers may be given. Schemes whose resource name gives them away stand first: their ids
# look like those of others.
MATCHERS: tuple[tuple[str, re.Pattern[str], re.Pattern[str], Builder], ...] = tuple(
    (name, re.compile(resource, re.DOTALL), re.compile(device, re.DOTALL), builder)
    for name, resource, device, builder in (
        # A unit of memory or a share: the scheduler's choice is in a pod annotation, the kubelet's pick is
        # ignored.
        ("Volcano", r"volcano\.sh/.*", rf".*?(?:-(?P<replica>{_N}))?", _advisory("volcano")),
        (
            "gpushare (Aliyun)",
            r"aliyun\.com/gpu.*",
            r".*?(?:-_-(?P<replica>[0-9]{1,9}))?",
            _advisory("gpushare"),
        ),
        ("gpushare by id", r".*", rf"(?:GPU-)?{_UUID}-_-(?P<replica>[0-9]{{1,9}})", _advisory("gpushare")),
        ("HAMi", r".*", rf"(?:GPU|MIG)-{_UUID}-(?P<replica>{_N})", _advisory("hami")),
        # NVIDIA's k8s-device-plugin: always UUIDs, whatever deviceIDStrategy says; `::n` with time-slicing
        # and MPS.
        ("GPU", r".*", rf"(?P<uuid>GPU-{_UUID})(?:::(?P<replica>{_N}))?", _gpu),
        ("MIG device", r".*", rf"(?P<uuid>MIG-{_UUID})(?:::(?P<replica>{_N}))?", _mig),
        (
            "MIG device (drivers before R470)",
            r".*",
            rf"MIG-(?P<uuid>GPU-{_UUID})/(?P<gi>{_N})/(?P<ci>{_N})(?:::(?P<replica>{_N}))?",
            _mig_of_uuid,
        ),
        # GKE's plugin: device minors, not NVML indices; vgpu is time-sharing or MPS there.
        (
            "GKE MIG",
            r".*",
            rf"nvidia(?P<minor>{_N})/gi(?P<gi>{_N})(?:/(?P<replica>vgpu{_N}))?",
            _mig_of_minor,
        ),
        ("GKE", r".*", rf"nvidia(?P<minor>{_N})(?:/(?P<replica>vgpu{_N}))?", _gpu_minor),
        # KubeVirt and sandbox plugins: PCI address, IOMMU group, or UUID of a mediated device.
        ("PCI address", r".*", _PCI, _passthrough),
        ("IOMMU group", r"(?!nvidia\.com/(?:gpu|mig-)).*", _N, _passthrough),
        ("mediated device", r"(?!nvidia\.com/(?:gpu|mig-)).*", _UUID, _passthrough),
    )
)

# NVIDIA's DRA driver; `profile` is the GPU-instance profile id of NVML.
DRA_MATCHERS: tuple[tuple[str, re.Pattern[str], Builder], ...] = tuple(
    (name, re.compile(device), builder)
    for name, device, builder in (
        ("GPU", rf"gpu-(?P<minor>{_N})", _gpu_minor),
        (
            "MIG device, 25.12 and later",  # gpu-1-mig-2g47gb-14-0, gpu-0-mig-1g10gb-me-20-4
            rf"gpu-(?P<minor>{_N})-mig-[0-9]+[cg][0-9a-z]*(?:-[a-z][0-9a-z]*)*-(?P<profile>{_N})-(?P<start>{_N})",
            _placement,
        ),
        (
            "MIG device, 25.3 to 25.8",  # profile id, start, size
            rf"gpu-(?P<minor>{_N})-mig-(?P<profile>{_N})-(?P<start>{_N})-{_N}",
            _placement,
        ),
        ("VFIO", rf"gpu-vfio-{_N}", _passthrough),
        ("vGPU", rf"vgpu-gpu-{_N}-[0-9a-z-]+", _passthrough),
    )
)

# Resource names of GPUs, by whole match.
RESOURCES: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"nvidia\.com/.+",
        r"(?:deviceclass\.resource\.kubernetes\.io/)?(?:[a-z0-9-]+\.)*gpu\.nvidia\.com",
        r"(?:deviceclass\.resource\.kubernetes\.io/)?mig\.nvidia\.com",
        r"volcano\.sh/v?gpu.+",
        r"aliyun\.com/gpu.*",
    )
)
# Of those, what is no device: HAMi's and Volcano's amounts beside the device, and network devices of NVIDIA's
# Network Operator.
NO_DEVICES: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"nvidia\.com/(?:gpumem|gpumem-percentage|gpucores|priority)",
        r"nvidia\.com/(?:hostdev|mlnxnics|rdma|sriov).*",
    )
)
_GPU_ID = re.compile(rf"(?:GPU-|MIG-|MIG-GPU-){_UUID}(?![0-9a-fA-F]).*", re.DOTALL)


# --- questions ----------------------------------------------------------------------------------------------


def parse(resource: str, device_id: str) -> tuple[DeviceRef, str]:
    """Return the device and its replica mark: "" if exclusive, else "2" of `::2`, "vgpu2" or "shared"."""
    shared = SHARED if resource.endswith(SHARED_SUFFIX) else ""
    for _, resources, ids, build in MATCHERS:
        if (found := ids.fullmatch(device_id)) and resources.fullmatch(resource):
            return build(found), found.groupdict().get("replica") or shared
    return Unrecognised(printable(device_id)), shared


def parse_dra(driver: str, device_name: str) -> DeviceRef | None:
    """Return a DRA device, None of a driver that has no GPUs (compute-domain.nvidia.com, networks)."""
    if driver != DRA_DRIVER:
        return None
    for _, names, build in DRA_MATCHERS:
        if found := names.fullmatch(device_name):
            return build(found)
    return Unrecognised(printable(device_name))


def is_gpu_resource(resource: str) -> bool:
    """Whether a resource counts GPUs or shares of GPUs, by its name alone (pod limits, node capacity)."""
    return any(p.fullmatch(resource) for p in RESOURCES) and not any(
        p.fullmatch(resource) for p in NO_DEVICES
    )


def is_gpu(resource: str, device_id: str) -> bool:
    """Whether a listed device is a GPU: by its resource, or by an id that only GPUs have."""
    return is_gpu_resource(resource) or _GPU_ID.fullmatch(device_id) is not None
