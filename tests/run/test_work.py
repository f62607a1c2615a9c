"""The least work of a prompt and of a token, against masks and against tokens one by one."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viz_engine.model import config
from viz_engine.run import cost

SMALL = st.integers(1, 60)
ROWS = {"weight_bytes": 7, "kv_bytes": 5}


def model(window: int | None = None) -> config.ModelConfig:
    """Two layers, the first with a window where one is asked."""
    windowed = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": window}
    return config.read(
        {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "vocab_size": 32,
            **(windowed if window else {}),
        }
    )


@given(SMALL, SMALL)
def test_pairs_are_those_that_a_causal_mask_lets_through(num_tokens: int, window: int) -> None:
    places = itertools.product(range(num_tokens), repeat=2)
    seen = [(q, k) for q, k in places if k <= q and q - k < window]
    assert cost.num_pairs(num_tokens, window) == len(seen)
    assert cost.num_pairs(num_tokens) == num_tokens * (num_tokens + 1) // 2


@given(SMALL, st.none() | SMALL)
@settings(max_examples=40, deadline=None)
def test_a_prefill_costs_what_its_tokens_cost_one_by_one(
    num_tokens: int, window: int | None
) -> None:
    made = model(window)
    prefill = cost.prefill_work(made, prompt_len=num_tokens, **ROWS)
    tokens = [cost.decode_work(made, context_len=n + 1, **ROWS) for n in range(num_tokens)]
    one_by_one = sum(work.flops for work in tokens)
    one_by_one -= 2 * (num_tokens - 1) * cost.head_weights(made)  # logits of the last token only
    assert prefill.flops == one_by_one and prefill.num_bytes == 12


@given(SMALL, SMALL)
@settings(max_examples=40, deadline=None)
def test_half_a_square_is_what_the_mask_lets_through_and_the_whole_is_not_less(
    num_queries: int, before: int
) -> None:
    made, context = model(), num_queries + before
    given = {"num_queries": num_queries, "context_len": context}
    half = cost.attention_flops(made, **given, causal="half")
    seen = sum(before + n + 1 for n in range(num_queries))
    assert half == 2 * 4 * 8 * seen <= cost.attention_flops(made, **given)


def test_the_least_time_is_the_longer_of_its_two_parts() -> None:
    found = cost.least_time(10**12, 10**9, flops_per_s=10**12, bytes_per_s=10**10)
    assert (found.compute_s, found.memory_s, found.seconds) == (1.0, 0.1, 1.0)
    assert found.bound_by == "compute"


def test_a_model_without_described_weights_has_no_work() -> None:
    made = config.read(
        {"model_type": "bart", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
    )
    with pytest.raises(ValueError, match="no formula"):
        cost.prefill_work(made, prompt_len=4, **ROWS)
