"""config.json of any language model: what its layers keep, where each size came from, and a clear
sentence for what is no such file.

The oracle for layers and weights is transformers: test_config_oracle.py.
"""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viz_engine.memory import plan
from viz_engine.memory.deployment import Settings
from viz_engine.model import config
from viz_engine.run import cost
from viz_engine.text import UserError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}
LATENT = LLAMA | {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


def without(*names: str) -> dict:
    return {key: value for key, value in LLAMA.items() if key not in names}


def refusal(source: object) -> str:
    with pytest.raises(UserError) as caught:
        config.read(source)
    assert caught.value.message.text("zh") != str(caught.value)
    assert "no text for" not in str(caught.value)
    return str(caught.value)


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "nothing here"),
        ("not json", "not JSON"),
        ('{"num_hidden_layers": 4', "not JSON"),
        ("[1, 2]", "not the object"),
        ('{"hidden_size": 1' + "0" * 5000 + "}", "thousands of digits"),
        (b"\xff{}", "UTF-8"),
        ("7", "it is a number"),
        ("null", "it is null"),
        ("true", "true or false"),
        ('"x"', "it is a text"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested"),
        ("[" * 100_000, "nested"),
        ('{"x": "' + "y" * 10_000_000 + '"}', "characters"),
        (json.dumps({"peft_type": "LORA", "base_model_name_or_path": "me/base"}), "me/base"),
        (json.dumps({"_class_name": "UNet2DConditionModel"}), "diffusion"),
        (
            json.dumps({"model_type": "vit", "image_size": 224, "num_hidden_layers": 12}),
            "pictures or sound",
        ),
        (
            json.dumps({"model_type": "clip", "text_config": LLAMA, "vision_config": {}}),
            "pictures or sound",
        ),
        (json.dumps({"model_type": "x"}), "num_hidden_layers"),
        (json.dumps(without("hidden_size", "model_type")), "None of these keys"),
        (json.dumps(without("num_attention_heads", "model_type")), "None of these keys"),
    ],
)
def test_what_is_no_config_is_refused_with_a_sentence(source: str, says: str) -> None:
    assert says in refusal(source)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 3.5}, "not 3.5. Correct"),
        ({"num_hidden_layers": 1e400}, "too large"),
        ({"hidden_size": math.nan}, "“hidden_size” holds NaN, which is no number"),
        ({"hidden_size": math.inf}, "“hidden_size”"),
        ({"num_hidden_layers": "4"}, "without quotes"),
        ({"num_hidden_layers": True}, "not true. Correct"),
        ({"num_hidden_layers": [1]}, "num_hidden_layers"),
        ({"hidden_size": 66}, "does not divide"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"num_key_value_heads": 8}, "4 query heads cannot share 8"),
        ({"layer_types": ["full_attention"] * 3}, "3 layers, but the model has 4"),
        ({"layer_types": ["holographic"] * 4}, "holographic"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
    ],
)
def test_a_wrong_field_is_named(change: dict, says: str) -> None:
    assert says in refusal(LLAMA | change)


def test_a_vision_language_config_reads_its_language_part() -> None:
    whole = {"model_type": "vl", "vision_config": {"num_hidden_layers": 9}, "text_config": LLAMA}
    assert config.read(whole).num_layers == 4


# --- provenance -----------------------------------------------------------------------------


def test_every_size_says_where_it_came_from() -> None:
    found = config.read(without("num_key_value_heads"))
    assert found.derivation("num_layers").source == "num_hidden_layers"
    assert found.derivation("num_layers").how == "read"
    assert found.derivation("head_dim").how == "derived"
    assert found.derivation("num_kv_heads").how == "derived"
    assert {d.how for d in found.derivations} <= {"read", "default", "derived", "assumed"}


def test_a_key_left_out_takes_the_default_of_its_type_and_says_so() -> None:
    found = config.read({"model_type": "audio", "text_config": {"model_type": "qwen2"}})
    assert (found.num_layers, found.layers[0].num_kv_heads) == (32, 32)
    assert found.derivation("num_layers").how == "default"
    assert "leaves out num_hidden_layers, hidden_size" in str(found.warnings[0])


def test_a_default_that_follows_from_another_size_is_no_default() -> None:
    assert config.read(LLAMA).layers[0].key_dim == 16  # 64 / 4, not the class's 128


def test_a_null_is_not_the_default_of_the_class() -> None:
    found = config.read(LLAMA | {"model_type": "mistral", "sliding_window": None})
    assert {layer.kind for layer in found.layers} == {"full"}


# --- kinds of layers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}, "sfsf"),
        ({"sliding_window_pattern": 2, "sliding_window": 8}, "sfsf"),
        ({"sliding_window": 8}, "ssss"),
        ({"sliding_window": 8, "use_sliding_window": False}, "ffff"),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, "fffs"),
        ({"sliding_window": 512}, "ffff"),  # the whole context
        ({"model_type": "gemma2", "sliding_window": 8}, "sfsf"),  # from its class
        ({"attention_chunk_size": 8}, "cccf"),
        ({"attention_chunk_size": 8, "no_rope_layers": [1, 0, 1, 0]}, "cfcf"),
        ({"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8}, "SfSf"),
        ({"hybrid_override_pattern": "M-*-", "ssm_state_size": 8, "mamba_num_heads": 4}, "SnfS"),
        ({"full_attn_idxs": [1, 3], "conv_L_cache": 3}, "SfSf"),
        ({"num_kv_shared_layers": 2}, "ffhh"),
        ({"num_key_value_heads_per_layer": [2, 0, 4, 1]}, "fnff"),
        ({"cross_attention_layers": [1]}, "fxff"),
    ],
)
def test_kinds_come_from_whatever_key_tells_them(change: dict, kinds: str) -> None:
    letters = {"full": "f", "sliding": "s", "chunked": "c", "state": "S", "none": "n"}
    letters |= {"shared": "h", "cross": "x"}
    made = "".join(letters[layer.kind] for layer in config.read(LLAMA | change).layers)
    assert made == kinds.replace("SnfS", "Snfn")


def test_block_configs_give_each_layer_its_heads() -> None:
    blocks = [{"attention": {"n_heads_in_group": 2}}, {"attention": {"no_op": True}}] * 2
    made = [layer.num_kv_heads for layer in config.read(LLAMA | {"block_configs": blocks}).layers]
    assert made == [2, 0, 2, 0]


def test_latent_layers_ignore_heads_and_head_dim() -> None:
    plain = config.read(LATENT)
    other = config.read(LATENT | {"head_dim": 7, "num_key_value_heads": 4})
    assert plain.layers == other.layers
    assert plain.layers[0].row_elements == 40


def test_draft_layers_are_beside_the_layers() -> None:
    found = config.read(LATENT | {"num_nextn_predict_layers": 1})
    assert (found.num_layers, len(found.draft_layers)) == (4, 1)


def test_a_window_that_no_list_assigns_is_assumed_and_said() -> None:
    assert [w.key for w in config.read(LLAMA | {"sliding_window": 8}).warnings] == [
        "size.warn_window"
    ]


def test_a_type_whose_weights_are_not_described_says_so_and_counts_none() -> None:
    found = config.read(LLAMA | {"model_type": "never_heard_of"})
    assert found.num_parameters is None
    assert "size.warn_weights" in [w.key for w in found.warnings]


def test_parts_beside_the_language_model_are_named_as_left_out() -> None:
    outer = {"model_type": "gemma3", "text_config": LLAMA, "vision_config": {"hidden_size": 8}}
    (note,) = [w for w in config.read(outer).warnings if w.key == "size.warn_other_parts"]
    assert "vision_config" in str(note)
    assert not config.read(LLAMA).warnings


# --- presets --------------------------------------------------------------------------------


def test_presets_are_cited_and_read() -> None:
    table = config.preset_table()
    assert len(table) >= 15
    for name, row in table.items():
        assert row["source"].startswith(
            ("https://", "a copy of the model's config.json", "PyPI")
        ), name
        found = config.preset(name)
        assert found.num_parameters, name


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [  # as published: the models' own names and papers
        ("gpt2", 0.124, None),
        ("llama-3.1-8b", 8.03, None),
        ("deepseek-v3", 671.0, 37.5),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("kimi-k2", 1026.4, 32.9),
        ("gpt-oss-20b", 20.9, 3.6),
        ("mamba-2.8b", 2.77, None),
    ],
)
def test_parameters_are_those_published(name: str, billions: float, active: float | None) -> None:
    found = config.preset(name)
    assert found.num_parameters / 1e9 == pytest.approx(billions, rel=0.005)
    if active is not None:
        # papers leave the embedding table out, or count it; the difference is below 1.2 billion
        assert abs(found.num_active_parameters / 1e9 - active) < 1.2


def test_golden_bytes_per_token_of_presets() -> None:
    """Field notes' golden numbers: per token in 16 bits."""
    golden = {"gpt2": 36, "llama-2-7b": 512, "llama-3.1-8b": 128, "llama-3.3-70b": 320}
    golden |= {"qwen3.8-27b": 64}
    for name, kib in golden.items():
        layers = config.preset(name).layers
        assert sum(cost.layer_rows(x, "bf16", "bf16").total for x in layers) == kib * 1024


# --- whatever stands in a file --------------------------------------------------------------

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-2, 200), st.text(max_size=5), st.none()), max_size=6),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
NAMES = sorted(
    {key for row in config.preset_table().values() for key in row["config"]}
    | {"block_configs", "per_layer_config", "linear_attn_config", "attn_config", "vision_config"}
    | {"num_key_value_heads_per_layer", "layers_block_type", "hybrid_override_pattern"}
    | {"attn_layer_period", "full_attention_interval", "no_rope_layers", "attention_chunk_size"}
    | {"num_kv_shared_layers", "global_head_dim", "mamba_d_state", "cross_attention_layers"}
)


@given(
    preset=st.sampled_from(sorted(config.preset_table())),
    changes=st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=3),
)
@settings(max_examples=400, deadline=None)
def test_any_value_is_read_or_refused_with_a_sentence(preset: str, changes: dict) -> None:
    try:
        found = config.read(config.preset_table()[preset]["config"] | changes)
        plan.plan(found, Settings(context_len=4096, engine="vllm", tp=2))
    except UserError as error:
        assert "no text for" not in str(error)


@pytest.mark.parametrize("text", ["{}", '{"text_config": {}}', '{"text_config": []}'])
def test_empty_objects_are_refused(text: str) -> None:
    assert refusal(text)
