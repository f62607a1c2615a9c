"""What a run keeps from token to token: K and V rows written in place, and the attention over them.

`Rows` is a transformers cache. Layers that keep a row a position (all of them, the last ones of a
window, latents) are views of slabs, one for all layers of a size; every other layer is of
transformers' own class. It counts what it holds, writes and copies; `RowReads` counts what
attention reads. It knows nothing of prompts, steps or time.

Try it: tests/engine/test_bytes.py drives it without a real model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from viz_engine.engine.kernels import build
from viz_engine.engine.kernels.attention import RowReads
from viz_engine.model.spec import LayerSpec
from viz_engine.run.cost import BLOCK_LEN, block_columns, slab_columns

OWN_KINDS = ("full", "sliding", "chunked", "latent")  # layers whose rows stand in a slab


class Rows(Cache):
    """All that a run keeps. Columns (positions of the padded batch) are reserved in blocks."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        *,
        batch: int,
        num_columns: int,
        dtype: torch.dtype,
        device: torch.device | str,
        theirs: Mapping[int, Callable[[], object]] | None = None,
        own_attention: bool = True,
    ) -> None:
        """Reserve whole blocks for `num_columns`. `theirs`: index -> maker of a layer of
        transformers' own. Without `own_attention`, reads are what the layers hand out."""
        theirs = theirs or {}
        self.theirs = [(i, make()) for i, make in sorted(theirs.items())]
        self.slabs: list[Slab] = []
        self.own_attention = own_attention
        self.row_bytes_written = 0
        self.bytes_copied = 0  # rows that moved into a new slab or tensor: read once, written once
        self.bytes_handed = 0  # rows given to the model's attention
        self.state_bytes_before = 0  # of the states that each forward found, added up
        self.reads = RowReads()
        self._specs = layers
        alike: dict[LayerSpec, list[int]] = {}
        for i, layer in enumerate(layers):
            if i not in theirs:
                alike.setdefault(layer, []).append(i)
        placed = dict(self.theirs)
        for layer, indices in alike.items():
            slab = Slab(layer, len(indices), batch, num_columns, dtype, device)
            slab.columns = np.concatenate([_columns(layers, i) for i in indices])
            self.slabs.append(slab)
            placed |= dict(zip(indices, slab.layers, strict=True))
        super().__init__(layers=[placed[i] for i in range(len(layers))])

    @property
    def live_bytes(self) -> int:
        """Bytes of the rows and states in use, asked of the tensors. A row that has left its
        layer's window is not in use."""
        live = sum(slab.live_bytes for slab in self.slabs)
        return live + sum(t.nbytes for _, layer in self.theirs for t in held_tensors(layer))

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all storages behind the rows and states."""
        reserved = sum(slab.keys.nbytes + slab.values.nbytes for slab in self.slabs)
        tensors = [t for _, layer in self.theirs for t in held_tensors(layer)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return reserved + sum(storages.values())

    @property
    def bytes_read(self) -> int:
        """Bytes read so far: rows attended to, rows copied, and each state whole in each forward
        that found one."""
        attended = self.reads.num_bytes if self.own_attention else self.bytes_handed
        return attended + self.bytes_copied + self.state_bytes_before

    @property
    def bytes_written(self) -> int:
        """Bytes written so far: new rows, rows copied, and each state whole in each forward."""
        states = self.state_bytes_before + self._state_bytes()
        return self.row_bytes_written + self.bytes_copied + states

    def reserve(self, num_columns: int) -> None:
        """Make room for `num_columns` in all, before each forward that adds some."""
        self.state_bytes_before += self._state_bytes()
        for slab in self.slabs:
            self.bytes_copied += slab.make_room(num_columns)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a layer's new rows `[B, H, n, D]`; give those that attention is to read."""
        layer = self.layers[layer_idx]
        if not isinstance(layer, LayerRows):  # transformers' classes make all rows anew
            self.bytes_copied += _num_bytes(layer.keys) + _num_bytes(layer.values)
        keys, values = layer.update(key_states, value_states, *args, **kwargs)
        self.row_bytes_written += key_states.nbytes + value_states.nbytes
        self.bytes_handed += keys.nbytes + values.nbytes
        return keys, values

    def next_row(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values that one query reads in each layer, its own row included, which the
        caller is to write. Counted as written and read."""
        handed = [layer.extend(1) for layer in self.layers]
        for keys, values in handed:
            both = keys.nbytes + values.nbytes
            self.row_bytes_written += both // keys.shape[2]
            self.bytes_handed += both
            self.reads.add(keys, values)
        return handed

    def place(self, num_columns: int) -> None:
        """Say that `num_columns` have been seen, whatever stands in the rows: for probes."""
        for slab in self.slabs:
            slab.origin = max(0, num_columns + 1 - slab.keys.shape[3])
        for layer in self.layers:
            layer.length = num_columns

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """As `update`, of the rows by which a sparse layer chooses what to attend to."""
        self.bytes_copied += _num_bytes(self.layers[layer_idx].indexer_keys)
        keys = super().update_indexer(indexer_key_states, layer_idx)
        self.row_bytes_written += indexer_key_states.nbytes
        self.bytes_handed += keys.nbytes
        return keys

    def magnitudes(self, first: int, stop: int) -> np.ndarray:
        """L2 norms over the head's width of the newest columns `[first, stop)`, quantised as
        `events.MAGNITUDE_SCALE` says: uint8 `[2, B, columns, KV heads of all layers]`, K then V.
        """
        if len(self.slabs) == 1 and not self.theirs:
            return self.slabs[0].magnitudes(first, stop)
        parts = [(slab.columns, slab.magnitudes(first, stop)) for slab in self.slabs]
        for i, layer in self.theirs:
            if self._specs[i].num_kv_heads:
                parts.append((_columns(self._specs, i), _newest(layer, stop - first)))
        num_columns = sum(layer.num_kv_heads for layer in self._specs)
        out = np.zeros((*parts[0][1].shape[:3], num_columns), dtype=np.uint8)
        for columns, levels in parts:
            out[..., columns] = levels
        return out

    def _state_bytes(self) -> int:
        return sum(t.nbytes for _, layer in self.theirs for t in state_tensors(layer))


class Slab:
    """The rows of all layers of one size: keys `[L, B, H, capacity, D]`, values likewise.

    With a window the rows slide: once the slab is full the last ones move to the front of a new
    one. They stay in order and in one piece, so transformers' masks and views stay valid.
    """

    def __init__(
        self,
        layer: LayerSpec,
        num_layers: int,
        batch: int,
        num_columns: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self._spec = layer
        self._shape = (num_layers, batch, layer.num_kv_heads)
        self._like = {"dtype": dtype, "device": device}
        self.origin = 0  # the column that stands first in the slab
        self.columns = np.arange(num_layers * layer.num_kv_heads)  # of the matrix
        self.layers = [LayerRows(self) for _ in range(num_layers)]
        self._allocate(slab_columns(layer, num_columns))

    @property
    def length(self) -> int:
        """Columns seen: every layer has as many after a forward."""
        return self.layers[-1].length

    @property
    def live_bytes(self) -> int:
        stop = self.length - self.origin
        live = slice(stop - self._spec.num_kept(self.length), stop)
        return self.keys[:, :, :, live].nbytes + self.values[:, :, :, live].nbytes

    def make_room(self, num_columns: int) -> int:
        """Hold `num_columns` in all. Gives the bytes that had to be copied."""
        if num_columns - self.origin <= self.keys.shape[3]:
            return 0
        kept = self._spec.num_kept(self.length)
        stop = self.length - self.origin
        old = [t[:, :, :, stop - kept : stop] for t in (self.keys, self.values)]
        self.origin = self.length - kept
        slack = 0 if self._spec.window is None else BLOCK_LEN // 2  # to slide in
        self._allocate(block_columns(num_columns - self.origin + slack))
        self.keys[:, :, :, :kept], self.values[:, :, :, :kept] = old
        return sum(part.nbytes for part in old)

    def magnitudes(self, first: int, stop: int) -> np.ndarray:
        """See `Rows.magnitudes`; of the columns of this slab's layers. Rows that have slid out of
        the slab are 0."""
        start = max(first, self.origin)
        where = start - self.origin, stop - self.origin
        if self._compiled:
            levels = build.levels(self.keys, self.values, *where).numpy()
        else:
            both = (self.keys[:, :, :, slice(*where)], self.values[:, :, :, slice(*where)])
            levels = _levels(np.stack([_norms(t) for t in both]))
        return (
            np.pad(levels, ((0, 0), (0, 0), (start - first, 0), (0, 0)))
            if start > first
            else levels
        )

    def _allocate(self, capacity: int) -> None:
        self.keys = torch.empty((*self._shape, capacity, self._spec.key_dim), **self._like)
        self.values = torch.empty((*self._shape, capacity, self._spec.value_dim), **self._like)
        self._compiled = build.takes_rows(self.keys, self.values, None)
        for index, layer in enumerate(self.layers):
            layer.keys, layer.values = self.keys[index], self.values[index]


class LayerRows(CacheLayerMixin):
    """One layer's view of its slab, as transformers' modelling code wants it."""

    def __init__(self, slab: Slab) -> None:
        super().__init__()
        self.slab = slab
        self.window = slab._spec.window
        self.is_sliding = self.window is not None
        self.length = 0  # columns seen, those that have left the window too
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the slab is there before the first row."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[B, H, n, D]` behind the rows there are; give all that the new queries see, as
        views."""
        num_new = key_states.shape[2]
        keys, values = self.extend(num_new)
        keys[:, :, -num_new:], values[:, :, -num_new:] = key_states, value_states
        return keys, values

    def extend(self, num_new: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All rows that `num_new` new queries see, their own included, which are yet to be
        written; as views."""
        first = self.length - self.slab.origin
        rows = slice(first - self._kept(), first + num_new)
        self.length += num_new
        return self.keys[:, :, rows], self.values[:, :, rows]

    def _kept(self) -> int:
        return self.length if self.window is None else min(self.length, self.window - 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that the next `update` gives, and the column of the first of them."""
        kept = self._kept()
        return kept + query_length, self.length - kept

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window


def held_tensors(layer: object) -> Iterator[torch.Tensor]:
    """What a layer of transformers' own class keeps: K, V, indexer keys, states."""
    for value in vars(layer).values():
        for tensor in value.values() if isinstance(value, dict) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                yield tensor


def state_tensors(layer: object) -> list[torch.Tensor]:
    """What of that is neither K nor V nor indexer keys."""
    rows = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
    return [t for t in held_tensors(layer) if not any(t is row for row in rows)]


def _columns(layers: Sequence[LayerSpec], index: int) -> np.ndarray:
    """Columns of the matrix that stand for a layer."""
    first = sum(layer.num_kv_heads for layer in layers[:index])
    return np.arange(first, first + layers[index].num_kv_heads)


def _norms(rows: torch.Tensor) -> np.ndarray:
    """float32 `[B, n, L * H]` of rows `[L, B, H, n, D]`."""
    wide = rows.float()  # [L, B, H, n, D]
    norms = (wide * wide).sum(-1).sqrt_()  # a fifth of vector_norm's time
    return norms.permute(1, 3, 0, 2).flatten(2).cpu().numpy()


_LEAST = np.float32(1e-12)  # far below level 1, so that log2 has no 0


def _levels(norms: np.ndarray) -> np.ndarray:
    """uint8 of the same shape. In numpy, and few calls: after a step their code is cold."""
    levels = np.rint(128 + 12 * np.log2(np.maximum(norms, _LEAST)))
    return (np.minimum(np.maximum(levels, 1), 255) * (norms > 0)).astype(np.uint8)


def _newest(layer: object, num: int) -> np.ndarray:
    """Levels `[2, B, num, H]` of the newest rows of transformers' own layer. It may have dropped
    the first of them; those are 0."""
    both = [_levels(_norms(t[None, :, :, -num:])) for t in (layer.keys, layer.values)]
    return np.stack([np.pad(t, ((0, 0), (num - t.shape[1], 0), (0, 0))) for t in both])


def _num_bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.nbytes
