"""A scenario: a recorded or invented course of events on a node, replayed without GPU or Kubernetes.

A folder's `frames.yaml` and a start come in, one Snapshot per cycle goes out; `story.md` beside it tells the
same in words. The demo and the golden tests fold them through `exporter.report.advance` like those of a real
node. It must never judge anything, and it reads no clock but that of `Player`.

    node_name: gpu-node-1
    interval: 15        # seconds between two looks
    loop: true          # after the last frame: true: on to the first; a number: to that second; false: stay
    anchors: ...        # ignored: a place for YAML anchors
    frames:
      - at: 0           # seconds from the start; the first frame has every source
        nvml:
          driver_version: 570.148.08
          gpus:
            GPU-11111111-0000-4000-8000-000000000000: {index: 0, rows: {4107: 61GiB}, ...}
        kubelet:
          pods: {ml/train-0: {main: {nvidia.com/gpu: [GPU-11111111-0000-4000-8000-000000000000]}}}
        pci: off        # not wanted, as opposed to not answering
        ...
      - at: 30          # what is not named stays as it was
        kubelet: {missed: unavailable, detail: connection refused}
      - at: 60
        kubelet: seen   # it answers again, with what it last said

A source is the fields of its record in `exporter.model`, with the differences in the tables of
`exporter.scenario.records`: what has an identity is a mapping by it, a size may be written as 512MiB. A frame
is a merge patch (RFC 7396) to the one before: mappings merge, null takes away, all else replaces.
`{seen: ..., age: 40, took: 0.2}` also says how old the answer is and how long it took, `{partial: ...}` that
it is incomplete.

All times are seconds from the start of the scenario. `energy` is the counter at the start; it grows with
`power`. By which numbers of NVML's lists a process goes, which of them have no process, and which containers
live follows from the rest.
"""

from exporter.scenario.files import ScenarioError, load, shipped
from exporter.scenario.replay import Frame, Player, Scenario, snapshots

__all__ = ["Frame", "Player", "Scenario", "ScenarioError", "load", "shipped", "snapshots"]
