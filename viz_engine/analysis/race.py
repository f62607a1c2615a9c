"""ExperimentLog -> what the race page says: lanes aligned by token, work and time, ratio.

Pure functions. Everything is per emitted token: token k without a cache stands beside token k with
it, whatever their step numbers are. The cost of token 1 is that of the whole prompt; each later
token's time is the gap since the token before it, so that the times add up to the wall time.

Try it: `python -c "from viz_engine.analysis import race; \
from viz_engine.run.experiment import ExperimentLog; \
print(race.table(ExperimentLog.read(open('race.jsonl','rb').read()), 8))"`
"""

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from viz_engine.model.spec import ModelSpec
from viz_engine.run import metrics
from viz_engine.run.events import StepFinished, Telemetry
from viz_engine.run.experiment import ExperimentLog, PrefixChanged
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
    nothing = TokenCost(rows=0, flops=0, moved_bytes=0, ns=0)
    return next(reversed(running(costs[:k])), nothing)


def running(costs: Sequence[TokenCost]) -> list[TokenCost]:
    """What all tokens up to each took together."""
    return list(itertools.accumulate(costs, _both))


def _both(one: TokenCost, other: TokenCost) -> TokenCost:
    return TokenCost(
        rows=one.rows + other.rows,
        flops=_sum((one.flops, other.flops)),
        moved_bytes=_sum((one.moved_bytes, other.moved_bytes)),
        ns=one.ns + other.ns,
    )


def energy_j(log: RunLog, end_ns: int) -> float | None:
    """Joules from the start of a run to `end_ns`: the power that NVML reported, each reading held
    to the next. None without two readings."""
    return _energy_j(log, _power_readings(log), end_ns)


def _power_readings(log: RunLog) -> list[Telemetry]:
    return [e for e in log if isinstance(e, Telemetry) and e.power_w is not None]


def _energy_j(log: RunLog, every: Sequence[Telemetry], end_ns: int) -> float | None:
    readings = [reading for reading in every if reading.t_ns <= end_ns]
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
    return _spread_at(_ends_ns(race, cache), k)


def _ends_ns(race: ExperimentLog, cache: str) -> list[list[int]]:
    """When each token of each repeat was there, from the start."""
    return [
        [step.end_ns - log.started.accepted_ns for step in metrics.token_steps(log)]
        for log in race.runs({"cache": cache})
    ]


def _spread_at(ends: Sequence[Sequence[int]], k: int) -> Spread | None:
    return Spread.of([one[k - 1] for one in ends if len(one) >= k])


def num_tokens(race: ExperimentLog) -> int:
    """Tokens that every lane which came to its end has given."""
    runs = [log for cache in CACHES if (log := shown(race, cache)) is not None]
    return min((len(metrics.token_steps(log)) for log in runs), default=0)


def ratio(without: float | None, cached: float | None) -> float | None:
    return None if without is None or not cached else without / cached


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """What a table needs of a lane, worked out once for all tokens."""

    log: RunLog
    costs: list[TokenCost]
    together: list[TokenCost]
    ends_ns: list[int]
    readings: list[Telemetry]


def _lanes(race: ExperimentLog) -> list[_Lane | None]:
    """By CACHES; None where no run of a lane came to its end."""
    found: list[_Lane | None] = []
    for cache in CACHES:
        if (log := shown(race, cache)) is None:
            found.append(None)
            continue
        costs = token_costs(log)
        found.append(
            _Lane(
                log=log,
                costs=costs,
                together=running(costs),
                ends_ns=[step.end_ns for step in metrics.token_steps(log)],
                readings=_power_readings(log),
            )
        )
    return found


def table(race: ExperimentLog, k: int) -> list[dict[str, object]]:
    """The table under the lanes at token k. A row per quantity: `name`, and for `token` (token k
    alone) and `so_far` (tokens 1 to k) what it took without a cache, with it, and the ratio."""
    return _table(_lanes(race), k)


def _table(lanes: Sequence[_Lane | None], k: int) -> list[dict[str, object]]:
    rows = []
    for field in fields(TokenCost):
        row: dict[str, object] = {"name": field.name}
        for span in ("token", "so_far"):
            pair = [_value(lane, field.name, span, k) for lane in lanes]
            row[span] = (*pair, ratio(*pair))
        rows.append(row)
    return rows


def _value(lane: _Lane | None, name: str, span: str, k: int) -> float | None:
    if lane is None or not 1 <= k <= len(lane.costs):
        return None
    if name == "energy_j":
        if span == "token" or not lane.readings:
            return None
        return _energy_j(lane.log, lane.readings, lane.ends_ns[k - 1])
    return getattr((lane.costs if span == "token" else lane.together)[k - 1], name)


def ratios(race: ExperimentLog) -> list[Spread | None]:
    """Total time without a cache / with it, to each token; low and high: the extreme pairs of
    repeats."""
    found, ends = [], [_ends_ns(race, cache) for cache in CACHES]
    for k in range(1, num_tokens(race) + 1):
        without, cached = (_spread_at(one, k) for one in ends)
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
    lanes = _lanes(race)
    for k in range(1, num_tokens(race) + 1):
        rows = {row["name"]: row for row in _table(lanes, k)}
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


# ---- what the panels show ------------------------------------------------------------------------


def flop_ratios(race: ExperimentLog) -> list[float | None]:
    """FLOPs without a cache / with it, of all tokens to each: predicted."""
    lanes = [lane.together if lane else [] for lane in _lanes(race)]
    return [
        ratio(*(one[k].flops if k < len(one) else None for one in lanes))
        for k in range(num_tokens(race))
    ]


def times_at(log: RunLog) -> list[tuple[int, float]]:
    """(tokens, seconds to the last of them) of a run: about eight points."""
    steps = metrics.token_steps(log)
    wanted = sorted({max(1, round(len(steps) / 2**i)) for i in range(8)})
    start = log.started.accepted_ns
    return [(n, (steps[n - 1].end_ns - start) / 1e9) for n in wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """The attention weights of one head at steps n and n + 1, without a cache and with it."""

    layer: int
    query_head: int
    first_query: int  # of the rows of every panel
    panels: tuple[list[list[float | None]], ...]  # n, n + 1 without; n, n + 1 with; level rows
    num_queries: int  # that step n computes without a cache
    num_keys: int  # that its last query sees
    texts: tuple[str, ...]  # of the positions


def attention_rows(race: ExperimentLog) -> AttentionRows | None:
    """What was looked at in both lanes; None where one of them lacks it."""
    looks = {cache: race.runs({"cache": cache}, "look") for cache in CACHES}
    samples = {
        cache: [event for event in runs[0] if event.kind == "attention_sample"] if runs else []
        for cache, runs in looks.items()
    }
    if any(len(found) < 2 for found in samples.values()):
        return None
    before, after = samples["none"][:2]
    rows = [list(sample.weights[0]) for sample in samples["full"][:2]]
    first = before.first_query
    height = len(after.weights) + after.first_query - first
    log = looks["none"][0]
    written = (text for step in log.steps for text in step.token_texts[0])
    return AttentionRows(
        layer=before.layer,
        query_head=before.query_head,
        first_query=first,
        panels=(
            _level(before.weights, 0, height),
            _level(after.weights, after.first_query - first, height),
            _level(rows[:1], height - 2, height, width=len(rows[1])),
            _level(rows[1:], height - 1, height, width=len(rows[1])),
        ),
        num_queries=len(before.weights),
        num_keys=len(rows[0]),
        texts=(*log.started.prompt_texts[0], *written),
    )


def _level(
    rows: Sequence[Sequence[float]], above: int, height: int, width: int = 1
) -> list[list[float | None]]:
    """Rows with empty ones above and below, so that the same row of two pictures is level."""
    made = [[None] * width] * above + [list(row) for row in rows]
    return made + [[None] * width] * (height - len(made))


def moved(changed: PrefixChanged) -> list[list[float]]:
    """How far the key of each row moved in each layer, as a share of its length: the byte 128 is
    1, twelve are a doubling, 0 is not at all."""
    shares = [2.0 ** ((level - 128) / 12) if level else 0.0 for level in changed.changes]
    width = changed.num_layers
    return [shares[i * width : (i + 1) * width] for i in range(changed.num_rows)]
