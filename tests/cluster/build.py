"""`python -m tests.cluster.build [lock]`: the kubelet and the API server, from the modules that go.mod pins.

In: go.mod and go.sum beside this module, Go, a module proxy. Out: the programs in build/cluster, which git
ignores, and a stamp that says what they were made of. Started again it goes on where it was stopped, as Go
keeps what is compiled; with the stamp there it does nothing. Two at once wait for each other. `lock` writes
go.mod and go.sum anew for VERSION. It must never leave a half-written program: each is renamed into place.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.rig.errors import RigError

VERSION = "v1.36.3"
STAGING = f"v0.{VERSION.removeprefix('v1.')}"
PROGRAMS = ("kubelet", "kube-apiserver")
MODULE = "k8s.io/kubernetes"
HERE = Path(__file__).parent
OUT = HERE.parents[1] / "build" / "cluster"
FLAGS = (
    *("-buildvcs=false", "-mod=readonly"),
    f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={VERSION}",
)


def program(name: str) -> Path:
    """A program that was built. Raises RigError where it was not, or of something else."""
    stamp = OUT / "stamp"
    if not stamp.exists() or stamp.read_text() != _digest():
        raise RigError(f"no {name} of {VERSION} in {OUT}: run `make cluster-build` (minutes, the first time)")
    return OUT / name


def build() -> None:
    """Build what is missing. Raises RigError."""
    OUT.mkdir(parents=True, exist_ok=True)
    stamp = OUT / "stamp"
    with (OUT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == _digest():
            return
        stamp.unlink(missing_ok=True)
        for name in PROGRAMS:
            began = time.monotonic()
            scratch = OUT / f".{name}"
            _go("build", *FLAGS, "-o", str(scratch), f"{MODULE}/cmd/{name}")
            scratch.replace(OUT / name)
            sys.stdout.write(f"{name} {VERSION}: {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
        stamp.write_text(_digest())


def lock() -> None:
    """Write go.mod and go.sum: Kubernetes requires its own staging modules as v0.0.0, so each is replaced."""
    for name in ("go.mod", "go.sum"):
        (HERE / name).unlink(missing_ok=True)
    _go("mod", "init", "cluster")
    said = json.loads(_go("mod", "download", "-json", f"{MODULE}@{VERSION}"))
    text = Path(said["GoMod"]).read_text()
    staging = sorted(set(re.findall(r"^\s*(k8s\.io/[a-z0-9-]+) v0\.0\.0(?:\s|$)", text, re.MULTILINE)))
    _go("mod", "edit", *(f"-replace={name}={name}@{STAGING}" for name in staging))
    _go("get", *(f"{MODULE}/cmd/{name}@{VERSION}" for name in PROGRAMS))


def _digest() -> str:
    digest = hashlib.sha256(repr(FLAGS).encode())
    for name in ("go.mod", "go.sum"):
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


def _go(*words: str) -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise RigError("no go: a kubelet is compiled with the Go version that tests/cluster/go.mod names")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    ran = subprocess.run([go, *words], cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RigError(f"go {words[0]} failed:\n{re.sub(r'https?://[^ ]+', 'URL', ran.stderr[-3000:])}")
    return ran.stdout


if __name__ == "__main__":
    try:
        lock() if sys.argv[1:] == ["lock"] else build()
    except RigError as error:
        sys.exit(f"tests.cluster.build: {error}")
