"""The faults of single sources, and what is promised about each: one row, one test.

Told by hand from DESIGN and the table of rules, not taken from output. `python -m tests.faults` runs them
all, prints what was seen beside what is promised, and writes docs/reliability.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """A fault. In all of them scrapes are answered, and no finding appears or resolves because of it."""

    group: str
    name: str
    served: str
    unknown: str
    recovers: str


_LISTS = "Pods gone by its word (orphan_process, node_capacity_mismatch), what a pod that is gone was given"
_NVML_UNKNOWN = "GPU values, and every finding that needs NVML's process lists"
_NVML_SERVED = "Holders with their pods, allocations; external and stuck processes are still judged"
_API_SERVED = "GPUs, processes, allocations; pod names from kubelet and log directories"
_API_UNKNOWN = (
    "Which pods exist (orphan_process, used_not_allocated), what the node offers (node_capacity_mismatch)"
)
_BLIND_UNKNOWN = "Every finding about processes; none is made up from NVML's pids"
_RETRY = "At the next poll that succeeds: 10 s after the first failure, then 20, 40, at most 60 s apart"
_NEXT_START = "The next child starts 1 s later; after repeated deaths 2, 4, ... at most 300 s later"

CASES = (
    Case(
        "Kubelet",
        "kubelet mute",
        "Everything; allocations as last heard, for 60 s",
        _LISTS,
        "With the first answer; a call in flight is given up after 5 s",
    ),
    Case(
        "Kubelet",
        "kubelet slower than the wait",
        "Everything; its answer is taken up one cycle late",
        f"{_LISTS}, in the cycles without an answer",
        "It needs no recovery",
    ),
    Case(
        "Kubelet",
        "kubelet rate limit",
        "Everything; allocations as last heard, for 60 s",
        _LISTS,
        "Next cycle",
    ),
    Case("Kubelet", "kubelet reply of 17 MiB", "Everything; allocations as last heard", _LISTS, "Next cycle"),
    Case(
        "Kubelet",
        "kubelet refused",
        "Everything; allocations as last heard, for 60 s",
        f"{_LISTS}; after its return also what idles (idle_allocation)",
        "Next cycle; an absent pod is believed gone 3 min after its return",
    ),
    Case(
        "Kubelet",
        "kubelet restarting: empty, partial, full",
        "Everything; what it no longer lists as last heard, for 60 s",
        f"{_LISTS}, what idles (idle_allocation); after 60 s whether such a device is allocated, until it is "
        "listed again",
        "Allocations at once; an absent pod is believed gone 3 min after the restart",
    ),
    Case("Kubernetes API", "API 401", _API_SERVED, _API_UNKNOWN, _RETRY),
    Case("Kubernetes API", "API 403", _API_SERVED, _API_UNKNOWN, _RETRY),
    Case("Kubernetes API", "API 410", _API_SERVED, _API_UNKNOWN, _RETRY),
    Case("Kubernetes API", "API 500", _API_SERVED, _API_UNKNOWN, _RETRY),
    Case("Kubernetes API", "API half-open", _API_SERVED, _API_UNKNOWN, f"{_RETRY}; a read ends after 10 s"),
    Case("Kubernetes API", "API garbage", _API_SERVED, _API_UNKNOWN, _RETRY),
    Case(
        "Kubernetes API",
        "API token rotated",
        "Everything",
        "Nothing",
        "By itself: a request that is refused is made again with the kubeconfig as it is then",
    ),
    Case(
        "NVML",
        "NVML child stopped",
        _NVML_SERVED,
        _NVML_UNKNOWN,
        "When it runs again; killed after 60 s in one call",
    ),
    Case("NVML", "NVML child killed", _NVML_SERVED, _NVML_UNKNOWN, _NEXT_START),
    Case("NVML", "NVML crashes in init", _NVML_SERVED, _NVML_UNKNOWN, _NEXT_START),
    Case("NVML", "NVML child writes garbage", _NVML_SERVED, _NVML_UNKNOWN, _NEXT_START),
    Case(
        "NVML",
        "NVML init takes 28 s",
        "Holders with their pods, allocations, from the first cycle on",
        _NVML_UNKNOWN,
        "When init returns; the child is given up after 120 s",
    ),
    Case(
        "NVML",
        "GPU lost and back",
        "All other GPUs; of the lost one its inventory, holders and allocation",
        "Values and rows of the lost GPU, and findings on it that need them; its loss is a finding",
        "Next cycle",
    ),
    Case("Host", "dead FUSE mount under a holder's descriptor", "Everything", "Nothing", "It needs none"),
    Case("Host", "dead FUSE mount in a container's /dev", "Everything", "Nothing", "It needs none"),
    Case("Host", "process with 20,000 descriptors", "Everything", "Nothing", "It needs none"),
    Case("Host", "fork storm of 200 processes a second", "Everything", "Nothing", "It needs none"),
    Case(
        "Host",
        "pid reuse",
        "The new process under its own pod and start time",
        "Nothing",
        "Next cycle",
    ),
    Case("Host", "hidepid without SYS_PTRACE", "GPU values, allocations", _BLIND_UNKNOWN, "At a restart"),
    Case("Host", "wrong pid namespace", "GPU values, allocations", _BLIND_UNKNOWN, "At a restart"),
    Case("Agent", "SIGTERM in the middle of a cycle", "Nothing: exit status 0 in time", "Nothing", "-"),
    Case(
        "Agent",
        "clock set back an hour",
        "Everything; ages go by the monotonic clock",
        "Nothing",
        "It needs none",
    ),
)
BY_NAME = {case.name: case for case in CASES}
