"""The race page's figures: how work grows, what each step gains, gaps, attention rows.

Functions from plain data to Plotly, in words that `say` gives and the theme of `charts`. What is
said of the cost of both lanes together is given by cache: `none`, `full`.

Try it: tests/view/test_race_charts.py
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from plotly.subplots import make_subplots

from viz_engine.analysis.growth import Growth
from viz_engine.analysis.race import AttentionRows, Spread
from viz_engine.numbers import grouped
from viz_engine.text import Say
from viz_engine.view import charts
from viz_engine.view.charts import Axis, Band, Mark, Series
from viz_engine.view.theme import palette

LANES = {"none": "prefill", "full": "new"}  # a lane's colour
RATIOS = [n * ten for ten in (1, 10, 100, 1000) for n in (1, 2, 5)]  # ticks
BARE = {"gridcolor": "rgba(0,0,0,0)", "showticklabels": False, "ticks": ""}


def growth_chart(
    lanes: Mapping[str, Sequence[Growth]],
    crossings: Mapping[str, float],
    measured: Mapping[str, Sequence[tuple[int, float]]],
    say: Say,
    theme: str | None,
) -> charts.Figure:
    """FLOPs against tokens, both axes logarithmic: the parts of each lane dashed and dotted, their
    crossing marked. `measured` holds (tokens, seconds), on an axis of their own."""
    tokens = say("race.figure.tokens")
    series, marks = [], []
    for lane, points in lanes.items():
        series += _work(lane, points, say)
        at = crossings.get(lane, 0)
        if points[0].num_tokens <= at <= points[-1].num_tokens:
            text = f"{say('race.figure.crossing')} {grouped(at)} "
            foot = 0.02 if lane == "full" else 0.1
            marks.append(Mark(x=at, text=text, colour=LANES[lane], width=1, y=foot))
    for lane, points in measured.items():
        series.append(
            Series(
                name=f"{say(f'race.lane.{lane}')}: {say('race.figure.time_measured')}",
                x=[n for n, _ in points],
                y=[seconds for _, seconds in points],
                colour=LANES[lane],
                marker="x",
                size=7,
                template=f"%{{x}} {tokens}<br>%{{y:.3g}} s",
                right=True,
            )
        )
    xs = sorted({one.num_tokens for points in lanes.values() for one in points})
    first = min((n for points in measured.values() for n, _ in points), default=xs[0])
    xs = [n for n in (1, 4, 16) if first <= n < xs[0]] + xs
    return charts.xy(
        series,
        x=Axis(title=say("race.figure.written"), log=True, ticks=xs),
        y=Axis(title=say("race.figure.flops_axis"), log=True, decades=2, exponent="power"),
        right=Axis(title=say("race.figure.seconds"), log=True, exponent="power"),
        marks=marks,
        theme=theme,
        height=430,
        top=76,
    )


def _work(lane: str, points: Sequence[Growth], say: Say) -> list[Series]:
    """FLOPs of a lane: all of them, and those of each part."""
    return [
        Series(
            name=f"{say(f'race.lane.{lane}')}: {say(f'race.figure.{part}')}",
            x=[one.num_tokens for one in points],
            y=flops,
            colour=LANES[lane],
            line=line,
            width=width,
            marker=marker,
            size=6,
            template=f"%{{x}} {say('race.figure.tokens')}<br>%{{y:.3s}}FLOP",
        )
        for part, flops, line, width, marker in (
            ("total", [one.flops for one in points], "solid", 2.5, "circle"),
            ("linear", [one.linear for one in points], "dash", 1.3, ""),
            ("attention", [one.attention for one in points], "dot", 1.3, ""),
        )
    ]


def gap_chart(
    gaps: Sequence[float],
    margins: Sequence[float],
    first_difference: int | None,
    say: Say,
    theme: str | None,
) -> charts.Figure:
    """The largest logit gap of each token, and how far the chosen token is ahead; logarithmic.
    Gaps of exactly 0 stand at the foot, hollow."""
    marks = []
    if first_difference is not None:
        at, text = first_difference + 1, say("race.figure.differs")
        marks = [Mark(x=at, text=text, colour="bad", width=2, line="solid", side="right")]
    return charts.xy(
        _gaps(gaps, margins, say),
        x=Axis(title=say("race.figure.token")),
        y=Axis(title=say("race.figure.logits"), log=True, exponent="power"),
        marks=marks,
        theme=theme,
        height=330,
        hovermode="x unified",
    )


def _gaps(gaps: Sequence[float], margins: Sequence[float], say: Say) -> list[Series]:
    """Margins, gaps, and gaps of 0 at the foot."""
    positive = [value for value in (*gaps, *margins) if value > 0]
    foot = 10.0 ** (math.floor(math.log10(min(positive))) - 0.5) if positive else 1e-6
    shown = {"x": list(range(1, len(gaps) + 1)), "template": "%{customdata:.3g}"}
    series = [
        Series(
            name=say("race.figure.margin"),
            y=[max(value, foot) for value in margins],
            colour="muted",
            line="solid",
            width=1.3,
            size=4,
            data=margins,
            **shown,
        )
    ]
    for name, marker, there in (
        ("gap", "circle", [value if value > 0 else None for value in gaps]),
        ("zero", "circle-open", [None if value > 0 else foot for value in gaps]),
    ):
        if any(value is not None for value in there):
            series.append(
                Series(
                    name=say(f"race.figure.{name}"),
                    y=there,
                    colour="new",
                    marker=marker,
                    size=8,
                    outline=1,
                    data=gaps,
                    **shown,
                )
            )
    return series


def gain_chart(
    ratios: Sequence[Spread],
    flop_ratios: Sequence[float | None],
    no_gain: float,
    gain_from: int | None,
    say: Say,
    theme: str | None,
) -> charts.Figure:
    """How many times as long it takes without a cache, against tokens written: over the repeats,
    the ratio of FLOPs above it, and the band where there is no gain."""
    low = min(0.8, *(one.low for one in ratios))
    return charts.xy(
        _ratios(ratios, flop_ratios, say),
        x=Axis(title=say("race.figure.written")),
        y=Axis(title=say("race.figure.ratio"), log=True, ticks=RATIOS),
        bands=[Band(low=low, high=no_gain, text=say("race.figure.no_gain"))],
        marks=[Mark(x=gain_from, colour="read", width=1.5)] if gain_from is not None else (),
        theme=theme,
        height=330,
        hovermode="x unified",
    )


def _ratios(
    ratios: Sequence[Spread], flop_ratios: Sequence[float | None], say: Say
) -> list[Series]:
    """The ratio of times with its spread, and that of FLOPs."""
    xs = list(range(1, len(ratios) + 1))
    series = [
        Series(
            name=say("race.figure.spread"),
            x=[*xs, *reversed(xs)],
            y=[one.high for one in ratios] + [one.low for one in reversed(ratios)],
            colour="new",
            line="solid",
            width=0,
            marker="",
            fill=0.18,
        ),
        Series(
            name=say("race.figure.time"),
            x=xs,
            y=[one.median for one in ratios],
            colour="new",
            line="solid",
            width=2.5,
            size=5,
            template="%{y:.2f} ×",
        ),
    ]
    if None not in flop_ratios:
        series.append(
            Series(
                name=say("race.figure.flops"),
                x=xs,
                y=flop_ratios,
                colour="prefill",
                line="dash",
                width=1.5,
                marker="",
                template="%{y:.2f} ×",
            )
        )
    return series


def ttft_chart(lanes: Mapping[str, Spread], say: Say, theme: str | None) -> charts.Figure:
    """Seconds to the first token of each lane, over the repeats; the spreads are in ns."""
    colours = palette(theme)
    traces = []
    for lane, spread in lanes.items():
        low, median, high = (ns / 1e9 for ns in (spread.low, spread.median, spread.high))
        traces.append(
            {
                "type": "bar",
                "y": [say(f"race.lane.{lane}")],
                "x": [median],
                "orientation": "h",
                "marker": {"color": getattr(colours, LANES[lane])},
                "text": [f"{median:.3g} s"],
                "textposition": "inside",
                "insidetextanchor": "start",
                "error_x": {
                    "array": [high - median],
                    "arrayminus": [median - low],
                    "color": colours.text,
                },
                "showlegend": False,
                "hovertemplate": f"{low:.3g} – {high:.3g} s",
            }
        )
    made = charts.layout(
        colours,
        height=330,
        xaxis={"title": {"text": say("race.figure.ttft")}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
        bargap=0.45,
    )
    return charts.Figure({"data": traces, "layout": made})


def attention_chart(shown: AttentionRows, say: Say, theme: str | None) -> charts.Figure:
    """Attention weights, four panels of the same queries: query rows down, key rows to the right.
    Shades follow the square root, so that small weights show; None is not computed."""
    colours = palette(theme)
    titles = [say(f"race.attention.title.{i}") for i in range(4)]
    space = {"horizontal_spacing": 0.06, "vertical_spacing": 0.16}
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles, **space)
    width = max((len(row) for rows in shown.panels for row in rows), default=1)
    names, first = _positions(shown.texts), shown.first_query
    hover = f"{say('race.figure.query')} %{{y}}<br>{say('race.figure.key')} %{{x}}<br>"
    for at, rows in enumerate(shown.panels):
        place = {"row": at // 2 + 1, "col": at % 2 + 1}
        figure.add_heatmap(
            z=[[None if w is None else math.sqrt(w) for w in row] for row in rows],
            x=names[: max((len(row) for row in rows), default=0)],
            y=names[first : first + len(rows)],
            customdata=rows,
            zmin=0,
            zmax=1,
            colorscale=[[0, colours.track], [0.35, colours.k], [1, colours.text]],
            showscale=False,
            xgap=1 if width < 120 else 0,
            ygap=1,
            hovertemplate=hover + "%{customdata:.4f}<extra></extra>",
            **place,
        )
        last = max((i for i, row in enumerate(rows) if row[0] is not None), default=None)
        if last is not None:  # the row that is needed
            line = {"color": colours.new, "width": 1.5}
            figure.add_hrect(y0=last - 0.5, y1=last + 0.5, line=line, **place)
    figure.update_layout(**charts.layout(colours, height=500))
    figure.update_yaxes(autorange="reversed", **BARE)
    figure.update_xaxes(range=[-0.5, width - 0.5], **BARE)
    figure.update_annotations(font={"size": 13, "color": colours.text})
    return figure


def prefix_chart(
    changes: Sequence[Sequence[float]], texts: Sequence[str], say: Say, theme: str | None
) -> charts.Figure:
    """How far the key of each row moved, `[rows, layers]` as a share of its length; logarithmic.
    A key that is the same to the bit has the colour of the page."""
    colours = palette(theme)
    row, layer = say("race.figure.row"), say("race.figure.layer")
    trace = {
        "type": "heatmap",
        "z": [[math.log10(max(v, 1e-3)) if v else None for v in values] for values in changes],
        "customdata": changes,
        "y": _positions(texts)[: len(changes)],
        "zmin": -3,
        "zmax": 0.3,
        "colorscale": [[0, colours.track], [0.6, colours.read], [1, colours.bad]],
        "colorbar": {
            "tickvals": [-3, -2, -1, 0],
            "ticktext": ["≤ 0.1 %", "1 %", "10 %", "100 %"],
            "title": {"text": say("race.figure.moved"), "side": "right"},
            "thickness": 12,
        },
        "hovertemplate": f"{row} %{{y}}<br>{layer} %{{x}}<br>%{{customdata:.1%}}<extra></extra>",
    }
    made = charts.layout(
        colours,
        height=560,
        xaxis={"title": {"text": layer}, "dtick": 2, "side": "top"},
        yaxis={"autorange": "reversed", "title": {"text": row}, "nticks": 12},
    )
    return charts.Figure({"data": [trace], "layout": made})


def _positions(texts: Sequence[str]) -> list[str]:
    """Tokens with their positions, as labels. Plotly reads markup in labels: here it is text."""
    return [f"{i} “{escape(text, quote=False)}”" for i, text in enumerate(texts)]
