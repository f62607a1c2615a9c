"""The calculator: claims corrected, properties that hold for every model, and the inverse.

Engines' own numbers are test_facts.py. Models here are made by hypothesis: plain, grouped, latent,
windowed, with states, and mixtures of them.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viz_engine.memory import deployment, plan, reserve
from viz_engine.memory.deployment import Settings
from viz_engine.model import config
from viz_engine.model.config import ModelConfig
from viz_engine.run import cost
from viz_engine.text import UserError

GIB = 1024**3


def model(layers: int = 4, heads: int = 8, kv_heads: int = 8, dim: int = 16, **more: object):
    """A plain decoder, changed by the keys of `more`."""
    return config.read(
        {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "hidden_size": heads * dim,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": dim,
            "intermediate_size": 4 * heads * dim,
            "vocab_size": 1000,
            **more,
        }
    )


def bytes_of(made: ModelConfig, **asked: object) -> int:
    """Cache and states of one rank."""
    settings = Settings(**asked)
    served = deployment.resolve(made, settings)
    rows = reserve.kinds(served, settings.context_len, settings.num_sequences)
    return sum(kind.num_bytes for kind in rows)


LATENT = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
WINDOWED = {"sliding_window": 24, "sliding_window_pattern": 2}
STATES = {
    "full_attention_interval": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
KINDS = [{}, LATENT, WINDOWED, STATES]
kinds = st.sampled_from(KINDS)
engine_names = st.sampled_from(deployment.ENGINES)
powers = st.sampled_from([1, 2, 4, 8, 16])


# --- claims 15 to 19 and 28 -----------------------------------------------------------------


def cache_gib(layers: int, kv_heads: int, context: int, sequences: int = 1) -> float:
    """GiB in 16 bits with head_dim 128."""
    made = model(layers=layers, heads=64, kv_heads=kv_heads, dim=128)
    return bytes_of(made, context_len=context, num_sequences=sequences) / GIB


@pytest.mark.parametrize(
    ("layers", "kv_heads", "context", "sequences", "gib"),
    [
        (32, 8, 4096, 1, 0.5),  # claim 15, not 0.125
        (32, 8, 32768, 1, 4),  # not 1
        (32, 8, 4096, 16, 8),  # not 2
        (32, 8, 32768, 16, 64),  # not 16
        (40, 8, 4096, 1, 0.625),  # claim 16, not 0.156
        (80, 8, 4096, 1, 1.25),  # not 0.5
        (80, 8, 131072, 1, 40),  # not 16
        (40, 8, 4096, 16, 10),
        (80, 8, 4096, 16, 20),
        (80, 8, 131072, 16, 640),
        (80, 64, 128000, 1, 312.5),  # claim 17: with query heads
        (80, 8, 128000, 1, 39.0625),  # with KV heads
        (80, 8, 32768, 1, 10),  # claim 18
        (80, 64, 32768, 1, 80),  # without sharing heads
    ],
)
def test_claims_15_to_18_corrected(
    layers: int, kv_heads: int, context: int, sequences: int, gib: float
) -> None:
    assert cache_gib(layers, kv_heads, context, sequences) == gib


def test_claim_19_fourteen_requests_outweigh_the_weights_of_a_72b() -> None:
    request = cache_gib(80, 8, 32768) * GIB
    weights = 72e9 * 2
    assert 13 * request < weights < 14 * request


def test_claim_28_a_million_tokens_cost_memory_and_compute() -> None:
    assert cache_gib(80, 8, 1_000_000) == pytest.approx(305, abs=0.3)
    spec = config.preset("llama-3.3-70b").spec()
    attention = cost.attention_flops(spec, num_queries=1, context_len=1_000_000)
    linear = cost.linear_flops(spec, num_tokens=1, num_logit_rows=0)
    # a causal prompt attends to half of the square on average; one token at the end to all of it
    assert 15 < attention / linear < 20
    assert attention / linear / 2 == pytest.approx(9, abs=0.7)


def test_claim_27_twice_the_context_halves_the_sequences() -> None:
    made, pool = config.preset("llama-3.1-8b"), 40 * GIB
    fits = [pool // bytes_of(made, context_len=n) for n in (4096, 8192, 16384)]
    assert fits == [80, 40, 20]


def test_weight_precision_of_70b() -> None:
    made = model()
    parts = [
        plan.plan(
            made, Settings(context_len=1, num_parameters=70 * 10**9, weight_format=name)
        ).part("weights")
        for name in ("f32", "bf16", "int8", "int4", "int2")
    ]
    assert [part.num_bytes / 1e9 for part in parts] == [280, 140, 70, 35, 17.5]


# --- properties -----------------------------------------------------------------------------


@given(
    layers=st.integers(1, 12),
    kv_heads=powers,
    context=st.integers(1, 5000),
    sequences=st.integers(1, 64),
)
@settings(max_examples=40, deadline=None)
def test_doubling_any_size_of_plain_attention_doubles_the_cache(
    layers: int, kv_heads: int, context: int, sequences: int
) -> None:
    asked = {"context_len": context, "num_sequences": sequences}
    once = bytes_of(model(layers, 32, kv_heads), **asked)
    assert bytes_of(model(2 * layers, 32, kv_heads), **asked) == 2 * once
    assert bytes_of(model(layers, 32, 2 * kv_heads), **asked) == 2 * once
    assert (
        bytes_of(model(layers, 32, kv_heads), context_len=2 * context, num_sequences=sequences)
        == 2 * once
    )
    assert (
        bytes_of(model(layers, 32, kv_heads), context_len=context, num_sequences=2 * sequences)
        == 2 * once
    )


@given(kind=kinds, engine=engine_names, context=st.integers(1, 3000), sequences=st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_more_of_anything_never_takes_less(
    kind: dict, engine: str, context: int, sequences: int
) -> None:
    asked = {"context_len": context, "num_sequences": sequences, "engine": engine}
    small = bytes_of(model(4, **kind), **asked)
    assert bytes_of(model(8, **kind), **asked) >= small
    assert bytes_of(model(4, **kind), **asked | {"context_len": 2 * context}) >= small
    assert bytes_of(model(4, **kind), **asked | {"num_sequences": 2 * sequences}) >= small
    assert bytes_of(model(4, 16, 16, **kind), **asked) >= small


@given(context=st.integers(1, 5000), heads=powers)
@settings(max_examples=20, deadline=None)
def test_latent_rows_ignore_heads_and_states_ignore_context(context: int, heads: int) -> None:
    one, other = (model(4, n, n, **LATENT) for n in (heads, 2 * heads))
    assert bytes_of(one, context_len=context) == bytes_of(other, context_len=context)
    states = model(4, layer_types=["linear_attention"] * 4, **STATES)
    assert bytes_of(states, context_len=context) == bytes_of(states, context_len=1)


@given(kind=kinds, engine=engine_names, tp=powers, context=st.integers(1, 3000))
@settings(max_examples=80, deadline=None)
def test_tensor_parallel_never_adds_to_a_rank(
    kind: dict, engine: str, tp: int, context: int
) -> None:
    made = model(4, **kind)
    plans = [
        plan.plan(made, Settings(context_len=context, engine=engine, tp=n)) for n in (tp, 2 * tp)
    ]
    assert plans[1].part("kv").num_bytes <= plans[0].part("kv").num_bytes
    assert plans[1].part("weights").num_bytes <= plans[0].part("weights").num_bytes


@given(kind=kinds, engine=engine_names, context=st.integers(1, 3000), sequences=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_parts_sum_to_the_total(kind: dict, engine: str, context: int, sequences: int) -> None:
    made = plan.plan(
        model(4, **kind), Settings(context_len=context, num_sequences=sequences, engine=engine)
    )
    assert made.total_bytes == sum(part.num_bytes for part in made.parts)
    assert made.kv_bytes == sum(kind.num_bytes for kind in made.kinds)
    assert made.low_bytes <= made.total_bytes <= made.high_bytes
    for part in made.parts:
        assert part.low <= part.num_bytes <= part.high


@given(
    kind=kinds,
    engine=engine_names,
    room=st.integers(0, 400),
    field=st.sampled_from(["context_len", "num_sequences"]),
)
@settings(max_examples=120, deadline=None)
def test_the_inverse_fits_and_one_more_does_not(
    kind: dict, engine: str, room: int, field: str
) -> None:
    made = model(4, **kind)
    asked = Settings(context_len=64, num_sequences=2, engine=engine)
    memory_bytes = int(plan.plan(made, replace(asked, **{field: 1})).total_bytes * (1 + room / 50))
    find = plan.longest_context if field == "context_len" else plan.most_sequences
    limit = find(made, asked, memory_bytes)
    if limit.unbounded:
        most = deployment.MAX_CONTEXT if field == "context_len" else deployment.MAX_SEQUENCES
        assert plan.plan(made, replace(asked, **{field: most})).fits(memory_bytes)
        return
    if limit.value:
        assert limit.plan.fits(memory_bytes)
    more = plan.plan(made, replace(asked, **{field: limit.value + 1}))
    assert not more.fits(memory_bytes)


def test_what_does_not_grow_is_unbounded() -> None:
    made = config.preset("mamba-2.8b")
    limit = plan.longest_context(made, Settings(context_len=100), 40 * GIB)
    assert limit.unbounded and limit.value is None


# --- what must change, and what is said -----------------------------------------------------


def test_options_name_what_makes_it_fit() -> None:
    made = config.preset("llama-3.1-8b")
    asked = Settings(context_len=32768, num_sequences=4)
    found = {
        (option.change.key, option.change.params["value"]): option.fits
        for option in plan.options_to_fit(made, asked, 24 * GIB)
    }
    assert found["size.change.weights", "int4"]
    assert found["size.change.tp", "2"]
    assert found["size.change.sequences", "2"]
    assert not found["size.change.kv", "int8"] or found["size.change.kv", "int4"]
    for option in plan.options_to_fit(made, asked, 24 * GIB):
        assert option.fits == (option.plan.total_bytes <= 24 * GIB)


def test_estimates_carry_a_range_and_exact_parts_do_not() -> None:
    made = plan.plan(config.preset("qwen3-8b"), Settings(context_len=4096, engine="vllm"))
    assert {part.kind for part in made.parts if part.is_estimate} == {"activations", "overhead"}


@pytest.mark.parametrize(("name", "measured"), [("llama-3.3-70b", 4.84), ("qwen3-32b", 5.64)])
def test_measured_activations_lie_in_the_range(name: str, measured: float) -> None:
    """vLLM on two H100 at its default flags (llm-d-planner, empirical results)."""
    made = plan.plan(config.preset(name), Settings(context_len=16000, engine="vllm", tp=2))
    part = made.part("activations")
    assert part.low < measured * GIB < part.high


def test_context_beyond_the_window_is_computed_and_warned() -> None:
    made = plan.plan(config.preset("gpt2"), Settings(context_len=10_000_000))
    assert "size.warn_context" in [warning.key for warning in made.warnings]
    assert made.part("kv").num_bytes == 10_000_000 * 12 * 2 * 12 * 64 * 4


def test_replicated_heads_and_latent_rows_are_said() -> None:
    plain = plan.plan(config.preset("qwen2.5-7b"), Settings(context_len=10, tp=8))
    latent = plan.plan(config.preset("deepseek-v3"), Settings(context_len=10, tp=8))
    assert "size.warn_replicated" in [warning.key for warning in plain.warnings]
    assert "size.warn_latent" in [warning.key for warning in latent.warnings]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"context_len": 0}, "context_len"),
        ({"context_len": "8"}, "context_len"),
        ({"num_sequences": -1}, "num_sequences"),
        ({"tp": 0}, "tp"),
        ({"tp": 3, "engine": "vllm"}, "cannot be shared by 3"),
        ({"pp": 99}, "99 pipeline stages"),
        ({"kv_format": "q9"}, "q9"),
        ({"weight_format": "q9"}, "q9"),
        ({"engine": "abacus"}, "abacus"),
        ({"utilization": 1.5}, "1.5"),
        ({"num_parameters": 0.5}, "num_parameters"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(change: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        plan.plan(model(), Settings(**{"context_len": 10} | change))


def test_servers_load_a_32_bit_model_in_16() -> None:
    made = config.preset("gpt2")
    sizes = {
        name: plan.plan(made, Settings(context_len=512, engine=name)).part("kv").num_bytes
        for name in ("exact", "vllm", "tensorrt-llm")
    }
    assert sizes["exact"] == 2 * sizes["vllm"] == 2 * sizes["tensorrt-llm"]


def test_key_and_value_formats_apart() -> None:
    made = model(2, 8, 8, 32)
    both = bytes_of(made, context_len=10, kv_format="q8_0", v_format="f16")
    assert both == 10 * 2 * (8 * 34 + 8 * 64)


def test_a_million_tokens_of_ten_million_are_computed() -> None:
    assert bytes_of(config.preset("llama-3.1-8b"), context_len=10_000_000) == 10_000_000 * 131072


def test_a_mix_of_a_gguf_counts_the_tables_once() -> None:
    """Its bits are the mean of the whole file: Llama-3.1-8B's Q4_K_M is one of 4 920 734 272 bytes
    (bartowski/Meta-Llama-3.1-8B-Instruct-GGUF)."""
    made = config.preset("llama-3.1-8b")
    for engine in ("exact", "llama.cpp", "vllm"):
        asked = Settings(context_len=1, engine=engine, weight_format="q4_k_m")
        held = plan.plan(made, asked).part("weights").num_bytes
        assert held == pytest.approx(4_920_734_272, rel=0.01)


@pytest.mark.parametrize("name", ["fp8", "int4", "bf16"])
def test_the_formula_of_the_weights_gives_the_number_beside_it(name: str) -> None:
    asked = Settings(context_len=1, engine="vllm", weight_format=name)
    part = plan.plan(config.preset("llama-3.1-8b"), asked).part("weights")
    said = {k: float(str(v).replace(",", "")) for k, v in part.formula.params.items()}
    bits = said["parameters"] * said["bits"] + said.get("others", 0) * said.get("own", 0)
    assert bits / 8 == pytest.approx(part.num_bytes, rel=0.01)
