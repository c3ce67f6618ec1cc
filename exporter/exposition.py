"""The catalog as text: a Report comes in, the bytes that a scrape gets go out.

The only owner of prometheus_client. There are two formats, Prometheus text 0.0.4 and OpenMetrics 1.0, and two
content types: what a client writes in its Accept header chooses between them and is never repeated to it or
kept. Bytes are made once per cycle, plain and gzipped, so that a scrape costs no more than handing them out.
"""

import gzip
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from exporter.catalog import FAMILIES, Family
from exporter.model import Report
from exporter.model.report import WebReload

STALE_AFTER = 5  # intervals
_ASKED_LATELY = 10  # cycles for which a format is prepared after a scrape asked for it
_ACCEPT_LIMIT = 4096  # characters of an Accept header that are looked at
_GZIP_LEVEL = 1


class Format(Enum):
    """A format in which metrics are served; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Body:
    """One rendering of the metrics: the same text plain and compressed."""

    content_type: str
    plain: bytes
    gzipped: bytes


class Renderer:
    """Makes a `Rendered` of each cycle's report, in the formats that scrapes asked for lately.

    `clock` is the one that Snapshot.monotonic was taken from. Only `families` are served. `web_reload` tells
    how the server's TLS files fare, of which a cycle knows nothing.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        families: Sequence[Family] = FAMILIES,
        web_reload: Callable[[], WebReload | None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._families = sorted(families, key=lambda family: family.name)
        self._web_reload = web_reload
        self._lock = threading.Lock()
        self._cycle = 0
        self._asked: dict[Format, int] = {}

    def render(self, report: Report) -> "Rendered":
        """The report with its bytes prepared. Takes some 15 µs for each series and format."""
        with self._lock:
            self._cycle += 1
            lately = [form for form, cycle in self._asked.items() if self._cycle - cycle <= _ASKED_LATELY]
        if web_reload := self._web_reload():
            report = replace(report, web_reload=web_reload)
        rendered = Rendered(report, self._families, self._clock, self._note)
        for form in {Format.TEXT, *lately}:
            rendered.prepare(form)
        return rendered

    def _note(self, form: Format) -> None:
        with self._lock:
            self._asked[form] = self._cycle


class Rendered:
    """One report and its bytes. A format that nobody asked for lately is made when it is asked for."""

    def __init__(
        self,
        report: Report,
        families: Sequence[Family],
        clock: Callable[[], float],
        note: Callable[[Format], None],
    ) -> None:
        self.report = report
        self._families = families
        self._clock = clock
        self._note = note
        self._lock = threading.Lock()
        self._bodies: dict[tuple[Format, bool], Body] = {}

    def body(self, accept: str | None) -> Body:
        """What a scrape with this Accept header gets: of a stale report only what concerns the exporter."""
        form = negotiate(accept)
        self._note(form)
        return self.prepare(form, stale(self.report, self._clock()))

    def prepare(self, form: Format, is_stale: bool = False) -> Body:
        """Make the bytes of one format, unless they are there already."""
        with self._lock:
            body = self._bodies.get((form, is_stale))
            if body is None:
                families = [one for one in self._families if one.about_exporter or not is_stale]
                body = _pack(form, expose(self.report, form, families))
                self._bodies[form, is_stale] = body
        return body


def stale(report: Report, monotonic: float) -> bool:
    """Whether the report is too old to say anything about the node."""
    return monotonic - report.snapshot.monotonic > STALE_AFTER * report.policy.interval


def before_first_cycle(accept: str | None) -> Body:
    """What a scrape gets while there is no report: a valid exposition without a single sample."""
    form = negotiate(accept)
    return _pack(form, _text(form, CollectorRegistry()))


def _pack(form: Format, plain: bytes) -> Body:
    return Body(form.value, plain, gzip.compress(plain, _GZIP_LEVEL, mtime=0))


# --- text ---------------------------------------------------------------------------------------------------


def expose(report: Report, form: Format, families: Sequence[Family] = FAMILIES) -> bytes:
    """The text of `families` for this report. ValueError where a row's labels do not fit its family."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(report, families))
    return _text(form, registry)


def _text(form: Format, registry: CollectorRegistry) -> bytes:
    match form:
        case Format.TEXT:
            return generate_latest(registry)
        case Format.OPENMETRICS:
            text: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
            return text


class _Collector:
    """The catalog as prometheus_client wants it."""

    def __init__(self, report: Report, families: Sequence[Family]) -> None:
        self._report = report
        self._families = sorted(families, key=lambda family: family.name)

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = _empty(family)
            for labels, number in _sorted(family, family.samples(self._report)):
                metric.add_metric(labels, number)
            if metric.samples:
                yield metric


def _empty(family: Family) -> GaugeMetricFamily | CounterMetricFamily:
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return make(family.full_name, family.help, labels=family.labels)


def _sorted(
    family: Family, samples: Iterable[tuple[tuple[str, ...], float]]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Samples in the order of their labels, each label set once: Prometheus drops a duplicate or a scrape."""
    unique: dict[tuple[str, ...], float] = {}
    for labels, number in samples:
        # prometheus_client would drop what is too much or too little without a word.
        if len(labels) != len(family.labels):
            raise ValueError(
                f"{family.full_name}: {len(labels)} label values for {len(family.labels)} labels"
            )
        unique.setdefault(tuple(_encodable(label) for label in labels), number)
    return iter(sorted(unique.items()))


def _encodable(label: str) -> str:
    """The label without lone surrogates, which JSON can carry and UTF-8 cannot."""
    return label if label.isascii() else label.encode("utf-8", "replace").decode()


# --- negotiation --------------------------------------------------------------------------------------------


def negotiate(accept: str | None) -> Format:
    """The format that an Accept header likes best; text where it names neither, or is no such header."""
    weights = {Format.TEXT: 0.0, Format.OPENMETRICS: 0.0}
    for item in (accept or "")[:_ACCEPT_LIMIT].lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        form = _format(media_type, dict(_pair(parameter) for parameter in parameters))
        if form is not None:
            weights[form] = max(weights[form], _quality(parameters))
    openmetrics = weights[Format.OPENMETRICS]
    return Format.OPENMETRICS if openmetrics > 0 and openmetrics >= weights[Format.TEXT] else Format.TEXT


def _format(media_type: str, parameters: dict[str, str]) -> Format | None:
    match media_type:
        case "text/plain" | "text/*" | "*/*":
            return Format.TEXT  # of any version: there is one that every Prometheus reads
        case "application/openmetrics-text" if parameters.get("version", "1.0.0") == "1.0.0":
            return Format.OPENMETRICS
        case _:
            return None


def _pair(parameter: str) -> tuple[str, str]:
    name, _, setting = parameter.partition("=")
    return name.strip(), setting.strip().strip('"')


def _quality(parameters: Iterable[str]) -> float:
    """The weight of RFC 9110 section 12.4.2: 1 where there is none, 0 where it cannot be read."""
    text = dict(_pair(parameter) for parameter in parameters).get("q", "1")
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0
