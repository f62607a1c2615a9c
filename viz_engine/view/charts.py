"""What all pages' figures are made of: from plain data to Plotly's `Figure`.

A layout in the theme's colours, export buttons, axes of bytes and counts; then points and lines,
stacked bars. A figure gets its words from the page, so that it speaks its language. Only this
module and the `charts` of each page know Plotly.

Try it: `python -c "from viz_engine.view import charts; print(charts.byte_axis(1e6, 1e12))"`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st
from plotly.graph_objects import Figure

from viz_engine.numbers import BINARY, bytes_text, grouped, short_count, three
from viz_engine.view.theme import FONT, Palette, palette

# ---- layout, export, axes ------------------------------------------------------------------------


def faded(colour: str, share: float) -> str:
    """A colour `#rrggbb` with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


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


# ---- points, lines, stacks -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one name. `low` and `high` are the ends of an error bar; `hover` a text a point."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str  # a field of Palette
    line: str = ""  # solid, dash, dot; empty: no line
    width: float = 2
    marker: str = "circle"  # of Plotly's symbols; empty: none
    size: int = 9
    outline: float = 1.6  # of an open marker
    opacity: float = 1.0
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    hover: Sequence[str] | None = None
    template: str = ""  # in place of `hover`: Plotly's own, of the numbers in `data` too
    data: Sequence[float] | None = None
    fill: float = 0  # opacity of the area inside the line, which then has no hover
    right: bool = False  # on the second axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of a figure: its title, whether it is logarithmic, where its ticks stand."""

    title: str
    log: bool = False
    ticks: Sequence[float] | None = None
    range: tuple[float, float] | None = None
    decades: int = 1  # from tick to tick of a logarithmic axis
    exponent: str = "none"  # of Plotly's formats of large numbers: power

    def made(self) -> dict[str, object]:
        found: dict[str, object] = {"title": {"text": self.title}, "separatethousands": True}
        if self.log:
            found |= {"type": "log", "dtick": self.decades, "exponentformat": self.exponent}
        if self.ticks is not None:
            texts = [grouped(tick) for tick in self.ticks]
            found |= {"tickmode": "array", "tickvals": list(self.ticks), "ticktext": texts}
        if self.range is not None:
            ends = [math.log10(end) for end in self.range] if self.log else list(self.range)
            found["range"] = ends
        else:
            found |= {} if self.log else {"rangemode": "tozero"}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line at a value, with its words: at the top, or `y` of the height above the foot,
    where curves may run through them."""

    x: float
    text: str = ""
    colour: str = "muted"
    width: float = 1.2
    line: str = "dot"
    y: float | None = None
    side: str = "left"  # of the line, where the words stand


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A range of values over the whole width, its words on its upper edge at the right."""

    low: float
    high: float
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
    bands: Sequence[Band] = (),
    height: int = 400,
    top: int = 28,
    hovermode: str = "closest",
) -> Figure:
    """Points and lines over one another: all raw values stay visible behind their medians. `top`
    is the room for the legend."""
    colours = palette(theme)
    axes = {"xaxis": x.made(), "yaxis": y.made()}
    if right is not None:
        axes["yaxis2"] = _right(right, colours)
    drawn_bands = [_band(one, y.log, colours) for one in bands]
    drawn_marks = [_mark(one, i, x.log, colours) for i, one in enumerate(marks)]
    made = layout(
        colours,
        height=height,
        shapes=[shape for shape, _ in (*drawn_bands, *drawn_marks)],
        annotations=[words for _, words in (*drawn_bands, *drawn_marks) if words["text"]],
        hovermode=hovermode,
        separators=".\u202f",
        margin={"t": top},
        **axes,
    )
    return Figure({"data": [_trace(one, colours) for one in series], "layout": made})


def _right(axis: Axis, colours: Palette) -> dict[str, object]:
    """The second axis."""
    side = {"overlaying": "y", "side": "right", "showgrid": False, "automargin": True}
    if not axis.log:
        side["tickmode"] = "auto"  # Plotly would take the left axis's places
    muted = {"color": colours.muted}
    title = {"text": axis.title, "font": muted | {"size": 12}, "standoff": 8}
    return axis.made() | side | {"title": title, "tickfont": muted}


def _band(one: Band, log: bool, colours: Palette) -> tuple[dict[str, object], dict[str, object]]:
    """A band's shape and its words."""
    colour = getattr(colours, one.colour)
    shape = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": one.low, "y1": one.high}
    words = {
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "y": math.log10(one.high) if log else one.high,
        "yanchor": "bottom",
        "showarrow": False,
        "text": one.text,
        "font": {"color": colour, "size": 11},
    }
    return shape | {"fillcolor": faded(colour, 0.16), "line": {"width": 0}}, words


def _mark(
    one: Mark, i: int, log: bool, colours: Palette
) -> tuple[dict[str, object], dict[str, object]]:
    """A mark's line and its words; those at the top stand below one another."""
    colour = getattr(colours, one.colour)
    line = {"color": colour, "width": one.width, "dash": one.line}
    at = {"type": "line", "x0": one.x, "x1": one.x, "yref": "paper", "y0": 0, "y1": 1}
    words = {
        "x": math.log10(one.x) if log else one.x,
        "y": 0.98 - 0.08 * i if one.y is None else one.y,
        "yref": "paper",
        "text": one.text,
        "showarrow": False,
        "xanchor": "right" if one.side == "left" else "left",
        "font": {"size": 12 if one.y is None else 11, "color": colour},
    }
    if one.y is None:
        words["bgcolor"] = colours.background
    return at | {"line": line}, words


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
        "showlegend": True,
        "marker": {"color": colour, "size": one.size, "symbol": one.marker or "circle"},
        "line": {"color": colour, "width": one.width, "dash": one.line or "solid"},
        "hovertemplate": "%{text}<extra></extra>" if one.hover else one.template or None,
        "text": list(one.hover) if one.hover else None,
        "customdata": None if one.data is None else list(one.data),
    }
    if one.marker.endswith("open"):
        trace["marker"] |= {"line": {"width": one.outline, "color": colour}}
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
    if one.fill:
        fill = {"fill": "toself", "fillcolor": faded(colour, one.fill), "hoverinfo": "skip"}
        trace |= fill
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
