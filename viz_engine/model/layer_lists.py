"""Lists with an entry per layer under keys that nothing was made of: said, never passed over.

A new kind of layer comes as a new list in the config. The cache is then counted without it, so the
keys are named beside the number. It knows nothing of what the entries mean.

Try it: `python -c "from viz_engine.model import config; \
print(config.preset('gpt-oss-20b').warnings)"`
"""

from collections.abc import Iterator, Mapping

from viz_engine.model.config_keys import NESTED, Keys

# Keys whose lists say nothing of a cache, by what they do say.
HARMLESS = {
    # of the MLP: which layers have experts, how wide it is, where it clips
    *("moe_layer_freq", "mlp_layer_types", "mlp_only_layers", "moe_layers"),
    *("intermediate_size", "activation_sparsity_pattern", "ffn_multipliers", "moe_layers_enum"),
    *("swiglu_limit", "swiglu_limits", "swiglu_limits_shared", "ffn_config", "mlp_types"),
    # of positions: rotary or none, its base; the row is as wide
    *("no_rope_layers", "nope_layers", "use_rope_layers", "rope_theta", "layer_rope_theta"),
    # of query heads: they keep no rows
    *("num_query_heads", "num_attention_heads", "num_attention_heads_per_layer"),
    # the numbers of some layers, read where `layer_types` does not say the same (LFM2)
    *("full_attn_idxs", "attn_layer_indices"),
    # tokens, labels, names of classes
    *("eos_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "bos_token_id"),
    *("architectures", "id2label", "label2id", "auto_map", "forced_decoder_ids"),
    # of other tables that have readers of their own, and of parts beside the language model
    *("quantization_config", "compression_config", "rope_scaling", "rope_parameters"),
}
OTHER_PARTS = ("vision", "audio", "video", "vit", "image", "speech", "talker", "code2wav")


def unread(keys: Keys, outer: Mapping[str, object], num_layers: int, drafts: int) -> list[str]:
    """The keys of lists, patterns and tables by layer number, of `num_layers` entries or of the
    draft layers' more, that no size came from. `outer` is the whole file."""
    lengths = {num_layers, num_layers + drafts}
    if num_layers < 3:  # any pair of numbers would be one
        return []
    parts = (keys.config,) if outer is keys.config else (keys.config, outer)
    found = [
        name
        for part in parts
        for name, value in _entries(part, "", keys.used)
        if _by_layer(value, lengths)
    ]
    return list(dict.fromkeys(found))


def _entries(
    part: Mapping[str, object], prefix: str, used: set[str], *, inner: bool = False
) -> Iterator[tuple[str, object]]:
    """The keys of a config that may describe layers, and those one table further in."""
    for name, value in part.items():
        skipped = name in used and not inner or name in HARMLESS or name in NESTED
        if skipped or name.startswith(("_", *OTHER_PARTS)):
            continue
        yield prefix + name, value
        if isinstance(value, dict) and not inner:
            yield from _entries(value, f"{name}.", used, inner=True)


def _by_layer(value: object, lengths: set[int]) -> bool:
    """Whether `value` has an entry per layer: a list, a table whose keys are layer numbers, or a
    word of few letters that repeat."""
    if not isinstance(value, list | dict | str) or len(value) not in lengths:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and key.isdecimal() for key in value)
    return isinstance(value, list) or len(set(value)) * 3 <= len(value)
