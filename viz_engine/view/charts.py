"""Plotly figures: functions from plain data to `go.Figure`. This one and those of
the pages are all that know Plotly.

The first part is shared by all pages: the colours of the live view, a layout, the export buttons,
axes for bytes and counts. A figure gets its words from the page, so that it speaks its language.

Try it: `python -c "from viz_engine.view import charts; print(charts.byte_axis(1e6, 1e12))"`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st
from plotly.graph_objects import Figure

from viz_engine.numbers import BINARY, bytes_text, grouped, short_count, three

# ---- shared: theme, layout, export, axes ---------------------------------------------------------

FONT = '"Source Sans", "Source Sans Pro", "Noto Sans CJK SC", "PingFang SC", sans-serif'


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """One theme's colours, those of assets/css/live_view.css with its mixes worked out."""

    background: str
    card: str
    text: str
    muted: str
    line: str
    track: str
    k: str
    v: str
    new: str
    decode: str
    read: str
    prefill: str
    bad: str


PALETTES = {
    "dark": Palette(
        background="#0e1117",
        card="#161a23",
        text="#e9ecf3",
        muted="#868c9b",
        line="#292e39",
        track="#1f232c",
        k="#6ea8fe",
        v="#f2a65a",
        new="#3ddc97",
        decode="#2f8f6b",
        read="#ffd166",
        prefill="#b18cff",
        bad="#ff8f8f",
    ),
    "light": Palette(
        background="#fbfbfd",
        card="#fefefe",
        text="#171a21",
        muted="#5f6779",
        line="#e1e3ea",
        track="#ecedf2",
        k="#1f5fd6",
        v="#b85c00",
        new="#00845a",
        decode="#6fbf9f",
        read="#b07a00",
        prefill="#6b3fd4",
        bad="#b3261e",
    ),
}


def palette(theme: str | None) -> Palette:
    """Colours of `dark` or `light` (`st.context.theme.type`); anything else is light."""
    return PALETTES.get(theme or "light", PALETTES["light"])


def layout(colours: Palette, *, height: int, **changes: object) -> dict[str, object]:
    """What every figure's layout begins with, `changes` over it.

    The background is the page's own colour and not transparent: an exported picture is readable
    wherever it is put. `uirevision` keeps a visitor's zoom and hidden series while data changes.
    """
    axis = {
        "gridcolor": colours.line,
        "linecolor": colours.line,
        "zerolinecolor": colours.line,
        "tickfont": {"color": colours.muted},
        "title": {"font": {"color": colours.muted, "size": 12}, "standoff": 8},
        "automargin": True,
    }
    made: dict[str, object] = {
        "height": height,
        "paper_bgcolor": colours.background,
        "plot_bgcolor": colours.background,
        "font": {"family": FONT, "size": 13, "color": colours.text},
        "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
        "hoverlabel": {
            "bgcolor": colours.card,
            "bordercolor": colours.line,
            "font": {"family": FONT, "color": colours.text},
        },
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "xanchor": "left"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colours.muted},
        "uirevision": "kept",
        "template": {},  # Plotly's own is 6 kB of JSON that all of this replaces
        "xaxis": axis,
        "yaxis": axis,
    }
    for name, change in changes.items():
        old = made.get(name)
        both = isinstance(old, Mapping) and isinstance(change, Mapping)
        made[name] = _merged(old, change) if both else change
    return made


def _merged(old: Mapping, change: Mapping) -> dict[str, object]:
    """`change` over `old`, mappings in them too."""
    both = {
        name: _merged(old[name], change[name])
        for name in old.keys() & change.keys()
        if isinstance(old[name], Mapping) and isinstance(change[name], Mapping)
    }
    return {**old, **change, **both}


def drawn(traces: Sequence[Mapping], made: Mapping) -> Figure:
    """A figure of whole dictionaries. Plotly's checks of them take seven times as long as all else
    (15 ms of 17, four bars), on every move of a slider: tests/view/test_charts.py makes them."""
    return Figure({"data": list(traces), "layout": dict(made)}, _validate=False)


def config(file_name: str, *, image: str = "png") -> dict[str, object]:
    """Plotly's `config=`: the button that saves the picture (`png` at double size, or `svg`),
    and nothing that a reader does not need."""
    return {
        "displaylogo": False,
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
        "toImageButtonOptions": {
            "format": image,
            "filename": file_name,
            "scale": 2 if image == "png" else 1,
        },
    }


def show(figure: Figure, name: str, alt: str, *, image: str) -> None:
    """A chart on a page, with the button that saves it as `image` and a text for who cannot see
    it."""
    settings = config(f"second-token-{name}", image=image)
    key = f"chart-{name}-{image}"  # a chart takes new buttons only as a new chart
    st.plotly_chart(figure, key=key, theme=None, config=settings, alt=alt)


def count_axis(low: float, high: float) -> dict[str, object]:
    """Ticks of a logarithmic axis of counts: powers of two, at most a dozen."""
    first, last = math.ceil(math.log2(max(low, 1))), math.floor(math.log2(max(high, 2)))
    every = max(1, math.ceil((last - first) / 11))
    values = [2**power for power in range(first, last + 1, every)]
    return {"tickvals": values, "ticktext": [short_count(value) for value in values]}


def byte_axis(low: float, high: float, *, log: bool = True) -> dict[str, object]:
    """Tick places and texts of an axis of bytes from `low` to `high`, in KiB, MiB, GiB, TiB."""
    if not log:  # in one unit, so that the ticks can be compared at a glance
        name, unit = next((one for one in BINARY if high >= one[1]), ("B", 1))
        step = _nice_step(high / unit / 6)
        values = [step * i for i in range(int(high / unit / step) + 1)]
        texts = [f"{three(value)} {name}" if value else "0 B" for value in values]
        return {"tickvals": [value * unit for value in values], "ticktext": texts}
    else:
        first, last = math.floor(math.log2(max(low, 1))), math.ceil(math.log2(max(high, 2)))
        every = max(1, round((last - first) / 6))
        values = [2.0**power for power in range(first, last + 1, every)]
    return {"tickvals": values, "ticktext": [bytes_text(value) for value in values]}


def _nice_step(size: float) -> float:
    """The next of 0.1, 0.2, 0.5, 1, 2, 5, 10 ... that is at least `size`."""
    ten = 10.0 ** math.floor(math.log10(size))
    return next(ten * n for n in (1, 2, 5, 10, 20) if ten * n >= size)


# ---- points, lines, stacks, the roofline --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one name. `low` and `high` are the ends of an error bar; `hover` a text a point."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str  # a field of Palette
    line: str = ""  # solid, dash, dot; empty: no line
    marker: str = "circle"  # of Plotly's symbols; empty: none
    size: int = 9
    opacity: float = 1.0
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    hover: Sequence[str] | None = None
    legend: bool = True
    right: bool = False  # on the second axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of a figure: its title, whether it is logarithmic, where its ticks stand."""

    title: str
    log: bool = False
    ticks: Sequence[float] | None = None
    texts: Sequence[str] | None = None
    range: tuple[float, float] | None = None
    suffix: str = ""

    def made(self) -> dict[str, object]:
        found: dict[str, object] = {"title": {"text": self.title}, "separatethousands": True}
        if self.log:
            found |= {"type": "log", "dtick": 1, "exponentformat": "none"}
        if self.ticks is not None:
            texts = self.texts or [grouped(tick) for tick in self.ticks]
            found |= {"tickmode": "array", "tickvals": list(self.ticks), "ticktext": list(texts)}
        if self.range is not None:
            ends = [math.log10(end) for end in self.range] if self.log else list(self.range)
            found["range"] = ends
        else:
            found |= {} if self.log else {"rangemode": "tozero"}
        if self.suffix:
            found["ticksuffix"] = self.suffix
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line at a value, with its words."""

    x: float
    text: str
    colour: str = "muted"


def xy(
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    theme: str | None,
    right: Axis | None = None,
    marks: Sequence[Mark] = (),
    height: int = 400,
) -> Figure:
    """Points and lines over one another: all raw values stay visible behind their medians."""
    colours = palette(theme)
    changes: dict[str, object] = {"xaxis": x.made(), "yaxis": y.made(), "hovermode": "closest"}
    changes["separators"] = ".\u202f"
    if right is not None:
        side = {"overlaying": "y", "side": "right", "showgrid": False, "automargin": True}
        side["tickmode"] = "auto"  # Plotly would take the left axis's places
        muted = {"color": colours.muted}
        title = {"text": right.title, "font": muted | {"size": 12}, "standoff": 8}
        changes["yaxis2"] = right.made() | side | {"title": title, "tickfont": muted}
    shapes, notes = [], []
    for i, mark in enumerate(marks):
        colour = getattr(colours, mark.colour)
        at = {"type": "line", "x0": mark.x, "x1": mark.x, "yref": "paper", "y0": 0, "y1": 1}
        shapes.append(at | {"line": {"color": colour, "width": 1.2, "dash": "dot"}})
        notes.append(
            {
                "x": math.log10(mark.x) if x.log else mark.x,
                "y": 0.98 - 0.08 * i,
                "yref": "paper",
                "text": mark.text,
                "showarrow": False,
                "xanchor": "right",
                "font": {"size": 12, "color": colour},
                "bgcolor": colours.background,
            }
        )
    made = layout(colours, height=height, shapes=shapes, annotations=notes, **changes)
    return Figure({"data": [_trace(one, colours) for one in series], "layout": made})


def _trace(one: Series, colours: Palette) -> dict[str, object]:
    colour = getattr(colours, one.colour)
    mode = "+".join(word for word, on in (("lines", one.line), ("markers", one.marker)) if on)
    trace: dict[str, object] = {
        "type": "scatter",
        "name": one.name,
        "x": list(one.x),
        "y": list(one.y),
        "mode": mode,
        "opacity": one.opacity,
        "showlegend": one.legend,
        "marker": {"color": colour, "size": one.size, "symbol": one.marker or "circle"},
        "line": {"color": colour, "width": 2, "dash": one.line or "solid"},
        "hovertemplate": "%{text}<extra></extra>" if one.hover else None,
        "text": list(one.hover) if one.hover else None,
    }
    if one.marker.endswith("open"):
        trace["marker"] |= {"line": {"width": 1.6, "color": colour}}
    if one.low is not None and one.high is not None:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [high - y for high, y in zip(one.high, one.y, strict=True)],
            "arrayminus": [y - low for low, y in zip(one.low, one.y, strict=True)],
            "color": colour,
            "thickness": 1.4,
            "width": 5,
        }
    if one.right:
        trace["yaxis"] = "y2"
    return {name: value for name, value in trace.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One part of stacked bars."""

    name: str
    values: Sequence[float]
    colour: str
    pattern: str = ""  # of Plotly's shapes, so that no colour stands alone


def stacks(
    labels: Sequence[str],
    layers: Sequence[Layer],
    *,
    x_title: str,
    y_title: str,
    unit: str,
    theme: str | None,
    whole: Series | None = None,
    height: int = 400,
) -> Figure:
    """Bars of parts, one a label, and the measured whole as a mark over each."""
    colours = palette(theme)
    traces: list[dict[str, object]] = []
    for one in layers:
        colour = getattr(colours, one.colour)
        traces.append(
            {
                "type": "bar",
                "name": one.name,
                "x": list(labels),
                "y": list(one.values),
                "marker": {
                    "color": colours.track if one.pattern else colour,
                    "line": {"color": colour, "width": 1},
                    "pattern": {"shape": one.pattern, "fgcolor": colour, "fgopacity": 0.6},
                },
                "hovertemplate": f"%{{fullData.name}}: %{{y:.3~g}} {unit}<extra></extra>",
            }
        )
    if whole is not None:
        traces.append(_trace(whole, colours) | {"x": list(labels)})
    lows = [value for one in layers for value in one.values]
    made = layout(
        colours,
        height=height,
        barmode="relative",
        bargap=0.45,
        hovermode="closest",
        xaxis={"title": {"text": x_title}, "type": "category", "showgrid": False},
        yaxis={"title": {"text": y_title}, "separatethousands": True}
        | ({"rangemode": "tozero"} if min(lows, default=0) >= 0 else {}),
        separators=".\u202f",
    )
    return Figure({"data": traces, "layout": made})


def roofline(
    dots: Sequence[Series],
    *,
    bandwidth: float,
    roofs: Mapping[str, float],
    top: float,
    names: Mapping[str, str],
    theme: str | None,
    height: int = 460,
) -> Figure:
    """FLOP/s over FLOPs a byte, both logarithmic: the slope is the bandwidth, each flat roof a
    rate: `top`, under which the dots stand, drawn whole, the others dashed. `names` says axes and
    slope in the page's language."""
    xs = [value for one in dots for value in one.x] or [1.0]
    ridge = top / bandwidth
    left, right = min(*xs, ridge) / 3, max(*xs, ridge) * 4
    lines = []
    for name, rate in sorted(roofs.items(), key=lambda roof: -roof[1]):
        corner = rate / bandwidth
        lines.append(
            Series(
                name=name,
                x=[left, corner, right],
                y=[left * bandwidth / 1e9, rate / 1e9, rate / 1e9],
                colour="text" if rate == top else "muted",
                line="solid" if rate == top else "dash",
                marker="",
            )
        )
    ys = [value for one in dots for value in one.y] or [1.0]
    high, low = max(*roofs.values(), 1) / 1e9 * 2.5, min(*ys, left * bandwidth / 1e9)
    return xy(
        [*lines, *dots],
        x=Axis(title=names["x"], log=True, range=(left, right)),
        y=Axis(title=names["y"], log=True, range=(low / 1.5, high)),
        theme=theme,
        marks=[Mark(x=ridge, text=names["ridge"])],
        height=height,
    )
