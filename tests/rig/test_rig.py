"""The rig's parts are real: the kernel itself shows what the rig says it made."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.cgroups import ControlGroups, Driver
from tests.rig.devices import Devices
from tests.rig.errors import RigError
from tests.rig.hardware import GIB
from tests.rig.holder import Holder, Orders, process_state, start_time
from tests.rig.mounts import Workspace, mounted_below
from tests.rig.proc import substitute_proc
from tests.rig.rig import Rig


@pytest.fixture
def workspace() -> Iterator[Path]:
    with Workspace() as made:
        yield made.path


@pytest.fixture
def devices(workspace: Path) -> Iterator[Devices]:
    with Devices(workspace) as made:
        yield made


@pytest.fixture
def memory_devices(workspace: Path) -> Iterator[Devices]:
    with Devices(workspace, memory=True) as made:
        yield made


def rdevs(pid: int, folder: str = "fd") -> list[tuple[int, int]]:
    """Device numbers that the kernel shows behind a process's descriptors or mappings."""
    found = []
    for entry in sorted(os.scandir(f"/proc/{pid}/{folder}"), key=lambda entry: entry.name):
        try:
            number = os.stat(entry.path).st_rdev
        except OSError:
            continue
        found.append((os.major(number), os.minor(number)))
    return found


def link(pid: int, fd: int) -> bytes:
    return os.readlink(os.fsencode(f"/proc/{pid}/fd/{fd}"))


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 3
    while process_state(pid) != state:
        assert time.monotonic() < deadline, f"{pid} is {process_state(pid)}, not {state}"
        time.sleep(0.01)


# ---------------------------------------------------------------- devices


def test_a_descriptor_shows_the_gpu_number_and_any_name(devices: Devices) -> None:
    plain = devices.gpu(41)
    odd = devices.gpu(42, b"nvi\ndia \xff")
    with Holder(Orders().open(plain.path).open(odd.path).open(devices.ctl().path)) as holder:
        assert [number for number in rdevs(holder.pid) if number[0] == 136] == [
            (136, 41),
            (136, 42),
            (136, 255),
        ]
        assert link(holder.pid, holder.fds[0]) == os.fsencode(plain.path)
        assert link(holder.pid, holder.fds[1]).endswith(b"nvi\ndia \xff")


def test_nvidia_uvm_is_opened_and_inherited(devices: Devices) -> None:
    with Holder(Orders().uvm(devices).open(devices.gpu(40).path).fork(1)) as holder:
        for pid in (holder.pid, *holder.children):
            assert {(5, 0), (136, 40)} <= set(rdevs(pid))
        assert link(holder.pid, holder.fds[0]).endswith(b"/nvidia-uvm")


def test_the_rig_itself_holds_no_device(devices: Devices) -> None:
    devices.terminal()
    assert not {136, 5} & {major for major, minor in rdevs(os.getpid()) if minor in (2, *range(20, 256))}


def test_mapped_and_deleted_nodes(memory_devices: Devices) -> None:
    node = memory_devices.gpu(5)
    with Holder(Orders().map(node.path).open(node.path).unlink(node.path)) as holder:
        assert (1, 5) in rdevs(holder.pid, "map_files")
        assert link(holder.pid, holder.fds[0]) == os.fsencode(node.path) + b" (deleted)"
        assert f"{node.path} (deleted)" in Path(f"/proc/{holder.pid}/maps").read_text()


def test_a_path_descriptor_says_so(devices: Devices) -> None:
    with Holder(Orders().opath(devices.gpu(40).path)) as holder:
        flags = Path(f"/proc/{holder.pid}/fdinfo/{holder.fds[0]}").read_text().split("flags:")[1].split()[0]
        assert int(flags, 8) & 0o10000000


def test_capability_nodes_open(devices: Devices) -> None:
    node = devices.caps()[0]
    with Holder(Orders().open(node.path)) as holder:
        assert (10, node.minor) in rdevs(holder.pid)


def test_a_minor_without_stand_in_is_an_error(devices: Devices) -> None:
    with pytest.raises(RigError, match="minor 3"):
        devices.gpu(3)


# ---------------------------------------------------------------- proc


def test_substitute_proc_is_the_real_one_with_other_devices(workspace: Path) -> None:
    before = Path("/proc/devices").read_text()
    proc = substitute_proc(workspace, "Character devices:\n136 nvidia\n")
    proc.write_driver({"nvidia/version": "NVRM version: test\n"})
    assert (proc.path / "devices").read_text() == "Character devices:\n136 nvidia\n"
    proc.set_devices("Character devices:\n137 nvidia\n")
    assert "137 nvidia" in (proc.path / "devices").read_text()
    assert (proc.path / "driver/nvidia/version").exists()
    assert os.readlink(proc.path / "self") == str(os.getpid())
    assert Path("/proc/devices").read_text() == before
    assert not Path("/proc/driver/nvidia/version").exists()


def test_a_workspace_leaves_nothing(tmp_path: Path) -> None:
    with Workspace() as made:
        substitute_proc(made.path, "x")
        assert len(mounted_below(made.path)) == 4
    assert not mounted_below(made.path)
    assert not made.path.exists()
    assert not Path(f"{made.path}.lock").exists()


# ---------------------------------------------------------------- holders


def test_a_name_may_hold_any_byte() -> None:
    with Holder(Orders().name(b'a\n"\xff\\')) as holder:
        assert Path(f"/proc/{holder.pid}/comm").read_bytes() == b'a\n"\xff\\\n'


def test_threads_have_ids_and_a_zombie_leader_keeps_descriptors(devices: Devices) -> None:
    with Holder(Orders().open(devices.gpu(40).path).threads(2).leader_exits()) as holder:
        wait_for_state(holder.pid, "Z")
        assert len(holder.tids) == 2
        assert os.listdir(f"/proc/{holder.pid}/fd") == []
        assert (136, 40) in rdevs(holder.pid, f"task/{holder.tids[0]}/fd")


def test_children_outlive_the_parent_with_its_descriptors(devices: Devices) -> None:
    with Holder(Orders().open(devices.gpu(40).path).fork(2)) as holder:
        holder.kill()
        assert holder.state == ""
        for pid in holder.children:
            assert (136, 40) in rdevs(pid)
    assert all(process_state(pid) in {"", "Z"} for pid in holder.children)


def test_killed_and_not_reaped_is_a_zombie() -> None:
    with Holder(Orders()) as holder:
        holder.kill(reap=False)
        assert holder.state == "Z"


def test_a_double_fork_is_adopted() -> None:
    with Holder(Orders().double_fork()) as holder:
        parent = Path(f"/proc/{holder.pid}/status").read_text().split("PPid:")[1].split()[0]
        assert int(parent) != os.getpid()
    assert holder.state in {"", "Z"}


def test_vfork_waits_uninterruptibly_and_keeps_descriptors(devices: Devices) -> None:
    with Holder(Orders().open(devices.gpu(40).path).uninterruptible()) as holder:
        wait_for_state(holder.pid, "D")
        assert (136, 40) in rdevs(holder.pid)
        assert (136, 40) not in rdevs(holder.vfork_child)


def test_ignore_term_and_busy() -> None:
    with Holder(Orders().ignore_term().busy()) as holder:
        holder.signal(signal.SIGTERM)
        time.sleep(0.1)
        assert holder.state == "S"
        assert process_state(holder.tids[0]) == "R"


def test_many_descriptors() -> None:
    with Holder(Orders().many_fds(2000)) as holder:
        assert len(os.listdir(f"/proc/{holder.pid}/fd")) >= 2000


def test_an_executable_of_its_own(tmp_path: Path) -> None:
    with Holder(Orders(), exe=tmp_path / "nvidia-persistenced") as holder:
        assert os.readlink(f"/proc/{holder.pid}/exe") == str(tmp_path / "nvidia-persistenced")


def test_a_failing_order_names_itself() -> None:
    with pytest.raises(RigError, match="open /nowhere"):
        Holder(Orders().open("/nowhere"))


def test_a_container_sees_only_its_own_dev(workspace: Path, devices: Devices) -> None:
    rootfs = workspace / "rootfs"
    rootfs.mkdir()
    seen = [devices.gpu(40), devices.uvm(), devices.caps()[0]]
    with Holder(Orders().uvm(devices).container(rootfs, seen).open("/dev/nvidia40")) as holder:
        dev = Path(f"/proc/{holder.pid}/root/dev")
        assert sorted(entry.name for entry in dev.iterdir()) == ["nvidia-caps", "nvidia-uvm", "nvidia40"]
        assert os.lstat(dev / "nvidia40").st_rdev == os.makedev(136, 40)
        assert " /dev rw" in Path(f"/proc/{holder.pid}/mountinfo").read_text()
        assert link(holder.pid, holder.fds[1]) == b"/dev/nvidia40"
        assert list(rootfs.iterdir()) == []


# ---------------------------------------------------------------- control groups


@pytest.mark.parametrize("only_v2", [False, True])
@pytest.mark.parametrize(
    ("driver", "shown"),
    [
        ("cgroupfs", "/kubepods/burstable/pod{uid}/{identity}"),
        (
            "systemd",
            "/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{identity}.scope",
        ),
    ],
)
def test_the_cgroup_line_shows_pod_and_container(driver: Driver, shown: str, only_v2: bool) -> None:
    uid, identity = "3b1f7c52-8d0e-4a6b-9c11-5e2d7f80aa14", "ab" * 32
    shown = shown.format(
        uid=uid, slice=f"kubepods-burstable-pod{uid.replace('-', '_')}.slice", identity=identity
    )
    groups = ControlGroups(only_v2=only_v2)
    try:
        group = groups.container(uid, identity, driver=driver)
        with Holder(Orders().cgroup(group).fork(1)) as holder:
            for pid in (holder.pid, *holder.children):
                lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
                assert all(line.endswith(shown) for line in lines if line.startswith("0::") or not only_v2)
            groups.service("x.service").move(holder.pid)
            assert "/system.slice/x.service" in Path(f"/proc/{holder.pid}/cgroup").read_text()
    finally:
        groups.close()
    assert not any(path.parent.exists() for path in group.procs)


def test_a_frozen_process_ends_with_the_rig() -> None:
    with Rig() as rig:
        process = rig.add_host_process("frozen.service")
        group = rig.groups.service("frozen.service")
        if group.freeze() == "v1":
            wait_for_state(process.pid, "D")
    assert process_state(process.pid) == ""
    assert not any(path.exists() for path in group.procs)


# ---------------------------------------------------------------- all together


def test_a_rig_keeps_its_sources_in_step() -> None:
    with Rig() as rig:
        gpu = rig.add_gpu()
        parent = rig.add_gpu(mig=True)
        instance = rig.add_mig(parent)
        pod = rig.add_pod("team-a", "train-0", {"main": [gpu], "side": [instance]})
        first = rig.add_process(pod, "main", gpu, memory=3 * GIB)
        second = rig.add_process(pod, "side", instance, visible=[*rig.nodes_of(instance), rig.devices.uvm()])
        third = rig.add_host_process("x.service", gpu, listed=False, uvm=False)

        for process in (first, second, third):
            numbers = rdevs(process.pid)
            assert ((5, 0) in numbers) == (process is not third)
            assert (136, 41 if process is second else 40) in numbers
        assert pod.uid in Path(f"/proc/{first.pid}/cgroup").read_text()
        rows = {(row.pid, row.uuid, row.gi): row for row in rig.oracle()}
        assert rows[first.pid, gpu.uuid, ""].memory == 3 * GIB
        assert rows[first.pid, gpu.uuid, ""].start_time == start_time(first.pid)
        assert rows[second.pid, parent.uuid, "7"].mig_uuid == instance.uuid
        assert (rows[third.pid, gpu.uuid, ""].owner, rows[third.pid, gpu.uuid, ""].memory) == ("host", None)
        assert f'"pid": {first.pid}' in rig.nvml_document.read_text()
        assert ("team-a", "train-0") in rig.api.pods
        assert (rig.logs.root / f"team-a_train-0_{pod.uid}" / "side").is_dir()
        assert "GPU UUID" in (rig.proc.path / f"driver/nvidia/gpus/{gpu.address}/information").read_text()

        rig.end(first, listed=True)
        assert f'"pid": {first.pid}' in rig.nvml_document.read_text()
        rig.delete_pod(pod)
        assert rig.api.pods == {}
    assert not rig.root.exists()
    assert process_state(second.pid) == ""
