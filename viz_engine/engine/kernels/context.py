"""What the kernels are told of the forward that is on, and what they tell of it.

A forward passes through the model's own code, which hands on what it knows and no more: so it is
entered here, once for each, and the attention asks for it. It knows nothing of models or caches.

Try it: tests/engine/kernels/test_context.py
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


class RowReads:
    """Bytes of K and V that attention has read. A layer that reads another's rows counts them
    again; of latents the expanded keys and values count, which is what attention reads."""

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes


class Capture:
    """The attention weights of one layer and query head, taken in a forward that asks for them.

    It costs a product more: never inside a timed span. `weights` are then those of the last
    `most_queries` queries of the first sequence: float32 `[queries, rows]`, each summing to 1.
    """

    __slots__ = ("layer", "most_queries", "query_head", "weights")

    def __init__(self, layer: int, query_head: int, most_queries: int) -> None:
        self.layer = layer
        self.query_head = query_head
        self.most_queries = most_queries
        self.weights: torch.Tensor | None = None

    def take(self, query: torch.Tensor, key: torch.Tensor, scaling: float | None) -> None:
        """`query` `[B, Hq, T, D]`, `key` `[B, Hkv, S, D]` of the layer: a causal softmax, written
        out."""
        num_new, num_rows = query.shape[2], key.shape[2]
        first = max(0, num_new - self.most_queries)
        queries = query[0, self.query_head, first:].float()  # [n, D]
        keys = key[0, self.query_head // (query.shape[1] // key.shape[1])].float()  # [S, D]
        scores = queries @ keys.T * (query.shape[3] ** -0.5 if scaling is None else scaling)
        seen = torch.ones_like(scores, dtype=torch.bool).tril(num_rows - num_new + first)
        self.weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One forward of the model."""

    reads: RowReads | None = None  # counts what attention reads
    compiled: bool = False  # queries read the rows with the custom kernel
    # What several queries read is upcast to float32, which is exact: some processors multiply
    # faster in it. The rows stay as they are.
    upcast: bool = False
    capture: Capture | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The forward inside is this one. A forward has no other inside it."""
        global _on
        assert _on is NONE, "a forward inside a forward"
        _on = self
        try:
            yield
        finally:
            _on = NONE


NONE = Forward()  # outside of any: nothing is counted, torch multiplies
_on = NONE


def current() -> Forward:
    """The forward that is on."""
    return _on
