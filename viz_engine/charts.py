"""Plotly figures: functions from plain data to `go.Figure`. The only module that knows Plotly.

The first part is shared by all pages: the colours of the live view, a layout, the export buttons,
axes for bytes and counts. A figure gets its words from the page, so that it speaks its language.

Try it: `python -c "from viz_engine import charts; print(charts.byte_axis(1e6, 1e12))"`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

# ---- shared: theme, layout, export, axes ---------------------------------------------------------

FONT = '"Source Sans", "Source Sans Pro", "Noto Sans CJK SC", "PingFang SC", sans-serif'


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """One theme's colours, those of assets/live_view.css with its mixes worked out."""

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


def grouped(number: float) -> str:
    """A count with narrow spaces: 131 072."""
    return f"{number:,.0f}".replace(",", "\u202f")


def short_count(number: float) -> str:
    """A count as an axis shows it: whole binary thousands as 4K, 128K, 1M, others as grouped."""
    for unit, size in (("M", 2**20), ("K", 2**10)):
        if number >= size and number % size == 0:
            return f"{number // size:.0f}{unit}"
    return grouped(number)


def byte_axis(low: float, high: float, *, log: bool = True) -> dict[str, object]:
    """Tick places and texts of an axis of bytes from `low` to `high`, in KiB, MiB, GiB, TiB."""
    if not log:
        step = _nice_step(high / 6)
        values = [step * i for i in range(int(high / step) + 1)]
    else:
        first, last = math.floor(math.log2(max(low, 1))), math.ceil(math.log2(max(high, 2)))
        every = max(1, round((last - first) / 6))
        values = [2.0**power for power in range(first, last + 1, every)]
    return {"tickvals": values, "ticktext": [bytes_text(value) for value in values]}


def _nice_step(size: float) -> float:
    """The next of 1, 2, 5, 10 ... binary units that is at least `size` bytes."""
    unit = 1024 ** max(0, math.floor(math.log(max(size, 1), 1024)))
    ten = 10 ** math.floor(math.log10(max(size / unit, 1)))
    return next(unit * ten * n for n in (1, 2, 5, 10, 20) if unit * ten * n >= size)


def bytes_text(num_bytes: float) -> str:
    """A tick of bytes without needless digits: 512 KiB, 1.5 GiB, 16 TiB."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"


# ---- the race ------------------------------------------------------------------------------------


def race_growth(
    lanes: Mapping[str, Sequence[tuple[int, int, int]]],
    crossings: Mapping[str, float],
    measured: Mapping[str, Sequence[tuple[int, float]]],
    words: Mapping[str, str],
    colours: Palette,
) -> go.Figure:
    """FLOPs against tokens, both axes logarithmic: of each lane (`none`, `full`) points (tokens,
    linear layers, attention), the parts dashed and dotted, their crossing marked. `measured` holds
    (tokens, seconds), on an axis of their own."""
    figure = go.Figure()
    own = {"none": colours.prefill, "full": colours.new}
    for lane, points in lanes.items():
        xs = [n for n, _, _ in points]
        parts = (
            ("total", [a + b for _, a, b in points], "solid", 2.5),
            ("linear", [a for _, a, _ in points], "dash", 1.3),
            ("attention", [b for _, _, b in points], "dot", 1.3),
        )
        for part, ys, dash, width in parts:
            figure.add_scatter(
                x=xs,
                y=ys,
                name=f"{words[lane]}: {words[part]}",
                mode="lines+markers" if part == "total" else "lines",
                line={"color": own[lane], "dash": dash, "width": width},
                marker={"size": 6},
                hovertemplate=f"%{{x}} {words['tokens']}<br>%{{y:.3s}}FLOP",
            )
        if lane in crossings and xs[0] <= crossings[lane] <= xs[-1]:
            at = crossings[lane]
            low = lane == "full"
            figure.add_vline(x=at, line={"color": own[lane], "width": 1, "dash": "dot"})
            figure.add_annotation(  # on a logarithmic axis a place is a logarithm
                x=math.log10(at),
                xanchor="right",
                yref="paper",
                y=0.02 if low else 0.1,
                showarrow=False,
                text=f"{words['crossing']} {grouped(at)} ",
                font={"color": own[lane], "size": 11},
            )
    for lane, points in measured.items():
        figure.add_scatter(
            x=[n for n, _ in points],
            y=[s for _, s in points],
            name=f"{words[lane]}: {words['time']}",
            mode="markers",
            yaxis="y2",
            marker={"color": own[lane], "symbol": "x", "size": 7},
            hovertemplate=f"%{{x}} {words['tokens']}<br>%{{y:.3g}} s",
        )
    made = layout(
        colours,
        height=430,
        xaxis={"type": "log", "title": {"text": words["x"]}, "dtick": "D1"},
        yaxis={
            "type": "log",
            "title": {"text": words["y"]},
            "exponentformat": "power",
            "dtick": 2,
        },
        yaxis2={
            "type": "log",
            "overlaying": "y",
            "side": "right",
            "title": {"text": words["y2"], "font": {"color": colours.muted, "size": 12}},
            "tickfont": {"color": colours.muted},
            "showgrid": False,
            "exponentformat": "power",
            "dtick": 1,
        },
        margin={"t": 76},
    )
    xs = sorted({n for points in lanes.values() for n, _, _ in points})
    made["xaxis"] |= {"tickvals": xs, "ticktext": [grouped(n) for n in xs]}
    made["xaxis"].pop("dtick")
    figure.update_layout(**made)
    return figure


def race_gap(
    gaps: Sequence[float],
    margins: Sequence[float],
    first_difference: int | None,
    words: Mapping[str, str],
    colours: Palette,
) -> go.Figure:
    """The largest logit gap of each token, and how far the chosen token is ahead; logarithmic.
    Gaps of exactly 0 stand at the foot, hollow."""
    figure = go.Figure()
    xs = list(range(1, len(gaps) + 1))
    positive = [value for value in (*gaps, *margins) if value > 0]
    foot = 10.0 ** (math.floor(math.log10(min(positive))) - 0.5) if positive else 1e-6
    figure.add_scatter(
        x=xs,
        y=[max(value, foot) for value in margins],
        name=words["margin"],
        mode="lines+markers",
        line={"color": colours.muted, "width": 1.3},
        marker={"size": 4},
        customdata=margins,
        hovertemplate="%{customdata:.3g}",
    )
    figure.add_scatter(
        x=xs,
        y=[max(value, foot) for value in gaps],
        name=words["gap"],
        mode="markers",
        marker={
            "color": colours.new,
            "size": 8,
            "symbol": ["circle" if value > 0 else "circle-open" for value in gaps],
        },
        customdata=gaps,
        hovertemplate="%{customdata:.3g}",
    )
    if first_difference is not None:
        figure.add_vline(
            x=first_difference + 1,
            line={"color": colours.bad, "width": 2},
            annotation={"text": words["differs"], "font": {"color": colours.bad}},
        )
    figure.update_layout(
        **layout(
            colours,
            height=330,
            xaxis={"title": {"text": words["x"]}, "rangemode": "tozero"},
            yaxis={
                "type": "log",
                "title": {"text": words["y"]},
                "exponentformat": "power",
                "dtick": 1,
            },
            hovermode="x unified",
        )
    )
    return figure


def race_gain(
    ratios: Sequence[tuple[float, float, float]],
    flop_ratios: Sequence[float | None],
    no_gain: float,
    gain_from: int | None,
    words: Mapping[str, str],
    colours: Palette,
) -> go.Figure:
    """How many times as long it takes without a cache, against tokens written: (low, median, high)
    over the repeats, the ratio of FLOPs above it, and the band where there is no gain."""
    figure = go.Figure()
    xs = list(range(1, len(ratios) + 1))
    figure.add_scatter(
        x=[*xs, *reversed(xs)],
        y=[high for _, _, high in ratios] + [low for low, _, _ in reversed(ratios)],
        fill="toself",
        fillcolor=_faded(colours.new, 0.18),
        line={"width": 0},
        name=words["spread"],
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=xs,
        y=[median for _, median, _ in ratios],
        name=words["time"],
        mode="lines+markers",
        line={"color": colours.new, "width": 2.5},
        marker={"size": 5},
        hovertemplate="%{y:.2f} ×",
    )
    if None not in flop_ratios:
        figure.add_scatter(
            x=xs,
            y=flop_ratios,
            name=words["flops"],
            mode="lines",
            line={"color": colours.prefill, "dash": "dash", "width": 1.5},
            hovertemplate="%{y:.2f} ×",
        )
    figure.add_hrect(
        y0=min(0.8, *(low for low, _, _ in ratios)),
        y1=no_gain,
        fillcolor=_faded(colours.muted, 0.16),
        line={"width": 0},
    )
    figure.add_annotation(  # on a logarithmic axis a place is a logarithm
        xref="paper",
        x=1,
        xanchor="right",
        y=math.log10(no_gain),
        yanchor="bottom",
        showarrow=False,
        text=words["no_gain"],
        font={"color": colours.muted, "size": 11},
    )
    if gain_from is not None:
        figure.add_vline(x=gain_from, line={"color": colours.read, "width": 1.5, "dash": "dot"})
    figure.update_layout(
        **layout(
            colours,
            height=330,
            xaxis={"title": {"text": words["x"]}, "rangemode": "tozero"},
            yaxis={
                "type": "log",
                "title": {"text": words["y"]},
                "ticksuffix": " ×",
                "tickvals": [n * ten for ten in (1, 10, 100, 1000) for n in (1, 2, 5)],
            },
            hovermode="x unified",
        )
    )
    return figure


def race_ttft(
    lanes: Mapping[str, tuple[float, float, float]], words: Mapping[str, str], colours: Palette
) -> go.Figure:
    """Seconds to the first token of each lane: (low, median, high) over the repeats."""
    own = {"none": colours.prefill, "full": colours.new}
    figure = go.Figure()
    for lane, (low, median, high) in lanes.items():
        figure.add_bar(
            y=[words[lane]],
            x=[median],
            orientation="h",
            marker={"color": own[lane]},
            text=[f"{median:.3g} s"],
            textposition="inside",
            insidetextanchor="start",
            error_x={"array": [high - median], "arrayminus": [median - low], "color": colours.text},
            showlegend=False,
            hovertemplate=f"{low:.3g} – {high:.3g} s",
        )
    figure.update_layout(
        **layout(
            colours,
            height=330,
            xaxis={"title": {"text": words["x"]}, "rangemode": "tozero"},
            yaxis={"autorange": "reversed"},
            bargap=0.45,
        )
    )
    return figure


def race_attention(
    panels: Sequence[tuple[str, int, Sequence[Sequence[float | None]]]],
    texts: Sequence[str],
    words: Mapping[str, str],
    colours: Palette,
) -> go.Figure:
    """Attention weights, four panels (title, first query, rows): query rows down, key rows to the
    right. Shades follow the square root, so that small weights show; None is not computed."""
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[title for title, _, _ in panels],
        horizontal_spacing=0.06,
        vertical_spacing=0.16,
    )
    scale = [[0, colours.track], [0.35, colours.k], [1, colours.text]]
    width = max((len(row) for _, _, rows in panels for row in rows), default=1)
    names = _positions(texts)
    for at, (_, first, rows) in enumerate(panels):
        figure.add_heatmap(
            z=[[None if w is None else math.sqrt(w) for w in row] for row in rows],
            x=names[: max((len(row) for row in rows), default=0)],
            y=names[first : first + len(rows)],
            customdata=rows,
            zmin=0,
            zmax=1,
            colorscale=scale,
            showscale=False,
            xgap=1 if width < 120 else 0,
            ygap=1,
            hovertemplate=f"{words['query']} %{{y}}<br>{words['key']} %{{x}}<br>%{{customdata:.4f}}"
            "<extra></extra>",
            row=at // 2 + 1,
            col=at % 2 + 1,
        )
        last = max((i for i, row in enumerate(rows) if row[0] is not None), default=None)
        if last is not None:  # the row that is needed
            figure.add_hrect(
                y0=last - 0.5,
                y1=last + 0.5,
                line={"color": colours.new, "width": 1.5},
                row=at // 2 + 1,
                col=at % 2 + 1,
            )
    figure.update_layout(**layout(colours, height=500))
    bare = {"gridcolor": "rgba(0,0,0,0)", "showticklabels": False, "ticks": ""}
    figure.update_yaxes(autorange="reversed", **bare)
    figure.update_xaxes(range=[-0.5, width - 0.5], **bare)
    figure.update_annotations(font={"size": 13, "color": colours.text})
    return figure


def race_prefix(
    changes: Sequence[Sequence[float]],
    texts: Sequence[str],
    words: Mapping[str, str],
    colours: Palette,
) -> go.Figure:
    """How far the key of each row moved, `[rows, layers]` as a share of its length; logarithmic.
    A key that is the same to the bit has the colour of the page."""
    shown = [[math.log10(max(value, 1e-3)) if value else None for value in row] for row in changes]
    figure = go.Figure(
        go.Heatmap(
            z=shown,
            customdata=changes,
            y=_positions(texts)[: len(changes)],
            zmin=-3,
            zmax=0.3,
            colorscale=[[0, colours.track], [0.6, colours.read], [1, colours.bad]],
            colorbar={
                "tickvals": [-3, -2, -1, 0],
                "ticktext": ["≤ 0.1 %", "1 %", "10 %", "100 %"],
                "title": {"text": words["moved"], "side": "right"},
                "thickness": 12,
            },
            hovertemplate=f"{words['row']} %{{y}}<br>{words['layer']} %{{x}}<br>"
            "%{customdata:.1%}<extra></extra>",
        )
    )
    figure.update_layout(
        **layout(
            colours,
            height=560,
            xaxis={"title": {"text": words["layer"]}, "dtick": 2, "side": "top"},
            yaxis={"autorange": "reversed", "title": {"text": words["row"]}, "nticks": 12},
        )
    )
    return figure


def _positions(texts: Sequence[str]) -> list[str]:
    """Tokens with their positions, as labels. Plotly reads markup in labels: here it is text."""
    return [f"{i} “{escape(text, quote=False)}”" for i, text in enumerate(texts)]


def _faded(colour: str, share: float) -> str:
    """A colour `#rrggbb` with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"
