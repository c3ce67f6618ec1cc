"""The host child on real processes, which hold real device nodes of stand-in drivers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.model import (
    Hold,
    NodeKind,
    Process,
    ProcessId,
    ProcessTable,
    Reason,
    SourceError,
)
from exporter.sources.host import HostSource
from exporter.sources.processes import SWEEP
from tests.rig.cgroups import ControlGroups
from tests.rig.devices import Devices
from tests.rig.holder import Holder, Orders
from tests.rig.mounts import Workspace
from tests.rig.proc import SubstituteProc
from tests.sources.fuse import DeadMount

UID = "3b1f7c52-8d0e-4a6b-9c11-5e2d7f80aa14"
CONTAINER = "c0ffee" + "0" * 58


class Host:
    """This machine with stand-in drivers, and the source that looks at it."""

    def __init__(self, root: Path, memory: bool) -> None:
        self.root = root
        self.devices = Devices(root, memory=memory)
        self.proc = SubstituteProc(root, self.devices.text)
        (root / "sys").mkdir()
        self.source = HostSource(self.proc.path, root / "sys", 30.0)

    def scan(self, *numbers: int, watched: tuple[int, ...] = ()) -> ProcessTable:
        return self.source.read_processes(numbers, watched)[0]

    def close(self) -> None:
        self.source.close()
        self.devices.close()


@contextmanager
def _host(memory: bool) -> Iterator[Host]:
    with Workspace() as workspace:
        host = Host(workspace.path, memory)
        try:
            yield host
        finally:
            host.close()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """GPUs 40 and up, which cannot be mapped."""
    with _host(memory=False) as made:
        yield made


@pytest.fixture(scope="module")
def mappable() -> Iterator[Host]:
    """GPUs 5 and 7; 5 can be mapped and unlinked."""
    with _host(memory=True) as made:
        yield made


def found(table: ProcessTable, pid: int) -> Process | None:
    return next((process for process in table.processes if process.id.pid == pid), None)


def gpus(process: Process | None) -> dict[int, tuple[int, int]]:
    """Descriptors and mappings by GPU minor."""
    holds: tuple[Hold, ...] = process.holds if process else ()
    return {
        hold.node.minor: (hold.descriptors, hold.mappings) for hold in holds if hold.node.kind is NodeKind.GPU
    }


# ---------------------------------------------------------------- holders


def test_descriptors_are_counted_by_what_they_are(host: Host) -> None:
    """GPU, control and uvm nodes of one process, its true start time and its name."""
    orders = Orders().uvm(host.devices).open(host.devices.gpu(40).path, 3)
    orders.open(host.devices.gpu(41).path).open(host.devices.ctl().path).name(b"trainer")
    with Holder(orders) as holder:
        process = found(host.scan(), holder.pid)
        assert process is not None
        assert process.id == ProcessId(holder.pid, holder.start_time)
        assert gpus(process) == {40: (3, 0), 41: (1, 0)}
        kinds = {hold.node.kind for hold in process.holds}
        assert kinds == {NodeKind.GPU, NodeKind.CONTROL, NodeKind.UVM}
        assert (process.comm, process.unread) == ("trainer", ())
        assert process.parent == os.getpid()


def test_a_descriptor_that_only_names_the_file_holds_nothing(host: Host) -> None:
    """O_PATH opens no driver."""
    with Holder(Orders().opath(host.devices.gpu(42).path)) as holder:
        assert found(host.scan(), holder.pid) is None


def test_an_inherited_descriptor_is_its_childs_too(host: Host) -> None:
    """What keeps the memory of a killed trainer is a worker that it forked."""
    with Holder(Orders().open(host.devices.gpu(40).path).fork(3)) as holder:
        table = host.scan()
        for pid in (holder.pid, *holder.children):
            assert gpus(found(table, pid)) == {40: (1, 0)}
        holder.kill()
        after = host.scan(holder.pid)
        assert found(after, holder.pid) is None
        assert after.missing == (holder.pid,)
        assert all(gpus(found(after, pid)) == {40: (1, 0)} for pid in holder.children)


@pytest.mark.parametrize("name", [b"innocent", b"caf\xc3\xa9", b"\xff\xfe\n\x1b[31m", b"null (deleted)"])
def test_a_node_under_any_name_is_found(mappable: Host, name: bytes) -> None:
    """Below /dev or of a name with nvidia at once, else within a sweep; the number is what counts."""
    node = mappable.devices.gpu(7, name)
    with Holder(Orders().open(os.fsencode(node.path))) as holder:
        tables = [mappable.scan() for _ in range(SWEEP)]
        assert any(gpus(found(table, holder.pid)) == {7: (1, 0)} for table in tables)
        assert gpus(found(mappable.scan(), holder.pid)) == {7: (1, 0)}


def test_a_regular_file_with_the_name_of_a_gpu_is_none(host: Host) -> None:
    """Any user can make one."""
    fake = host.root / "nvidia40"
    fake.touch()
    with Holder(Orders().open(fake)) as holder:
        assert found(host.scan(), holder.pid) is None


def test_an_unlinked_node_is_still_held(mappable: Host) -> None:
    """The text says (deleted), the kernel says which GPU."""
    node = mappable.devices.gpu(7, "nvidia-gone")
    with Holder(Orders().open(node.path).unlink(node.path)) as holder:
        assert gpus(found(mappable.scan(), holder.pid)) == {7: (1, 0)}


def test_a_mapping_without_a_descriptor_is_found(mappable: Host) -> None:
    """For a process that NVML names it is found at once, for any within a sweep."""
    with Holder(Orders().map(mappable.devices.gpu(5).path)) as holder:
        assert gpus(found(mappable.scan(holder.pid), holder.pid)) == {5: (0, 1)}


def test_twenty_thousand_descriptors_are_read_in_time(host: Host) -> None:
    """A process with as many as the limit allows costs milliseconds, and its GPU is found among them."""
    count = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100)
    with Holder(Orders().many_fds(count).open(host.devices.gpu(43).path).fork(3)) as holder:
        began = time.monotonic()
        table = host.scan()
        assert time.monotonic() - began < 10
        assert gpus(found(table, holder.pid)) == {43: (1, 0)}
        assert table.truncated == 0


def test_a_path_longer_than_a_page_neither_hides_a_process_nor_blinds_the_scan(host: Host) -> None:
    """The readlink of it gives ENAMETOOLONG, which any user can bring about."""
    script = (
        "import os, sys\n"
        f"os.chdir({str(host.root)!r})\n"
        "for _ in range(25):\n"
        "    os.mkdir('d' * 200); os.chdir('d' * 200)\n"
        "held = os.open('x', os.O_CREAT | os.O_RDWR)\n"
        f"gpu = os.open({str(host.devices.gpu(44).path)!r}, os.O_RDWR | os.O_NOCTTY)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        assert gpus(found(host.scan(holder.pid), holder.pid)) == {44: (1, 0)}


# ---------------------------------------------------------------- who and where


def test_a_process_in_a_container_shows_its_pod(host: Host) -> None:
    """By the real text of its control group, of this host's cgroup version; its container lives."""
    groups = ControlGroups()
    try:
        group = groups.container(UID, CONTAINER)
        with Holder(Orders().cgroup(group).open(host.devices.gpu(40).path)) as holder:
            table = host.scan()
            process = found(table, holder.pid)
            assert process is not None
            assert (process.cgroup.pod_uid, process.cgroup.container_id) == (UID, CONTAINER)
            lives = {(one.pod_uid, one.container_id): one.process.pid for one in table.containers}
            assert lives[UID, CONTAINER] == holder.pid
    finally:
        groups.close()


def test_a_thread_id_folds_to_its_process(host: Host) -> None:
    """Older drivers list the thread that called them."""
    with Holder(Orders().threads(3)) as holder:
        table = host.scan(*holder.tids)
        process = found(table, holder.pid)
        assert process is not None
        assert process.numbers == tuple(sorted(holder.tids))
        assert table.missing == ()


def test_a_zombie_leader_with_live_threads_still_holds(host: Host) -> None:
    """Its own descriptor table is empty; its thread's is not."""
    with Holder(Orders().open(host.devices.gpu(45).path, 2).leader_exits()) as holder:
        deadline = time.monotonic() + 5
        while holder.state != "Z":
            assert time.monotonic() < deadline
        process = found(host.scan(), holder.pid)
        assert process is not None
        assert (process.state, process.threads) == ("Z", 2)
        assert gpus(process) == {45: (2, 0)}


def test_a_zombie_holds_nothing_and_is_still_described_for_nvml(host: Host) -> None:
    """It is what NVML may still list."""
    with Holder(Orders().open(host.devices.gpu(45).path)) as holder:
        holder.kill(reap=False)
        process = found(host.scan(holder.pid), holder.pid)
        assert process is not None
        assert (process.state, process.holds, process.numbers) == ("Z", (), (holder.pid,))


def test_a_task_in_state_d_is_told_with_its_wait_channel(host: Host) -> None:
    """Really uninterruptible, though in vfork and not in a driver."""
    with Holder(Orders().open(host.devices.gpu(45).path).uninterruptible()) as holder:
        process = found(host.scan(), holder.pid)
        assert process is not None
        assert process.state == "D"
        assert [task.tid for task in process.blocked] == [holder.pid]
        assert process.blocked[0].wchan == process.wchan != ""


# ---------------------------------------------------------------- the source


def test_a_scan_tells_which_boot_it_is_of(host: Host) -> None:
    """So that what was learned in another boot is forgotten; and it is complete as root."""
    table, complete = host.source.read_processes((), ())
    assert complete
    assert table.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    assert table.boot_time == float(boot.split()[1])
    assert table.ticks_per_second == os.sysconf("SC_CLK_TCK")
    assert table.driver_loaded
    assert table.agent == os.getpid()


def test_no_procfs_is_unavailable(tmp_path: Path) -> None:
    """The child's own reason reaches the caller."""
    source = HostSource(tmp_path, tmp_path)
    with pytest.raises(SourceError) as caught:
        source.read_processes((), ())
    source.close()
    assert caught.value.reason is Reason.UNAVAILABLE


SCRIPT = """
import sys
from pathlib import Path
from exporter.model import SourceError
from exporter.sources.host import HostSource
source = HostSource(Path(sys.argv[1]), Path(sys.argv[1]))
try:
    print("complete" if source.read_processes((), ())[1] else "incomplete")
except SourceError as error:
    print(error.reason)
source.close()
"""


# Any user, able to read files so that the interpreter can be started wherever it is.
READ = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")


@pytest.mark.parametrize(
    ("restriction", "says"),
    [
        (("setpriv", "--bounding-set=-all", "--inh-caps=-all"), ("denied", "incomplete")),
        (
            ("setpriv", "--reuid=65534", "--clear-groups", *READ),
            ("denied", "incomplete"),
        ),
        (
            ("setpriv", "--bounding-set=-all,+sys_ptrace,+dac_read_search", "--inh-caps=-all"),
            ("complete",),
        ),
        (("unshare", "--pid", "--fork", "--mount-proc"), ("blind",)),
    ],
)
def test_what_may_not_be_seen_is_said(
    host: Host, restriction: tuple[str, ...], says: tuple[str, ...]
) -> None:
    """Without rights or in a pid namespace of its own the agent must not report an idle node."""
    path = "/proc" if restriction[0] == "unshare" else str(host.proc.path)
    with Holder(Orders().open(host.devices.gpu(40).path)):
        result = subprocess.run(
            [*restriction, sys.executable, "-I", "-c", SCRIPT, path],
            capture_output=True,
            text=True,
            check=True,
        )
    assert result.stdout.strip() in says


# ---------------------------------------------------------------- a dead file system


def test_a_dead_mount_under_a_descriptor_holds_nobody_up(host: Host) -> None:
    """A stat through it hangs beyond SIGKILL: the scan asks for no news, and sees the GPU beside it."""
    point = host.root / "nvidia-dead"
    point.mkdir()
    mount = DeadMount(point)
    try:
        with Holder(Orders().open(point / "file").open(host.devices.gpu(46).path)) as holder:
            mount.stop()
            naive = subprocess.Popen(
                [sys.executable, "-I", "-c", f"import os; os.stat('/proc/{holder.pid}/fd/{holder.fds[0]}')"]
            )
            assert mount.waited_for.wait(10)
            began = time.monotonic()
            table = host.scan(holder.pid)
            assert time.monotonic() - began < 5
            assert gpus(found(table, holder.pid)) == {46: (1, 0)}
            assert table.unreadable == ()
            naive.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                naive.wait(1)  # the mount really is dead, or the rest proves nothing
            mount.close()
            naive.wait(5)
    except BaseException:
        mount.close()
        raise
