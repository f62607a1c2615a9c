"""How many people a memory pool serves, and how fast a step can be at best. Predictions only.

Little's law for the first, bytes over bandwidth and FLOPs over rate for the second. It works on
plain numbers: what a model reads and keeps is `plan.py`'s and `cost.py`'s to say.

Try it: `python -c "from viz_engine.memory import capacity; \
print(capacity.served(14, 20.0, think_s=30))"`
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from viz_engine.memory.devices import Device, Figure

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
class Work:
    """What one step takes: FLOPs of all ranks together, bytes read and written by the rank that
    moves the most."""

    flops: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step. No step is faster than `bound_s`; one is expected from `fast_s` to
    `slow_s`. `compute_s` is None where the device's rate is not known: the step then has so few
    FLOPs a byte that the bytes decide."""

    memory_s: float
    compute_s: float | None
    fast_s: float
    slow_s: float
    bandwidth: Figure
    rate: Figure | None

    @property
    def bound_s(self) -> float:
        return max(self.memory_s, self.compute_s or 0.0)

    @property
    def bound_by(self) -> str:
        return "compute" if (self.compute_s or 0.0) > self.memory_s else "memory"


def step_time(
    least: Work, device: Device, dtype: str, *, ranks: int = 1, most: Work | None = None
) -> StepTime | None:
    """Time of a step on `ranks` devices that share it: `max(bytes / bandwidth, FLOPs / (rate x
    ranks))`; what they send one another is not counted, so it stays a lower bound.

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
    most = most or least

    def seconds(work: Work, memory_share: float, compute_share: float) -> float:
        compute = work.flops / (rate.plain * ranks * compute_share) if rate else 0.0
        return max(work.num_bytes / (bandwidth * memory_share), compute)

    return StepTime(
        memory_s=least.num_bytes / bandwidth,
        compute_s=least.flops / (rate.plain * ranks) if rate else None,
        fast_s=seconds(least, BANDWIDTH_SHARE[1], COMPUTE_SHARE[1]),
        slow_s=seconds(most, BANDWIDTH_SHARE[0], COMPUTE_SHARE[0]),
        bandwidth=device.bandwidth,
        rate=rate,
    )


def prefill_flops(weights: int, layers: list[tuple[int, int | None]], num_tokens: int) -> int:
    """FLOPs of reading `num_tokens` tokens at once, at least: `2 x weights x tokens`, and for each
    layer of (FLOPs of a pair, window or None) each pair of a query and a position that it sees. A
    causal query sees itself and what is before it: half a square."""
    return 2 * weights * num_tokens + sum(
        flops * num_pairs(num_tokens, window) for flops, window in layers
    )


def decode_flops(weights: int, layers: list[tuple[int, int | None]], context_len: int) -> int:
    """FLOPs of one new token whose query sees `context_len` positions, its own included."""
    return 2 * weights + sum(
        flops * min(context_len, window or context_len) for flops, window in layers
    )


def num_pairs(num_tokens: int, window: int | None = None) -> int:
    """Pairs of a query and a position that it sees: `n (n + 1) / 2`, less what lies outside of the
    window."""
    outside = max(num_tokens - window, 0) if window else 0
    return num_tokens * (num_tokens + 1) // 2 - outside * (outside + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What an average visitor asks: lengths in tokens, the pause before they ask again."""

    prompt_len: int
    output_len: int
    think_s: float = 0.0

    @property
    def peak_len(self) -> int:
        return self.prompt_len + self.output_len

    @property
    def mean_held_len(self) -> int:
        """Rows that a request holds on average while it is answered: its prompt and half of its
        answer, which grows evenly."""
        return self.prompt_len + math.ceil(self.output_len / 2)

    def duration_s(self, ttft_s: float, itl_s: float) -> float:
        """From asking to the last token: `TTFT + (tokens - 1) x ITL`."""
        return ttft_s + max(self.output_len - 1, 0) * itl_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a pool that holds `sequences` requests at a time serves."""

    sequences: int
    requests_per_s: float
    users: int


def served(sequences: int, duration_s: float, *, think_s: float = 0.0) -> Served:
    """Little's law, `N = X x (R + Z)`: with N requests in flight, each R seconds long, X = N / R
    requests leave a second; each of U users asks once every R + Z seconds, so U = X (R + Z)."""
    rate = sequences / duration_s if duration_s > 0 else 0.0
    return Served(
        sequences=sequences,
        requests_per_s=rate,
        users=int(rate * (duration_s + think_s) + 1e-9),
    )


def steady(
    requests_per_s: float, room: int, duration_s: Callable[[int], float]
) -> tuple[int, float] | None:
    """(requests in flight, their duration) when that many arrive a second: the fewest for which
    Little's law holds with the duration that they themselves cause, `L >= X R(L)`. `duration_s` of
    a number in flight never falls. None where even `room` of them, all that fit, are too slow."""
    low, high = 1, room
    if room < 1 or in_flight(requests_per_s, duration_s(room)) > room:
        return None
    while low < high:
        middle = (low + high) // 2
        if in_flight(requests_per_s, duration_s(middle)) <= middle:
            high = middle
        else:
            low = middle + 1
    return low, duration_s(low)


def in_flight(requests_per_s: float, duration_s: float) -> float:
    """Requests that are held at a time when that many arrive a second: Little's law, `L = X R`."""
    return requests_per_s * duration_s
