from pathlib import Path

import pytest

from exporter.model import (
    DeviceNode,
    GpuByUuid,
    Missed,
    NodeKind,
    NvmlRow,
    Off,
    Reason,
    Seen,
    Snapshot,
    value,
)
from exporter.scenario import Player, Scenario, ScenarioError, load, shipped, snapshots
from tests import golden

START = 1_800_000_000.0
GPU = "GPU-00000000-0000-4000-8000-000000000000"
FIRST = f"""
node_name: node-1
interval: 10
frames:
  - at: 0
    nvml:
      driver_version: 570.148.08
      cuda_version: "12.8"
      nvml_version: 12.570.148.08
      gpus:
        {GPU}:
          index: 0
          minor: 0
          memory: {{total: 80GiB, used: 2.5GiB, reserved: 512MiB}}
          rows: {{100: 2GiB, 107: 256MiB, 999: {{}}}}
          telemetry: {{power: 100, energy: 5000, utilization: 0.25, clocks: {{sm: 1980e6}}}}
    processes:
      boot_time: -1000
      processes:
        100:
          started: -990
          comm: train
          cgroup: {{pod_uid: u1, container_id: c1}}
          numbers: [107]
          holds: {{nvidia0: {{descriptors: 3, mappings: 2}}, nvidia-uvm: 1}}
    container_dev: off
    kubelet:
      pods: {{ml/train-0: {{main: {{nvidia.com/gpu: ["{GPU}::3"]}}}}}}
    pods:
      seen:
        pods:
          ml/train-0: {{uid: u1, containers: {{main: {{container_id: c1, started_at: -995}}}}}}
      age: 40
      took: 0.2
    node: {{missed: denied, detail: not allowed}}
    pod_names: {{names: {{ml_train-0_u1: [main]}}}}
    pci: {{gpus: {{0000:01:00.0: {{minor: 0}}}}}}
"""


def read(tmp_path: Path, text: str) -> Scenario:
    (tmp_path / "frames.yaml").write_text(text)
    return load(str(tmp_path))


def looks(tmp_path: Path, more: str = "", head: str = "") -> list[Snapshot]:
    return list(snapshots(read(tmp_path, head + FIRST + more), START, 500.0))


# --- what a frame says --------------------------------------------------------------------------------------


def test_a_frame_is_read_into_the_records_of_the_sources(tmp_path: Path) -> None:
    """Short spellings become what the sources would have sent."""
    (look,) = looks(tmp_path)
    nvml, table = value(look.nvml), value(look.processes)
    assert nvml is not None
    assert table is not None
    (gpu,) = nvml.gpus
    assert gpu.memory is not None
    assert (gpu.memory.used, gpu.memory.free) == (5 * 2**29, 77 * 2**30)
    assert gpu.rows == (NvmlRow(100, memory=2**31), NvmlRow(107, memory=2**28), NvmlRow(999))
    assert gpu.telemetry.clocks == (("sm", 1.98e9),)
    assert nvml.count == 1
    (process,) = table.processes
    assert process.id.start == 1000
    assert [(hold.node, hold.descriptors, hold.mappings) for hold in process.holds] == [
        (DeviceNode(NodeKind.GPU, 195, 0), 3, 2),
        (DeviceNode(NodeKind.UVM, 511, 0), 1, 0),
    ]
    kubelet = value(look.kubelet)
    assert kubelet is not None
    assert [(a.ref, a.replica) for a in kubelet.allocations] == [(GpuByUuid(GPU), "3")]
    assert kubelet.allocatable is None
    assert look.container_dev == Off()
    assert look.node == Missed(Reason.DENIED, START, 0.01, "not allowed")


def test_what_follows_from_the_rest_need_not_be_written(tmp_path: Path) -> None:
    """Numbers of NVML find their process or have none, and a container lives while a process is in it."""
    (look,) = looks(tmp_path)
    table = value(look.processes)
    assert table is not None
    assert table.processes[0].numbers == (100, 107)
    assert table.missing == (999,)
    assert [(c.pod_uid, c.container_id, c.process.pid) for c in table.containers] == [("u1", "c1", 100)]


def test_the_scan_is_told_no_numbers_while_nvml_is_silent(tmp_path: Path) -> None:
    """As with the real sources: without NVML nothing is asked, so nothing is missing."""
    look = looks(tmp_path, "  - {at: 10, nvml: {missed: timeout}}\n")[1]
    table = value(look.processes)
    assert table is not None
    assert (table.processes[0].numbers, table.missing) == ((), ())


def test_times_are_those_of_the_replay(tmp_path: Path) -> None:
    """Seconds from the start become the clock's; an answer is as old as the frame says."""
    (look,) = looks(tmp_path)
    table, pods = value(look.processes), value(look.pods)
    assert table is not None
    assert pods is not None
    assert table.boot_time == START - 1000
    assert pods.pods[0].containers[0].started_at == START - 995
    assert isinstance(look.pods, Seen)
    assert (look.pods.at, look.pods.took) == (START - 40, 0.2)


def test_a_frame_changes_what_it_names(tmp_path: Path) -> None:
    """Mappings merge, null takes away, and all else stays: also through a time of silence."""
    more = f"""
  - at: 10
    nvml: {{gpus: {{{GPU}: {{memory: {{used: 1GiB}}, rows: {{999: null}}}}}}}}
    kubelet: {{missed: unavailable}}
    pods: {{partial: {{pods: {{ml/train-0: {{deletion_timestamp: 40}}}}}}}}
    nvml_in_flight: {{call: nvmlX, index: null, uuid: "", since: 9}}
  - at: 20
    kubelet: seen
    nvml_in_flight: null
"""
    first, second, third = looks(tmp_path, more)
    nvml = value(second.nvml)
    assert nvml is not None
    assert nvml.gpus[0].memory is not None
    assert (nvml.gpus[0].memory.used, nvml.gpus[0].memory.reserved) == (2**30, 2**29)
    assert [row.pid for row in nvml.gpus[0].rows or ()] == [100, 107]
    assert isinstance(second.kubelet, Missed)
    assert isinstance(second.pods, Seen)
    assert not second.pods.complete
    assert second.pods.value.pods[0].deletion_timestamp == START + 40
    assert second.nvml_in_flight is not None
    assert second.nvml_in_flight.since == START + 9
    assert value(third.kubelet) == value(first.kubelet)
    assert third.nvml_in_flight is None


# --- replay -------------------------------------------------------------------------------------------------


def energies(scenario: Scenario, times: list[float]) -> list[tuple[float, float | None, float | None]]:
    clock = [0.0]
    player = Player(scenario, wall=lambda: START + clock[0], monotonic=lambda: 500 + clock[0])
    found = []
    for clock[0] in times:
        look = player(None)
        nvml = value(look.nvml)
        assert nvml is not None
        telemetry = nvml.gpus[0].telemetry
        found.append((look.at - START, telemetry.power, telemetry.energy))
    return found


CHANGE = f"  - {{at: 10, nvml: {{gpus: {{{GPU}: {{telemetry: {{power: 300}}}}}}}}}}\n"


def test_the_last_frame_holds(tmp_path: Path) -> None:
    """Without a loop nothing changes any more but the energy that the power draws."""
    scenario = read(tmp_path, FIRST + CHANGE)
    assert energies(scenario, [0, 9, 10, 100]) == [
        (0, 100, 5000),
        (9, 100, 5900),
        (10, 300, 6000),
        (100, 300, 33000),
    ]


def test_a_loop_starts_over_and_counters_run_on(tmp_path: Path) -> None:
    """The last frame lasts one interval: a lap of 20 s draws 1 kJ and 3 kJ."""
    scenario = read(tmp_path, "loop: true" + FIRST + CHANGE)
    assert energies(scenario, [0, 10, 20, 30, 45]) == [
        (0, 100, 5000),
        (10, 300, 6000),
        (20, 100, 9000),
        (30, 300, 10000),
        (45, 100, 13500),
    ]


def test_a_loop_may_go_back_to_a_later_second(tmp_path: Path) -> None:
    """What happened before it happens once."""
    scenario = read(tmp_path, "loop: 10" + FIRST + CHANGE)
    assert energies(scenario, [0, 10, 25, 40]) == [
        (0, 100, 5000),
        (10, 300, 6000),
        (25, 300, 10500),
        (40, 300, 15000),
    ]


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_scenario_keeps_its_counters_growing(name: str) -> None:
    """A lap that set energy back would look like a reboot, and rate() would make a peak of it."""
    scenario = load(name)
    clock = [0.0]
    player = Player(scenario, wall=lambda: START + clock[0], monotonic=lambda: clock[0])
    before: dict[str, float] = {}
    while clock[0] < 3 * scenario.end:
        nvml = value(player(None).nvml)
        for gpu in nvml.gpus if nvml else ():
            assert gpu.telemetry.energy is not None
            assert gpu.telemetry.energy > before.get(gpu.uuid, 0.0)
            before[gpu.uuid] = gpu.telemetry.energy
        clock[0] += 7


# --- refusals -----------------------------------------------------------------------------------------------


def test_the_default_is_a_shipped_scenario() -> None:
    """The demo needs no argument."""
    assert load(None).name == "healthy-node"
    assert {"healthy-node", "mig-node", "pod-restart", "time-sliced"} <= set(shipped())


def test_a_file_may_be_named_as_well_as_its_folder(tmp_path: Path) -> None:
    """Both name the scenario after the folder."""
    assert read(tmp_path, FIRST).name == tmp_path.name
    assert load(str(tmp_path / "frames.yaml")).name == tmp_path.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("index: 0", "indx: 0"), f"frames[0].nvml.gpus.{GPU}.indx: unknown key; Gpu has uuid, index, "),
        (("index: 0", "index: zero"), f"frames[0].nvml.gpus.{GPU}.index: 'zero' is not of type int"),
        (("          index: 0\n", ""), f"frames[0].nvml.gpus.{GPU}: Gpu lacks index"),
        (("index: 0", f"uuid: {GPU}"), f"frames[0].nvml.gpus.{GPU}.uuid: '{GPU}' beside {GPU}; leave it out"),
        (("107: 256MiB", "107: {memry: 1}"), f"{GPU}.rows.107.memry: unknown key; NvmlRow has pid, gi, "),
        (("2.5GiB", "2.5GB"), f"{GPU}.memory.used: '2.5GB' is not of type int"),
        (("started: -990", "started: -2000"), "100.started: -2000 is before the boot at -1000; give a later"),
        (
            ("          started: -990\n", ""),
            "frames[0].processes.processes.100.started: missing; give seconds",
        ),
        (("      boot_time: -1000\n", ""), "frames[0].processes.boot_time: missing; give seconds"),
        (
            ("nvidia-uvm: 1", "sda: 1"),
            "100.holds.sda: 'sda' is no NVIDIA device file; give one such as nvidia0",
        ),
        (("nvidia-uvm: 1", "nvidia-uvm: many"), "holds.nvidia-uvm.descriptors: 'many' is not of type int"),
        (("[107]", "107"), "frames[0].processes.processes.100.numbers: 107 is not a list"),
        (("  pci: {", "  pcie: {"), "frames[0].pcie: unknown key; there are at, nvml_in_flight, nvml, "),
        (("    container_dev: off\n", ""), "frames[0].container_dev: missing in the first frame; give its f"),
        (
            ("container_dev: off", "container_dev: no"),
            "frames[0].container_dev: 'no' is no reading; give fie",
        ),
        (
            ("container_dev: off", "container_dev: seen"),
            "container_dev: 'seen', but no frame so far says what",
        ),
        (
            ("missed: denied", "missed: bored"),
            "frames[0].node.reason: 'bored' is none of timeout, busy, denied",
        ),
        (("detail:", "details:"), "frames[0].node.details: unknown key; Missed has reason, at, took, detail"),
        (("age: 40", "old: 40"), "frames[0].pods.old: unknown key; there are seen, age, took"),
        (
            ("ml/train-0: {main", "train-0: {main"),
            "kubelet.pods.train-0: 'train-0' is no pod; give namespace/",
        ),
        (
            ("ml_train-0_u1", "ml_train-0"),
            "pod_names.names.ml_train-0: 'ml_train-0'; give <namespace>_<name>",
        ),
        (("[main]", "main"), "frames[0].pod_names.names.ml_train-0_u1: 'main' is not a list"),
        (("at: 0\n", "at: 5\n"), "frames[0].at: 5; the first frame is at 0"),
        (("- at: 0\n", "- container: 0\n"), "frames[0].container: unknown key; there are at, "),
        (("interval: 10", "interval: 0"), "interval: 0 is not above 0; give the seconds between two looks"),
        (("interval: 10\n", ""), "interval: missing; give the seconds between two looks"),
        (("node_name: node-1\n", "node_name: node-1\nnode: x\n"), "node: unknown key; there are node_name, "),
        (
            ("node_name: node-1\n", "node_name: node-1\nloop: 50\n"),
            "loop: 50 is outside the frames; give 0 to 0",
        ),
        (("minor: 0\n", "index: 1\n"), "'index' stands twice"),
        (("cuda_version: ", "cuda_version: ["), "correct the YAML"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    """The line names the file, the field, its value and what to give instead."""
    text = FIRST.replace(change[0], change[1], 1)
    assert text != FIRST
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"--demo.scenario: {tmp_path}/frames.yaml: ")
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("  - at: 0\n", "frames[1].at: 0 is not after the frame before, at 0; sort the frames"),
        ("  - {}\n", "frames[1].at: missing; give the seconds from the start"),
        ("  - 5\n", "frames[1]: 5 is no mapping; give at and the sources that change"),
        (
            "  - {at: 10, pci: {gpus: {0000:09:00.0: null}}}\n",
            "null takes nothing away; there are 0000:01:00.0",
        ),
        ("  - {at: 10, processes: {processes: {101: {state: D}}}}\n", "processes.101.started: missing"),
        ("  - {at: 10, node: {labels: {a: b}}}\n", "frames[1].node: Node lacks allocatable, capacity"),
    ],
)
def test_a_later_frame_that_is_wrong_is_named(tmp_path: Path, more: str, message: str) -> None:
    """The number in the path is that of the frame with the mistake."""
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, FIRST + more)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "frames", "node_name: n\ninterval: 1\nframes: []\n"])
def test_a_file_without_frames_is_refused(tmp_path: Path, text: str) -> None:
    """Whatever else the file is, the answer is one line that says what to give."""
    with pytest.raises(ScenarioError, match=r"frames.*; give"):
        read(tmp_path, text)


def test_an_unknown_scenario_is_answered_with_those_there_are(tmp_path: Path) -> None:
    """A misspelt name needs no look into the documentation."""
    with pytest.raises(ScenarioError) as caught:
        load("helthy-node")
    said = str(caught.value)
    assert said.startswith(
        "--demo.scenario: 'helthy-node': no shipped scenario and no such path; shipped are "
    )
    for name in shipped():
        assert name in said
    with pytest.raises(ScenarioError, match=r"No such file or directory; a scenario has a frames\.yaml"):
        load(str(tmp_path))


# --- the form of expectations -------------------------------------------------------------------------------


def test_an_expectation_is_the_whole_of_the_families_that_it_names(tmp_path: Path) -> None:
    """A series too many, one too few and another value all show; families that are not named do not count."""
    path = tmp_path / "0.metrics"
    path.write_text(
        "# a comment\n"
        'kubegpu_source_up{source="nvml"} 1\n'
        'kubegpu_source_up{source="pci"} 1\n'
        'kubegpu_gpu_memory_used_bytes{uuid="a",gpu="0"} 2MiB\n'
        "kubegpu_cycle_timestamp_seconds start+15\n"
        "kubegpu_gpu_info\n"
    )
    wanted = golden.expected(path)
    got: golden.Samples = {
        "kubegpu_source_up": {(("source", "nvml"),): 0, (("source", "node"),): 1},
        "kubegpu_gpu_memory_used_bytes": {(("gpu", "0"), ("uuid", "a")): 2 * 2**20},
        "kubegpu_cycle_timestamp_seconds": {(): golden.START + 15},
        "kubegpu_gpu_info": {(("uuid", "a"),): 1},
        "kubegpu_node_info": {(): 1},
    }
    assert [str(difference) for difference in golden.differences(wanted, got)] == [
        'kubegpu_source_up{source="node"} wanted none, got 1',
        'kubegpu_source_up{source="nvml"} wanted 1, got 0',
        'kubegpu_source_up{source="pci"} wanted 1, got none',
        'kubegpu_gpu_info{uuid="a"} wanted none, got 1',
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kubegpu_gpus 1", "names no family of the catalog"),
        ('kubegpu_source_up{sauce="nvml"} 1', "the family has no label {'sauce'}"),
        ('kubegpu_source_up{source="nvml} 1', "labels cannot be read"),
        ('kubegpu_source_up{source="nvml"}', "is no family without series"),
        ('kubegpu_source_up{source="pci"} 1\nkubegpu_source_up{source="pci"} 1', "stands twice"),
    ],
)
def test_a_line_that_expects_nothing_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """A misspelt expectation must not pass for one that holds."""
    path = tmp_path / "0.metrics"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        golden.expected(path)
