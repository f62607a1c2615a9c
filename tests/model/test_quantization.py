"""How released weights are stored: what quantization_config says, against files that were released.

The oracles are the sizes that the released files state (`total_size` of their index).
"""

import pytest

from viz_engine.memory import plan
from viz_engine.memory.deployment import Settings
from viz_engine.model import config, formats
from viz_engine.text import UserError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 320,
    "tie_word_embeddings": False,
}
TABLES = 2 * 320 * 256  # embedding and head
NORMS = 256 * 5
MATRICES = 2 * (256 * 512 + 256 * 256 + 3 * 256 * 512)


def stored(said: object, **more: object) -> config.ModelConfig:
    return config.read(LLAMA | {"quantization_config": said} | more)


def weight_bytes(model: config.ModelConfig, **asked: object) -> int:
    return plan.plan(model, Settings(context_len=1, **asked)).part("weights").num_bytes


def notes(model: config.ModelConfig, **asked: object) -> list[str]:
    return [w.key for w in plan.plan(model, Settings(context_len=1, **asked)).warnings]


def test_gpt_oss_takes_the_bytes_of_its_released_file() -> None:
    # openai/gpt-oss-20b, model.safetensors.index.json: total_size
    assert weight_bytes(config.preset("gpt-oss-20b")) == 13_761_264_768


def test_deepseek_takes_one_byte_a_weight_but_for_its_tables() -> None:
    model = config.preset("deepseek-v3")
    tables = 2 * 129280 * 7168
    assert 0 < weight_bytes(model) - (model.num_parameters + tables) < 0.001 * model.num_parameters


@pytest.mark.parametrize(
    ("said", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "fbgemm_fp8"}, 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            4.5,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
    ],
)
def test_matrices_take_their_bits_and_tables_and_norms_sixteen(said: dict, bits: float) -> None:
    model = stored(said)
    expected = round((MATRICES * bits + (TABLES + NORMS) * 16) / 8)
    assert model.num_parameters == MATRICES + TABLES + NORMS
    assert weight_bytes(model) == expected
    assert notes(model) == ["size.note_quantization"]
    assert notes(model, weight_format="bf16") == []
    assert weight_bytes(model, weight_format="bf16") == 2 * model.num_parameters
    assert model.derivation("weight_format").source == "quantization_config"


def test_modules_that_are_left_out_keep_their_own_type() -> None:
    fp8 = {"quant_method": "fp8"}
    kept = stored(fp8 | {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    attention = 2 * (256 * 512 + 256 * 256)
    assert weight_bytes(kept) == weight_bytes(stored(fp8)) + attention
    one_layer = stored(fp8 | {"modules_to_not_convert": ["model.layers.0.self_attn"]})
    assert weight_bytes(one_layer) == weight_bytes(stored(fp8))


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "magic"},
        {},
        7,
        {"quant_method": "compressed-tensors", "config_groups": []},
        {"quant_method": "bitsandbytes"},
        {"quant_method": "gptq"},
    ],
)
def test_a_method_that_is_not_known_counts_the_own_type_and_says_so(said: object) -> None:
    model = stored(said)
    assert weight_bytes(model) == 2 * model.num_parameters
    assert notes(model) == ["size.warn_quantization"]


@pytest.mark.parametrize("bits", ["four", -4, 0, True, 1e9])
def test_a_number_of_bits_that_is_none_is_refused(bits: object) -> None:
    with pytest.raises(UserError, match="quantization_config.bits"):
        stored({"quant_method": "gptq", "bits": bits})


def test_the_mean_of_the_types_is_what_the_table_of_precisions_starts_from() -> None:
    model = stored({"quant_method": "fp8"})
    mean = (MATRICES * 8 + (TABLES + NORMS) * 16) / model.num_parameters
    assert model.weight_bits("auto", "bf16") == pytest.approx(mean)
    assert formats.is_auto(" Auto ") and not formats.is_auto("fp8")


def test_the_formula_of_released_weights_comes_to_their_bytes() -> None:
    part = plan.plan(config.preset("gpt-oss-20b"), Settings(context_len=1)).part("weights")
    said = part.formula.params
    parts = [(said["parameters"], said["bits"]), (said["others"], said["own"])]
    bits = sum(int(number.replace(",", "")) * float(each) for number, each in parts)
    assert round(bits / 8) == part.num_bytes
    vllm = plan.plan(config.preset("gpt-oss-20b"), Settings(context_len=1, engine="vllm"))
    assert vllm.part("weights").formula.key == "size.formula_weights_stored_vllm"
