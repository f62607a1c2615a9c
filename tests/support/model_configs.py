"""What 86 public configs keep, by transformers' own cache or by hand: makes the file of
tests/data/public_configs.json anew from a checkout of ai-dynamo/aiconfigurator.

    python -m tests.support.model_configs CHECKOUT/…/model_configs COMMIT
"""

import json
import sys
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from viz_engine.engine import compatibility
from viz_engine.model import config, config_keys

DATA = Path(__file__).parent.parent / "data" / "public_configs.json"
# Widths and numbers that no cache depends on.
SMALL = {
    **dict.fromkeys(("hidden_size",), 128),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp"), 32),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "moe_latent_size", "q_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    **{"mamba_num_heads": 8},  # whether there is a state is compared, not how large
    **{"vocab_size": 320, "vocab_size_per_layer_input": 320, "max_position_embeddings": 4096},
}
LEFT_OUT = ("quantization_config", "auto_map", "rope_scaling", "rope_parameters", "dtype")
LEFT_OUT += ("torch_dtype", "architectures", "model_type", "num_nextn_predict_layers")
IRRELEVANT = (
    "auto_map",
    "rope_scaling",
    "rope_parameters",
    "id2label",
    "label2id",
    "_name_or_path",
)
BY_HAND = {  # growing bytes, window bytes: layers x 2 x KV heads x head_dim x 2
    "Qwen--Qwen3-VL-235B-A22B-Instruct": (94 * 2 * 4 * 128 * 2, 0),
    "Qwen--Qwen3-VL-2B-Instruct": (28 * 2 * 8 * 128 * 2, 0),
    "Qwen--Qwen3-VL-30B-A3B-Instruct": (48 * 2 * 4 * 128 * 2, 0),
    "Qwen--Qwen3-VL-32B-Instruct": (64 * 2 * 8 * 128 * 2, 0),
    "Qwen--Qwen3-VL-32B-Thinking": (64 * 2 * 8 * 128 * 2, 0),
    "Qwen--Qwen3-VL-4B-Instruct": (36 * 2 * 8 * 128 * 2, 0),
    "Qwen--Qwen3-VL-8B-Instruct": (36 * 2 * 8 * 128 * 2, 0),
    "XiaomiMiMo--MiMo-7B-Base": (36 * 2 * 8 * 128 * 2, 0),
    # as SGLang's log has it (sgl-project/sglang#15464)
    "XiaomiMiMo--MiMo-V2-Flash": (9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 2),
    "moonshotai--Kimi-K3": (24 * (512 + 64) * 2, 0),
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": (49 * 2 * 8 * 128 * 2, 0),
    "stepfun-ai--Step-3.7-Flash": (12 * 2 * 8 * 128 * 2, 33 * 2 * 8 * 128 * 2),
    "stepfun-ai--Step-3.7-Flash-FP8": (12 * 2 * 8 * 128 * 2, 33 * 2 * 8 * 128 * 2),
}
WARNED = {  # 57 of the 60 layers also keep an indexer key, which no list that is read says
    "MiniMaxAI--MiniMax-M3": (60 * 2 * 4 * 128 * 2, 0),
    "nvidia--MiniMax-M3-NVFP4": (60 * 2 * 4 * 128 * 2, 0),
}


def seen_rows(raw: dict) -> list[tuple[int, int | None, bool]]:
    """(numbers of a row, window, whether it keeps a state) of each layer, from the cache that
    transformers fills for a model of the config's layers and heads, in small widths."""
    text = dict(config._language_part(raw))
    named = str(text.get("model_type") or raw.get("model_type"))
    model_type = next(
        found
        for part in (raw, text)
        if (found := config_keys.known_type(part, named)) in CONFIG_MAPPING
    )
    if not (text.get("head_dim") or text.get("kv_lora_rank")):
        text["head_dim"] = text["hidden_size"] // text["num_attention_heads"]
    text |= {key: value for key, value in SMALL.items() if text.get(key) is not None}
    text = {k: v for k, v in text.items() if k not in LEFT_OUT and not k.endswith("token_id")}
    if text.get("kv_lora_rank"):  # one row for all heads, however many
        text |= {"num_attention_heads": 4, "num_key_value_heads": 4}
        text |= {"qk_nope_head_dim": 16, "v_head_dim": 16}
    made = CONFIG_MAPPING[model_type](**text)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
    trial = compatibility._Trial(network)
    cache = trial.hf_cache()
    trial.forward(cache, 0, compatibility.NUM_TOKENS)
    seen, _ = compatibility.observe(network, cache)
    return [(layer.row_elements, layer.window, bool(layer.state_bytes)) for layer in seen]


def index_bytes(text: dict) -> int:
    """Of a position, by hand: 128 numbers in 8 bits and an f32 scale in each layer that has an
    indexer (transformers keeps it in the model, not in the cache)."""
    if text.get("model_type") not in ("glm_moe_dsa", "deepseek_v32"):
        return 0
    types = text.get("indexer_types") or ["full"] * text["num_hidden_layers"]
    return types.count("full") * 132


def state_bytes(text: dict, num: int) -> int:
    """Of `num` layers with a state, by hand: a 16-bit convolution of kernel 4 and what the
    recurrence carries, in 32 bits unless the config keeps it in the model's type."""
    if num == 0:
        return 0
    if "linear_num_value_heads" in text:
        keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
        heads, dim = text["linear_num_value_heads"], text["linear_value_head_dim"]
        square = heads * text["linear_key_head_dim"] * dim
        return num * (3 * (2 * keys + heads * dim) * 2 + square * 4)
    if linear := text.get("linear_attn_config"):
        heads, dim = linear["num_heads"], linear["head_dim"]
        return num * (3 * 3 * heads * dim * 2 + heads * dim * dim * 4)
    inner = text["mamba_num_heads"] * text["mamba_head_dim"]
    width = inner + 2 * text["n_groups"] * text["ssm_state_size"]
    size = 4 if text.get("mamba_ssm_cache_dtype") == "float32" else 2
    return num * (3 * width * 2 + inner * text["ssm_state_size"] * size)


def trimmed(part: dict) -> dict:
    """Without what says nothing of sizes: long lists of modules, tokens, parts for pictures."""
    kept = {}
    for key, value in part.items():
        if key in IRRELEVANT or key.endswith(("token_id", "_ids")) or value is None:
            continue
        if key in config.OTHER_PARTS:
            value = {}
        elif isinstance(value, dict):
            value = trimmed(value)
        elif key in ("ignore", "exclude_modules", "modules_to_not_convert"):
            value = [name for name in value if not any(c.isdigit() for c in name)]
        if key not in ("quantized_layers", "input_activations", "output_activations"):
            kept[key] = value
    return kept


def row(name: str, raw: dict) -> dict:
    """What the file holds of one config."""
    made = {"name": name, "config": trimmed(raw)}
    if "compress_ratios" in raw:
        return made | {"how": "refused"}
    text = dict(config._language_part(raw))
    if name in BY_HAND or name in WARNED:
        how = "hand" if name in BY_HAND else "warned"
        growing, window = (BY_HAND | WARNED)[name]
        state = state_bytes(text, len((text.get("linear_attn_config") or {}).get("kda_layers", ())))
        return made | {"how": how, "growing": growing, "window": window, "state": state}
    seen = seen_rows(raw)
    return made | {
        "how": "transformers",
        "growing": sum(2 * x for x, window, _ in seen if window is None) + index_bytes(text),
        "window": sum(2 * x for x, window, _ in seen if window is not None),
        "state": state_bytes(text, sum(state for *_, state in seen)),
    }


if __name__ == "__main__":
    paths = sorted(Path(sys.argv[1]).glob("*_config.json"))
    rows = []
    for path in paths:
        if not path.name.endswith("hf_quant_config.json"):
            name = path.name.removesuffix("_config.json")
            rows.append(row(name, json.loads(path.read_text(encoding="utf-8"))))
    source = f"github.com/ai-dynamo/aiconfigurator, {sys.argv[2]}, model_configs"
    lines = ",\n".join(json.dumps(x, separators=(",", ":")) for x in rows)
    DATA.write_text(f'{{"source": "{source}",\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")
