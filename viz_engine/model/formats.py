"""Number formats: how many bits a number takes in a cache and in weights, under all its names.

The only table of them: sizes, block scales, the names that engines, configs and torch use. It
knows nothing of models.

Try it: `python -c "from viz_engine.model import formats; print(formats.cache_format('fp8_e4m3'))"`
"""

from dataclasses import dataclass
from functools import lru_cache

from viz_engine.text import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """`num_bytes` hold `num_values` numbers of a cache, block scales included; 0 where no cache is
    kept in the format. `weight_bits`: of a weight, scales included; None where none is. `is_mix`:
    they are the mean of a whole file, its tables and norms among them."""

    num_bytes: int = 0
    num_values: int = 1
    head_scale_bytes: int = 0  # beside them, once a token and head
    weight_bits: float | None = None
    is_mix: bool = False

    @property
    def bits(self) -> float:
        return 8 * self.num_bytes / self.num_values

    def row_bytes(self, num_values: int) -> int:
        """Bytes of a row of that many numbers: `ceil(values / block) x block bytes`."""
        return -(-num_values // self.num_values) * self.num_bytes


# GGUF: a block of 32 values with an f16 scale (and an f16 minimum in the _1 types), ggml-common.h.
# Its mixes of weights by the bits that llama-quantize prints for Llama-3.1-8B
# (tools/quantize/README.md of llama.cpp); a mix of another model differs by a few per cent.
# nvfp4, mxfp4: 4-bit values with one 8-bit scale for 16 or 32 of them.
# int8_per_token_head, fp8_per_token_head: vLLM, an f32 scale a token and head (kv_cache_interface).
# int8_token_head_f16: SGLang's int8, a 16-bit scale a token and head (pull request 3034).
# awq, gptq: a 16-bit scale and a 4-bit zero for 128 weights.
FORMATS = {
    "f32": NumberFormat(num_bytes=4, weight_bits=32.0),
    "bf16": NumberFormat(num_bytes=2, weight_bits=16.0),
    "f16": NumberFormat(num_bytes=2, weight_bits=16.0),
    "fp8": NumberFormat(num_bytes=1, weight_bits=8.0),
    "int8": NumberFormat(num_bytes=1, weight_bits=8.0),
    "int8_per_token_head": NumberFormat(num_bytes=1, head_scale_bytes=4),
    "fp8_per_token_head": NumberFormat(num_bytes=1, head_scale_bytes=4),
    "int8_token_head_f16": NumberFormat(num_bytes=1, head_scale_bytes=2),
    "int4": NumberFormat(num_bytes=1, num_values=2, weight_bits=4.0),
    "int2": NumberFormat(num_bytes=1, num_values=4, weight_bits=2.0),
    "awq": NumberFormat(weight_bits=4 + 20 / 128),
    "gptq": NumberFormat(weight_bits=4 + 20 / 128),
    "nvfp4": NumberFormat(num_bytes=9, num_values=16, weight_bits=4.5),
    "mxfp4": NumberFormat(num_bytes=17, num_values=32, weight_bits=4.25),
    "q8_0": NumberFormat(num_bytes=34, num_values=32, weight_bits=8.5, is_mix=True),
    "q6_k": NumberFormat(weight_bits=6.56, is_mix=True),
    "q5_k_m": NumberFormat(weight_bits=5.70, is_mix=True),
    "q5_k_s": NumberFormat(weight_bits=5.57, is_mix=True),
    "q5_1": NumberFormat(num_bytes=24, num_values=32),
    "q5_0": NumberFormat(num_bytes=22, num_values=32),
    "q4_k_m": NumberFormat(weight_bits=4.89, is_mix=True),
    "q4_k_s": NumberFormat(weight_bits=4.67, is_mix=True),
    "q4_1": NumberFormat(num_bytes=20, num_values=32),
    "q4_0": NumberFormat(num_bytes=18, num_values=32, weight_bits=4.66, is_mix=True),
    "iq4_nl": NumberFormat(num_bytes=18, num_values=32),
    "iq4_xs": NumberFormat(weight_bits=4.46, is_mix=True),
    "q3_k_m": NumberFormat(weight_bits=4.00, is_mix=True),
    "q2_k": NumberFormat(weight_bits=3.16, is_mix=True),
    "iq2_xs": NumberFormat(weight_bits=2.59, is_mix=True),
    "iq1_m": NumberFormat(weight_bits=2.15, is_mix=True),
}
WEIGHTS = tuple(name for name, found in FORMATS.items() if found.weight_bits is not None)
# In the order in which a page offers them.
CACHES = ("f32", "bf16", "f16", "fp8", "int8", "int8_per_token_head", "fp8_per_token_head")
CACHES += ("int8_token_head_f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "nvfp4")
CACHES += ("mxfp4", "int4", "int2")
CACHES_LISTED = tuple(name for name in CACHES if name not in ("mxfp4", "int2"))  # by pages
# What torch, transformers and the records of runs call the types that a model computes in.
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
ALIASES = DTYPES | {
    "fp32": "f32",
    "float": "f32",
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


def element_bytes(dtype: str) -> int:
    """Bytes of a number of a torch type. Raises KeyError for one that no model computes in."""
    return FORMATS[DTYPES[dtype]].num_bytes


@lru_cache(maxsize=256)
def cache_format(name: str) -> str:
    """The name in FORMATS of what an engine or a config calls a cache's type. Raises UserError."""
    key = _canonical(name)
    if key not in CACHES:
        raise UserError("error.size_format", name=name[:40], known=", ".join(CACHES))
    return key


@lru_cache(maxsize=256)
def weight_bits(name: str, dtype: str) -> float:
    """Bits of a weight in that format; "auto" is `dtype`. A number is bits per weight. Raises
    UserError."""
    key = dtype if is_auto(name) else _canonical(name)
    if key in WEIGHTS:
        return FORMATS[key].weight_bits
    try:
        bits = float(key)
    except ValueError:
        bits = 0.0
    if not 0.1 <= bits <= 64:
        raise UserError("error.size_format", name=name[:40], known=", ".join(WEIGHTS))
    return bits


def is_mix(name: str) -> bool:
    """Whether the bits of a weight format are the mean of a whole file: nothing is kept wider."""
    return not is_auto(name) and FORMATS[_canonical(name)].is_mix


def is_auto(name: str) -> bool:
    """Whether the weights are taken as they were released, in whatever mix of types."""
    return name.strip().lower() == "auto"


def _canonical(name: str) -> str:
    key = name.strip().lower()
    return ALIASES.get(key, key)
