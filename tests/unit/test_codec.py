"""Records to plain data and back: nothing is lost, and nothing is taken that is not what it should be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.codec import CodecError, decode, encode
from exporter.model import (
    Advisory,
    Allocation,
    Cgroup,
    ContainerKind,
    DeviceRef,
    Gpu,
    GpuByMinor,
    Hold,
    MigByInstance,
    Missed,
    NodeKind,
    Nvml,
    Off,
    Owner,
    Process,
    ProcessId,
    ProcessTable,
    Reading,
    Reason,
    Seen,
    Snapshot,
    Task,
    Telemetry,
    Unrecognised,
)
from tests import builders as b

GPU = b.gpu(
    rows=(b.row(7, None, gi=1, ci=0, kinds=("compute", "mps")),),
    instances=(b.mig_instance(1, 0), b.mig_instance(2, 1, frame_buffer=b.memory(5, reserved=None))),
    mig_enabled=True,
    telemetry=Telemetry(thresholds=(("slowdown", 90.0),), clocks=(("sm", 1.5e9),), power=0.0),
)
PROCESS = replace(
    b.process(holds=(b.hold(), b.hold(NodeKind.UVM)), numbers=(1, 2), unread=("maps",)),
    cgroup=Cgroup("uid", "id", "", True),
    blocked=(Task(5, 6, "nv_close"),),
)
READING = Seen[int] | Missed | Off
LOOK = b.snapshot(
    nvml=b.nvml(GPU),
    processes=b.process_table(PROCESS),
    kubelet=b.kubelet(b.allocation(), b.allocation("x", ref=Unrecognised("x"), replica="2")),
    pods=(b.pod(gpus=1, annotations=(("a", "b"),)),),
    node=Off(),
    pci=b.missed(Reason.DENIED, detail='no "way"\n'),
    pod_names=(b.pod_name(),),
)


def test_a_whole_look_survives_json() -> None:
    """As it crosses a pipe between the agent and its children."""
    assert decode(Snapshot, json.loads(json.dumps(encode(LOOK)))) == LOOK


def test_what_is_at_its_default_is_left_out() -> None:
    """Scenario files name only what matters."""
    assert encode(Hold(b.device_node())) == {
        "is": "Hold",
        "node": {"is": "DeviceNode", "kind": "gpu", "major": 195, "minor": 0},
    }
    assert decode(Hold, {"node": {"kind": "gpu", "major": 195, "minor": 0}}) == Hold(b.device_node())


refs = st.one_of(
    st.builds(GpuByMinor, st.integers(0, 300)),
    st.builds(MigByInstance, st.none() | st.text(), st.none() | st.integers(), st.integers(), st.none()),
    st.builds(Advisory, st.text(), st.text()),
    st.builds(Unrecognised, st.text()),
)


@given(refs, st.text(), st.text())
def test_members_of_a_union_keep_their_kind(ref: DeviceRef, resource: str, replica: str) -> None:
    """Whatever text third parties put into their ids."""
    given_ = Allocation("ns", "pod", "c", resource, "id", ref, replica)
    assert decode(Allocation, json.loads(json.dumps(encode(given_)))) == given_


readings: st.SearchStrategy[Reading[int]] = st.one_of(
    st.builds(Seen, st.integers(), st.floats(allow_nan=False), st.floats(0, 9), st.booleans()),
    st.builds(Missed, st.sampled_from(Reason), st.floats(0, 9), st.floats(0, 9), st.text()),
    st.just(Off()),
)


@given(readings)
def test_readings_survive(reading: Reading[int]) -> None:
    """A reading that was missed must never come out as one that was seen."""
    assert decode(READING, json.loads(json.dumps(encode(reading)))) == reading


@pytest.mark.parametrize(
    ("kind", "plain", "where", "problem"),
    [
        (ProcessId, {"pid": "1", "start": 1}, ".pid", "not of type int"),
        (ProcessId, {"pid": True, "start": 1}, ".pid", "not of type int"),
        (ProcessId, {"pid": 1.0, "start": 1}, ".pid", "not of type int"),
        (ProcessId, {"pid": 1}, "", "lacks start"),
        (ProcessId, {"pid": 1, "start": 1, "stat": 2}, ".stat", "unknown key"),
        (ProcessId, {"is": "DeviceNode", "pid": 1, "start": 1}, ".is", "ProcessId is wanted"),
        (ProcessId, [1, 1], "", "no mapping"),
        (Hold, {"node": {"kind": "gpus", "major": 1, "minor": 1}}, ".node.kind", "none of gpu"),
        (Gpu, {"uuid": "u", "index": 0, "rows": [{"pid": None}]}, ".rows[0].pid", "not of type int"),
        (Gpu, {"uuid": "u", "index": 0, "rows": {}}, ".rows", "not a list"),
        (Telemetry, {"clocks": [["sm"]]}, ".clocks[0]", "list of 2"),
        (Telemetry, {"power": "hot"}, ".power", "not of type float"),
        (READING, {"is": "Sean"}, ".is", "none of Seen"),
        (READING, 3, "", "no record"),
        (ContainerKind, "cron", "", "none of app"),
        (Owner, None, "", "none of pod"),
    ],
)
def test_what_is_not_the_record_is_refused_by_its_place(
    kind: Any, plain: Any, where: str, problem: str
) -> None:
    """The author of a scenario file, or of a child, is told where to look."""
    with pytest.raises(CodecError, match=re.escape(problem)) as caught:
        decode(kind, plain)
    assert caught.value.where == where


def test_whole_numbers_are_floats_where_floats_are_wanted() -> None:
    """YAML and JSON write 90 for 90.0."""
    found: Telemetry = decode(Telemetry, {"power": 90})
    assert found.power == 90.0
    assert type(found.power) is float


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["is", "pid", "nvml"]), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=200)
@given(json_values, st.sampled_from([Nvml, ProcessTable, Process, Snapshot, Seen[Nvml]]))
def test_any_nonsense_is_refused_and_nothing_else(plain: Any, kind: Any) -> None:
    """A child that talks nonsense is a protocol error, and no other exception."""
    try:
        decode(kind, plain)
    except CodecError:
        return
    raise AssertionError("nonsense was taken for a record")


def test_a_number_beyond_any_float_is_refused() -> None:
    """Not with an exception that nobody expects."""
    with pytest.raises(CodecError):
        decode(Telemetry, {"power": 10**400})
