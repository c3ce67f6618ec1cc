"""Web configuration: the TLS part of exporter-toolkit's web-config file in, an `ssl.SSLContext` out.

Supported: `tls_server_config` with cert_file, key_file, client_ca_file, client_auth_type and min_version.
A key that is unknown or not supported is an error that names it: a file that asks for passwords must never be
served without them. Paths are relative to the file's own directory, as in exporter-toolkit.
"""

import difflib
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from exporter.settings import SettingsError, load_yaml

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

    def context(self) -> ssl.SSLContext:
        """A server context from the files as they are now. Raises WebConfigError naming the file at fault."""
        for path in (self.cert_file, self.key_file, self.client_ca_file):
            if path is not None:
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
        path.open("rb").close()
    except OSError as error:
        raise WebConfigError(f"{path}: cannot be read ({error.strerror}); give a readable file") from error
