"""FLOPs and bytes of one step: the only formulas of the project, used by every page.

Predictions only: nothing here looks at a tensor, a clock or a run. What the engine counts must
equal what stands here, to the byte (tests/engine/test_bytes.py), and the FLOPs must equal torch's
own counter.

Try it: `python -c "from viz_engine.run import cost; print(cost.block_columns(600))"`
"""

from dataclasses import dataclass

from viz_engine.model.formats import element_bytes
from viz_engine.model.spec import LayerSpec, ModelSpec

BLOCK_LEN = 256  # positions reserved together


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What one forward costs: FLOPs by kind, bytes by kind. All of it predicted."""

    linear_flops: int
    attention_flops: int
    weight_bytes_read: int
    kv_bytes_read: int
    kv_bytes_written: int
    kv_live_bytes: int
    kv_reserved_bytes: int

    @property
    def flops(self) -> int:
        return self.linear_flops + self.attention_flops


def row_bytes(spec: ModelSpec, dtype: str) -> int:
    """Bytes of one position of one sequence in all layers:
    `sum over layers of kv_heads x (key_dim + value_dim), x element size`."""
    return spec.row_elements * element_bytes(dtype)


def weight_bytes(spec: ModelSpec, dtype: str) -> int:
    """Bytes of the weights held, a tied table once."""
    return spec.num_parameters * element_bytes(dtype)


def block_columns(num_columns: int) -> int:
    """`num_columns` rounded up to whole blocks of BLOCK_LEN."""
    return -(-num_columns // BLOCK_LEN) * BLOCK_LEN


def slab_columns(layer: LayerSpec, num_columns: int) -> int:
    """Columns reserved for `num_columns`: whole blocks. With a window never more than it, a piece
    of prefill (BLOCK_LEN) and half a block to slide in ask for."""
    if layer.window is not None:
        num_columns = min(num_columns, layer.window - 1 + BLOCK_LEN + BLOCK_LEN // 2)
    return block_columns(num_columns)


def reserved_bytes(spec: ModelSpec, dtype: str, *, batch: int, num_columns: int) -> int:
    """Bytes reserved for `num_columns` columns of `batch` sequences, states included."""
    rows = sum(
        slab_columns(layer, num_columns) * layer.row_elements * element_bytes(dtype)
        + layer.state_bytes
        for layer in spec.layers
    )
    return batch * rows


def linear_flops(spec: ModelSpec, *, num_tokens: int, num_logit_rows: int) -> int:
    """Two FLOPs (multiply, add) for each weight of a matrix product and token; the output matrix
    only for the rows whose logits are asked for. Norms, rotary and softmax are left out, as
    torch's FlopCounterMode does."""
    layers = 2 * spec.num_layer_matmul_weights * num_tokens
    return layers + 2 * spec.num_head_weights * num_logit_rows


def attention_flops(spec: ModelSpec, *, num_queries: int, context_len: int) -> int:
    """QK^T and PV of all layers: `4 x query heads x head_dim x queries x context`. A causal
    square counts whole, as torch's counter does."""
    return 4 * spec.num_layers * spec.query_elements * num_queries * context_len


def step(
    spec: ModelSpec,
    dtype: str,
    *,
    batch: int,
    num_new: int,
    num_columns: int,
    prompt_columns: int,
    cached: bool,
) -> StepCost:
    """Cost of a forward of `[batch, num_new]` tokens after which `num_columns` columns (pads
    included) are attended.

    `prompt_columns` is the padded length of the prompt, whose blocks are reserved at once. With
    `cached` false the forward takes all columns again (`num_new == num_columns`) and keeps none.
    Growing past a block copies the live rows into a larger slab: the copy is in the bytes read
    and written. Raises ValueError for a type whose weights no formula describes.
    """
    tokens = batch * num_new
    size = element_bytes(dtype)
    read_once = spec.num_layer_matmul_weights + spec.num_layer_other_weights + spec.num_head_weights
    weights = (
        read_once + tokens * spec.hidden_size
    ) * size  # the look-up reads a row for each token
    column = batch * row_bytes(spec, dtype)
    before = num_columns - num_new
    grown = block_columns(num_columns) > block_columns(max(before, prompt_columns))
    copied = before * column if grown and before else 0
    reserved = block_columns(max(num_columns, prompt_columns)) * column
    return StepCost(
        linear_flops=linear_flops(spec, num_tokens=tokens, num_logit_rows=batch),
        attention_flops=attention_flops(spec, num_queries=tokens, context_len=num_columns),
        weight_bytes_read=weights,
        kv_bytes_read=num_columns * column + copied if cached else 0,
        kv_bytes_written=num_new * column + copied if cached else 0,
        kv_live_bytes=num_columns * column if cached else 0,
        kv_reserved_bytes=reserved if cached else 0,
    )
