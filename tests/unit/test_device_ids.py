"""Every known spelling of a device id, and that no text at all is too strange."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter import device_ids
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

HEX = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
GPU = f"GPU-{HEX}"
MIG = f"MIG-{HEX}"
PLAIN = "nvidia.com/gpu"

SPELLINGS: list[tuple[str, str, DeviceRef, str]] = [
    # NVIDIA's plugin
    (PLAIN, GPU, GpuByUuid(GPU), ""),
    ("nvidia.com/h100", GPU, GpuByUuid(GPU), ""),
    (PLAIN, f"{GPU}::0", GpuByUuid(GPU), "0"),
    ("nvidia.com/gpu.shared", f"{GPU}::11", GpuByUuid(GPU), "11"),
    ("nvidia.com/gpu.shared", GPU, GpuByUuid(GPU), "shared"),
    (PLAIN, MIG, MigByUuid(MIG), ""),
    ("nvidia.com/mig-1g.5gb", MIG, MigByUuid(MIG), ""),
    ("nvidia.com/mig-1g.10gb.me.shared", f"{MIG}::3", MigByUuid(MIG), "3"),
    (PLAIN, f"MIG-{GPU}/7/0", MigByInstance(GPU, None, 7, 0), ""),
    ("nvidia.com/mig-1g.5gb.shared", f"MIG-{GPU}/13/0::2", MigByInstance(GPU, None, 13, 0), "2"),
    # GKE's plugin
    (PLAIN, "nvidia0", GpuByMinor(0), ""),
    (PLAIN, "nvidia15/vgpu0", GpuByMinor(15), "vgpu0"),
    (PLAIN, "nvidia3/gi2", MigByInstance(None, 3, 2, None), ""),
    (PLAIN, "nvidia3/gi2/vgpu1", MigByInstance(None, 3, 2, None), "vgpu1"),
    # schemes whose kubelet choice is not the device
    (PLAIN, f"{GPU}-3", Advisory("hami", f"{GPU}-3"), "3"),
    ("example.com/vgpu", f"{GPU}-0", Advisory("hami", f"{GPU}-0"), "0"),
    ("volcano.sh/gpu-memory", "0-17", Advisory("volcano", "0-17"), "17"),
    ("volcano.sh/gpu-number", "1", Advisory("volcano", "1"), ""),
    ("volcano.sh/vgpu-number", f"{GPU}-4", Advisory("volcano", f"{GPU}-4"), "4"),
    ("aliyun.com/gpu-mem", f"{GPU}-_-79", Advisory("gpushare", f"{GPU}-_-79"), "79"),
    ("aliyun.com/gpu-count", "0", Advisory("gpushare", "0"), ""),
    # virtual machines
    ("nvidia.com/GA102GL_A10", "0000:3b:00.0", Passthrough("0000:3b:00.0"), ""),
    ("nvidia.com/pgpu", "65", Passthrough("65"), ""),
    ("nvidia.com/GRID_T4-1Q", HEX, Passthrough(HEX), ""),
    # nobody's
    (PLAIN, "0", Unrecognised("0"), ""),
    (PLAIN, HEX, Unrecognised(HEX), ""),
    (PLAIN, "", Unrecognised(""), ""),
    (PLAIN, f"{GPU}\n", Unrecognised(f"{GPU}?"), ""),
    (PLAIN, f" {GPU}", Unrecognised(f" {GPU}"), ""),
    (PLAIN, f"{GPU}::", Unrecognised(f"{GPU}::"), ""),
    (PLAIN, "nvidia٣", Unrecognised("nvidia٣"), ""),  # a digit, but not of ours
    (PLAIN, "nvidia0000000000001", Unrecognised("nvidia0000000000001"), ""),
    ("nvidia.com/gpu.shared", "what", Unrecognised("what"), "shared"),
]


@pytest.mark.parametrize(("resource", "device_id", "ref", "replica"), SPELLINGS)
def test_spelling(resource: str, device_id: str, ref: DeviceRef, replica: str) -> None:
    """Each id of a device plugin means this device, and is shared only if it says so."""
    assert device_ids.parse(resource, device_id) == (ref, replica)


@pytest.mark.parametrize(
    ("driver", "name", "ref"),
    [
        ("gpu.nvidia.com", "gpu-0", GpuByMinor(0)),
        ("gpu.nvidia.com", "gpu-12", GpuByMinor(12)),
        ("gpu.nvidia.com", "gpu-1-mig-2g47gb-14-0", MigByPlacement(1, 14, 0)),
        ("gpu.nvidia.com", "gpu-0-mig-1g10gb-me-20-4", MigByPlacement(0, 20, 4)),
        ("gpu.nvidia.com", "gpu-0-mig-1c3g20gb-9-4", MigByPlacement(0, 9, 4)),
        ("gpu.nvidia.com", "gpu-0-mig-19-2-1", MigByPlacement(0, 19, 2)),
        ("gpu.nvidia.com", "gpu-vfio-0", Passthrough("gpu-vfio-0")),
        ("gpu.nvidia.com", "gpu-0-mig", Unrecognised("gpu-0-mig")),
        ("gpu.nvidia.com", "", Unrecognised("")),
        ("compute-domain.nvidia.com", "channel-0", None),
        ("compute-domain.nvidia.com", "daemon-0", None),
        ("dra.net", "gpu-0", None),
    ],
)
def test_dra_spelling(driver: str, name: str, ref: DeviceRef | None) -> None:
    """Each name of a DRA driver means this device, or none where the driver has no GPUs."""
    assert device_ids.parse_dra(driver, name) == ref


@pytest.mark.parametrize(
    ("resource", "gpu"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-3g.20gb", True),
        ("nvidia.com/GP102GL_Tesla_P40", True),
        ("gpu.nvidia.com", True),
        ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", True),
        ("deviceclass.resource.kubernetes.io/mig.nvidia.com", True),
        ("volcano.sh/gpu-memory", True),
        ("volcano.sh/vgpu-number", True),
        ("aliyun.com/gpu-mem", True),
        ("nvidia.com/", False),
        ("nvidia.com/gpumem", False),
        ("nvidia.com/gpucores", False),
        ("nvidia.com/hostdev", False),
        ("compute-domain.nvidia.com", False),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("rdma/hca_shared_devices_a", False),
        ("amd.com/gpu", False),
        ("notnvidia.com/gpu", False),
        ("", False),
    ],
)
def test_gpu_resource(resource: str, gpu: bool) -> None:
    """A resource counts NVIDIA GPUs or it does not, by its name."""
    assert device_ids.is_gpu_resource(resource) is gpu


def test_gpu_by_id_alone() -> None:
    """A renamed resource is known by an id that only GPUs have."""
    assert device_ids.is_gpu("example.com/accelerator", f"{GPU}::2")
    assert device_ids.is_gpu("example.com/accelerator", f"MIG-{GPU}/1/0")
    assert not device_ids.is_gpu("example.com/accelerator", "0000:3b:00.0")
    assert not device_ids.is_gpu("example.com/accelerator", f"{GPU}f")


def test_every_matcher_is_reached() -> None:
    """No row of the table is hidden by one above it or left untested."""
    reached = set()
    for resource, device_id, _, _ in [*SPELLINGS, ("example.com/gpu", f"{GPU}-_-1", None, "")]:
        for name, resources, ids, _ in device_ids.MATCHERS:
            if resources.fullmatch(resource) and ids.fullmatch(device_id):
                reached.add(name)
                break
    assert reached == {name for name, *_ in device_ids.MATCHERS}


pieces = st.lists(
    st.sampled_from(
        (
            *("GPU-", "MIG-", HEX, "::", "-", "-_-", "/", "nvidia", "gi", "vgpu", "0", "7", "gpu-", "mig-"),
            *("1g5gb", "0000:3b:00.0", "\n", "\x00", "\ud800", "٣"),
        )
    ),
    max_size=8,
).map("".join)
resources = st.sampled_from(
    [PLAIN, "nvidia.com/gpu.shared", "volcano.sh/gpu-memory", "aliyun.com/gpu-mem", "x/y", ""]
)


@given(resource=resources | st.text(), device_id=pieces | st.text())
def test_parse_is_total(resource: str, device_id: str) -> None:
    """Any text gives some device and printable text, and the same one again."""
    ref, replica = device_ids.parse(resource, device_id)
    assert device_ids.parse(resource, device_id) == (ref, replica)
    assert isinstance(ref, DeviceRef)
    assert replica == "shared" or replica in device_id
    assert isinstance(device_ids.is_gpu(resource, device_id), bool)
    device_ids.parse_dra("gpu.nvidia.com", device_id)


@given(found=st.sampled_from(SPELLINGS), tail=st.characters())
def test_nothing_may_follow(found: tuple[str, str, DeviceRef, str], tail: str) -> None:
    """A device is named by the whole id: one with more text after it is never the same device."""
    resource, device_id, ref, replica = found
    longer, mark = device_ids.parse(resource, device_id + tail)
    assert (longer, mark) != (ref, replica) or isinstance(ref, (Unrecognised, Advisory))


@pytest.mark.parametrize("piece", ["GPU-", "0-", "-_-", "-a", "0", "::1", "/"])
@pytest.mark.parametrize("resource", [PLAIN, "volcano.sh/gpu-memory", "aliyun.com/gpu-mem"])
def test_long_ids_cost_little(piece: str, resource: str) -> None:
    """A hostile id of half a megabyte is read in linear time."""
    text = "gpu-1-mig-1g" + piece * (500_000 // len(piece))
    start = time.process_time()
    device_ids.parse(resource, text)
    device_ids.parse_dra("gpu.nvidia.com", text)
    device_ids.is_gpu(resource, text)
    assert time.process_time() - start < 2.0
