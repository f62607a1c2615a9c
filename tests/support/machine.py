"""A machine that is played: runs and sweeps as it would have made them, and its ceilings.

Its times are made here from its rates, by another formula than the fit's where it can be (compute
and memory overlap on request), with noise. Nothing of `diagnose` is used.
"""

import dataclasses
import itertools
import random

from tests.support.experiments import swept
from tests.support.producer import log as produced
from viz_engine.run import cost
from viz_engine.run.ceilings import Ceiling, Ceilings
from viz_engine.run.cost import StepCost
from viz_engine.run.events import RunFinished, RunSettings, StepFinished
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.log import RunLog
from viz_engine.run.sweep import SweepSettings


def made_ceilings(bandwidth: float = 20e9, rates: dict[str, float] | None = None) -> Ceilings:
    def ceiling(per_s: float) -> Ceiling:
        return Ceiling(per_s=per_s, spread=0.05, num=9, kernel="x")

    return Ceilings(
        machine="toy",
        device="cpu",
        num_threads=2,
        measured_at="2026-01-01T00:00:00+00:00",
        buffer_bytes=2**29,
        bandwidth=ceiling(bandwidth),
        kernels={"sum": bandwidth},
        flops={name: ceiling(rate) for name, rate in (rates or {"float32": 1e11}).items()},
    )


RATE, BANDWIDTH = 1e11, 2e10  # FLOP/s and bytes/s of the played machine's ceilings
CEILINGS = made_ceilings(BANDWIDTH, {"float32": RATE})
LENGTHS = (64, 128, 256, 512, 1024, 2048)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What takes how long. Rates are shares of the ceilings."""

    rate: float = 0.8
    kv_rate: float = 0.9
    weight_rate: float = 0.9
    overhead_s: float = 0.0005  # of each step
    setup_s: float = 0.0002  # before each run
    growth_s: float = 0.0  # where memory for rows is reserved
    overlap: bool = False
    noise: float = 0.03
    ceilings: Ceilings = CEILINGS

    @property
    def most(self) -> float:
        """FLOPs a second of the roof; nothing is widened to float32."""
        return self.ceilings.flops[self.ceilings.roof("bfloat16", widened=False)].per_s

    def seconds(self, here: StepCost, dice: random.Random) -> float:
        compute = here.flops / (self.rate * self.most)
        bandwidth = self.ceilings.bandwidth.per_s
        memory = here.weight_bytes_read / (self.weight_rate * bandwidth)
        memory += (here.kv_bytes_read + here.kv_bytes_written) / (self.kv_rate * bandwidth)
        both = max(compute, memory) if self.overlap else compute + memory
        return (self.overhead_s + both) * dice.lognormvariate(0, self.noise)

    def run(self, batch: int, length: int, new_tokens: int, seed: int) -> RunLog:
        """A run as this machine would have made it."""
        dice = random.Random(seed)
        shape = produced((length,) * batch, new_tokens, sampled=False)
        log = RunLog()
        clock, columns, reserved = 0, 0, None
        for event in shape:
            if isinstance(event, StepFinished):
                here = _cost(shape, event, columns)
                columns = max(event.context_len)
                grew = reserved is not None and event.kv_reserved_bytes != reserved
                gap = self.setup_s * dice.lognormvariate(0, self.noise) if reserved is None else 0
                seconds = self.seconds(here, dice) + grew * self.growth_s
                reserved = event.kv_reserved_bytes
                start = clock + round(gap * 1e9) + 20_000
                clock = start + round(seconds * 1e9)
                event = dataclasses.replace(event, start_ns=start, end_ns=clock)
            elif isinstance(event, RunFinished):
                event = dataclasses.replace(event, end_ns=clock)
            else:
                clock = event.accepted_ns
            log.append(event)
        return log

    def length_sweep(self, seed: int = 0, new_tokens: int = 4) -> list[RunLog]:
        return [
            self.run(1, length, new_tokens, seed * 1000 + repeat * 100 + i)
            for repeat in range(3)
            for i, length in enumerate(LENGTHS)
        ]

    def context_sweep(self, seed: int = 0, new_tokens: int = 40) -> list[RunLog]:
        """Lengths that reach a multiple of 256 within the run, so that rows are reserved there."""
        return [
            self.run(1, length, new_tokens, seed * 1000 + repeat * 100 + i)
            for repeat in range(3)
            for i, length in enumerate((240, 1000, 2030, 4080))
        ]

    def crossed_sweep(self, seed: int = 0) -> list[RunLog]:
        """Batch and context, each against the other."""
        return [
            self.run(batch, length, 24, seed * 1000 + repeat * 100 + batch + length)
            for repeat in range(2)
            for batch, length in itertools.product((1, 4, 16), (64, 1024, 2048))
        ]


def _cost(log: RunLog, step: StepFinished, before: int) -> StepCost:
    columns = max(step.context_len)
    return cost.step(
        log.started.spec,
        log.started.settings.dtype,
        batch=log.started.settings.batch,
        num_new=columns - before,
        num_columns=columns,
        prompt_columns=log.started.prompt_columns,
        cached=True,
    )


def result(logs: list[RunLog], what: str = "ttft") -> ExperimentLog:
    run = RunSettings(model="m", prompts=("a",), new_tokens=24)
    return swept(SweepSettings(what=what, run=run, values=(64,)), logs, CEILINGS)
