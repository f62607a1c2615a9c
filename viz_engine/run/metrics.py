"""RunLog -> TTFT, ITL, TPOT, tokens/s, and the predicted cost beside each step.

Pure functions of a log. Definitions are vLLM's: TTFT from accepted to the end of the step that
gave the first token; ITL the gaps between the ends of token-giving steps; TPOT (latency - TTFT) /
(tokens - 1). Where there is no basis the value is None.

Try it: `python -c "from viz_engine.run.log import RunLog; from viz_engine.run import metrics; \
print(metrics.summary(RunLog.read(open('run.jsonl','rb').read())))"`
"""

from dataclasses import dataclass

from viz_engine.run import cost
from viz_engine.run.events import RunStarted, StepFinished
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
    decode_tokens = sum(len(ids) for step in steps[1:] for ids in step.token_ids)
    return Summary(
        ttft_ns=first,
        num_tokens=num_tokens,
        num_gaps=len(gaps),
        itl_median_ns=percentile(gaps, 0.5),
        itl_p95_ns=percentile(gaps, 0.95),
        tpot_ns=sum(gaps) / len(gaps) if gaps else None,
        tokens_per_s=decode_tokens * 1e9 / sum(gaps) if sum(gaps) else None,
    )


def predicted_step(
    started: RunStarted, step: StepFinished, columns_before: int
) -> tuple[cost.StepCost, cost.StepCost]:
    """What `cost.py` says that this step costs, and what the same token would cost without a cache.

    `columns_before` is `RunLog.num_columns` before the step was appended.
    """
    cached = started.settings.cache != "none"
    prefill = step.phase == "prefill"
    columns = max(step.context_len) if prefill else columns_before + 1
    common = {
        "batch": started.settings.batch,
        "num_columns": columns,
        "prompt_columns": started.prompt_columns,
    }
    new = columns - columns_before if cached else columns
    dtype = started.settings.dtype
    here = cost.step(started.spec, dtype, num_new=new, cached=cached, **common)
    without = cost.step(started.spec, dtype, num_new=columns, cached=False, **common)
    return here, without
