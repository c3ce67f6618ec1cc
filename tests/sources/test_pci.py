"""The pci source on trees as sysfs and the NVIDIA driver lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporter.model import Pci, PciGpu, Reason, SourceError
from exporter.sources.pci import PciSource

A = "0000:3b:00.0"
B = "0000:af:00.0"
GPU = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


class Bus:
    """A PCI bus and a driver's files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.sysfs = folder / "sys"
        self.procfs = folder / "proc"
        self.devices = self.sysfs / "bus/pci/devices"
        self.devices.mkdir(parents=True)
        self.procfs.mkdir()

    def add(
        self, address: str, vendor: str = "0x10de", kind: str = "0x030200", driver: str = "nvidia"
    ) -> Path:
        """A device, linked from the bus as sysfs does."""
        device = self.sysfs / "devices/pci0000:3a" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        (self.devices / address).symlink_to(device)
        if driver:
            self.bind(address, driver)
        return device

    def bind(self, address: str, driver: str) -> None:
        """Bind a device to a driver."""
        target = self.sysfs / "bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        link = self.devices / address / "driver"
        fresh = link.with_name("driver.new")  # made beside the old one, so that it has another inode
        fresh.symlink_to(target)
        fresh.rename(link)

    def inform(self, address: str, minor: object = 0, uuid: str = GPU) -> Path:
        """What the driver says of a GPU, with its own tabs and blanks."""
        folder = self.procfs / "driver/nvidia/gpus" / address
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            "Model: \t\t NVIDIA H100 80GB HBM3",
            "IRQ:   \t\t 42",
            f"GPU UUID: \t {uuid}",
            "Video BIOS: \t 96.00.74.00.01",
            "Bus Type: \t PCIe",
            f"Bus Location: \t {address}",
            f"Device Minor: \t {minor}",
            "GPU Excluded:\t No",
        ]
        (folder / "information").write_text("\n".join(lines) + "\n")
        return folder / "information"

    def source(self) -> PciSource:
        return PciSource(self.sysfs, self.procfs)


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    return Bus(tmp_path)


def test_gpus_with_driver(bus: Bus) -> None:
    """Each GPU has its driver, minor and UUID, in order of address."""
    bus.add(B)
    bus.inform(B, 1, GPU.replace("4c", "5c"))
    bus.add(A, kind="0x030000")
    bus.inform(A, 0)
    gpus = (PciGpu(A, "nvidia", 0, GPU), PciGpu(B, "nvidia", 1, GPU.replace("4c", "5c")))
    assert bus.source().read() == (Pci(gpus), True)


@pytest.mark.parametrize(
    ("vendor", "kind"),
    [
        ("0x8086", "0x030000"),  # another vendor's GPU
        ("0x10de", "0x040300"),  # a GPU's audio function
        ("0x10de", "0x0c0330"),  # its USB controller
        ("0x10de", "0x068000"),  # an NVSwitch
        ("0x15b3", "0x020700"),  # a network card
    ],
)
def test_other_devices(bus: Bus, vendor: str, kind: str) -> None:
    """Vendor 10de and class 0300 or 0302 make a GPU."""
    bus.add(A, vendor, kind)
    assert bus.source().read() == (Pci(()), True)


def test_virtual_functions(bus: Bus) -> None:
    """A slice of a GPU on the bus is not one more GPU."""
    physical = bus.add(A)
    bus.inform(A)
    for function in range(1, 4):
        (bus.add(f"0000:3b:00.{function}") / "physfn").symlink_to(physical)
    assert bus.source().read() == (Pci((PciGpu(A, "nvidia", 0, GPU),)), True)


@pytest.mark.parametrize("driver", ["", "vfio-pci", "nouveau"])
def test_gpu_of_another_driver(bus: Bus, driver: str) -> None:
    """A GPU that the NVIDIA driver does not have is on the bus all the same."""
    bus.add(A, driver=driver)
    assert bus.source().read() == (Pci((PciGpu(A, driver),)), True)


def test_gpu_that_was_never_initialised(bus: Bus) -> None:
    """A UUID of question marks is none; it is asked for again until there is one."""
    bus.add(A)
    bus.inform(A, 3, "GPU-????????-????-????-????-????????????")
    source = bus.source()
    assert source.read()[0].gpus == (PciGpu(A, "nvidia", 3, ""),)
    bus.inform(A, 3)
    assert source.read()[0].gpus == (PciGpu(A, "nvidia", 3, GPU),)


def test_driver_is_asked_once(bus: Bus) -> None:
    """What is known is not asked again, for asking wakes a suspended GPU, until the GPU is bound anew."""
    bus.add(A)
    information = bus.inform(A, 3)
    source = bus.source()
    source.read()
    information.write_text("nothing")
    assert source.read()[0].gpus == (PciGpu(A, "nvidia", 3, GPU),)
    bus.inform(A, 4)
    bus.bind(A, "nvidia")
    assert source.read()[0].gpus == (PciGpu(A, "nvidia", 4, GPU),)


def test_gpu_that_changes_hands(bus: Bus) -> None:
    """A GPU given to a virtual machine keeps nothing of what the NVIDIA driver said."""
    bus.add(A)
    information = bus.inform(A, 3)
    source = bus.source()
    source.read()
    information.unlink()
    bus.bind(A, "vfio-pci")
    assert source.read()[0].gpus == (PciGpu(A, "vfio-pci"),)


@pytest.mark.parametrize("text", ["", "Device Minor: x\n", "Device Minor: \t 99999999999\n", "\xff" * 5000])
def test_information_that_says_nothing(bus: Bus, text: str) -> None:
    """What is not said is not known."""
    bus.add(A)
    bus.inform(A).write_bytes(text.encode("latin-1"))
    assert bus.source().read() == (Pci((PciGpu(A, "nvidia"),)), True)


def test_device_that_vanishes(bus: Bus) -> None:
    """A device that is unplugged while we look is gone; one that cannot be read costs completeness."""
    (bus.add(A) / "vendor").unlink()
    assert bus.source().read() == (Pci(()), True)
    unreadable = bus.add(B) / "vendor"
    unreadable.unlink()
    unreadable.mkdir()
    assert bus.source().read() == (Pci(()), False)


def test_names_that_are_no_address(bus: Bus) -> None:
    """Only what is named like a PCI address is looked at."""
    os.mkfifo(bus.devices / "fifo")
    (bus.devices / "x").symlink_to("/")
    assert bus.source().read() == (Pci(()), True)


def test_no_bus(tmp_path: Path) -> None:
    """Without a PCI bus there is nothing to compare with, which is not the same as no GPU."""
    with pytest.raises(SourceError) as caught:
        PciSource(tmp_path / "sys", tmp_path / "proc").read()
    assert caught.value.reason is Reason.UNAVAILABLE
    assert "--path.sysfs" in caught.value.detail


def test_on_this_machine() -> None:
    """The real sysfs can be read, or has no PCI bus."""
    source = PciSource(Path("/sys"), Path("/proc"))
    if Path("/sys/bus/pci/devices").is_dir():
        assert source.read()[1]
    else:
        with pytest.raises(SourceError):
            source.read()
