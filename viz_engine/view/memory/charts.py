"""The memory page's figures: curves of bytes. Its bars are in assets/js/bars.mjs.

Functions from plain data to a figure, in the theme of `charts`.

Try it: tests/view/test_charts.py
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plotly.graph_objects import Figure

from viz_engine.numbers import bytes_text
from viz_engine.view.charts import byte_axis, count_axis, drawn, layout
from viz_engine.view.theme import Palette, palette


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A named line of bytes over something. Styles: solid, dash, dot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str  # a field of Palette
    style: str = "solid"


def byte_curves(
    curves: Sequence[Curve],
    *,
    x_title: str,
    ceiling: tuple[str, float, bool] | None,
    here: tuple[str, float] | None,
    theme: str | None,
) -> Figure:
    """Bytes over a count, both logarithmic: a doubling is the same step everywhere. `ceiling` is a
    line: its name, its place, whether the choice fits under it. `here` is the chosen count."""
    colours = palette(theme)
    every = [y for curve in curves for y in curve.y if y > 0] or [1]
    every += [ceiling[1]] if ceiling else []
    low, high = min(every), max(every)
    left, right = min(curves[0].x), max(curves[0].x)
    marks = [_ceiling(*ceiling, colours)] if ceiling else []
    marks += [_here(*here, (left * right) ** 0.5, colours)] if here else []
    made = layout(
        colours,
        height=340,
        xaxis={
            "type": "log",
            "range": [math.log10(left), math.log10(right)],
            "title": {"text": x_title},
            **count_axis(left, right),
        },
        yaxis={
            "type": "log",
            "range": [math.log10(low) - 0.1, math.log10(high) + 0.25],
            **byte_axis(low, high),
        },
        hovermode="x unified",
        shapes=[shape for shape, _ in marks],
        annotations=[note for _, note in marks],
    )
    return drawn([_line(curve, colours) for curve in curves], made)


def _line(curve: Curve, colours: Palette) -> dict[str, object]:
    return {
        "type": "scatter",
        "x": list(curve.x),
        "y": list(curve.y),
        "name": curve.name,
        "mode": "lines",
        "line": {"color": getattr(colours, curve.colour), "width": 2.5, "dash": curve.style},
        "customdata": [bytes_text(y) for y in curve.y],
        "hovertemplate": "%{customdata}",
    }


def _ceiling(
    name: str, num_bytes: float, fits: bool, colours: Palette
) -> tuple[dict[str, object], dict[str, object]]:
    """A line over the whole width, and its words."""
    colour = colours.new if fits else colours.bad
    at = {"xref": "paper", "x0": 0, "x1": 1, "y0": num_bytes, "y1": num_bytes}
    shape = {"type": "line", **at, "line": {"color": colour, "width": 2}}
    text = f"{name} {bytes_text(num_bytes)}"
    return shape, _note(text, colour, x=0.01, y=math.log10(num_bytes), xref="paper")


def _here(
    name: str, count: float, middle: float, colours: Palette
) -> tuple[dict[str, object], dict[str, object]]:
    """A line from top to bottom, its words where the curves are not: they rise from the lower left
    to the upper right."""
    at = {"yref": "paper", "x0": count, "x1": count, "y0": 0, "y1": 1}
    shape = {"type": "line", **at, "line": {"color": colours.text, "width": 1, "dash": "dot"}}
    place = {"y": 0, "xanchor": "right"} if count > middle else {"y": 0.99, "yanchor": "top"}
    return shape, _note(name, colours.text, x=math.log10(count), yref="paper", **place)


def _note(text: str, colour: str, **place: object) -> dict[str, object]:
    font = {"size": 12, "color": colour}
    anchors = {"xanchor": "left", "yanchor": "bottom", "showarrow": False}
    return {"text": text, "font": font, **anchors, **place}


def bytes_over_time(
    lines: Sequence[Curve], *, x_title: str, y_title: str, theme: str | None
) -> Figure:
    """Bytes over seconds, both linear. A solid line holds until its next point, as memory does;
    a dotted one is a few readings, with a mark for each."""
    colours = palette(theme)
    high = max([1, *(y for line in lines for y in line.y)]) * 1.08
    traces = [
        {
            "type": "scatter",
            "x": list(line.x),
            "y": list(line.y),
            "name": line.name,
            "mode": "lines+markers" if line.style == "dot" else "lines",
            "line": {
                "color": getattr(colours, line.colour),
                "width": 2.5,
                "dash": line.style,
                "shape": "linear" if line.style == "dot" else "hv",
            },
            "marker": {"size": 9, "symbol": "diamond"},
            "customdata": [bytes_text(y) for y in line.y],
            "hovertemplate": "%{customdata}",
        }
        for line in lines
    ]
    made = layout(
        colours,
        height=320,
        xaxis={"title": {"text": x_title}, "ticksuffix": " s", "rangemode": "tozero"},
        yaxis={**byte_axis(0, high, log=False), "range": [0, high], "title": {"text": y_title}},
        hovermode="x unified",
    )
    return drawn(traces, made)
