"""The scanner on recorded trees: what no test machine can be brought to, and hostile text."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.model import (
    CapabilityNode,
    DeviceNode,
    Hold,
    LiveContainer,
    NodeKind,
    Process,
    ProcessId,
    ProcessTable,
    Reason,
    SourceError,
    Task,
)
from exporter.sources import processes as module
from exporter.sources.processes import RECALL, SIBLINGS, SWEEP, Scanner
from tests.rig import proctree
from tests.rig.cgroups import container_path
from tests.rig.proctree import O_PATH, PF_EXITING, PF_KTHREAD, SIGKILL_BIT, Fd, Map, ProcTree

UID = "3b1f7c52-8d0e-4a6b-9c11-5e2d7f80aa14"
CONTAINER = "c0ffee" + "0" * 58
CGROUP = proctree.container_cgroup(container_path(UID, CONTAINER))
GPU = DeviceNode(NodeKind.GPU, 195, 0)
CTL = DeviceNode(NodeKind.CONTROL, 195, 255)
UVM = DeviceNode(NodeKind.UVM, 511, 0)
HOLDS = (Hold(CTL, 1), Hold(GPU, 3), Hold(UVM, 1))


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


def scan(tree: ProcTree, numbers: tuple[int, ...] = (), watched: tuple[int, ...] = ()) -> ProcessTable:
    return Scanner(tree.root).scan(numbers, watched)


def found(table: ProcessTable, pid: int) -> Process:
    return {process.id.pid: process for process in table.processes}[pid]


def pids(table: ProcessTable) -> list[int]:
    return sorted(process.id.pid for process in table.processes)


def trainer(tree: ProcTree, pid: int = 100, **more: object) -> proctree.Process:
    """A CUDA process in a container."""
    made = proctree.Process(pid, fds=tree.cuda(0), cgroup=CGROUP)
    return replace(made, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- holders


def test_a_cuda_process_and_its_ancestors_are_described(tree: ProcTree) -> None:
    """Who holds what, where it lives and who started it; nobody else."""
    tree.add(proctree.Process(90, b"containerd-shim", start=900))
    tree.add(proctree.Process(91, b"bash", start=910))
    tree.add(trainer(tree, ppid=90, start=1234))
    table = scan(tree)
    assert pids(table) == [1, 90, 100]
    process = found(table, 100)
    assert process.id == ProcessId(100, 1234)
    assert (process.comm, process.exe, process.state, process.parent) == (
        "python3",
        "/usr/bin/python3",
        "S",
        90,
    )
    assert process.holds == HOLDS
    assert (process.cgroup.pod_uid, process.cgroup.container_id) == (UID, CONTAINER)
    assert found(table, 90).holds == ()
    assert table.containers == (LiveContainer(UID, CONTAINER, ProcessId(100, 1234)),)
    assert (table.unreadable, table.truncated, table.missing) == ((), 0, ())


def test_an_opath_descriptor_holds_nothing(tree: ProcTree) -> None:
    """`ls -l` of a tool that walks descriptors must not look like GPU use."""
    tree.add(trainer(tree, fds={3: Fd(tree.gpu(0), flags=O_PATH), 4: Fd(tree.uvm(), flags=O_PATH)}))
    assert scan(tree).processes == ()


def test_names_prove_nothing(tree: ProcTree) -> None:
    """A regular file called nvidia0 is none, and a node of another driver neither."""
    fake = tree.root / "nvidia0"
    fake.write_text("")
    tree.add(trainer(tree, fds={3: Fd(fake), 4: Fd(tree.node("dev/nvidia1", 1, 5))}))
    assert scan(tree).processes == ()


@pytest.mark.parametrize("name", ["other/card", "dev/pts/7", "dev/shm/x", "caf\u00e9"])
def test_a_device_under_any_name_is_found_within_a_sweep(tree: ProcTree, name: str) -> None:
    """Whatever a container calls its node, its number gives it away after SWEEP scans at most."""
    tree.add(trainer(tree, fds={3: Fd(tree.node(name, 195, 0))}))
    scanner = Scanner(tree.root)
    tables = [scanner.scan(()) for _ in range(SWEEP)]
    assert any(100 in pids(table) for table in tables)


def test_a_device_found_under_an_odd_name_stays_found(tree: ProcTree) -> None:
    """A finding must not flap with the sweep: a candidate is looked at in every scan."""
    tree.add(trainer(tree, fds={3: Fd(tree.node("other/card", 195, 0))}))
    scanner = Scanner(tree.root)
    seen = [100 in pids(scanner.scan(())) for _ in range(2 * SWEEP + 1)]
    assert seen == sorted(seen)
    assert seen[-1]


@pytest.mark.parametrize("pid", range(101, 101 + SIBLINGS))
def test_a_sibling_in_the_same_container_is_looked_at_thoroughly(tree: ProcTree, pid: int) -> None:
    """Its odd names are seen within SIBLINGS scans after the first holder of its container, and stay seen."""
    tree.add(trainer(tree))
    tree.add(trainer(tree, pid, fds={3: Fd(tree.node("other/card", 195, 0))}))
    scanner = Scanner(tree.root)
    tables = [scanner.scan(()) for _ in range(2 * SIBLINGS)]
    seen = [pid in pids(table) for table in tables]
    assert seen == sorted(seen)
    assert seen[SIBLINGS]


# ---------------------------------------------------------------- what is recalled from the last scan


def reopen(tree: ProcTree, pid: int, fd: int, target: Path) -> None:
    """Close a descriptor and open another file that gets its number."""
    link = tree.root / str(pid) / "fd" / str(fd)
    link.unlink()
    link.symlink_to(target)


@pytest.mark.parametrize("numbers", [(), (100,)])
def test_a_device_under_the_number_of_a_closed_file_is_found(
    tree: ProcTree, numbers: tuple[int, ...]
) -> None:
    """Within RECALL scans, if the process has the same numbers open; candidate or not."""
    plain = tree.root / "plain"
    plain.write_text("")
    tree.add(trainer(tree, fds={0: Fd(plain), 1: Fd(plain), 3: Fd(plain)}))
    scanner = Scanner(tree.root)
    assert all(found(scanner.scan(numbers), 100).holds == () for _ in range(RECALL) if numbers)
    scanner.scan(numbers)
    reopen(tree, 100, 3, tree.gpu(0))
    tables = [scanner.scan(numbers) for _ in range(2 * RECALL)]
    seen = [any(one.id.pid == 100 and one.holds for one in table.processes) for table in tables]
    assert seen == sorted(seen)
    assert seen[RECALL - 1]


def test_a_device_under_a_new_number_is_found_at_once(tree: ProcTree) -> None:
    """The open numbers have changed: nothing of the last look stands."""
    plain = tree.root / "plain"
    plain.write_text("")
    tree.add(trainer(tree, fds={3: Fd(plain)}))
    scanner = Scanner(tree.root)
    for number in range(4, 4 + 2 * RECALL):
        scanner.scan(())
        (tree.root / "100/fd" / str(number)).symlink_to(tree.gpu(0))
        shutil.copy(tree.root / "100/fdinfo/3", tree.root / "100/fdinfo" / str(number))
        assert found(scanner.scan(()), 100).holds == (Hold(GPU, 1),)
        (tree.root / "100/fd" / str(number)).unlink()
        assert scanner.scan(()).processes == ()


def test_a_device_that_was_closed_is_not_held_in_the_next_scan(tree: ProcTree) -> None:
    """What is recalled is proven again: a file in the place of a device shows at once."""
    plain = tree.root / "plain"
    plain.write_text("")
    tree.add(trainer(tree))
    scanner = Scanner(tree.root)
    for _ in range(2 * RECALL):
        assert found(scanner.scan((100,)), 100).holds == HOLDS
    for fd in tree.cuda(0):
        reopen(tree, 100, fd, plain)
    assert found(scanner.scan((100,)), 100).holds == ()


def test_another_process_with_the_number_of_one_recalled_is_looked_at(tree: ProcTree) -> None:
    """What was seen of a process says nothing of the next one with its number."""
    plain = tree.root / "plain"
    plain.write_text("")
    tree.add(trainer(tree, fds={3: Fd(plain)}))
    scanner = Scanner(tree.root)
    for _ in range(2 * RECALL):
        scanner.scan(())
        (tree.root / "100").rename(tree.root / "ended")
        tree.add(trainer(tree, fds={3: Fd(tree.gpu(0))}))
        assert found(scanner.scan(()), 100).holds == (Hold(GPU, 1),)
        shutil.rmtree(tree.root / "100")
        (tree.root / "ended").rename(tree.root / "100")
        scanner.scan(())


def test_mappings_stand_while_the_memory_keeps_its_size(tree: ProcTree) -> None:
    """They are read again when it changes, and within RECALL scans when it does not."""
    tree.add(
        trainer(
            tree, fds={3: Fd(tree.node("dev/null", 1, 3))}, maps=(Map(tree.gpu(0), None, permissions="rw-s"),)
        )
    )
    (tree.root / "100/statm").write_text("100 10 5 1 0 20 0\n")
    scanner = Scanner(tree.root)
    for _ in range(RECALL):
        assert found(scanner.scan((100,)), 100).holds == (Hold(GPU, 0, 1),)
    (tree.root / "100/maps").write_text("")
    (tree.root / "100/statm").write_text("90 10 5 1 0 20 0\n")
    assert found(scanner.scan((100,)), 100).holds == ()


@pytest.mark.parametrize(
    ("permissions", "text"),
    [("rw-s", None), ("rw-p", None), ("rw-s", b"/anon_inode (deleted)"), ("rw-p", b"/dev/nvidia0 (deleted)")],
)
def test_a_mapping_alone_is_found(tree: ProcTree, permissions: str, text: bytes | None) -> None:
    """A process that closed its descriptors still owns the memory that it mapped."""
    maps = (Map(tree.gpu(0), text, permissions=permissions),)
    tree.add(trainer(tree, fds={}, maps=maps))
    assert found(scan(tree, (100,)), 100).holds == (Hold(GPU, 0, 1),)


def test_a_driver_reload_gives_other_majors_at_once(tree: ProcTree) -> None:
    """Most majors are dynamic: the list is read in every scan."""
    tree.add(trainer(tree))
    scanner = Scanner(tree.root)
    assert Hold(UVM, 1) in found(scanner.scan(()), 100).holds
    tree.write("devices", proctree.DEVICES.replace("511 nvidia-uvm", "510 nvidia-uvm"))
    assert Hold(UVM, 1) not in found(scanner.scan(()), 100).holds
    tree.write("devices", proctree.OLD_DEVICES)
    assert Hold(GPU, 3) in found(scanner.scan(()), 100).holds


def test_without_the_driver_nothing_is_held_and_containers_are_still_known(tree: ProcTree) -> None:
    """No major means no device file; who lives where is asked all the same."""
    tree.add(trainer(tree))
    tree.write("devices", "Character devices:\n  1 mem\n\nBlock devices:\n195 nvidia\n")
    table = scan(tree, (100,))
    assert not table.driver_loaded
    assert found(table, 100).holds == ()
    assert [container.container_id for container in table.containers] == [CONTAINER]


def test_descriptors_beyond_the_cap_are_told_of(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capped look is an incomplete one."""
    monkeypatch.setattr(module, "DESCRIPTOR_LIMIT", 3)
    tree.add(trainer(tree))
    assert scan(tree).truncated == 1


def test_capability_nodes_are_told_with_their_minors(tree: ProcTree) -> None:
    """What a descriptor of nvidia-caps opens is looked up in mig-minors; config and monitor are no device."""
    cap = tree.node("dev/nvidia-caps/nvidia-cap31", 235, 31)
    text = "config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\n"
    tree.write("driver/nvidia-caps/mig-minors", text)
    tree.add(trainer(tree, fds={3: Fd(cap), **tree.cuda(0)}))
    table = scan(tree)
    assert table.capabilities == (CapabilityNode(30, 0, 3, None), CapabilityNode(31, 0, 3, 0))
    assert Hold(DeviceNode(NodeKind.CAPABILITY, 235, 31), 1) in found(table, 100).holds


# ---------------------------------------------------------------- NVML's numbers


def test_a_thread_number_folds_to_its_process(tree: ProcTree) -> None:
    """Some drivers list thread ids: /proc/TID/status says whose thread it is."""
    tree.add(trainer(tree, fds={}, tasks=(proctree.Task(105),)))
    (tree.root / "105").symlink_to(f"{100}/task/105")
    table = scan(tree, (100, 105))
    assert found(table, 100).numbers == (100, 105)
    assert table.missing == ()


def test_numbers_without_a_process_are_missing(tree: ProcTree) -> None:
    """A phantom's number, and the driver's garbage, are told and break nothing."""
    table = scan(tree, (0, 4242, 4294967295))
    assert table.missing == (0, 4242, 4294967295)
    assert table.processes == ()


def test_a_number_that_dies_during_the_scan_is_missing(tree: ProcTree) -> None:
    """It is neither lost nor described from thin air."""
    tree.add(trainer(tree))
    (tree.root / "100/stat").unlink()  # there when its number is looked up, gone when it is described
    table = scan(tree, (100,))
    assert table.missing == (100,)
    assert 100 not in pids(table)


def test_a_watched_process_is_described_without_holding_anything(tree: ProcTree) -> None:
    """A process that is exiting inside the driver has no descriptor left: it must not drop out of sight."""
    tree.add(trainer(tree, fds={}, state="D", flags=0x400000 | PF_EXITING, wchan="nv_close", start=77))
    process = found(scan(tree, watched=(100, 101)), 100)
    assert (process.id.start, process.state, process.exiting, process.wchan) == (77, "D", True, "nv_close")
    assert process.blocked == (Task(100, 15, "nv_close"),)


# ---------------------------------------------------------------- states


@pytest.mark.parametrize("tid", [101, 50])
def test_a_zombie_leader_is_judged_by_its_threads(tree: ProcTree, tid: int) -> None:
    """The leader's table is empty; a thread still holds the GPU. Its id may be the lower one: pids wrap."""
    tree.add(trainer(tree, state="Z", tasks=(proctree.Task(tid, "D", "os_acquire_mutex"),)))
    _write_fdinfo(tree, 100, tid)
    process = found(scan(tree), 100)
    assert process.holds == HOLDS
    assert (process.state, process.threads) == ("Z", 2)
    assert process.blocked == (Task(tid, 15, "os_acquire_mutex"),)


def _write_fdinfo(tree: ProcTree, pid: int, tid: int) -> None:
    folder = tree.root / str(pid) / "task" / str(tid)
    (folder / "fdinfo").mkdir()
    for fd in (folder / "fd").iterdir():
        (folder / "fdinfo" / fd.name).write_text("flags:\t02\n")


def test_a_container_lives_while_a_thread_of_it_does(tree: ProcTree) -> None:
    """A leader that has exited reads as a zombie, and its container is running all the same."""
    tree.add(trainer(tree, state="Z", tasks=(proctree.Task(101),)))
    tree.add(trainer(tree, 200, state="Z", cgroup=CGROUP.replace(CONTAINER, "d" * 64)))
    assert [one.container_id for one in scan(tree).containers] == [CONTAINER]


def test_tasks_in_state_d_are_read_again_in_every_scan(tree: ProcTree) -> None:
    """Their ticks and wait channels tell whether they move; this part exists on recorded /proc only."""
    stuck = proctree.Task(101, "D", "nvidia_ioctl", utime=7, stime=3)
    tree.add(trainer(tree, tasks=(stuck,)))
    scanner = Scanner(tree.root)
    assert found(scanner.scan(()), 100).blocked == (Task(101, 10, "nvidia_ioctl"),)
    tree.replace(trainer(tree, tasks=(replace(stuck, utime=9),)))
    assert found(scanner.scan(()), 100).blocked == (Task(101, 12, "nvidia_ioctl"),)
    tree.replace(trainer(tree, tasks=(replace(stuck, state="S"),)))
    assert found(scanner.scan(()), 100).blocked == ()


def test_a_pending_kill_and_a_core_dump_are_told(tree: ProcTree) -> None:
    """A process that survives SIGKILL, and one that only looks so while it dumps."""
    tree.add(trainer(tree, 100, shared_pending=SIGKILL_BIT))
    tree.add(trainer(tree, 101, core_dumping=True))
    table = scan(tree)
    assert (found(table, 100).kill_pending, found(table, 100).dumping) == (True, False)
    assert (found(table, 101).kill_pending, found(table, 101).dumping) == (False, True)


# ---------------------------------------------------------------- what cannot be seen


def test_a_foreign_pid_namespace_is_blind(tmp_path: Path) -> None:
    """Without hostPID every process of the host is missing: that is no empty node."""
    tree = ProcTree(tmp_path / "proc")
    (tree.root / "999/ns/pid").unlink()
    (tree.root / "999/ns/pid").symlink_to("pid:[4026532201]")
    with pytest.raises(SourceError) as caught:
        scan(tree)
    assert caught.value.reason is Reason.BLIND
    assert "hostPID" in caught.value.detail


def test_hidden_processes_are_blind(tree: ProcTree) -> None:
    """With hidepid pid 1 does not show: what else is missing is anybody's guess."""
    tree.remove(1)
    with pytest.raises(SourceError) as caught:
        scan(tree)
    assert caught.value.reason is Reason.BLIND


@pytest.mark.parametrize("missing", ["devices", "stat", "sys/kernel/random/boot_id", "self"])
def test_a_tree_that_is_no_procfs_is_unavailable(tree: ProcTree, missing: str) -> None:
    """A wrong --path.procfs is an error and not an idle node."""
    (tree.root / missing).unlink()
    with pytest.raises(SourceError) as caught:
        scan(tree)
    assert caught.value.reason is Reason.UNAVAILABLE


PROBE = """
import sys
from pathlib import Path
from exporter.codec import encode
from exporter.model import SourceError
from exporter.sources.processes import Scanner
try:
    table = Scanner(Path(sys.argv[1])).scan((), (300,))
    print("unreadable", *table.unreadable, "described", *sorted(p.id.pid for p in table.processes))
except SourceError as error:
    print(error.reason)
"""


@pytest.fixture
def powerless(tree: ProcTree) -> Iterator[ProcTree]:
    """A tree in which modes count: what reads it is root without any capability."""
    yield tree
    for path in tree.root.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def _without_capabilities(tree: ProcTree) -> str:
    """What a scan says that runs as root without capabilities."""
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-I", "-c", PROBE]
    return subprocess.run(
        [*command, str(tree.root)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_an_unreadable_process_is_counted(powerless: ProcTree) -> None:
    """It may be a holder: the scan goes on and says that it is not complete."""
    powerless.add(trainer(powerless))
    powerless.add(trainer(powerless, 200))
    (powerless.root / "200/fd").chmod(0)
    assert _without_capabilities(powerless) == "unreadable 200 described 1 100"


@pytest.mark.parametrize(
    ("text", "permissions", "says"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "r-xp", "unreadable described 1 100"),
        ("/opt/site-packages/nvidia/cublas/lib/libcublas.so.12", "r--p", "unreadable described 1 100"),
        ("/dev/shm/torch_4711_0 (deleted)", "rw-s", "unreadable described 1 100"),
        ("/dev/nvidia7", "rw-p", "unreadable 100 described 1 100"),
        ("/tmp/my-nvidia", "rw-s", "unreadable 100 described 1 100"),
    ],
)
def test_a_mapping_that_nothing_proves_may_be_a_device(
    powerless: ProcTree, text: str, permissions: str, says: str
) -> None:
    """map_files wants a capability that the pod may lack: libraries and shared memory are none anyway."""
    shut = powerless.root / "shut"
    shut.mkdir()
    (shut / "file").touch()
    powerless.add(trainer(powerless, maps=(Map(shut / "file", text, permissions=permissions),)))
    shut.chmod(0)
    assert _without_capabilities(powerless) == says


def test_pid_1_and_kernel_threads_may_be_unreadable(powerless: ProcTree) -> None:
    """They hold no GPU, and no verdict waits for them."""
    powerless.add(trainer(powerless))
    powerless.add(proctree.Process(40, b"nv_queue", ppid=2, flags=PF_KTHREAD, exe=""))
    for pid in (1, 2, 40):
        (powerless.root / str(pid) / "fd").chmod(0)
    assert _without_capabilities(powerless) == "unreadable described 1 100"


def test_a_watched_process_that_may_not_be_looked_at_is_unreadable(powerless: ProcTree) -> None:
    """hidepid=1: its directory shows and nothing in it opens. That is no reason to see nobody else."""
    powerless.add(trainer(powerless))
    powerless.add(trainer(powerless, 300))
    for name in ("stat", "status", "cgroup", "fd"):
        (powerless.root / "300" / name).chmod(0)
    assert _without_capabilities(powerless) == "unreadable 300 described 1 100"


def test_nobody_readable_is_denied(powerless: ProcTree) -> None:
    """A scan that could look at no process at all found no holder, which means nothing."""
    powerless.add(trainer(powerless))
    (powerless.root / "100/fd").chmod(0)
    assert _without_capabilities(powerless) == "denied"


# ---------------------------------------------------------------- hostile text


@pytest.mark.parametrize(
    "comm", [b"a) S 1 1", b"\xff\xfe", b"x\nTgid:\t1", b"\x1b[31mred", b"a\rCoreDumping:1"]
)
def test_a_name_cannot_forge_fields(tree: ProcTree, comm: bytes) -> None:
    """Names with parentheses, line breaks and control characters change nothing but the name."""
    tree.add(trainer(tree, comm=comm, state="Z", fds={}, start=99))
    process = found(scan(tree, (100,)), 100)
    assert (process.id, process.state, process.dumping) == (ProcessId(100, 99), "Z", False)
    assert process.comm.isprintable()
    assert len(process.comm) <= 15


def test_a_mapped_files_name_cannot_break_the_scan(tree: ProcTree) -> None:
    """The kernel escapes newlines in maps, and no other line separator."""
    hostile = b"/tmp/x\rzz-yy rw-s 0 00:05 1 /dev/nvidia0"
    maps = (Map(tree.gpu(0), hostile), Map(tree.gpu(0), start=0x7F1000000000))
    tree.add(trainer(tree, maps=maps, cgroup=CGROUP))
    assert Hold(GPU, 3, 2) in found(scan(tree, (100,)), 100).holds


def test_one_descriptor_that_cannot_be_read_hides_no_other(tree: ProcTree) -> None:
    """Something odd in one process must not end the scan of the node, nor pass for no holder."""
    tree.add(trainer(tree))
    tree.add(trainer(tree, 200))
    (tree.root / "200/fd/3").write_text("no link at all")  # EINVAL, for want of an EIO or ESTALE
    table = scan(tree)
    assert {100, 200} <= set(pids(table))
    assert table.unreadable == (200,)
    assert Hold(GPU, 3) in found(table, 200).holds
