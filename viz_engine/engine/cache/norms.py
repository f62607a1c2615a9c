"""What the picture samples of a cache: L2 norms of its rows. Looking is not keeping.

A norm is over a head's width, in steps of a twelfth of an octave (`events.MAGNITUDE_SCALE`), 0 for
a row that is not there. It knows nothing of steps or records, and counts nothing.

Try it: tests/engine/cache/test_norms.py
"""

import numpy as np
import torch

from viz_engine.engine.cache.cache import KVCache
from viz_engine.engine.cache.slab import Slab
from viz_engine.engine.kernels import build

_LEAST = np.float32(1e-12)  # far below level 1, so that log2 has no 0


def sample(cache: KVCache, first: int, stop: int) -> np.ndarray:
    """Of the newest positions `[first, stop)`: uint8 `[2, B, positions, KV heads of all layers]`, K
    then V."""
    if len(cache.slabs) == 1 and not cache.hf_layers:
        (slab,) = cache.slabs.values()
        return of_slab(slab, first, stop)
    parts = [(indices, of_slab(slab, first, stop)) for indices, slab in cache.slabs.items()]
    for i, layer in cache.hf_layers:
        if cache.specs[i].num_kv_heads:
            parts.append(((i,), _newest(layer, stop - first)))
    stops = np.cumsum([layer.num_kv_heads for layer in cache.specs])
    out = np.zeros((*parts[0][1].shape[:3], stops[-1]), dtype=np.uint8)
    for indices, levels in parts:
        cells = [np.arange(stops[i] - cache.specs[i].num_kv_heads, stops[i]) for i in indices]
        out[..., np.concatenate(cells)] = levels
    return out


def of_slab(slab: Slab, first: int, stop: int) -> np.ndarray:
    """The same of the slab's layers. Rows that have slid out of the slab are 0."""
    start = max(first, slab.origin)
    keys, values = slab.peek(start, stop)
    if build.takes_rows(keys, values, None):
        levels = build.levels(keys, values, 0, stop - start).numpy()
    else:
        levels = _levels(np.stack([_norms(keys), _norms(values)]))
    if start == first:
        return levels
    return np.pad(levels, ((0, 0), (0, 0), (start - first, 0), (0, 0)))


def _newest(layer: object, num: int) -> np.ndarray:
    """`[2, B, num, H]` of the newest rows of transformers' own layer. It may have dropped the first
    of them."""
    both = [_levels(_norms(t[None, :, :, -num:])) for t in (layer.keys, layer.values)]
    return np.stack([np.pad(t, ((0, 0), (num - t.shape[1], 0), (0, 0))) for t in both])


def _norms(rows: torch.Tensor) -> np.ndarray:
    """float32 `[B, n, L * H]` of rows `[L, B, H, n, D]`."""
    wide = rows.float()  # [L, B, H, n, D]
    norms = (wide * wide).sum(-1).sqrt_()  # a fifth of vector_norm's time
    return norms.permute(1, 3, 0, 2).flatten(2).cpu().numpy()


def _levels(norms: np.ndarray) -> np.ndarray:
    """uint8 of the same shape. In numpy, and few calls: after a step their code is cold."""
    levels = np.rint(128 + 12 * np.log2(np.maximum(norms, _LEAST)))
    return (np.minimum(np.maximum(levels, 1), 255) * (norms > 0)).astype(np.uint8)
