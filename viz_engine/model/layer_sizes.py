"""What a layer of each kind keeps: heads, latent rows, windows, states, from the keys of a config.

`layer_kinds.py` says of which kind each layer is. Sizes that differ from layer to layer, shared
rows, encoders and the rotary table are here too. It knows nothing of bytes.

Try it: `python -m viz_engine size --model qwen3-next-80b-a3b --context 32768`
"""

from collections.abc import Mapping
from dataclasses import replace

from viz_engine.model.config_keys import HEAD_DIM, HEADS, KV_HEADS, Keys, whole
from viz_engine.model.formats import DTYPES
from viz_engine.model.layer_kinds import (
    BOTH,
    BOTH_SLIDING,
    CHUNKED,
    CROSS,
    FULL,
    NONE,
    SLIDING,
    STATE,
    cut,
)
from viz_engine.model.spec import LayerSpec
from viz_engine.text import Message, UserError

NOTHING = LayerSpec(num_kv_heads=0, key_dim=0, value_dim=0, kind="none")
ONE_SHIFT = ("rwkv6qwen2", "arwkv7")  # RWKV with one token shift a layer in place of two


def layers_of(
    keys: Keys,
    kinds: list[str],
    hidden: int,
    outer: Mapping[str, object],
    warnings: list[Message],
) -> tuple[LayerSpec, ...]:
    """What each layer keeps. `outer` is the whole file, which holds the vision part."""
    attention = any(kind not in (STATE, NONE) for kind in kinds)
    plain = _plain_layer(keys, hidden) if attention else NOTHING
    state = (
        _state_layer(keys, hidden)
        if any(k in (STATE, BOTH, BOTH_SLIDING) for k in kinds)
        else NOTHING
    )
    window = _window(keys, kinds)
    made = {
        FULL: _global_layer(keys, plain),
        SLIDING: replace(_sliding_layer(keys, plain), kind="sliding", window=window)
        if window
        else plain,
        CHUNKED: replace(plain, kind="chunked", window=window) if window else plain,
        STATE: state,
        NONE: NOTHING,
    }
    if CROSS in kinds:
        made[CROSS] = replace(plain, kind="cross", fixed_len=_image_tokens(outer))
        if made[CROSS].fixed_len is None:
            warnings.append(Message(key="size.warn_cross"))
    for kind, rows in ((BOTH, FULL), (BOTH_SLIDING, SLIDING)):
        made[kind] = replace(
            made[rows],
            conv_elements=state.conv_elements,
            conv_width=state.conv_width,
            recurrent_elements=state.recurrent_elements,
        )
    layers = [made[kind] for kind in kinds]
    layers = _indexed(keys, _overridden(keys, _per_layer_heads(keys, layers)))
    return tuple(_shared(keys, layers))


def _plain_layer(keys: Keys, hidden: int) -> LayerSpec:
    """A layer of full attention: latent where the config has a latent rank, else K and V heads."""
    rank = keys.number("kv_lora_rank", ("kv_lora_rank",))
    if rank:
        return _latent_layer(keys, rank)
    heads = keys.needed("num_query_heads", HEADS)
    kv_heads = _kv_heads(keys, heads)
    head_dim = keys.number("head_dim", HEAD_DIM)
    if head_dim is None:
        if hidden % heads:
            raise UserError("error.size_head_dim", hidden=hidden, heads=heads)
        head_dim = hidden // heads
        keys.note("head_dim", head_dim, f"{hidden} / {heads}: hidden_size / heads")
    value_dim = keys.number("value_dim", ("v_head_dim", "value_head_dim")) or head_dim
    return LayerSpec(num_kv_heads=kv_heads, key_dim=head_dim, value_dim=value_dim)


def _kv_heads(keys: Keys, heads: int) -> int:
    """KV heads: a key of its own; one where a multi-query flag says so; else one a query head."""
    nested = keys.get("attn_config")
    if isinstance(nested, dict) and nested.get("kv_n_heads") is not None:
        kv_heads = whole("attn_config.kv_n_heads", nested["kv_n_heads"])
        keys.note("num_kv_heads", kv_heads, "attn_config.kv_n_heads", "read")
    elif keys.flag("multi_query") and not keys.flag("new_decoder_architecture"):
        kv_heads = 1
        keys.note("num_kv_heads", kv_heads, "multi_query")
    else:
        kv_heads = keys.number("num_kv_heads", KV_HEADS, least=0)
    if not kv_heads:
        keys.note("num_kv_heads", heads, "no key: one KV head a query head")
        return heads
    if kv_heads > heads or heads % kv_heads:
        raise UserError("error.size_kv_heads", heads=heads, kv_heads=kv_heads)
    return kv_heads


def _latent_layer(keys: Keys, rank: int) -> LayerSpec:
    """MLA: one row of `rank + rope` numbers for all heads. `head_dim` and `num_key_value_heads` of
    such configs do not speak of the cache."""
    heads = keys.needed("num_query_heads", HEADS)
    rope = keys.number("qk_rope_head_dim", ("qk_rope_head_dim",), least=0) or 0
    nope = keys.number("qk_nope_head_dim", ("qk_nope_head_dim",), least=0) or 0
    value = keys.number("v_head_dim", ("v_head_dim",), least=0) or nope
    index = keys.number("index_head_dim", ("index_head_dim",), least=0) or 0
    keys.note("num_kv_heads", 1, "kv_lora_rank: one latent row for all heads")
    return LayerSpec(
        num_kv_heads=1,
        key_dim=rank,
        value_dim=rope,
        kind="latent",
        expanded_key_elements=heads * (nope + rope),
        expanded_value_elements=heads * value,
        index_dim=index,
    )


def _global_layer(keys: Keys, plain: LayerSpec) -> LayerSpec:
    """The full layers of models whose window layers are shaped otherwise (Gemma 4)."""
    dim = keys.number("global_head_dim", ("global_head_dim",))
    heads = keys.number("num_global_kv_heads", ("num_global_key_value_heads",))
    if dim is None and heads is None or plain.kind == "latent":
        return plain
    return replace(
        plain,
        num_kv_heads=heads or plain.num_kv_heads,
        key_dim=dim or plain.key_dim,
        value_dim=dim or plain.value_dim,
    )


def _sliding_layer(keys: Keys, plain: LayerSpec) -> LayerSpec:
    """The window layers of models that give these heads of their own (MiMo)."""
    heads = keys.number("swa_kv_heads", ("swa_num_key_value_heads",))
    dim = keys.number("swa_head_dim", ("swa_head_dim",))
    if heads is None and dim is None or plain.kind == "latent":
        return plain
    value = keys.number("swa_value_dim", ("swa_v_head_dim",)) or dim or plain.value_dim
    return replace(
        plain,
        num_kv_heads=heads or plain.num_kv_heads,
        key_dim=dim or plain.key_dim,
        value_dim=value,
    )


def _window(keys: Keys, kinds: list[str]) -> int | None:
    """Positions that a query of a window layer attends to; None where that is the whole context."""
    if CHUNKED in kinds:
        return keys.number("window", ("attention_chunk_size",), most=2**31)
    if not any(kind in (SLIDING, BOTH_SLIDING) for kind in kinds):
        return None
    names = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")
    window = keys.number("window", names, least=0, most=2**31)
    if window is None:
        window = keys.number("window", ("local_attention",), most=2**31)
    if not window:
        raise UserError("error.size_missing", keys=", ".join(names))
    return window


def _per_layer_heads(keys: Keys, layers: list[LayerSpec]) -> list[LayerSpec]:
    """KV heads that differ from layer to layer (architecture search): 0 is no attention."""
    name, listed = keys.listed("num_key_value_heads_per_layer", "num_kv_heads", *KV_HEADS)
    if name is None:
        name, listed = "block_configs", _block_heads(keys)
    if not listed:
        return layers
    listed = cut(keys, name, listed, len(layers))
    heads = [whole(name, value, least=0) for value in listed]
    keys.note("num_kv_heads_per_layer", f"{min(heads)} .. {max(heads)}", name, "read")
    return [
        replace(layer, num_kv_heads=num) if num else NOTHING
        for layer, num in zip(layers, heads, strict=True)
    ]


def _block_heads(keys: Keys) -> list[int]:
    """KV heads from `block_configs`: query heads / heads in a group, 0 where attention is left
    out or replaced."""
    blocks = keys.get("block_configs")
    if not isinstance(blocks, list):
        return []
    query = keys.needed("num_query_heads", HEADS)
    heads = []
    for block in blocks:
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            raise UserError("error.size_missing", keys="block_configs[].attention")
        group = attention.get("n_heads_in_group")
        skipped = attention.get("no_op") or attention.get("replace_with_linear") or group is None
        heads.append(0 if skipped else query // whole("n_heads_in_group", group, most=query))
    return heads


def _overridden(keys: Keys, layers: list[LayerSpec]) -> list[LayerSpec]:
    """Sizes that transformers 5 writes for single layers: `per_layer_config`, by layer number."""
    changes = keys.get("per_layer_config")
    if not isinstance(changes, dict):
        return layers
    for index, change in changes.items():
        if not (index.isdecimal() and int(index) < len(layers) and isinstance(change, dict)):
            raise UserError("error.size_layer_kind", key="per_layer_config", kind=index)
        layer = layers[int(index)]
        names = {"num_kv_heads": "num_key_value_heads", "key_dim": "head_dim"}
        names |= {"value_dim": "head_dim", "window": "sliding_window"}
        if layer.kind == "latent":
            names = {"key_dim": "kv_lora_rank", "value_dim": "qk_rope_head_dim"}
        found = {
            field: whole(key, change[key])
            for field, key in names.items()
            if change.get(key) is not None
        }
        layers[int(index)] = replace(layer, **found) if layer.num_kv_heads else layer
    return layers


def _indexed(keys: Keys, layers: list[LayerSpec]) -> list[LayerSpec]:
    """Sparse layers that pick rows as an earlier one did, and keep no indexer key of their own:
    `indexer_types`, a pattern of F and S, or every `index_topk_freq`-th layer (GlmMoeDsaConfig)."""
    if not any(layer.index_dim for layer in layers):
        return layers
    name, listed = keys.listed("indexer_types")
    pattern = keys.get("index_topk_pattern")
    if name is None and isinstance(pattern, str):
        name = "index_topk_pattern"
        listed = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    elif name is None:
        every = keys.number("index_topk_freq", ("index_topk_freq",)) or 1
        if every == 1 or keys.model_type != "glm_moe_dsa":
            return layers
        first = keys.number("index_skip_topk_offset", ("index_skip_topk_offset",), least=0)
        first = 2 if first is None else first
        listed = ["shared" if max(i - first + 1, 0) % every else "full" for i in range(len(layers))]
        name = "index_topk_freq"
    listed = cut(keys, name, listed, len(layers))
    for entry in listed:
        if entry not in ("full", "shared"):
            raise UserError("error.size_layer_kind", key=name, kind=str(entry)[:40])
    return [
        replace(layer, index_dim=0) if entry == "shared" else layer
        for layer, entry in zip(layers, listed, strict=True)
    ]


def _shared(keys: Keys, layers: list[LayerSpec]) -> list[LayerSpec]:
    """The last layers may keep nothing and read the rows of an earlier layer of their kind."""
    num = keys.number("num_kv_shared_layers", ("num_kv_shared_layers",), least=0) or 0
    if not num:
        return layers
    if num >= len(layers):
        raise UserError(
            "error.size_range", key="num_kv_shared_layers", value=num, least=0, most=len(layers) - 1
        )
    own = layers[: len(layers) - num]
    shared = []
    for layer in layers[len(own) :]:
        source = max((i for i, other in enumerate(own) if other.kind == layer.kind), default=None)
        shared.append(replace(NOTHING, kind="shared", shares=source))
    return own + shared


def _state_layer(keys: Keys, hidden: int) -> LayerSpec:
    """A layer with a state of constant size, by the keys that describe it."""

    def get(*names: str, least: int = 0) -> int | None:
        return keys.number(names[0], names, least=least)

    kernel = get("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "conv1d_width", "d_conv")
    if (values := get("linear_num_value_heads")) is not None:  # gated delta net
        keys_n, dk, dv = (
            keys.needed(name, (name,))
            for name in ("linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim")
        )
        width = 2 * keys_n * dk + values * dv
        return _state(width, kernel or 4, values * dk * dv)
    if isinstance(linear := keys.get("linear_attn_config"), dict):  # Kimi delta attention
        heads, dim = (whole(name, linear.get(name)) for name in ("num_heads", "head_dim"))
        kernel = whole("short_conv_kernel_size", linear.get("short_conv_kernel_size", 4))
        return _state(3 * heads * dim, kernel, heads * dim * dim)
    state = get("ssm_state_size", "mamba_d_state", "state_size", "d_state")
    if state:
        return _mamba(keys, hidden, state, kernel or 4)
    if (length := get("conv_L_cache", "conv_kernel_size")) is not None:  # short convolution only
        width = get("conv_dim") or hidden
        return _state(width, length, 0)
    if (width := get("lru_width")) is not None:
        return _state(width, kernel or 4, width)
    if (size := get("head_size", "attention_head_size")) is not None:  # RWKV 5 to 7
        shifts = 1 if keys.model_type in ONE_SHIFT else 2
        return _state(hidden, shifts + 1, hidden * size)
    if keys.find(*HEADS)[0] is not None:  # lightning attention: a K x V square a head
        heads = keys.needed("num_query_heads", HEADS)
        dim = keys.number("head_dim", HEAD_DIM) or hidden // heads
        return _state(0, 1, heads * dim * dim)
    raise UserError("error.size_state", model_type=keys.model_type or "?")


def _mamba(keys: Keys, hidden: int, state: int, kernel: int) -> LayerSpec:
    """Mamba 2 where there are heads, else Mamba 1."""
    heads = keys.number("mamba_heads", ("mamba_num_heads", "mamba_n_heads"))
    if heads is None and not keys.has("time_step_rank", "mamba_dt_rank") and keys.has("n_groups"):
        heads = keys.number("mamba_heads", ("num_heads",))
    expand = keys.number("mamba_expand", ("mamba_expand", "expand")) or 2
    widths = ("mamba_d_ssm", "d_inner")
    if not keys.has("num_attention_heads"):  # nothing but Mamba layers: then this is their width
        widths += ("intermediate_size",)
    inner = keys.number("mamba_inner", widths)
    groups = keys.number("mamba_groups", ("mamba_n_groups", "n_groups", "mamba_ngroups"))
    if heads is not None:
        dims = ("mamba_head_dim", "mamba_d_head", "mamba_headdim")
        dim = keys.number("mamba_head_dim", dims)
        if dim is None and "mamba_num_heads" not in keys.config:
            dim = keys.number("mamba_head_dim", ("head_dim",))
        inner = inner or heads * (dim or expand * hidden // heads)
    if heads is not None or groups is not None:
        inner = inner or expand * hidden
        return _state(inner + 2 * (groups or 1) * state, kernel, inner * state)
    inner = inner or expand * hidden
    return _state(inner, kernel, inner * state)


def _state(width: int, kernel: int, recurrent: int) -> LayerSpec:
    return LayerSpec(
        num_kv_heads=0,
        key_dim=0,
        value_dim=0,
        kind="state",
        conv_elements=(kernel - 1) * width,
        conv_width=width,
        recurrent_elements=recurrent,
    )


def recurrent_format(keys: Keys, layers: tuple[LayerSpec, ...], dtype: str) -> str:
    """The type of the recurrent state: what the config says; f32 for delta nets and RWKV; else the
    model's own."""
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        value = keys.find(name)[1]
        if isinstance(value, str) and value in DTYPES:
            return DTYPES[value]
    delta = keys.has("linear_num_value_heads", "linear_attn_config", "head_size")
    return "f32" if delta else dtype


def cross_layers_of(keys: Keys, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Of an encoder-decoder: each decoder layer also keeps K and V of what the encoder read."""
    has_decoder = keys.has("num_decoder_layers", "decoder_layers", "decoder_start_token_id")
    if not keys.get("is_encoder_decoder") or not has_decoder:
        return ()
    length = keys.number("encoder_len", ("max_source_positions",))
    return tuple(replace(layer, kind="cross", fixed_len=length) for layer in layers)


def rope_cache_numbers(keys: Keys, layers: tuple[LayerSpec, ...], context: int | None) -> int:
    """cos and sin of half the rotated width for every position; 0 where positions are learned or
    unknown."""
    if context is None or keys.has("n_positions", "relative_attention_num_buckets"):
        return 0
    layer = next((x for x in layers if x.kind in ("full", "sliding", "chunked", "latent")), None)
    if layer is None:
        return 0
    width = layer.value_dim if layer.kind == "latent" else layer.key_dim
    partial = keys.find("partial_rotary_factor", "rotary_pct")[1]
    if isinstance(partial, int | float) and 0 < partial <= 1:
        width = int(width * partial)
    return context * width


def _image_tokens(outer: Mapping[str, object]) -> int | None:
    """Tokens of the largest image: `tiles x ((image_size / patch_size)^2 + 1)`."""
    vision = outer.get("vision_config")
    if not isinstance(vision, dict):
        return None
    image, patch = vision.get("image_size"), vision.get("patch_size")
    if not all(isinstance(v, int) and 0 < v < 100_000 for v in (image, patch)):
        return None
    tiles = vision.get("max_num_tiles", 1)
    tiles = tiles if isinstance(tiles, int) and 0 < tiles <= 1000 else 1
    return tiles * ((image // patch) ** 2 + 1)
