"""Keys and kubeconfigs of a throw-away API server. Needs openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.rig.errors import RigError

_CLIENT = "extendedKeyUsage=clientAuth"
_CONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{server}", certificate-authority: {folder}/ca.crt}}}}]
users: [{{name: u, user: {{client-certificate: {folder}/{name}.crt, client-key: {folder}/{name}.key}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""


@dataclass(frozen=True, slots=True)
class Pki:
    """A folder with ca, apiserver, admin, kubelet and exporter (.crt, .key), and sa.key, sa.pub."""

    folder: Path

    def kubeconfig(self, name: str) -> Path:
        """How admin, kubelet or exporter reaches the API server."""
        return self.folder / f"{name}.kubeconfig"


def make(folder: Path, node: str, server: str, addresses: tuple[str, ...]) -> Pki:
    """Make everything. The exporter's user is in no group: what it may do is what RBAC says."""
    if shutil.which("openssl") is None:
        raise RigError("no openssl: install the Debian package openssl")
    folder.mkdir()
    authority = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=cluster-ca"]
    _openssl(folder, *authority, "-keyout", "ca.key", "-out", "ca.crt")
    names = ",".join(["DNS:localhost", "DNS:kubernetes.default.svc", *(f"IP:{one}" for one in addresses)])
    _certificate(folder, "apiserver", "/CN=apiserver", f"subjectAltName={names}")
    _certificate(folder, "admin", "/O=system:masters/CN=admin", _CLIENT)
    _certificate(folder, "kubelet", f"/O=system:nodes/CN=system:node:{node}", _CLIENT)
    _certificate(folder, "exporter", "/CN=exporter", _CLIENT)
    _openssl(folder, *["genrsa", "-out", "sa.key", "2048"])
    _openssl(folder, *["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"])
    pki = Pki(folder)
    for name in ("admin", "kubelet", "exporter"):
        pki.kubeconfig(name).write_text(_CONFIG.format(server=server, folder=folder, name=name))
    return pki


def _certificate(folder: Path, name: str, subject: str, extensions: str) -> None:
    request = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", subject]
    _openssl(folder, *request, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (folder / f"{name}.ext").write_text(extensions + "\n")
    signing = ["x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"]
    _openssl(folder, *signing, "-CAcreateserial", "-out", f"{name}.crt", "-extfile", f"{name}.ext")


def _openssl(folder: Path, *words: str) -> None:
    ran = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RigError(f"openssl {words[0]} failed:\n{ran.stderr}")
