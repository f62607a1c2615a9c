"""Facts that real engines printed (data/engine_facts.json), asked of the calculator.

`computed` gives a fact's quantity in the fact's unit, from its `config` and from those `settings`
that are inputs. What else a fact states stands in its words: the build (a log line that names no
part is of a build with one cache for all layers; "# GPU blocks" is vLLM V0), flags such as
`--swa-full`, a type in parentheses. Derived settings are read by `stated` only, to be compared.
"""

import json
import math
import re
from dataclasses import replace

from viz_engine.memory import deployment, serving_engines
from viz_engine.memory.deployment import Settings, resolve
from viz_engine.model import config, formats, weights
from viz_engine.model.config import ModelConfig
from viz_engine.model.spec import LayerSpec, WeightGroup
from viz_engine.paths import ROOT
from viz_engine.run import cost

FACTS = json.loads((ROOT / "tests" / "data" / "engine_facts.json").read_text("utf-8"))
GIB, MIB = 1024**3, 1024**2
UNITS = {
    "GiB": GIB,
    "MiB": MIB,
    "KiB": 1024,
    "kB (1000 B)": 1000,
    "bytes": 1,
    "K elements": 1000,
    "B params": 1e9,
}
# Configs of facts that give none: the geometry that the fact's own note names.
GEOMETRY = {
    "DeepSeek large MoE, MHA baseline": {
        "num_hidden_layers": 60,
        "hidden_size": 56 * 128,
        "num_attention_heads": 56,
    }
}
V0 = re.compile(r"# (GPU|CPU|cuda) blocks")
ENCODER_DECODER_KEYS = ("is_encoder_decoder", "decoder_layers", "decoder_attention_heads")
LATENT_KEYS = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
DERIVED = {"layers_with_kv", "recurrent_layers", "mamba_layers", "cells", "groups", "group_size"}
DERIVED |= {"page_bytes", "mamba_page_bytes", "attn_bytes_per_token", "align", "ssm_d_conv"}
SWA_BUILD_PARTS = ("full", "swa")


def vllm_available_bytes(
    total_bytes: float,
    utilization: float,
    *,
    weight_bytes: float,
    non_torch_bytes: float,
    activation_bytes: float,
) -> int:
    """What vLLM leaves for the cache: `total x utilization - weights - non-torch - activation
    peak` (worker `determine_available_memory`; CUDA graphs are not subtracted)."""
    usable = total_bytes * utilization
    return int(usable - weight_bytes - non_torch_bytes - activation_bytes)


def split_latent_numbers(groups: tuple[WeightGroup, ...]) -> int:
    """Weights that a GGUF of a latent model holds twice since 2025: kv_b and its split copies."""
    return sum(group.num_weights for group in groups if group.name == "attention.kv_b")


def fact(name: str) -> dict:
    return next(f for f in FACTS if f["id"] == name)


def model_of(fact: dict) -> ModelConfig:
    """The model that a fact speaks of: its config, or the preset of its repository."""
    found = dict(fact["config"] or GEOMETRY.get(fact["model"], {}))
    if not found:
        for name, row in config.preset_table().items():
            if fact["hf_repo"] in (row["repo"], *row.get("same_shape", ())):
                return config.preset(name)
    if V0.search(fact["printed"]) and "num_hidden_layers" in found:  # V0 read that key only
        found = {key: value for key, value in found.items() if key not in ENCODER_DECODER_KEYS}
    if re.search(r"\bMHA\b", fact["model"]):  # a baseline without the latent
        found = {key: value for key, value in found.items() if key not in LATENT_KEYS}
    kind = re.search(r"\(([A-Za-z0-9]+-[A-Za-z0-9]+)\)", fact["model"])
    if kind and "model_type" not in found:  # "Qwerky-72B (RWKV6-Qwen2)"
        found["model_type"] = kind[1].replace("-", "").lower()
    return config.read(found, name=fact["model"])


def formats_of(fact: dict) -> tuple[str, str]:
    """Number formats of K and V: from the settings, else from the model's label."""
    stated = fact["settings"].get("kv_dtype")
    if stated is None:
        named = re.search(r"(fp8|int8) KV", fact["model"])
        stated = named[1] if named else "auto"
    stated = stated.split("(")[0].split(" ")[0]
    key, _, value = stated.partition("/")
    return key, value or key


def drafts_of(fact: dict) -> int:
    """Speculative tokens: those of the draft layers loaded, or those that the label names."""
    named = re.search(r"MTP(?: (\d+) tokens?)?", fact["model"])
    stated = fact["settings"].get("mtp_layers")
    return int(named[1] or 1) if named and stated is None else stated or 0


def computed(fact: dict) -> float:
    """The quantity of a fact, in its unit."""
    value = QUANTITIES[fact["quantity"]](fact)
    return value / UNITS.get(fact["unit"], 1)


def available(fact: dict) -> float:
    s = fact["settings"]
    total, share = s.get("usable_GiB"), 1.0
    if total is None:
        total, share = float(re.search(r"([\d.]+) GiB", s["gpu"])[1]), s["util"]
    return vllm_available_bytes(
        total * GIB,
        share,
        weight_bytes=s["weights_GiB"] * GIB,
        non_torch_bytes=s["non_torch_GiB"] * GIB,
        activation_bytes=s["activation_GiB"] * GIB,
    )


def weight_size(fact: dict) -> float:
    s = fact["settings"]
    if "params_B" in s:
        return weights.file_bytes(round(s["params_B"] * 1e9), s["bits_per_weight"])
    model = model_of(fact)
    bits = formats.weight_bits(s["weight_dtype"].split("/")[0], model.dtype)
    return weights.allocated_bytes(model.weights, bits, s["tp"], model.rope_cache_numbers)


def params(fact: dict) -> float:
    model = model_of(fact)
    twice = split_latent_numbers(model.weights) if "split" in fact["model"] else 0
    return model.num_parameters + twice


def row_elements(fact: dict) -> float:
    return sum(layer.row_elements for layer in model_of(fact).layers)


def row_bytes(fact: dict) -> float:
    key, value = formats_of(fact)
    tp = fact["settings"].get("tp", 1)
    return sum(cost.layer_rows(x, key, value, tp=tp).total for x in model_of(fact).layers)


def llama(fact: dict) -> serving_engines.LlamaCache:
    s, (key, value) = fact["settings"], formats_of(fact)
    new = s.get("part") in SWA_BUILD_PARTS
    if key == "auto":
        key = value = "f16"
    latent = "latent"
    if "v_copy" in s:
        latent = "copied" if s["v_copy"] else "latent"
        value = s["v_copy"] or value
    elif fact["quantity"] == "kv_total_bytes" and "/" in s.get("kv_dtype", ""):
        latent = "expanded"
    cross = re.search(r"(\S+) cross", s.get("kv_dtype", ""))
    state = s.get("state_dtype") or (key if fact["quantity"] == "state_bytes" else "f32")
    settings = Settings(
        context_len=1,
        engine="llama.cpp",
        kv_format=key,
        v_format="f16" if value == "self" else value,
        batched_tokens=s.get("ubatch", 512),
        num_draft_tokens=s.get("planes", 1) - 1,
        window_cache=new and "swa-full" not in fact["model"],
    )
    return serving_engines.llama_cache(
        resolve(model_of(fact), settings),
        num_cells=s.get("ctx", 1),
        num_sequences=s.get("seqs", 1),
        pad_cells=serving_engines.PAD_CELLS if new else serving_engines.OLD_PAD_CELLS,
        latent=latent,
        state_format=state,
        cross_format=cross[1] if cross else None,
    )


def sglang(fact: dict) -> serving_engines.SglangPool:
    s = fact["settings"]
    settings = Settings(
        context_len=1,
        engine="sglang",
        kv_format=formats_of(fact)[0],
        tp=s.get("tp", 1),
        block_len=s.get("page_size", 1),
    )
    return serving_engines.sglang_pool(
        resolve(model_of(fact), settings),
        num_tokens=s.get("kv_tokens", 0),
        num_state_slots=s.get("mamba_slots", 0),
        max_running=s.get("max_running_requests", 0),
        max_context_len=s.get("context_len", 0),
    )


def vllm(fact: dict, max_model_len: int | None = None) -> serving_engines.VllmPool:
    s = fact["settings"]
    model = model_of(fact)
    states = any(x.conv_elements or x.recurrent_elements for x in model.layers)
    old = V0.search(fact["printed"])
    drafts = drafts_of(fact)
    settings = Settings(
        context_len=1,
        engine="vllm",
        kv_format=formats_of(fact)[0],
        tp=s.get("tp", 1),
        pp=1 if fact["quantity"] == "kv_total_bytes" else s.get("pp", 1),
        dcp=s.get("dcp", 1),
        block_len=deployment.VLLM_BLOCK_LEN if states else s.get("block_size", 16),
        batched_tokens=s.get("max_num_batched_tokens") or 2048,
        draft_layers=True,
        num_draft_tokens=drafts,
        # stated with the speculative tokens included
        state_blocks=max(1, s.get("mamba_blocks_per_req", 1) - drafts),
    )
    model = replace(model, draft_layers=draft_layers(model, s.get("mtp_layers") or 0))
    length = max_model_len or s.get("max_model_len") or s.get("ctx") or 1
    return serving_engines.vllm_pool(resolve(model, settings), length, False if old else None)


def draft_layers(model: ModelConfig, num: int) -> tuple[LayerSpec, ...]:
    """As many as a fact states, where its config does not: each as the last layer that grows."""
    known = model.draft_layers[:num]
    if num <= len(known):
        return known
    grown = next((x for x in reversed(model.layers) if x.kind in ("full", "latent")), None)
    return (grown,) * num if grown else ()


def available_bytes(fact: dict) -> int:
    return int(fact["settings"]["available_kv_GiB"] * GIB)


def kv_total(fact: dict) -> float:
    s, engine = fact["settings"], fact["engine"]
    if "llama.cpp" in engine or "kobold" in engine:
        cache = llama(fact)
        part = s.get("part")
        return {"full": cache.full_bytes, "swa": cache.window_bytes}.get(part, cache.kv_bytes)
    if engine == "SGLang":
        pool = sglang(fact)
        return pool.kv_bytes + pool.request_table_bytes
    if engine == "TensorRT-LLM":
        pool = trt(fact)
        return pool.pool_bytes(s["kv_tokens"])
    if engine == "vLLM":
        return vllm(fact).request_bytes
    return row_bytes(fact) * s["ctx"] * s.get("seqs", 1)


def trt(fact: dict) -> serving_engines.TrtPool:
    s = fact["settings"]
    settings = Settings(
        context_len=1,
        engine="tensorrt-llm",
        kv_format=formats_of(fact)[0],
        tp=s.get("tp", 1),
        block_len=s.get("tokens_per_block"),
    )
    return serving_engines.trt_pool(resolve(model_of(fact), settings))


def state(fact: dict) -> float:
    s, printed = fact["settings"], fact["printed"]
    if "llama.cpp" in fact["engine"]:
        return llama(fact).state_bytes
    if fact["engine"] == "SGLang":
        pool = sglang(fact)
        part = "conv" if "conv_state" in printed else "ssm" if "ssm_state" in printed else ""
        whole = pool.conv_bytes + pool.recurrent_bytes
        return {"conv": pool.conv_bytes, "ssm": pool.recurrent_bytes}.get(part, whole)
    model = model_of(fact)
    formats = s.get("conv_dtype", model.dtype), s.get("ssm_dtype", model.recurrent_format)
    return sum(cost.layer_state(x, *formats, tp=s.get("tp", 1)).total for x in model.layers)


def blocks(fact: dict) -> float:
    s = fact["settings"]
    if fact["engine"] == "TensorRT-LLM":
        return trt(fact).num_blocks(s["available_GiB"] * GIB, s["free_gpu_memory_fraction"])
    return vllm(fact).num_blocks(available_bytes(fact))


def tokens(fact: dict) -> float:
    if fact["engine"] == "TensorRT-LLM":
        return blocks(fact) * trt(fact).block_len
    if fact["engine"] == "SGLang":
        return available_bytes(fact) // row_bytes(fact)
    pool = vllm(fact)
    if "estimated maximum model length" in fact["printed"]:
        return longest(fact)
    num = pool.num_blocks(available_bytes(fact))
    if "concurrency x max_model_len" in fact["note"]:
        return pool.num_tokens_by_concurrency(num, fact["settings"]["max_model_len"])
    return pool.num_tokens(num)


def longest(fact: dict) -> int:
    s = fact["settings"]
    settings = Settings(
        context_len=1,
        engine="vllm",
        kv_format=formats_of(fact)[0],
        tp=s.get("tp", 1),
        block_len=s.get("block_size", 16),
    )
    served = resolve(model_of(fact), settings)
    return serving_engines.vllm_longest(served, available_bytes(fact), upper=2**24)


def concurrency(fact: dict) -> float:
    s = fact["settings"]
    if "kv_tokens" in s:  # tokens and length are whole blocks of a uniform model
        return s["kv_tokens"] / s["max_model_len"]
    pool = vllm(fact)
    return pool.concurrency(pool.num_blocks(available_bytes(fact)))


def swap_blocks(fact: dict) -> float:
    return vllm(fact).num_blocks(fact["settings"]["swap_space_GiB_per_gpu"] * GIB)


QUANTITIES = {
    "available_kv_bytes": available,
    "weights_bytes": weight_size,
    "params": params,
    "kv_elements_per_token": row_elements,
    "kv_bytes_per_token": row_bytes,
    "kv_total_bytes": kv_total,
    "k_cache_bytes": lambda fact: sglang(fact).key_bytes,
    "v_cache_bytes": lambda fact: sglang(fact).value_bytes,
    "state_bytes": state,
    "gpu_blocks": blocks,
    "cpu_swap_blocks": swap_blocks,
    "max_tokens": tokens,
    "max_concurrency": concurrency,
    "attention_block_tokens": lambda fact: vllm(fact).block_len,
}


def derived(fact: dict) -> dict[str, int]:
    """What the calculator makes of the quantities that a fact states as derived."""
    s = fact["settings"]
    if not DERIVED & s.keys():
        return {}
    layers = model_of(fact).layers
    kind = {"full": "full", "swa": "sliding"}.get(s.get("part"))
    rows = [x for x in layers if x.num_kv_heads and kind in (None, x.kind)]
    states = [x for x in layers if x.conv_elements or x.recurrent_elements]
    found = {"layers_with_kv": len(rows), "recurrent_layers": len(states)}
    found["mamba_layers"] = len(states)
    if fact["engine"] == "llama.cpp" and "cells" in s:
        cache = llama(fact)
        found["cells"] = cache.window_cells if s["part"] == "swa" else cache.cells
    if fact["engine"] == "vLLM" and ("groups" in s or "align" in s):
        pool = vllm(fact)
        found |= {"groups": len(pool.groups), "group_size": pool.group_size}
        found |= {"page_bytes": pool.page_bytes, "mamba_page_bytes": pool.state_page_bytes}
        found["attn_bytes_per_token"] = pool.page_bytes // pool.block_len
        found["align"] = deployment.VLLM_BLOCK_LEN
        found["block_size"] = pool.block_len
    if states and "ssm_d_conv" in s:
        width, conv = states[0].conv_width, states[0].conv_elements
        found["ssm_d_conv"] = conv // width + 1
        inner = s["ssm_d_inner"]  # not stored by itself: the state is inner x d_state
        found["ssm_d_state"] = states[0].recurrent_elements // inner
        found["ssm_d_inner"] = states[0].recurrent_elements // s["ssm_d_state"]
    return found


def decimals(fact: dict) -> int:
    """Decimals of the value as it was printed."""
    for found in re.findall(r"\d[\d,]*\.\d+|\d[\d,]*", fact["printed"]):
        for text in (found, found.replace(",", ""), found.replace(",", ".")):
            try:
                if math.isclose(float(text), fact["value"]):
                    return len(text.partition(".")[2])
            except ValueError:
                continue
    text = str(fact["value"])
    return len(text.partition(".")[2]) if not text.endswith(".0") else 0


def agrees(fact: dict) -> bool:
    """Equal after rounding to the printed decimals, or inside the tolerance; a soft fact also
    within 1 per cent."""
    value = computed(fact)
    if fact["tolerance"] and fact["tolerance"][0] <= value <= fact["tolerance"][1]:
        return True
    if fact["gate"] == "soft" and abs(value - fact["value"]) <= 0.01 * abs(fact["value"]):
        return True
    return abs(value - fact["value"]) <= 0.5 * 10 ** -decimals(fact) * (1 + 1e-9)
