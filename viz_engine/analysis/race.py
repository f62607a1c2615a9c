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


# ---- what the panels show ------------------------------------------------------------------------


def flop_ratios(race: ExperimentLog) -> list[float | None]:
    """FLOPs without a cache / with it, of all tokens to each: predicted."""
    costs = [token_costs(log) if (log := shown(race, cache)) else [] for cache in CACHES]
    return [ratio(*(so_far(one, k).flops for one in costs)) for k in range(1, num_tokens(race) + 1)]


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
