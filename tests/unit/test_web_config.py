"""The web configuration file: what it takes, and what it refuses loudly."""

import logging
import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from exporter import web_config
from exporter.settings import SettingsError

TLS = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates for localhost: tls (server), client, and a locked key."""
    folder = tmp_path_factory.mktemp("web")
    for name in ("tls", "client"):
        openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -days 2"
            f" -addext subjectAltName=DNS:localhost -keyout {folder}/{name}.key -out {folder}/{name}.crt"
        )
    openssl(f"ec -aes256 -passout pass:secret -in {folder}/tls.key -out {folder}/locked.key")
    (folder / "empty.crt").write_text("")
    return folder


def openssl(arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True)


def refusal(folder: Path, text: str) -> str:
    file = folder / "web.yml"
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        read_and_build(file)
    return str(raised.value)


def read_and_build(file: Path) -> ssl.SSLContext:
    tls = web_config.read(file)
    assert tls is not None
    return tls.context()


@pytest.mark.parametrize("text", ["", "{}", "tls_server_config:\n", "# plain HTTP\n"])
def test_a_file_without_tls_is_plain_http(tmp_path: Path, text: str) -> None:
    """exporter-toolkit serves plain HTTP with an empty file, and so does this exporter."""
    file = tmp_path / "web.yml"
    file.write_text(text)
    assert web_config.read(file) is None


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    """A mounted secret holds the file and what it names."""
    file = folder / "web.yml"
    file.write_text(TLS)
    tls = web_config.read(file)
    assert tls == web_config.TlsConfig(folder / "tls.crt", folder / "tls.key")
    assert tls.context().minimum_version == ssl.TLSVersion.TLSv1_2
    assert tls.context().verify_mode is ssl.CERT_NONE


def test_the_least_version_is_taken(folder: Path) -> None:
    """TLS13 refuses older clients."""
    file = folder / "web.yml"
    file.write_text(TLS + "  min_version: TLS13\n")
    assert read_and_build(file).minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(("name", "welcome"), [("client", True), ("tls", False), (None, False)])
def test_a_client_needs_a_certificate_of_the_authority(
    folder: Path, name: str | None, *, welcome: bool
) -> None:
    """RequireAndVerifyClientCert lets in a client of the authority, no stranger and no nameless one."""
    file = folder / "web.yml"
    file.write_text(TLS + "  client_ca_file: client.crt\n  client_auth_type: RequireAndVerifyClientCert\n")
    client = ssl.create_default_context(cafile=str(folder / "tls.crt"))
    if name:
        client.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    assert exchange(read_and_build(file), client) is welcome


def exchange(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Whether a byte passes between the two."""
    near, far = socket.socketpair()
    near.settimeout(10)
    far.settimeout(10)
    served: list[bool] = []

    def serve() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as tls:
                tls.sendall(b"x")
            served.append(True)
        except ssl.SSLError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname="localhost") as tls:
            received = tls.recv(1)
    except (ssl.SSLError, ConnectionError):
        received = b""
    finally:
        near.close()
        thread.join(10)
    return received == b"x" and served == [True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("basic_auth_users: {a: b}", "basic_auth_users: this key is not supported; remove it"),
        ("http_server_config: {http2: true}", "http_server_config: this key is not supported"),
        ("tls_server_confg: {}", "this key is not supported; did you mean tls_server_config?"),
        (TLS + "  cipher_suites: []\n", "tls_server_config.cipher_suites: this key is not supported"),
        (
            TLS + "  client_allowed_sans: [a]\n",
            "tls_server_config.client_allowed_sans: this key is not supported",
        ),
        ("tls_server_config: true", "tls_server_config: is not a mapping"),
        ("tls_server_config: {key_file: tls.key}", "tls_server_config.cert_file: is missing"),
        ("tls_server_config: {cert_file: tls.crt}", "tls_server_config.key_file: is missing"),
        ("tls_server_config: {cert_file: 5}", "tls_server_config.cert_file: 5 is not a path"),
        (TLS + "  min_version: TLS10\n", "min_version: 'TLS10' is not supported; give one of TLS12, TLS13"),
        (TLS + "  min_version: [TLS12]\n", "min_version: ['TLS12'] is not supported"),
        (
            TLS + "  client_auth_type: RequestClientCert\n",
            "client_auth_type: 'RequestClientCert' is not supported",
        ),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert\n", "needs client_ca_file"),
        (TLS + "  client_ca_file: client.crt\n", "client_ca_file: has no effect without client_auth_type"),
        (
            TLS + "  client_ca_file: empty.crt\n  client_auth_type: VerifyClientCertIfGiven\n",
            "empty.crt: has no certificate of an authority",
        ),
        ("- a", "is not a mapping"),
        ("a: 'b", "is not valid YAML"),
        (TLS.replace("tls.crt", "gone.crt"), "gone.crt: cannot be read (No such file or directory)"),
        (TLS.replace("tls.key", "gone.key"), "gone.key: cannot be read (No such file or directory)"),
        (TLS.replace("tls.key", "client.key"), "tls.crt; give a matching pair"),
        (TLS.replace("tls.key", "locked.key"), "give a certificate and its unencrypted key, both PEM"),
        (TLS.replace("tls.crt", "empty.crt"), "give a certificate and its unencrypted key, both PEM"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(folder: Path, text: str, message: str) -> None:
    """The refusal names file and key: a protection that was asked for is never left out in silence."""
    refused = refusal(folder, text)
    assert refused.startswith(str(folder))
    assert message in refused
    assert "\n" not in refused


# --- files that are replaced ---


class Watched:
    """A folder with a pair in it, and the watch of it."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self.now = 100.0
        self.put("tls.crt", "tls.crt")
        self.put("tls.key", "tls.key")
        (folder / "web.yml").write_text(TLS)
        tls = web_config.read(folder / "web.yml")
        assert tls is not None
        self.watch = web_config.Watch(folder / "web.yml", tls, lambda: self.now)
        self.first = self.watch.context

    def put(self, name: str, source: str) -> None:
        """Replace a file as a rename does."""
        (self.folder / "new").write_bytes((self.source / source).read_bytes())
        os.replace(self.folder / "new", self.folder / name)

    def look(self, times: int = 1) -> tuple[bool, float]:
        for _ in range(times):
            self.now += 1
            self.watch.look()
        return self.watch.reload.succeeded, self.watch.reload.at


@pytest.fixture
def watched(folder: Path, tmp_path: Path) -> Watched:
    return Watched(folder, tmp_path)


def test_files_at_rest_are_not_read_again(watched: Watched) -> None:
    """The context is the same, and its time that of the start."""
    assert watched.look(5) == (True, 100)
    assert watched.watch.context is watched.first


def test_a_pair_that_is_replaced_file_by_file_is_never_wrong(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the two a look finds no pair: that is no failure yet."""
    watched.put("tls.crt", "client.crt")
    assert watched.look() == (True, 100)
    watched.put("tls.key", "client.key")
    assert watched.look() == (True, 102)
    assert watched.watch.context is not watched.first
    assert "matching pair" not in caplog.text


def test_what_stays_wrong_is_told_once_and_tried_again(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """The old context stays; when the files are right they are taken up."""
    caplog.set_level(logging.INFO)
    watched.put("tls.crt", "client.crt")
    assert watched.look(10) == (False, 100)
    assert watched.watch.context is watched.first
    watched.put("tls.crt", "empty.crt")
    assert watched.look(5) == (False, 100)
    watched.put("tls.crt", "tls.crt")
    assert watched.look() == (True, 116)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "give a matching pair; what was read before stays in use" in caplog.text


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "web.yml"])
def test_a_file_that_is_gone_leaves_the_old_in_use(watched: Watched, name: str) -> None:
    """Also where it comes back unchanged."""
    os.rename(watched.folder / name, watched.folder / "aside")
    assert watched.look(3) == (False, 100)
    assert watched.watch.context is watched.first
    os.rename(watched.folder / "aside", watched.folder / name)
    assert watched.look(3)[0]


def test_the_web_configuration_itself_may_change(watched: Watched) -> None:
    """Other files and another least version; but TLS is not switched off in passing."""
    watched.put("other.crt", "client.crt")
    watched.put("other.key", "client.key")
    other = TLS.replace("tls.crt", "other.crt").replace("tls.key", "other.key")
    (watched.folder / "web.yml").write_text(other + "  min_version: TLS13\n")
    assert watched.look() == (True, 101)
    assert watched.watch.context.minimum_version == ssl.TLSVersion.TLSv1_3
    context = watched.watch.context
    assert watched.look(3) == (True, 101)
    watched.put("other.key", "tls.key")
    assert watched.look(3) == (False, 101)
    watched.put("other.key", "client.key")
    assert watched.look()[0]
    (watched.folder / "web.yml").write_text("")
    assert not watched.look(2)[0]
    assert watched.watch.context is not context


def test_a_key_that_nobody_writes_to_is_no_key(folder: Path, tmp_path: Path) -> None:
    """A pipe would be waited for, for ever."""
    os.mkfifo(tmp_path / "tls.key")
    config = web_config.TlsConfig(folder / "tls.crt", tmp_path / "tls.key")
    with pytest.raises(web_config.WebConfigError, match="is no regular file; give a readable file"):
        config.context()
