"""ExperimentLog -> what the race page says: lanes aligned by token, work and time, ratio, growth.

Pure functions. Everything is per emitted token: token k without a cache stands beside token k with
it, whatever their step numbers are. The cost of token 1 is that of the whole prompt; each later
token's time is the gap since the token before it, so that the times add up to the wall time.

Try it: `python -c "from viz_engine.analysis import race; \
from viz_engine.run.experiment import ExperimentLog; \
print(race.table(ExperimentLog.read(open('race.jsonl','rb').read()), 8))"`
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from viz_engine.model.spec import ModelSpec
from viz_engine.run import cost, metrics
from viz_engine.run.events import StepFinished, Telemetry
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.log import RunLog
from viz_engine.run.race import LANES
from viz_engine.text import Message

CACHES = tuple(label["cache"] for label in LANES)
PARTS = (*CACHES, "ratio")
NO_GAIN = 1.1  # a ratio of times up to which the page speaks of no gain
LEAST_SHARE = 0.1  # of the work of a race: what another must have done to tell its time


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """What one token, or the first k together, took. None where there is no basis."""

    rows: int  # positions fed to the model: counted
    flops: int | None  # predicted by cost.py
    moved_bytes: int | None  # weights and K/V read, K/V written: counted
    ns: int  # wall time: measured
    energy_j: float | None = None  # from NVML's power: measured; only of a whole prefix


# ---- one lane ------------------------------------------------------------------------------------


def token_costs(log: RunLog) -> list[TokenCost]:
    """One entry for each token of a run, in order."""
    costs, pending = [], []
    last_ns = log.started.accepted_ns
    for step, predicted in log.with_costs():
        pending.append((step, predicted and predicted.flops))
        if not step.token_ids[0]:
            continue
        costs.append(
            TokenCost(
                rows=sum(step.num_new_tokens[0] for step, _ in pending),
                flops=_sum(flops for _, flops in pending),
                moved_bytes=_sum(_moved(step) for step, _ in pending),
                ns=step.end_ns - last_ns,
            )
        )
        last_ns, pending = step.end_ns, []
    return costs


def _moved(step: StepFinished) -> int | None:
    return _sum((step.weight_bytes_read, step.kv_bytes_read, step.kv_bytes_written))


def _sum(values: Sequence[int | None]) -> int | None:
    values = list(values)
    return None if None in values else sum(values)


def so_far(costs: Sequence[TokenCost], k: int) -> TokenCost:
    """The first k tokens together."""
    part = costs[:k]
    return TokenCost(
        rows=sum(c.rows for c in part),
        flops=_sum(c.flops for c in part),
        moved_bytes=_sum(c.moved_bytes for c in part),
        ns=sum(c.ns for c in part),
    )


def energy_j(log: RunLog, end_ns: int) -> float | None:
    """Joules from the start of a run to `end_ns`: the power that NVML reported, each reading held
    to the next. None without two readings."""
    readings = [
        e for e in log if isinstance(e, Telemetry) and e.power_w is not None and e.t_ns <= end_ns
    ]
    if len(readings) < 2:
        return None
    times = [log.started.accepted_ns, *(e.t_ns for e in readings), end_ns]
    powers = [readings[0].power_w, *(e.power_w for e in readings)]
    gaps = zip(times, times[1:], strict=False)
    return sum(p * (b - a) / 1e9 for p, (a, b) in zip(powers, gaps, strict=True))


def total_ns(log: RunLog) -> int:
    """From the accepted request to the last token."""
    steps = metrics.token_steps(log)
    return steps[-1].end_ns - log.started.accepted_ns if steps else 0


def shown(race: ExperimentLog, cache: str) -> RunLog | None:
    """The run of a lane that is replayed and tabled: the one of median total time (of two, the
    faster). None where no run of it came to its end."""
    runs = sorted(race.runs({"cache": cache}), key=total_ns)
    return runs[(len(runs) - 1) // 2] if runs else None


def seconds_at(race: ExperimentLog, spec: ModelSpec, flops: Mapping[str, int]) -> float | None:
    """About how long both lanes with `flops` (by cache) take, at the rates that a race reached.
    None where that race is of another model, lacks a lane, or did less than LEAST_SHARE of the
    work: short runs are bound by other things than work."""
    seconds = 0.0
    for cache in CACHES:
        log = shown(race, cache)
        done = log and log.started.spec == spec and so_far(token_costs(log), len(log.steps)).flops
        if not done or done < LEAST_SHARE * flops[cache]:
            return None
        seconds += total_ns(log) / 1e9 * flops[cache] / done
    return seconds


# ---- both lanes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A measured value over the repeats."""

    low: float
    median: float
    high: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        if not values:
            return None
        return cls(
            low=min(values),
            median=metrics.percentile(list(values), 0.5),
            high=max(values),
            num=len(values),
        )


def times_ns(race: ExperimentLog, cache: str, k: int) -> Spread | None:
    """Time from the start to token k over the repeats of a lane."""
    ends = []
    for log in race.runs({"cache": cache}):
        steps = metrics.token_steps(log)
        if len(steps) >= k:
            ends.append(steps[k - 1].end_ns - log.started.accepted_ns)
    return Spread.of(ends)


def num_tokens(race: ExperimentLog) -> int:
    """Tokens that every lane which came to its end has given."""
    runs = [log for cache in CACHES if (log := shown(race, cache)) is not None]
    return min((len(metrics.token_steps(log)) for log in runs), default=0)


def ratio(without: float | None, cached: float | None) -> float | None:
    return None if without is None or not cached else without / cached


def table(race: ExperimentLog, k: int) -> list[dict[str, object]]:
    """The table under the lanes at token k. A row a quantity: `name`, and for `token` (token k
    alone) and `so_far` (tokens 1 to k) what it took without a cache, with it, and the ratio."""
    logs = {cache: shown(race, cache) for cache in CACHES}
    costs = {cache: token_costs(log) if log else [] for cache, log in logs.items()}
    rows = []
    for field in fields(TokenCost):
        row: dict[str, object] = {"name": field.name}
        for span in ("token", "so_far"):
            pair = [_value(logs[c], costs[c], field.name, span, k) for c in CACHES]
            row[span] = (*pair, ratio(*pair))
        rows.append(row)
    return rows


def _value(
    log: RunLog | None, costs: list[TokenCost], name: str, span: str, k: int
) -> float | None:
    if log is None or not 1 <= k <= len(costs):
        return None
    if name == "energy_j":
        end_ns = metrics.token_steps(log)[k - 1].end_ns
        return energy_j(log, end_ns) if span == "so_far" else None
    return getattr(costs[k - 1] if span == "token" else so_far(costs, k), name)


def ratios(race: ExperimentLog) -> list[Spread | None]:
    """Total time without a cache / with it, to each token; low and high: the extreme pairs of
    repeats."""
    found = []
    for k in range(1, num_tokens(race) + 1):
        without, cached = (times_ns(race, cache, k) for cache in CACHES)
        found.append(
            Spread(
                low=without.low / cached.high,
                median=without.median / cached.median,
                high=without.high / cached.low,
                num=min(without.num, cached.num),
            )
            if without and cached
            else None
        )
    return found


def gain_from(race: ExperimentLog) -> int | None:
    """The first token from which on the cache has saved more than a tenth of the time (`NO_GAIN`),
    to the end and whichever runs are compared. None where it never does, or a lane is missing."""
    found = None
    for k, spread in reversed(list(enumerate(ratios(race), start=1))):
        if spread is None or spread.low < NO_GAIN:
            break
        found = k
    return found


def csv_text(race: ExperimentLog) -> str:
    """The table of every token as CSV: of each lane what the token alone took and what all up to it
    took. Empty where there is no basis. Times in nanoseconds."""
    names = ("rows", "flops", "moved_bytes", "ns")
    spans = ("token", "so_far")
    heads = [f"{name}.{span}.{part}" for name in names for span in spans for part in PARTS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["token", *heads, "energy_j.so_far.none", "energy_j.so_far.full"])
    for k in range(1, num_tokens(race) + 1):
        rows = {row["name"]: row for row in table(race, k)}
        values = [value for name in names for span in spans for value in rows[name][span]]
        values += rows["energy_j"]["so_far"][:2]
        writer.writerow([k, *("" if value is None else value for value in values)])
    return out.getvalue()


def missing(race: ExperimentLog) -> list[Message]:
    """What a race that did not come to its end lacks, in words."""
    asked = race.settings.repeats
    short = []
    for cache in CACHES:
        made = len(race.runs({"cache": cache}))
        if made < asked:
            key = "race.missing.none" if cache == "none" else "race.missing.full"
            short.append(Message(key=key, params={"made": made, "asked": asked}))
    return short


# ---- how the work grows --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """FLOPs of writing `num_tokens` tokens in all after a prompt of one token: predicted."""

    num_tokens: int
    linear: int
    attention: int

    @property
    def flops(self) -> int:
        return self.linear + self.attention


def lengths(window: int | None) -> list[int]:
    """At least six lengths between 64 and the window, doubling."""
    most = min(window or 8192, 131072)
    found = [64]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    while len(found) < 6:  # a small window: halfway between neighbours
        at = max(range(len(found)), key=lambda i: found[i] / (found[i - 1] if i else 32))
        found.insert(at, (found[at] + (found[at - 1] if at else 32)) // 2)
    return found


def growth(spec: ModelSpec, lengths: Sequence[int], *, cached: bool) -> list[Growth]:
    """The FLOPs of the steps that feed 1 to n columns, for each n of `lengths`: the formulas of
    `cost.py` are linear in tokens and in pairs, so both are summed first. Raises ValueError for a
    type without a formula."""
    found = []
    for n in lengths:
        columns = n * (n + 1) // 2
        linear = cost.linear_flops(spec, num_tokens=n if cached else columns, num_logit_rows=n)
        attention = sum(
            flops * (cost.num_pairs(n, window) if cached else n * (n + 1) * (2 * n + 1) // 6)
            for flops, window in cost.pair_flops(spec)
        )
        found.append(Growth(num_tokens=n, linear=linear, attention=attention))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthLaw:
    """`a * n**p + b * n**(p + 1)`: the leading terms of `growth`, p = 2 without a cache, 1 with."""

    a: float
    b: float
    power: int

    @property
    def crossing(self) -> float:
        """Tokens from which on attention is the larger part."""
        return self.a / self.b


def growth_law(spec: ModelSpec, *, cached: bool) -> GrowthLaw:
    """With W weights in the layers' matrices, H in the output matrix, A = 4 x layers x query width:
    without a cache `sum of (2 W t + 2 H + A t^2)` leads with `W n^2 + (A / 3) n^3`; with one
    `sum of (2 (W + H) + A t)` with `2 (W + H) n + (A / 2) n^2`. Raises ValueError for a type
    without a formula, and with windows, whose part of attention grows as the linear layers do."""
    if any(window for _, window in cost.pair_flops(spec)):
        raise ValueError("no law of two terms for layers with a window")
    per_query = sum(flops for flops, _ in cost.pair_flops(spec))
    layers = cost.matmul_weights(spec)
    if cached:
        return GrowthLaw(a=2 * (layers + cost.head_weights(spec)), b=per_query / 2, power=1)
    return GrowthLaw(a=layers, b=per_query / 3, power=2)


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    log_x, log_y = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_x, mean_y = sum(log_x) / len(xs), sum(log_y) / len(ys)
    pairs = zip(log_x, log_y, strict=True)
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sum(
        (x - mean_x) ** 2 for x in log_x
    )
