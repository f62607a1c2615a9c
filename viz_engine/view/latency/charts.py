"""The latency page's figures: from sweeps to Plotly, in words that `say` gives.

Points are every measured value, medians carry p10 to p90; curves are predicted or fitted and say
so. It knows no Streamlit.

Try it: tests/view/test_latency_words.py
"""

from collections.abc import Sequence

from viz_engine.analysis import diagnose, latency
from viz_engine.analysis.diagnose import Diagnosis
from viz_engine.analysis.latency import Turn
from viz_engine.analysis.points import Point, Spread, points_of
from viz_engine.numbers import amount, grouped, ms
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.log import RunLog
from viz_engine.text import Say
from viz_engine.view import charts
from viz_engine.view.charts import Axis, Layer, Mark, Series

RAW_MOST = 400  # raw points of a cell that are drawn; the median is of all
CURVE = 40  # places at which a predicted curve is computed


# ---- figures ------------------------------------------------------------------------------------


def _raw(points: Sequence[Point], figure: str, name: str, colour: str, say: Say) -> Series:
    xs, ys, hover = [], [], []
    for point in points:
        one: Spread | None = getattr(point, figure)
        for value in (one.values if one else ())[:RAW_MOST]:
            xs.append(point.value)
            ys.append(value * 1e3)
            hover.append(say("lat.hover.raw", value=point.value, ms=ms(value)))
    return Series(name=name, x=xs, y=ys, colour=colour, size=6, opacity=0.7, hover=hover)


def _ends(kept: Sequence[tuple[Point, Spread]], unit_s: float) -> dict[str, list[float]]:
    """`low` and `high` of error bars in `unit_s`; without percentiles a bar has no length."""
    return {
        "low": [(one.median if one.p10 is None else one.p10) / unit_s for _, one in kept],
        "high": [(one.median if one.p90 is None else one.p90) / unit_s for _, one in kept],
    }


def _hovers(kept: Sequence[tuple[Point, Spread]], say: Say) -> list[str]:
    """Each median in words: with its percentiles, or with why it has none."""
    return [
        say("lat.hover.few", value=p.value, ms=ms(one.median), runs=p.num_runs)
        if one.p10 is None
        else say(
            "lat.hover.median",
            value=p.value,
            ms=ms(one.median),
            p10=ms(one.p10),
            p90=ms(one.p90),
            num=len(one.values),
        )
        for p, one in kept
    ]


def _medians(
    points: Sequence[Point], figure: str, name: str, colour: str, say: Say, marker: str = "circle"
) -> Series:
    kept = [(p, one) for p in points if (one := getattr(p, figure)) is not None]
    return Series(
        name=name,
        x=[p.value for p, _ in kept],
        y=[one.median * 1e3 for _, one in kept],
        **_ends(kept, 1e-3),
        colour=colour,
        line="solid",
        marker=marker,
        hover=_hovers(kept, say),
    )


def _places(points: Sequence[Point]) -> list[int]:
    """Places of a curve over the values that were measured."""
    low, high = points[0].value, points[-1].value
    steps = (low + (high - low) * i / (CURVE - 1) for i in range(CURVE))
    return sorted({round(step) for step in steps} | {p.value for p in points})


def ttft_chart(result: ExperimentLog, say: Say, theme: str | None) -> charts.Figure:
    """TTFT over prompt length: every run, medians, the least time, the fitted line."""
    points = points_of(result)
    series = [
        _raw(points, "ttft_s", say("lat.raw"), "prefill", say),
        _medians(points, "ttft_s", say("lat.ttft_median"), "prefill", say),
    ]
    places = _places(points)
    if result.ceilings is not None:
        curve = [latency.predicted_ttft_s(result.started, result.ceilings, n) for n in places]
        series += _curve(places, curve, say("lat.predicted"), say)
    parts = latency.prefill_parts(result)
    if parts is not None and parts.fit is not None:
        fitted = [parts.fit.at(tokens=n, square=n * n) for n in places]
        series.append(
            Series(
                name=say("lat.fitted"),
                x=places,
                y=[value * 1e3 for value in fitted],
                colour="muted",
                line="dot",
                marker="",
            )
        )
    x = Axis(title=say("lat.axis.prompt"))
    return charts.xy(series, x=x, y=Axis(title=say("lat.axis.ttft")), theme=theme)


def _curve(places: list[int], seconds: list[float | None], name: str, say: Say) -> list[Series]:
    kept = [(n, s * 1e3) for n, s in zip(places, seconds, strict=True) if s is not None]
    if not kept:
        return []
    hover = [say("lat.hover.predicted", value=n, ms=ms(y / 1e3)) for n, y in kept]
    xs, ys = zip(*kept, strict=True)
    return [Series(name=name, x=xs, y=ys, colour="new", line="dash", marker="", hover=hover)]


def prefill_chart(result: ExperimentLog, say: Say, theme: str | None) -> charts.Figure | None:
    """Prefill at each length: what the fit says is fixed, linear and quadratic; None without a
    fit."""
    parts = latency.prefill_parts(result)
    if parts is None or parts.fit is None:
        return None
    fit, points = parts.fit, [p for p in points_of(result) if p.prefill_s]
    tokens = [p.columns for p in points]
    layers = [
        Layer(name=say("lat.part.fixed"), values=[fit.fixed * 1e3] * len(tokens), colour="read",
              pattern="/"),
        Layer(name=say("lat.part.linear"),
              values=[fit.slopes["tokens"] * n * 1e3 for n in tokens], colour="prefill"),
        Layer(name=say("lat.part.quadratic"),
              values=[fit.slopes["square"] * n * n * 1e3 for n in tokens], colour="k",
              pattern="x"),
    ]  # fmt: skip
    whole = Series(
        name=say("lat.part.prefill"),
        x=(),
        y=[p.prefill_s.median * 1e3 for p in points],
        colour="text",
        marker="line-ew-open",
        size=26,
        hover=[say("lat.hover.step", ms=ms(p.prefill_s.median)) for p in points],
    )
    return charts.stacks(
        [grouped(p.value) for p in points],
        layers,
        x_title=say("lat.axis.prompt"),
        y_title=say("lat.axis.prefill"),
        unit="ms",
        theme=theme,
        whole=whole,
    )


def itl_chart(result: ExperimentLog, say: Say, theme: str | None) -> charts.Figure:
    """ITL over context: every gap, medians, the least time of a step."""
    points = points_of(result)
    series = [
        _raw(points, "itl_s", say("lat.raw_gap"), "k", say),
        _medians(points, "itl_s", say("lat.itl_median"), "k", say),
    ]
    if result.ceilings is not None:
        places = _places(points)
        curve = [latency.predicted_itl_s(result.started, result.ceilings, n) for n in places]
        series += _curve(places, curve, say("lat.predicted"), say)
    x = Axis(title=say("lat.axis.context"))
    top = _axis_top(points, "itl_s")
    y = Axis(title=say("lat.axis.itl"), range=(0, top) if top else None)
    return charts.xy(series, x=x, y=y, theme=theme)


def _axis_top(points: Sequence[Point], figure: str) -> float | None:
    """A little above the p90s: one wild gap must not flatten all the others."""
    kept = [(p, one) for p in points if (one := getattr(p, figure)) is not None]
    tops = _ends(kept, 1.0)["high"]
    return max(tops) * 1.6e3 if tops else None


def split_chart(result: ExperimentLog, say: Say, theme: str | None) -> charts.Figure:
    """A decode step at each value: weights, K/V, the rest."""
    splits = latency.decode_splits(result)
    labels = [grouped(one.value) for one in splits]
    layers = [
        Layer(
            name=say("lat.part.weights"),
            values=[one.weights_s * 1e3 for one in splits],
            colour="muted",
        ),
        Layer(name=say("lat.part.kv"), values=[one.kv_s * 1e3 for one in splits], colour="k"),
        Layer(
            name=say("lat.part.rest"),
            values=[one.rest_s * 1e3 for one in splits],
            colour="read",
            pattern="/",
        ),
    ]
    whole = Series(
        name=say("lat.part.measured"),
        x=(),
        y=[one.measured_s * 1e3 for one in splits],
        colour="text",
        marker="line-ew-open",
        size=26,
        hover=[say("lat.hover.step", ms=ms(one.measured_s)) for one in splits],
    )
    kind = result.settings.what
    return charts.stacks(
        labels,
        layers,
        x_title=say("lat.axis.batch" if kind == "batch" else "lat.axis.context"),
        y_title=say("lat.axis.step"),
        unit="ms",
        theme=theme,
        whole=whole,
    )


def batch_chart(
    result: ExperimentLog, found: Diagnosis, say: Say, theme: str | None
) -> charts.Figure:
    """Prefill and ITL over the batch, both as multiples of the smallest batch, and the safe
    line."""
    points = points_of(result)
    series = []
    for figure, colour, name, marker in (
        ("prefill_s", "prefill", "lat.prefill_growth", "circle"),
        ("itl_s", "k", "lat.itl_growth", "diamond"),
    ):
        kept = [(p, one) for p in points if (one := getattr(p, figure)) is not None]
        if not kept:
            continue
        base = kept[0][1].median
        series.append(
            Series(
                name=say(name),
                x=[p.value for p, _ in kept],
                y=[one.median / base for _, one in kept],
                **_ends(kept, base),
                colour=colour,
                line="solid",
                marker=marker,
                hover=_hovers(kept, say),
            )
        )
    values = [p.value for p in points]
    proportion = [value / values[0] for value in values]
    series.append(
        Series(
            name=say("lat.proportion"),
            x=values,
            y=proportion,
            colour="muted",
            line="dot",
            marker="",
        )
    )
    safe = found.batch.safe_batch
    marks = [Mark(x=safe, text=say("lat.safe", batch=safe), colour="new")] if safe else []
    return charts.xy(
        series,
        x=Axis(title=say("lat.axis.batch"), log=True, ticks=values),
        y=Axis(title=say("lat.axis.times"), log=True, ticks=(1, 2, 4, 8, 16, 32)),
        theme=theme,
        marks=marks,
    )


def memory_chart(logs: Sequence[RunLog], say: Say, theme: str | None) -> charts.Figure | None:
    """Memory and utilisation over the sweep; None without readings."""
    points = [p for p in diagnose.memory_points(logs) if p.used_bytes is not None]
    if len(points) < 2:
        return None
    series = [
        Series(
            name=say(name),
            x=[p.t_s for p in points],
            y=[(getattr(p, figure) or 0) / 2**20 for p in points],
            colour=colour,
            line="solid",
            marker=marker,
            size=5,
        )
        for figure, colour, name, marker in (
            ("used_bytes", "v", "lat.memory_used", "circle"),
            ("kv_reserved_bytes", "k", "lat.memory_rows", "diamond"),
        )
    ]
    for figure, colour, name in (
        ("utilisation", "muted", "lat.utilisation"),
        ("bus_utilisation", "read", "lat.bus"),
    ):
        kept = [(p.t_s, value) for p in points if (value := getattr(p, figure)) is not None]
        if kept:
            series.append(
                Series(
                    name=say(name),
                    x=[t for t, _ in kept],
                    y=[value * 100 for _, value in kept],
                    colour=colour,
                    line="dot",
                    marker="",
                    right=True,
                )
            )
    return charts.xy(
        series,
        x=Axis(title=say("lat.axis.seconds")),
        y=Axis(title=say("lat.axis.mib")),
        right=Axis(title=say("lat.axis.share"), range=(0, 105)),
        theme=theme,
        height=320,
    )


def turns_chart(
    turns: Sequence[Turn],
    unit: str,
    say: Say,
    theme: str | None,
    *,
    longest: int = 0,
    priced: bool = True,
) -> charts.Figure:
    """The price of turn k, and what it would be if only what is new were read. Without prices, the
    tokens that are read. TTFT of turns that read more than `longest` tokens, which no run did, is
    drawn apart."""
    timed = [t for t in turns if t.seconds is not None]
    return charts.xy(
        [*_prices(turns, unit, say), *_waits(timed, longest, say)],
        x=Axis(title=say("lat.axis.turn")),
        y=Axis(title=say("lat.axis.price" if priced else "lat.axis.read", unit=unit)),
        right=Axis(title=say("lat.axis.ttft_s")) if timed else None,
        theme=theme,
        height=340,
    )


def _prices(turns: Sequence[Turn], unit: str, say: Say) -> list[Series]:
    """What each turn costs, and would if only what is new were read."""
    return [
        Series(
            name=say(f"lat.{name}"),
            x=[turn.number for turn in turns],
            y=prices,
            colour=colour,
            line=line,
            marker=marker,
            hover=[
                say(
                    "lat.hover.turn",
                    turn=turn.number,
                    price=amount(price, unit),
                    tokens=grouped(turn.read_tokens),
                )
                for turn, price in zip(turns, prices, strict=True)
            ],
        )
        for name, prices, colour, line, marker in (
            ("turn_price", [t.price for t in turns], "prefill", "solid", "circle"),
            ("turn_cached", [t.cached_price for t in turns], "new", "dash", "diamond"),
        )
    ]


def _waits(timed: Sequence[Turn], longest: int, say: Say) -> list[Series]:
    """TTFT of each turn, and apart that of those beyond the `longest` prompt that was run."""
    within = [t for t in timed if t.read_tokens <= longest]
    beyond = [*within[-1:], *timed[len(within) :]] if len(within) < len(timed) else []
    return [
        Series(
            name=say(f"lat.{name}", longest=grouped(longest)),
            x=[t.number for t in part],
            y=[t.seconds for t in part],
            colour="muted",
            line=line,
            marker="",
            right=True,
        )
        for name, part, line in (
            ("turn_ttft", within, "solid"),
            ("turn_ttft_beyond", beyond, "dot"),
        )
        if part
    ]
