"""Public configs whose caches were once counted wrongly, with what the engines say of them.

tests/data/configs holds the keys that matter. Sources: deepseek-v4-flash, nemotron-3-super and
llama-70b-fp8 (NVIDIA's Llama-3.1-70B-Instruct-FP8): ai-dynamo/aiconfigurator, model_configs;
mimo-v2-flash: sgl-project/sglang#15464; glm-5.2: ggml-org/llama.cpp#26474; kimi-linear-48b:
vllm-project/vllm#28228; gemma-4-26b-a4b: ggml-org/llama.cpp#21874; tinyllama: the model's own;
qwen3-30b-a3b: vllm-project/vllm#25350; qwen3.5-27b: vllm-project/vllm#40691; qwen3.5-35b-a3b:
club-3090#652.
"""

import json
from pathlib import Path

import pytest

from viz_engine.memory import deployment, plan, serving_engines
from viz_engine.memory.deployment import Settings
from viz_engine.model import config
from viz_engine.run import cost
from viz_engine.text import UserError

CONFIGS = Path(__file__).parent.parent / "data" / "configs"


def read(name: str) -> config.ModelConfig:
    return config.read((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))


def row_bytes(model: config.ModelConfig, *kinds: str) -> int:
    """Of one position in all layers of `kinds`, in 16 bits."""
    layers = [layer for layer in model.layers if layer.kind in kinds]
    return sum(cost.layer_rows(layer, "bf16", "bf16").total for layer in layers)


def served(name: str, **asked: object) -> deployment.Deployment:
    return deployment.resolve(read(name), Settings(context_len=1, **asked))


def test_compressed_rows_are_refused_by_the_name_of_their_key() -> None:
    with pytest.raises(UserError, match="compress_ratios"):
        read("deepseek-v4-flash")
    with pytest.raises(UserError, match="compress_ratios"):
        config.read({"model_type": "deepseek_v4"})


def test_window_layers_may_have_heads_of_their_own() -> None:
    model = read("mimo-v2-flash")
    assert row_bytes(model, "full") == 9 * 4 * (192 + 128) * 2 == 23_040
    assert row_bytes(model, "sliding") == 39 * 8 * (192 + 128) * 2 == 199_680
    assert {layer.window for layer in model.layers} == {None, 128}


@pytest.mark.parametrize("entry", [2, -1, True, "1", None])
def test_a_window_pattern_holds_zeros_and_ones(entry: object) -> None:
    raw = json.loads((CONFIGS / "mimo-v2-flash.json").read_text(encoding="utf-8"))
    raw["hybrid_layer_pattern"][3] = entry
    with pytest.raises(UserError, match="hybrid_layer_pattern"):
        config.read(raw)


def test_infinity_in_a_key_that_is_no_size_is_passed_over() -> None:
    model = read("nemotron-3-super")
    assert row_bytes(model, "full") == 8 * 1024
    states = [layer for layer in model.layers if layer.kind == "state"]
    assert len(states) == 40 and model.recurrent_format == "f32"
    assert {cost.layer_state(x, "bf16", "f32").total for x in states} == {4_255_744}


def test_layers_that_share_an_indexer_keep_no_key_of_it() -> None:
    model = read("glm-5.2")
    assert row_bytes(model, "latent") == 78 * 1152 + 21 * 132 == 92_628
    llama = serving_engines.llama_cache(served("glm-5.2", engine="llama.cpp"), num_cells=256)
    assert llama.kv_bytes == 256 * (78 * 1152 + 21 * 256) == 256 * 95_232
    asked = Settings(context_len=256, engine="llama.cpp")
    assert plan.plan(model, asked).kv_bytes == llama.kv_bytes
    assert model.draft_layers[0].index_dim == 128


@pytest.mark.parametrize(
    ("change", "indexers"),
    [
        ({}, 21),  # every fourth behind the first three
        ({"index_topk_pattern": "FSS" * 26}, 26),
        ({"index_topk_freq": 1}, 78),
    ],
)
def test_indexers_follow_the_schedule_where_no_list_names_them(change: dict, indexers: int) -> None:
    raw = json.loads((CONFIGS / "glm-5.2.json").read_text(encoding="utf-8"))
    del raw["indexer_types"]
    assert sum(x.index_dim > 0 for x in config.read(raw | change).layers) == indexers


def test_vllm_makes_blocks_of_64_where_latent_rows_stand_beside_states() -> None:
    asked = served("kimi-linear-48b", engine="vllm", tp=2)
    assert serving_engines.vllm_pool(asked, 120_000).block_len == 960


def test_tensorrt_llm_takes_the_block_size_that_is_asked() -> None:
    asked = served("tinyllama", engine="tensorrt-llm", block_len=64)
    assert serving_engines.trt_pool(asked).block_bytes == 1_441_792


@pytest.mark.parametrize(("unified", "mib"), [(True, 2101), (False, 3591)])
def test_llama_server_keeps_one_cache_for_all_slots_or_one_for_each(
    unified: bool, mib: int
) -> None:
    asked = Settings(
        context_len=12_500,
        num_sequences=8,
        kv_format="q8_0",
        engine="llama.cpp",
        batched_tokens=2048,
        unified=unified,
    )
    assert round(plan.plan(read("gemma-4-26b-a4b"), asked).kv_bytes / 2**20) == mib


# --- lists that nothing was made of -----------------------------------------------------------

LLAMA = {"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4}


def named(extra: dict, key: str = "size.warn_layer_list") -> str:
    return ", ".join(str(w) for w in config.read(LLAMA | extra).warnings if w.key == key)


@pytest.mark.parametrize(
    "extra",
    [
        {"new_kinds": [0, 1, 0, 1, 0, 1]},
        {"new_kinds": ["a", "b", "b"] * 2},
        {"new_kinds": [0] * 7, "num_nextn_predict_layers": 1},
        {"new_kinds": "ABABAB"},
        {"new_kinds": {str(i): {"rows": i} for i in range(6)}},
        {"sparse_config": {"new_kinds": [0, 1] * 3}},
        {"layer_types": ["full_attention"] * 6, "new_kinds": [0, 1] * 3},
    ],
)
def test_a_list_with_an_entry_per_layer_that_is_not_understood_is_named(extra: dict) -> None:
    assert "new_kinds”" in named(extra)


@pytest.mark.parametrize(
    "extra",
    [
        {"new_kinds": [0, 1]},
        {"moe_layer_freq": [0, 1] * 3},
        {"layer_types": ["full_attention"] * 6},
        {"hybrid_override_pattern": "******"},
        {"vision_config": {"depths": [1] * 6}},
        {"quantization_config": {"quant_method": "fp8", "ignore": ["a"] * 6}},
        {"id2label": {str(i): "x" for i in range(6)}},
        {"name_of_act": "swiglu"},
    ],
)
def test_a_list_that_is_read_or_says_nothing_of_a_cache_is_not(extra: dict) -> None:
    assert named(extra) == ""


def test_the_outer_file_of_a_model_of_parts_is_looked_through_too() -> None:
    found = config.read({"text_config": LLAMA, "new_kinds": [0, 1] * 3})
    assert "size.warn_layer_list" in [w.key for w in found.warnings]
