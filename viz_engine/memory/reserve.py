"""What an engine reserves for sequences of a length: the rows of each kind of layer.

`Settings` is what is asked; `kinds` answers with one `KindRow` a kind, the engine's rounding
included, for the rank that holds most. It knows nothing of weights or of what fits.

Try it: `python -m viz_engine size --model gemma-3-12b --context 32768 --engine llama.cpp`
"""

from collections.abc import Mapping
from dataclasses import dataclass

from viz_engine.memory import row_bytes as memory_row_bytes
from viz_engine.memory import serving_engines
from viz_engine.model.config import ModelConfig
from viz_engine.model.formats import cache_format
from viz_engine.model.spec import LayerSpec
from viz_engine.text import Message, UserError, grouped

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
    engine: str = "exact"  # one of serving_engines.ENGINES; exact: no rounding, no reserve
    block_len: int | None = None  # tokens in a block or page; None: the engine's default
    batched_tokens: int | None = None  # tokens in one forward; None: the engine's default
    draft_layers: bool = False  # load the multi-token-prediction layers too
    num_draft_tokens: int = 0
    state_blocks: int = 1  # vLLM: 2 with prefix caching
    cross_len: int | None = None  # tokens of an image or encoder, where the config does not say
    window_cache: bool = True  # False: window layers hold the whole context
    utilization: float | None = None  # share of a device that may be used; None: the engine's


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """What the layers of one kind keep on a rank. `row_bytes`: a position of one layer;
    `rows`: positions that one sequence holds; `state_bytes`: of one sequence and layer;
    `num_bytes`: all layers of the kind and all sequences, the engine's rounding included."""

    kind: str
    num_layers: int
    window: int | None
    row_bytes: int
    rows: int
    state_bytes: int
    num_bytes: int
    num_sequences: int

    @property
    def formula(self) -> Message:
        """How `num_bytes` came about, with the numbers filled in."""
        key = "size.formula_state" if self.kind == "state" else "size.formula_rows"
        params = {
            "layers": self.num_layers,
            "rows": f"{self.rows:,}",
            "row_bytes": f"{self.row_bytes:,}",
            "state_bytes": f"{self.state_bytes:,}",
            "sequences": f"{self.num_sequences:,}",
            "total": f"{self.num_bytes:,}",
        }
        return Message(key=key, params=params)


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
    if settings.engine not in serving_engines.ENGINES:
        raise UserError(
            "error.size_engine", name=settings.engine[:40], known=", ".join(serving_engines.ENGINES)
        )
    share = settings.utilization
    if share is not None and not 0 < share <= 1:
        raise UserError("error.size_share", value=str(share)[:40])
    if settings.tp % settings.dcp:
        raise UserError("error.size_dcp", dcp=settings.dcp, tp=settings.tp)
    key, value = formats(model, settings)
    if key != value and settings.engine not in serving_engines.APART:
        known = ", ".join(serving_engines.APART)
        raise UserError("error.size_v_format", engine=settings.engine, known=known)
    for layer in model.layer_counts:
        heads = layer.num_kv_heads
        uneven = heads % settings.tp and settings.tp % heads if heads else 0
        if layer.kind != "latent" and uneven and settings.engine != "exact":
            raise UserError("error.size_tp", heads=heads, tp=settings.tp)


def formats(model: ModelConfig, settings: Settings) -> tuple[str, str]:
    """Number formats of K and of V."""
    dtype = serving_engines.served_dtype(model, settings.engine)
    key = cache_format(dtype if settings.kv_format == "auto" else settings.kv_format)
    if settings.engine == "llama.cpp" and settings.kv_format == "auto":
        key = "f16"  # llama.cpp's default whatever the model's type
    value = key if settings.v_format is None else cache_format(settings.v_format)
    if settings.engine == "sglang":
        return serving_engines.sglang_format(key), serving_engines.sglang_format(value)
    return key, value


def stage(model: ModelConfig, settings: Settings) -> Mapping[LayerSpec, int]:
    """The layers of the pipeline stage that holds most: how many there are of each sort."""
    drafts = model.draft_layers if settings.draft_layers else ()
    stages = serving_engines.stage_counts(model, settings.pp, drafts + model.cross_layers)
    return max(stages, key=lambda s: sum(num * x.row_elements for x, num in s.items()))


def kinds(model: ModelConfig, settings: Settings) -> tuple[KindRow, ...]:
    """What each kind of layer takes on the rank that holds most, all sequences at `context_len`:
    rows first, states (of kind "state") last."""
    if settings.engine == "vllm":
        return _vllm_kinds(model, settings)
    k_format, v_format = formats(model, settings)
    counts = stage(model, settings)
    rows_found, states_found = [], []
    for layer, num in counts.items():
        row = memory_row_bytes.row_bytes(layer, k_format, v_format, tp=settings.tp).total
        if row:
            rows, spare = _rows(layer, settings)
            total = num * (rows * settings.num_sequences + spare) * row
            rows_found.append(_row(layer.kind, layer.window, num, row, rows, 0, total, settings))
        state = _state(layer, model, settings)
        if state:
            slots = settings.num_sequences + (settings.engine == "sglang")
            total = num * slots * state
            states_found.append(_row("state", None, num, 0, 0, state, total, settings))
    return (*rows_found, *states_found)


def _rows(layer: LayerSpec, settings: Settings) -> tuple[int, int]:
    """(rows that one sequence holds in a layer, rows held beside them)."""
    length, engine = settings.context_len, settings.engine
    if layer.kind == "cross":
        return layer.fixed_len or settings.cross_len or 0, 0
    if engine == "llama.cpp":
        return _llama_rows(layer, settings), 0
    if layer.window is not None and settings.window_cache and engine != "sglang":
        kept = layer.window - 1 if engine == "transformers" else layer.window
        length = min(length, kept)
    length = -(-length // settings.dcp)
    if engine == "sglang":
        page = settings.block_len or 1
        return serving_engines.pad(length, page), page
    if engine == "tensorrt-llm":
        return serving_engines.pad(length, settings.block_len or serving_engines.TRT_BLOCK_LEN), 0
    return length, 0


def _llama_rows(layer: LayerSpec, settings: Settings) -> int:
    """Cells of one of the slots: llama.cpp's context is shared by all slots."""
    length = serving_engines.pad(settings.context_len, serving_engines.PAD_CELLS)
    if layer.window is None or not settings.window_cache:
        return length
    micro_batch = settings.batched_tokens or serving_engines.MICRO_BATCH
    return serving_engines.pad(min(length, layer.window + micro_batch), serving_engines.PAD_CELLS)


def _state(layer: LayerSpec, model: ModelConfig, settings: Settings) -> int:
    """Bytes of one sequence's state in a layer."""
    if settings.engine == "llama.cpp":
        return memory_row_bytes.state_bytes(layer, "f32", "f32").total * (
            1 + settings.num_draft_tokens
        )
    return memory_row_bytes.state_bytes(
        layer,
        serving_engines.served_dtype(model, settings.engine),
        model.recurrent_format,
        tp=settings.tp,
        extra_columns=settings.num_draft_tokens,
    ).total


def _vllm_kinds(model: ModelConfig, settings: Settings) -> tuple[KindRow, ...]:
    pool = vllm_pool(model, settings)
    layers = stage(model, settings)
    k_format, _ = formats(model, settings)
    found: dict[str, list[serving_engines.VllmGroup]] = {}
    for group in pool.groups:
        found.setdefault(group.kind, []).append(group)
    rows = []
    for kind, groups in sorted(found.items(), key=lambda item: item[0] == "state"):
        blocks = sum(group.blocks_per_request for group in groups)
        total = settings.num_sequences * blocks * pool.block_bytes
        layer = next((x for x in layers if x.kind == kind and x.num_kv_heads), None)
        row = (
            0
            if layer is None
            else memory_row_bytes.row_bytes(layer, k_format, k_format, tp=settings.tp).total
        )
        held = 0 if kind == "state" else groups[0].blocks_per_request * groups[0].block_len
        state = pool.page_bytes * groups[0].blocks_per_request if kind == "state" else 0
        num = sum(group.num_layers for group in groups)
        window = layer.window if layer else None
        rows.append(_row(kind, window, num, row, held, state, total, settings))
    return tuple(rows)


def vllm_pool(model: ModelConfig, settings: Settings) -> serving_engines.VllmPool:
    """vLLM's pool for these settings."""
    return serving_engines.vllm_pool(
        model,
        max_model_len=settings.context_len,
        kv_format=settings.kv_format,
        tp=settings.tp,
        pp=settings.pp,
        dcp=settings.dcp,
        block_len=settings.block_len or serving_engines.VLLM_BLOCK_LEN,
        batched_tokens=settings.batched_tokens or serving_engines.VLLM_BATCHED_TOKENS,
        hybrid=None if settings.window_cache else False,
        num_draft_layers=len(model.draft_layers) if settings.draft_layers else 0,
        num_draft_tokens=settings.num_draft_tokens,
        state_blocks=settings.state_blocks,
        cross_len=settings.cross_len,
    )


def _row(
    kind: str,
    window: int | None,
    num_layers: int,
    row_bytes: int,
    rows: int,
    state_bytes: int,
    total: int,
    settings: Settings,
) -> KindRow:
    return KindRow(
        kind=kind,
        num_layers=num_layers,
        window=window,
        row_bytes=row_bytes,
        rows=rows,
        state_bytes=state_bytes,
        num_bytes=total,
        num_sequences=settings.num_sequences,
    )
