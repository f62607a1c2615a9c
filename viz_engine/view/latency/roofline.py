"""The roofline: every kind of step as a dot under the ceilings of its machine.

It knows no Streamlit.

Try it: tests/view/test_latency_words.py
"""

from collections.abc import Mapping, Sequence

from viz_engine.analysis import latency
from viz_engine.analysis.latency import Dot
from viz_engine.numbers import giga, grouped, ms, share
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.experiment import ExperimentLog
from viz_engine.text import Say
from viz_engine.view import charts
from viz_engine.view.charts import Axis, Mark, Series


def roofline_chart(
    results: Sequence[ExperimentLog], ceilings: Ceilings, roof: str, say: Say, theme: str | None
) -> charts.Figure:
    """Every kind of step of all sweeps as a dot, batches above 1 hollow. `roof`: the number format
    whose rate all of them stand under; the other rates are drawn as lines that hold for none."""
    dots = [dot for result in results for dot in latency.dots(result)]
    series = []
    for phase, colour, marker in (("prefill", "prefill", "circle"), ("decode", "k", "diamond")):
        mine = [dot for dot in dots if dot.phase == phase]
        alone, batched = [d for d in mine if d.batch == 1], [d for d in mine if d.batch > 1]
        if alone:
            series.append(_dots(alone, f"lat.{phase}_dots", colour, marker, 9, say))
        if batched:
            series.append(
                _dots(batched, f"lat.{phase}_batch_dots", colour, f"{marker}-open", 11, say)
            )
    roofs = {
        say("lat.roof" if dtype == roof else "lat.other_roof", dtype=dtype, rate=giga(one.per_s)): (
            one.per_s
        )
        for dtype, one in ceilings.flops.items()
    }
    top = ceilings.flops[roof].per_s
    ridge = f"{top / ceilings.bandwidth.per_s:.1f}"
    names = {
        "x": say("lat.axis.intensity"),
        "y": say("lat.axis.flops"),
        "ridge": say("lat.ridge", ridge=ridge),
    }
    return roofline(
        series, bandwidth=ceilings.bandwidth.per_s, roofs=roofs, top=top, names=names, theme=theme
    )


def _dots(dots: Sequence[Dot], name: str, colour: str, marker: str, size: int, say: Say) -> Series:
    """Steps of a phase, all of batch 1 or all above. `name` is a key."""
    return Series(
        name=say(name),
        x=[dot.intensity for dot in dots],
        y=[dot.flops_per_s / 1e9 for dot in dots],
        colour=colour,
        marker=marker,
        size=size,
        opacity=0.9,
        hover=[
            say(
                f"lat.hover.{dot.phase}_dot",
                batch=dot.batch,
                columns=grouped(dot.columns),
                new=dot.num_new,
                intensity=f"{dot.intensity:.1f}",
                rate=giga(dot.flops_per_s),
                bandwidth=giga(dot.bytes_per_s),
                mfu=share(dot.mfu),
                mbu=share(dot.mbu),
                ms=ms(dot.seconds),
                num=dot.num,
            )
            for dot in dots
        ],
    )


def roofline(
    dots: Sequence[Series],
    *,
    bandwidth: float,
    roofs: Mapping[str, float],
    top: float,
    names: Mapping[str, str],
    theme: str | None,
    height: int = 460,
) -> charts.Figure:
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
    return charts.xy(
        [*lines, *dots],
        x=Axis(title=names["x"], log=True, range=(left, right)),
        y=Axis(title=names["y"], log=True, range=(low / 1.5, high)),
        theme=theme,
        marks=[Mark(x=ridge, text=names["ridge"])],
        height=height,
    )
