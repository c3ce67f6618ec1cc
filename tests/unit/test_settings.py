"""Settings from flags, environment and file: their forms, precedence and refusals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from exporter.settings import (
    Command,
    ListenAddress,
    LogFormat,
    LogLevel,
    Output,
    Settings,
    SettingsError,
    format_duration,
    help_text,
    load_yaml,
    parse,
    parse_duration,
    reference,
)


def settings(*argv: str, env: Mapping[str, str] | None = None, hostname: str = "node-1") -> Settings:
    return parse(argv, env or {}, hostname)[1]


def refusal(*argv: str, env: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as raised:
        parse(argv, env or {}, "node-1")
    return str(raised.value)


def value_of(found: Settings, flag: str) -> Any:
    value: Any = found
    for name in flag.removeprefix("--").replace("-", "_").split("."):
        value = getattr(value, name)
    return value


def test_nothing_given_is_the_defaults() -> None:
    """The defaults are those documented; the node's name is the host's."""
    assert settings() == Settings(node_name="node-1")
    assert Settings().web.listen_address == ListenAddress("", 9836)
    assert Settings().web.telemetry_path == "/metrics"
    assert Settings().interval == 15
    assert Settings().kubernetes.enabled is True
    assert Settings().collector.telemetry is True
    assert Settings().limits.process_series == 512
    assert Settings().expected_gpus is None
    assert Settings().kubelet.socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")


def test_settings_are_frozen() -> None:
    """No part of the program changes a setting."""
    with pytest.raises(ValidationError, match="frozen"):
        Settings().interval = 5.0  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        Settings().web.telemetry_path = "/x"  # type: ignore[misc]


def test_settings_built_in_code_read_nothing_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `parse` takes an environment, and only the one it is given."""
    monkeypatch.setenv("KUBEGPU_INTERVAL", "99")
    monkeypatch.setenv("INTERVAL", "99")
    assert Settings().interval == 15
    assert settings().interval == 15


@pytest.mark.parametrize(
    ("text", "flag", "expected"),
    [
        (":9000", "--web.listen-address", ("", 9000)),
        ("127.0.0.1:0", "--web.listen-address", ("127.0.0.1", 0)),
        ("node.example:65535", "--web.listen-address", ("node.example", 65535)),
        ("[::1]:9836", "--web.listen-address", ("::1", 9836)),
        ("/gpu/metrics", "--web.telemetry-path", "/gpu/metrics"),
        ("/host/proc", "--path.procfs", Path("/host/proc")),
        ("/host/sys", "--path.sysfs", Path("/host/sys")),
        ("/logs", "--path.pod-logs", Path("/logs")),
        ("microk8s", "--kubelet.root-dir", Path("/var/snap/microk8s/common/var/lib/kubelet")),
        ("k0s", "--kubelet.root-dir", Path("/var/lib/k0s/kubelet")),
        ("default", "--kubelet.root-dir", Path("/var/lib/kubelet")),
        ("/data/kubelet", "--kubelet.root-dir", Path("/data/kubelet")),
        ("libnvidia-ml.so.1", "--nvml.library", "libnvidia-ml.so.1"),
        ("", "--nvml.library", None),
        ("gpu-7", "--node-name", "gpu-7"),
        ("1h", "--interval", 3600.0),
        ("off", "--collector.telemetry", False),
        ("false", "--collector.process-series", False),
        ("0", "--limits.process-series", 0),
        ("/run/pause", "--pause-file", Path("/run/pause")),
        ("8", "--expected-gpus", 8),
        ("", "--expected-gpus", None),
        ("orphan", "--demo.scenario", "orphan"),
        ("debug", "--log.level", LogLevel.DEBUG),
        ("json", "--log.format", LogFormat.JSON),
        ("json", "--output", Output.JSON),
        ("http://node-1:9836", "--url", "http://node-1:9836"),
        ("https://[fd00::1]:9836/gpu/metrics", "--url", "https://[fd00::1]:9836/gpu/metrics"),
        ("", "--url", None),
    ],
)
def test_every_form_of_a_value_is_taken(text: str, flag: str, expected: object) -> None:
    """A flag takes its value after = or as the next argument; its variable takes the same text."""
    env = "KUBEGPU_" + flag[2:].replace(".", "_").replace("-", "_").upper()
    assert value_of(settings(f"{flag}={text}"), flag) == expected
    assert value_of(settings(flag, text), flag) == expected
    if text:
        assert value_of(settings(env={env: text}), flag) == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--kubernetes.enabled"], True),
        (["--kubernetes.enabled", "demo"], True),
        (["--kubernetes.enabled=false"], False),
        (["--kubernetes.enabled", "false"], False),
        (["--kubernetes.enabled", "OFF", "demo"], False),
        (["--kubernetes.enabled=true", "--kubernetes.enabled=no"], False),
    ],
)
def test_a_boolean_may_stand_bare_and_the_last_one_counts(argv: list[str], *, expected: bool) -> None:
    """A bare boolean flag is true and does not swallow the command after it."""
    assert settings(*argv, env={"KUBEGPU_KUBERNETES_ENABLED": "0"}).kubernetes.enabled is expected


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([], Command.RUN),
        (["run"], Command.RUN),
        (["demo"], Command.DEMO),
        (["describe", "--output=json"], Command.DESCRIBE),
        (["--interval=5", "demo"], Command.DEMO),
        (["demo", "--interval=5"], Command.DEMO),
        (["--interval", "5", "demo", "--log.level", "error"], Command.DEMO),
        (["demo", "--nonsense", "--help"], Command.HELP),
        (["-h"], Command.HELP),
        (["--version"], Command.VERSION),
    ],
)
def test_flags_stand_on_either_side_of_the_command(argv: list[str], command: Command) -> None:
    """Without a command the exporter runs; --help and --version come before all else."""
    assert parse(argv, {}, "node-1")[0] is command


def test_flag_precedes_environment_precedes_file_precedes_default(tmp_path: Path) -> None:
    """Each layer keeps what the layers above it leave open, within one group too."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "interval: 2m\nlog: {level: error, format: json}\nexpected-gpus: 4\nkubernetes.enabled: off\n"
    )
    env = {"KUBEGPU_CONFIG_FILE": str(file), "KUBEGPU_LOG_LEVEL": "warning", "KUBEGPU_INTERVAL": "30"}
    found = settings("--interval=7", env=env)
    assert found.interval == 7
    assert found.log.level is LogLevel.WARNING
    assert found.log.format is LogFormat.JSON
    assert found.expected_gpus == 4
    assert found.kubernetes.enabled is False
    assert found.path.procfs == Path("/proc")


@pytest.mark.parametrize(
    "text",
    [
        "web.listen-address: 127.0.0.1:1\nweb.telemetry-path: /m",
        "web: {listen-address: '127.0.0.1:1', telemetry-path: /m}",
        "web.listen-address: 127.0.0.1:1\nweb:\n  telemetry-path: /m\n  config:\n",
        "web:\n  listen-address: 127.0.0.1:1\n  telemetry-path: /m\nlog:\nexpected-gpus:\n",
    ],
)
def test_a_file_may_nest_its_keys_or_dot_them(tmp_path: Path, text: str) -> None:
    """Nested and dotted keys mean the same; an empty value or group is not set."""
    file = tmp_path / "config.yaml"
    file.write_text(text)
    found = settings(f"--config.file={file}")
    assert (found.web.listen_address, found.web.telemetry_path) == (("127.0.0.1", 1), "/m")
    assert found.expected_gpus is None


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    """A mounted file may be empty."""
    file = tmp_path / "config.yaml"
    file.write_text("# nothing yet\n")
    assert settings(f"--config.file={file}").interval == 15


@pytest.mark.parametrize(
    ("env", "hostname", "expected"),
    [
        ({}, "Node-1.Example", "node-1.example"),
        ({}, "", "localhost"),
        ({}, "bad name", "localhost"),
        ({"NODE_NAME": "gpu-7"}, "node-1", "gpu-7"),
        ({"NODE_NAME": ""}, "node-1", "node-1"),
        ({"NODE_NAME": "gpu-7", "KUBEGPU_NODE_NAME": "gpu-8"}, "node-1", "gpu-8"),
    ],
)
def test_the_node_name_comes_from_kubernetes_else_the_host(
    env: dict[str, str], hostname: str, expected: str
) -> None:
    """NODE_NAME, as the downward API sets it, precedes the host's name; the exporter's own variable both."""
    assert settings(env=env, hostname=hostname).node_name == expected


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--interval=0.2s", "--interval: '0.2s' is under the least interval of 1s; give 1s or more"),
        ("--interval=2h", "--interval: '2h' is over the greatest interval of 1h; give 1h or less"),
        (
            "--interval=soon",
            "--interval: 'soon' is not a duration; give seconds, or a number with ms, s, m, h",
        ),
        ("--interval=-5s", "--interval: '-5s' is not a duration"),
        ("--interval=" + "9" * 400, "is over the greatest interval"),
        ("--interval", "--interval: has no value; give --interval=DURATION"),
        ("--web.listen-address=9836", "'9836' has no port; give :9836, host:9836 or [IPv6 address]:9836"),
        ("--web.listen-address=:65536", "':65536' has a port over 65535; give a port from 0 to 65535"),
        ("--web.listen-address=::1:9836", "write the IPv6 address in brackets, such as [::1]:9836"),
        ("--web.listen-address=a b:1", "'a b:1' is not an address"),
        ("--web.telemetry-path=metrics", "'metrics' is not a path; give one that starts with /"),
        (
            "--web.telemetry-path=/healthz",
            "'/healthz' is taken by the status page and the probes; give another",
        ),
        (
            "--kubelet.root-dir=mikrok8s",
            "no known preset; give an absolute path or one of default, microk8s, k0s",
        ),
        ("--kubernetes.enabled=maybe", "'maybe' is neither true nor false; give true or false"),
        ("--expected-gpus=many", "'many' is not a count; give a whole number"),
        ("--limits.process-series=", "--limits.process-series: '' is not a count"),
        ("--path.procfs=", "--path.procfs: '' is not a path; give one"),
        ("--log.level=loud", "'loud' is not known; give one of debug, info, warning, error"),
        ("--node-name=Node 1", "--node-name: 'Node 1' is not a node name"),
        (
            "--config.file=/nowhere",
            "'/nowhere' cannot be read (No such file or directory); give a readable file",
        ),
        ("--web.config.file=/", "--web.config.file: '/' cannot be read (Is a directory)"),
        ("--kubernetes.kubeconfig=/nowhere", "--kubernetes.kubeconfig: '/nowhere' cannot be read"),
        ("--web.listen-adress=:1", "--web.listen-adress: unknown flag; did you mean --web.listen-address?"),
        ("--web_listen_address=:1", "did you mean --web.listen-address?"),
        ("--no-kubernetes.enabled", "unknown flag; give --kubernetes.enabled=false"),
        ("--no-collector.telemetry", "unknown flag; give --collector.telemetry=off"),
        ("--zzz", "--zzz: unknown flag; see --help for those there are"),
        ("-i", "-i: unknown flag"),
        ("serve", "serve: unknown command; give run, demo, describe or record"),
        ("--output=yaml", "--output: 'yaml' is not known; give one of text, json"),
        ("--url=node-1:9836", "'node-1:9836' is not the address of an exporter; give one such as http://"),
        ("--url=http://node-1:99999", "is not the address of an exporter"),
        ("--url=file:///etc/passwd", "is not the address of an exporter"),
    ],
)
def test_a_bad_argument_is_refused_with_field_value_and_remedy(argument: str, message: str) -> None:
    """The refusal is one line that a user can act on."""
    text = refusal(argument)
    assert message in text
    assert "\n" not in text


def test_a_second_command_is_refused() -> None:
    """A value without its flag is most often a forgotten = sign."""
    assert refusal("demo", "run") == "run: is one argument too many; give flags as --FLAG=VALUE"


def test_a_bad_variable_is_refused_under_its_own_name() -> None:
    """The refusal names what the user wrote."""
    assert refusal(env={"KUBEGPU_INTERVAL": "0"}).startswith(
        "KUBEGPU_INTERVAL: '0' is under the least interval"
    )
    assert refusal(env={"NODE_NAME": "A B"}).startswith("NODE_NAME: 'A B' is not a node name")


def test_an_unknown_variable_is_refused() -> None:
    """A misspelled variable is no silent default."""
    expected = "KUBEGPU_INTERVALL: unknown environment variable; did you mean KUBEGPU_INTERVAL?"
    assert refusal(env={"KUBEGPU_INTERVALL": "5"}) == expected


@pytest.mark.parametrize("service", ["KUBEGPU", "KUBEGPU_EXPORTER", "KUBEGPU_EXPORTER_METRICS"])
def test_variables_that_kubernetes_sets_for_a_service_are_ignored(service: str) -> None:
    """A Service beside the exporter injects these into its pods."""
    names = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP_METRICS", "PORT", "PORT_9836_TCP"]
    names += [f"PORT_9836_TCP_{part}" for part in ("PROTO", "PORT", "ADDR")]
    env = {f"{service}_{name}": "10.0.0.1" for name in names}
    assert settings(env=env) == settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intervall: 5", "intervall: unknown key; did you mean interval?"),
        ("web: {listen_address: ':1'}", "web.listen_address: unknown key; did you mean web.listen-address?"),
        ("web: 5", "web: unknown key"),
        ("interval: 0.2s", "interval: '0.2s' is under the least interval of 1s; give 1s or more"),
        ("interval: [5]", "interval: [5] is not a single value; give one"),
        ("interval: {a: 1}", "interval: {'a': 1} is not a single value; give one"),
        ("web.telemetry-path: /m\nweb: {telemetry-path: /n}", "web.telemetry-path: given twice"),
        ("interval: 5\ninterval: 6", "is not valid YAML on line 2 (the key 'interval' is given twice)"),
        ("interval: 'x", "is not valid YAML on line"),
        ("- interval", "is not a mapping of keys to values"),
        ("config.file: x", "config.file: a file cannot name another; give --config.file=x"),
    ],
)
def test_a_bad_file_is_refused_naming_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    """The refusal leads to the line to correct."""
    file = tmp_path / "config.yaml"
    file.write_text(text)
    refused = refusal(f"--config.file={file}")
    assert refused.startswith(f"{file}: ")
    assert message in refused


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named as such."""
    file = tmp_path / "config.yaml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        load_yaml(file)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("1.5", 1.5),
        ("5s", 5),
        ("500ms", 0.5),
        ("2m", 120),
        ("1h", 3600),
        ("1m30s", 90),
        ("1d", 86400),
    ],
)
def test_durations_are_taken_in_every_spelling(text: str, seconds: float) -> None:
    """Plain seconds, one unit, or several."""
    assert parse_duration(text) == seconds


@given(st.integers(min_value=1, max_value=10**8))
def test_a_duration_is_read_back_as_it_was_written(milliseconds: int) -> None:
    """The reference prints defaults that can be given."""
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@given(
    st.lists(st.text(max_size=30), max_size=4), st.dictionaries(st.text(max_size=20), st.text(max_size=20))
)
def test_any_command_line_is_taken_or_refused_in_one_line(argv: Sequence[str], env: dict[str, str]) -> None:
    """No input ends in another exception."""
    prefixed = {f"KUBEGPU_{key}": value for key, value in env.items()}
    refused = ""
    try:
        parse([f"--{item}" for item in argv], prefixed, "node-1")
    except SettingsError as error:
        refused = str(error)
    assert len(refused.splitlines()) <= 1


def test_the_reference_describes_every_setting() -> None:
    """Each setting has a flag, a variable and a meaning; a printed default is one that can be given."""
    documented = list(reference())
    assert len({doc.flag for doc in documented}) == len({doc.env for doc in documented}) == len(documented)
    for doc in documented:
        assert doc.meaning.endswith("."), doc.flag
        if doc.default:
            assert value_of(settings(f"{doc.flag}={doc.default}"), doc.flag) == value_of(Settings(), doc.flag)
        assert f"{doc.flag}={doc.metavar}  [{doc.env}]" in help_text()
