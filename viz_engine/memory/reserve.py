"""What an engine reserves for sequences of a length: the rows of each kind of layer.

`kinds` answers with one `KindRow` a kind, the engine's rounding included, for the rank that holds
most. It knows nothing of weights or of what fits.

Try it: `python -m viz_engine size --model gemma-3-12b --context 32768 --engine llama.cpp`
"""

from dataclasses import dataclass

from viz_engine.memory import serving_engines
from viz_engine.memory.deployment import Deployment
from viz_engine.model.spec import LayerSpec
from viz_engine.run import cost
from viz_engine.text import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """What the layers of one kind keep on a rank. `row_bytes`: a position of one layer;
    `rows`: positions that one sequence holds; `state_bytes`: of one sequence and layer;
    `num_bytes`: all layers of the kind and all sequences, the engine's rounding included, of which
    K takes `key_bytes` and V `value_bytes` (of a latent layer K all, of states neither any)."""

    kind: str
    layer: LayerSpec | None  # one of them; None: a state, or full only to the engine
    num_layers: int
    row_bytes: int
    rows: int
    state_bytes: int
    num_bytes: int
    key_bytes: int
    value_bytes: int
    num_sequences: int

    @property
    def window(self) -> int | None:
        return self.layer.window if self.layer else None

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


def kinds(served: Deployment, context_len: int, num_sequences: int) -> tuple[KindRow, ...]:
    """What each kind of layer takes on the rank that holds most, all sequences at `context_len`:
    rows first, states (of kind "state") last."""
    if served.engine == "vllm":
        return _vllm_kinds(served, context_len, num_sequences)
    rows_found, states_found = [], []
    for layer, num in served.layers.items():
        row = cost.layer_rows(
            layer,
            served.k_format,
            served.v_format,
            tp=served.tp,
            sparse_fp8=served.engine != "llama.cpp",
        )
        if row.total:
            rows, spare = _rows(layer, served, context_len, num_sequences)
            total = num * (rows * num_sequences + spare) * row.total
            rows_found.append(_row_kind(layer.kind, layer, num, row, rows, total, num_sequences))
        state = _state(layer, served)
        if state:
            slots = num_sequences + (served.engine == "sglang")
            states_found.append(_state_kind(num, state, num * slots * state, num_sequences))
    return (*rows_found, *states_found)


def _rows(
    layer: LayerSpec, served: Deployment, context_len: int, num_sequences: int
) -> tuple[int, int]:
    """(rows that one sequence holds in a layer, rows held beside them)."""
    length, engine = context_len, served.engine
    if layer.kind == "cross":
        return layer.fixed_len or served.cross_len or 0, 0
    if engine == "llama.cpp" and served.unified:
        return divmod(_llama_rows(layer, served, context_len, num_sequences), num_sequences)
    if engine == "llama.cpp":
        return _llama_rows(layer, served, context_len, 1), 0
    if layer.window is not None and served.window_cache and engine != "sglang":
        kept = layer.window - 1 if engine == "transformers" else layer.window
        length = min(length, kept)
    length = -(-length // served.dcp)
    if engine == "sglang":
        return serving_engines.pad(length, served.block_len), served.block_len
    if engine == "tensorrt-llm":
        return serving_engines.pad(length, served.block_len), 0
    return length, 0


def _llama_rows(layer: LayerSpec, served: Deployment, context_len: int, num_sequences: int) -> int:
    """Cells of a cache that `num_sequences` slots share: llama.cpp makes one for each slot, or a
    unified one for all (`llama_kv_cache_iswa`: window x sequences + micro-batch)."""
    length = serving_engines.pad(context_len * num_sequences, serving_engines.PAD_CELLS)
    if layer.window is None or not served.window_cache:
        return length
    seen = min(length, layer.window * num_sequences + served.batched_tokens)
    return serving_engines.pad(seen, serving_engines.PAD_CELLS)


def _state(layer: LayerSpec, served: Deployment) -> int:
    """Bytes of one sequence's state in a layer. llama.cpp keeps it whole on each rank, and once
    more for each drafted token."""
    formats = served.conv_format, served.recurrent_format
    if served.engine == "llama.cpp":
        return cost.layer_state(layer, *formats).total * (1 + served.num_draft_tokens)
    return cost.layer_state(
        layer, *formats, tp=served.tp, extra_columns=served.num_draft_tokens
    ).total


def _vllm_kinds(served: Deployment, context_len: int, num_sequences: int) -> tuple[KindRow, ...]:
    pool = serving_engines.vllm_pool(served, context_len)
    found: dict[str, list[serving_engines.VllmGroup]] = {}
    for group in pool.groups:
        found.setdefault(group.kind, []).append(group)
    rows, states = [], []
    for kind, groups in found.items():
        blocks = sum(group.blocks_per_request for group in groups)
        total = num_sequences * blocks * pool.block_bytes
        num = sum(group.num_layers for group in groups)
        if kind == "state":
            state = pool.page_bytes * groups[0].blocks_per_request
            states.append(_state_kind(num, state, total, num_sequences))
            continue
        layer = next((x for x in served.layers if x.kind == kind and x.num_kv_heads), None)
        row = cost.NO_ROW
        if layer is not None:
            row = cost.layer_rows(layer, served.k_format, served.k_format, tp=served.tp)
        held = groups[0].blocks_per_request * groups[0].block_len
        rows.append(_row_kind(kind, layer, num, row, held, total, num_sequences))
    return (*rows, *states)


def _row_kind(
    kind: str,
    layer: LayerSpec | None,
    num_layers: int,
    row: cost.RowBytes,
    rows: int,
    total: int,
    num_sequences: int,
) -> KindRow:
    if kind == "latent":
        key = total
    else:
        key = total * row.key // row.total if row.total else 0
    return KindRow(
        kind=kind,
        layer=layer,
        num_layers=num_layers,
        row_bytes=row.total,
        rows=rows,
        state_bytes=0,
        num_bytes=total,
        key_bytes=key,
        value_bytes=total - key,
        num_sequences=num_sequences,
    )


def _state_kind(num_layers: int, state: int, total: int, num_sequences: int) -> KindRow:
    return KindRow(
        kind="state",
        layer=None,
        num_layers=num_layers,
        row_bytes=0,
        rows=0,
        state_bytes=state,
        num_bytes=total,
        key_bytes=0,
        value_bytes=0,
        num_sequences=num_sequences,
    )
