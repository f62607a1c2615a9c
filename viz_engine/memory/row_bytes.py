"""Bytes that one layer keeps for one position, or for one sequence whatever its length.

K and V apart, tensor-parallel shares, and the two ways to store a latent (MLA) layer. It knows
nothing of blocks, pages or cells: `serving_engines.py` rounds as each engine does.

Try it: `python -c "from viz_engine.memory import row_bytes; \
print(row_bytes.heads_of_rank(8, 16))"`
"""

from dataclasses import dataclass

from viz_engine.model.formats import FORMATS, cache_format
from viz_engine.model.spec import LayerSpec


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


def row_bytes(
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


def state_bytes(
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
