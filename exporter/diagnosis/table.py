"""The table of rules: every finding and kind, what it needs, when it counts, and what to do about it. Pure data.

A new kind is a row here, a branch in its check, a scenario in which it holds and one in which it must not.
Ages and cycle counts are defaults: `--rules.<finding>.<kind>.age` sets another age.
"""

from __future__ import annotations

from exporter.diagnosis import allocation, capacity, memory, processes, visibility
from exporter.diagnosis.rule import Evidence, Kind, Rule, needs
from exporter.model import FindingName, Severity

E = Evidence
CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO

SCAN = needs((E.SCAN,))
CLIENTS = needs((E.SCAN, E.ROWS), (E.WHOLE_SCAN,))
ROWS = needs((E.ROWS, E.SCAN))
API = needs((E.SCAN, E.PODS))
GIVEN = needs((E.ROWS, E.SCAN, E.LIST))
VISIBLE = needs((E.VIEWS, E.LIST))
COUNTS_NODE = needs((E.NODE, E.INVENTORY))

RULES: tuple[Rule, ...] = (
    Rule(
        finding=FindingName.PHANTOM_PROCESS,
        kinds=(
            Kind("held", ROWS, "Live processes that inherited its descriptors keep its memory.", 3, 120),
            Kind("unheld", ROWS, "Nobody that can be seen holds it: the driver kept its record.", 3, 120),
            Kind("aliased", ROWS, "Another process has been given its pid since.", 3, 120),
        ),
        check=processes.phantoms,
        severity=WARNING,
        summary="NVML charges GPU memory to a process that does not exist.",
        guards="Rows of no bytes; pids of a foreign pid namespace; a holder with an nvidia-uvm mapping of its own, "
        "a thread of which may be what is listed (then undetermined).",
        remedy="held: end the named holders. unheld or aliased: drain the node and reset the GPU, or reboot.",
        alert="GPUPhantomProcess",
    ),
    Rule(
        finding=FindingName.STUCK_PROCESS,
        kinds=(
            Kind("kill_pending", SCAN, "SIGKILL was sent and is not taken.", 2, 120, CRITICAL),
            Kind("exiting", SCAN, "It is ending and does not get to the end.", 2, 120, CRITICAL),
            Kind("zombie_leader", SCAN, "Its main thread is gone and others live on.", 2, 60, CRITICAL),
            Kind(
                "uninterruptible_driver",
                SCAN,
                "A thread sleeps in the NVIDIA driver and does not move.",
                4,  # that it does not move shows at the second read of five
                120,
                CRITICAL,
            ),
            Kind("zombie", SCAN, "It is dead, not collected, and NVML still lists it.", 2, 60),
            Kind(
                "uninterruptible_other",
                SCAN,
                "A thread sleeps in the kernel, outside the driver, and does not move.",
                4,
                120,
            ),
        ),
        check=processes.stuck,
        severity=WARNING,
        summary="A process on a GPU can neither go on nor end.",
        guards="Plain zombies without a row; sleeps that move; core dumps; stopped and traced processes; frozen "
        "cgroups without a pending SIGKILL; the agent's own children.",
        remedy="Cordon the node and see what it waits for (/proc/PID/wchan, dmesg): a wait in the driver ends only "
        "with a GPU reset or a reboot.",
        alert="GPUStuckProcess",
    ),
    Rule(
        finding=FindingName.ORPHAN_PROCESS,
        kinds=(
            Kind(
                "pod_gone",
                needs((E.SCAN, E.PODS, E.SETTLED_LIST)),
                "Its pod is gone by the word of API server and kubelet.",
                2,
                180,
            ),
            Kind("terminating_overdue", API, "Its pod should have been gone two minutes ago.", 2, 0),
            Kind("pod_terminal", API, "Its pod has run to its end."),
            Kind("stale_container", API, "Its container has been replaced by a newer one."),
            Kind("cgroup_deleted", SCAN, "Its control group was removed."),
        ),
        check=processes.orphans,
        severity=WARNING,
        summary="A live process uses a GPU for a pod or container that is no longer there.",
        guards="Workers whose parent died in a live container; init, sidecar and ephemeral containers; static pods; a "
        "container id that the API does not know yet; GPU infrastructure.",
        remedy="End the process on the node (the runtime no longer will), then see why the runtime lost it.",
        alert="GPUOrphanProcess",
    ),
    Rule(
        finding=FindingName.EXTERNAL_PROCESS,
        kinds=(
            Kind("user_session", CLIENTS, "It belongs to somebody's login.", 2, 120),
            Kind("system_service", CLIENTS, "It is a service of the host.", 2, 120),
            Kind("other_container", CLIENTS, "It runs in a container that is no pod's.", 2, 120),
            Kind("unknown", CLIENTS, "It is in no unit that says what it is.", 2, 120),
        ),
        check=processes.external,
        severity=WARNING,
        summary="A process outside Kubernetes uses a GPU of this node.",
        guards="Known GPU infrastructure, up to the memory that such a daemon needs.",
        remedy="Ask its owner to end it, or take the GPU away from the device plugin.",
        alert="GPUExternalProcess",
    ),
    Rule(
        finding=FindingName.HIDDEN_HOLDER,
        kinds=(Kind("unlisted", ROWS, "It has nvidia-uvm open or a device mapped, and no row."),),
        check=processes.hidden,
        severity=INFO,
        summary="A process can own GPU memory and NVML does not list it.",
        guards="Monitors, which have no nvidia-uvm; descendants of a listed process of the same pod; GPU "
        "infrastructure.",
        remedy="See whether its parent died and left it behind; end it if nobody needs it.",
        alert="GPUHiddenHolder",
    ),
    Rule(
        finding=FindingName.ORPHANED_MEMORY,
        kinds=(
            Kind("none", needs((E.MEMORY, E.SCAN)), "No process has the device open.", 2, 300),
            Kind("fd_only", needs((E.MEMORY, E.SCAN)), "Processes without a row have it open.", 2, 300),
            Kind(
                "live_peer",
                needs((E.MEMORY, E.SCAN)),
                "Only processes with rows have it open: managed or imported memory, perhaps.",
                2,
                300,
                INFO,
            ),
        ),
        check=memory.orphaned,
        severity=WARNING,
        summary="GPU memory is in use that no process accounts for.",
        guards="Less than the threshold; what the driver reserves or has always used; rows without a figure, unified "
        "or NUMA memory, confidential computing and vGPU hosts (not applicable); MIG parents: each instance is judged.",
        remedy="fd_only: end the named holders. none: drain the node and reset the GPU. live_peer: ask the workload.",
        alert="GPUMemoryOrphaned",
        of_memory=True,
    ),
    Rule(
        finding=FindingName.EXCLUSIVE_GPU_SHARED,
        kinds=(
            Kind("double_use", GIVEN, "Processes of two pods have memory on it."),
            Kind("double_allocation", needs((E.LIST,)), "The kubelet gave one id to two active pods."),
        ),
        check=allocation.shared,
        severity=CRITICAL,
        summary="Two pods are on a device that is meant for one.",
        guards="Replicas and `.shared` resources, MPS, one claim of several pods, an init container and its app, pods "
        "that have ended, rows of no bytes, GPU infrastructure.",
        remedy="Find which pod the device was given to and why the other one sees it (privileged, hostPath, runtime).",
        alert="GPUExclusiveShared",
    ),
    Rule(
        finding=FindingName.USED_NOT_ALLOCATED,
        kinds=(
            Kind("of_other_pod", GIVEN, "The device was given to another pod.", severity=CRITICAL),
            Kind("of_nobody", GIVEN, "The device was given to nobody, or is shared by others."),
        ),
        check=allocation.misplaced,
        severity=WARNING,
        summary="A pod has memory on a device that it was not given.",
        guards="A pod that held the device earlier in its life; rows of no bytes; MPS; GPU infrastructure; advisory "
        "schemes (HAMi, Volcano, gpushare, KAI: not applicable); ids that nobody understands (undetermined).",
        remedy="Look at the pod's runtime class, privileges and mounts: something lets it see devices beyond its own.",
        alert="GPUUsedByWrongPod",
    ),
    Rule(
        finding=FindingName.VISIBLE_NOT_ALLOCATED,
        kinds=(
            Kind("privileged", VISIBLE, "Its container is privileged and sees the host's devices."),
            Kind("host_device", VISIBLE, "The host's /dev is mounted into it."),
            Kind("mig_caps", VISIBLE, "It sees capability files of MIG devices that are not its own."),
            Kind("other", VISIBLE, "Something else shows them to it, mostly the container runtime."),
        ),
        check=visibility.exposed,
        severity=INFO,
        summary="A container can open GPUs that it was not given.",
        guards="GPU infrastructure; the parent's file of a MIG device; what is in the /dev of containers that cannot be "
        "entered safely.",
        remedy="Set a runtime class and drop privileges, so that the device plugin alone decides what it sees.",
        alert="GPUVisibleNotAllocated",
    ),
    Rule(
        finding=FindingName.ALLOCATED_NOT_VISIBLE,
        kinds=(Kind("no_device_file", VISIBLE, "Its running container has no file for the device.", 2, 60),),
        check=visibility.unseen,
        severity=WARNING,
        summary="A container was given a GPU and cannot see it.",
        guards="Containers in their first minute; sandboxed runtimes, WSL and vfio, where no such file is needed.",
        remedy="Check the runtime class and that the container runtime has NVIDIA's handler; then restart the pod.",
        alert="GPUAllocatedNotVisible",
    ),
    Rule(
        finding=FindingName.NODE_CAPACITY_MISMATCH,
        kinds=(
            Kind(
                "allocated_device_missing",
                needs((E.LIST, E.INVENTORY)),
                "A pod holds a device that NVML does not have.",
                2,
                300,
                CRITICAL,
            ),
            Kind(
                "nvml_lt_pci",
                needs(
                    (E.PCI, E.INVENTORY), (E.PCI, E.ROWS)
                ),  # a GPU without a name makes the list incomplete
                "A GPU on the bus is missing.",
                2,
                300,
                CRITICAL,
            ),
            Kind("capacity_gt_real", COUNTS_NODE, "The node offers more than there is.", 2, 300),
            Kind("capacity_lt_real", COUNTS_NODE, "The node offers less than there is.", 2, 300),
            Kind("allocatable_lt_capacity", needs((E.NODE,)), "Devices are unhealthy.", 2, 300),
            Kind("mig_double_advertised", needs((E.NODE,)), "A GPU is offered whole and in parts.", 2, 300),
            Kind(
                "allocation_stale",
                needs((E.SETTLED_LIST, E.PODS)),
                "The kubelet lists a device for a pod that has ended or is gone.",
                2,
                300,
            ),
        ),
        check=capacity.mismatch,
        severity=WARNING,
        summary="The counts of GPUs do not agree.",
        guards="Replicas, claims, GPUs handed to virtual machines, a device plugin that has just started, "
        "`--expected-gpus`.",
        remedy="Compare nvidia-smi, lspci and the node object; restart the device plugin, or drain and reboot the node.",
        alert="GPUNodeCapacityMismatch",
        of_node=True,
    ),
    Rule(
        finding=FindingName.IDLE_ALLOCATION,
        kinds=(Kind("no_client", GIVEN, "No process of it is there.", 2, 3600),),
        check=allocation.idle,
        severity=INFO,
        summary="A pod was given a GPU and has no process on it.",
        guards="Pods that are ending or have ended; devices that NVML does not show; pods that only reserve a GPU for "
        "others (KAI).",
        remedy="Ask the pod's owner whether it still needs the GPU.",
        alert="GPUIdleAllocation",
    ),
)
