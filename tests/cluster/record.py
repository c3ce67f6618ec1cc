"""`python -m tests.cluster.record [STORY...]`: record the cluster with the exporter's own recorder, masked.

Writes tests/recordings/cluster/STORY.json.gz. What else runs on the machine is cut out: of processes only
those in pods are kept. The expectations beside the files are written by hand from the stories, not from here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from exporter import recording
from exporter.__main__ import policy, sources
from exporter.settings import parse
from exporter.sources.pods import connect
from tests.cluster.cluster import Cluster
from tests.cluster.stories import STORIES
from tests.recordings.from_rig import cut

FOLDER = Path(__file__).parents[1] / "recordings" / "cluster"


def take(cluster: Cluster, story: Iterator[None]) -> dict[str, Any]:
    """The recording of a story: as the command `record` does it, but for what happens between its looks."""
    _, settings = parse(["record", "--output=x.json.gz", *cluster.flags()], {}, "nobody")
    places = (settings.path.procfs, settings.kubelet.socket, settings.path.pod_logs)
    with ExitStack() as stack:
        parts = sources(settings, stack.callback)
        api = connect(settings.kubernetes.kubeconfig)
        next(story)
        return recording.record(
            policy(settings), parts, settings.node_name, places, api, sleep=lambda seconds: next(story)
        )


def in_pods(look: dict[str, Any]) -> set[int]:
    """Pids of the processes that live in a pod."""
    table = look["snapshot"]["processes"]["value"]["processes"]
    return {one["id"]["pid"] for one in table if one.get("cgroup", {}).get("pod_uid")}


def main(names: list[str]) -> None:
    """Record these stories, or all."""
    FOLDER.mkdir(exist_ok=True)
    with Cluster() as cluster:
        for name in names or STORIES:
            began = time.monotonic()
            try:
                document = take(cluster, STORIES[name](cluster))
            finally:
                cluster.whole_again()
            for look in document["looks"]:
                cut(look, in_pods(look))
            path = FOLDER / f"{name}.json.gz"
            recording.save(path, recording.masked(document))
            sys.stdout.write(f"{name}: {time.monotonic() - began:.0f} s, {path.stat().st_size} bytes\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
