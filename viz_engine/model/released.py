"""What the files beside a config.json say of the weights: in which types, how many bytes.

`hf_quant_config.json` (ModelOpt, read as vLLM does), the index of several safetensors files, the
header of one. What they state is taken before what is worked out from the config. It opens no
files; `hub_config.py` does.

Try it: `python -m viz_engine size --config FOLDER`
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from viz_engine.model import config_keys
from viz_engine.numbers import grouped
from viz_engine.text import UserError

CONFIG, QUANTIZATION = "config.json", "hf_quant_config.json"
INDEX, WEIGHTS = ".safetensors.index.json", ".safetensors"
MAX_HEADER_BYTES = 32 * 2**20  # the format allows 100 MB; a shard's header has some 100 kB
MAX_BYTES = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """`quantization` as a config.json would hold it, `num_bytes` of all weights, and the names of
    the files that say so. None: no file does."""

    quantization: Mapping[str, object] | None = None
    num_bytes: int | None = None
    source: str = ""
    unasked: tuple[str, ...] = ()  # files that may be there


def read(files: Mapping[str, bytes | None]) -> Released:
    """What `files` say, by name; of a safetensors file its beginning is enough. Raises UserError
    where one of them is not what its name says."""
    quantization, num_bytes, source = None, None, ""
    headers = {}
    unasked = tuple(name for name, data in files.items() if data is None)
    for name, data in files.items():
        if data is None:
            continue
        if name == QUANTIZATION:
            quantization = _quantization(data)
        elif name.endswith(INDEX):
            num_bytes, source = _total_size(name, data), name
        elif name.endswith(WEIGHTS):
            headers[name] = _tensor_bytes(name, data)
    if num_bytes is None and headers:
        num_bytes, source = sum(headers.values()), ", ".join(headers)[:200]
    return Released(quantization=quantization, num_bytes=num_bytes, source=source, unasked=unasked)


def _quantization(data: bytes) -> Mapping[str, object] | None:
    said = config_keys.parse(data)
    table = said.get("quantization", said)
    if not isinstance(table, dict):
        raise UserError("error.size_beside", name=QUANTIZATION)
    return {"quant_method": "modelopt"} | table


def _total_size(name: str, data: bytes) -> int | None:
    """`metadata.total_size` of an index; None where it has none."""
    try:
        metadata = json.loads(data).get("metadata") or {}
        total = metadata.get("total_size")
    except (ValueError, AttributeError, RecursionError):
        raise UserError("error.size_beside", name=name[:80]) from None
    if total is None:
        return None
    return config_keys.whole("total_size", total, most=MAX_BYTES)


def header_len(start: bytes) -> int:
    """Bytes of a safetensors file up to the end of its header, from its first eight. Raises
    UserError where that is more than any header has."""
    size = int.from_bytes(start[:8], "little")
    if len(start) < 8 or not 2 <= size <= MAX_HEADER_BYTES:
        raise UserError("error.size_header", limit=grouped(MAX_HEADER_BYTES))
    return 8 + size


def _tensor_bytes(name: str, data: bytes) -> int:
    """Bytes of all tensors of a safetensors file: where the last one ends."""
    try:
        header = json.loads(data[8 : header_len(data)])
        ends = [about["data_offsets"][1] for key, about in header.items() if key != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise UserError("error.size_beside", name=name[:80]) from None
    return config_keys.whole("data_offsets", max(ends, default=None), most=MAX_BYTES)
