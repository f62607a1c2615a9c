"""K and V rows in memory: one slab for a run, written in place, and the attention that reads it.

`Rows` is a transformers cache whose layers are views of one tensor `[2, L, B, H, capacity, D]`.
It counts what it holds and what it copies; `RowReads` counts what attention reads. It knows
nothing of prompts, steps or time.

Try it: tests/test_bytes.py drives it without a real model.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import sdpa_mask

from viz_engine.cost import BLOCK_LEN, block_columns
from viz_engine.spec import ModelSpec

ATTENTION = "second_token"  # the name under which transformers finds `row_attention`


class Rows(Cache):
    """All K and V rows of a run. Columns (positions of the padded batch) are reserved in blocks."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        batch: int,
        num_columns: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """Reserve whole blocks for `num_columns`. All layers of the spec have the same size."""
        layer = spec.layers[0]
        shape = (
            2,
            spec.num_layers,
            batch,
            layer.num_kv_heads,
            block_columns(num_columns),
            layer.key_dim,
        )
        self.slab = torch.empty(shape, dtype=dtype, device=device)  # [2, L, B, H, capacity, D]
        self.bytes_written = 0
        self.bytes_copied = 0  # live rows that moved into a larger slab: read once, written once
        super().__init__(layers=[LayerRows(self) for _ in range(spec.num_layers)])
        self._hand_out()

    @property
    def num_columns(self) -> int:
        """Columns in use: every layer has as many after a forward."""
        return self.layers[-1].length

    @property
    def live_bytes(self) -> int:
        """Bytes of the rows in use, asked of the tensor."""
        live = self.slab[:, :, :, :, : self.num_columns]
        return live.numel() * live.element_size()

    @property
    def reserved_bytes(self) -> int:
        return self.slab.numel() * self.slab.element_size()

    def reserve(self, num_columns: int) -> None:
        """Make room for `num_columns`, a block at a time; the live rows are copied over."""
        capacity = self.slab.shape[4]
        if num_columns <= capacity:
            return
        shape = list(self.slab.shape)
        shape[4] = max(block_columns(num_columns), capacity + BLOCK_LEN)
        live = self.slab[:, :, :, :, : self.num_columns]
        larger = torch.empty(shape, dtype=self.slab.dtype, device=self.slab.device)
        larger[:, :, :, :, : self.num_columns] = live
        self.bytes_copied += live.numel() * live.element_size()
        self.slab = larger
        self._hand_out()

    def next_row(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer with a row more, which the caller is to write."""
        return [layer.extend(1) for layer in self.layers]

    def magnitudes(self, first: int, stop: int) -> np.ndarray:
        """L2 norms over the head's width of the columns `[first, stop)`, quantised as
        `events.MAGNITUDE_SCALE` says: uint8 `[2, B, columns, L * H]`, K then V."""
        part = self.slab[:, :, :, :, first:stop]  # [2, L, B, H, n, D]
        norms = torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32)  # [2, L, B, H, n]
        values = norms.permute(0, 2, 4, 1, 3).flatten(3).cpu().numpy()  # [2, B, n, L * H]
        with np.errstate(divide="ignore"):  # numpy: a few small arrays, no dispatch
            levels = np.clip(np.rint(128 + 12 * np.log2(values)), 1, 255)
        return np.where(values > 0, levels, 0).astype(np.uint8)

    def _hand_out(self) -> None:
        for index, layer in enumerate(self.layers):
            layer.keys, layer.values = self.slab[0, index], self.slab[1, index]


class LayerRows(CacheLayerMixin):
    """One layer's view of the slab, as transformers' modelling code wants it."""

    is_sliding = False

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows
        self.length = 0
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the slab is there before the first row."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[B, H, n, D]` behind the rows in use; give all rows in use, as views."""
        first = self.length
        keys, values = self.extend(key_states.shape[2])
        keys[:, :, first:], values[:, :, first:] = key_states, value_states
        return keys, values

    def extend(self, num_new: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All rows in use and `num_new` more that are yet to be written, as views."""
        first, self.length = self.length, self.length + num_new
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        self.rows.bytes_written += keys[:, :, first:].nbytes + values[:, :, first:].nbytes
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class RowReads:
    """Bytes of K and V that attention has read. Handed to the model's forward as `row_reads`."""

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self.num_bytes += key.numel() * key.element_size()
        self.num_bytes += value.numel() * value.element_size()


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [B, Hq, T, D]
    key: torch.Tensor,  # [B, Hkv, S, D]
    value: torch.Tensor,  # [B, Hkv, S, D]
    attention_mask: torch.Tensor | None,  # bool [B, 1, T, S]
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    row_reads: RowReads | None = None,
    sliding_window: int | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention over exactly the rows handed in, each K and V read once for its whole query group.

    Gives `[B, T, Hq, D]`. Raises NotImplementedError on an argument that it would have to obey.
    """
    unknown = [name for name, value in kwargs.items() if value is not None and name not in IGNORED]
    if unknown or dropout or sliding_window is not None:
        raise NotImplementedError(f"attention arguments {unknown or 'dropout, sliding_window'}")
    if row_reads is not None:
        row_reads.add(key, value)
    batch, num_query_heads, num_new, _ = query.shape
    num_kv_heads = key.shape[1]
    if num_new == 1:
        # The queries of a group become rows of one product: enable_gqa is five times slower here.
        query = query.reshape(batch, num_kv_heads, -1, query.shape[3])
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
        return out.reshape(batch, 1, num_query_heads, -1), None
    dtype = query.dtype
    if _float32:
        query, key, value = query.float(), key.float(), value.float()
    grouped = num_query_heads != num_kv_heads
    if grouped and attention_mask is not None and query.is_cuda:
        # With a mask CUDA's fast kernels take no groups.
        key = key.repeat_interleave(num_query_heads // num_kv_heads, dim=1)
        value = value.repeat_interleave(num_query_heads // num_kv_heads, dim=1)
        grouped = False
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=scaling,
        enable_gqa=grouped,
    )
    return out.to(dtype).transpose(1, 2), None


_float32: list[bool] = []  # not empty: inside `in_float32`


@contextmanager
def in_float32(wanted: bool) -> Iterator[None]:
    """Convert what several queries at once read to float32, which is exact: some processors
    multiply faster in it. The rows stay as they are."""
    if not wanted:
        yield
        return
    _float32.append(True)
    try:
        yield
    finally:
        _float32.pop()


IGNORED = {"position_ids", "use_cache", "is_causal"}  # say nothing that the mask does not say


def register() -> None:
    """Make `row_attention` known to transformers. Without the mask's name no mask is made."""
    AttentionInterface.register(ATTENTION, row_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
