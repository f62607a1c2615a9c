"""Where the time goes, from runs alone: compute, bandwidth, a fixed overhead or memory management.

Each phase's time is split by least squares: what follows the FLOPs, what follows the K/V bytes,
what is fixed; the reading of the weights is taken at the measured bandwidth; time at moments when
memory was reserved is kept apart. A cause is named where its share is large and stays so when runs
are drawn again (bootstrap); near a ceiling it is the hardware, far below it is not. Otherwise the
verdict abstains and says what to measure. Its input is RunLogs, whoever made them.

Try it: `python -m viz_engine diagnose assets/recorded/sweeps/*.jsonl`
"""

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from viz_engine.analysis import fits, roofline
from viz_engine.analysis.roofline import StepPoint, step_points
from viz_engine.numbers import mib
from viz_engine.run import metrics
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.events import Telemetry
from viz_engine.run.log import RunLog
from viz_engine.text import Message

CAUSES = ("compute", "bandwidth", "overhead", "allocation", "inefficiency")
MAIN, SECOND = 0.5, 0.25  # shares from which a cause is the main one, and one of two
NAMED = 0.65  # what the causes that are named must explain together
MIN_RUNS, MIN_POINTS = 4, 8
RANGE = 2.0  # times the smallest: how far a feature must vary
NEAR_CEILING = 0.5  # of the ceiling: from there on it is the hardware
FAR_BELOW = 0.25  # of the bandwidth: below, reading K and V is slow for another reason
NUM_DRAWS = 60
CONFIDENT = 0.8
SEGMENT = 8  # decode steps whose median is one point
SLOWER = 1.25  # times the smallest batch's ITL: there it starts to climb


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a phase's time is spent on. `causes` is empty where it abstains; `why` then says
    why."""

    phase: str
    causes: tuple[str, ...]
    shares: Mapping[str, float]  # of the phase's time
    confidence: float | None  # share of redrawn runs with the same verdict
    evidence: tuple[Message, ...]
    unknown: tuple[Message, ...]  # what these runs cannot tell
    next: Message
    why: Message | None = None
    split: "Split | None" = None  # the fit behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinding:
    """What the batch sweep says. None where there is no basis."""

    safe_batch: int | None  # the largest whose ITL is still that of the smallest batch
    knee_batch: int | None  # where ITL has climbed; None: it did not, as far as was measured
    prefill_growth: float | None  # time for twice the batch, times
    decode_growth: float | None
    evidence: tuple[Message, ...]
    next: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFinding:
    """What memory did. `cause`: cache, flat, other; None where it cannot be told."""

    cause: str | None
    cache_share: float | None  # of the growth
    evidence: tuple[Message, ...]
    next: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings of some runs."""

    num_runs: int
    prefill: Verdict
    decode: Verdict
    batch: BatchFinding
    memory: MemoryFinding


def diagnose(
    logs: Sequence[RunLog],
    ceilings: Ceilings | None = None,
    batch_logs: Sequence[RunLog] | None = None,
) -> Diagnosis:
    """The findings, whatever the order in which the runs are given. Runs that were cancelled or
    failed are left out. `batch_logs`: those of one sweep of the batch, where there is one: its
    finding is that of its chart."""
    kept = sorted(
        filter(_counts, logs), key=lambda log: (log.started.started_at, log.started.run_id)
    )
    return Diagnosis(
        num_runs=len(kept),
        prefill=phase_verdict(kept, "prefill", ceilings),
        decode=phase_verdict(kept, "decode", ceilings),
        batch=batch_finding(kept if batch_logs is None else [*filter(_counts, batch_logs)]),
        memory=memory_finding(kept),
    )


def _counts(log: RunLog) -> bool:
    ended = log.finished
    return bool(log.steps) and ended is not None and ended.finish_reason in ("length", "stop")


# ---- a phase -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A group of like steps of one run: medians."""

    seconds: float
    flops: float
    linear_flops: float
    kv_bytes: float
    weight_bytes: float
    num: int  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run's part in a phase."""

    seen: tuple[_Seen, ...]
    total_s: float
    gap_s: float  # between steps, the waits for memory left out
    waited_s: float  # before the first step, and between steps where memory was reserved
    grown: tuple[_Seen, ...]  # steps in which memory was reserved


def phase_verdict(logs: Sequence[RunLog], phase: str, ceilings: Ceilings | None) -> Verdict:
    """The verdict on `prefill` or `decode`."""
    points = [[p for p in step_points(log) if p.phase == phase] for log in logs]
    runs = [_run(run, phase) for run in points if run]
    why = _too_little(runs, phase) if all(map(_known, points)) else Message(key="diagnose.no_sizes")
    most = roofline.rate_of(ceilings, logs[0].started) if logs and ceilings else None
    if why is None and most is None:
        why = Message(key="diagnose.no_ceilings")
    if why is not None:
        return _abstain(phase, why, {}, None)
    found = _split(runs, phase, ceilings, most)
    if found is None:
        return _abstain(phase, Message(key=f"diagnose.alike_{phase}"), {}, None)
    causes = _causes(found.shares)
    dice = random.Random(7)
    same = 0
    for _ in range(NUM_DRAWS):
        again = _split([dice.choice(runs) for _ in runs], phase, ceilings, most)
        same += again is not None and set(_causes(again.shares)) == set(causes)
    confidence = same / NUM_DRAWS
    evidence = tuple(_evidence(found, phase, ceilings, most, len(runs)))
    if set(causes) != set(_causes(found.slow_weights)):
        # The weights may be read at the bandwidth, or as slowly as the rows are: it matters here.
        why = Message(key="diagnose.weights_rate")
        return _abstain(phase, why, found.shares, confidence, evidence, found)
    if not causes:
        why = Message(key="diagnose.no_main")
        return _abstain(phase, why, found.shares, confidence, evidence, found)
    if confidence < CONFIDENT:
        why = Message(key="diagnose.unsteady", params={"share": f"{confidence:.0%}"})
        return _abstain(phase, why, found.shares, confidence, evidence, found)
    return Verdict(
        phase=phase,
        causes=causes,
        shares=found.shares,
        confidence=confidence,
        evidence=evidence,
        unknown=tuple(Message(key=f"diagnose.unknown.{cause}") for cause in causes),
        next=Message(key=f"diagnose.next.{causes[0]}_{phase}"),
        split=found,
    )


def _known(points: list[StepPoint]) -> bool:
    return all(p.flops is not None and p.num_bytes is not None for p in points)


def _run(points: list[StepPoint], phase: str) -> _Run:
    first = 0 if phase == "prefill" else -1  # decode's first gap follows prefill: nothing is set up
    still = [p for i, p in enumerate(points) if not (p.grew and (i > 0 or phase == "decode"))]
    grown = [p for i, p in enumerate(points) if p.grew and (i > 0 or phase == "decode")]
    waited = sum(p.gap_s for i, p in enumerate(points) if i == first or p.grew)
    size = 1 if phase == "prefill" else SEGMENT
    groups = [still[i : i + size] for i in range(0, len(still), size)]
    return _Run(
        seen=tuple(_group(group) for group in groups if group),
        total_s=sum(p.seconds + p.gap_s for p in points),
        gap_s=sum(p.gap_s for p in points) - waited,
        waited_s=waited,
        grown=tuple(_group([p]) for p in grown),
    )


def _group(points: list[StepPoint]) -> _Seen:
    num = len(points)
    if not _known(points):
        return _Seen(seconds=0, flops=0, linear_flops=0, kv_bytes=0, weight_bytes=0, num=num)
    return _Seen(
        seconds=median(p.seconds for p in points),
        flops=sum(p.flops for p in points) / num,
        linear_flops=sum(p.linear_flops for p in points) / num,
        kv_bytes=sum(p.kv_bytes for p in points) / num,
        weight_bytes=sum(p.weight_bytes for p in points) / num,
        num=num,
    )


def _too_little(runs: list[_Run], phase: str) -> Message | None:
    seen = [one for run in runs for one in run.seen]
    num_steps = sum(one.num for one in seen)
    if len(runs) < MIN_RUNS or num_steps < MIN_POINTS:
        params = {"runs": len(runs), "steps": num_steps, "least": MIN_RUNS, "points": MIN_POINTS}
        return Message(key="diagnose.too_few", params=params)
    name = "flops" if phase == "prefill" else "kv_bytes"
    if not fits.varies([getattr(one, name) for one in seen], RANGE):
        return Message(key=f"diagnose.one_{phase}")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A phase's time in parts: shares, and what the fit came to."""

    shares: Mapping[str, float]
    slow_weights: Mapping[str, float]  # the same, with the weights read at the rows' rate
    fit: fits.Fit
    fixed_s: float  # of a step, the weights' reading taken off
    weights_s: float  # of a step, at the bandwidth
    rate: float | None  # FLOP/s that the fitted slope means
    kv_rate: float | None  # bytes/s that the fitted slope means
    waited_s: float
    gap_s: float
    grown_s: float


def _split(runs: list[_Run], phase: str, ceilings: Ceilings, most: float) -> Split | None:
    """The split, or None where two causes rise and fall together. `most`: FLOPs a second of the
    roof."""
    seen = [one for run in runs for one in run.seen]
    bandwidth = ceilings.bandwidth.per_s
    features = {"flops": [one.flops for one in seen]}
    if phase == "decode":
        features["kv_bytes"] = [one.kv_bytes for one in seen]
        if not fits.varies([one.linear_flops for one in seen], 1.3):
            # One batch: the linear FLOPs are part of what is fixed, those of attention rise with
            # the K/V bytes.
            del features["flops"]
        elif fits.alike(features["flops"], features["kv_bytes"]):
            return None
    line = fits.fit(features, [one.seconds for one in seen])
    if line is None:
        return None
    total = sum(run.total_s for run in runs)
    num = sum(one.num for one in seen) or 1
    weights = sum(one.weight_bytes / bandwidth * one.num for one in seen)
    weights = min(weights, max(line.fixed, 0.0) * num)
    x, s = line.slopes.get("flops", 0.0), line.slopes.get("kv_bytes", 0.0)
    compute = sum(x * one.flops * one.num for one in seen)
    kv = sum(s * one.kv_bytes * one.num for one in seen)
    grown = sum(
        max(one.seconds - line.at(flops=one.flops, kv_bytes=one.kv_bytes), 0.0)
        for run in runs
        for one in run.grown
    )
    gap, waited = sum(run.gap_s for run in runs), sum(run.waited_s for run in runs)
    rate, kv_rate = 1 / x if x > 0 else None, 1 / s if s > 0 else None
    seconds = dict.fromkeys(CAUSES, 0.0)
    near = rate is None or rate >= NEAR_CEILING * most
    seconds["compute" if near else "inefficiency"] += compute
    slow = kv_rate is not None and kv_rate < FAR_BELOW * bandwidth
    if "flops" not in features and _computes_rows(seen, most / bandwidth):
        seconds["compute"] += kv
    else:
        seconds["inefficiency" if slow else "bandwidth"] += kv
    seconds["bandwidth"] += weights
    seconds["overhead"] += line.fixed * num - weights + gap
    seconds["allocation"] += waited + grown
    slower = 0.0
    if kv_rate is not None and kv_rate < bandwidth and not slow:
        slower = min(weights * bandwidth / kv_rate, line.fixed * num) - weights
    moved = {"bandwidth": slower, "overhead": -slower}
    return Split(
        shares={name: value / total for name, value in seconds.items()},
        slow_weights={
            name: (value + moved.get(name, 0.0)) / total for name, value in seconds.items()
        },
        fit=line,
        fixed_s=line.fixed - weights / num,
        weights_s=weights / num,
        rate=rate,
        kv_rate=kv_rate,
        waited_s=waited / len(runs),
        gap_s=gap / num,
        grown_s=grown / len(runs),
    )


def _computes_rows(seen: list[_Seen], ridge: float) -> bool:
    """Whether attention over one more row takes longer to compute than to read, at the ceilings:
    then what rises with the rows is computing. `ridge`: FLOPs a byte where both take as long."""
    flops = sum(one.flops - one.linear_flops for one in seen)
    return flops > ridge * sum(one.kv_bytes for one in seen)


def _causes(shares: Mapping[str, float]) -> tuple[str, ...]:
    """The causes that are large enough to be named, the larger first; none where none is."""
    ranked = sorted(shares, key=lambda name: -shares[name])
    one, two, three = ranked[:3]
    if shares[two] < SECOND:
        return (one,) if shares[one] >= max(MAIN, NAMED) else ()
    if shares[three] >= SECOND or shares[one] + shares[two] < NAMED:
        return ()
    return one, two


def _abstain(
    phase: str,
    why: Message,
    shares: Mapping[str, float],
    confidence: float | None,
    evidence: tuple[Message, ...] = (),
    split: Split | None = None,
) -> Verdict:
    following = {
        "diagnose.no_ceilings": "diagnose.next.ceilings",
        "diagnose.no_sizes": "diagnose.next.sizes",
        "diagnose.alike_decode": "diagnose.next.cross",
        "diagnose.weights_rate": "diagnose.next.other_model",
    }.get(why.key, f"diagnose.next.more_{phase}")
    return Verdict(
        phase=phase,
        causes=(),
        shares=shares,
        confidence=confidence,
        evidence=evidence,
        unknown=(),
        next=Message(key=following),
        why=why,
        split=split,
    )


def _evidence(
    found: Split, phase: str, ceilings: Ceilings, most: float, num_runs: int
) -> list[Message]:
    """The numbers behind a verdict, a sentence each."""

    def ms(seconds: float) -> str:
        return f"{seconds * 1e3:.2f}"

    def says(key: str, **params: object) -> Message:
        return Message(key=f"diagnose.{key}", params=params)

    said = [
        says("fit", runs=num_runs, points=found.fit.num, error=f"{found.fit.error:.1%}"),
        says("fixed", fixed=ms(found.fixed_s), weights=ms(found.weights_s), gap=ms(found.gap_s)),
    ]
    if found.rate is not None:
        said.append(says(_against("rate", found.rate, most), **_rates(found.rate, most)))
    if found.kv_rate is not None:
        top = ceilings.bandwidth.per_s
        said.append(says(_against("kv_rate", found.kv_rate, top), **_rates(found.kv_rate, top)))
    if phase == "prefill" or found.grown_s > 0:
        said.append(says("waited", waited=ms(found.waited_s), grown=ms(found.grown_s)))
    return said


def _against(key: str, rate: float, most: float) -> str:
    """A slope beyond the ceiling means that it holds not for what ran: that is said."""
    return key if rate <= most else f"{key}_beyond"


def _rates(rate: float, most: float) -> dict[str, str]:
    share = f"{rate / most:.0%}"
    return {"rate": f"{rate / 1e9:.1f}", "most": f"{most / 1e9:.1f}", "share": share}


# ---- concurrency and memory ----------------------------------------------------------------------


def batch_finding(logs: Sequence[RunLog]) -> BatchFinding:
    """Which phase grows with the batch at one prompt length, and the batch at which ITL starts to
    climb: the safe concurrency line."""
    cells: dict[int, dict[int, list[tuple[float, float | None]]]] = {}  # columns -> batch -> times
    for log in logs:
        points = step_points(log)
        prefill = sum(p.seconds for p in points if p.phase == "prefill")
        gaps = metrics.itl_ns(log)
        itl = median(gaps) / 1e9 if gaps else None
        batch = log.started.settings.batch
        row = cells.setdefault(log.started.prompt_columns, {})
        row.setdefault(batch, []).append((prefill, itl))
    row = max(cells.values(), key=len, default={})
    prefill = {batch: median(one for one, _ in row[batch]) for batch in sorted(row)}
    itl = {
        batch: median(gaps)
        for batch in sorted(row)
        if (gaps := [gap for _, gap in row[batch] if gap is not None])
    }
    if len(itl) < 3:
        why = Message(key="diagnose.few_batches", params={"num": len(itl)})
        nothing = dict.fromkeys(("safe_batch", "knee_batch", "prefill_growth", "decode_growth"))
        return BatchFinding(**nothing, evidence=(why,), next=Message(key="diagnose.next.batches"))
    batches = list(itl)
    limit = SLOWER * itl[batches[0]]
    knee = next((batch for batch in batches if itl[batch] > limit), None)
    safe = batches[-1] if knee is None else batches[batches.index(knee) - 1]
    growth = {"prefill": _growth(prefill), "decode": _growth(itl)}
    faster = "prefill" if growth["prefill"] > growth["decode"] else "decode"
    params = {name: f"{value:.2f}" for name, value in growth.items()}
    said = [Message(key="diagnose.growth", params=params)]
    if knee is None:
        said.append(Message(key="diagnose.no_knee", params={"most": batches[-1]}))
    else:
        params = {"safe": safe, "knee": knee, "times": f"{itl[knee] / itl[batches[0]]:.2f}"}
        said.append(Message(key="diagnose.knee", params=params))
    return BatchFinding(
        safe_batch=safe,
        knee_batch=knee,
        prefill_growth=growth["prefill"],
        decode_growth=growth["decode"],
        evidence=tuple(said),
        next=Message(key=f"diagnose.next.{faster}_batch" if knee else "diagnose.next.larger_batch"),
    )


def _growth(times: Mapping[int, float]) -> float:
    """Time for twice the batch, over the whole range: 1 is level, 2 is in proportion."""
    low, high = min(times), max(times)
    return (times[high] / times[low]) ** (1 / math.log2(high / low))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """Memory at a moment. Seconds of runs so far, waits between them left out; bytes, None where
    not known."""

    t_s: float
    run: int
    used_bytes: int | None
    kv_reserved_bytes: int | None
    utilisation: float | None
    bus_utilisation: float | None


def memory_points(logs: Sequence[RunLog]) -> list[MemoryPoint]:
    """The curve of memory over all runs: a point at each reading of the sensors, with the rows
    reserved at the step before it."""
    points, before = [], 0.0
    for number, log in enumerate(log for log in logs if log.steps):
        reserved, start = None, log.started.accepted_ns
        for event in log:
            if isinstance(event, Telemetry):
                points.append(
                    MemoryPoint(
                        t_s=before + (event.t_ns - start) / 1e9,
                        run=number,
                        used_bytes=event.memory_used_bytes,
                        kv_reserved_bytes=reserved,
                        utilisation=event.utilisation,
                        bus_utilisation=event.memory_bus_utilisation,
                    )
                )
            reserved = getattr(event, "kv_reserved_bytes", reserved)
        before += (log.steps[-1].end_ns - start) / 1e9
    return points


def memory_finding(logs: Sequence[RunLog]) -> MemoryFinding:
    """Whether what memory grows by is the cache: it is at most a byte for each byte of rows, and
    no more than the readings rise with the rows."""
    points = [
        p
        for p in memory_points(logs)
        if p.used_bytes is not None and p.kv_reserved_bytes is not None
    ]
    rows = [p.kv_reserved_bytes for p in points]
    if len(points) < MIN_POINTS or not fits.varies(rows, RANGE):
        why = Message(key="diagnose.few_readings", params={"num": len(points)})
        following = Message(key="diagnose.next.memory")
        return MemoryFinding(cause=None, cache_share=None, evidence=(why,), next=following)
    used = [float(p.used_bytes) for p in points]
    low, high = min(used), max(used)
    line = fits.fit({"rows": rows}, used)
    slope = line.slopes["rows"]
    grown = max(rows) - min(rows)
    # A byte of rows takes a byte of memory: what rises beyond that with them is something else.
    cache = min(slope, 1.0) * grown
    share = min(cache / (high - low), 1.0) if high > low else 0.0
    params = {
        "low": mib(low),
        "high": mib(high),
        "span": mib(high - low),
        "rows": mib(grown),
        "num": len(points),
        "slope": f"{slope:.2f}",
        "cache": mib(cache),
        "share": f"{share:.0%}",
    }
    said = [Message(key="diagnose.memory", params=params)]
    if high - low < 0.25 * grown:
        cause = "flat"
    else:
        said.append(Message(key="diagnose.memory_fit", params=params))
        if share >= MAIN:
            cause = "cache" if slope >= MAIN else None
        else:
            cause = "other" if share < SECOND else None
    following = Message(key=f"diagnose.next.memory_{cause}" if cause else "diagnose.next.memory")
    return MemoryFinding(cause=cause, cache_share=share, evidence=tuple(said), next=following)


# ---- as words and as JSON ------------------------------------------------------------------------


def to_dict(found: Diagnosis) -> dict[str, object]:
    """Plain JSON types; sentences in English."""

    def plain(value: object) -> object:
        if isinstance(value, Message):
            return str(value)
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    return plain(found)


def headline(verdict: Verdict) -> Message:
    """The verdict in one sentence."""
    if not verdict.causes:
        return Message(key=f"diagnose.abstains_{verdict.phase}")
    key = f"diagnose.verdict_{len(verdict.causes)}_{verdict.phase}"
    names = ("one", "two")
    params: dict[str, object] = {
        name: Message(key=f"diagnose.cause.{cause}")
        for name, cause in zip(names, verdict.causes, strict=False)
    }
    params |= {
        f"{name}_share": f"{verdict.shares[cause]:.0%}"
        for name, cause in zip(names, verdict.causes, strict=False)
    }
    return Message(key=key, params=params)


def confidence(verdict: Verdict) -> Message | None:
    """How steady a verdict is, in words. Of none there is nothing to be sure of."""
    if not verdict.causes or verdict.confidence is None:
        return None
    return Message(key="diagnose.confidence", params={"share": f"{verdict.confidence:.0%}"})


def unexplained(verdict: Verdict) -> float | None:
    """The share of the time that the parts of the fit leave, below 0 where they come to more; None
    without parts."""
    return 1 - sum(verdict.shares.values()) if verdict.shares else None


def words(found: Diagnosis) -> str:
    """The findings as lines of English."""
    lines = [f"{found.num_runs} runs"]
    for verdict in (found.prefill, found.decode):
        lines += ["", str(headline(verdict))]
        if verdict.why is not None:
            lines.append(f"  {verdict.why}")
        if (sure := confidence(verdict)) is not None:
            lines.append(f"  {sure}")
        lines += [f"  {message}" for message in (*verdict.evidence, *verdict.unknown)]
        lines.append(f"  {verdict.next}")
    for part in (found.batch, found.memory):
        lines += ["", *map(str, part.evidence), f"  {part.next}"]
    return "\n".join(lines)
