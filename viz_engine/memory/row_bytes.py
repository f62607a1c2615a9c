"""Bytes that one layer keeps for one position, or for one sequence whatever its length.

Number formats, K and V apart, tensor-parallel shares, and the two ways to store a latent (MLA)
layer. It knows nothing of blocks, pages or cells: `serving_engines.py` rounds as each engine does.

Try it: `python -c "from viz_engine.memory import row_bytes; print(row_bytes.FORMATS['q8_0'])"`
"""

from dataclasses import dataclass
from functools import lru_cache

from viz_engine.model.spec import LayerSpec
from viz_engine.text import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """`num_bytes` hold `num_values` numbers, block scales included."""

    num_bytes: int
    num_values: int = 1
    head_scale_bytes: int = 0  # beside them, once a token and head

    @property
    def bits(self) -> float:
        return 8 * self.num_bytes / self.num_values


# GGUF: a block of 32 values with an f16 scale (and an f16 minimum in the _1 types), ggml-common.h.
# nvfp4, mxfp4: 4-bit values with one 8-bit scale for 16 or 32 of them.
# int8_per_token_head, fp8_per_token_head: vLLM, an f32 scale a token and head (kv_cache_interface).
# int8_token_head_f16: SGLang's int8, a 16-bit scale a token and head (pull request 3034).
FORMATS = {
    "f32": NumberFormat(num_bytes=4),
    "bf16": NumberFormat(num_bytes=2),
    "f16": NumberFormat(num_bytes=2),
    "fp8": NumberFormat(num_bytes=1),
    "int8": NumberFormat(num_bytes=1),
    "int8_per_token_head": NumberFormat(num_bytes=1, head_scale_bytes=4),
    "fp8_per_token_head": NumberFormat(num_bytes=1, head_scale_bytes=4),
    "int8_token_head_f16": NumberFormat(num_bytes=1, head_scale_bytes=2),
    "q8_0": NumberFormat(num_bytes=34, num_values=32),
    "q5_1": NumberFormat(num_bytes=24, num_values=32),
    "q5_0": NumberFormat(num_bytes=22, num_values=32),
    "q4_1": NumberFormat(num_bytes=20, num_values=32),
    "q4_0": NumberFormat(num_bytes=18, num_values=32),
    "iq4_nl": NumberFormat(num_bytes=18, num_values=32),
    "nvfp4": NumberFormat(num_bytes=9, num_values=16),
    "mxfp4": NumberFormat(num_bytes=17, num_values=32),
    "int4": NumberFormat(num_bytes=1, num_values=2),
    "int2": NumberFormat(num_bytes=1, num_values=4),
}
ALIASES = {
    "float32": "f32",
    "fp32": "f32",
    "float": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_e4m3fn": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "fp8_inc": "fp8",
    "fp8_ds_mla": "fp8",
}
KV_FORMATS = tuple(name for name in FORMATS if name not in ("int2", "mxfp4"))


@lru_cache(maxsize=256)
def format_name(name: str) -> str:
    """The name in FORMATS of what an engine or a config calls a number type. Raises UserError."""
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key not in FORMATS:
        raise UserError("error.size_format", name=name[:40], known=", ".join(FORMATS))
    return key


def num_bytes(num_values: int, name: str) -> int:
    """Bytes of a row of `num_values` numbers: `ceil(values / block) x block bytes`."""
    fmt = FORMATS[format_name(name)]
    return -(-num_values // fmt.num_values) * fmt.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """Bytes of one position of one layer on one rank. Of a latent layer `key` holds all."""

    key: int
    value: int
    index: int = 0

    @property
    def total(self) -> int:
        return self.key + self.value + self.index


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
            heads * FORMATS[format_name(name)].head_scale_bytes for name in (k_format, v_format)
        ]
        return RowBytes(
            key=num_bytes(heads * layer.key_dim, k_format) + scales[0],
            value=num_bytes(heads * layer.value_dim, v_format) + scales[1],
        )
    if latent == "expanded":
        return RowBytes(
            key=num_bytes(-(-layer.expanded_key_elements // tp), k_format),
            value=num_bytes(-(-layer.expanded_value_elements // tp), v_format),
        )
    index = layer.index_dim + -(-layer.index_dim // 128) * 4 if layer.index_dim else 0
    if layer.index_dim and sparse_fp8 and format_name(k_format) == "fp8":
        key = layer.key_dim + -(-layer.key_dim // 128) * 4 + 2 * layer.value_dim
    else:
        key = num_bytes(layer.key_dim + layer.value_dim, k_format)
    copy = num_bytes(layer.key_dim, v_format) if latent == "copied" else 0
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
        conv=num_bytes(-(-conv // tp), conv_format),
        recurrent=num_bytes(-(-layer.recurrent_elements // tp), recurrent_format),
    )
