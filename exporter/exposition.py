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
from functools import lru_cache
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.utils import floatToGoString

from exporter.catalog import FAMILIES, Family, Sample
from exporter.model import Report
from exporter.model.report import WebReload

STALE_AFTER = 5  # intervals
_ASKED_LATELY = 10  # cycles for which a format is prepared after a scrape asked for it
_ACCEPT_LIMIT = 4096  # characters of an Accept header that are looked at
_GZIP_LEVEL = 1


Text: TypeAlias = bytes | memoryview


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
        """The report with its bytes prepared. Takes some 5 µs for each series."""
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
        self._texts: list[tuple[Family, Text]] = []  # parts of the first body that was made of all

    def body(self, accept: str | None) -> Body:
        """What a scrape with this Accept header gets: of a stale report only what concerns the exporter."""
        form = negotiate(accept)
        self._note(form)
        return self.prepare(form, self.stale)

    @property
    def stale(self) -> bool:
        """Whether the report is too old by now to say anything about the node."""
        return stale(self.report, self._clock())

    def prepare(self, form: Format, is_stale: bool = False) -> Body:
        """Make the bytes of one format, unless they are there already."""
        with self._lock:
            body = self._bodies.get((form, is_stale))
            if body is None:
                texts = self._texts or _texts(self.report, self._families)
                served = [one for one in texts if one[0].about_exporter or not is_stale]
                body = self._bodies[form, is_stale] = _pack(form, _joined(form, served))
                if not self._texts and not is_stale:
                    self._texts = _within(form, body.plain, texts)
        return body


def stale(report: Report, monotonic: float) -> bool:
    """Whether the report is too old to say anything about the node."""
    return monotonic - report.snapshot.monotonic > STALE_AFTER * report.policy.interval


def before_first_cycle(accept: str | None) -> Body:
    """What a scrape gets while there is no report: a valid exposition without a single sample."""
    form = negotiate(accept)
    return _pack(form, _joined(form, ()))


def _pack(form: Format, plain: bytes) -> Body:
    return Body(form.value, plain, gzip.compress(plain, _GZIP_LEVEL, mtime=0))


# --- text ---------------------------------------------------------------------------------------------------


def expose(report: Report, form: Format, families: Sequence[Family] = FAMILIES) -> bytes:
    """The text of `families` for this report. ValueError where a row's labels do not fit its family."""
    return _joined(form, _texts(report, families))


def _texts(report: Report, families: Iterable[Family]) -> list[tuple[Family, Text]]:
    """The samples of each family that has some: one text for both formats, which differ in their comments."""
    ordered = sorted(families, key=lambda family: family.name)
    texts = ((family, _samples(family, family.samples(report)).encode()) for family in ordered)
    return [(family, text) for family, text in texts if text]


def _joined(form: Format, texts: Iterable[tuple[Family, Text]]) -> bytes:
    parts = [part for family, text in texts for part in (_comments(form, family), text)]
    return b"".join([*parts, _end(form)])


def _within(form: Format, plain: bytes, texts: Iterable[tuple[Family, Text]]) -> list[tuple[Family, Text]]:
    """The same texts as parts of the body that was made of them, so that they are there only once."""
    found: list[tuple[Family, Text]] = []
    whole, at = memoryview(plain), 0
    for family, text in texts:
        start = at + len(_comments(form, family))
        at = start + len(text)
        found.append((family, whole[start:at]))
    return found


@lru_cache(maxsize=1024)
def _comments(form: Format, family: Family) -> bytes:
    """The lines above a family's samples, as prometheus_client writes them."""
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_One(make(family.full_name, family.help, labels=family.labels)))
    return _generated(form, registry).removesuffix(_end(form))


class _One:
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


@lru_cache
def _end(form: Format) -> bytes:
    """What ends a text: an exposition without any metric."""
    return _generated(form, CollectorRegistry())


def _generated(form: Format, registry: CollectorRegistry) -> bytes:
    match form:
        case Format.TEXT:
            return generate_latest(registry)
        case Format.OPENMETRICS:
            text: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
            return text


def _samples(family: Family, samples: Iterable[Sample]) -> str:
    """Lines in the order of their labels, each label set once: Prometheus drops a duplicate or a scrape.

    Written here because prometheus_client takes some five times as long: it checks each name of each sample
    anew. Both know no more than one way to write a label or a number.
    """
    count = len(family.labels)
    unique: dict[tuple[str, ...], float] = {}
    for labels, number in samples:
        if len(labels) != count:
            raise ValueError(f"{family.full_name}: {len(labels)} label values for {count} labels")
        unique.setdefault(labels if "".join(labels).isascii() else tuple(map(_encodable, labels)), number)
    name = family.full_name
    if family.kind == "counter":
        name = f"{name.removesuffix('_total')}_total"
    places = sorted(range(count), key=lambda place: family.labels[place])
    pairs = ",".join(f'{family.labels[place]}="%s"' for place in places)
    line = f"{name}{{{pairs}}} %s\n" if places else f"{name} %s\n"
    return "".join(
        [
            line % (*[labels[place] for place in places], _number(number))
            for labels, number in ((_escaped(labels), number) for labels, number in sorted(unique.items()))
        ]
    )


def _number(number: float) -> str:
    if number == 1:  # half of all samples
        return "1.0"
    text: str = floatToGoString(number)  # type: ignore[no-untyped-call]
    return text


def _encodable(label: str) -> str:
    """The label without lone surrogates, which JSON can carry and UTF-8 cannot."""
    return label.encode("utf-8", "replace").decode()


def _escaped(labels: tuple[str, ...]) -> tuple[str, ...]:
    """As the text formats quote label values; few have anything to quote."""
    together = "".join(labels)
    if "\\" in together or '"' in together or "\n" in together:
        return tuple(label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for label in labels)
    return labels


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
