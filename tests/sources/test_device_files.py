"""Which device a file is: by the kernel's number and the majors of the driver that is loaded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.model import CapabilityNode, DeviceNode, NodeKind
from exporter.sources.device_files import Majors, capabilities, file_number
from tests.rig.mounts import Workspace

NEW = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
234 nvidia-nvswitch
235 nvidia-caps
236 nvidia-caps-imex-channels
237 nvidia-nvlink
511 nvidia-uvm

Block devices:
  8 sd
259 nvidia-uvm
"""
OLD = "Character devices:\n195 nvidia-frontend\n510 nvidia-uvm\n\nBlock devices:\n"


@pytest.mark.parametrize(
    ("text", "number", "kind"),
    [
        (NEW, (195, 0), NodeKind.GPU),
        (NEW, (195, 247), NodeKind.GPU),
        (NEW, (195, 254), NodeKind.MODESET),
        (NEW, (195, 255), NodeKind.CONTROL),
        (NEW, (511, 0), NodeKind.UVM),
        (NEW, (511, 1), NodeKind.UVM_TOOLS),
        (NEW, (235, 1), NodeKind.CAPABILITY),
        (NEW, (235, 254), NodeKind.CAPABILITY),
        (NEW, (236, 3), NodeKind.IMEX),
        (NEW, (234, 255), NodeKind.NVSWITCH),
        (NEW, (237, 0), NodeKind.NVLINK),
        (OLD, (195, 1), NodeKind.GPU),
        (OLD, (510, 0), NodeKind.UVM),
        ("Character devices:\n511 nvidia-uvm\n", (195, 0), NodeKind.GPU),
    ],
)
def test_every_node_of_the_driver_is_known_by_number(
    text: str, number: tuple[int, int], kind: NodeKind
) -> None:
    """Most majors are dynamic; 195 is the front end's in every driver, whatever it is called."""
    assert Majors(text).node(number) == DeviceNode(kind, *number)


@pytest.mark.parametrize("number", [None, (1, 3), (259, 0), (196, 0), (510, 0)])
def test_other_numbers_are_none(number: tuple[int, int] | None) -> None:
    """Block devices have majors of their own."""
    assert Majors(NEW).node(number) is None


@pytest.mark.parametrize(
    "text", ["", "Character devices:\n  1 mem\n195 nvidiafb\n", "nonsense\x00", "x nvidia\n"]
)
def test_without_the_driver_there_is_no_node(text: str) -> None:
    """Not even with major 195, which nothing answers then."""
    assert not Majors(text)
    assert Majors(text).node((195, 0)) is None


MINORS = "config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\ngpu31/gi14/ci7/access 9999\n"


def test_capability_minors_are_told(tmp_path: Path) -> None:
    """GPU and compute instance access; config and monitor open no device. None without MIG."""
    assert capabilities(tmp_path) == ()
    (tmp_path / "driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "driver/nvidia-caps/mig-minors").write_text(MINORS)
    assert capabilities(tmp_path) == (
        CapabilityNode(30, 0, 3, None),
        CapabilityNode(31, 0, 3, 0),
        CapabilityNode(9999, 31, 14, 7),
    )


@pytest.fixture
def folder() -> Iterator[tuple[Path, int]]:
    with Workspace("1m") as workspace:
        directory = os.open(workspace.path, os.O_RDONLY | os.O_DIRECTORY)
        yield workspace.path, directory
        os.close(directory)


def test_a_file_is_what_its_inode_says(folder: tuple[Path, int]) -> None:
    """Character devices by number, everything else by none; links are followed only where asked."""
    path, directory = folder
    os.mknod(path / "char", stat.S_IFCHR | 0o600, os.makedev(195, 300))
    os.mknod(path / "block", stat.S_IFBLK | 0o600, os.makedev(195, 0))
    os.mkfifo(path / "fifo")
    (path / "file").touch()
    (path / "link").symlink_to("char")
    found = file_number(directory, "char", follow=False)
    real = os.stat(path / "char")
    assert found.character == (195, 300)
    assert found.inode == real.st_ino
    assert found.filesystem == (os.major(real.st_dev), os.minor(real.st_dev))
    for name in ("block", "fifo", "file", "."):
        assert file_number(directory, name, follow=True).character is None
    assert file_number(directory, "link", follow=False).character is None
    assert file_number(directory, "link", follow=True).character == (195, 300)


def test_a_file_that_is_not_there_is_an_error_of_its_kind(folder: tuple[Path, int]) -> None:
    """A closed descriptor is told from one that may not be asked about."""
    _, directory = folder
    with pytest.raises(FileNotFoundError):
        file_number(directory, "nothing", follow=True)
    with open("/dev/null", "rb") as file, pytest.raises(NotADirectoryError):
        file_number(file.fileno(), "x", follow=True)


def test_the_name_of_a_file_may_be_no_text(folder: tuple[Path, int]) -> None:
    """A hostile name is asked about like any other."""
    path, directory = folder
    with open(os.fsencode(path) + b"/\xff\xfe\n", "w", encoding="ascii"):
        pass
    (name,) = os.listdir(directory)
    assert file_number(directory, name, follow=False).character is None
