import gzip
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from exporter.catalog import ALWAYS, Family, chosen
from exporter.exposition import Format, Rendered, Renderer, before_first_cycle, expose, negotiate, stale
from exporter.model import Attribution, Policy, Report
from exporter.model.report import WebReload
from exporter.text import COMM_LIMIT, printable
from tests import builders as b

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3_PROTO = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, Format.TEXT),
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        (BROWSER, Format.TEXT),
        ("text/plain", Format.TEXT),
        ("text/plain;version=0.0.4", Format.TEXT),
        ("text/plain; version=1.0.0; escaping=allow-utf-8", Format.TEXT),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0", Format.OPENMETRICS),
        ('Application/OpenMetrics-Text; Version="1.0.0"', Format.OPENMETRICS),
        ("application/openmetrics-text; version=0.0.1", Format.TEXT),
        ("application/openmetrics-text; version=2.0.0", Format.TEXT),
        ("application/openmetrics-text; version=abc", Format.TEXT),
        ("text/plain; version=abc", Format.TEXT),
        ("application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Format.TEXT),
        (PROMETHEUS_2, Format.OPENMETRICS),
        (PROMETHEUS_3, Format.OPENMETRICS),
        (PROMETHEUS_3_PROTO, Format.OPENMETRICS),
        ("application/openmetrics-text;q=0.5,text/plain", Format.TEXT),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.4", Format.OPENMETRICS),
        ("application/openmetrics-text;q=0.5,*/*;q=0.8", Format.TEXT),
        ("text/plain,application/openmetrics-text", Format.OPENMETRICS),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text;q=nan", Format.TEXT),
        ("application/openmetrics-text;q=2", Format.TEXT),
        ("application/openmetrics-text;q=", Format.TEXT),
        ("application/vnd.google.protobuf", Format.TEXT),
        (";;;,,,=;q=1", Format.TEXT),
        ("application/openmetrics-text;" * 400, Format.OPENMETRICS),
        ("x" * 10_000, Format.TEXT),
        ("\x00\xff,;q=" * 2_500, Format.TEXT),
        ("," * 10_000 + "application/openmetrics-text", Format.TEXT),
    ],
)
def test_two_formats_and_nothing_else_are_negotiated(accept: str | None, expected: Format) -> None:
    assert negotiate(accept) is expected
    body = fresh(b.report()).body(accept)
    assert body.content_type == (OPENMETRICS if expected is Format.OPENMETRICS else TEXT)
    assert body.plain.endswith(b"# EOF\n") == (expected is Format.OPENMETRICS)
    assert gzip.decompress(body.gzipped) == body.plain


class Clock:
    def __init__(self) -> None:
        self.now = b.MONOTONIC

    def __call__(self) -> float:
        return self.now


def fresh(report: Report, clock: Clock | None = None) -> Rendered:
    return Renderer(clock or Clock()).render(report)


def samples(families: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def text_samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return samples(text_string_to_metric_families(text.decode()))


def openmetrics_samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return samples(openmetrics_parser.text_string_to_metric_families(text.decode()))  # type: ignore[no-untyped-call]


def with_comm(comm: str) -> Report:
    return b.report(b.snapshot(), Attribution(uses=(b.use(comm=comm),)))


def test_both_formats_carry_the_same_samples() -> None:
    report = with_comm("python")
    text, openmetrics = expose(report, Format.TEXT), expose(report, Format.OPENMETRICS)
    assert text_samples(text) == openmetrics_samples(openmetrics)
    assert b"_created" not in text + openmetrics
    assert b"# TYPE kubegpu_source_errors_total counter\n" in text
    assert b"# TYPE kubegpu_source_errors counter\n" in openmetrics


@pytest.mark.parametrize(
    "comm",
    [
        '")\n{evil="x',
        '"} 1\nkubegpu_evil 1\n#',
        "\\",
        "\\n",
        '\\"',
        "tab\there",
        "carriage\rreturn",
        "nul\x00",
        "\x1b[31mred",
        "\u202egnirts",
        "\u2028\x85\x0b\x0c",
        "日本語",
        "",
        "# HELP x",
    ],
)
@pytest.mark.parametrize("tamed", [False, True])
def test_a_hostile_name_comes_back_as_one_label_value(comm: str, tamed: bool) -> None:
    name = printable(comm, COMM_LIMIT) if tamed else comm
    report = with_comm(name)
    for parsed in (
        text_samples(expose(report, Format.TEXT)),
        openmetrics_samples(expose(report, Format.OPENMETRICS)),
    ):
        found = [dict(labels) for family, labels in parsed if family == "kubegpu_process_info"]
        assert [labels["comm"] for labels in found] == [name]
        assert not [family for family, _ in parsed if "evil" in family]
        assert not [labels for _, labels in parsed if "evil" in dict(labels)]


def test_a_lone_surrogate_costs_one_character_and_not_the_scrape() -> None:
    text = expose(with_comm("a\ud800b"), Format.TEXT)
    assert b'comm="a?b"' in text


def test_output_is_sorted_and_the_same_for_permuted_input() -> None:
    uses = tuple(b.use(pid) for pid in (30, 4, 100))
    one = b.report(b.snapshot(), Attribution(uses=uses))
    other = b.report(b.snapshot(), Attribution(uses=uses[::-1]))
    assert expose(one, Format.TEXT) == expose(other, Format.TEXT)
    lines = expose(one, Format.TEXT).decode().splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert names == sorted(names)


def test_a_family_without_samples_is_not_mentioned() -> None:
    text = expose(b.report(b.snapshot(nvml=b.missed())), Format.TEXT)
    assert b"kubegpu_gpu_memory" not in text
    assert b"kubegpu_source_up" in text


def family(*rows: tuple[tuple[str, ...], float], name: str = "thing") -> Family:
    return Family(name, "gauge", "A thing.", ("one", "two"), "stable", lambda _: rows)


@pytest.mark.parametrize("values", [(), ("a",), ("a", "b", "c")])
def test_too_many_or_too_few_label_values_are_an_error(values: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"kubegpu_thing: {len(values)} label values for 2 labels"):
        expose(b.report(), Format.TEXT, [family((values, 1))])


def test_a_label_set_given_twice_is_served_once() -> None:
    text = expose(b.report(), Format.TEXT, [family((("a", "b"), 1), (("a", "b"), 2))])
    assert text.decode().splitlines()[2:] == ['kubegpu_thing{one="a",two="b"} 1.0']


# --- what is left out ---


@pytest.mark.parametrize(
    ("allow", "deny", "served", "hidden"),
    [
        ((), (), {"kubegpu_gpu_info", "kubegpu_source_errors_total"}, set()),
        (("kubegpu_gpu_*",), (), {"kubegpu_gpu_info", "kubegpu_gpu_power_watts"}, {"kubegpu_findings"}),
        ((), ("kubegpu_process_*",), {"kubegpu_processes", "kubegpu_gpu_info"}, {"kubegpu_process_info"}),
        (("kubegpu_gpu_*",), ("*_bytes",), {"kubegpu_gpu_info"}, {"kubegpu_gpu_memory_used_bytes"}),
        (("kubegpu_gpu_info",), ("kubegpu_gpu_info",), set(), {"kubegpu_gpu_info"}),
        ((), ("*",), set(), {"kubegpu_gpu_info", "kubegpu_source_errors_total"}),
        ((), ("kubegpu_source_*",), {"kubegpu_source_up"}, {"kubegpu_source_errors_total"}),
    ],
)
def test_the_operator_chooses_what_is_served(
    allow: tuple[str, ...], deny: tuple[str, ...], served: set[str], hidden: set[str]
) -> None:
    """Denied wins over allowed; what tells a blind exporter from a quiet node is always served."""
    families = chosen(allow, deny)
    names = {family.full_name for family in families}
    assert served | ALWAYS <= names
    assert not hidden & names
    text = Renderer(Clock(), families).render(with_comm("python")).body(None).plain.decode()
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert told <= names
    assert told >= ALWAYS


def test_a_stale_report_shows_nothing_that_is_left_out() -> None:
    clock = Clock()
    rendered = Renderer(clock, chosen(deny=("kubegpu_history_*",))).render(b.report())
    clock.now += 1000
    text = rendered.body(None).plain
    assert b"kubegpu_history" not in text
    assert b"kubegpu_exporter_build_info" in text


# --- the web configuration ---


def test_the_state_of_the_tls_files_is_that_of_the_cycle() -> None:
    reloads: list[WebReload | None] = [None, WebReload(True, 5.0), WebReload(False, 5.0)]
    renderer = Renderer(Clock(), web_reload=lambda: reloads.pop(0))
    told = [text_samples(renderer.render(b.report()).body(None).plain) for _ in range(3)]
    name = "kubegpu_web_config_reload_success"
    assert [samples.get((name, frozenset())) for samples in told] == [None, 1, 0]
    stamp = f"{name}_timestamp_seconds"
    assert [samples.get((stamp, frozenset())) for samples in told] == [None, 5, 5]


# --- what is prepared when ---


def prepared(rendered: Rendered) -> set[Format]:
    return {form for form, _ in rendered._bodies}


def test_openmetrics_is_prepared_for_ten_cycles_after_it_was_asked_for() -> None:
    renderer = Renderer(Clock())
    report = b.report()
    first = renderer.render(report)
    assert prepared(first) == {Format.TEXT}
    assert first.body(OPENMETRICS).content_type == OPENMETRICS
    later = [prepared(renderer.render(report)) for _ in range(11)]
    assert later == [{Format.TEXT, Format.OPENMETRICS}] * 10 + [{Format.TEXT}]


@pytest.mark.parametrize(("accept", "expected"), [(None, b""), (OPENMETRICS, b"# EOF\n")])
def test_before_the_first_cycle_there_is_no_sample(accept: str | None, expected: bytes) -> None:
    body = before_first_cycle(accept)
    assert body.plain == expected
    assert gzip.decompress(body.gzipped) == expected
    assert body.content_type == (TEXT if accept is None else OPENMETRICS)


def test_bodies_are_made_once() -> None:
    rendered = fresh(b.report())
    assert rendered.body(None) is rendered.body("*/*")
    assert rendered.body(OPENMETRICS) is rendered.body(PROMETHEUS_2)


def test_scrapes_at_the_same_time_get_the_same_bytes() -> None:
    rendered = fresh(b.report())
    start = threading.Barrier(8)
    bodies: list[object] = []

    def scrape() -> None:
        start.wait()
        bodies.append(rendered.body(OPENMETRICS))

    threads = [threading.Thread(target=scrape) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bodies) == 8
    assert len({id(body) for body in bodies}) == 1


def test_compression_does_not_depend_on_the_clock() -> None:
    assert fresh(b.report()).body(None) == fresh(b.report()).body(None)


# --- a report that is too old ---


def test_a_report_is_stale_after_five_intervals() -> None:
    report = b.report(policy=Policy(interval=2))
    assert not stale(report, b.MONOTONIC)
    assert not stale(report, b.MONOTONIC + 10)
    assert stale(report, b.MONOTONIC + 10.1)


@pytest.mark.parametrize("accept", [None, OPENMETRICS])
def test_a_stale_report_serves_only_what_concerns_the_exporter(accept: str | None) -> None:
    clock = Clock()
    report = replace(with_comm("python"), policy=Policy(interval=15, version="0.1.0"))
    rendered = fresh(report, clock)
    assert b"kubegpu_gpu_memory_used_bytes" in rendered.body(accept).plain
    clock.now += 76
    body = rendered.body(accept)
    parse = text_samples if accept is None else openmetrics_samples
    assert {name for name, _ in parse(body.plain)} == {
        "kubegpu_cycle_timestamp_seconds",
        "kubegpu_exporter_build_info",
        "kubegpu_history_forgotten_total",
        "kubegpu_node_info",
        "kubegpu_source_errors_total",
    }
    assert gzip.decompress(body.gzipped) == body.plain
    assert body.content_type == (TEXT if accept is None else OPENMETRICS)


def test_the_next_report_ends_it() -> None:
    clock = Clock()
    renderer = Renderer(clock)
    old = renderer.render(b.report())
    clock.now += 1000
    assert b"kubegpu_gpu_info" not in old.body(None).plain
    new = renderer.render(b.report(b.snapshot(monotonic=clock.now)))
    assert b"kubegpu_gpu_info" in new.body(None).plain
