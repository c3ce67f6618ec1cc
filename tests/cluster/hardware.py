"""The cluster node's GPUs: device files that open in a container, and the driver that lists who has them.

Real: character devices of the kernel, with their own numbers, made in a container by the runtime and allowed
there by the device plugin's word; what processes have open. Stand-in: the drivers behind the numbers, named
by a substitute /proc/devices, and NVML, whose process lists are read from /proc ten times a second: a GPU
lists who has its file open, a MIG device who has its capability open, with the memory that its command line
names.

| NVIDIA file | stands in | why |
|---|---|---|
| nvidiaN | vcs, major 7: consoles 0 and 1 as text, unicode, attributes | six that anybody may open |
| nvidia-uvm, nvidia-uvm-tools | cpuid, major 203, of the first two processors | a minor 0 of its own |
| nvidia-caps | misc devices: fuse, loop-control, autofs, btrfs-control | few processes hold them |

None of these is in a container unless it was given (zero, full, random, tty are in each; a pty's node that is
made outside its devpts does not open). There is no nvidiactl: nothing here depends on it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.rig import sysfs
from tests.rig.devices import devices_text
from tests.rig.errors import RigError
from tests.rig.hardware import DRIVER, Gpu, Mig, Row, Target
from tests.rig.nvml import build as nvml_build
from tests.rig.nvml import node as nvml
from tests.rig.proc import SubstituteProc

GPU_MAJOR, UVM_MAJOR, CAPS_MAJOR = 7, 203, 10
MINORS = (0, 1, 64, 65, 128, 129)
UVM = (UVM_MAJOR, 0)
CAPS = (229, 237, 235, 234)
DEVICES = f"{GPU_MAJOR} nvidia\n{UVM_MAJOR} nvidia-uvm\n{CAPS_MAJOR} nvidia-caps\n"
PERIOD = 0.1
MIB = nvml.MIB
PROGRAM = b"/worker\0use\0"


class Hardware:
    """Two whole GPUs, one cut in two MIG devices, and one that is shared by four replicas."""

    def __init__(self, root: Path) -> None:
        """`root` is a workspace's: device nodes and mounts work there."""
        self.dev = root / "dev"
        self.proc = SubstituteProc(root, devices_text(DEVICES))
        self.sysfs = sysfs.Sysfs(root / "sys")
        self.gpus: list[Gpu] = []
        self.extra: nvml.Object = {}
        self._build()
        library = nvml_build.build(root / "nvml-build")
        self.nvml = root / "nvml"
        self._document = nvml.place(library, self.nvml, nvml.node())
        # A link would lead out of the folder that the exporter's pod has mounted.
        (self.nvml / library.name).unlink()
        os.link(library, self.nvml / library.name)
        self._written: nvml.Object = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def whole(self) -> list[Gpu]:
        """The GPUs that are given whole."""
        return self.gpus[:2]

    @property
    def mig(self) -> list[Mig]:
        """The MIG devices."""
        return self.gpus[2].instances

    @property
    def shared(self) -> Gpu:
        """The GPU that is shared."""
        return self.gpus[3]

    def files(self, target: Target) -> list[str]:
        """The files below /dev that a container needs to work on this device."""
        gpu = target if isinstance(target, Gpu) else target.gpu
        caps = target.caps or () if isinstance(target, Mig) else ()
        return ["nvidia-uvm", f"nvidia{gpu.minor}", *(f"nvidia-caps/nvidia-cap{one}" for one in caps)]

    def resources(self) -> dict[str, dict[str, list[str]]]:
        """What a device plugin offers: resource, id, files."""
        found: dict[str, dict[str, list[str]]] = {}
        for target in (one for gpu in self.gpus for one in gpu.targets()):
            for identity in target.device_ids:
                found.setdefault(target.resource, {})[identity] = self.files(target)
        return found

    def holders(self) -> dict[int, set[tuple[int, int]]]:
        """Of each worker the device numbers that it has open, by its pid on the host."""
        return {pid: numbers for pid, numbers, _ in _workers() if numbers}

    def look(self) -> None:
        """Let NVML list who has what open now."""
        with self._lock:
            for target in (one for gpu in self.gpus for one in gpu.targets()):
                target.rows.clear()
            for pid, numbers, memory in _workers():
                for gpu in self.gpus:
                    self._list(gpu, Row(pid, memory * MIB), numbers)
            document = nvml.node(*[gpu.document() for gpu in self.gpus], driver_version=DRIVER) | self.extra
            if document != self._written:
                nvml.write(self._document, document)
                self._written = document

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()

    def _list(self, gpu: Gpu, row: Row, numbers: set[tuple[int, int]]) -> None:
        if gpu.mig:
            for one in gpu.instances:
                if one.caps and (CAPS_MAJOR, one.caps[1]) in numbers:
                    one.rows.append(row)
        elif (GPU_MAJOR, gpu.minor) in numbers:
            gpu.rows.append(row)

    def _watch(self) -> None:
        while not self._ended.wait(PERIOD):
            self.look()

    def _build(self) -> None:
        (self.dev / "nvidia-caps").mkdir(parents=True)
        self._node("nvidia-uvm", *UVM)
        for index, minor in enumerate(MINORS[:4]):
            address = f"0000:{0x3B + index:02x}:00.0"
            gpu = Gpu(index, nvml.gpu_uuid(index), minor, address, mig=index == 2, replicas=4 * (index == 3))
            self._node(f"nvidia{minor}", GPU_MAJOR, minor)
            self.sysfs.add(address)
            self.proc.write_driver(
                sysfs.information(gpu.uuid, minor, address, name=gpu.name, firmware=DRIVER)
            )
            self.gpus.append(gpu)
        for minor in CAPS:
            self._node(f"nvidia-caps/nvidia-cap{minor}", CAPS_MAJOR, minor)
        parent = self.gpus[2]
        for slot in range(2):
            caps = (CAPS[2 * slot], CAPS[2 * slot + 1])
            identity = f"MIG-{parent.index:08x}-0000-5000-8000-{slot:012x}"
            parent.instances.append(
                Mig(parent, identity, slot, slot + 7, 0, "1g.5gb", 4864 * MIB, slot, caps)
            )
        lines: list[tuple[int, int, int | None, int]] = []
        for one in parent.instances:
            assert one.caps is not None
            lines += [(parent.minor, one.gi, None, one.caps[0]), (parent.minor, one.gi, one.ci, one.caps[1])]
        self.proc.write_driver(sysfs.mig_capabilities(lines) | sysfs.version(DRIVER))

    def _node(self, name: str, major: int, minor: int) -> None:
        path = self.dev / name
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            path.chmod(0o666)
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError as error:
            raise RigError(
                f"the character device {major}:{minor} does not open here ({error.strerror}): the cluster's"
                " stand-ins for GPUs are vcs (7), cpuid (203) and misc (10), see tests/cluster/hardware.py"
            ) from error


def _workers() -> Iterator[tuple[int, set[tuple[int, int]], int]]:
    """Pid, open device numbers and MiB of each worker."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes()
            if not words.startswith(PROGRAM):
                continue
            numbers = set(_open_devices(f"/proc/{entry}/fd"))
        except OSError:
            continue
        said = [word[7:] for word in words.split(b"\0") if word.startswith(b"memory=")]
        yield int(entry), numbers, int(said[0]) if said else 1024


def _open_devices(folder: str) -> Iterator[tuple[int, int]]:
    for name in os.listdir(folder):
        found = os.stat(f"{folder}/{name}")
        if stat.S_ISCHR(found.st_mode):
            yield os.major(found.st_rdev), os.minor(found.st_rdev)
