"""Of which kind each layer of a model is, from a list, a pattern, a period or a window.

What a layer of each kind keeps is `layer_sizes.py`. No model has a rule of its own: rules hang on
keys, and where no key tells, on the type of the configuration class.

Try it: `python -m viz_engine size --model gemma-3-12b --context 32768`
"""

from viz_engine.model.config_keys import CONTEXT, HEADS, KV_HEADS, LAYERS, MAX_LAYERS, Keys, whole
from viz_engine.text import Message, UserError

# Kinds of `kinds_of`: what a layer holds beside its MLP.
FULL, SLIDING, CHUNKED, CROSS, STATE, BOTH, BOTH_SLIDING, NONE = (
    "full",
    "sliding",
    "chunked",
    "cross",
    "state",
    "both",
    "both_sliding",
    "none",
)
NAMES = {
    "full_attention": FULL,
    "attention": FULL,
    "full": FULL,
    "global": FULL,
    "global_attention": FULL,
    "indexed_attention": FULL,
    "deepseek_sparse_attention": FULL,
    "minimax_m3_sparse": FULL,
    "sliding_attention": SLIDING,
    "sliding_window_attention": SLIDING,
    "sliding": SLIDING,
    "local": SLIDING,
    "local_attention": SLIDING,
    "swa": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": STATE,
    "gated_deltanet": STATE,
    "mamba": STATE,
    "mamba2": STATE,
    "conv": STATE,
    "short_conv": STATE,
    "recurrent": STATE,
    "hybrid": BOTH,
    "hybrid_sliding": BOTH_SLIDING,
    "mlp": NONE,
    "moe": NONE,
    "no_op": NONE,
}
LETTERS = {"M": STATE, "*": FULL, "-": NONE, "E": NONE, "L": SLIDING, "G": FULL, "S": SLIDING}
LISTS = ("layer_types", "layers_block_type", "block_types", "attn_type_list")
PATTERNS = ("hybrid_override_pattern", "layers_block_pattern")
PERIODS = ("full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern")
PERIODS += ("layer_group_size", "global_attn_every_n_layers")
INDICES = ("full_attn_idxs", "attn_layer_indices", "attention_layers", "full_attention_layers")
ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "nomic_bert", "modernbert")
# Types whose every layer has attention and a state side by side, and no key that says so.
PARALLEL = ("falcon_h1",)
# One row kept for several positions, by a ratio that differs from layer to layer, beside a window
# in every layer: no LayerSpec says that.
COMPRESSED = "compress_ratios"
COMPRESSED_TYPES = ("deepseek_v4",)
TWO_ATTENTIONS = ("longcat_flash",)  # in each layer, each with rows of its own


def num_layers_of(keys: Keys) -> int:
    """Layers of the language model: by a key, else as many as a list or pattern describes."""
    if keys.get("is_encoder_decoder") and keys.has("decoder_layers", "num_decoder_layers"):
        return keys.needed("num_layers", ("decoder_layers", "num_decoder_layers"), most=MAX_LAYERS)
    if keys.find(*LAYERS)[0] is None:
        name, listed = keys.listed(*LISTS)
        name, listed = (name, listed) if name else keys.find(*PATTERNS)[:2]
        if isinstance(listed, list | str) and listed:
            num = whole(name, len(listed), most=MAX_LAYERS)
            keys.note("num_layers", num, f"length of {name}")
            return num
    num = keys.needed("num_layers", LAYERS, most=MAX_LAYERS)
    return 2 * num if keys.model_type in TWO_ATTENTIONS else num


def kinds_of(keys: Keys, num_layers: int, warnings: list[Message]) -> list[str]:
    """The kind of each layer. Raises UserError on a list of another length or with a kind that is
    not known, and of a model whose rows are compressed."""
    if keys.has(COMPRESSED) or keys.model_type in COMPRESSED_TYPES:
        raise UserError("error.size_compressed", key=COMPRESSED)
    kinds, source = _explicit(keys, num_layers) or _periodic(keys, num_layers) or ([], "")
    how = "read"
    if not kinds and (pattern := keys.defaults.get("layer_pattern")):
        kinds = [_named(pattern[i % len(pattern)], "layer_types") for i in range(num_layers)]
        source, how = f"{keys.model_type}: layer_types", "default"
    if not kinds:
        kinds, source, how = _uniform(keys, num_layers, warnings)
    for i in _indices(keys, "cross_attention_layers", num_layers):
        kinds[i] = CROSS
    keys.note("layer_kinds", ", ".join(dict.fromkeys(kinds)), source, how)
    return kinds


def _explicit(keys: Keys, num_layers: int) -> tuple[list[str], str] | None:
    """From a list or a string with an entry a layer, or from the numbers of some layers."""
    name, listed = keys.listed(*LISTS)
    if name is not None:
        if name == "block_types" and listed:  # a pattern that repeats
            listed = [listed[i % len(listed)] for i in range(num_layers)]
        return [_named(entry, name) for entry in cut(keys, name, listed, num_layers)], name
    name, listed = keys.listed("hybrid_layer_pattern")
    if name is not None:  # 1: a window (MiMo-V2)
        return [_window_or_full(x, name) for x in cut(keys, name, listed, num_layers)], name
    name, pattern, _ = keys.find(*PATTERNS)
    if isinstance(pattern, str):
        letters = cut(keys, name, [c for c in pattern if c != "|"], num_layers)
        return [_letter(c, name) for c in letters], name
    named = keys.config.get("attention_layers")
    if isinstance(named, list) and named and all(isinstance(x, str) for x in named):  # GPT-Neo
        name, listed = keys.listed("attention_layers")
        return [_named(entry, name) for entry in cut(keys, name, listed, num_layers)], name
    linear = keys.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("kda_layers"), list):
        states = {whole("kda_layers", i, most=num_layers) - 1 for i in linear["kda_layers"]}
        return [STATE if i in states else FULL for i in range(num_layers)], "kda_layers"
    for name in INDICES:
        if _is_numbers(keys.config.get(name)):
            full = _indices(keys, name, num_layers)
            return [FULL if i in full else STATE for i in range(num_layers)], name
    counts = [keys.config.get(name) for name in ("attention_layers", "mamba_layers")]
    if all(isinstance(count, int) for count in counts):  # counts without an order
        full, states = (whole("attention_layers", count, most=num_layers) for count in counts)
        if full + states > num_layers:
            raise UserError(
                "error.size_layer_list", key="mamba_layers", num=full + states, layers=num_layers
            )
        rest = num_layers - full - states
        return [FULL] * full + [STATE] * states + [NONE] * rest, "attention_layers, mamba_layers"
    return None


def _periodic(keys: Keys, num_layers: int) -> tuple[list[str], str] | None:
    """From "every n-th layer"."""
    if keys.has("attn_layer_period"):
        period = keys.number("attn_layer_period", ("attn_layer_period",))
        offset = keys.number("attn_layer_offset", ("attn_layer_offset",), least=0) or 0
        kinds = [FULL if i % period == offset else STATE for i in range(num_layers)]
        return kinds, "attn_layer_period, attn_layer_offset"
    if keys.has("attention_chunk_size"):
        name, rope = keys.listed("no_rope_layers")
        every = keys.number("no_rope_layer_interval", ("no_rope_layer_interval",)) or 4
        if rope and _is_numbers(rope):
            rope = cut(keys, name, rope, num_layers)
            return [CHUNKED if r else FULL for r in rope], "no_rope_layers, attention_chunk_size"
        kinds = [FULL if (i + 1) % every == 0 else CHUNKED for i in range(num_layers)]
        return kinds, "no_rope_layer_interval, attention_chunk_size"
    name, period, _ = keys.find(*PERIODS)
    if isinstance(period, str):
        letters = [period[i % len(period)] for i in range(num_layers)] if period else []
        return [_letter(c, name) for c in letters], name
    if isinstance(period, list) and len(period) == num_layers and _is_numbers(period):
        return [SLIDING if local else FULL for local in period], name
    if isinstance(period, int) and not isinstance(period, bool):
        whole(name, period, most=num_layers * 100)
        if name == "global_attn_every_n_layers":
            return [SLIDING if i % period else FULL for i in range(num_layers)], name
        states = name in ("full_attention_interval", "layer_group_size")
        other = STATE if states else SLIDING
        return [FULL if (i + 1) % period == 0 else other for i in range(num_layers)], name
    return None


def _uniform(keys: Keys, num_layers: int, warnings: list[Message]) -> tuple[list[str], str, str]:
    """All layers of one kind, as transformers does where nothing lists them."""
    heads = [name for name in (*HEADS, *KV_HEADS) if name != "num_heads"]  # Mamba 2's own heads
    if has_state(keys) and not keys.has(*heads):
        return [STATE] * num_layers, "no attention heads, a state", "derived"
    if keys.model_type in PARALLEL or (has_state(keys) and keys.has("mamba_d_ssm")):
        return [BOTH] * num_layers, "mamba_d_ssm beside attention heads", "derived"
    name, window, how = keys.find("sliding_window", "sliding_window_size", "attention_window_size")
    uses = keys.get("use_sliding_window", keys.defaults.get("use_sliding_window"))
    if isinstance(window, int) and window > 0 and uses is not False:
        context = keys.find(*CONTEXT)[1]
        if isinstance(context, int) and window >= context:
            return [FULL] * num_layers, f"{name} is not below {context}", "derived"
        first = keys.get("max_window_layers") if uses else 0
        first = whole("max_window_layers", first or 0, least=0)
        kinds = [SLIDING if i >= first else FULL for i in range(num_layers)]
        warnings.append(Message(key="size.warn_window", params={"key": name, "window": window}))
        return kinds, f"{name}, no list of layer types", how
    return [FULL] * num_layers, "no window, no list of layer types", "derived"


def has_state(keys: Keys) -> bool:
    """Whether any key describes a state of constant size."""
    names = ("state_size", "ssm_state_size", "mamba_d_state", "conv_L_cache", "head_size")
    return (
        keys.find(*names, "linear_num_value_heads", "lru_width", "attention_hidden_size")[0]
        is not None
    )


def _named(entry: object, key: str) -> str:
    if key == "attn_type_list" and entry in (0, 1):
        return FULL if entry else STATE
    if not isinstance(entry, str) or entry not in NAMES:
        raise UserError("error.size_layer_kind", key=key, kind=str(entry)[:40])
    return NAMES[entry]


def _window_or_full(entry: object, key: str) -> str:
    if isinstance(entry, bool) or entry not in (0, 1):
        raise UserError("error.size_layer_kind", key=key, kind=str(entry)[:40])
    return SLIDING if entry else FULL


def _letter(letter: str, key: str) -> str:
    if letter not in LETTERS:
        raise UserError("error.size_layer_kind", key=key, kind=letter)
    return LETTERS[letter]


def cut(keys: Keys, name: str, listed: list, num_layers: int) -> list:
    """A list with an entry a layer; entries for draft layers may follow."""
    drafts = keys.find("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")[1]
    if len(listed) == num_layers or (
        isinstance(drafts, int) and len(listed) == num_layers + drafts
    ):
        return listed[:num_layers]
    raise UserError("error.size_layer_list", key=name, num=len(listed), layers=num_layers)


def _indices(keys: Keys, name: str, num_layers: int) -> list[int]:
    listed = keys.get(name)
    if not isinstance(listed, list):
        return []
    return [whole(name, i, least=0, most=num_layers - 1) for i in listed]


def _is_numbers(listed: object) -> bool:
    return isinstance(listed, list) and bool(listed) and all(isinstance(i, int) for i in listed)
