"""What a loaded model can be run with, found by running it on a dozen tokens.

Each choice comes with its reason: our attention or the model's own, our rows or transformers'
layers, the prompt in chunks or whole, a cache or none. What the layers keep is observed in
transformers' own cache. The oracle is the model as transformers loads it. It knows nothing of
prompts or runs.

Try it: `python -m viz_engine record --model FOLDER --prompt Hi --out run.jsonl`; see "parts"
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
import transformers
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, get_layer_types_and_kwargs
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from viz_engine.engine.cache.cache import KVCache, held_tensors, state_tensors
from viz_engine.engine.kernels.attention import ATTENTION
from viz_engine.model.spec import LayerSpec, ModelSpec
from viz_engine.run import cost
from viz_engine.run.events import EnginePart
from viz_engine.text import Message, UserError

NUM_TOKENS = 6  # five at once or in two chunks, then one more
NUM_PADS = 2  # of the second sequence
TOLERANCE = {torch.float32: 1e-3}  # of the largest logit; a wrong mask gives 0.3 and more
HALF_TOLERANCE = 5e-2
PLAIN = {"full_attention": "full", "sliding_attention": "sliding", "chunked_attention": "chunked"}
MASK_OF_NEW = ("mamba", "falcon_mamba")  # their mask speaks of the tokens that are fed
# Transformers itself reads these otherwise in chunks, but only beyond their window.
ONE_PIECE = ("moshi",)
Problem = tuple[str, dict[str, str]]  # its kind, and what fills the places of its sentence
# Types that would run and be shown wrong; each has its sentence.
UNSERVED = ("cpmant", "recurrent_gemma", "xlm", "xlnet")
LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """How to run a model."""

    arguments: frozenset[str]  # that its forward knows
    layers: tuple[LayerSpec, ...]
    hf_layers: Mapping[int, Callable[[], object]] = field(default_factory=dict)  # makers of layers
    cached: bool = True
    own_attention: bool = True
    chunks: bool = True
    chunks_reason: Message | None = None  # why not
    parts: tuple[EnginePart, ...] = ()

    @property
    def can_roll_back(self) -> bool:
        """Whether a forward can be taken back: all that is kept stands in rows of ours."""
        kept = (self.layers[i] for i in self.hf_layers)
        return not any(layer.row_elements or layer.state_bytes for layer in kept)


def check_served(config: dict) -> None:
    """Raises UserError where transformers knows no such type, or where `generate` does for it what
    a plain forward does not."""
    model_type = str(config.get("model_type") or "?")
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(
            "error.model_type", model_type=model_type[:60], version=transformers.__version__
        )
    if model_type in UNSERVED:
        raise UserError(f"error.unserved.{model_type}")


def check_compatibility(network: PreTrainedModel) -> Compatibility:
    """Run the model as it was loaded, then with what is ours, and keep what agrees; the attention
    chosen stays set. Raises UserError where the model cannot be run."""
    trial = _Trial(network)
    try:
        cache = trial.hf_cache()
        trial.forward(cache, 0, NUM_TOKENS - 1)
        expected = trial.forward(cache, NUM_TOKENS - 1, NUM_TOKENS)
        held = sum(t.numel() for layer in cache.layers for t in held_tensors(layer))
        problem = None if held else ("nothing_kept", {})
    except Exception as error:  # a model can raise anything; what it said is shown
        problem = ("raised", {"reason": first_line(error)})
    if problem is not None:
        return _without_cache(trial, problem)
    layers, hf_layers = observe(network, cache)
    found = Compatibility(arguments=trial.arguments, layers=layers, hf_layers=hf_layers)
    every = {i: _maker(type(layer), network, i) for i, layer in enumerate(cache.layers)}
    failed = None if network._can_set_attn_implementation() else ("own_classes", {})
    ways = [
        *([found] if failed is None else []),
        replace(found, own_attention=False),
        replace(found, own_attention=False, hf_layers=every),
    ]
    for way in ways:
        if network.config.model_type in ONE_PIECE:
            chunks_failed = ("upstream", {})
        else:
            chunks_failed = trial.difference(way, expected)
        if chunks_failed is None:
            return replace(way, parts=_parts(way, failed))
        whole = replace(
            way,
            chunks=False,
            chunks_reason=Message(key=f"part.pieces.{chunks_failed[0]}", params=chunks_failed[1]),
        )
        whole_failed = trial.difference(whole, expected)
        if whole_failed is None:
            return replace(whole, parts=_parts(whole, failed))
        failed = failed or whole_failed
    kind, params = whole_failed
    raise UserError(f"error.probe.{kind}", model_type=network.config.model_type, **params)


def _without_cache(trial: "_Trial", problem: Problem) -> Compatibility:
    """For a model that takes no cache: every step reads everything again."""
    network = trial.network
    try:
        trial.forward(None, 0, NUM_TOKENS)
    except Exception as error:  # see `check_compatibility`
        raise UserError(
            "error.probe.raised", model_type=network.config.model_type, reason=first_line(error)
        ) from error
    num_layers = getattr(network.config.get_text_config(decoder=True), "num_hidden_layers", 1)
    nothing = LayerSpec(num_kv_heads=0, key_dim=0, value_dim=0, kind="none")
    return Compatibility(
        arguments=trial.arguments,
        layers=(nothing,) * num_layers,
        cached=False,
        own_attention=False,
        chunks=False,
        parts=(
            EnginePart(name="attention", on=False, reason=Message(key="part.attention_uncached")),
            EnginePart(
                name="cache",
                on=False,
                reason=Message(key=f"part.cache.{problem[0]}", params=problem[1]),
            ),
        ),
    )


def _parts(way: Compatibility, failed: Problem | None) -> tuple[EnginePart, ...]:
    """Attention and rows, each with its reason."""
    if way.own_attention:
        reason = Message(key="part.attention")
    else:
        reason = Message(key=f"part.attention.{failed[0]}", params=failed[1])
    attention = EnginePart(name="attention", on=way.own_attention, reason=reason)
    num_hf = sum(bool(way.layers[i].row_elements) for i in way.hf_layers)
    if not num_hf:
        return (attention,)
    params = {"num": num_hf, "num_layers": len(way.layers)}
    reason = Message(key="part.rows_theirs", params=params)
    return (attention, EnginePart(name="rows", on=False, reason=reason))


def first_line(error: BaseException) -> str:
    """The kind of an exception and the start of what it says, for a sentence."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def check_formula(
    described: ModelSpec | None,
    network: PreTrainedModel,
    found: Compatibility,
    weight_bytes: tuple[int | None, int],  # read once, whatever is fed, and for each token
) -> EnginePart:
    """Whether FLOPs and bytes of steps can be foretold: only of a model that is what its config
    describes, to the number, and whose layers and logits are those that `cost.py` counts."""
    why = _formula_problem(described, network, found, weight_bytes)
    key = "part.formula" if why is None else f"part.formula.{why}"
    params = {"model_type": network.config.model_type}
    return EnginePart(name="formula", on=why is None, reason=Message(key=key, params=params))


def _formula_problem(
    described: ModelSpec | None,
    network: PreTrainedModel,
    found: Compatibility,
    weight_bytes: tuple[int | None, int],
) -> str | None:
    if described is None:
        return "weights"
    if described.uncounted:
        return described.uncounted
    if described.num_parameters != sum(p.numel() for p in network.parameters()):
        return "held"
    # What a latent row unfolds to is not seen in what is kept.
    kept = [
        replace(x, expanded_key_elements=0, expanded_value_elements=0) for x in described.layers
    ]
    if kept != list(found.layers) or found.hf_layers or not found.own_attention:
        return "layers"
    if "logits_to_keep" not in found.arguments:
        return "logits"
    size, (once, lookup) = network.dtype.itemsize, weight_bytes
    foretold = cost.weight_reads(described, 0)
    if cost.lookup_weights(described) * size != lookup:
        return "held"
    if once != (None if foretold is None else foretold * size):
        return "held"
    return None


def describe(network: PreTrainedModel, layers: tuple[LayerSpec, ...], name: str) -> ModelSpec:
    """The spec of a model for which no formula stands: its layers observed, its weights counted."""
    config = network.config.get_text_config(decoder=True)
    limits = [limit for key in LIMITS if (limit := _number(config, key) or 0) > 0]
    table = network.get_input_embeddings().weight
    return ModelSpec(
        name=name,
        model_type=network.config.model_type,
        layers=layers,
        hidden_size=_number(config, "hidden_size") or table.shape[1],
        num_query_heads=_number(config, "num_attention_heads"),
        head_dim=_number(config, "head_dim"),
        vocab_size=table.shape[0],
        max_context_len=limits[0] if limits else None,
        counted_parameters=sum(p.numel() for p in network.parameters()),
    )


def _number(config: PreTrainedConfig, key: str) -> int | None:
    """A number of a config, None where it has none or one for each layer."""
    try:
        value = getattr(config, key, None)
    except Exception:  # transformers' error for what differs by layer is no AttributeError
        return None
    return value if isinstance(value, int) else None


# --- what the layers keep -------------------------------------------------------------------


def observe(
    network: PreTrainedModel, cache: DynamicCache
) -> tuple[tuple[LayerSpec, ...], dict[int, Callable[[], object]]]:
    """What each layer of a filled cache keeps, and makers of those that keep transformers' own
    class."""
    config = network.config.get_text_config(decoder=True)
    types, arguments = get_layer_types_and_kwargs(config)
    layers, makers = [], {}
    for i, layer in enumerate(cache.layers):
        kind = types[i] if i < len(types) else None
        window = (arguments[i] if kind else {}).get("sliding_window")
        window = window if window is not None else getattr(layer, "sliding_window", None)
        seen = _layer_spec(config, i, layer, kind, window)
        layers.append(seen)
        plain = kind in PLAIN and isinstance(layer, DynamicLayer) and seen.num_kv_heads
        if not plain or layer.keys.dtype != network.dtype:
            makers[i] = _maker(type(layer), network, i)
    return tuple(layers), makers


def _maker(cls: type, network: PreTrainedModel, index: int) -> Callable[[], object]:
    """Makes an empty layer of the class that transformers' own cache has at `index`."""
    types, arguments = get_layer_types_and_kwargs(network.config.get_text_config(decoder=True))
    return lambda: cls(**(arguments[index] if index < len(types) else {}))


def _layer_spec(
    config: PreTrainedConfig, index: int, layer: object, kind: str | None, window: int | None
) -> LayerSpec:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    state_bytes = sum(t.nbytes // t.shape[0] for t in state_tensors(layer) if t.dim())
    if keys is None or keys.dim() != 4 or values is None or values.dim() != 4:
        shares = _producer(config, index)
        named = "state" if state_bytes else "none" if shares is None else "shared"
        return LayerSpec(
            num_kv_heads=0,
            key_dim=0,
            value_dim=0,
            kind=named,
            state_bytes=state_bytes,
            shares=shares,
        )
    latent = keys.shape[1] == 1 and keys.shape[3] == _number(config, "kv_lora_rank")
    named = "latent" if latent else PLAIN.get(kind) or ("sliding" if window else "full")
    return LayerSpec(
        num_kv_heads=keys.shape[1],
        key_dim=keys.shape[3],
        value_dim=values.shape[3],
        kind=named,
        window=window,
        state_bytes=state_bytes,
    )


def _producer(config: PreTrainedConfig, index: int) -> int | None:
    """The layer whose rows this one reads, None where it reads none."""
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is None or not str(modes[index]).startswith("reuse"):
        return None
    sources = getattr(config, "kv_source_layers", None)
    if sources is not None:
        return sources[index]
    alike = [
        i
        for i in range(index)
        if modes[i] == "store" and config.layer_types[i] == config.layer_types[index]
    ]
    return alike[-1] if alike else None


# --- trying ---------------------------------------------------------------------------------


class _Trial:
    """Two sequences, one of them padded, through the model, and the logits of the last position."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.arguments = frozenset(inspect.signature(network.forward).parameters)
        self.loaded_attention = network.config._attn_implementation
        vocab_size = network.get_input_embeddings().weight.shape[0]
        shape = (2, NUM_TOKENS)
        ids = (torch.arange(2 * shape[1]).view(shape) * 37 + 11) % vocab_size
        mask = torch.ones(shape, dtype=torch.long)
        mask[1, :NUM_PADS] = 0
        self.ids, self.mask = ids.to(network.device), mask.to(network.device)
        self.positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)

    def hf_cache(self) -> DynamicCache:
        if "cache" not in self.arguments:
            raise TypeError("forward takes no cache")
        return DynamicCache(config=self.network.config.get_text_config(decoder=True))

    def forward(self, cache: object | None, first: int, stop: int) -> torch.Tensor:
        """Logits `[2, vocab]` after the positions `[first, stop)`."""
        given = {
            "input_ids": self.ids[:, first:stop],
            "position_ids": self.positions[:, first:stop],
            "attention_mask": self.mask[:, :stop],
            "cache": cache,
            "use_cache": cache is not None,
            "logits_to_keep": 1,
        }
        return call(self.network, self.arguments, given)[:, -1]

    def difference(self, way: Compatibility, expected: torch.Tensor) -> Problem | None:
        """None where a way gives the expected logits, else what is wrong with it."""
        wanted = ATTENTION if way.own_attention else self.loaded_attention
        try:
            if self.network.config._attn_implementation != wanted:
                self.network.set_attn_implementation(wanted)
            cache = KVCache(
                way.layers,
                batch=2,
                num_positions=NUM_TOKENS,
                dtype=self.network.dtype,
                device=self.network.device,
                hf_layers=way.hf_layers,
            )
            first = 0
            for stop in (NUM_TOKENS // 2, NUM_TOKENS - 1, NUM_TOKENS)[0 if way.chunks else 1 :]:
                cache.reserve(stop)
                got = self.forward(cache, first, stop)
                first = stop
        except Exception as error:  # see `check_compatibility`
            return "raised", {"reason": first_line(error)}
        gap = float((got - expected).abs().max() / expected.abs().max())
        if gap <= TOLERANCE.get(self.network.dtype, HALF_TOLERANCE):
            return None
        return "differs", {"gap": f"{gap:.1%}"}


def call(
    network: PreTrainedModel, arguments: frozenset[str], given: Mapping[str, object]
) -> torch.Tensor:
    """Logits `[B, T, vocab]` of a forward that is given what it knows of `given`."""
    known = {key: value for key, value in given.items() if key in arguments}
    mask = known.get("attention_mask")
    if mask is not None and network.config.model_type in MASK_OF_NEW:
        known["attention_mask"] = mask[:, -given["input_ids"].shape[1] :]
    with torch.inference_mode():
        return network(**known).logits
