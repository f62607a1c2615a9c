"""The rows of all layers of one size: what is stored, in which format, how it is read.

`Slab` stores rows as they are computed. Another way to keep them is one subclass: a format says
`empty`, `store` and `read` anew, an eviction `settle`. Reserving, growing, sliding, rollback, reuse
and the counts work on whatever tensors a slab has. It knows nothing of models, steps or pictures.

Try it: tests/engine/cache/test_slab.py; test_stores.py there shows two stores of another kind
"""

from typing import Self

import torch

from viz_engine.engine.kernels.attention import Rows, dense
from viz_engine.model.spec import LayerSpec
from viz_engine.run.cost import BLOCK_LEN, block_columns, slab_columns

Tensors = tuple[torch.Tensor, ...]  # of a slab, or the same rows of each; rows are dimension -2


class Slab:
    """Keys `[L, B, H, capacity, D]`, values likewise: the tensors of a slab.

    Positions of the padded batch stand in a slab in order and without gaps, so transformers' masks
    and views stay valid. With a window they slide: once the slab is full the last ones move to the
    front of a new one.
    """

    hands_tensors = True  # what `read` gives is a tensor, which any model's code can take

    def __init__(
        self,
        layer: LayerSpec,
        num_layers: int,
        batch: int,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """Reserve whole blocks for `num_positions`."""
        self.spec = layer
        self.shape = (num_layers, batch, layer.num_kv_heads)
        self.dtype, self.device = dtype, device
        self.origin = 0  # positions that stand no longer in the slab: they are before the first row
        self.lengths = [0] * num_layers  # positions seen; a forward feeds layer after layer
        self.bytes_read = 0  # to move rows: what attention reads is counted where it reads
        self.bytes_written = 0
        self._allocate(slab_columns(layer, num_positions))

    # --- the format: all that a store of another one says anew ------------------------------

    def empty(self, capacity: int) -> Tensors:
        """Room for so many rows. Each tensor is `[L, B, H, rows, ...]`."""
        like = {"dtype": self.dtype, "device": self.device}
        widths = self.spec.key_dim, self.spec.value_dim
        return tuple(torch.empty((*self.shape, capacity, width), **like) for width in widths)

    @staticmethod
    def store(places: Tensors, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write new rows `[..., H, n, D]` into the places that `newest` gave for them. Static, as
        `read` is: a traced step calls them on tensors that it is handed."""
        places[0].copy_(keys)
        places[1].copy_(values)

    @staticmethod
    def read(rows: Tensors) -> tuple[Rows, Rows]:
        """K and V `[..., H, n, D]`, as attention is to read these rows."""
        return rows[0], rows[1]

    @staticmethod
    def newest(rows: Tensors, num: int) -> Tensors:
        """The places of the last `num` rows."""
        return tuple(t[..., -num:, :] for t in rows)

    @staticmethod
    def shorter(rows: Tensors) -> Tensors:
        """The same rows without the first, as a step with a shorter context has them."""
        return tuple(t[..., 1:, :] for t in rows)

    @staticmethod
    def num_rows(rows: Tensors) -> int:
        return rows[0].shape[-2]

    def settle(self) -> None:
        """Put the rows in order after a forward, within its time: a store that drops or repacks
        rows does it here. Here nothing is to do."""

    # --- what stands in it ------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Positions seen: every layer has as many after a forward."""
        return self.lengths[-1]

    @property
    def capacity(self) -> int:
        return self.tensors[0].shape[3]

    @property
    def live_bytes(self) -> int:
        """Bytes of the rows that the next query reads."""
        stop = self.length - self.origin
        return sum(t.nbytes for t in self._places(stop - self.num_kept(self.length), stop))

    @property
    def reserved_bytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    def num_kept(self, length: int) -> int:
        """Rows that the next query reads besides its own, after `length` positions."""
        return min(length - self.origin, self.spec.num_kept(length))

    def reserve(self, num_positions: int) -> None:
        """Make room for `num_positions` in all."""
        if num_positions - self.origin <= self.capacity:
            return
        kept = self.num_kept(self.length)
        stop = self.length - self.origin
        old = self._places(stop - kept, stop)
        self.origin = self.length - kept
        slack = 0 if self.spec.window is None else BLOCK_LEN // 2  # to slide in
        self._allocate(block_columns(num_positions - self.origin + slack))
        self._move(old, self._places(0, kept))

    def append(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[Rows, Rows]:
        """Store the new rows `[B, H, n, D]` of layer `index` of the slab behind those there are;
        give all that the new queries read."""
        num_new = keys.shape[2]
        length = self.lengths[index]
        stop = length - self.origin + num_new
        first = stop - num_new - self.num_kept(length)
        rows = tuple(t[:, :, first:stop] for t in self._layers[index])
        places = self.newest(rows, num_new)
        self.store(places, keys, values)
        self.bytes_written += sum(t.nbytes for t in places)
        self.lengths[index] = length + num_new
        return self.read(rows)

    def next_row(self) -> list[Tensors]:
        """For each layer the rows that one new query reads, its own last, which the caller is to
        `store`. Counted as written."""
        stop = self.length - self.origin + 1
        rows = self._places(stop - 1 - self.num_kept(self.length), stop)
        self.bytes_written += sum(t.nbytes for t in self.newest(rows, 1))
        self.lengths = [length + 1 for length in self.lengths]
        return list(zip(*(t.unbind(0) for t in rows), strict=True))  # a third of slicing's time

    def check_holds(self, num_positions: int) -> None:
        """Raises ValueError where not all rows are there that the query behind the first
        `num_positions` reads: they have not been seen yet, or have slid out of the slab."""
        first = num_positions - self.spec.num_kept(num_positions)
        if not 0 <= num_positions <= self.length or first < self.origin:
            raise ValueError(f"of {self.length} positions the first {num_positions} are not held")

    def truncate(self, num_positions: int) -> None:
        """Roll back to the first `num_positions`: the next row takes the place behind them. Raises
        ValueError where `check_holds` does."""
        self.check_holds(num_positions)
        self.lengths = [num_positions] * len(self.lengths)

    def copy_from(self, other: Self, num_positions: int) -> None:
        """Take the first `num_positions` of a slab of as many layers, of one sequence or as many
        as here, in place of all that is here. Raises ValueError where `check_holds` does."""
        other.check_holds(num_positions)
        kept = other.num_kept(num_positions)
        stop = num_positions - other.origin
        self.origin = num_positions - kept
        self.lengths = [num_positions] * len(self.lengths)
        self._move(other._places(stop - kept, stop), self._places(0, kept))

    def peek(self, first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[L, B, H, n, D]` of the positions `[first, stop)`, which are in the slab: what
        attention would see. Not counted: nobody attends to them."""
        keys, values = self.read(self._places(first - self.origin, stop - self.origin))
        return dense(keys), dense(values)

    # --- for trials -------------------------------------------------------------------------

    def fill(self, rng: torch.Generator) -> None:
        """Random numbers in all rows."""
        like = {"generator": rng, "dtype": self.dtype, "device": self.device}
        widths = self.spec.key_dim, self.spec.value_dim
        sizes = [(*self.shape, self.capacity, width) for width in widths]
        self.store(self.tensors, *(torch.randn(size, **like) for size in sizes))

    def place(self, num_positions: int) -> None:
        """Say that `num_positions` have been seen, whatever stands in the rows."""
        self.origin = max(0, num_positions + 1 - self.capacity)
        self.lengths = [num_positions] * len(self.lengths)

    def _places(self, first: int, stop: int) -> Tensors:
        return tuple(t[:, :, :, first:stop] for t in self.tensors)

    def _move(self, old: Tensors, new: Tensors) -> None:
        for source, target in zip(old, new, strict=True):
            target.copy_(source)
            self.bytes_read += source.nbytes
            self.bytes_written += target.nbytes

    def _allocate(self, capacity: int) -> None:
        self.tensors = self.empty(capacity)
        self._layers = list(zip(*(t.unbind(0) for t in self.tensors), strict=True))
