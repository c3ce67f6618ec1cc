"""Images without a registry: OCI archives that containerd imports.

In: the tree of a container as a tar file. Out: an archive with that one layer, under a name with which a pod
asks for it. The two small images hold one static program, `worker.c`.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.rig.errors import RigError

PAUSE = "docker.io/cluster/pause:1"
WORK = "docker.io/cluster/work:1"
_SOURCE = Path(__file__).with_name("worker.c")
_FOLDERS = ("dev", "etc", "proc", "sys", "tmp", "usr/lib", "var/run")


def worker(folder: Path) -> Path:
    """The program of the small images, compiled."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise RigError("no gcc: install the Debian packages gcc and libc6-dev")
    out = folder / "worker"
    argv = [
        compiler,
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-static",
        "-o",
        str(out),
        str(_SOURCE),
    ]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RigError(f"gcc failed:\n{ran.stderr}")
    return out


def small(folder: Path, name: str, program: Path) -> Path:
    """An image with one program, /worker, which waits unless it is told otherwise."""
    layer = folder / f"{name.rpartition('/')[2].replace(':', '-')}.layer"
    with tarfile.open(layer, "w") as tar:
        for path in _FOLDERS:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(program, "worker")
        tar.add(program, "usr/lib/libnvidia-work.so.1")  # any file will do: it is mapped, as libraries are
    return archive(layer, name, {"Entrypoint": ["/worker"], "Cmd": ["pause"]})


def archive(layer: Path, name: str, config: Mapping[str, Any]) -> Path:
    """An OCI archive beside a layer, which is a tar file; `config` is what a Dockerfile says at its end."""
    out = layer.with_suffix(".oci")
    digest = _digest_of(layer)
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    with tarfile.open(out, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        tar.add(layer, f"blobs/sha256/{digest[7:]}")
        about = _blob(tar, "config.v1+json", _json(image))
        size = layer.stat().st_size
        layers = [{"mediaType": _media("layer.v1.tar"), "digest": digest, "size": size}]
        manifest = {
            "schemaVersion": 2,
            "mediaType": _media("manifest.v1+json"),
            "config": about,
            "layers": layers,
        }
        told = _blob(tar, "manifest.v1+json", _json(manifest))
        notes = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [{**told, "annotations": notes}]}))
    return out


def _media(kind: str) -> str:
    return f"application/vnd.oci.image.{kind}"


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _blob(tar: tarfile.TarFile, kind: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    _add(tar, f"blobs/sha256/{digest}", data)
    return {"mediaType": _media(kind), "digest": f"sha256:{digest}", "size": len(data)}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def command(words: Sequence[str]) -> list[str]:
    """What a container of the small image runs."""
    return ["/worker", "use", *words]
