"""The race page's figures: how work grows, what each step gains, gaps, attention rows.

Functions from plain data to a figure, in the theme of `charts`.

Try it: tests/view/test_race_charts.py
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from plotly.graph_objects import Figure, Heatmap
from plotly.subplots import make_subplots

from viz_engine.numbers import grouped
from viz_engine.view.charts import Palette, layout


def race_growth(
    lanes: Mapping[str, Sequence[tuple[int, int, int]]],
    crossings: Mapping[str, float],
    measured: Mapping[str, Sequence[tuple[int, float]]],
    words: Mapping[str, str],
    colours: Palette,
) -> Figure:
    """FLOPs against tokens, both axes logarithmic: of each lane (`none`, `full`) points (tokens,
    linear layers, attention), the parts dashed and dotted, their crossing marked. `measured` holds
    (tokens, seconds), on an axis of their own."""
    figure = Figure()
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
            "title": {
                "text": words["y2"],
                "font": {"color": colours.muted, "size": 12},
                "standoff": 8,
            },
            "automargin": True,
            "tickfont": {"color": colours.muted},
            "showgrid": False,
            "exponentformat": "power",
            "dtick": 1,
        },
        margin={"t": 76},
    )
    xs = sorted({n for points in lanes.values() for n, _, _ in points})
    first = min((n for points in measured.values() for n, _ in points), default=xs[0])
    xs = [n for n in (1, 4, 16) if first <= n < xs[0]] + xs
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
) -> Figure:
    """The largest logit gap of each token, and how far the chosen token is ahead; logarithmic.
    Gaps of exactly 0 stand at the foot, hollow."""
    figure = Figure()
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
    for name, symbol, there in (
        ("gap", "circle", [value if value > 0 else None for value in gaps]),
        ("zero", "circle-open", [None if value > 0 else foot for value in gaps]),
    ):
        if any(value is not None for value in there):
            figure.add_scatter(
                x=xs,
                y=there,
                name=words[name],
                mode="markers",
                marker={"color": colours.new, "size": 8, "symbol": symbol},
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
) -> Figure:
    """How many times as long it takes without a cache, against tokens written: (low, median, high)
    over the repeats, the ratio of FLOPs above it, and the band where there is no gain."""
    figure = Figure()
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
) -> Figure:
    """Seconds to the first token of each lane: (low, median, high) over the repeats."""
    own = {"none": colours.prefill, "full": colours.new}
    figure = Figure()
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
) -> Figure:
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
) -> Figure:
    """How far the key of each row moved, `[rows, layers]` as a share of its length; logarithmic.
    A key that is the same to the bit has the colour of the page."""
    shown = [[math.log10(max(value, 1e-3)) if value else None for value in row] for row in changes]
    figure = Figure(
        Heatmap(
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
