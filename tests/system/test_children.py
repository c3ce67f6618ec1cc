"""The two child processes: stopped, hung or killed, they cost their own data and nothing else."""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.rig.__main__ import populate
from tests.rig.agent import Agent, Samples
from tests.rig.rig import Rig
from tests.system import observe
from tests.system.observe import HOST_CHILD, NVML_CHILD, eventually, one, rows, up, values

ANSWER = 0.050  # seconds that a scrape may take whatever a source does
END = 5.0  # seconds from SIGTERM to the end


@pytest.fixture(name="rig", scope="module")
def busy_rig() -> Iterator[Rig]:
    with Rig() as rig:
        populate(rig)
        observe.aged(rig)
        yield rig


@pytest.fixture(name="agent", scope="module")
def watching_agent(rig: Rig, command: Sequence[str]) -> Iterator[Agent]:
    with rig.agent(command=command) as agent:
        observe.settled(agent)
        yield agent


@pytest.fixture(name="doomed")
def agent_to_be_ended(rig: Rig, command: Sequence[str]) -> Iterator[Agent]:
    """An agent of its own for a test that ends it."""
    with rig.agent(command=command) as agent:
        observe.settled(agent)
        yield agent


def used(samples: Samples) -> int:
    return len(rows(samples, "gpu_memory_used_bytes", "uuid"))


def holders(samples: Samples) -> set[tuple[str, ...]]:
    """Processes by pid, device and pod, as far as they can be seen without NVML."""
    return {
        (row["pid"], row["uuid"], row["pod"])
        for row in observe.processes(samples)
        if row["visibility"] in {"holder", "both"}
    }


def given(samples: Samples) -> set[tuple[str, ...]]:
    return rows(samples, "allocation_info", "uuid", "mig_uuid", "pod")


# ---------------------------------------------------------------- while the agent lives


def test_a_stopped_nvml_child_costs_nvmls_data_only(rig: Rig, agent: Agent) -> None:
    """With NVML silent, scrapes answer at once, holders and allocations stay, and GPU values are absent."""
    before = agent.samples()
    pid = observe.child(agent, NVML_CHILD)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(agent, lambda samples: (up(samples, "nvml"), used(samples)), (0.0, 0))
        took = []
        for _ in range(50):
            start = time.perf_counter()
            agent.scrape()
            took.append(time.perf_counter() - start)
            time.sleep(0.02)
        samples = agent.samples()
        assert (up(samples, "nvml"), used(samples)) == (0.0, 0)
        assert not observe.series(samples, "process_memory_bytes")
        assert holders(samples) == holders(before)
        assert len(holders(samples)) == len(rig.oracle())
        assert given(samples) == given(before)
        assert observe.series(samples, "device_holders")
        errors = values(samples, "source_errors_total", "reason", source="nvml")
        assert errors["timeout",] >= 1
        assert errors["busy",] >= 1
        # One of them may have met the scheduler of a machine with few cores.
        assert sorted(took)[-2] < ANSWER, f"median {statistics.median(took):.4f} s, most {max(took):.4f} s"
    finally:
        os.kill(pid, signal.SIGCONT)
    samples = eventually(agent, lambda samples: (up(samples, "nvml"), used(samples)), (1.0, 8))
    assert observe.child(agent, NVML_CHILD) == pid


@pytest.mark.parametrize(("module", "source"), [(NVML_CHILD, "nvml"), (HOST_CHILD, "processes")])
def test_a_killed_child_comes_back(agent: Agent, module: str, source: str) -> None:
    """The source is missed for a moment, a new child takes over, and everything is there again."""
    before = agent.samples()
    pid = observe.child(agent, module)
    os.kill(pid, signal.SIGKILL)
    eventually(agent, lambda samples: up(samples, source), 0.0)
    samples = eventually(agent, lambda samples: up(samples, source), 1.0, timeout=15)
    assert observe.child(agent, module) != pid
    assert holders(samples) == holders(before)
    eventually(agent, used, 8)
    assert one(samples, "source_up", source="kubelet") == 1


# ---------------------------------------------------------------- the end


def stop_nvml(rig: Rig, agent: Agent) -> None:
    os.kill(observe.child(agent, NVML_CHILD), signal.SIGSTOP)
    eventually(agent, lambda samples: up(samples, "nvml"), 0.0)


def stop_host(rig: Rig, agent: Agent) -> None:
    os.kill(observe.child(agent, HOST_CHILD), signal.SIGSTOP)
    eventually(agent, lambda samples: up(samples, "processes"), 0.0)


def stop_both(rig: Rig, agent: Agent) -> None:
    stop_nvml(rig, agent)
    stop_host(rig, agent)


def hang_nvml(rig: Rig, agent: Agent) -> None:
    """A call that no signal ends but the last one, as one that waits in the driver."""
    rig.gpus[2].overrides = {"calls": {"nvmlDeviceGetUUID": {"hang_hard": True}}}
    rig.sync()
    eventually(agent, lambda samples: up(samples, "nvml"), 0.0)


def mute_kubelet(rig: Rig, agent: Agent) -> None:
    """A cycle is always waiting for an answer."""
    rig.kubelet.mute()
    eventually(agent, lambda samples: up(samples, "kubelet"), 0.0)


def nothing(rig: Rig, agent: Agent) -> None:
    """All is well."""


TROUBLES = [nothing, stop_nvml, stop_host, stop_both, hang_nvml, mute_kubelet]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_sigterm_ends_it_in_time(rig: Rig, doomed: Agent, trouble: Callable[[Rig, Agent], None]) -> None:
    """The exit status is 0 within five seconds, and no child outlives the agent, whatever a source does."""
    running = observe.children(doomed)
    assert set(running) == {NVML_CHILD, HOST_CHILD}
    try:
        trouble(rig, doomed)
        start = time.monotonic()
        assert doomed.stop(timeout=10) == 0, doomed.tail()
        assert time.monotonic() - start < END
        assert all(observe.ended(pid, 1.0) for pid in running.values())
    finally:
        rig.kubelet.heal()
        rig.gpus[2].overrides = {}
        rig.sync()
    assert "Traceback" not in doomed.log.read_text()


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1])
def test_sigterm_in_the_middle_of_a_cycle(doomed: Agent, delay: float) -> None:
    """Whatever a cycle is doing, the end is the same."""
    seen = one(doomed.samples(), "cycle_timestamp_seconds")
    doomed.wait_for(lambda: one(doomed.samples(), "cycle_timestamp_seconds") != seen)
    time.sleep(max(0.0, 0.95 + delay))
    start = time.monotonic()
    assert doomed.stop(timeout=10) == 0, doomed.tail()
    assert time.monotonic() - start < END
    assert "Traceback" not in doomed.log.read_text()


@pytest.mark.parametrize("trouble", [nothing, hang_nvml], ids=lambda trouble: trouble.__name__)
def test_children_end_by_themselves(rig: Rig, doomed: Agent, trouble: Callable[[Rig, Agent], None]) -> None:
    """After a SIGKILL of the agent, which can tell nobody, both are gone within seconds, hung or not."""
    running = observe.children(doomed)
    assert set(running) == {NVML_CHILD, HOST_CHILD}
    try:
        trouble(rig, doomed)
        doomed.process.kill()
        doomed.process.wait(5)
        assert {module for module, pid in running.items() if not observe.ended(pid, 5.0)} == set()
    finally:
        rig.gpus[2].overrides = {}
        rig.sync()
