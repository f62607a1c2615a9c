"""What is asked of a model, and what an engine makes of it where nothing is asked.

`Settings` is what is asked, lengths included; `resolve` answers with a `Deployment`: number
formats, blocks, stages, shares, nothing left open. Whatever is worked out afterwards takes that. It
knows nothing of bytes.

Try it: `python -c "from viz_engine.memory import deployment; print(deployment.ENGINES)"`
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from viz_engine.model.config import ModelConfig
from viz_engine.model.formats import cache_format
from viz_engine.model.spec import LayerSpec
from viz_engine.numbers import grouped
from viz_engine.text import UserError

ENGINES = ("exact", "transformers", "vllm", "sglang", "llama.cpp", "tensorrt-llm")
PRODUCTS = {  # their names, which are not translated; "exact" is none
    "transformers": "transformers",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "tensorrt-llm": "TensorRT-LLM",
}
# Those that can keep V in another format than K.
APART = ("exact", "llama.cpp")
# Formats that each one can keep its cache in, beside the model's own type; "exact" any.
CACHE_FORMATS = {
    "transformers": ("f32", "bf16", "f16", "int8", "int4", "int2"),
    "vllm": ("bf16", "f16", "fp8", "fp8_per_token_head", "int8_per_token_head", "nvfp4"),
    "sglang": ("bf16", "f16", "fp8", "int8", "int8_token_head_f16", "mxfp4", "nvfp4"),
    "llama.cpp": ("f32", "bf16", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
    "tensorrt-llm": ("bf16", "f16", "fp8", "int8", "nvfp4"),
}
VLLM_BLOCK_LEN = 16
BLOCK_LENS = {"vllm": VLLM_BLOCK_LEN, "tensorrt-llm": 32}  # of the others 1
# Tokens of one forward; of the others 2048. vLLM: --max-num-batched-tokens of a server on a large
# GPU, 2048 on others. llama.cpp: -ub.
BATCHED_TOKENS = {"vllm": 8192, "llama.cpp": 512}
# Share of a device that an engine takes; of the others all. SGLang and TensorRT-LLM in effect.
SHARES = {"vllm": 0.9, "sglang": 0.9, "tensorrt-llm": 0.9}
MAX_CONTEXT = 2**33
MAX_SEQUENCES = 2**24
OPTIONAL = ("block_len", "batched_tokens", "num_parameters")  # None: the engine's, the config's


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is asked of a model. Lengths in tokens; `kv_format` and `weight_format` are names of
    `formats.CACHES` and `formats.WEIGHTS`, "auto" the model's own type."""

    context_len: int  # of each sequence at its end
    num_sequences: int = 1
    kv_format: str = "auto"  # of K, and of V unless `v_format` says otherwise
    v_format: str | None = None
    weight_format: str = "auto"
    num_parameters: int | None = None  # where the config does not tell, or to override it
    tp: int = 1
    pp: int = 1
    dcp: int = 1  # decode-context parallel: the tokens of a sequence over that many ranks
    engine: str = "exact"  # one of ENGINES; exact: no rounding, no reserve
    block_len: int | None = None  # tokens in a block or page; None: the engine's default
    batched_tokens: int | None = None  # tokens in one forward; None: the engine's default
    draft_layers: bool = False  # load the multi-token-prediction layers too
    num_draft_tokens: int = 0
    state_blocks: int = 1  # vLLM: 2 with prefix caching
    cross_len: int | None = None  # tokens of an image or encoder, where the config does not say
    window_cache: bool = True  # False: window layers hold the whole context
    unified: bool = False  # llama.cpp: one cache for all slots (-kvu, the default without -np)
    utilization: float | None = None  # share of a device that may be used; None: the engine's


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deployment:
    """A model as an engine serves it, whatever the lengths. Formats are names of
    `formats.FORMATS`. Compared by identity: equal settings of a model have one."""

    model: ModelConfig
    engine: str
    dtype: str  # of weights and of what is computed
    k_format: str
    v_format: str
    conv_format: str  # of the two parts of a state
    recurrent_format: str
    weight_format: str  # a name, a number of bits, or "auto": as the weights were released
    num_parameters: int | None  # asked; None: the config's
    tp: int
    pp: int
    dcp: int
    stages: tuple[Mapping[LayerSpec, int], ...]  # the layers of each pipeline stage, by sort
    layers: Mapping[LayerSpec, int]  # those of the stage whose rows are the widest
    block_len: int
    batched_tokens: int
    num_draft_tokens: int
    state_blocks: int
    cross_len: int | None
    window_cache: bool
    unified: bool
    share: float  # of a device that the engine takes

    def budget_bytes(self, memory_bytes: int) -> int:
        """What the engine takes of a device of `memory_bytes`."""
        return int(memory_bytes * self.share)

    def batch_tokens(self, context_len: int, num_sequences: int) -> int:
        """Tokens of one forward: never more than there are."""
        return min(self.batched_tokens, context_len * num_sequences)


def resolve(model: ModelConfig, settings: Settings) -> Deployment:
    """What an engine makes of `settings` beside their lengths. Raises UserError on a number format
    that is none and on more stages than layers."""
    return _resolved(model, replace(settings, context_len=1, num_sequences=1))


@lru_cache(maxsize=256)
def _resolved(model: ModelConfig, settings: Settings) -> Deployment:
    engine = settings.engine
    wide = model.dtype == "f32" and engine in ("vllm", "sglang", "tensorrt-llm")
    # Servers load a 32-bit model in 16 (vLLM `_get_and_verify_dtype`, the other two likewise).
    dtype = "f16" if wide else model.dtype
    key, value = _cache_formats(settings, dtype)
    drafts = model.draft_layers if settings.draft_layers else ()
    stages = _stages(model, settings.pp, drafts + model.cross_layers)
    share = settings.utilization
    return Deployment(
        model=model,
        engine=engine,
        dtype=dtype,
        k_format=key,
        v_format=value,
        conv_format="f32" if engine == "llama.cpp" else dtype,
        recurrent_format="f32" if engine == "llama.cpp" else model.recurrent_format,
        weight_format=settings.weight_format,
        num_parameters=settings.num_parameters,
        tp=settings.tp,
        pp=settings.pp,
        dcp=settings.dcp,
        stages=stages,
        layers=max(stages, key=lambda s: sum(num * x.row_elements for x, num in s.items())),
        block_len=settings.block_len or BLOCK_LENS.get(engine, 1),
        batched_tokens=settings.batched_tokens or BATCHED_TOKENS.get(engine, 2048),
        num_draft_tokens=settings.num_draft_tokens,
        state_blocks=settings.state_blocks,
        cross_len=settings.cross_len,
        window_cache=settings.window_cache,
        unified=settings.unified,
        share=SHARES.get(engine, 1.0) if share is None else share,
    )


def _cache_formats(settings: Settings, dtype: str) -> tuple[str, str]:
    """Number formats of K and of V."""
    key = cache_format(dtype if settings.kv_format == "auto" else settings.kv_format)
    if settings.engine == "llama.cpp" and settings.kv_format == "auto":
        key = "f16"  # llama.cpp's default whatever the model's type
    value = key if settings.v_format is None else cache_format(settings.v_format)
    if settings.engine == "sglang":  # its int8 keeps a scale for each token and head
        key, value = ("int8_token_head_f16" if x == "int8" else x for x in (key, value))
    return key, value


def check_settings(model: ModelConfig, settings: Settings) -> None:
    """Raises UserError on what cannot be asked."""
    whole = (
        ("context_len", settings.context_len, 1, MAX_CONTEXT),
        ("num_sequences", settings.num_sequences, 1, MAX_SEQUENCES),
        ("tp", settings.tp, 1, 4096),
        ("pp", settings.pp, 1, 4096),
        ("dcp", settings.dcp, 1, 4096),
        ("num_draft_tokens", settings.num_draft_tokens, 0, 64),
        ("state_blocks", settings.state_blocks, 1, 64),
        ("block_len", settings.block_len, 1, 2**20),
        ("batched_tokens", settings.batched_tokens, 1, 2**24),
        ("num_parameters", settings.num_parameters, 1, 2**50),
    )
    for key, value, least, most in whole:
        if value is None and key in OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(
                "error.size_range",
                key=key,
                value=str(value)[:40],
                least=grouped(least),
                most=grouped(most),
            )
    if settings.engine not in ENGINES:
        raise UserError("error.size_engine", name=settings.engine[:40], known=", ".join(ENGINES))
    for key, given, engine in (
        ("unified", settings.unified, "llama.cpp"),
        ("state_blocks", settings.state_blocks > 1, "vllm"),
    ):
        if given and settings.engine != engine:
            raise UserError("error.size_only", key=key, engine=engine)
    share = settings.utilization
    if share is not None and not 0 < share <= 1:
        raise UserError("error.size_share", value=str(share)[:40])
    if settings.tp % settings.dcp:
        raise UserError("error.size_dcp", dcp=settings.dcp, tp=settings.tp)
    key, value = _cache_formats(settings, model.dtype)
    if key != value and settings.engine not in APART:
        known = ", ".join(APART)
        raise UserError("error.size_v_format", engine=settings.engine, known=known)
    for layer in model.layer_counts:
        heads = layer.num_kv_heads
        uneven = heads % settings.tp and settings.tp % heads if heads else 0
        if layer.kind != "latent" and uneven and settings.engine != "exact":
            raise UserError("error.size_tp", heads=heads, tp=settings.tp)


def stage_layers(layers: tuple[LayerSpec, ...], pp: int) -> tuple[tuple[LayerSpec, ...], ...]:
    """The layers of each pipeline stage. A remainder goes to the stages before the last, from the
    back, as vLLM's `get_pp_indices` does. Raises UserError where a stage would be empty."""
    if pp > len(layers):
        raise UserError("error.size_pp", pp=pp, layers=len(layers))
    sizes = [len(layers) // pp] * pp
    for i in range(len(layers) % pp):
        sizes[-2 - i if pp > 1 else 0] += 1
    starts = [sum(sizes[:i]) for i in range(pp)]
    return tuple(layers[a : a + n] for a, n in zip(starts, sizes, strict=True))


def _stages(
    model: ModelConfig, pp: int, last: tuple[LayerSpec, ...]
) -> tuple[Mapping[LayerSpec, int], ...]:
    """How many layers of each sort every pipeline stage holds; `last` are more of the last one."""
    if pp == 1:
        counts = model.layer_counts
        return (Counter(counts) + Counter(last) if last else counts,)
    stages = stage_layers(model.layers, pp)
    return tuple(Counter(s) for s in (*stages[:-1], stages[-1] + last))
