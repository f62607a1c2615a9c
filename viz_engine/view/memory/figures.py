"""An estimate as pictures: the curves, a run's memory over time, each with its text.

Functions of an `Estimate` (or a run) and `say`, which looks up a text; a picture comes with a
sentence for those who cannot see it. It knows nothing of Streamlit.

Try it: tests/memory/test_estimate.py draws every model
"""

from viz_engine.analysis.memory_account import Account
from viz_engine.memory import estimate
from viz_engine.memory.estimate import Estimate
from viz_engine.numbers import bytes_text, grouped
from viz_engine.run.log import RunLog
from viz_engine.text import Say
from viz_engine.view import charts
from viz_engine.view.memory import charts as memory_charts
from viz_engine.view.memory.charts import Curve

Picture = tuple[charts.Figure, str]  # and its text


def curves(found: Estimate, name: str, say: Say, theme: str) -> Picture:
    """Cache and everything over the `context` or the `sequences`, the ceiling as a line."""
    settings, budget = found.choice.settings, found.choice.budget_bytes
    if name == "context":
        counts, plans = estimate.over_context(found.choice)
        here = settings.context_len
        title = say("mem.curve.context", sequences=grouped(settings.num_sequences))
    else:
        counts, plans = estimate.over_sequences(found.choice)
        here = settings.num_sequences
        title = say("mem.curve.sequences", context=grouped(settings.context_len))
    cache, every = [plan.kv_bytes for plan in plans], [plan.total_bytes for plan in plans]
    total = say("mem.part.total")
    lines = [Curve(name=say("mem.part.kv"), x=counts, y=cache, colour="k")]
    if found.choice.knows_weights:
        lines.append(Curve(name=total, x=counts, y=every, colour="text", style="dash"))
    figure = memory_charts.byte_curves(
        lines,
        x_title=title,
        ceiling=(say("mem.ceiling"), budget, found.fits or not found.choice.knows_weights),
        here=(say("mem.curve.here"), here),
        theme=theme,
    )
    ends = {"first": bytes_text(cache[0]), "last": bytes_text(cache[-1])}
    return figure, say("mem.curve.alt", ceiling=bytes_text(budget), **ends)


def run_memory(log: RunLog, found: Account, say: Say, theme: str) -> Picture:
    """A run's cache as counted, and its process as it grew from its first reading on, which is
    drawn where the rows in use were at that moment."""
    start = log.started.accepted_ns
    seconds = [(step.end_ns - start) / 1e9 for step in log.steps]
    reserved = [step.kv_reserved_bytes for step in log.steps]
    live = [step.kv_live_bytes for step in log.steps]
    lines = [
        Curve(name=say("mem.line.reserved"), x=seconds, y=reserved, colour="k", style="dash"),
        Curve(name=say("mem.line.live"), x=seconds, y=live, colour="k"),
    ]
    if found.points:
        first = found.points[0]
        grown = [p.used_bytes - first.used_bytes + (first.live_bytes or 0) for p in found.points]
        at = [point.seconds for point in found.points]
        name = say("mem.line.grown")
        lines.append(Curve(name=name, x=at, y=grown, colour="v", style="dot"))
    figure = memory_charts.bytes_over_time(
        lines, x_title=say("mem.line.seconds"), y_title="", theme=theme
    )
    ends = {"live": bytes_text(found.live_bytes or 0), "grown": bytes_text(found.grown_bytes or 0)}
    return figure, say("mem.measured_alt", **ends)
