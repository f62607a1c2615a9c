"""RunLog -> TTFT, ITL, TPOT, tokens/s.

Pure functions of a log. Definitions are vLLM's: TTFT from accepted to the end of the step that
gave the first token; ITL the gaps between the ends of token-giving steps; TPOT (latency - TTFT) /
(tokens - 1). Where there is no basis the value is None.

Try it: `python -c "from viz_engine.run.log import RunLog; from viz_engine.run import metrics; \
print(metrics.summary(RunLog.read(open('run.jsonl','rb').read())))"`
"""

from dataclasses import dataclass

from viz_engine.run.events import StepFinished
from viz_engine.run.log import RunLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Times of a run, measured. Percentiles are numpy's linear ones over all gaps of the run."""

    ttft_ns: int | None
    num_tokens: int
    num_gaps: int
    itl_median_ns: float | None
    itl_p95_ns: float | None
    tpot_ns: float | None
    tokens_per_s: float | None  # decode tokens of all sequences over decode time


def token_steps(log: RunLog) -> list[StepFinished]:
    """The steps that gave at least one token."""
    return [step for step in log.steps if any(step.token_ids)]


def ttft_ns(log: RunLog) -> int | None:
    """From accepted (model loaded and warm) to the first token on the host."""
    steps = token_steps(log)
    return steps[0].end_ns - log.started.accepted_ns if steps else None


def itl_ns(log: RunLog) -> list[int]:
    """Gaps between consecutive tokens: ends of the steps that gave one."""
    ends = [step.end_ns for step in token_steps(log)]
    return [b - a for a, b in zip(ends, ends[1:], strict=False)]


def percentile(values: list[int], share: float) -> float | None:
    """Linear interpolation between the two nearest ranks (numpy's default)."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(log: RunLog) -> Summary:
    """What the page shows when a run has ended."""
    steps = token_steps(log)
    gaps = itl_ns(log)
    first = ttft_ns(log)
    num_tokens = sum(len(ids) for step in steps for ids in step.token_ids)
    batch = range(log.started.settings.batch)  # a step can give several tokens of each
    longest = max(sum(len(step.token_ids[b]) for step in steps) for b in batch)
    decode_tokens = sum(len(ids) for step in steps[1:] for ids in step.token_ids)
    return Summary(
        ttft_ns=first,
        num_tokens=num_tokens,
        num_gaps=len(gaps),
        itl_median_ns=percentile(gaps, 0.5),
        itl_p95_ns=percentile(gaps, 0.95),
        tpot_ns=sum(gaps) / (longest - 1) if gaps and longest > 1 else None,
        tokens_per_s=decode_tokens * 1e9 / sum(gaps) if sum(gaps) else None,
    )
