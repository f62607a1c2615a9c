"""What a choice takes in memory before it runs, and the inverse: what fits.

`plan` (weights, cache, state, activations, overhead of any model in any engine, per
rank), `longest_context`, `most_sequences` and `options_to_fit`. Everything is predicted; the parts
that are estimates say so and carry a range. The arithmetic of layers is `cost.py`, of
engines `serving_engines.py`, of weights `weights.py`.

    from viz_engine.memory import plan
    from viz_engine.memory.deployment import Settings
    from viz_engine.model import config
    model = config.preset("llama-3.1-8b")          # or config.read(text of a config.json)
    asked = Settings(context_len=32768, num_sequences=16, engine="vllm")
    made = plan.plan(model, asked)
    made.total_bytes, [(part.kind, part.num_bytes) for part in made.parts]
    plan.longest_context(model, asked, memory_bytes=80 * 1024**3)

Try it: `python -m viz_engine size --model llama-3.1-8b --context 32768 --sequences 16`
"""

from dataclasses import dataclass, replace
from functools import cache, lru_cache

from viz_engine.memory import deployment, reserve
from viz_engine.memory.deployment import MAX_CONTEXT, MAX_SEQUENCES, Deployment, Settings
from viz_engine.memory.reserve import KindRow
from viz_engine.model import weights
from viz_engine.model.config import ModelConfig
from viz_engine.model.formats import FORMATS, is_auto, is_mix, weight_bits
from viz_engine.numbers import grouped, mib
from viz_engine.run import cost
from viz_engine.text import Message, UserError

# Cache types that an engine offers below 16 bits, the mildest first.
SMALLER_CACHES = {
    "exact": ("int8", "int4"),
    "transformers": ("int8", "int4"),
    "vllm": ("fp8", "nvfp4"),
    "sglang": ("fp8",),
    "llama.cpp": ("q8_0", "q4_0"),
    "tensorrt-llm": ("fp8", "nvfp4"),
}
VLLM_FORMULA = {  # of the weights, by the one without the allocator's rounding
    "size.formula_weights": "size.formula_weights_vllm",
    "size.formula_weights_stored": "size.formula_weights_stored_vllm",
}
GUESS_MARGIN = 512  # wider than any block that an engine rounds to


# --- the calculator ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One share of a rank's memory. `kind`: weights, kv, state, activations, overhead. An exact
    part has `low == num_bytes == high`; an estimate has a range. `formula` has its numbers
    filled in."""

    kind: str
    num_bytes: int
    low: int
    high: int
    formula: Message

    @property
    def is_estimate(self) -> bool:
        return self.low != self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The memory of one rank; `num_ranks` of them (tp x pp) hold the model."""

    settings: Settings
    deployment: Deployment
    parts: tuple[Part, ...]
    kinds: tuple[KindRow, ...]
    num_ranks: int
    growth_bytes: (
        int  # that one more token of one sequence adds, before rounding; with dcp the mean
    )
    warnings: tuple[Message, ...]

    def part(self, kind: str) -> Part:
        """The part of that kind. Raises KeyError."""
        found = next((part for part in self.parts if part.kind == kind), None)
        if found is None:
            raise KeyError(kind)
        return found

    @property
    def kv_bytes(self) -> int:
        """Cache and states of all sequences."""
        return self.part("kv").num_bytes + self.part("state").num_bytes

    @property
    def total_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    @property
    def low_bytes(self) -> int:
        return sum(part.low for part in self.parts)

    @property
    def high_bytes(self) -> int:
        return sum(part.high for part in self.parts)

    def fits(self, memory_bytes: int) -> bool:
        """Whether it fits a device of `memory_bytes`, of which the engine uses its share."""
        return self.total_bytes <= self.deployment.budget_bytes(memory_bytes)


def plan(model: ModelConfig, settings: Settings) -> Plan:
    """The memory of one rank at the peak: every sequence at `context_len`. Raises UserError where
    the settings contradict each other or the model."""
    deployment.check_settings(model, settings)
    served = deployment.resolve(model, settings)
    kinds = reserve.kinds(served, settings.context_len, settings.num_sequences)
    rows = sum(kind.num_bytes for kind in kinds if kind.kind != "state")
    states = sum(kind.num_bytes for kind in kinds if kind.kind == "state")
    parts = (
        _weights_part(served),
        _exact("kv", rows, Message(key="size.formula_kv", params=_summed(kinds, state=False))),
        _exact("state", states, Message(key="size.formula_kv", params=_summed(kinds, state=True))),
        _activations_part(served, settings.context_len, settings.num_sequences),
        _overhead_part(served.engine),
    )
    return Plan(
        settings=settings,
        deployment=served,
        parts=parts,
        kinds=kinds,
        num_ranks=served.tp * served.pp,
        growth_bytes=_growth_bytes(served),
        warnings=(*model.warnings, *_warnings(served, settings)),
    )


def _growth_bytes(served: Deployment) -> int:
    """What one more token of one sequence adds on a rank, before rounding."""
    every = sum(
        num * cost.layer_rows(layer, served.k_format, served.v_format, tp=served.tp).total
        for layer, num in served.layers.items()
        if layer.kind in ("full", "latent")
    )
    return -(-every // served.dcp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The answer of an inverse. `value` None: nothing stops it (`unbounded`). `value` 0: not even
    one fits. `plan` is the plan at `value`."""

    value: int | None
    plan: Plan | None

    @property
    def unbounded(self) -> bool:
        return self.value is None


def longest_context(model: ModelConfig, settings: Settings, memory_bytes: int) -> Limit:
    """The most tokens that each of `settings.num_sequences` sequences can hold on a device of
    `memory_bytes`; one more token (with blocks: one more block) does not fit."""
    return _largest(model, settings, "context_len", MAX_CONTEXT, memory_bytes)


def most_sequences(model: ModelConfig, settings: Settings, memory_bytes: int) -> Limit:
    """The most sequences of `settings.context_len` tokens at once; one more does not fit."""
    return _largest(model, settings, "num_sequences", MAX_SEQUENCES, memory_bytes)


def _largest(
    model: ModelConfig, settings: Settings, field: str, most: int, memory_bytes: int
) -> Limit:
    """The largest value of `field` in `1 .. most` whose plan fits. Memory never falls as it grows
    and grows about evenly, so a straight line guesses well; halving makes it exact."""
    deployment.check_settings(model, settings)
    served = deployment.resolve(model, settings)
    budget = served.budget_bytes(memory_bytes)
    fixed = _weights_part(served).num_bytes + _overhead_part(served.engine).num_bytes
    lengths = {"context_len": settings.context_len, "num_sequences": settings.num_sequences}

    def need(value: int) -> int:
        asked = lengths | {field: value}
        rows = sum(kind.num_bytes for kind in reserve.kinds(served, **asked))
        return fixed + rows + _activation_bytes(served, **asked)[1]

    low, high = 1, most
    at_low, at_high = need(low), need(high)
    if at_low > budget:
        return Limit(value=0, plan=None)
    if at_high <= budget:
        return Limit(value=None, plan=None)
    for step in range(80):  # low fits, high does not
        if high - low <= 1:
            break
        guess = low + (budget - at_low) * (high - low) // (at_high - at_low)
        nearby = guess + (GUESS_MARGIN if step % 2 else -GUESS_MARGIN)
        middle = (low + high) // 2 if step > 5 or high - low < 4 * GUESS_MARGIN else nearby
        middle = min(max(middle, low + 1), high - 1)
        value = need(middle)
        if value <= budget:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return Limit(value=low, plan=plan(model, replace(settings, **{field: low})))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One change that may make a plan fit: what it is, what then is asked, its plan."""

    change: Message
    settings: Settings
    plan: Plan
    fits: bool


def options_to_fit(model: ModelConfig, settings: Settings, memory_bytes: int) -> tuple[Option, ...]:
    """What must change so that it fits a device of `memory_bytes`: smaller weights, a smaller
    cache type, fewer sequences, a shorter context, more devices; each alone, those that do not
    suffice too."""
    changes: list[tuple[Message, Settings]] = []
    served = deployment.resolve(model, settings)
    own = model.weight_bits(settings.weight_format, served.dtype)
    for name in ("bf16", "int8", "int4"):
        if FORMATS[name].weight_bits < own:
            changes.append((_change("weights", name), replace(settings, weight_format=name)))
    for name in SMALLER_CACHES[settings.engine]:
        if FORMATS[name].bits < FORMATS[served.k_format].bits:
            asked = replace(settings, kv_format=name, v_format=None)
            changes.append((_change("kv", name), asked))
    for key, found in (
        ("sequences", most_sequences(model, settings, memory_bytes)),
        ("context", longest_context(model, settings, memory_bytes)),
    ):
        field = "num_sequences" if key == "sequences" else "context_len"
        if found.value and found.value < getattr(settings, field):
            changes.append((_change(key, found.value), replace(settings, **{field: found.value})))
    for tp in (2, 4, 8, 16):
        if tp > settings.tp:
            changes.append((_change("tp", tp), replace(settings, tp=tp)))
    options = []
    for change, asked in changes:
        try:
            made = plan(model, asked)
        except UserError:  # heads that do not divide by tp, a type the engine lacks
            continue
        options.append(
            Option(change=change, settings=asked, plan=made, fits=made.fits(memory_bytes))
        )
    return tuple(options)


def _change(kind: str, value: object) -> Message:
    shown = grouped(value) if isinstance(value, int) else value
    return Message(key=f"size.change.{kind}", params={"value": shown})


def _summed(kinds: tuple[KindRow, ...], *, state: bool) -> dict[str, object]:
    chosen = [kind for kind in kinds if (kind.kind == "state") == state]
    return {"parts": " + ".join(f"{kind.num_bytes:,}" for kind in chosen) or "0"}


def _exact(kind: str, num_bytes: int, formula: Message) -> Part:
    return Part(kind=kind, num_bytes=num_bytes, low=num_bytes, high=num_bytes, formula=formula)


@lru_cache(maxsize=256)
def _weights_part(served: Deployment) -> Part:
    """Parameters x bits, shared over the ranks; with the number format's own scales where it has
    them, and as torch's allocator rounds where it is vLLM that loads them."""
    model, name, asked = served.model, served.weight_format, served.num_parameters
    tp, pp = served.tp, served.pp
    bits, mean = weight_bits(name, served.dtype), model.weight_bits(name, served.dtype)
    stored = is_auto(name)
    if stored and not asked and model.file_bytes is not None and served.dtype == model.dtype:
        return _released_part(served, bits)
    num = asked or model.num_parameters
    if num is None:
        return _exact("weights", 0, Message(key="size.formula_no_weights"))
    params = {"parameters": f"{num:,}", "bits": f"{mean:.6g}", "ranks": tp * pp}
    key = "size.formula_weights"
    if stored and model.stored is not None and model.weights is not None and not asked:
        converted = sum(g.num_weights for g in model.weights if model.stored.converts(g))
        params |= {
            "parameters": f"{converted:,}",
            "bits": f"{model.stored.bits:.12g}",
            "others": f"{num - converted:,}",
            "own": f"{bits:g}",
        }
        key = "size.formula_weights_stored"
    if model.weights is None or asked:
        total = round(num * mean / 8 / tp / pp)
    elif served.engine == "vllm":
        groups, mix = _stage_weights(model, pp), is_mix(name)
        wide = 0 if stored or mix else sum(g.num_weights for g in model.weights if g.stays_wide)
        if wide and bits < 16:
            params |= {"parameters": f"{num - wide:,}", "others": f"{wide:,}", "own": "16"}
            key = "size.formula_weights_stored"
        key = VLLM_FORMULA[key]
        rope = model.rope_cache_numbers
        total = weights.allocated_bytes(groups, bits, tp, rope, stored=stored, mix=mix)
    else:
        total = weights.rank_bytes(_stage_weights(model, pp), bits, tp, stored=stored)
    return _exact("weights", total, Message(key=key, params=params | {"total": f"{total:,}"}))


def _released_part(served: Deployment, bits: float) -> Part:
    """The bytes that the files state; of a rank the share that the matrices of the config give
    it, rounded as the engine does, or an equal part where these are not described."""
    model, tp, pp = served.model, served.tp, served.pp
    share = 1 / tp / pp
    if model.weights is not None:
        groups = _stage_weights(model, pp)
        held = weights.rank_bytes(groups, bits, tp, stored=True)
        if served.engine == "vllm":
            rope = model.rope_cache_numbers
            held = weights.allocated_bytes(groups, bits, tp, rope, stored=True)
        share = held / weights.rank_bytes(model.weights, bits, 1, stored=True)
    total = round(model.file_bytes * share)
    params = {"stated": f"{model.file_bytes:,}", "ranks": tp * pp, "total": f"{total:,}"}
    return _exact("weights", total, Message(key="size.formula_weights_files", params=params))


def _stage_weights(model: ModelConfig, pp: int) -> tuple[weights.WeightGroup, ...]:
    """The tensors of the stage that holds most: its share of every kind of layer, the tables."""
    if pp == 1:
        return model.weights
    layers = max(len(s) for s in deployment.stage_layers(model.layers, pp))
    return tuple(
        replace(g, count=-(-g.count * layers // model.num_layers)) if g.per_layer else g
        for g in model.weights
    )


def _activation_bytes(
    served: Deployment, context_len: int, num_sequences: int
) -> tuple[int, int, int]:
    """(low, middle, high): what a forward of `batched_tokens` holds at once, and the logits of the
    rows that are sampled.

    Two widths of the residual stream and the widest MLP, in 16 bits; logits in 16 and 32 bits, and
    in vLLM's start-up profile of 256 to 1024 sequences also their sorted copies (about 36 bytes a
    logit). Measured on H100 at default flags: 4.8 to 5.6 GiB for dense text models of 32B and 70B,
    2.1 for one that profiles fewer sequences (llm-d-planner, empirical-vllm-memory-results).
    """
    model, tokens = served.model, served.batch_tokens(context_len, num_sequences)
    stream = tokens * (2 * model.hidden_size + 2 * -(-model.mlp_width // served.tp)) * 2
    vocab = model.vocab_size or 0
    if served.engine == "vllm":
        return tuple(stream + rows * vocab * 36 for rows in (256, 768, 1024))
    rows = min(num_sequences, tokens)
    return tuple(times * stream + rows * vocab * 6 for times in (1, 2, 4))


def _activations_part(served: Deployment, context_len: int, num_sequences: int) -> Part:
    low, middle, high = _activation_bytes(served, context_len, num_sequences)
    tokens = f"{served.batch_tokens(context_len, num_sequences):,}"
    return Part(
        kind="activations",
        num_bytes=middle,
        low=low,
        high=high,
        formula=Message(
            key="size.formula_activations",
            params={"tokens": tokens, "low": mib(low), "high": mib(high)},
        ),
    )


# (low, middle, high) in MiB of what an engine holds beside all that: context, kernels, NCCL.
# vLLM: its own "non-torch" lines, 0.06 to 0.59 GiB and once 1.79; the others: a CUDA context of
# 0.3 to 0.6 GiB, and what their logs show beside the buffers that they name.
OVERHEAD_MIB = {
    "exact": (0, 0, 0),
    "transformers": (300, 500, 800),
    "vllm": (60, 300, 1830),
    "sglang": (300, 800, 2000),
    "llama.cpp": (100, 400, 800),
    "tensorrt-llm": (300, 800, 2000),
}


@cache
def _overhead_part(engine: str) -> Part:
    low, middle, high = (value * 1024**2 for value in OVERHEAD_MIB[engine])
    if not high:
        return _exact("overhead", 0, Message(key="size.formula_no_overhead"))
    params = {"low": mib(low), "high": mib(high)}
    return Part(
        kind="overhead",
        num_bytes=middle,
        low=low,
        high=high,
        formula=Message(key="size.formula_overhead", params=params),
    )


def _warnings(served: Deployment, settings: Settings) -> tuple[Message, ...]:
    """What the numbers assume, and what will not work."""
    model, found = served.model, []
    if model.stored is not None and is_auto(settings.weight_format):
        stored = model.stored
        params = {"key": stored.source, "method": stored.method, "bits": f"{stored.bits:.4g}"}
        found.append(Message(key="size.note_quantization", params=params))
    if model.max_context_len is not None and settings.context_len > model.max_context_len:
        lengths = {"context": settings.context_len, "limit": model.max_context_len}
        params = {name: grouped(length) for name, length in lengths.items()}
        found.append(Message(key="size.warn_context", params=params))
    known = deployment.CACHE_FORMATS.get(settings.engine)
    if known is not None and settings.kv_format != "auto" and served.k_format not in known:
        params = {"engine": settings.engine, "name": served.k_format, "known": ", ".join(known)}
        found.append(Message(key="size.warn_cache_format", params=params))
    rows = [layer for layer in model.layer_counts if layer.num_kv_heads and layer.kind != "latent"]
    if any(layer.num_kv_heads < settings.tp for layer in rows):
        fewest = min(layer.num_kv_heads for layer in rows)
        params = {"heads": fewest, "tp": settings.tp}
        found.append(Message(key="size.warn_replicated", params=params))
    if settings.tp > 1 and any(layer.kind == "latent" for layer in model.layer_counts):
        found.append(Message(key="size.warn_latent", params={"tp": settings.tp}))
    if settings.engine == "sglang" and any(layer.window for layer in model.layer_counts):
        found.append(Message(key="size.warn_sglang"))
    cross = [x for x in (*model.layers, *model.cross_layers) if x.kind == "cross"]
    if any(layer.fixed_len is None for layer in cross) and settings.cross_len is None:
        found.append(Message(key="size.warn_cross"))
    if not model.knows_weights(settings.weight_format, settings.num_parameters):
        found.append(Message(key="size.warn_no_weights"))
    return tuple(found)
