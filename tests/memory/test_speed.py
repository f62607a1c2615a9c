"""The bounds of a step on a device, against sums made by hand and against what was measured."""

import pytest

from viz_engine.memory import devices, speed
from viz_engine.memory.speed import Work

A100 = devices.device("NVIDIA A100 80 GB SXM")


def test_an_a100_cannot_decode_llama_2_7b_faster_than_its_memory() -> None:
    # gpt-fast: 104.9 tokens/s at 1 397 GB/s, so 13.3 GB a token.
    read = int(1397e9 / 104.9)
    time = speed.step_time(Work(flops=2 * 6_738_415_616, num_bytes=read), A100, "bf16")
    assert time.least.bound_by == "memory" and 1 / time.bound_s == pytest.approx(
        2039 / 1397 * 104.9
    )
    assert time.bound_s < time.fast_s < 1 / 104.9 < time.slow_s  # what was measured lies within


def test_reading_a_long_prompt_is_bound_by_compute() -> None:
    # 2 x weights x tokens, and half a square of pairs in each of 32 layers
    flops = 2 * 6_607_077_376 * 4096 + 32 * 4 * 4096 * (4096 * 4097 // 2)
    time = speed.step_time(Work(flops=flops, num_bytes=14 * 10**9), A100, "bf16")
    assert time.least.bound_by == "compute" and time.bound_s == pytest.approx(flops / 312e12)


def test_two_ranks_halve_the_compute_and_not_the_bytes_of_a_rank() -> None:
    work = Work(flops=10**15, num_bytes=10**9)
    one, two = (speed.step_time(work, A100, "bf16", ranks=n) for n in (1, 2))
    assert two.least.compute_s == one.least.compute_s / 2
    assert two.least.memory_s == one.least.memory_s


def test_without_a_rate_a_step_has_a_time_only_where_the_bytes_decide() -> None:
    apple, few = devices.device("Apple M3 Ultra 512 GB"), Work(flops=10**12, num_bytes=819 * 10**9)
    found = speed.step_time(few, apple, "bf16")
    assert found.rate is None and found.bound_s == 1.0
    many = Work(flops=10**18, num_bytes=few.num_bytes)
    assert speed.step_time(many, apple, "bf16") is None
    assert speed.step_time(few, devices.this_machine(), "bf16") is None


def test_no_known_device_is_bound_by_compute_where_the_bytes_are_said_to_decide() -> None:
    known = [d for d in devices.devices() if d.bandwidth and d.flops_per_s("bf16")]
    shares = speed.COMPUTE_SHARE[0] / speed.BANDWIDTH_SHARE[1]
    ridges = [d.flops_per_s("bf16").plain / d.bandwidth.plain * shares for d in known]
    assert min(ridges) > speed.MEMORY_BOUND_BELOW


def test_all_experts_are_the_slow_end_only() -> None:
    least, most = Work(flops=1, num_bytes=10**9), Work(flops=1, num_bytes=10**10)
    dense, mixture = (speed.step_time(least, A100, "bf16", most=m) for m in (None, most))
    assert mixture.bound_s == dense.bound_s and mixture.fast_s == dense.fast_s
    assert mixture.slow_s == pytest.approx(10 * dense.slow_s)
