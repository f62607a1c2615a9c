"""Little's law and the two bounds of a step, against sums made by hand or by brute force."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viz_engine.memory import capacity, devices
from viz_engine.memory.capacity import Work, Workload

A100 = devices.device("NVIDIA A100 80 GB SXM")
SMALL = st.integers(1, 60)


def test_an_a100_cannot_decode_llama_2_7b_faster_than_its_memory() -> None:
    # gpt-fast: 104.9 tokens/s at 1 397 GB/s, so 13.3 GB a token.
    read = int(1397e9 / 104.9)
    time = capacity.step_time(Work(flops=2 * 6_738_415_616, num_bytes=read), A100, "bf16")
    assert time.bound_by == "memory" and 1 / time.bound_s == pytest.approx(2039 / 1397 * 104.9)
    assert time.bound_s < time.fast_s < 1 / 104.9 < time.slow_s  # what was measured lies within


def test_reading_a_long_prompt_is_bound_by_compute() -> None:
    flops = capacity.prefill_flops(6_607_077_376, [(4 * 4096, None)] * 32, 4096)
    time = capacity.step_time(Work(flops=flops, num_bytes=14 * 10**9), A100, "bf16")
    assert time.bound_by == "compute" and time.bound_s == pytest.approx(flops / 312e12)


def test_two_ranks_halve_the_compute_and_not_the_bytes_of_a_rank() -> None:
    work = Work(flops=10**15, num_bytes=10**9)
    one, two = (capacity.step_time(work, A100, "bf16", ranks=n) for n in (1, 2))
    assert two.compute_s == one.compute_s / 2 and two.memory_s == one.memory_s


def test_without_a_rate_a_step_has_a_time_only_where_the_bytes_decide() -> None:
    apple, few = devices.device("Apple M3 Ultra 512 GB"), Work(flops=10**12, num_bytes=819 * 10**9)
    found = capacity.step_time(few, apple, "bf16")
    assert found.compute_s is None and found.bound_s == 1.0
    many = Work(flops=10**18, num_bytes=few.num_bytes)
    assert capacity.step_time(many, apple, "bf16") is None
    assert capacity.step_time(few, devices.this_machine(), "bf16") is None


def test_no_known_device_is_bound_by_compute_where_the_bytes_are_said_to_decide() -> None:
    known = [d for d in devices.devices() if d.bandwidth and d.flops_per_s("bf16")]
    shares = capacity.COMPUTE_SHARE[0] / capacity.BANDWIDTH_SHARE[1]
    ridges = [d.flops_per_s("bf16").plain / d.bandwidth.plain * shares for d in known]
    assert min(ridges) > capacity.MEMORY_BOUND_BELOW


@given(st.floats(0.01, 50), st.integers(1, 500))
def test_requests_in_flight_are_as_slow_as_they_make_one_another(rate: float, room: int) -> None:
    def duration_s(num: int) -> float:
        return 1 + 0.02 * num

    found = capacity.steady(rate, room, duration_s)
    held = [n for n in range(1, room + 1) if rate * duration_s(n) <= n]
    assert found == ((held[0], duration_s(held[0])) if held else None)


def test_all_experts_are_the_slow_end_only() -> None:
    least, most = Work(flops=1, num_bytes=10**9), Work(flops=1, num_bytes=10**10)
    dense, mixture = (capacity.step_time(least, A100, "bf16", most=m) for m in (None, most))
    assert mixture.bound_s == dense.bound_s and mixture.fast_s == dense.fast_s
    assert mixture.slow_s == pytest.approx(10 * dense.slow_s)


@given(SMALL, SMALL)
def test_pairs_are_those_that_a_causal_mask_lets_through(num_tokens: int, window: int) -> None:
    places = itertools.product(range(num_tokens), repeat=2)
    seen = [(q, k) for q, k in places if k <= q and q - k < window]
    assert capacity.num_pairs(num_tokens, window) == len(seen)
    assert capacity.num_pairs(num_tokens) == num_tokens * (num_tokens + 1) // 2


@given(SMALL, st.integers(0, 30), st.none() | SMALL)
def test_a_prefill_costs_what_its_tokens_cost_one_by_one(
    num_tokens: int, weights: int, window: int | None
) -> None:
    layers = [(8, window), (8, None)]
    one_by_one = sum(capacity.decode_flops(weights, layers, n + 1) for n in range(num_tokens))
    assert capacity.prefill_flops(weights, layers, num_tokens) == one_by_one


def simulate(num_users: int, answer_s: float, think_s: float, hours: float) -> float:
    """Requests a second of that many users who ask, wait, pause and ask again."""
    seconds = hours * 3600
    return num_users * int(seconds / (answer_s + think_s)) / seconds


def test_users_that_pause_keep_as_many_requests_in_flight_as_little_says() -> None:
    found = capacity.served(12, 20.0, think_s=40.0)
    assert found.users == 36 and found.requests_per_s == 0.6
    assert simulate(found.users, 20.0, 40.0, hours=10) == pytest.approx(found.requests_per_s)
    assert capacity.in_flight(found.requests_per_s, 20.0) == 12


@given(st.integers(0, 10**6), st.floats(0.01, 1e5), st.floats(0, 1e5))
def test_more_room_or_longer_pauses_never_serve_fewer(n: int, answer: float, think: float) -> None:
    found = capacity.served(n, answer, think_s=think)
    assert found.users >= n
    assert capacity.served(n + 1, answer, think_s=think).users >= found.users
    assert capacity.served(n, answer, think_s=think + 1).users >= found.users


def test_an_answer_holds_half_of_itself_on_average() -> None:
    load = Workload(prompt_len=1000, output_len=200)
    held = [load.prompt_len + n for n in range(load.output_len + 1)]
    assert load.mean_held_len == sum(held) / len(held) and load.peak_len == held[-1]
    assert load.duration_s(0.5, 0.02) == pytest.approx(0.5 + 199 * 0.02)
    assert Workload(prompt_len=1, output_len=1).duration_s(0.5, 9.0) == 0.5
