"""Values of settings: text in, value or ValueError out.

Each function takes the text of a flag, variable or file entry and returns the value. Its `ValueError` reads
on from the quoted value and ends in the remedy: "is under the least interval of 1s; give 1s or more".
Anything that is not text is returned as it is, so that `Settings(interval=5.0)` works in code.
"""

import difflib
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from exporter.catalog import ALWAYS, FAMILIES, PREFIX, matching

RESERVED_PATHS = ("/", "/-/healthy", "/healthz", "/-/ready", "/readyz")

KUBELET_ROOTS = {
    "default": Path("/var/lib/kubelet"),  # kubeadm, kind, GKE, EKS, AKS, OpenShift, RKE2, k3s, Talos
    "microk8s": Path("/var/snap/microk8s/common/var/lib/kubelet"),
    "k0s": Path("/var/lib/k0s/kubelet"),
}

RECORDING_SUFFIX = ".json.gz"
BOOLEANS = {"true": True, "on": True, "yes": True, "1": True} | dict.fromkeys(
    ("false", "off", "no", "0"), False
)
LONGEST_AGE = 30 * 86400.0  # seconds
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+|\d+(?:\.\d+)?", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_SIZES = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)(KiB|MiB|GiB|TiB)?", re.ASCII)
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)(%?)", re.ASCII)
_URL = re.compile(
    r"https?://(?:[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.%]+\])(?::([0-9]{1,5}))?(?:/[0-9A-Za-z._~/-]*)?", re.ASCII
)
_NODE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,252}")


class ListenAddress(NamedTuple):
    """Where to listen: host "" is every address of IPv4 and IPv6; an IPv6 host is without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        """The address as `--web.listen-address` takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_duration(text: str) -> float:
    """Seconds of a duration: 5, 1.5, 5s, 500ms, 2m, 1h, 1m30s."""
    if not _DURATION.fullmatch(text):
        raise ValueError("is not a duration; give seconds, or a number with ms, s, m, h or d, such as 15s")
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in _DURATION_PART.findall(text))


def format_duration(seconds: float) -> str:
    """A duration as a person writes it: 15s, 2m, 500ms."""
    if seconds == 0:
        return "0s"
    for unit in ("h", "m", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.12g}{unit}"
    return f"{seconds * 1000:.12g}ms"


def interval(value: object) -> object:
    """Seconds between two cycles, 1s to 1h."""
    seconds = parse_duration(value) if isinstance(value, str) else value
    if isinstance(seconds, float | int) and seconds < 1:
        raise ValueError("is under the least interval of 1s; give 1s or more")
    if isinstance(seconds, float | int) and seconds > 3600:
        raise ValueError("is over the greatest interval of 1h; give 1h or less")
    return seconds


def age(value: object) -> object:
    """Seconds for which a finding must hold, up to 30 days; `reading` compares them with the interval."""
    seconds = parse_duration(value) if isinstance(value, str) else value
    if isinstance(seconds, float | int) and seconds > LONGEST_AGE:
        raise ValueError("is over the greatest age of 30d; give 30d or less")
    return seconds


def size(value: object) -> object:
    """Bytes of a threshold, 1MiB to 1TiB; a number without unit is bytes."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError("is not a size; give bytes, or a number with KiB, MiB, GiB or TiB, such as 512MiB")
    number = int(float(match[1]) * _SIZES[match[2] or ""])
    if not _SIZES["MiB"] <= number <= _SIZES["TiB"]:
        raise ValueError("is outside the range of sizes; give 1MiB to 1TiB")
    return number


def format_size(number: int) -> str:
    """A size as a person writes it: 512MiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number >= _SIZES[unit] and number % _SIZES[unit] == 0:
            return f"{number // _SIZES[unit]}{unit}"
    return str(number)


def share(value: object) -> object:
    """A share of a whole: 0.02 or 2%."""
    if not isinstance(value, str):
        return value
    match = _SHARE.fullmatch(value)
    if match is None:
        raise ValueError("is not a share; give a number from 0 to 1, or a percentage such as 2%")
    number = float(match[1]) / (100 if match[2] else 1)
    if number > 1:
        raise ValueError("is over 1; give a share from 0 to 1, or a percentage up to 100%")
    return number


def url(value: object) -> object:
    """The address of a running exporter; empty is unset. Without a path it is that of the metrics."""
    if value == "":
        return None
    match = _URL.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and (match is None or int(match[1] or 0) > 65535):
        raise ValueError("is not the address of an exporter; give one such as http://node-1:9836")
    return value


def boolean(value: object) -> object:
    """True or false; also on and off."""
    if not isinstance(value, str):
        return value
    if value.lower() not in BOOLEANS:
        raise ValueError("is neither true nor false; give true or false")
    return BOOLEANS[value.lower()]


def count(value: object) -> object:
    """A whole number."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"[0-9]{1,6}", value):
        raise ValueError("is not a count; give a whole number from 0 to 999999")
    return int(value)


def optional_count(value: object) -> object:
    """A whole number; empty is unset."""
    return None if value == "" else count(value)


def listen_address(value: object) -> object:
    """A `ListenAddress` of :9836, host:9836 or [::1]:9836."""
    if not isinstance(value, str):
        return value
    host, colon, port = value.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,9}", port):
        raise ValueError("has no port; give :9836, host:9836 or [IPv6 address]:9836")
    if int(port) > 65535:
        raise ValueError("has a port over 65535; give a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"is ambiguous; write the IPv6 address in brackets, such as [::1]:{port}")
    if not re.fullmatch(r"[0-9A-Za-z._:%-]*", host):
        raise ValueError("is not an address; give :9836, host:9836 or [IPv6 address]:9836")
    return ListenAddress(host, int(port))


def telemetry_path(value: object) -> object:
    """The URL path of the metrics."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"/[0-9A-Za-z._~/-]*", value):
        raise ValueError("is not a path; give one that starts with / and has letters, digits and ._~/- only")
    if value in RESERVED_PATHS:
        raise ValueError("is taken by the status page and the probes; give another, such as /metrics")
    return value


def kubelet_root(value: object) -> object:
    """The kubelet's root directory, from a path or the name of a preset."""
    if not isinstance(value, str):
        return value
    if value.startswith("/"):
        return path(value)
    if value not in KUBELET_ROOTS:
        raise ValueError(f"is no known preset; give an absolute path or one of {', '.join(KUBELET_ROOTS)}")
    return KUBELET_ROOTS[value]


def path(value: object) -> object:
    """A path, whether or not it exists now."""
    if value == "" or "\0" in str(value):
        raise ValueError("is not a path; give one")
    return value


def optional_path(value: object) -> object:
    """A path; empty is unset."""
    return None if value == "" else path(value)


def readable_file(value: object) -> object:
    """A file that can be opened for reading; empty is unset."""
    if value is None or value == "":
        return None
    try:
        Path(str(path(value))).open("rb").close()
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror}); give a readable file") from error
    return value


def optional_text(value: object) -> object:
    """Any text; empty is unset."""
    return None if value == "" else value


def families(value: object) -> object:
    """Globs of full metric names, apart by commas; each must match one. Empty is none."""
    if not isinstance(value, str):
        return value
    patterns = tuple(part for part in map(str.strip, value.split(",")) if part)
    for pattern in patterns:
        if not matching(pattern):
            names = [family.full_name for family in FAMILIES]
            prefixed = PREFIX + pattern
            near = [prefixed] if matching(prefixed) else difflib.get_close_matches(pattern, names, n=1)
            remedy = f"did you mean {near[0]}?" if near else "give full names or globs such as kubegpu_gpu_*"
            raise ValueError(f"has {pattern!r}, which matches no metric; {remedy}")
    return patterns


def denied_families(value: object) -> object:
    """Such globs, each of which must match a metric that can be left out."""
    patterns = families(value)
    for pattern in patterns if isinstance(value, str) and isinstance(patterns, tuple) else ():
        if matching(pattern) <= ALWAYS:
            raise ValueError(f"has {pattern!r}, which matches only what is always served; leave it out")
    return patterns


def node_name(value: object) -> object:
    """A Kubernetes node name: a DNS name, in lower case."""
    if isinstance(value, str) and not _NODE_NAME.fullmatch(value):
        raise ValueError("is not a node name; give --node-name as `kubectl get nodes` prints it")
    return value


def output(forms: type[StrEnum]) -> Callable[[object], object]:
    """A reader of the form in which `describe` prints, or of the path of the file that `record` writes."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        if value in list(forms):
            return forms(value)
        if not value.endswith(RECORDING_SUFFIX) or "\0" in value:
            shown = ", ".join(forms)
            raise ValueError(f"is not known; give one of {shown}, or for record a NAME{RECORDING_SUFFIX}")
        return Path(value)

    return read


def one_of(enum: type[StrEnum]) -> Callable[[object], object]:
    """A reader that takes the values of `enum`."""

    def read(value: object) -> object:
        if isinstance(value, str) and value not in list(enum):
            raise ValueError(f"is not known; give one of {', '.join(enum)}")
        return value

    return read
