"""A busy node, seen as a scrape sees it: every series must be what the rig spawned, no more and no fewer."""

import gzip
import http.client
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.rig.__main__ import populate
from tests.rig.agent import Agent, Samples
from tests.rig.hardware import Gpu, Mig
from tests.rig.rig import Rig
from tests.rig.workloads import OracleRow
from tests.system import observe
from tests.system.observe import INSTANCE, PREFIX, WORKLOAD, Row, eventually, processes, rows, values

SERIES = 2500
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


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


def index_of(rig: Rig, uuid: str) -> str:
    return next(str(gpu.index) for gpu in rig.gpus if gpu.uuid == uuid)


def device_of(target: Gpu | Mig) -> Row:
    """The labels of INSTANCE of a GPU or MIG device."""
    if isinstance(target, Mig):
        return (target.gpu.uuid, str(target.gi), target.uuid)
    return (target.uuid, "", "")


def owner_of(row: OracleRow) -> str:
    """The one daemon of the GPU stack is known by the unit in which it runs."""
    group = Path(f"/proc/{row.pid}/cgroup").read_text()
    return "system" if "nvidia-persistenced.service" in group else row.owner


def picked(found: list[dict[str, str]], *labels: str) -> set[Row]:
    picked = [tuple(row[label] for label in labels) for row in found]
    assert len(set(picked)) == len(picked), "two rows that these labels do not tell apart"
    return set(picked)


# ---------------------------------------------------------------- processes


def test_every_process_has_exactly_its_rows(rig: Rig, agent: Agent) -> None:
    """process_info names each process on each device: whose it is, what it is called, who sees it."""
    expected = {
        (
            *(row.uuid, index_of(rig, row.uuid), row.gi, row.mig_uuid, str(row.pid)),
            *(row.namespace, row.pod, row.container, row.pod_uid, observe.comm(row.pid), "running"),
            *(owner_of(row), "holder" if row.memory is None else "both"),
        )
        for row in rig.oracle()
    }
    assert (len(rig.gpus), len(rig.pods), len(rig.processes)) == (8, 12, 40)
    labels = ("uuid", "gpu", "gi", "mig_uuid", "pid", *WORKLOAD, "pod_uid", "comm", "state", "owner")

    def look(samples: Samples) -> set[Row]:
        return picked(processes(samples), *labels, "visibility")

    eventually(agent, look, expected)


def test_every_listed_process_has_its_memory_and_no_other(rig: Rig, agent: Agent) -> None:
    """process_memory_bytes is what NVML lists; a process that only holds device files has no such series."""
    expected = {
        (row.uuid, row.gi, row.mig_uuid, str(row.pid), row.namespace, row.pod, row.container): row.memory
        for row in rig.oracle()
        if row.memory is not None
    }
    labels = (*INSTANCE, "pid", *WORKLOAD)
    eventually(agent, lambda samples: values(samples, "process_memory_bytes", *labels), expected)


def test_start_times_are_the_kernels(rig: Rig, agent: Agent) -> None:
    """process_start_time_seconds is the boot time and the leader's start, as ps computes it."""
    lines = Path("/proc/stat").read_text().splitlines()
    (boot,) = (int(line.split()[1]) for line in lines if line.startswith("btime "))
    found = values(agent.samples(), "process_start_time_seconds", *INSTANCE, "pid")
    for row in rig.oracle():
        started = boot + row.start_time / os.sysconf("SC_CLK_TCK")
        assert found[row.uuid, row.gi, row.mig_uuid, str(row.pid)] == pytest.approx(started, abs=0.01)


def test_workloads_sum_their_processes(rig: Rig, agent: Agent) -> None:
    """workload_memory_bytes and workload_processes are the sums over the processes of pods."""
    memory: dict[Row, float] = {}
    count: dict[Row, float] = {}
    for row in rig.oracle():
        if row.pod:
            key = (row.uuid, row.gi, row.mig_uuid, row.namespace, row.pod, row.container)
            memory[key] = memory.get(key, 0) + (row.memory or 0)
            count[key] = count.get(key, 0) + 1
    samples = agent.samples()
    assert values(samples, "workload_memory_bytes", *INSTANCE, *WORKLOAD) == memory
    assert values(samples, "workload_processes", *INSTANCE, *WORKLOAD) == count


def test_each_device_file_has_its_holders(rig: Rig, agent: Agent) -> None:
    """device_holders counts the descriptors of every GPU's file, those without a row in NVML included."""
    held: dict[str, int] = {f"nvidia{gpu.minor}": 0 for gpu in rig.gpus}
    for row in rig.oracle():
        (gpu,) = (gpu for gpu in rig.gpus if gpu.uuid == row.uuid)
        held[f"nvidia{gpu.minor}"] += 1
    found: dict[str, float] = {}
    for (file, _), number in values(agent.samples(), "device_holders", "device_file", "owner").items():
        if file in held:
            found[file] = found.get(file, 0) + number
    assert found == held


# ---------------------------------------------------------------- devices


def test_allocations_are_those_that_were_given(rig: Rig, agent: Agent) -> None:
    """allocation_info has one row for each container and device, each with the UID of the pod."""
    targets: dict[str, Gpu | Mig] = {
        device_id: target for gpu in rig.gpus for target in gpu.targets() for device_id in target.device_ids
    }
    expected: set[Row] = set()
    for pod in rig.pods:
        for container, given in pod.devices.items():
            for resource, device_id, _ in given:
                target = targets[device_id]
                expected.add((*device_of(target), resource, pod.uid, pod.namespace, pod.name, container))
    labels = (*INSTANCE, "resource", "pod_uid", *WORKLOAD)
    eventually(agent, lambda samples: rows(samples, "allocation_info", *labels), expected)


def test_allocated_is_what_was_given_and_nothing_else(rig: Rig, agent: Agent) -> None:
    """gpu_allocated is 1 or 0 for all that can be given; a MIG parent, which is given in parts, has none."""
    given = {device_id for pod in rig.pods for one in pod.devices.values() for _, device_id, _ in one}
    expected: dict[Row, float] = {}
    for gpu in rig.gpus:
        for target in gpu.targets():
            if target.device_ids:
                expected[device_of(target)] = float(bool(given & set(target.device_ids)))
    eventually(agent, lambda samples: values(samples, "gpu_allocated", *INSTANCE), expected)


def test_only_an_exclusive_device_has_an_owner(rig: Rig, agent: Agent) -> None:
    """Labels of a GPU name the pod that has it to itself: neither a shared GPU nor a MIG parent has one."""
    owner = {device_id: pod for pod in rig.pods for one in pod.devices.values() for _, device_id, _ in one}
    whole: dict[Row, Row] = {}
    parts: dict[Row, Row] = {}
    for gpu in rig.gpus:
        pod = owner.get(gpu.uuid)
        whole[(gpu.uuid,)] = (pod.namespace, pod.name, "main") if pod else ("", "", "")
        for instance in gpu.instances:
            pod = owner[instance.uuid]
            parts[gpu.uuid, instance.uuid] = (pod.namespace, pod.name, "main")
    samples = agent.samples()
    for name in observe.DEVICE_VALUES:
        found = rows(samples, name, "uuid", *WORKLOAD)
        assert found == {(*device, *labels) for device, labels in whole.items()}
    for name in ("mig_info", "mig_memory_used_bytes"):
        found = rows(samples, name, "uuid", "mig_uuid", *WORKLOAD)
        assert found == {(*device, *labels) for device, labels in parts.items()}


def test_sums_count_no_byte_twice(rig: Rig, agent: Agent) -> None:
    """The sum over GPUs is NVML's, MIG devices are beside it, and what processes use is attributed once."""
    node = json.loads(rig.nvml_document.read_text())
    devices = node["devices"]
    instances = [one for gpu in devices if "mig" in gpu for one in gpu["mig"]["instances"]]
    samples = agent.samples()

    def total(name: str) -> float:
        return sum(value for (family, _), value in samples.items() if family == PREFIX + name)

    assert total("gpu_memory_used_bytes") == sum(gpu["memory"]["used"] for gpu in devices)
    assert total("gpu_memory_total_bytes") == sum(gpu["memory"]["total"] for gpu in devices)
    assert total("mig_memory_used_bytes") == sum(one["memory"]["used"] for one in instances)
    assert total("gpu_memory_attributed_bytes") == sum(row.memory or 0 for row in rig.oracle())
    in_pods = sum(row.memory or 0 for row in rig.oracle() if row.pod)
    assert total("workload_memory_bytes") == in_pods
    assert total("process_memory_bytes") == sum(row.memory or 0 for row in rig.oracle())


def test_the_node_is_counted_the_same_by_all(rig: Rig, agent: Agent) -> None:
    """node_gpus agrees where nothing is wrong; MIG devices and replicas have resources of their own."""
    found = values(agent.samples(), "node_gpus", "state")
    exclusive = sum(not gpu.mig and not gpu.replicas for gpu in rig.gpus)
    assert found["pci",] == found["nvml",] == len(rig.gpus)
    assert found["capacity",] == found["allocatable",] == exclusive
    # The shared GPU is one device however many replicas of it are given.
    assert found["allocated",] == 4 + 1 + 6
    assert found["requested",] == 4


# ---------------------------------------------------------------- the scrape itself


def test_the_scrape_stays_within_its_budget(agent: Agent) -> None:
    """A large node costs a Prometheus fewer than 2,500 series."""
    assert 500 < len(agent.samples()) < SERIES


def test_promtool_has_nothing_to_say(agent: Agent) -> None:
    """The linter passes names, units, types and help texts without a word."""
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=agent.scrape(), capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, TEXT),
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        (PROMETHEUS, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;q=0.1, text/plain;q=0.9", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;version=9.9", TEXT),
        (";;;,,,q=;=", TEXT),
    ],
)
def test_accept_chooses_the_format(agent: Agent, accept: str | None, content_type: str) -> None:
    """Both formats are valid and hold the same families, whatever a client writes in its Accept header."""
    answer = agent.get("/metrics", {} if accept is None else {"Accept": accept})
    assert (answer.status, answer.headers["content-type"]) == (200, content_type)
    parse = parse_openmetrics if content_type == OPENMETRICS else parse_text
    found = {family.name for family in parse(answer.text)}
    assert {"kubegpu_gpu_info", "kubegpu_process_info", "kubegpu_source_up"} <= found
    assert answer.text.endswith("# EOF\n") is (content_type == OPENMETRICS)


def test_gzip_and_head(agent: Agent) -> None:
    """A compressed scrape is the same text; HEAD has the length of the body that it leaves out."""
    answer = agent.get("/metrics", {"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    families = {family.name for family in parse_text(gzip.decompress(answer.body).decode())}
    assert "kubegpu_process_info" in families
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=10)
    connection.request("HEAD", "/metrics")
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b"")
    assert int(response.headers["Content-Length"]) > 10_000
    connection.close()
