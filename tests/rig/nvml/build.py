"""Compiles the stand-in for libnvidia-ml.so.1.

In: the C files beside this module, NVIDIA's own nvml.h (PyPI nvidia-nvml-dev), cJSON (Debian libcjson-dev).
Out: a shared object that any NVML client loads by its usual name. It never changes anything outside the
directory it is given, and it never falls back to a partial build: what is missing is named in the error.
"""

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.rig.errors import RigError

NAME = "libnvidia-ml.so.1"
SOURCES = Path(__file__).parent
# Missing prototypes are errors: an exported function whose name or signature is not NVIDIA's does not build.
FLAGS = (
    "-std=gnu11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Wmissing-prototypes",
    "-Werror",
    "-fPIC",
    "-shared",
    "-pthread",
    f"-Wl,-soname,{NAME}",
)


def build(out_dir: Path, without: Sequence[str] = ()) -> Path:
    """Build the library in `out_dir` unless it is there already, and return its path.

    `without` names exported functions to leave out, so that a lookup of them fails as on an older driver.
    A library carries its `without`, so use one directory for each set. Raises RigError.
    """
    header = _header()
    library = out_dir / NAME
    stamp = out_dir / f"{NAME}.sha256"
    digest = _digest(header, without)
    if library.exists() and stamp.exists() and stamp.read_text() == digest:
        return library
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".build-") as scratch:
        built = _compile(Path(scratch), header, without)
        # Renamed into place: several test processes may build the same directory at once.
        os.replace(built, library)
        (Path(scratch) / "stamp").write_text(digest)
        os.replace(Path(scratch) / "stamp", stamp)
    return library


def _header() -> Path:
    site = Path(sysconfig.get_path("purelib"))
    found = sorted((site / "nvidia").rglob("nvml.h"))
    if not found:
        raise RigError(f"no nvml.h below {site / 'nvidia'}: install the Python package nvidia-nvml-dev")
    return found[-1]


def _digest(header: Path, without: Sequence[str]) -> str:
    digest = hashlib.sha256(repr((FLAGS, sorted(without))).encode())
    for file in (header, Path(__file__), *sorted(SOURCES.glob("*.[ch]"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _compile(scratch: Path, header: Path, without: Sequence[str]) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        raise RigError("no gcc: install the Debian packages gcc and libc6-dev")
    if not _accepts(compiler, "#include <cjson/cJSON.h>\n"):
        raise RigError("no cjson/cJSON.h: install the Debian package libcjson-dev")
    exports = scratch / "exports"
    exports.write_text(_version_script(without))
    library = scratch / NAME
    command = [
        compiler,
        *FLAGS,
        "-isystem",
        str(header.parent),
        f"-Wl,--version-script={exports}",
        "-o",
        str(library),
        *(str(file) for file in sorted(SOURCES.glob("*.c"))),
        _cjson(compiler),
        "-lm",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RigError(f"gcc failed:\n{ran.stderr}")
    _must_be_functions(library, without)
    return library


def _accepts(compiler: str, source: str) -> bool:
    command = [compiler, "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode == 0


def _version_script(without: Sequence[str]) -> str:
    """Only NVML's names are visible, and of those not `without`: an exact name outranks the pattern."""
    hidden = "".join(f" {name};" for name in without)
    return f"{{ global: nvml*; local:{hidden} *; }};\n"


def _cjson(compiler: str) -> str:
    """Prefer the archive, which makes the library self-contained; Debian ships the shared object alone."""
    command = [compiler, "-print-file-name=libcjson.a"]
    archive = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return archive if Path(archive).is_absolute() else "-lcjson"


def _must_be_functions(library: Path, without: Sequence[str]) -> None:
    """A name that was never there would leave a test that proves nothing."""
    table = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout
    known = {line.split()[-1] for line in table.splitlines() if line.split()}
    unknown = sorted(set(without) - known)
    if unknown:
        raise RigError(f"without names functions that the library does not have: {', '.join(unknown)}")
