"""Who a choice serves: the ranges, the curve, the cost."""

from dataclasses import replace

import pytest

from tests.support.deployments import choose
from viz_engine.memory import capacity, estimate, lengths, service
from viz_engine.memory.capacity import Workload


def served(prompt: int, output: int, think: float = 30.0, **changes):
    load = Workload(lengths=lengths.averages(prompt, output), think_s=think)
    found = estimate.make(replace(choose(engine="vllm", **changes), load=load))
    return found, service.of(found)


def test_other_people_s_prompts_cost_everybody_something() -> None:
    """Llama-3.1-8B on an H100, 8 192 / 128 tokens: more people than prompts can be read for is
    never the answer."""
    found, made = served(8192, 128)
    low, high = made.paged.requests_per_s
    assert low < high <= made.bound_per_s
    assert low == pytest.approx(1 / (made.ttft_s + 127 * made.itl_s / made.room))
    assert made.read_s == made.ttft_s  # a forward takes one such prompt
    assert high == pytest.approx(min(1 / made.read_s, made.room / (127 * made.itl_s)))


def test_short_prompts_share_the_reading_of_the_weights_where_all_overlaps() -> None:
    _, made = served(64, 32)
    assert made.read_s < made.ttft_s / 4
    low, high = made.paged.requests_per_s
    assert high <= made.bound_per_s and made.bound_per_s > 1 / made.ttft_s


def test_a_spread_of_lengths_costs_more_than_its_averages() -> None:
    found, plain = served(4096, 512)
    load = Workload(lengths=lengths.spread(4096, 512, 4.0), think_s=30.0)
    spread = service.of(estimate.make(replace(found.choice, load=load)))
    assert spread.ttft_s > plain.ttft_s  # attention grows with the square
    assert spread.room < plain.room


def test_the_curve_goes_from_one_request_to_all_that_fit_and_stays_under_its_bound() -> None:
    found, made = served(2048, 512)
    points = service.speeds(found, made)
    assert points[0].sequences == 1 and points[-1].sequences == made.room
    for point in points:
        assert point.slow[0] <= point.fast[0] <= point.bound[0]
        assert point.slow[1] <= point.fast[1] <= point.bound[1]
    given = [point.bound for point in points]
    assert [one for one, _ in given] == sorted((one for one, _ in given), reverse=True)
    assert [gpu for _, gpu in given] == sorted(gpu for _, gpu in given)


def test_the_cost_is_the_price_of_the_seconds_that_a_million_tokens_take() -> None:
    found, made = served(2048, 512)
    written, every = service.costs(found.choice, made.paged, 3.6)
    for rate, cost in zip(reversed(made.paged.requests_per_s), written, strict=True):
        assert cost == pytest.approx(1e6 / (rate * 512) * 0.001)
    assert every[0] == pytest.approx(written[0] * 512 / 2560)


def test_two_gpus_a_copy_share_its_tokens_and_its_price() -> None:
    found, made = served(2048, 512, tp=2)
    assert service.gpus_of_a_copy(found.choice) == 2
    point = service.speeds(found, made)[-1]
    assert point.bound[1] == pytest.approx(point.bound[0] * point.sequences / 2)


def test_nobody_is_served_where_nothing_fits() -> None:
    found = estimate.make(choose("llama-3.3-70b", engine="vllm"))
    made = service.of(found)
    assert made.paged is None and service.speeds(found, made) == []
    assert capacity.served(0, ttft_s=1, itl_s=1, output_len=5).users == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "vllm", "state_blocks": 2, "num_draft_tokens": 3, "block_len": 32},
        {"engine": "llama.cpp", "unified": True},
        {"engine": "sglang", "block_len": 64},
    ],
)
def test_an_option_of_an_engine_leaves_what_has_no_engine_alone(options: dict) -> None:
    """The cache of one request, its times: nothing is rounded there, whatever is asked."""
    found, plain = estimate.make(choose(**options)), estimate.make(choose(engine="exact"))
    assert service.of(found).paged.users[0] > 0
    assert found.request.kv_bytes == plain.request.kv_bytes
    assert found.itl.work.num_bytes == plain.itl.work.num_bytes


def test_the_stages_of_a_pipeline_read_prompts_at_the_same_time() -> None:
    _, one = served(8192, 128)
    found, staged = served(8192, 128, pp=2)
    assert staged.bound_per_s == pytest.approx(2 * one.bound_per_s)
    for point in service.speeds(found, staged):
        assert point.slow[1] <= point.fast[1] <= point.bound[1]


def test_gpus_outside_a_whole_copy_are_paid_too() -> None:
    found, made = served(2048, 512, tp=2)
    one = service.costs(found.choice, made.paged, 1.0)[0][0]
    five = replace(found.choice, num_devices=5)  # two copies, and one to spare
    assert service.costs(five, made.paged, 1.0)[0][0] == pytest.approx(one * 5 / 4)
