"""FLOPs and bytes of one step: the only formulas of the project, used by every page.

Of a loaded model (`ModelSpec`) or of one that only a config describes (`ModelConfig`): its layers
and groups of weights are all they ask for. Predictions only: nothing here looks at a tensor, a
clock or a run. What the engine counts must equal what stands here, to the byte
(tests/engine/test_bytes.py), and the FLOPs must equal torch's own counter.

Try it: `python -c "from viz_engine.run import cost; print(cost.block_columns(600))"`
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from viz_engine.model.config import ModelConfig
from viz_engine.model.formats import DTYPES, FORMATS, cache_format, element_bytes
from viz_engine.model.spec import LayerSpec, ModelSpec
from viz_engine.model.weights import rank_bytes

BLOCK_LEN = 256  # positions reserved together
POLICIES = ("full", "none")  # of a cache: those whose rows and bytes the formulas describe
UNFOLDING = "attention.kv_b"  # the matrices that unfold latent rows
SLACK = BLOCK_LEN // 2  # positions that a window has to slide in
Model = ModelSpec | ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What one forward costs: FLOPs by kind, bytes by kind. All of it predicted.
    `weight_bytes_read` is None where experts are chosen by token."""

    linear_flops: int
    attention_flops: int
    weight_bytes_read: int | None
    kv_bytes_read: int
    kv_bytes_written: int
    kv_live_bytes: int
    kv_reserved_bytes: int

    @property
    def flops(self) -> int:
        return self.linear_flops + self.attention_flops

    @property
    def num_bytes(self) -> int | None:
        """All that is read or written; None where a part is not known."""
        if self.weight_bytes_read is None:
            return None
        return self.weight_bytes_read + self.kv_bytes_read + self.kv_bytes_written


# ---- weights -------------------------------------------------------------------------------------


def matmul_weights(model: Model) -> int:
    """Weights of all layers that a token is multiplied with: of a mixture of experts those that it
    is sent to. Raises ValueError where nothing describes the weights."""
    return sum(g.num_active for g in _described(model) if g.multiplies and g.per_layer)


def head_weights(model: Model) -> int:
    """The output matrix, `[vocab, hidden]`: the embedding table again where they are tied."""
    return (model.vocab_size or 0) * model.hidden_size


def weight_bytes(spec: ModelSpec, dtype: str) -> int:
    """Bytes of the weights held, a tied table once."""
    return spec.num_parameters * element_bytes(dtype)


def weight_reads(spec: ModelSpec, num_tokens: int) -> int | None:
    """Weights that a forward of `num_tokens` tokens reads: every matrix, norm and bias once, the
    output matrix once, of a table one row for each token. None where experts are chosen by token:
    how many of a layer's are read depends on which."""
    read = head_weights(spec)
    for group in _described(spec):
        if group.active is not None:
            return None
        if group.looked_up:
            read += num_tokens * group.shape[-1]
        elif group.name != "head":
            read += group.num_weights
    return read


def lookup_weights(spec: ModelSpec) -> int:
    """Numbers of all tables that a token reads."""
    return sum(group.shape[-1] for group in _described(spec) if group.looked_up)


def _described(model: Model) -> tuple:
    if model.weights is None:
        raise ValueError(f"no formula for the weights of the type {model.model_type}")
    return model.weights


# ---- FLOPs ---------------------------------------------------------------------------------------


def linear_flops(model: Model, *, num_tokens: int, num_logit_rows: int) -> int:
    """Two FLOPs (multiply, add) for each weight of a matrix product and token; the output matrix
    only for the rows whose logits are asked for. Norms, rotary and softmax are left out, as
    torch's FlopCounterMode does."""
    return 2 * (matmul_weights(model) * num_tokens + head_weights(model) * num_logit_rows)


def unfold_flops(model: Model, num_rows: int) -> int:
    """Of latent layers: keys and values of all heads made anew of `num_rows` earlier rows, which a
    forward does with each that it reads. (Those of its own tokens are in `linear_flops`.)"""
    return 2 * num_rows * sum(g.num_weights for g in _described(model) if g.name == UNFOLDING)


def pair_flops(model: Model) -> Iterator[tuple[int, int | None]]:
    """For each layer with rows: FLOPs of one query and one position, and its window. Two for each
    number of K of all query heads (QK^T) and of V (PV); of a latent layer for those unfolded."""
    heads = 2 * (model.num_query_heads or 0)
    for layer in model.layers:
        if layer.kind == "latent":
            yield 2 * (layer.expanded_key_elements + layer.expanded_value_elements), layer.window
        elif layer.num_kv_heads:
            yield heads * (layer.key_dim + layer.value_dim), layer.window


def attention_flops(
    model: Model, *, num_queries: int, context_len: int, causal: str = "whole"
) -> int:
    """QK^T and PV of all layers, of the last `num_queries` of `context_len` positions.

    `causal` says which pairs count: "whole" every query with every row that it is handed, as
    torch's counter does and a kernel that masks afterwards; "half" only those that the mask lets
    through, which no kernel can do with less.
    """
    if causal == "half":
        return sum(
            flops * (num_pairs(context_len, window) - num_pairs(context_len - num_queries, window))
            for flops, window in pair_flops(model)
        )
    return sum(
        flops * num_queries * _handed(window, num_queries, context_len)
        for flops, window in pair_flops(model)
    )


def num_pairs(num_tokens: int, window: int | None = None) -> int:
    """Pairs of a query and a position that it sees: `n (n + 1) / 2`, less what lies outside of the
    window."""
    outside = max(num_tokens - window, 0) if window else 0
    return num_tokens * (num_tokens + 1) // 2 - outside * (outside + 1) // 2


def _handed(window: int | None, num_queries: int, context_len: int) -> int:
    """Rows that a layer hands to `num_queries` new queries: theirs, and those that the first of
    them can see."""
    return context_len if window is None else min(context_len, window - 1 + num_queries)


# ---- rows and states -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """Bytes of one position of one layer on one rank. Of a latent layer `key` holds all."""

    key: int
    value: int
    index: int = 0

    @property
    def total(self) -> int:
        return self.key + self.value + self.index


def _bytes(num_values: int, name: str) -> int:
    return FORMATS[cache_format(name)].row_bytes(num_values)


NO_ROW = RowBytes(key=0, value=0)


def heads_of_rank(num_kv_heads: int, tp: int) -> int:
    """KV heads on one of `tp` ranks: divided, and never below one, so beyond one head a rank they
    are held several times."""
    return max(1, -(-num_kv_heads // tp))


def layer_rows(
    layer: LayerSpec,
    k_format: str,
    v_format: str,
    *,
    tp: int = 1,
    latent: str = "latent",
    sparse_fp8: bool = True,
) -> RowBytes:
    """Bytes that a position takes in one layer on one rank of `tp`.

    `kv_heads_of_rank x dim x bytes` for K and for V, each as one row. A latent layer, by `latent`:
    "latent" stores `kv_lora_rank + rope` numbers once, the same on every rank; "copied" adds the
    latent without its rope part again, in `v_format` (early llama.cpp); "expanded" stores K and V
    of all heads (engines without absorbed MLA). A sparse latent layer (DeepSeek DSA) adds an 8-bit
    indexer key with an f32 scale for 128 values, and in 8 bits stores its latent with f32 scales
    for 128 values and its rope part in 16 bits (`fp8_ds_mla`: 656 bytes for 512 + 64), if
    `sparse_fp8`.
    """
    if not layer.num_kv_heads:
        return NO_ROW
    if layer.kind != "latent":
        heads = heads_of_rank(layer.num_kv_heads, tp)
        scales = [
            heads * FORMATS[cache_format(name)].head_scale_bytes for name in (k_format, v_format)
        ]
        return RowBytes(
            key=_bytes(heads * layer.key_dim, k_format) + scales[0],
            value=_bytes(heads * layer.value_dim, v_format) + scales[1],
        )
    if latent == "expanded":
        return RowBytes(
            key=_bytes(-(-layer.expanded_key_elements // tp), k_format),
            value=_bytes(-(-layer.expanded_value_elements // tp), v_format),
        )
    index = layer.index_dim + -(-layer.index_dim // 128) * 4 if layer.index_dim else 0
    if not sparse_fp8:  # llama.cpp keeps indexer keys in 16 bits whatever the cache's format
        index = _bytes(layer.index_dim, "f16")
    if layer.index_dim and sparse_fp8 and cache_format(k_format) == "fp8":
        key = layer.key_dim + -(-layer.key_dim // 128) * 4 + 2 * layer.value_dim
    else:
        key = _bytes(layer.key_dim + layer.value_dim, k_format)
    copy = _bytes(layer.key_dim, v_format) if latent == "copied" else 0
    return RowBytes(key=key, value=copy, index=index)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of one sequence's state in one layer on one rank, whatever its length."""

    conv: int
    recurrent: int

    @property
    def total(self) -> int:
        return self.conv + self.recurrent


def layer_state(
    layer: LayerSpec,
    conv_format: str,
    recurrent_format: str,
    *,
    tp: int = 1,
    extra_columns: int = 0,
) -> StateBytes:
    """Bytes of the state of one sequence, both parts divided by `tp`. `extra_columns` more inputs
    of the convolution are kept while that many tokens are drafted (vLLM)."""
    conv = layer.conv_elements + extra_columns * layer.conv_width
    return StateBytes(
        conv=_bytes(-(-conv // tp), conv_format),
        recurrent=_bytes(-(-layer.recurrent_elements // tp), recurrent_format),
    )


def row_bytes(spec: ModelSpec, dtype: str) -> int:
    """Bytes of one position of one sequence in all layers:
    `sum over layers of kv_heads x (key_dim + value_dim), x element size`."""
    return spec.row_elements * element_bytes(dtype)


def row_read_bytes(spec: ModelSpec, dtype: str) -> int:
    """Bytes that attention reads of one position of one sequence in all layers."""
    return sum(layer.read_elements for layer in spec.layers) * element_bytes(dtype)


def block_columns(num_columns: int) -> int:
    """`num_columns` rounded up to whole blocks of BLOCK_LEN."""
    return -(-num_columns // BLOCK_LEN) * BLOCK_LEN


def slab_columns(layer: LayerSpec, num_columns: int) -> int:
    """Columns reserved for `num_columns`: whole blocks. With a window never more than it, a chunk
    of prefill (BLOCK_LEN) and half a block to slide in ask for."""
    if layer.window is not None:
        num_columns = min(num_columns, layer.window - 1 + BLOCK_LEN + SLACK)
    return block_columns(num_columns)


def reserved_bytes(spec: ModelSpec, dtype: str, *, batch: int, num_columns: int) -> int:
    """Bytes reserved for `num_columns` columns of `batch` sequences, states included."""
    rows = sum(
        slab_columns(layer, num_columns) * layer.row_elements * element_bytes(dtype)
        + layer.state_bytes
        for layer in spec.layers
    )
    return batch * rows


def slab_after(
    window: int | None, *, num_new: int, num_columns: int, prompt_columns: int, chunk_len: int
) -> tuple[int, int]:
    """(columns that a slab has room for once `num_columns` are seen, rows copied into a new slab by
    the step that fed the last `num_new` of them).

    Without a window all rows are kept, and a slab grows by whole blocks. With one a full slab is
    left for another with the rows that the next query sees, `window - 1` at most, and room to slide
    in: where that happens follows from the steps before.
    """
    before = num_columns - num_new
    if window is None:
        room = block_columns(max(num_columns, prompt_columns))
        return room, before * (room > block_columns(max(before, prompt_columns)))
    room = block_columns(min(prompt_columns, window - 1 + BLOCK_LEN + SLACK))
    origin = length = copied = 0
    while length < num_columns:
        if length < prompt_columns:
            stop = min(length + (chunk_len or prompt_columns), prompt_columns)
        else:  # on to the token that finds no room
            stop = max(min(num_columns, origin + room + 1), length + 1)
            length = stop - 1
        copied = 0
        if stop - origin > room:
            copied = min(length, window - 1)
            origin = length - copied
            room = block_columns(stop - origin + SLACK)
        length = stop
    return room, copied


# ---- the least time ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one forward takes: FLOPs, bytes read and written."""

    flops: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastTime:
    """Seconds below which no system does some work: the longer of its two parts."""

    compute_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.memory_s)

    @property
    def bound_by(self) -> str:
        return "compute" if self.compute_s > self.memory_s else "memory"


def least_time(
    flops: float, num_bytes: float, *, flops_per_s: float, bytes_per_s: float
) -> LeastTime:
    """`max(FLOPs / rate, bytes / bandwidth)` (Williams, Waterman, Patterson, "Roofline", 2009)."""
    return LeastTime(compute_s=flops / flops_per_s, memory_s=num_bytes / bytes_per_s)


def prefill_work(
    model: Model, *, prompt_len: int, weight_bytes: int, kv_bytes: int, batch: int = 1
) -> Work:
    """The least that reading prompts of `prompt_len` tokens takes, however a system goes about it:
    the pairs that the causal mask lets through ("half"), the logits of the last token, the weights
    once, the rows in use written once. What both the memory and the latency page call the least
    TTFT."""
    linear = linear_flops(model, num_tokens=prompt_len, num_logit_rows=1)
    attention = attention_flops(
        model, num_queries=prompt_len, context_len=prompt_len, causal="half"
    )
    return Work(flops=batch * (linear + attention), num_bytes=weight_bytes + kv_bytes)


def decode_work(
    model: Model, *, context_len: int, weight_bytes: int, kv_bytes: int, batch: int = 1
) -> Work:
    """The least that one more token of each sequence takes, each of whose queries sees
    `context_len` positions, its own included: the weights once, all rows in use."""
    linear = linear_flops(model, num_tokens=1, num_logit_rows=1)
    attention = attention_flops(model, num_queries=1, context_len=context_len)
    return Work(flops=batch * (linear + attention), num_bytes=weight_bytes + kv_bytes)


def read_weight_bytes(
    model: Model, bits: float, *, tp: int = 1, stored: bool = False, active: bool = True
) -> int:
    """Bytes of weights that a forward reads on one of `tp` ranks: without the table that is looked
    up row by row, unless it is the output matrix too. Of a mixture of experts, with `active`, only
    those of one token; `stored` as in `weights.rank_bytes`."""
    groups = _described(model)
    tied = not any(group.name == "head" for group in groups)
    read = [group for group in groups if tied or not group.looked_up]
    if active:
        read = [replace(g, count=g.count if g.active is None else g.active) for g in read]
    return rank_bytes(read, bits, tp, stored=stored)


def used_row_bytes(spec: ModelSpec, dtype: str, context_len: int) -> int:
    """Bytes of the rows of one sequence that its next query sees."""
    name = DTYPES[dtype]
    return sum(
        layer_rows(layer, name, name).total * min(context_len, layer.window or context_len)
        for layer in spec.layers
    )


# ---- a step of the engine ------------------------------------------------------------------------


def step(
    spec: ModelSpec,
    dtype: str,
    *,
    batch: int,
    num_new: int,
    num_columns: int,
    prompt_columns: int,
    cached: bool,
    chunk_len: int | None = None,
) -> StepCost:
    """Cost of a forward of `[batch, num_new]` tokens after which `num_columns` columns (pads
    included) are attended.

    `prompt_columns` is the padded length of the prompt, whose blocks are reserved at once, and
    `chunk_len` the columns of each chunk it is read in (0: one), which a model with windows needs.
    With `cached` false the forward takes all columns again (`num_new == num_columns`) and keeps
    none. Growing past a block copies the live rows into a larger slab: the copy is in the bytes
    read and written. Raises ValueError for a model that no formula describes.
    """
    if why := spec.uncounted:
        raise ValueError(f"no formula for the {why} of the type {spec.model_type}")
    tokens, size = batch * num_new, element_bytes(dtype)
    weights = weight_reads(spec, tokens)
    read = written = live = reserved = 0
    slabs: dict[int | None, tuple[int, int]] = {}
    for layer in spec.layers if cached else ():
        window = layer.window
        if window not in slabs:
            if window is not None and chunk_len is None:
                raise ValueError("what a window keeps reserved follows from the chunks of prefill")
            slabs[window] = slab_after(
                window,
                num_new=num_new,
                num_columns=num_columns,
                prompt_columns=prompt_columns,
                chunk_len=chunk_len or 0,
            )
        room, copied = slabs[window]
        row = layer.row_elements
        read += layer.read_elements * _handed(window, num_new, num_columns) + row * copied
        written += row * (num_new + copied)
        live += row * layer.num_kept(num_columns)
        reserved += row * room
    return StepCost(
        linear_flops=linear_flops(spec, num_tokens=tokens, num_logit_rows=batch)
        + unfold_flops(spec, batch * (num_columns - num_new)),
        attention_flops=batch * attention_flops(spec, num_queries=num_new, context_len=num_columns),
        weight_bytes_read=None if weights is None else weights * size,
        kv_bytes_read=batch * read * size,
        kv_bytes_written=batch * written * size,
        kv_live_bytes=batch * live * size,
        kv_reserved_bytes=batch * reserved * size,
    )
