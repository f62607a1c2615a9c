"""What a sweep says about TTFT and ITL: the predicted curve, the parts of a step, where they cross,
and what a token costs.

Measured times come from `points.points_of`, predicted ones from `cost.py` and the measured
ceilings; the difference is called the rest. It draws nothing.

Try it: tests/analysis/test_latency.py
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from viz_engine.analysis import fits, roofline
from viz_engine.analysis.points import Point, points_of
from viz_engine.model.formats import element_bytes
from viz_engine.model.spec import ModelSpec
from viz_engine.run import cost
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.cost import LeastTime
from viz_engine.run.events import RunStarted
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.log import MAX_COLUMNS

PRICE_RATIO = (4.0, 5.0)  # output over input, as price lists typically show


def prefill_pieces(columns: int, chunk_len: int) -> list[tuple[int, int]]:
    """(columns fed, columns attended) of each piece of a prompt."""
    ends = [*range(chunk_len, columns, chunk_len), columns] if chunk_len else [columns]
    return [(stop - start, stop) for start, stop in zip([0, *ends], ends, strict=False)]


def prefill_cost(
    spec: ModelSpec, dtype: str, *, columns: int, batch: int, chunk_len: int
) -> list[cost.StepCost]:
    """Predicted cost of each piece of a prefill."""
    return [
        cost.step(
            spec,
            dtype,
            batch=batch,
            num_new=new,
            num_columns=stop,
            prompt_columns=columns,
            cached=True,
            chunk_len=chunk_len,
        )
        for new, stop in prefill_pieces(columns, chunk_len)
    ]


def decode_cost(spec: ModelSpec, dtype: str, *, columns: int, batch: int) -> cost.StepCost:
    """Predicted cost of the decode step that attends `columns` columns, no block growing."""
    return cost.step(
        spec,
        dtype,
        batch=batch,
        num_new=1,
        num_columns=columns,
        prompt_columns=columns,
        cached=True,
        chunk_len=0,
    )


def least(ceilings: Ceilings, started: RunStarted, here: cost.StepCost) -> LeastTime | None:
    """The least time of a step: its FLOPs at the run's rate, its bytes at the bandwidth."""
    rate = roofline.rate_of(ceilings, started)
    return roofline.predict(ceilings, rate, flops=here.flops, num_bytes=here.num_bytes)


def prefill_work(started: RunStarted, columns: int, batch: int = 1) -> cost.Work | None:
    """The least that prompts of `columns` tokens take, in however many pieces. None where no
    formula stands."""
    spec, dtype = started.spec, started.settings.dtype
    if spec is None or spec.uncounted:
        return None
    try:
        return cost.prefill_work(
            spec,
            prompt_len=columns,
            batch=batch,
            weight_bytes=cost.read_weight_bytes(spec, 8 * element_bytes(dtype)),
            kv_bytes=batch * cost.used_row_bytes(spec, dtype, columns),
        )
    except KeyError:  # a number format without a size
        return None


def predicted_ttft_s(
    started: RunStarted, ceilings: Ceilings, columns: int, batch: int = 1
) -> float | None:
    """The least TTFT under the ceilings, the same as on the memory page. None where it has no
    basis."""
    work = prefill_work(started, columns, batch)
    if work is None:
        return None
    rate = roofline.rate_of(ceilings, started)
    found = roofline.predict(ceilings, rate, flops=work.flops, num_bytes=work.num_bytes)
    return None if found is None else found.seconds


def predicted_itl_s(
    started: RunStarted, ceilings: Ceilings, columns: int, batch: int = 1
) -> float | None:
    """The least ITL at a context of `columns`."""
    if started.spec is None:
        return None
    try:
        step = decode_cost(started.spec, started.settings.dtype, columns=columns, batch=batch)
    except (KeyError, ValueError, ArithmeticError):
        return None
    found = least(ceilings, started, step)
    return None if found is None else found.seconds


# ---- how fast times grow -------------------------------------------------------------------------

EVEN = 0.1  # how far from 1 the exponent of a growth in proportion may lie


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A median at two lengths. Times are ratios."""

    low: int
    high: int
    times: float  # how many times as long it takes

    @property
    def length(self) -> float:
        """How many times as many tokens."""
        return self.high / self.low

    @property
    def pace(self) -> str:
        """Against the length: more, even (in proportion) or less, by the exponent of the growth."""
        exponent = math.log(self.times) / math.log(self.length)
        return "more" if exponent > 1 + EVEN else "less" if exponent < 1 - EVEN else "even"


def growth(points: Sequence[Point], figure: str) -> Growth | None:
    """From the first to the last of `points` that have the `figure`; None with fewer than two."""
    kept = [(p.columns, one.median) for p in points if (one := getattr(p, figure)) is not None]
    if len({columns for columns, _ in kept}) < 2:
        return None
    (low, first), (high, last) = kept[0], kept[-1]
    return Growth(low=low, high=high, times=last / first)


def doubling(points: Sequence[Point]) -> Growth | None:
    """TTFT from about half of the longest prompt to the longest: what one more doubling costs."""
    if len(points) < 2:
        return None
    half = min(points[:-1], key=lambda p: abs(math.log(2 * p.columns / points[-1].columns)))
    return growth([half, points[-1]], "ttft_s")


# ---- prefill: linear and quadratic ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillParts:
    """The parts of prefill. FLOPs are predicted; the fit is of measured seconds over tokens."""

    linear_flops: int  # at `columns`
    attention_flops: int
    columns: int
    cross_columns: int | None  # where attention's FLOPs reach those of the linear layers
    fit: fits.Fit | None  # seconds = fixed + slope tokens + slope tokens²
    cross_fit: float | None  # tokens at which the measured quadratic part reaches the linear one


def prefill_parts(result: ExperimentLog) -> PrefillParts | None:
    """None without runs or without a formula for the model."""
    points, started = points_of(result), result.started
    if started is None or started.spec is None or not points:
        return None
    spec, chunk = started.spec, started.settings.chunk_len
    longest = points[-1].columns
    try:
        pieces = prefill_cost(
            spec, started.settings.dtype, columns=longest, batch=1, chunk_len=chunk
        )
        cross = cross_columns(spec, chunk)
    except (KeyError, ValueError):
        return None
    seconds = [(p.columns, s) for p in points if p.prefill_s for s in p.prefill_s.values]
    tokens = [float(columns) for columns, _ in seconds]
    line = fits.fit({"tokens": tokens, "square": [n * n for n in tokens]}, [s for _, s in seconds])
    slopes = line.slopes if line else {}
    crossing = None
    if slopes.get("tokens") and slopes.get("square"):
        crossing = slopes["tokens"] / slopes["square"]
    return PrefillParts(
        linear_flops=sum(one.linear_flops for one in pieces),
        attention_flops=sum(one.attention_flops for one in pieces),
        columns=longest,
        cross_columns=cross,
        fit=line if len(set(tokens)) > 2 else None,
        cross_fit=crossing if len(set(tokens)) > 3 else None,
    )


def cross_columns(spec: ModelSpec, chunk_len: int) -> int | None:
    """The prompt length at which attention's FLOPs reach those of the linear layers, in chunks of
    `chunk_len` (which spare attention the later half of each square). None where they do not, as
    where all layers have a window."""

    def over(columns: int) -> bool:
        pieces = prefill_pieces(columns, chunk_len)
        linear = cost.linear_flops(spec, num_tokens=columns, num_logit_rows=len(pieces))
        linear += sum(cost.unfold_flops(spec, stop - new) for new, stop in pieces)
        attention = sum(
            cost.attention_flops(spec, num_queries=new, context_len=stop) for new, stop in pieces
        )
        return attention >= linear

    low, high = 1, 2
    while not over(high):
        if high >= MAX_COLUMNS:
            return None
        low, high = high, 2 * high
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if over(middle) else (middle, high)
    return high


# ---- decode: weights, K/V, the rest --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSplit:
    """A decode step at one value, in seconds: two predicted parts, the measured whole, the rest."""

    value: int
    columns: int
    batch: int
    weights_s: float  # weight bytes / bandwidth
    kv_s: float  # K/V bytes / bandwidth
    measured_s: float  # median step
    predicted_s: float  # least time: FLOPs may take longer than bytes

    @property
    def rest_s(self) -> float:
        """What the prediction leaves: below 0 where the step beats the ceilings."""
        return self.measured_s - self.weights_s - self.kv_s


def decode_splits(result: ExperimentLog) -> list[DecodeSplit]:
    """One for each value of a sweep; empty without ceilings or formula."""
    started, ceilings = result.started, result.ceilings
    if started is None or started.spec is None or ceilings is None:
        return []
    found = []
    for point in points_of(result):
        if point.decode_s is None:
            continue
        # The middle of the run: half of its new tokens are there already.
        columns = point.columns + max(started.settings.new_tokens - 1, 1) // 2 + 1
        try:
            here = decode_cost(
                started.spec, started.settings.dtype, columns=columns, batch=point.batch
            )
        except (KeyError, ValueError):
            return []
        if here.weight_bytes_read is None:  # experts chosen by token
            return []
        bandwidth = ceilings.bandwidth.per_s
        predicted = least(ceilings, started, here)
        found.append(
            DecodeSplit(
                value=point.value,
                columns=columns,
                batch=point.batch,
                weights_s=here.weight_bytes_read / bandwidth,
                kv_s=(here.kv_bytes_read + here.kv_bytes_written) / bandwidth,
                measured_s=point.decode_s.median,
                predicted_s=predicted.seconds if predicted else 0.0,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtake:
    """Where K/V overtake the weights, in columns x sequences: by bytes (predicted) and by time."""

    by_bytes: float
    by_time: float | None  # with K/V read at the fitted rate


def overtake(result: ExperimentLog, kv_share: float | None) -> Overtake | None:
    """`weight bytes / bytes of a row`. None without a formula. `kv_share`: of the bandwidth, at
    which rows were found to be read."""
    started = result.started
    if started is None or started.spec is None:
        return None
    spec, dtype = started.spec, started.settings.dtype
    try:
        row = cost.row_read_bytes(spec, dtype)
        here = decode_cost(spec, dtype, columns=1, batch=1)
    except (KeyError, ValueError):
        return None
    if here.weight_bytes_read is None:
        return None
    by_bytes = here.weight_bytes_read / row
    # Slower rows overtake earlier; rows that read faster than memory are in a cache.
    return Overtake(by_bytes=by_bytes, by_time=by_bytes * min(kv_share, 1.0) if kv_share else None)


def exceeds(ceilings: Ceilings, splits: Sequence[DecodeSplit]) -> list[int]:
    """Values at which the predicted decode time is longer than the measured one by more than the
    ceiling's own spread."""
    spread = max(ceilings.bandwidth.spread, *(one.spread for one in ceilings.flops.values()), 0.0)
    return [one.value for one in splits if one.predicted_s > one.measured_s * (1 + spread)]


# ---- steps under the roof ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """Like steps of a sweep under the roofline: medians."""

    phase: str
    batch: int
    columns: int
    num_new: int
    num: int
    intensity: float  # FLOPs a byte
    flops_per_s: float
    bytes_per_s: float
    seconds: float
    mfu: float | None
    mbu: float | None


def dots(result: ExperimentLog) -> list[Dot]:
    """A dot for each kind of step: of prefill each piece, of decode the whole run."""
    groups: dict[tuple, list[roofline.StepPoint]] = {}
    for log in result.runs():
        value = log.started.prompt_columns
        for point in roofline.step_points(log):
            if point.intensity is None or point.seconds <= 0:
                continue
            at = (point.num_new, point.columns) if point.phase == "prefill" else (1, value)
            groups.setdefault((point.phase, point.batch, *at), []).append(point)
    ceilings = result.ceilings
    rate = roofline.rate_of(ceilings, result.started) if ceilings and result.runs() else None
    found = []
    for (phase, batch, num_new, columns), points in sorted(groups.items()):
        seconds = median(point.seconds for point in points)
        flops = sum(point.flops for point in points) / len(points)
        moved = sum(point.num_bytes for point in points) / len(points)
        found.append(
            Dot(
                phase=phase,
                batch=batch,
                columns=columns,
                num_new=num_new,
                num=len(points),
                intensity=flops / moved,
                flops_per_s=flops / seconds,
                bytes_per_s=moved / seconds,
                seconds=seconds,
                mfu=roofline.mfu(rate, flops, seconds),
                mbu=None if ceilings is None else roofline.mbu(ceilings, moved, seconds),
            )
        )
    return found


# ---- what a token costs --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """One token, of prefill or of decode."""

    seconds: float  # measured
    num_bytes: float | None  # read and written for it, predicted
    flops: float | None  # predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCosts:
    """A prefill token against a decode token, at batch 1 and at the best batch that was
    measured."""

    prefill: TokenCost
    prefill_columns: int
    decode: TokenCost
    best: TokenCost
    best_batch: int
    ratios: dict[int, float]  # batch -> decode token over prefill token, in seconds
    price_batch: tuple[float | None, float | None]  # batch at which the ratio is 5 and 4


def token_costs(result: ExperimentLog) -> TokenCosts | None:
    """From a batch sweep: prefill and decode at each batch. None without batch 1."""
    points = [p for p in points_of(result) if p.prefill_s and p.itl_s]
    ones = [p for p in points if p.batch == 1]
    if not ones or result.started is None:
        return None
    first = ones[0]
    per_prefill = {p.batch: p.prefill_s.median / (p.columns * p.batch) for p in points}
    per_decode = {p.batch: p.itl_s.median / p.batch for p in points}
    best = min(per_decode, key=per_decode.get)
    ratios = {batch: per_decode[batch] / per_prefill[batch] for batch in sorted(per_decode)}
    top = next(p for p in points if p.batch == best)
    return TokenCosts(
        prefill=_prefill_token(result.started, first, per_prefill[1]),
        prefill_columns=first.columns,
        decode=_decode_token(result.started, first, per_decode[1]),
        best=_decode_token(result.started, top, per_decode[best]),
        best_batch=best,
        ratios=ratios,
        price_batch=(_batch_at(ratios, PRICE_RATIO[1]), _batch_at(ratios, PRICE_RATIO[0])),
    )


def _prefill_token(started: RunStarted, point: Point, seconds: float) -> TokenCost:
    if started.spec is None:
        return TokenCost(seconds=seconds, num_bytes=None, flops=None)
    try:
        pieces = prefill_cost(
            started.spec,
            started.settings.dtype,
            columns=point.columns,
            batch=point.batch,
            chunk_len=started.settings.chunk_len,
        )
    except (KeyError, ValueError):
        return TokenCost(seconds=seconds, num_bytes=None, flops=None)
    return _token_cost(seconds, pieces, point.columns * point.batch)


def _decode_token(started: RunStarted, point: Point, seconds: float) -> TokenCost:
    if started.spec is None:
        return TokenCost(seconds=seconds, num_bytes=None, flops=None)
    try:
        step = decode_cost(
            started.spec, started.settings.dtype, columns=point.columns + 1, batch=point.batch
        )
    except (KeyError, ValueError):
        return TokenCost(seconds=seconds, num_bytes=None, flops=None)
    return _token_cost(seconds, [step], point.batch)


def _token_cost(seconds: float, steps: Sequence[cost.StepCost], num: int) -> TokenCost:
    """The share of each of `num` tokens in some steps."""
    moved = [one.num_bytes for one in steps]
    return TokenCost(
        seconds=seconds,
        num_bytes=None if None in moved else sum(moved) / num,
        flops=sum(one.flops for one in steps) / num,
    )


def _batch_at(ratios: dict[int, float], ratio: float) -> float | None:
    """The batch at which the ratio passes `ratio`, between two that were measured (the ratio as a
    straight line over the logarithm of the batch); None where it does not."""
    batches = sorted(ratios)
    for low, high in zip(batches, batches[1:], strict=False):
        a, b = ratios[low], ratios[high]
        if min(a, b) <= ratio <= max(a, b) and a != b:
            share = (ratio - a) / (b - a)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Turn k of a chat. Prices are in the visitor's unit for a million tokens."""

    number: int
    read_tokens: int  # the whole conversation, read again
    new_tokens: int  # what is new in it
    price: float
    cached_price: float  # if only what is new were read, as with a prefix cache
    seconds: float | None  # TTFT at that length, by the fitted curve


def turns(
    *,
    num: int,
    user_tokens: int,
    answer_tokens: int,
    system_tokens: int,
    price_in: float,
    price_out: float,
    line: fits.Fit | None = None,
) -> list[Turn]:
    """`system + k x user + (k - 1) x answer` tokens are read in turn k."""
    found = []
    for k in range(1, num + 1):
        read = system_tokens + k * user_tokens + (k - 1) * answer_tokens
        new = user_tokens + (system_tokens if k == 1 else answer_tokens)
        written = answer_tokens * price_out / 1e6
        found.append(
            Turn(
                number=k,
                read_tokens=read,
                new_tokens=new,
                price=read * price_in / 1e6 + written,
                cached_price=new * price_in / 1e6 + written,
                seconds=None if line is None else line.at(tokens=read, square=read * read),
            )
        )
    return found


def to_csv(results: Sequence[ExperimentLog]) -> str:
    """The points of sweeps as comma-separated values, seconds; empty where there is none."""
    lines = ["sweep,value,columns,batch,runs,figure,median_s,p10_s,p90_s,samples"]
    for result in results:
        for point in points_of(result):
            for name in ("ttft_s", "prefill_s", "itl_s", "decode_s"):
                one = getattr(point, name)
                figures = ("", "", "", 0)
                if one is not None:
                    ends = ("" if end is None else end for end in (one.p10, one.p90))
                    figures = (one.median, *ends, len(one.values))
                row = (result.settings.what, point.value, point.columns, point.batch)
                lines.append(",".join(map(str, (*row, point.num_runs, name[:-2], *figures))))
    return "\n".join(lines) + "\n"
