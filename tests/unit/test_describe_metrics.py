"""What `describe` makes of an exporter's metrics, and how it gets them."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from exporter import describe, scenario
from exporter.__main__ import run
from exporter.exposition import Format, expose
from exporter.model import (
    Diagnosis,
    FindingName,
    Policy,
    Report,
)
from exporter.view import Device, Place
from tests import builders as b
from tests import golden
from tests.builders import GIB, NOW
from tests.unit.reports import busy, eight_gpus_with_56_mig_devices, troubled


def text(report: Report) -> str:
    return describe.as_text(describe.of_report(report))


def device(view: describe.View, place: Place) -> Device:
    return next(one for one in view.devices if one.place == place)


# --- from metrics -------------------------------------------------------------------------------------------


def exposed(report: Report) -> str:
    return expose(report, Format.TEXT).decode()


def last_of(name: str) -> Report:
    """The last cycle of a shipped scenario."""
    *_, (_, report) = golden.reports(scenario.load(name))
    return report


@pytest.mark.parametrize(
    "build",
    [busy, eight_gpus_with_56_mig_devices, *(partial(last_of, name) for name in scenario.shipped())],
)
def test_the_metrics_say_of_devices_what_a_look_says(build: Callable[[], Report]) -> None:
    """Who holds each, what was given to whom and its memory are the same by both ways."""
    report = build()
    mine = describe.of_report(report)
    theirs = describe.of_metrics(exposed(report), "http://node-1:9836")
    assert (theirs.node, theirs.seen, len(theirs.devices)) == (mine.node, mine.seen, len(mine.devices))
    for one in mine.devices:
        other = device(theirs, one.place)
        assert replace(other, problems=()) == replace(one, problems=(), listed=None)


def test_an_exporter_says_since_when_a_finding_is_active() -> None:
    """It has followed it; its evidence is not in the metrics, its remedy is in the table."""
    report = troubled()
    active = tuple(replace(one, active=True) for one in report.diagnosis.findings)
    report = replace(report, diagnosis=replace(report.diagnosis, findings=active))
    view = describe.of_metrics(exposed(report), "http://node-1:9836")
    stuck = next(one for one in view.everything_wrong if one.finding == FindingName.STUCK_PROCESS)
    assert (stuck.since, stuck.memory, stuck.severity) == (NOW - 300, GIB, "critical")
    assert "Active; first seen 2025-10-09 08:48:20 UTC." in describe.as_text(view)
    assert "pods: missing" in describe.as_text(view)
    assert view.verdict is describe.Verdict.WRONG


def test_an_exporter_that_denies_its_findings_is_no_clean_bill() -> None:
    """Without the families of findings nothing is clear; without the details, what is wrong still counts."""
    report = b.report(diagnosis=Diagnosis(findings=(b.finding(),)))
    lines = exposed(report).splitlines(keepends=True)
    without_all = "".join(line for line in lines if "kubegpu_finding" not in line)
    without_details = "".join(line for line in lines if "kubegpu_finding_" not in line)
    bare = describe.of_metrics(without_all, "http://node-1:9836")
    assert {(doubt.finding, doubt.reason) for doubt in bare.doubts} == {
        (name.value, "not exported") for name in FindingName
    }
    counted = describe.of_metrics(without_details, "http://node-1:9836")
    assert counted.verdict is describe.Verdict.WRONG


def test_a_finding_that_this_version_does_not_know_is_told_as_it_is() -> None:
    """The exporter may be newer."""
    line = 'kubegpu_finding_info{finding="novel",kind="odd",uuid="GPU-a",gpu="0",pid="7",comm="x"} 1'
    view = describe.of_metrics(f'{line}\nkubegpu_source_up{{source="nvml"}} 1\n', "somewhere")
    assert view.verdict is describe.Verdict.WRONG
    assert "WRONG: novel (odd)" in describe.as_text(view)


def test_an_exporter_that_has_seen_nothing_lately_is_no_clean_bill() -> None:
    """What remains of a stale report is about the exporter itself."""
    view = describe.of_metrics('kubegpu_node_info{node="node-1"} 1\n', "http://node-1:9836")
    assert view.verdict is describe.Verdict.NOT_SEEN


def test_simulated_data_says_so() -> None:
    """By both ways."""
    report = b.report(policy=Policy(simulated=True))
    assert text(report).startswith("SIMULATED")
    assert describe.as_text(describe.of_metrics(exposed(report), "x")).startswith("SIMULATED")


def test_labels_of_others_are_made_harmless() -> None:
    """Escapes are read, controls are not shown, and what is no sample is passed over."""
    line = r'kubegpu_process_info{uuid="GPU-a",pid="7",comm="a\"b\\\n\x1b",owner="host"} 1'
    noise = "kubegpu_process_info{ nan\nkubegpu_x NaN\n# HELP kubegpu_y z\nother_metric 1\nkubegpu_q x\n"
    view = describe.of_metrics(noise + line.replace(r"\x1b", "\x1b") + "\u2028\n" + line, "x")
    [holder] = view.devices[0].holders
    assert holder.comm == 'a"b\\?\\x1b'


# --- over HTTP ----------------------------------------------------------------------------------------------


@contextmanager
def serving(body: bytes, *, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server on this machine that answers everything so; its address and the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_address_without_a_path_is_that_of_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """With one it is asked as it is. The exit code is the verdict, and no colour goes into a file."""
    with serving(exposed(troubled()).encode()) as (url, asked):
        assert run(["describe", f"--url={url}"]) == 0
        assert run(["describe", f"--url={url}/", "--web.telemetry-path=/gpu"]) == 0
        assert run(["describe", f"--url={url}/other", "--output=json"]) == 0
    assert asked == ["/metrics", "/gpu", "/other"]
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert json.loads(out[out.index("{\n") :])["verdict"] == "nothing_wrong"
    with serving(exposed(busy()).encode()) as (url, _):
        assert run(["describe", f"--url={url}"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"no", 404, "answers 404 Not Found; give its --web.telemetry-path too"),
        (b"go_threads 7\n", 200, "serves no metrics of this exporter, or none yet"),
        (b"", 200, "serves no metrics of this exporter, or none yet"),
    ],
)
def test_an_answer_that_is_none_is_no_look(
    body: bytes, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names address, what happened and remedy; the exit code is that of not seen."""
    with serving(body, status=status) as (url, _):
        assert run(["describe", f"--url={url}"]) == 3
    assert f"--url: {url!r} {message}" in capsys.readouterr().err


def test_an_address_where_nobody_answers_is_no_look(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is the system's."""
    with serving(b"") as (url, _):
        pass
    assert run(["describe", f"--url={url}"]) == 3
    assert (
        "does not answer (Connection refused); see whether the exporter runs there" in capsys.readouterr().err
    )


def test_bad_usage_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """It is 2, as everywhere."""
    assert run(["describe", "--url=node-1"]) == 2
    assert "is not the address of an exporter" in capsys.readouterr().err
