"""What a panel is: its words, its queries, and how its values are drawn.

A panel's description comes in, a panel of Grafana's classic model goes out. Every kind of panel here draws
what is not known as such: NaN and null become the word "unknown" in tiles, NaN does in tables, and lines and
states have gaps. None may map a missing value to a number or to a calm colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

CALM, BAD, DOUBT, PLAIN, BUSY, WARN = "green", "red", "purple", "text", "blue", "orange"
DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

Mapping: TypeAlias = models.ValueMap | models.RangeMap | models.RegexMap | models.SpecialValueMap
Builder: TypeAlias = stat.Panel | table.Panel | timeseries.Panel | statetimeline.Panel


def words(texts: dict[int, tuple[str, str]]) -> Mapping:
    """Numbers as words, each with its colour."""
    return models.ValueMap(
        {
            str(number): models.ValueMappingResult(text=text, color=colour, index=index)
            for index, (number, (text, colour)) in enumerate(texts.items())
        }
    )


def special(match: models.SpecialValueMatch, text: str, colour: str = DOUBT) -> Mapping:
    """A word for a value that is no number."""
    result = models.ValueMappingResult(text=text, color=colour, index=90)
    return models.SpecialValueMap(models.DashboardSpecialValueMapOptions(match, result))


def at_least(least: float, colour: str) -> Mapping:
    """A colour, and no other text, for numbers from `least` on."""
    result = models.ValueMappingResult(color=colour, index=80)
    return models.RangeMap(models.DashboardRangeMapOptions(from_val=least, result=result))


UNKNOWN = special(models.SpecialValueMatch.NULL_AND_NAN, "unknown")
# A null in a table is a cell that has no meaning in its row.
UNKNOWN_CELL = special(models.SpecialValueMatch.NA_N, "unknown")


@dataclass(frozen=True, slots=True)
class Query:
    """One target. `legend` names its series; in a tile it is the name of the number."""

    expr: str
    legend: str = ""
    colour: str = ""  # in a tile: from 1 on
    unit: str = ""  # in a tile: other than that of the panel


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a label, or "A", "B", ... for the value of a query."""

    source: str
    title: str
    unit: str = ""
    mappings: tuple[Mapping, ...] = ()
    link: tuple[str, str] | None = None  # title and address
    width: int = 0


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel, still without a place."""

    kind: str  # tiles, table, lines or states
    title: str
    about: str
    queries: tuple[Query, ...]
    unit: str
    nothing: str  # what an empty panel says: what is known then
    columns: tuple[Column, ...] = ()
    mappings: tuple[Mapping, ...] = ()
    stacked: bool = False
    dashed: str = ""  # regular expression of the series that are limits, not measurements
    least: float | None = 0
    most: float | None = None
    sort: tuple[str, bool] | None = None  # column, and whether the greatest is first
    links: tuple[tuple[str, str], ...] = field(default=())


def tiles(title: str, about: str, *queries: Query, unit: str = "short", **more: Any) -> Panel:
    """Numbers with their names. What nobody knows reads "unknown"."""
    return Panel("tiles", title, about, queries, unit, "unknown", **more)


def grid(
    title: str, about: str, queries: Sequence[str], columns: Sequence[Column], nothing: str, **more: Any
) -> Panel:
    """A table: the rows of all queries joined by the labels that they share."""
    asked = tuple(Query(expr) for expr in queries)
    return Panel("table", title, about, asked, "none", nothing, columns=tuple(columns), **more)


def lines(title: str, about: str, *queries: Query, unit: str, nothing: str, **more: Any) -> Panel:
    """Lines over time, with gaps where nothing was measured."""
    return Panel("lines", title, about, queries, unit, nothing, **more)


def states(
    title: str, about: str, *queries: Query, mappings: Sequence[Mapping], nothing: str, **more: Any
) -> Panel:
    """A bar over time for each series, with gaps where nothing was measured."""
    return Panel("states", title, about, queries, "none", nothing, mappings=tuple(mappings), **more)


# --- to Grafana's model -------------------------------------------------------------------------------------


def draw(panel: Panel, number: int, place: models.GridPos) -> Builder:
    """The panel in Grafana's model."""
    builder = KINDS[panel.kind](panel)
    builder.id(number).grid_pos(place).title(panel.title).description(panel.about)
    builder.datasource(DATASOURCE).unit(panel.unit).no_value(panel.nothing)
    for reference, query in zip(ascii_uppercase, panel.queries, strict=False):
        builder.with_target(_target(panel, reference, query))
    if panel.links:
        builder.links([_link(title, url) for title, url in panel.links])
    return builder


def _target(panel: Panel, reference: str, query: Query) -> prometheus.Dataquery:
    target = prometheus.Dataquery().datasource(DATASOURCE).ref_id(reference).expr(query.expr)
    if panel.kind == "table":
        return target.instant().format(PromQueryFormat.TABLE)
    target.legend_format(query.legend)
    return target.instant() if panel.kind == "tiles" else target.range()


def _link(title: str, url: str) -> dashboard_builders.DashboardLink:
    link = dashboard_builders.DashboardLink(title).type(models.DashboardLinkType.LINK)
    return link.url(url).keep_time(True)


def _steps(*steps: tuple[float | None, str]) -> dashboard_builders.ThresholdsConfig:
    config = dashboard_builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    return config.steps([models.Threshold(value=value, color=colour) for value, colour in steps])


def _property(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)


def _tiles(panel: Panel) -> stat.Panel:
    builder = (
        stat.Panel()
        .mappings([*panel.mappings, UNKNOWN])
        .thresholds(_steps((None, PLAIN)))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    for reference, query in zip(ascii_uppercase, panel.queries, strict=False):
        properties = []
        if query.colour:
            steps = [{"value": None, "color": PLAIN}, {"value": 1, "color": query.colour}]
            properties.append(_property("thresholds", {"mode": "absolute", "steps": steps}))
        if query.unit:
            properties.append(_property("unit", query.unit))
        if properties:
            builder.override_by_query(reference, properties)
    return builder


def _table(panel: Panel) -> table.Panel:
    several = len(panel.queries) > 1
    names = {column.source: _field(column.source, several=several) for column in panel.columns}
    shown = {names[column.source]: column.title for column in panel.columns}
    values = {_field(reference, several=several) for reference in ascii_uppercase[: len(panel.queries)]}
    hidden = dict.fromkeys(sorted((values | HIDDEN) - shown.keys()), True)
    order = {name: place for place, name in enumerate(shown)}
    builder = (
        table.Panel()
        .thresholds(_steps((None, PLAIN)))
        .cell_height(common.TableCellHeight.SM)
        .filterable(True)
        .with_transformation(models.DataTransformerConfig("merge", options={}))
        .with_transformation(
            models.DataTransformerConfig(
                "organize",
                options={"excludeByName": hidden, "renameByName": shown, "indexByName": order},
            )
        )
    )
    if panel.sort:
        by = common_builders.TableSortByFieldState().display_name(panel.sort[0]).desc(panel.sort[1])
        builder.sort_by([by])
    # Grafana writes the words for an empty panel into every empty cell, too: here those stay empty.
    builder.override_by_regexp("/.*/", [_property("noValue", "")])
    for column in panel.columns:
        if properties := _column(column):
            builder.override_by_name(column.title, properties)
    return builder


# Labels and fields that no table shows unless it says so.
HIDDEN = {"Time", "__name__", "job", "instance"}


def _field(source: str, *, several: bool) -> str:
    """The name that Grafana gives a label or the value of a query."""
    if source not in ascii_uppercase:
        return source
    return f"Value #{source}" if several else "Value"


def _column(column: Column) -> list[models.DynamicConfigValue]:
    properties = []
    if column.unit:
        properties.append(_property("unit", column.unit))
    if column.source in ascii_uppercase:
        properties.append(_property("mappings", [*column.mappings, UNKNOWN_CELL]))
        if column.mappings:
            properties.append(_property("custom.cellOptions", {"type": "color-text"}))
    if column.link:
        title, url = column.link
        target = url.startswith("http")
        properties.append(_property("links", [{"title": title, "url": url, "targetBlank": target}]))
    if column.width:
        properties.append(_property("custom.width", column.width))
    return properties


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common_builders.VizLegendOptions().show_legend(True).calcs(["mean", "max"])
    legend.display_mode(common.LegendDisplayMode.TABLE).placement(common.LegendPlacement.RIGHT)
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    builder = (
        timeseries.Panel()
        .legend(legend)
        .tooltip(tooltip.sort(common.SortOrder.DESCENDING))
        .line_width(1)
        .fill_opacity(60 if panel.stacked else 0)
        .span_nulls(False)
        .show_points(common.VisibilityMode.AUTO)
        .mappings(list(panel.mappings))
    )
    if panel.stacked:
        builder.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if panel.least is not None:
        builder.min(panel.least)
    if panel.most is not None:
        builder.max(panel.most)
    if panel.dashed:
        style = {"fill": "dash", "dash": [8, 8]}
        builder.override_by_regexp(
            panel.dashed,
            [
                _property("custom.lineStyle", style),
                _property("custom.fillOpacity", 0),
                _property("custom.stacking", {"mode": "none", "group": "limits"}),
            ],
        )
    return builder


def _states(panel: Panel) -> statetimeline.Panel:
    legend = common_builders.VizLegendOptions().show_legend(False)
    return (
        statetimeline.Panel()
        .mappings(list(panel.mappings))
        .thresholds(_steps((None, PLAIN)))
        .legend(legend.display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM))
        .show_value(common.VisibilityMode.AUTO)
        .merge_values(True)
        .row_height(0.85)
        .fill_opacity(75)
        .line_width(0)
        .span_nulls(False)
    )


KINDS: dict[str, Callable[[Panel], Builder]] = {
    "tiles": _tiles,
    "table": _table,
    "lines": _lines,
    "states": _states,
}
