"""PCI devices as sysfs shows them, and the texts of the NVIDIA driver's procfs files.

Real: directories, links and files in the kernel's layout. Stand-in: the devices and what the texts say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

NVIDIA = 0x10DE
CLASS_3D = 0x030200
CLASS_VGA = 0x030000


class Sysfs:
    """A tree at `root` with bus/pci/devices links into devices/, as /sys has them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._links = root / "bus" / "pci" / "devices"
        self._links.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        address: str,
        *,
        vendor: int = NVIDIA,
        device: int = 0x20B2,
        class_: int = CLASS_3D,
        driver: str | None = "nvidia",
        numa_node: int = 0,
        physfn: str | None = None,
    ) -> Path:
        """Add a device by its address, such as 0000:01:00.0. `physfn` makes it another's virtual function."""
        folder = self.root / "devices" / f"pci{address[:7]}" / address
        folder.mkdir(parents=True)
        texts = {
            "vendor": f"0x{vendor:04x}",
            "device": f"0x{device:04x}",
            "subsystem_vendor": f"0x{vendor:04x}",
            "subsystem_device": "0x1463",
            "class": f"0x{class_:06x}",
            "revision": "0xa1",
            "numa_node": str(numa_node),
            "enable": "1",
            "irq": "16",
        }
        for name, text in texts.items():
            (folder / name).write_text(text + "\n")
        link = self._links / address
        link.symlink_to(os.path.relpath(folder, link.parent))
        if physfn is not None:
            (folder / "physfn").symlink_to(f"../{physfn}")
        if driver is not None:
            self.bind(address, driver)
        return folder

    def bind(self, address: str, driver: str | None) -> None:
        """Bind a device to a driver, or to none."""
        folder = (self._links / address).resolve()
        (folder / "driver").unlink(missing_ok=True)
        if driver is not None:
            home = self.root / "bus" / "pci" / "drivers" / driver
            home.mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(os.path.relpath(home, folder))

    def remove(self, address: str) -> None:
        """Remove a device from the bus, as when it fell off."""
        (self._links / address).unlink()


def information(uuid: str, minor: int, address: str, *, name: str, firmware: str) -> dict[str, str]:
    """The procfs file of one GPU, by its path below /proc/driver."""
    text = (
        f"Model: \t\t {name}\n"
        "IRQ:   \t\t 190\n"
        f"GPU UUID: \t {uuid}\n"
        "Video BIOS: \t 92.00.19.00.01\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {address}\n"
        f"Device Minor: \t {minor}\n"
        f"GPU Firmware: \t {firmware}\n"
        "GPU Excluded:\t No\n"
    )
    return {f"nvidia/gpus/{address}/information": text}


def version(driver: str) -> dict[str, str]:
    """The procfs file that names the loaded kernel module."""
    text = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    return {"nvidia/version": text}


def mig_capabilities(instances: Iterable[tuple[int, int, int | None, int]]) -> dict[str, str]:
    """mig-minors and the files of live instances: (gpu minor, gi, ci or None, capability minor)."""
    lines = ["config 1", "monitor 2"]
    files = {}
    for gpu, gi, ci, capability in instances:
        leaf = f"gi{gi}" if ci is None else f"gi{gi}/ci{ci}"
        lines.append(f"gpu{gpu}/{leaf}/access {capability}")
        files[f"nvidia/capabilities/gpu{gpu}/mig/{leaf}/access"] = (
            f"DeviceFileMinor: {capability}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        )
    files["nvidia-caps/mig-minors"] = "\n".join(lines) + "\n"
    return files
