"""One look at the node: the order of the questions, and what becomes of each answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from exporter.gather import Gatherer, Sources
from exporter.model import (
    SOURCES,
    Attribution,
    ContainerDev,
    InFlight,
    Kubelet,
    LiveContainer,
    Missed,
    Nvml,
    Off,
    Pci,
    Pods,
    Policy,
    ProcessTable,
    Reason,
    Seen,
    SourceError,
)
from exporter.report import advance
from tests import builders as b

INTERVAL = 0.2


@dataclass
class Node:
    """Sources that answer at once, keep what they were asked, and can be made to hang or refuse."""

    table: ProcessTable = field(default_factory=b.process_table)
    record: Nvml = field(default_factory=b.nvml)
    read_so_far: Nvml | None = None
    hangs: set[str] = field(default_factory=set)
    refuses: dict[str, Reason] = field(default_factory=dict)
    asked: list[tuple[str, object]] = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)

    def _answer(self, name: str, question: object = None) -> None:
        self.asked.append((name, question))
        if name in self.refuses:
            raise SourceError(self.refuses[name], "no")
        if name in self.hangs:
            assert self.free.wait(10)

    def read(self) -> tuple[Nvml, bool]:
        self._answer("nvml")
        return self.record, True

    def partial(self) -> Nvml | None:
        return self.read_so_far

    def in_flight(self) -> InFlight | None:
        return InFlight("nvmlDeviceGetMemoryInfo", 1, b.gpu_uuid(1), b.NOW) if "nvml" in self.hangs else None

    def processes(self, numbers: list[int], watched: list[int]) -> tuple[ProcessTable, bool]:
        self._answer("processes", (numbers, watched))
        return self.table, True

    def container_dev(self, containers: tuple[LiveContainer, ...]) -> tuple[ContainerDev, bool]:
        self._answer("container_dev", containers)
        return ContainerDev(()), False

    def kubelet(self) -> tuple[Kubelet, bool]:
        self._answer("kubelet")
        return b.kubelet(), True

    def pods(self, behind: bool) -> tuple[Pods, bool, float]:
        self._answer("pods", behind)
        return Pods(()), True, b.NOW - 40

    def pci(self) -> tuple[Pci, bool]:
        self._answer("pci")
        return b.pci(), True

    def sources(self) -> Sources:
        return Sources(self, self.processes, self.container_dev, self.kubelet, self.pods, pci=self.pci)

    def order(self) -> list[str]:
        return [name for name, _ in self.asked]


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.free.set()


def gatherer(node: Node, interval: float = INTERVAL) -> Gatherer:
    return Gatherer(node.sources(), interval, "node-1")


def test_every_source_that_is_on_is_seen_and_the_others_are_off(node: Node) -> None:
    """With the time of the answer where the source tells one, and with what it says of completeness."""
    look = gatherer(node)(None)
    states = {name: type(getattr(look, name)) for name in SOURCES}
    assert {name for name, kind in states.items() if kind is Off} == {"node", "pod_names"}
    assert {name for name, kind in states.items() if kind is Missed} == set()
    assert isinstance(look.pods, Seen)
    assert look.pods.at == b.NOW - 40
    assert isinstance(look.container_dev, Seen)
    assert not look.container_dev.complete
    assert look.node_name == "node-1"


def test_the_host_is_scanned_after_nvml_and_told_its_numbers(node: Node) -> None:
    """A listed number that /proc lacks has died then, and was not just born."""
    node.record = b.nvml(b.gpu(rows=(b.row(7), b.row(5))), b.gpu(1, rows=(b.row(7),)), b.gpu(2, rows=None))
    gatherer(node)(None)
    order = node.order()
    assert order.index("processes") > max(order.index(name) for name in ("nvml", "kubelet", "pods", "pci"))
    assert order[-1] == "container_dev"
    assert dict(node.asked)["processes"] == ([5, 7], [])


def test_processes_that_were_known_are_watched(node: Node) -> None:
    """One that hangs on its way out holds nothing any more, and must not drop out of sight."""
    holder = b.process(4242, holds=(b.hold(),))
    previous = advance(Policy(), None, b.snapshot(processes=b.process_table(holder)))
    gatherer(node)(previous)
    assert dict(node.asked)["processes"] == ([], [4242])


def test_containers_are_those_of_the_scan(node: Node) -> None:
    """Their /dev is looked at in the same cycle."""
    node.table = b.process_table(b.process(pod_uid=b.pod_uid(), container_id=b.container_id()))
    gatherer(node)(None)
    assert dict(node.asked)["container_dev"] == node.table.containers


@pytest.mark.parametrize("behind", [True, False])
def test_the_api_hears_whether_its_list_looks_old(node: Node, behind: bool) -> None:
    """As the last report judged it."""
    gatherer(node)(b.report(attribution=Attribution(api_behind=behind)))
    assert dict(node.asked)["pods"] is behind


def test_a_hung_source_holds_up_no_other(node: Node) -> None:
    """The kubelet is silent; everything else is seen, this time and the next."""
    node.hangs.add("kubelet")
    gather = gatherer(node)
    for reason in (Reason.TIMEOUT, Reason.BUSY, Reason.BUSY):
        look = gather(None)
        assert isinstance(look.kubelet, Missed)
        assert look.kubelet.reason is reason
        assert isinstance(look.nvml, Seen)
        assert isinstance(look.processes, Seen)
    assert node.order().count("kubelet") == 1


def test_gpus_read_before_a_hang_are_seen_in_part(node: Node) -> None:
    """In the cycle that began the call; later what it had read is too old to pass for the present."""
    node.hangs.add("nvml")
    node.read_so_far = b.nvml(b.gpu(rows=(b.row(9),)), count=2)
    gather = gatherer(node)
    look = gather(None)
    assert isinstance(look.nvml, Seen)
    assert (look.nvml.value, look.nvml.complete) == (node.read_so_far, False)
    assert look.nvml_in_flight is not None
    assert look.nvml_in_flight.index == 1
    assert dict(node.asked)["processes"] == ([9], [])
    assert isinstance(gather(None).nvml, Missed)


@pytest.mark.parametrize("so_far", [None, replace(b.nvml(), gpus=())])
def test_a_hang_before_the_first_gpu_is_a_miss(node: Node, so_far: Nvml | None) -> None:
    """No GPU read is not no GPU."""
    node.hangs.add("nvml")
    node.read_so_far = so_far
    assert isinstance(gatherer(node)(None).nvml, Missed)


@pytest.mark.parametrize("reason", [Reason.PAUSED, Reason.UNAVAILABLE, Reason.BUSY])
def test_an_nvml_that_refuses_is_missed_whatever_was_read_before(node: Node, reason: Reason) -> None:
    """Only a hang half-way leaves something that is of now."""
    node.refuses["nvml"] = reason
    node.read_so_far = b.nvml()
    look = gatherer(node)(None)
    assert isinstance(look.nvml, Missed)
    assert look.nvml.reason is reason
    assert isinstance(look.processes, Seen)


def test_without_a_scan_no_container_is_looked_at(node: Node) -> None:
    """Both ask one child: the second would be refused, and has nothing to ask about."""
    node.refuses["processes"] = Reason.BLIND
    look = gatherer(node)(None)
    assert isinstance(look.container_dev, Missed)
    assert look.container_dev.reason is Reason.BLIND
    assert "container_dev" not in node.order()


def test_nothing_on_is_nothing_seen() -> None:
    """And no error."""
    look = Gatherer(Sources(), INTERVAL, "n")(None)
    assert all(isinstance(getattr(look, name), Off) for name in SOURCES)
