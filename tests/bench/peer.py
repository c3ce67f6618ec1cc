"""nvitop-exporter of PyPI, in an environment of its own below build/, on the same NVML library."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.rig.agent import free_port
from tests.rig.rig import Rig

NAME = "nvitop-exporter"
VERSION = "1.7.2"
FOLDER = Path(__file__).parents[2] / "build" / f"{NAME}-{VERSION}"


@dataclass(frozen=True, slots=True)
class Peer:
    """A running peer."""

    pid: int
    port: int

    def scrape(self) -> str:
        """What it serves now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            text: str = answer.read().decode()
        return text


def listed(text: str) -> int:
    """How many rows of processes with GPU memory it serves."""
    return len(re.findall(r"^process_gpu_memory(?!_util)\w*\{", text, re.MULTILINE))


def install() -> Path:
    """The command, installed if it is not."""
    command = FOLDER / "bin" / NAME
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        pip = (str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet")
        subprocess.run([*pip, f"{NAME}=={VERSION}"], check=True, stderr=subprocess.DEVNULL)
    return command


@contextlib.contextmanager
def running(rig: Rig, interval: float) -> Iterator[Peer]:
    """The peer beside a rig, once it serves processes."""
    port = free_port()
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(rig.nvml_folder)}
    command = [str(install()), "--port", str(port), "--interval", str(interval), "--hostname", "rig"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        peer = Peer(process.pid, port)
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                if listed(peer.scrape()):
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{NAME} does not serve: {process.poll()}")
            time.sleep(0.2)
        yield peer
    finally:
        process.kill()
        process.wait(10)
