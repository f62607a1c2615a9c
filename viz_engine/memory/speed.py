"""How fast a step can be at best on a device, and from where to where it is expected.

The least time is `cost.py`'s; here it meets a device of the table, with the share of its figures
that real systems reach. It knows nothing of models.

Try it: `python -c "from viz_engine.memory import devices, speed; \
print(speed.step_time(speed.Work(flops=10**12, num_bytes=10**10), \
devices.device('NVIDIA L4'), 'bf16'))"`
"""

import math
from dataclasses import dataclass

from viz_engine.memory.devices import Device, Figure
from viz_engine.run import cost
from viz_engine.run.cost import LeastTime, Work

# Share of the datasheet's rate that real steps reach, worst and best of these sources.
# Bandwidth: real decoding takes 1.4 to 2.3 times the roofline (github.com/hahnyuan/LLM-Viewer
# issue 4); Llama-2-7B on an A100 reads 1 397 of 2 039 GB/s (github.com/meta-pytorch/gpt-fast);
# large kernels on an H100 reach 0.92 (github.com/pytorch/ao, roofline_utils.py).
# Compute: the same lower end; large products on an H100 reach 0.78 (same file).
BANDWIDTH_SHARE = (0.43, 0.92)
COMPUTE_SHARE = (0.43, 0.78)
# FLOPs a byte below which the bytes decide on any device. The least ridge in hardware.json is 76
# FLOPs a byte (GeForce RTX 3090, 16 bits); less than half of it leaves room for the two shares.
MEMORY_BOUND_BELOW = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step. No step is faster than `least`; one is expected from `fast_s` to
    `slow_s`. `rate` is None where the device's is not known: the step then has so few FLOPs a byte
    that the bytes decide."""

    work: Work
    least: LeastTime
    fast_s: float
    slow_s: float
    bandwidth: Figure
    rate: Figure | None

    @property
    def bound_s(self) -> float:
        return self.least.seconds


def step_time(
    least: Work, device: Device, dtype: str, *, ranks: int = 1, most: Work | None = None
) -> StepTime | None:
    """Time of a step on `ranks` devices that share it: FLOPs of all of them, bytes of the one that
    moves the most; what they send one another is not counted, so it stays a lower bound.

    `least` makes the bound, `most` (of a mixture of experts: all experts read) the slow end of
    what is expected; the efficiency range is BANDWIDTH_SHARE and COMPUTE_SHARE. `dtype` is what
    the products are computed in. None where the device's bandwidth is not known, and where its
    rate is not known and the FLOPs may decide (MEMORY_BOUND_BELOW).
    """
    if device.bandwidth is None:
        return None
    bandwidth, rate = device.bandwidth.plain, device.flops_per_s(dtype)
    if rate is None and least.flops > MEMORY_BOUND_BELOW * least.num_bytes * ranks:
        return None

    def time(work: Work, memory_share: float = 1.0, compute_share: float = 1.0) -> LeastTime:
        return cost.least_time(
            work.flops,
            work.num_bytes,
            flops_per_s=rate.plain * ranks * compute_share if rate else math.inf,
            bytes_per_s=bandwidth * memory_share,
        )

    return StepTime(
        work=least,
        least=time(least),
        fast_s=time(least, BANDWIDTH_SHARE[1], COMPUTE_SHARE[1]).seconds,
        slow_s=time(most or least, BANDWIDTH_SHARE[0], COMPUTE_SHARE[0]).seconds,
        bandwidth=device.bandwidth,
        rate=rate,
    )
