"""Rows about the GPU stack of the node: are the pods ready that make its GPUs usable."""

from exporter.catalog.family import WORKLOAD, Family, Samples, flag
from exporter.infrastructure import stack_component
from exporter.model import Report, value


def _ready(report: Report) -> Samples:
    """Nothing of a pod that ended: a validator has done its work, an evicted pod has a successor."""
    pods = value(report.snapshot.pods)
    for pod in pods.pods if pods is not None else ():
        component = stack_component(pod)
        if component and not pod.ended:
            yield (component, pod.namespace, pod.name, ""), flag(pod.ready)


FAMILIES = (
    Family(
        "stack_component_ready",
        "gauge",
        "1 if a pod of the GPU stack on this node is ready, else 0. Known by its labels, whoever wrote them; "
        "namespace and pod are its own, and container is empty. Pods that ended have no series. Needs the "
        "Kubernetes API.",
        ("component", *WORKLOAD),
        "stable",
        _ready,
    ),
)
