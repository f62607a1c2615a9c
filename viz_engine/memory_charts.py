"""The memory page's figures: a bar of parts against a ceiling, curves of bytes.

Functions from plain data to a figure, in the theme of `charts`.

Try it: tests/test_charts.py
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plotly.graph_objects import Figure

from viz_engine.charts import (
    byte_axis,
    bytes_text,
    count_axis,
    drawn,
    layout,
    palette,
)

# Of each part of a bar: the palette's colour and a pattern, so that no colour stands alone.
PARTS = {
    "weights": ("muted", ""),
    "activations": ("prefill", "/"),
    "k": ("k", ""),
    "v": ("v", "\\"),
    "latent": ("k", "-"),
    "state": ("read", "x"),
    "overhead": ("muted", "."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One choice of model and settings: bytes of each part on one device, and what it holds."""

    label: str
    parts: Mapping[str, int]  # of PARTS
    ceiling_bytes: int | None
    is_partial: bool = False  # a part is not known: there is more than these
    spread_bytes: tuple[int, int] = (0, 0)  # what the estimated parts may be less, and more


def memory_bars(bars: Sequence[Bar], names: Mapping[str, str], *, theme: str | None) -> Figure:
    """Stacked bars, one for each choice, each against its device's memory (a thick line).

    `names` says each part and `ceiling` in the page's language. The total stands at the end, the
    spread of the estimates under the bar.
    """
    colours = palette(theme)
    rows = [bar.label + "\u200b" * i for i, bar in enumerate(bars)]  # equal labels, own rows
    totals = [sum(bar.parts.values()) for bar in bars]
    ends = [total + bar.spread_bytes[1] for bar, total in zip(bars, totals, strict=True)]
    longest = max([*ends, *(bar.ceiling_bytes or 0 for bar in bars), 1])
    traces = []
    for part, (colour, pattern) in PARTS.items():
        values = [bar.parts.get(part, 0) for bar in bars]
        if not any(values):
            continue
        shown = getattr(colours, colour)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": names[part],
                "y": rows,
                "x": values,
                "text": [bytes_text(value) if value > longest * 0.09 else "" for value in values],
                "textposition": "inside",
                "insidetextanchor": "start",
                "textangle": 0,
                "textfont": {"color": colours.background},
                "marker": {
                    "color": shown,
                    "line": {"color": colours.background, "width": 1},
                    "pattern": {
                        "shape": pattern,
                        "bgcolor": shown,
                        "fgcolor": colours.background,
                        "fgopacity": 0.4,
                        "solidity": 0.16,
                        "size": 7,
                    },
                },
                "customdata": [bytes_text(value) for value in values],
                "hovertemplate": "%{fullData.name}: %{customdata}<extra></extra>",
            }
        )
    less, more = ([bar.spread_bytes[i] for bar in bars] for i in (0, 1))
    end = {"type": "scatter", "y": rows, "hoverinfo": "skip", "showlegend": False}
    traces.append(
        end
        | {
            "yaxis": "y2",
            "y": [i + 0.34 for i in range(len(bars))],  # under the bar, clear of its labels
            "x": totals,
            "mode": "markers",
            "marker": {"size": 1, "color": colours.text},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "arrayminus": less,
                "array": more,
                "color": colours.text,
                "thickness": 1.4,
                "width": 5,
            },
        }
    )
    traces.append(
        end
        | {
            "x": [
                _clear_of(end, bar.ceiling_bytes, longest)
                for end, bar in zip(ends, bars, strict=True)
            ],
            "mode": "text",
            "text": [
                f"  <b>{'&gt; ' * bar.is_partial}{bytes_text(total)}</b>"
                for bar, total in zip(bars, totals, strict=True)
            ],
            "textposition": "middle right",
            "cliponaxis": False,
        }
    )
    shapes, notes = [], []
    for i, (bar, total) in enumerate(zip(bars, totals, strict=True)):
        if bar.ceiling_bytes is None:
            continue
        edge = bar.ceiling_bytes
        colour = colours.bad if total > edge else colours.new
        at = {"x0": edge, "x1": edge, "y0": i - 0.3, "y1": i + 0.42}
        shapes.append({"type": "line", **at, "line": {"color": colour, "width": 3}})
        notes.append(
            {
                "x": edge,
                "y": i - 0.29,
                "yanchor": "bottom",
                "xanchor": "right" if edge > longest / 2 else "left",
                "showarrow": False,
                "text": f"{names['ceiling']} {bytes_text(edge)}",
                "font": {"size": 12, "color": colour},
            }
        )
    places = [len(bars) - 0.4, -0.75]
    made = layout(
        colours,
        height=104 + 70 * len(bars),
        barmode="stack",
        bargap=0.5,
        xaxis={**byte_axis(0, longest * 1.14, log=False), "range": [0, longest * 1.14]},
        yaxis={
            "range": places,
            "tickfont": {"color": colours.text, "size": 13},
            "showgrid": False,
        },
        yaxis2={"overlaying": "y", "range": places, "visible": False},
        # Below, where the buttons that appear on hover do not cover it.
        legend={"traceorder": "normal", "yref": "container", "y": 0, "yanchor": "bottom"},
        hovermode="closest",
        shapes=shapes,
        annotations=notes,
    )
    return drawn(traces, made)


def _clear_of(end: int, ceiling: int | None, longest: int) -> float:
    """Where the text of a total begins: at the end of its bar, or past a ceiling that would cross
    it out."""
    return ceiling if ceiling is not None and end <= ceiling < end + 0.17 * longest else end


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
    traces = [
        {
            "type": "scatter",
            "x": list(curve.x),
            "y": list(curve.y),
            "name": curve.name,
            "mode": "lines",
            "line": {"color": getattr(colours, curve.colour), "width": 2.5, "dash": curve.style},
            "customdata": [bytes_text(y) for y in curve.y],
            "hovertemplate": "%{customdata}",
        }
        for curve in curves
    ]
    shapes, notes = [], []
    if ceiling:
        colour = colours.new if ceiling[2] else colours.bad
        line = {"color": colour, "width": 2}
        at = {"xref": "paper", "x0": 0, "x1": 1, "y0": ceiling[1], "y1": ceiling[1]}
        shapes.append({"type": "line", **at, "line": line})
        text = f"{ceiling[0]} {bytes_text(ceiling[1])}"
        notes.append(_note(text, colour, x=0.01, y=math.log10(ceiling[1]), xref="paper"))
    if here:
        line = {"color": colours.text, "width": 1, "dash": "dot"}
        at = {"yref": "paper", "x0": here[1], "x1": here[1], "y0": 0, "y1": 1}
        shapes.append({"type": "line", **at, "line": line})
        # Where the curves are not: they rise from the lower left to the upper right.
        place = {"y": 0.99, "yanchor": "top"}
        if here[1] > (left * right) ** 0.5:
            place = {"y": 0, "xanchor": "right"}
        notes.append(_note(here[0], colours.text, x=math.log10(here[1]), yref="paper", **place))
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
        shapes=shapes,
        annotations=notes,
    )
    return drawn(traces, made)


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
