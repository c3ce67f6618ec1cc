"""TLS end to end: the web configuration file, certificates replaced while it runs, and bad files refused."""

import contextlib
import http.client
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter import web_config
from exporter.server import Limits
from tests.rig.agent import free_port, parse
from tests.system.observe import one
from tests.system.test_server import METRICS, connect, make_app, serving

REQUEST = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}"
WEB = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"
MUTUAL = WEB + "  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n"


@dataclass(frozen=True)
class Pair:
    """A self-signed certificate for localhost, which is its own authority, and its key."""

    certificate: Path
    key: Path


def authority(folder: Path, name: str) -> Pair:
    """A new pair."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    command = [
        *REQUEST.format(name=name).split(),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-keyout", str(pair.key), "-out", str(pair.certificate)),
    ]
    subprocess.run(["openssl", *command], check=True, capture_output=True)
    return pair


def server_context(pair: Pair) -> ssl.SSLContext:
    """What the server needs of a pair."""
    return web_config.TlsConfig(pair.certificate, pair.key).context()


def trusting(pair: Pair, client: Pair | None = None) -> ssl.SSLContext:
    """A client that trusts a pair alone, and may have one of its own."""
    context = ssl.create_default_context(cafile=str(pair.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def get(port: int, context: ssl.SSLContext, path: str = "/metrics") -> bytes | None:
    """The body, or None where no connection came about."""
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except (ssl.SSLError, ConnectionError):
        return None
    finally:
        connection.close()


class Mount:
    """A volume of Kubernetes: files are links through ..data to a directory, which is replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generation = 0
        folder.mkdir()

    def show(self, **files: Path | str) -> None:
        """Replace all files in one step. `__` in a name stands for a dot."""
        self.generation += 1
        behind = self.folder / f"..{self.generation}"
        behind.mkdir()
        for name, content in files.items():
            file = name.replace("__", ".")
            (behind / file).write_bytes(
                content.encode() if isinstance(content, str) else content.read_bytes()
            )
            with contextlib.suppress(FileExistsError):
                (self.folder / file).symlink_to(f"..data/{file}")
        (self.folder / "..tmp").symlink_to(behind.name)
        os.replace(self.folder / "..tmp", self.folder / "..data")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair]:
    """Two that do not know each other."""
    folder = tmp_path_factory.mktemp("pairs")
    return authority(folder, "first"), authority(folder, "second")


# ---------------------------------------------------------------- the server


def test_a_client_is_served(pairs: tuple[Pair, Pair]) -> None:
    """Requests on TLS, several on one connection, and pipelined with the end of the handshake."""
    context = server_context(pairs[0])
    with serving(make_app(), None, lambda: context) as port:
        assert get(port, trusting(pairs[0])) == METRICS
        assert get(port, trusting(pairs[1])) is None
        with trusting(pairs[0]).wrap_socket(connect(port), server_hostname="localhost") as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n" * 2)
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
            received = b"".join(iter(lambda: sock.recv(65536), b""))
        assert received.count(b"HTTP/1.1 200") == 3


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(pairs: tuple[Pair, Pair]) -> None:
    """The client's last flight and its request in one segment: nothing of it is lost."""
    context = server_context(pairs[0])
    with serving(make_app(), None, lambda: context) as port, connect(port) as sock:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting(pairs[0]).wrap_bio(incoming, outgoing, server_hostname="localhost")
        for _ in range(10):
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                if outgoing.pending:
                    sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        sock.sendall(outgoing.read())
        received = b""
        while b"\r\n\r\n" not in received:
            incoming.write(sock.recv(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                received += tls.read(65536)
    assert received.startswith(b"HTTP/1.1 200")


def test_the_server_ends_beside_a_handshake_that_does_not(pairs: tuple[Pair, Pair]) -> None:
    """A half-open connection does not hold up the end."""
    context = server_context(pairs[0])
    with serving(make_app(), Limits(handshake_seconds=60), lambda: context) as port:
        silent = connect(port)
        assert get(port, trusting(pairs[0])) == METRICS
        start = time.monotonic()
    silent.close()
    assert time.monotonic() - start < 3


# ---------------------------------------------------------------- files that are replaced


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    return Mount(tmp_path / "mount")


@contextlib.contextmanager
def watching(mount: Mount) -> Iterator[tuple[int, web_config.Watch]]:
    """A server on the files of a mount; the test looks in the watch's stead."""
    file = mount.folder / "web.yml"
    tls = web_config.read(file)
    assert tls is not None
    watch = web_config.Watch(file, tls)
    with serving(make_app(), None, lambda: watch.context) as port:
        yield port, watch


def test_a_replaced_certificate_is_taken_up(mount: Mount, pairs: tuple[Pair, Pair]) -> None:
    """The next connection has it; one that stands goes on."""
    first, second = pairs
    mount.show(web__yml=WEB, tls__crt=first.certificate, tls__key=first.key)
    with watching(mount) as (port, watch):
        standing = http.client.HTTPSConnection("localhost", port, context=trusting(first), timeout=10)
        standing.request("GET", "/metrics")
        assert standing.getresponse().read() == METRICS
        mount.show(web__yml=WEB, tls__crt=second.certificate, tls__key=second.key)
        watch.look()
        assert get(port, trusting(second)) == METRICS
        assert get(port, trusting(first)) is None
        standing.request("GET", "/metrics")
        assert standing.getresponse().read() == METRICS
        standing.close()


def test_a_replaced_authority_is_taken_up(mount: Mount, pairs: tuple[Pair, Pair]) -> None:
    """Who was welcome is so no longer, even with a session to resume."""
    first, second = pairs
    files: dict[str, Path | str] = {"web__yml": MUTUAL, "tls__crt": first.certificate, "tls__key": first.key}
    mount.show(**files, ca__crt=first.certificate)
    with watching(mount) as (port, watch):
        client = trusting(first, first)
        assert get(port, client) == METRICS
        assert get(port, trusting(first, second)) is None
        mount.show(**files, ca__crt=second.certificate)
        watch.look()
        assert get(port, client) is None
        assert get(port, trusting(first, second)) == METRICS


@pytest.fixture(scope="module", name="agent_files")
def make_agent_files(tmp_path_factory: pytest.TempPathFactory) -> Mount:
    return Mount(tmp_path_factory.mktemp("agent") / "mount")


def test_the_command_takes_them_up_and_says_so(
    command: Sequence[str], agent_files: Mount, pairs: tuple[Pair, Pair]
) -> None:
    """A swapped mount within seconds; a bad one is logged once, shows as a metric, and changes nothing."""
    first, second = pairs
    agent_files.show(web__yml=WEB, tls__crt=first.certificate, tls__key=first.key)
    port = free_port()
    log = agent_files.folder.parent / "log"
    flags = [f"--web.listen-address=127.0.0.1:{port}", f"--web.config.file={agent_files.folder}/web.yml"]
    with (
        log.open("wb") as out,
        subprocess.Popen([*command, "demo", "--interval=1s", *flags], stdout=out, stderr=out) as process,
    ):
        try:
            until(lambda: reload_success(port, first) == 1)
            began = one(samples(port, first), "web_config_reload_success_timestamp_seconds")
            agent_files.show(web__yml=WEB, tls__crt=second.certificate, tls__key=first.key)
            until(lambda: reload_success(port, first) == 0)
            time.sleep(3)
            assert log.read_text().count("give a matching pair; what was read before stays in use") == 1
            assert one(samples(port, first), "web_config_reload_success_timestamp_seconds") == began
            agent_files.show(web__yml=WEB, tls__crt=second.certificate, tls__key=second.key)
            until(lambda: reload_success(port, second) == 1)
            assert one(samples(port, second), "web_config_reload_success_timestamp_seconds") != began
            assert log.read_text().count("replaced TLS files are in use") == 1
            assert get(port, trusting(first)) is None
        finally:
            process.terminate()
            assert process.wait(10) == 0
    assert "Traceback" not in log.read_text()


def samples(port: int, pair: Pair) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return parse((get(port, trusting(pair)) or b"").decode())


def reload_success(port: int, pair: Pair) -> float | None:
    return one(samples(port, pair), "web_config_reload_success")


def until(holds: object, seconds: float = 20.0) -> None:
    assert callable(holds)
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.1)


# ---------------------------------------------------------------- what is refused at the start


@pytest.mark.parametrize(
    ("web", "names", "remedy"),
    [
        (WEB.replace("tls.key", "nothing.key"), "nothing.key", "give a readable file"),
        (WEB.replace("tls.key", "folder"), "folder", "give a readable file"),
        (WEB.replace("tls.key", "pipe"), "pipe", "give a readable file"),
        (WEB.replace("tls.key", "other.key"), "other.key", "give a matching pair"),
        (WEB + "  ciphers: []\n", "tls_server_config.ciphers", "supported:"),
        (WEB + "basic_auth_users: {a: b}\n", "basic_auth_users", "remove it"),
    ],
)
def test_a_bad_file_starts_nothing(
    command: Sequence[str], tmp_path: Path, pairs: tuple[Pair, Pair], web: str, names: str, remedy: str
) -> None:
    """Exit status 2 with one line that names the key or file and the remedy; nobody listens."""
    first, second = pairs
    for name, source in (("tls.crt", first.certificate), ("tls.key", first.key), ("other.key", second.key)):
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "web.yml").write_text(web)
    port = free_port()
    flags = [f"--web.listen-address=127.0.0.1:{port}", f"--web.config.file={tmp_path}/web.yml"]
    result = subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=20, check=False, cwd=tmp_path
    )
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("kubegpu-exporter: ")
    assert names in result.stderr
    assert remedy in result.stderr
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_a_key_that_may_not_be_read_is_refused(tmp_path: Path, pairs: tuple[Pair, Pair]) -> None:
    """As another user than root, whom modes do not bind."""
    key = tmp_path / "tls.key"
    key.write_bytes(pairs[0].key.read_bytes())
    key.chmod(0)
    config = web_config.TlsConfig(pairs[0].certificate, key)
    if os.geteuid() == 0:
        assert config.context().verify_mode is ssl.CERT_NONE
        return
    with pytest.raises(web_config.WebConfigError, match=r"cannot be read \(Permission denied\)"):
        config.context()
