"""What a config.json says of a model: what each layer keeps, how many weights, in which types.

`read` takes the text or the mapping of any causal language model's config.json. Every size says
where it came from (`ModelConfig.derivations`); what it had to assume it says in `warnings`; what it
cannot read is a UserError that names the key. It knows nothing of bytes, engines or devices.

Try it: `python -c "from viz_engine.model import config; print(config.preset('gpt2').layers[0])"`
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from viz_engine.model import (
    config_keys,
    formats,
    layer_kinds,
    layer_lists,
    layer_sizes,
    quantization,
    released,
    weights,
)
from viz_engine.model.config_keys import (
    CONTEXT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    VOCAB,
    Derivation,
    Keys,
)
from viz_engine.model.spec import LayerSpec, ModelSpec, WeightGroup
from viz_engine.numbers import grouped
from viz_engine.paths import ASSETS
from viz_engine.text import Message, UserError

PRESETS = ASSETS / "presets"
DIFFUSION = ("_class_name", "_diffusers_version", "block_out_channels", "unet_config")
# Types of several parts that match pictures or sounds with text, and write none.
PICTURES = ("clip", "siglip", "siglip2", "chinese_clip", "clipseg", "clap", "owlvit", "owlv2")
ADAPTER = ("peft_type", "base_model_name_or_path", "lora_alpha")
# Parts beside the language model that have weights of their own.
OTHER_PARTS = ("vision_config", "audio_config", "video_config", "vit_config", "vision_tower_config")
MAIN = ("num_layers", "hidden_size", "num_query_heads", "num_kv_heads", "head_dim", "window")
NOTHING_BESIDE = released.Released()
FILES_DIFFER = 0.02  # files also hold draft layers, other parts and scales
DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelConfig:
    """A model as its config describes it. Lengths in tokens, sizes in numbers. Compared and hashed
    by identity: what was read once is read often."""

    name: str
    model_type: str
    layers: tuple[LayerSpec, ...]
    layer_counts: Mapping[LayerSpec, int]  # layers that keep the same, and how many there are
    draft_layers: tuple[LayerSpec, ...]  # multi-token prediction: beside the layers, if loaded
    cross_layers: tuple[LayerSpec, ...]  # of an encoder-decoder: K and V of what was read
    hidden_size: int
    num_query_heads: int | None
    head_dim: int | None
    vocab_size: int | None
    max_context_len: int | None  # None: the file names none
    dtype: str  # of weights and cache unless asked otherwise: a name in formats.CACHES
    recurrent_format: str  # of the recurrent part of a state where an engine follows the config
    weights: tuple[WeightGroup, ...] | None  # None: the file does not say enough
    stored: quantization.Stored | None  # how they are released; None: in `dtype`
    file_bytes: int | None = None  # of all weights as the files beside the config state them
    stated_parameters: int | None = None  # by these, where no matrices are described
    mlp_width: int  # of the widest MLP that a token passes through
    rope_cache_numbers: int  # cos and sin for every position, which engines hold beside the weights
    derivations: tuple[Derivation, ...]
    warnings: tuple[Message, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_parameters(self) -> int | None:
        """All weights, a tied table once; None where no file says enough."""
        if self.weights is None:
            return self.stated_parameters
        return sum(w.num_weights for w in self.weights)

    @property
    def num_active_parameters(self) -> int | None:
        """Weights that one token takes part in: of a mixture of experts, those it is routed to."""
        return None if self.weights is None else sum(w.num_active for w in self.weights)

    def knows_weights(self, name: str, asked: int | None = None) -> bool:
        """Whether anything says what the weights take in the format `name`: their number (`asked`
        is one that was given), or the files where they are taken as released."""
        by_files = self.file_bytes is not None and formats.is_auto(name)
        return by_files or (asked or self.num_parameters) is not None

    def weight_bits(self, name: str, dtype: str) -> float:
        """Bits of a weight in the format `name`; "auto": the mean of those that the weights are
        released in, `dtype` where the file says no other. Raises UserError."""
        bits = formats.weight_bits(name, dtype)
        if not formats.is_auto(name) or self.stored is None:
            return bits
        return self.stored.bits if self.weights is None else weights.mean_bits(self.weights, bits)

    def spec(self, name: str = "") -> ModelSpec:
        """What a run has to know of it, as the engine loads it: every weight in one type."""
        plain = self.weights and tuple(replace(g, stored_bits=None) for g in self.weights)
        return ModelSpec(
            name=name or self.name,
            model_type=self.model_type,
            layers=self.layers,
            hidden_size=self.hidden_size,
            num_query_heads=self.num_query_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size or 0,
            max_context_len=self.max_context_len,
            weights=plain,
        )

    def derivation(self, field: str) -> Derivation | None:
        """Where a size came from."""
        return next((d for d in self.derivations if d.field == field), None)


def read_files(files: Mapping[str, bytes | None], *, name: str = "") -> ModelConfig:
    """The model that several files describe: config.json, or the only JSON file that is of no
    other kind, and what lies beside it (`released.py`). Raises UserError."""
    others = (released.QUANTIZATION, "generation_config.json", "tokenizer_config.json")
    configs = [
        x for x in files if x not in others and not x.endswith((released.INDEX, released.WEIGHTS))
    ]
    chosen = released.CONFIG if released.CONFIG in configs else next(iter(configs), None)
    if chosen is None:
        raise UserError("error.size_no_config", names=", ".join(files)[:200])
    return read(files[chosen], name=name, beside=released.read(files))


def read(
    source: str | bytes | Mapping[str, object],
    *,
    name: str = "",
    beside: released.Released = NOTHING_BESIDE,
) -> ModelConfig:
    """The model that a config.json describes, and the files `beside` it. Raises UserError with
    what is wrong: not JSON, too large, not of a language model, a key missing, of the wrong type,
    absurd or in contradiction to another."""
    whole = config_keys.parse(source) if isinstance(source, str | bytes) else dict(source)
    text = _language_part(whole)
    model_type = str(text.get("model_type") or whole.get("model_type") or "")[:60]
    keys = Keys(text, config_keys.known_type(whole, model_type))
    warnings: list[Message] = []
    num_layers = layer_kinds.num_layers_of(keys)
    hidden = keys.needed("hidden_size", HIDDEN)
    kinds = layer_kinds.kinds_of(keys, num_layers, warnings)
    layers = layer_sizes.layers_of(keys, kinds, hidden, whole, warnings)
    num_draft = keys.number("num_draft_layers", DRAFT_LAYERS, least=0, most=64) or 0
    rows = [layer for layer in reversed(layers) if layer.kind in ("full", "latent")]
    grown = max(rows, key=lambda layer: layer.index_dim, default=None)  # with an indexer of its own
    dtype = _dtype(whole, text, warnings)
    described = weights.groups_of(keys, layers, hidden, bool(_tied(whole, keys)))
    num_noted = len(warnings)
    stored = quantization.read(whole, text, warnings, beside.quantization)
    unknown = len(warnings) > num_noted
    if stored is not None:
        own = formats.weight_bits("auto", dtype)
        described = described and quantization.apply(stored, described, own)
        keys.note(
            "weight_format", f"{stored.method}, {stored.bits:.4g} bits", stored.source, "read"
        )
    if text is not whole and any(name in whole for name in OTHER_PARTS):
        names = ", ".join(name for name in OTHER_PARTS if name in whole)
        warnings.append(Message(key="size.warn_other_parts", params={"keys": names}))
    stated = None
    if beside.num_bytes is not None:
        own = formats.weight_bits("auto", dtype)
        stated = None if stored or unknown or described else round(beside.num_bytes * 8 / own)
        _compare_files(keys, beside, described, own, warnings)
    if beside.unasked:
        params = {"names": ", ".join(beside.unasked)}
        warnings.append(Message(key="size.warn_unasked", params=params))
    if described is None and beside.num_bytes is None:
        warnings.append(Message(key="size.warn_weights", params={"model_type": model_type or "?"}))
    if keys.flag("is_decoder") is False and model_type in layer_kinds.ENCODERS:
        warnings.append(Message(key="size.warn_encoder", params={"model_type": model_type}))
    context = keys.number("max_context_len", CONTEXT, most=2**31)
    defaults = [d for d in keys.derivations if d.how == "default" and d.field in MAIN]
    if defaults:  # a default's source is "type: key"
        left_out = ", ".join(d.source.rpartition(": ")[2] for d in defaults)
        params = {"fields": left_out, "model_type": keys.model_type}
        warnings.append(Message(key="size.warn_default", params=params))
    if unread := layer_lists.unread(keys, whole, len(kinds), num_draft):
        params = {"keys": ", ".join(f"“{name}”" for name in unread)[:300]}
        warnings.append(Message(key="size.warn_layer_list", params=params))
    found = ModelConfig(
        name=name or str(whole.get("_name_or_path") or model_type or "config.json")[:100],
        model_type=model_type,
        layers=layers,
        layer_counts=Counter(layers),
        draft_layers=(grown,) * num_draft if grown else (),
        cross_layers=layer_sizes.cross_layers_of(keys, layers),
        hidden_size=hidden,
        num_query_heads=keys.number("num_query_heads", HEADS),
        head_dim=keys.number("head_dim", HEAD_DIM),
        vocab_size=keys.number("vocab_size", VOCAB, most=2**24),
        max_context_len=context,
        dtype=dtype,
        recurrent_format=layer_sizes.recurrent_format(keys, layers, dtype),
        weights=described,
        stored=stored,
        file_bytes=beside.num_bytes,
        stated_parameters=stated,
        mlp_width=weights.widest(described or ()) or 4 * hidden,
        rope_cache_numbers=layer_sizes.rope_cache_numbers(keys, layers, context),
        derivations=tuple(keys.derivations),
        warnings=tuple(warnings),
    )
    return found


def _compare_files(
    keys: Keys,
    beside: released.Released,
    described: tuple[WeightGroup, ...] | None,
    own: float,
    warnings: list[Message],
) -> None:
    """Note that the files say how many bytes the weights take, and what the config comes to where
    that is something else."""
    keys.note("weight_bytes", beside.num_bytes, beside.source, "read")
    if described is None:
        return
    counted = weights.rank_bytes(described, own, 1, stored=True)
    if abs(counted - beside.num_bytes) > FILES_DIFFER * beside.num_bytes:
        params = {
            "source": beside.source,
            "stated": grouped(beside.num_bytes),
            "counted": grouped(counted),
        }
        warnings.append(Message(key="size.warn_files", params=params))


def describes_weights(model_type: object) -> bool:
    """Whether the weights of a type are described here: compared with transformers' own, for every
    type that it has (tests/model/test_config_oracle.py)."""
    return bool(config_keys.class_defaults().get(str(model_type), {}).get("weights_described"))


def weights_of_schema_1(spec: Mapping[str, object]) -> tuple[WeightGroup, ...]:
    """The weights of a model of the Llama family, of which older records say sizes and biases.
    Raises UserError where they contradict each other, KeyError where one is missing."""
    qwen2 = spec["model_type"] == "qwen2"
    found = read(
        {
            "model_type": spec["model_type"],
            "num_hidden_layers": len(spec["layers"]),
            "hidden_size": spec["hidden_size"],
            "intermediate_size": spec["intermediate_size"],
            "num_attention_heads": spec["num_query_heads"],
            "num_key_value_heads": spec["layers"][0]["num_kv_heads"],
            "head_dim": spec["head_dim"],
            "vocab_size": spec["vocab_size"],
            "tie_word_embeddings": spec["tied_embeddings"],
            "attention_bias": spec["qkv_bias"] and not qwen2,
            "mlp_bias": spec["mlp_bias"],
            "sliding_window": None,
        }
    )
    return found.weights or ()


def _language_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """The mapping that describes the language model: the file itself, or a part of it. Raises
    UserError for files of other kinds."""
    if any(key in config for key in ADAPTER):
        base = str(config.get("base_model_name_or_path") or "?")[:100]
        raise UserError("error.size_adapter", base=base)
    if any(key in config for key in DIFFUSION):
        raise UserError("error.size_diffusion")
    found = None if config.get("model_type") in PICTURES else _nested(config, 3)
    if found is not None:
        return found
    names = ("image_size", "patch_size", "num_channels", "num_mel_bins", "vision_config")
    if any(key in config for key in names):
        raise UserError("error.size_vision", model_type=str(config.get("model_type"))[:60])
    return config


def _nested(config: Mapping[str, object], depth: int) -> Mapping[str, object] | None:
    for name in config_keys.NESTED:
        inner = config.get(name)
        if isinstance(inner, dict) and depth:
            if found := _nested(inner, depth - 1):
                return found
    has_layers = any(config.get(name) is not None for name in LAYERS)
    vision = "vocab_size" not in config and ("image_size" in config or "patch_size" in config)
    if has_layers and not vision:
        return config
    known = config_keys.class_defaults().get(str(config.get("model_type")), {})
    return config if any(name in known for name in LAYERS) and not vision else None


def _dtype(whole: Mapping[str, object], text: Mapping[str, object], warnings: list[Message]) -> str:
    """The type of the weights; one that is not known reads as two bytes, with a warning."""
    for key in ("dtype", "torch_dtype"):
        for part in (text, whole):
            if isinstance(part.get(key), str):
                name = part[key].removeprefix("torch.")
                if name in formats.DTYPES:
                    return formats.DTYPES[name]
                warnings.append(Message(key="size.warn_dtype", params={"name": name[:40]}))
                return "bf16"
    return "bf16"


def _tied(whole: Mapping[str, object], keys: Keys) -> bool | None:
    """Whether the output matrix is the embedding table; in a config of parts the outer file may
    say it. transformers ties where nothing says otherwise, except where the type's class does."""
    for part in (keys.config, whole):
        if isinstance(part.get("tie_word_embeddings"), bool):
            return part["tie_word_embeddings"]
    return keys.defaults.get("tie_word_embeddings", False)


@cache
def preset_table() -> dict[str, dict]:
    """By name: every model in assets/presets, with `source` (where its config.json was read) and
    `config`."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(PRESETS.glob("*.json"))
    }


@cache
def preset(name: str) -> ModelConfig:
    """A model that ships: its config.json was opened at the address that its file names. Raises
    UserError that lists the names."""
    found = preset_table().get(name)
    if found is None:
        raise UserError("error.size_preset", name=name[:60], known=", ".join(preset_table()))
    return read(found["config"], name=found["name"])
