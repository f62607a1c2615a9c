"""Points of a sweep: what its runs at one value say, as medians with their spread.

It knows nothing of how the runs were made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from viz_engine.analysis import roofline
from viz_engine.run import metrics
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.log import RunLog

SPREAD_RUNS = 3  # from which percentiles are given


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with its spread: all values stay visible. No percentiles of fewer than
    SPREAD_RUNS runs: what one run did, however many values it gave, is no spread."""

    values: tuple[float, ...]
    median: float
    p10: float | None
    p90: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """All repeats at one value. Seconds, measured."""

    value: int | float | str  # as asked
    columns: int  # tokens of the prompt, as they were
    batch: int
    num_runs: int
    ttft_s: Spread | None
    prefill_s: Spread | None  # the prefill steps alone
    itl_s: Spread | None  # every gap of every run
    decode_s: Spread | None  # every decode step alone
    kv_bytes: float | None  # read and written by a decode step, mean


def spread(values: Sequence[float], num_runs: int) -> Spread | None:
    """None of no values. `num_runs`: how many runs they are from."""
    if not values:
        return None
    p10, median, p90 = (metrics.percentile(list(values), share) for share in (0.1, 0.5, 0.9))
    if num_runs < SPREAD_RUNS:
        p10 = p90 = None
    return Spread(values=tuple(values), median=median, p10=p10, p90=p90)


def points_of(log: ExperimentLog) -> list[Point]:
    """The medians of a sweep, by rising value."""
    varied = log.settings.varied
    values = sorted({one.label[varied] for one in log.members if one.done})
    return [_point(value, log.runs({varied: value})) for value in values]


def thin(log: ExperimentLog) -> list[int | float | str]:
    """The values of which there are fewer runs than a spread takes."""
    return [point.value for point in points_of(log) if point.num_runs < SPREAD_RUNS]


def _point(value: int | float | str, logs: list[RunLog]) -> Point:
    steps = [roofline.step_points(log) for log in logs]
    decode = [step for run in steps for step in run if step.phase == "decode"]
    kv = [step.kv_bytes for step in decode if step.kv_bytes is not None]
    firsts = [ns for log in logs if (ns := metrics.ttft_ns(log)) is not None]
    return Point(
        value=value,
        columns=logs[0].started.prompt_columns,
        batch=logs[0].started.settings.batch,
        num_runs=len(logs),
        ttft_s=spread([ns / 1e9 for ns in firsts], len(logs)),
        prefill_s=spread(
            [sum(step.seconds for step in run if step.phase == "prefill") for run in steps],
            len(logs),
        ),
        itl_s=spread([ns / 1e9 for log in logs for ns in metrics.itl_ns(log)], len(logs)),
        decode_s=spread([step.seconds for step in decode], len(logs)),
        kv_bytes=sum(kv) / len(kv) if kv else None,
    )
