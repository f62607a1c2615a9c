"""The roofline of a machine: its two ceilings, where a step stands under them, what it should take.

A step that computes `flops` and moves `bytes` takes at least `max(flops / rate, bytes / bandwidth)`
(Williams, Waterman, Patterson, "Roofline", CACM 2009). The ceilings are measured by `ceilings.py`
in the engine process and kept in the user's cache folder; here they are read, without torch.

Try it: `python -m viz_engine ceilings`
"""

from dataclasses import dataclass

from viz_engine.run import cost
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.cost import LeastTime
from viz_engine.run.events import RunStarted
from viz_engine.run.log import RunLog

# ---- the roof of a run ---------------------------------------------------------------------------


def roof_of(ceilings: Ceilings, started: RunStarted) -> str | None:
    """The number format whose rate a run stands under. Its kernels for a few rows are other ones
    than the products whose rate was measured, and can be faster than its own format's: where the
    run says that it widens products to float32, the best of both rates is the ceiling of all."""
    widened = any(part.name == "prefill_in_float32" and part.on for part in started.parts)
    return ceilings.roof(started.settings.dtype, widened=widened)


def rate_of(ceilings: Ceilings, started: RunStarted) -> float | None:
    """FLOPs a second that a run can reach at most."""
    roof = roof_of(ceilings, started)
    return None if roof is None else ceilings.flops[roof].per_s


# ---- steps under the roof ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One step with what it cost. Seconds are measured, bytes counted, FLOPs predicted."""

    phase: str
    batch: int
    num_new: int  # columns fed
    columns: int  # attended, of one sequence
    seconds: float
    gap_s: float  # between the end of the step before (or acceptance) and its start
    linear_flops: int | None
    attention_flops: int | None
    weight_bytes: int | None
    kv_bytes: int | None  # read and written
    grew: bool  # memory for rows was reserved in it or right before it

    @property
    def flops(self) -> int | None:
        return None if self.linear_flops is None else self.linear_flops + self.attention_flops

    @property
    def num_bytes(self) -> int | None:
        """None as soon as a part is not known: a sum of parts would be too small."""
        if self.weight_bytes is None or self.kv_bytes is None:
            return None
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte."""
        return self.flops / self.num_bytes if self.flops and self.num_bytes else None


def step_points(log: RunLog) -> list[StepPoint]:
    """Each step of a run. What a source does not tell is None."""
    points, reserved = [], None
    last_ns = log.started.accepted_ns if log.started else 0
    for at, (step, predicted) in enumerate(log.with_costs()):
        kv = (step.kv_bytes_read, step.kv_bytes_written)
        points.append(
            StepPoint(
                phase=step.phase,
                batch=log.started.settings.batch,
                num_new=log.columns_fed(at),
                columns=log.columns[at],
                seconds=step.duration_ns / 1e9,
                gap_s=(step.start_ns - last_ns) / 1e9,
                linear_flops=predicted and predicted.linear_flops,
                attention_flops=predicted and predicted.attention_flops,
                weight_bytes=step.weight_bytes_read,
                kv_bytes=None if None in kv else sum(kv),
                grew=step.kv_reserved_bytes is not None and step.kv_reserved_bytes != reserved,
            )
        )
        reserved, last_ns = step.kv_reserved_bytes, step.end_ns
    return points


def predict(
    ceilings: Ceilings, rate: float | None, *, flops: float | None, num_bytes: float | None
) -> LeastTime | None:
    """The least time under the ceilings; None where FLOPs, bytes or the rate have no basis."""
    if rate is None or flops is None or num_bytes is None:
        return None
    bandwidth = ceilings.bandwidth.per_s
    return cost.least_time(flops, num_bytes, flops_per_s=rate, bytes_per_s=bandwidth)


def mfu(rate: float | None, flops: float | None, seconds: float) -> float | None:
    """Model FLOPs utilisation: FLOPs a second over the rate (PaLM, 2022)."""
    return flops / seconds / rate if flops is not None and rate and seconds > 0 else None


def mbu(ceilings: Ceilings, num_bytes: float | None, seconds: float) -> float | None:
    """Model bandwidth utilisation: bytes a second over the bandwidth (Databricks, 2023)."""
    if num_bytes is None or seconds <= 0:
        return None
    return num_bytes / seconds / ceilings.bandwidth.per_s
