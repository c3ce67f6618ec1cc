"""What a container's /dev shows: real containers of the rig, and file trees that are out to deceive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.model import ContainerView, DeviceNode, LiveContainer, NodeKind, ProcessId, Reason, SourceError
from exporter.sources.container_dev import REFRESH, Viewer
from tests.rig import proctree
from tests.rig.devices import PTS_MAJOR
from tests.rig.mounts import MS_BIND, Workspace, mount
from tests.rig.proctree import ProcTree
from tests.rig.rig import Rig

UID = "3b1f7c52-8d0e-4a6b-9c11-5e2d7f80aa14"
GPU = DeviceNode(NodeKind.GPU, 195, 0)


# ---------------------------------------------------------------- real containers


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


def _container(rig: Rig, name: str, visible: int) -> LiveContainer:
    """A real container that uses the first GPU of the rig and sees the first few."""
    while len(rig.gpus) < 2:
        rig.add_gpu()
    pod = rig.add_pod("team-a", name, {"main": [rig.gpus[0]]})
    nodes = [rig.devices.gpu(gpu.minor) for gpu in rig.gpus[:visible]]
    process = rig.add_process(
        pod, "main", rig.gpus[0], visible=[*nodes, rig.devices.ctl(), rig.devices.uvm_tools()]
    )
    return LiveContainer(pod.uid, pod.ids["main"], ProcessId(process.pid, process.holder.start_time))


@pytest.mark.parametrize("visible", [1, 2])
def test_a_container_shows_the_nodes_that_it_was_given(rig: Rig, visible: int) -> None:
    """Those in its own /dev by number: bound as the toolkit does, or made with mknod."""
    container = _container(rig, f"view-{visible}", visible)
    (view,) = Viewer(rig.proc.path).look([container]).views
    assert view.unseen == ""
    assert (view.pod_uid, view.container_id) == (container.pod_uid, container.container_id)
    minors = [node.minor for node in view.nodes if node.kind is NodeKind.GPU]
    assert minors == sorted(gpu.minor for gpu in rig.gpus[:visible])
    assert {node.kind for node in view.nodes} == {NodeKind.GPU, NodeKind.CONTROL, NodeKind.UVM_TOOLS}
    assert {node.major for node in view.nodes} == {PTS_MAJOR, 5}


def test_a_process_in_the_hosts_root_shows_the_hosts_dev(rig: Rig) -> None:
    """Where the host's /dev is a tmpfs or devtmpfs it is listed, else it is unseen; never empty by luck."""
    container = LiveContainer(UID, "a" * 64, ProcessId(os.getpid(), _start(os.getpid())))
    (view,) = Viewer(rig.proc.path).look([container]).views
    kinds = [line.split(" - ")[1].split()[0] for line in _mountinfo() if line.split()[4] == "/dev"]
    assert (view.unseen == "") == (bool(kinds) and kinds[-1] in ("tmpfs", "devtmpfs"))


def test_a_container_that_ended_is_unseen(rig: Rig) -> None:
    """Neither its successor under the same pid nor nothing at all passes for its /dev."""
    own = ProcessId(os.getpid(), _start(os.getpid()) - 1)
    gone = ProcessId(2**22 - 1, 1)
    views = Viewer(rig.proc.path).look(
        [LiveContainer(UID, "a" * 64, own), LiveContainer(UID, "b" * 64, gone)]
    )
    assert [view.unseen for view in views.views] == ["gone", "gone"]


def test_a_zombie_does_not_end_the_look(rig: Rig) -> None:
    """A container that dies between the scan and the look is unseen, and the others are seen."""
    alive = _container(rig, "beside-a-zombie", 1)
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        dead = LiveContainer(UID, "a" * 64, ProcessId(child.pid, _start(child.pid)))
        views = Viewer(rig.proc.path).look([dead, alive]).views
    assert [bool(view.unseen) for view in views] == [True, False]


def _start(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _mountinfo() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


# ---------------------------------------------------------------- trees that deceive


class Box:
    """A recorded process whose root is a directory of ours, with a /dev that is a real tmpfs."""

    def __init__(self, folder: Path) -> None:
        self.tree = ProcTree(folder / "proc")
        self.root = folder / "rootfs"
        self.dev = self.root / "dev"
        self.dev.mkdir(parents=True)
        mount("tmpfs", self.dev, "tmpfs", 0, "size=1m")
        self.number = os.stat(self.dev).st_dev
        self.enter()

    def enter(self, kind: str = "tmpfs", point: str = "/dev", more: str = "") -> None:
        """Write the process; `kind` and `point` are what its mountinfo says."""
        device = f"{os.major(self.number)}:{os.minor(self.number)}"
        info = f"22 1 8:1 / / rw - ext4 /dev/root rw\n23 22 {device} / {point} rw - {kind} tmpfs rw\n{more}"
        if (self.tree.root / "100").exists():
            self.tree.remove(100)
        self.tree.add(proctree.Process(100, start=5, root=self.root, mountinfo=info))

    def view(self) -> ContainerView:
        container = LiveContainer(UID, "a" * 64, ProcessId(100, 5))
        (view,) = Viewer(self.tree.root).look([container]).views
        return view

    def node(self, name: str, minor: int = 0, major: int = 195) -> None:
        path = self.dev / name
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, 0o20666, os.makedev(major, minor))


@pytest.fixture
def box() -> Iterator[Box]:
    with Workspace("16m") as workspace:
        yield Box(workspace.path)


def test_nodes_are_known_by_number_and_not_by_name(box: Box) -> None:
    """Names lie in both directions; capability nodes lie one level below."""
    box.node("nvidia5", 5, 1)
    box.node("innocent", 0)
    box.node("nvidia-caps/nvidia-cap31", 31, 235)
    view = box.view()
    assert view.unseen == ""
    assert view.nodes == (DeviceNode(NodeKind.CAPABILITY, 235, 31), GPU)


def test_links_and_pipes_are_neither_followed_nor_opened(box: Box) -> None:
    """A link to the host's GPU shows nothing, a FIFO holds nobody up, a link in place of a folder is none."""
    outside = box.tree.gpu(0)
    (box.dev / "nvidia0").symlink_to(outside)
    os.mkfifo(box.dev / "nvidia1")
    (box.dev / "nvidia-caps").symlink_to(outside.parent)
    assert box.view().nodes == ()


def test_what_it_runs_and_whose_dev_it_is(box: Box) -> None:
    """The executable that is asked; and a /dev is the host's where pid 1 has the same."""
    view = box.view()
    assert (view.exe, view.host) == ("/usr/bin/python3", False)
    device = f"{os.major(box.number)}:{os.minor(box.number)}"
    info = f"22 1 8:1 / / rw - ext4 /dev/root rw\n23 22 {device} / /dev rw - devtmpfs udev rw\n"
    if (box.tree.root / "1").exists():
        box.tree.remove(1)
    box.tree.add(proctree.Process(1, start=1, root=box.root, mountinfo=info))
    assert box.view().host


@pytest.mark.parametrize("kind", ["fuse.evil", "overlay", "nfs4", "ext4"])
def test_a_dev_on_another_file_system_is_unseen(box: Box, kind: str) -> None:
    """It may hang whoever lists it."""
    box.node("nvidia0")
    box.enter(kind)
    assert box.view().unseen == f"/dev is {kind}"
    assert box.view().nodes == ()


def test_the_mount_on_top_counts(box: Box) -> None:
    """A second mount over a harmless /dev is what would be entered."""
    box.enter(more="24 23 0:99 / /dev rw - fuse.evil evil rw\n")
    assert box.view().unseen == "/dev is fuse.evil"


def test_a_dev_that_is_no_mount_or_no_directory_is_unseen(box: Box) -> None:
    """Nothing is said about what was not looked at."""
    box.enter(point="/other")
    assert box.view().unseen == "/dev is no mount of its own"
    box.enter()
    box.number += 1
    box.enter()
    assert box.view().unseen == "/dev changed while it was looked at"


def test_a_link_in_place_of_dev_is_unseen(box: Box) -> None:
    """A container may swap its /dev for a way out."""
    box.root = box.root.with_name("swapped")
    box.root.mkdir()
    (box.root / "dev").symlink_to(box.tree.gpu(0).parent)
    box.enter()
    assert box.view().unseen == "no directory /dev"


def test_another_mount_where_capabilities_lie_is_unseen(box: Box) -> None:
    """A host's nvidia-caps that is mounted into a container is not an absence of capabilities."""
    box.node("nvidia0")
    (box.dev / "nvidia-caps").mkdir()
    mount("tmpfs", box.dev / "nvidia-caps", "tmpfs", 0, "size=1m")
    box.node("nvidia-caps/nvidia-cap31", 31, 235)
    assert "nvidia-caps" in box.view().unseen


def test_two_containers_with_one_dev_are_told_apart_by_what_is_mounted_in_it(box: Box) -> None:
    """A listing stands for another container only where the same is mounted at /dev and below it."""
    device = f"{os.major(box.number)}:{os.minor(box.number)}"
    info = f"22 1 8:1 / / rw - ext4 /dev/root rw\n23 22 {device} / /dev rw - tmpfs tmpfs rw\n"
    box.node("nvidia0")
    (box.dev / "nvidia-caps").mkdir()
    other = box.root.with_name("other")
    (other / "dev").mkdir(parents=True)
    mount(str(box.dev), other / "dev", None, MS_BIND)
    mount("tmpfs", other / "dev/nvidia-caps", "tmpfs", 0, "size=1m")
    more = "24 23 0:777 / /dev/nvidia-caps rw - tmpfs tmpfs rw\n"
    box.tree.add(proctree.Process(101, start=5, root=box.root, mountinfo=info))
    box.tree.add(proctree.Process(102, start=5, root=other, mountinfo=info + more))
    look = [LiveContainer(UID, str(pid) * 20, ProcessId(pid, 5)) for pid in (100, 101, 102)]
    first, second, third = Viewer(box.tree.root).look(look).views
    assert first.nodes == second.nodes == (GPU,)
    assert "nvidia-caps" in third.unseen


def test_a_dev_with_too_many_entries_is_unseen(box: Box) -> None:
    """A container cannot make the agent list a million names in every scan."""
    for number in range(4_200):
        (box.dev / f"x{number}").touch()
    assert "4200 entries" in box.view().unseen


def test_a_view_is_refreshed_within_a_few_scans(box: Box) -> None:
    """Nodes can be made later: each container is looked at again in one of REFRESH scans."""
    viewer = Viewer(box.tree.root)
    container = [LiveContainer(UID, "a" * 64, ProcessId(100, 5))]
    assert viewer.look(container).views[0].nodes == ()
    box.node("nvidia0")
    seen = [viewer.look(container).views[0].nodes for _ in range(REFRESH)]
    assert seen[-1] == (GPU,)


def test_without_a_list_of_majors_nothing_can_be_told(box: Box) -> None:
    """A missing /proc/devices is an error and not a node without GPUs."""
    (box.tree.root / "devices").unlink()
    with pytest.raises(SourceError) as caught:
        box.view()
    assert caught.value.reason is Reason.UNAVAILABLE
