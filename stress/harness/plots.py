"""Figures of a report: plain data in, one self-contained inline SVG out.

A scenario builds a ``Figure`` with one of the three constructors, which check the data at once; ``draw`` turns it into
SVG text. matplotlib is imported when the first figure is drawn, on its file-only backend. Text stays text in the SVG,
so a reader can search and copy it.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fleet.errors import LocalMisuse
from fleet.metrics import Histogram, Number
from stress.harness.space_time_paint import paint as paint_space_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MAX_LEGEND: Final = 12
"""Lines that a legend still tells apart; beyond it the crowd shares a colour, and the line that ends last is named."""
MAX_ANNOTATED: Final = 12
"""Rows and columns of a heat map whose cells still have room for their number."""
MAX_TICKS: Final = 22
"""Labels along one side of a heat map; of more peers every second, third, … is named."""

_MAX_POINTS: Final = 20_000
"""Points in all lines of one figure; longer ones are thinned evenly, which no eye sees and the page's size does."""
_WIDTH: Final = 9.0  # inches at 72 points: the width of the report's column
_COLOURS: Final = (
    "#1f6feb",
    "#d9480f",
    "#2b8a3e",
    "#9c36b5",
    "#e0a800",
    "#0b7285",
    "#c2255c",
    "#5c940d",
    "#5f3dc4",
    "#868e96",
    "#a0522d",
    "#15aabf",
)
_STYLE: Final[Mapping[str, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a peer's name is a dollar
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": "#adb5bd",
    "axes.labelcolor": "#495057",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9ecef",
    "xtick.color": "#495057",
    "ytick.color": "#495057",
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a report: ``kind`` names the drawing, ``data`` is what that kind's constructor made."""

    title: str
    caption: str
    kind: str
    data: Mapping[str, Any]


def steps_over_time(
    title: str,
    caption: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str = "seconds",
    y_label: str = "pieces verified",
) -> Figure:
    """A step line for each name: (seconds, value so far) points, in order of time."""
    for name, points in series.items():
        if any(a[0] > b[0] for a, b in itertools.pairwise(points)):
            raise LocalMisuse(f"the points of {name!r} are not in order of time: sort them")
    data = {"series": {name: list(points) for name, points in series.items()}, "x": x_label, "y": y_label}
    return Figure(title, caption, "steps_over_time", data)


def heat_map(
    title: str,
    caption: str,
    matrix: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    unit: str = "MiB",
    row_label: str = "from",
    column_label: str = "to",
) -> Figure:
    """A matrix of ``len(rows)`` by ``len(columns)`` values, such as MiB sent from the row's to the column's peer."""
    if len(matrix) != len(rows) or any(len(line) != len(columns) for line in matrix):
        raise LocalMisuse(f"a heat map of {len(rows)} by {len(columns)} names needs a matrix of that shape")
    data = {"matrix": [list(line) for line in matrix], "rows": list(rows), "columns": list(columns), "unit": unit}
    return Figure(title, caption, "heat_map", {**data, "row_label": row_label, "column_label": column_label})


def cdf(title: str, caption: str, series: Mapping[str, Histogram | Sequence[Number]], *, x_label: str) -> Figure:
    """The cumulative distribution of each name's histogram or plain sample; ``x_label`` says quantity and unit."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, sample in series.items():
        if isinstance(sample, Histogram):
            curves[name] = sample.cumulative()
        else:
            curves[name] = [(float(v), rank / len(sample)) for rank, v in enumerate(sorted(sample), 1)]
    return Figure(title, caption, "cdf", {"series": curves, "x": x_label, "y": "share at or below"})


def draw(figure: Figure, number: int = 1) -> str:
    """The figure as an ``<svg>`` element. ``number`` keeps its ids apart from other figures' on the same page.

    Raises ``LocalMisuse`` for a kind that does not exist.
    """
    painter = _PAINTERS.get(figure.kind)
    if painter is None:
        raise LocalMisuse(f"no figure of kind {figure.kind!r}: use one of {', '.join(_PAINTERS)}")
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    style: dict[Any, Any] = {**_STYLE, "svg.hashsalt": f"figure {number}"}
    with mpl.rc_context(style):
        canvas = Canvas(layout="constrained")
        painter(canvas, figure.data)
        out = io.StringIO()
        FigureCanvasSVG(canvas)
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    for before in ('id="', 'href="#', "url(#"):
        svg = svg.replace(before, f"{before}f{number}-")
    return svg.replace("<svg ", '<svg role="img" ', 1)


def _no_data(axes: Axes) -> None:
    axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", va="center", color="#868e96")


def _lines(axes: Axes, series: Mapping[str, Sequence[tuple[float, float]]], legend: Literal["best", "above"]) -> None:
    crowd = len(series) > MAX_LEGEND
    last = max(series, key=lambda name: series[name][-1][0] if series[name] else -math.inf, default=None)
    for index, (name, all_points) in enumerate(series.items()):
        points = _thinned(all_points, _MAX_POINTS // len(series))
        axes.step(
            [x for x, _ in points],
            [y for _, y in points],
            where="post",
            **_line_style(index, name, crowd=crowd, last=name == last),
        )
    if not any(series.values()):
        _no_data(axes)
    elif len(series) > 1 and legend == "above":  # no corner is free of lines when one fetcher is late
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), fontsize=9, ncols=8 if len(series) <= 8 else 6, borderaxespad=0
        )
    elif len(series) > 1:
        axes.legend(loc="best", fontsize=9, ncols=2 if 6 < len(series) <= MAX_LEGEND else 1)


def _line_style(index: int, name: str, *, crowd: bool, last: bool) -> dict[str, Any]:
    if not crowd:
        return {"label": name, "linewidth": 1.8, "alpha": 0.95, "color": _COLOURS[index % len(_COLOURS)]}
    if last:
        return {"label": f"{name}, the last to end", "linewidth": 1.8, "color": _COLOURS[1], "zorder": 3}
    return {"linewidth": 1.0, "alpha": 0.45, "color": _COLOURS[0]}


def _thinned(points: Sequence[tuple[float, float]], most: int) -> Sequence[tuple[float, float]]:
    """About ``most`` of the points, evenly chosen, the first and the last among them."""
    step = -(-len(points) // max(most, 2))
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _draw_steps(canvas: Canvas, data: Mapping[str, Any]) -> None:
    canvas.set_size_inches(_WIDTH, 3.8)
    axes = canvas.subplots()
    axes.set_xlabel(data["x"])
    axes.set_ylabel(data["y"])
    _lines(axes, data["series"], "above")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)


def _draw_cdf(canvas: Canvas, data: Mapping[str, Any]) -> None:
    canvas.set_size_inches(_WIDTH, 3.4)
    axes = canvas.subplots()
    axes.set_xlabel(data["x"])
    axes.set_ylabel(data["y"])
    series = data["series"]
    _lines(axes, {name: [(points[0][0], 0.0), *points] if points else [] for name, points in series.items()}, "best")
    axes.set_ylim(0, 1.02)
    values = [x for points in series.values() for x, _ in points]
    if values and min(values) > 0 and max(values) / min(values) > 100:  # decades apart: a linear axis shows a wall
        axes.set_xscale("log")


def _draw_heat_map(canvas: Canvas, data: Mapping[str, Any]) -> None:
    matrix, rows, columns = data["matrix"], data["rows"], data["columns"]
    height = min(7.5, 1.4 + 0.42 * len(rows)) if len(rows) <= MAX_ANNOTATED else 7.0
    canvas.set_size_inches(_WIDTH, height)
    axes = canvas.subplots()
    axes.grid(visible=False)
    axes.set_xlabel(data["column_label"])
    axes.set_ylabel(data["row_label"])
    if not rows or not columns:
        _no_data(axes)
        return
    largest = max((value for line in matrix for value in line if math.isfinite(value)), default=0.0)
    small = len(rows) <= MAX_ANNOTATED and len(columns) <= MAX_ANNOTATED
    # a crowd keeps square cells; a few peers use the width, so that numbers fit
    image = axes.imshow(
        matrix,
        cmap="Blues",
        vmin=0,
        vmax=largest or 1.0,
        interpolation="none",
        aspect="auto" if small else "equal",
    )
    canvas.colorbar(image, ax=axes, label=data["unit"], fraction=0.04, pad=0.02).outline.set_visible(False)
    _name_ticks(axes.set_yticks, rows, rotation=0)
    _name_ticks(axes.set_xticks, columns, rotation=0 if small and max(map(len, columns)) <= 8 else 90)
    axes.tick_params(length=0, labelsize=9)
    for side in axes.spines.values():
        side.set_visible(False)
    if small:
        for y, line in enumerate(matrix):
            for x, value in enumerate(line):
                colour = "white" if value > 0.5 * largest else "#343a40"
                if value:
                    axes.text(x, y, f"{value:.3g}", ha="center", va="center", fontsize=9, color=colour)


def _draw_space_time(canvas: Canvas, data: Mapping[str, Any]) -> None:
    paint_space_time(canvas, data["picture"])


def _name_ticks(set_ticks: Callable[..., Any], names: Sequence[str], rotation: int) -> None:
    every = math.ceil(len(names) / MAX_TICKS)
    shown = range(0, len(names), every)
    set_ticks(list(shown), labels=[names[index] for index in shown], rotation=rotation)


_PAINTERS: Final[Mapping[str, Callable[[Canvas, Mapping[str, Any]], None]]] = {
    "steps_over_time": _draw_steps,
    "heat_map": _draw_heat_map,
    "cdf": _draw_cdf,
    "space_time": _draw_space_time,
}
