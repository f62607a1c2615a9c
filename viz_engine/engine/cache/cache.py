"""What a run keeps from token to token, as a transformers cache.

Layers that keep a row a position (all of them, the last ones of a window, latents) are views of
slabs, one for all layers of a size; every other layer is of transformers' own class. The cache adds
up what these hold, write and move; `RowReads` counts what attention reads. How rows are stored is
the slab's affair. It knows nothing of prompts, steps or time.

Try it: tests/engine/test_bytes.py drives it without a real model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from viz_engine.engine.cache.slab import Slab, Tensors
from viz_engine.engine.kernels.attention import Rows
from viz_engine.engine.kernels.context import RowReads
from viz_engine.model.spec import LayerSpec

# How a run with this cache policy stores its rows: another policy is a class and a line.
STORES: dict[str, type[Slab]] = {"full": Slab}


class KVCache(Cache):
    """All that a run keeps. Positions (of the padded batch) are reserved in blocks."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        *,
        batch: int,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
        store: type[Slab] = Slab,
        hf_layers: Mapping[int, Callable[[], object]] | None = None,
        own_attention: bool = True,
    ) -> None:
        """Reserve whole blocks for `num_positions`. `hf_layers`: index -> maker of a layer of
        transformers' own. Without `own_attention`, reads are what the layers hand out."""
        hf_layers = hf_layers or {}
        self.hf_layers = [(i, make()) for i, make in sorted(hf_layers.items())]
        self.slabs: dict[tuple[int, ...], Slab] = {}  # by the layers whose rows they hold
        self.own_attention = own_attention
        self.device = device
        self.specs = layers
        self.reads = RowReads()
        self.bytes_handed = 0  # rows given to the model's attention
        self.hf_row_bytes = 0  # of new rows in transformers' own layers
        self.hf_bytes_copied = 0  # their rows that moved into a new tensor: read and written once
        self.state_bytes_before = 0  # of the states that each forward found, added up
        of_a_size: dict[LayerSpec, list[int]] = {}
        for i, layer in enumerate(layers):
            if i not in hf_layers:
                of_a_size.setdefault(layer, []).append(i)
        placed: dict[int, object] = dict(self.hf_layers)
        for layer, indices in of_a_size.items():
            slab = store(layer, len(indices), batch, num_positions, dtype, device)
            self.slabs[tuple(indices)] = slab
            placed |= {i: LayerCache(slab, at) for at, i in enumerate(indices)}
        super().__init__(layers=[placed[i] for i in range(len(layers))])

    @property
    def live_bytes(self) -> int:
        """Bytes of the rows and states in use, asked of the tensors. A row that has left its
        layer's window is not in use."""
        live = sum(slab.live_bytes for slab in self.slabs.values())
        return live + sum(t.nbytes for _, layer in self.hf_layers for t in held_tensors(layer))

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all storages behind the rows and states."""
        reserved = sum(slab.reserved_bytes for slab in self.slabs.values())
        tensors = [t for _, layer in self.hf_layers for t in held_tensors(layer)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return reserved + sum(storages.values())

    @property
    def bytes_read(self) -> int:
        """Bytes read so far: rows attended to, rows moved, and each state whole in each forward
        that found one."""
        attended = self.reads.num_bytes if self.own_attention else self.bytes_handed
        moved = sum(slab.bytes_read for slab in self.slabs.values()) + self.hf_bytes_copied
        return attended + moved + self.state_bytes_before

    @property
    def bytes_written(self) -> int:
        """Bytes written so far: new rows, rows moved, and each state whole in each forward."""
        rows = sum(slab.bytes_written for slab in self.slabs.values())
        states = self.state_bytes_before + self._state_bytes()
        return rows + self.hf_row_bytes + self.hf_bytes_copied + states

    def reserve(self, num_positions: int) -> None:
        """Make room for `num_positions` in all, before each forward that adds some."""
        self.state_bytes_before += self._state_bytes()
        for slab in self.slabs.values():
            slab.reserve(num_positions)

    def settle(self) -> None:
        """Put the rows in order, after each forward and within its time."""
        for slab in self.slabs.values():
            slab.settle()

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Rows, Rows]:
        """Take a layer's new rows `[B, H, n, D]`; give those that attention is to read."""
        layer = self.layers[layer_idx]
        if not isinstance(layer, LayerCache):  # transformers' classes make all rows anew
            self.hf_bytes_copied += _num_bytes(layer.keys) + _num_bytes(layer.values)
            self.hf_row_bytes += key_states.nbytes + value_states.nbytes
        keys, values = layer.update(key_states, value_states, *args, **kwargs)
        self.bytes_handed += keys.nbytes + values.nbytes
        return keys, values

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """As `update`, of the rows by which a sparse layer chooses what to attend to."""
        self.hf_bytes_copied += _num_bytes(self.layers[layer_idx].indexer_keys)
        keys = super().update_indexer(indexer_key_states, layer_idx)
        self.hf_row_bytes += indexer_key_states.nbytes
        self.bytes_handed += keys.nbytes
        return keys

    def next_row(self) -> list[tuple[type[Slab], Tensors]]:
        """For each layer its store and the rows that one query reads, its own included, which the
        caller is to write. Counted as written and read. All layers must be in slabs."""
        handed: dict[int, tuple[type[Slab], Tensors]] = {}
        for indices, slab in self.slabs.items():
            rows = slab.next_row()
            num_bytes = len(rows) * sum(t.nbytes for t in rows[0])
            self.bytes_handed += num_bytes
            self.reads.add(num_bytes)
            handed |= {i: (type(slab), of_layer) for i, of_layer in zip(indices, rows, strict=True)}
        return [handed[i] for i in range(len(self.layers))]

    def truncate(self, num_positions: int) -> None:
        """Roll back to the first `num_positions`, as if the later ones had never been. Raises
        ValueError, and changes nothing, where that cannot be."""
        self._check_in_slabs()
        for slab in self.slabs.values():
            slab.check_holds(num_positions)
        for slab in self.slabs.values():
            slab.truncate(num_positions)

    def copy_from(self, other: "KVCache", num_positions: int) -> None:
        """Take the first `num_positions` of another cache of this model, of one sequence or of as
        many as here, in place of all that is here: what has been read need not be read again.
        Raises ValueError, and changes nothing, where that cannot be."""
        self._check_in_slabs()
        for slab in other.slabs.values():
            slab.check_holds(num_positions)
        for indices, slab in self.slabs.items():
            slab.copy_from(other.slabs[indices], num_positions)

    def peek(self, first: int, stop: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """K and V `[B, H, n, D]` of the positions `[first, stop)` in each layer, as attention would
        see them; not counted. All layers must be in slabs."""
        seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for indices, slab in self.slabs.items():
            seen |= dict(zip(indices, zip(*slab.peek(first, stop), strict=True), strict=True))
        return [seen[i] for i in range(len(self.layers))]

    def place(self, num_positions: int) -> None:
        """Say that `num_positions` have been seen, whatever stands in the rows: for trials."""
        for slab in self.slabs.values():
            slab.place(num_positions)

    def _check_in_slabs(self) -> None:
        if any(True for _, layer in self.hf_layers for _ in held_tensors(layer)):
            raise ValueError("what transformers' own layers keep cannot be taken back or copied")

    def _state_bytes(self) -> int:
        return sum(t.nbytes for _, layer in self.hf_layers for t in state_tensors(layer))


class LayerCache(CacheLayerMixin):
    """One layer's view of its slab, as transformers' modelling code wants it."""

    def __init__(self, slab: Slab, index: int) -> None:
        super().__init__()
        self.slab = slab
        self.index = index  # among the slab's layers
        self.is_sliding = slab.spec.window is not None
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the slab is there before the first row."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[Rows, Rows]:
        """Store `[B, H, n, D]` behind the rows there are; give all that the new queries see."""
        return self.slab.append(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that the next `update` gives, and the position of the first of them."""
        length = self.get_seq_length()
        kept = self.slab.num_kept(length)
        return kept + query_length, length - kept

    def get_seq_length(self) -> int:
        """Positions seen, those that have left the window too."""
        return self.slab.lengths[self.index]

    def get_max_length(self) -> int:
        return -1 if self.slab.spec.window is None else self.slab.spec.window


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


def _num_bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.nbytes
