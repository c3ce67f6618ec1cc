"""Web configuration: the TLS part of exporter-toolkit's web-config file in, an `ssl.SSLContext` out.

Supported: `tls_server_config` with cert_file, key_file, client_ca_file, client_auth_type and min_version.
A key that is unknown or not supported is an error that names it: a file that asks for passwords must never be
served without them. Paths are relative to the file's own directory, as in exporter-toolkit.

A `Watch` takes up replaced files while the exporter runs, on a thread of its own: a file on a dead mount must
not stop the server. What cannot be taken leaves the old in use.
"""

from __future__ import annotations

import difflib
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from exporter.model.report import WebReload
from exporter.settings import SettingsError, load_yaml

WATCH_SECONDS = 1.0  # between two looks at the files

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int, int] | None  # device, inode, mtime, size; None where there is no such file
_T = TypeVar("_T")

_TLS = "tls_server_config"
_TLS_KEYS = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version")
_MIN_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# Go's RequestClientCert and RequireAnyClientCert take any certificate unverified: Python's ssl cannot, and
# neither protects anything.
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


class WebConfigError(SettingsError):
    """A web configuration that cannot be taken. The text is one line: file, key and remedy."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """What the server presents, and what it asks of its clients."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it names."""
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca_file) if path)

    def context(self) -> ssl.SSLContext:
        """A server context from the files as they are now. Raises WebConfigError naming the file at fault."""
        for path in self.files:
            _check_readable(path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.min_version
        context.set_alpn_protocols(["http/1.1"])
        self._load_certificate(context)
        if self.client_ca_file is not None:
            try:
                context.load_verify_locations(cafile=self.client_ca_file)
            except ssl.SSLError as error:
                raise WebConfigError(
                    f"{self.client_ca_file}: has no certificate of an authority ({error.reason}); give PEM"
                ) from error
        context.verify_mode = self.client_auth
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        try:
            # An encrypted key would otherwise ask for its password on the terminal, and wait.
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise WebConfigError(
                    f"{self.key_file}: is not the key of {self.cert_file}; give a matching pair"
                ) from error
            raise WebConfigError(
                f"{self.cert_file}, {self.key_file}: cannot be used ({error.reason or 'not PEM'}); "
                "give a certificate and its unencrypted key, both PEM"
            ) from error


class Watch:
    """The TLS context of the files as they were last found right.

    `look` is called from one thread; `context` and `reload` may be read from any.
    """

    def __init__(self, path: Path, tls: TlsConfig, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._tls = tls
        self._clock = clock
        self._seen = self._stamps(tls)  # before they are read: a later change is then another stamp
        self._unsettled = (
            False  # the last look found files that could not be taken, and might be half written
        )
        self.context = tls.context()
        self.reload = WebReload(succeeded=True, at=clock())

    def start(self) -> None:
        """Look once a second from now on."""
        threading.Thread(target=self._run, name="web-config", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            self.look()

    def look(self) -> None:
        """Take up files that were replaced. What cannot be taken is complained of once, and tried again."""
        stamps = self._stamps(self._tls)
        at_rest = stamps == self._seen
        if at_rest and self.reload.succeeded and not self._unsettled:
            return
        self._seen = stamps
        try:
            self._take()
        except (SettingsError, OSError, ValueError) as error:
            # Certificate and key may be replaced one after the other: only what stays wrong is wrong.
            self._unsettled = not at_rest
            if at_rest and self.reload.succeeded:
                log.warning("%s; what was read before stays in use", error)
                self.reload = replace(self.reload, succeeded=False)
        else:
            self._unsettled = False
            log.info("%s: replaced TLS files are in use", self._path)

    def _take(self) -> None:
        tls = read(self._path)
        if tls is None:
            raise WebConfigError(f"{self._path}: {_TLS}: is gone; restart to serve without TLS")
        seen = (self._seen[0], *self._stamps(tls)[1:])  # it may name other files now
        self.context = tls.context()
        self._tls, self._seen = tls, seen
        self.reload = WebReload(succeeded=True, at=self._clock())

    def _stamps(self, tls: TlsConfig) -> tuple[_Stamp, ...]:
        return tuple(_stamp(path) for path in (self._path, *tls.files))


def _stamp(path: Path) -> _Stamp:
    """What tells a file from another of its name; links are followed, so a swapped one counts."""
    try:
        found = os.stat(path)  # noqa: PTH116 (as one call)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read(path: Path) -> TlsConfig | None:
    """The TLS settings in a web configuration file; None (as of an empty file) is plain HTTP.

    Raises SettingsError naming the file, the key and the remedy.
    """
    config = load_yaml(path)
    _check_keys(path, "", config, (_TLS,))
    tls = config.get(_TLS)
    if tls is None:
        return None
    if not isinstance(tls, dict):
        raise WebConfigError(f"{path}: {_TLS}: is not a mapping; give cert_file and key_file below it")
    _check_keys(path, f"{_TLS}.", tls, _TLS_KEYS)
    client_ca_file = _file(path, tls, "client_ca_file")
    client_auth = _choice(path, tls, "client_auth_type", _CLIENT_AUTH, "NoClientCert")
    if client_auth == ssl.CERT_NONE and client_ca_file is not None:
        raise WebConfigError(
            f"{path}: {_TLS}.client_ca_file: has no effect without client_auth_type; "
            "give client_auth_type: RequireAndVerifyClientCert"
        )
    if client_auth != ssl.CERT_NONE and client_ca_file is None:
        raise WebConfigError(
            f"{path}: {_TLS}.client_auth_type: {tls['client_auth_type']!r} needs client_ca_file; give it"
        )
    return TlsConfig(
        cert_file=_required_file(path, tls, "cert_file"),
        key_file=_required_file(path, tls, "key_file"),
        client_ca_file=client_ca_file,
        client_auth=client_auth,
        min_version=_choice(path, tls, "min_version", _MIN_VERSIONS, "TLS12"),
    )


def _check_keys(path: Path, prefix: str, given: Mapping[str, Any], supported: Collection[str]) -> None:
    for key in given:
        if key not in supported:
            near = difflib.get_close_matches(key, supported, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"remove it; supported: {', '.join(supported)}"
            raise WebConfigError(f"{path}: {prefix}{key}: this key is not supported; {remedy}")


def _file(path: Path, tls: Mapping[str, Any], key: str) -> Path | None:
    value = tls.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or "\0" in value:
        raise WebConfigError(f"{path}: {_TLS}.{key}: {value!r} is not a path; give one")
    return path.parent / value


def _required_file(path: Path, tls: Mapping[str, Any], key: str) -> Path:
    file = _file(path, tls, key)
    if file is None:
        raise WebConfigError(f"{path}: {_TLS}.{key}: is missing; give the path of a PEM file")
    return file


def _choice(path: Path, tls: Mapping[str, Any], key: str, choices: Mapping[str, _T], default: str) -> _T:
    value = tls.get(key, default)
    if not isinstance(value, str) or value not in choices:
        raise WebConfigError(
            f"{path}: {_TLS}.{key}: {value!r} is not supported; give one of {', '.join(choices)}"
        )
    return choices[value]


def _check_readable(path: Path) -> None:
    try:
        if path.is_fifo():  # to open one would wait for ever
            raise WebConfigError(f"{path}: is no regular file; give a readable file")
        path.open("rb").close()
    except OSError as error:
        raise WebConfigError(f"{path}: cannot be read ({error.strerror}); give a readable file") from error
