"""Which kernels a model's forwards use: matmul, attention, norms. Each is measured, and has its
reason.

Who makes a forward enters `prefill` or `decode`, in Python or traced alike, so they use the same
ones. It knows nothing of caches or runs.

Try it: tests/engine/kernels/test_backend.py
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch

from viz_engine.engine.kernels import attention, linear, norm
from viz_engine.engine.kernels.context import Capture, Forward, RowReads
from viz_engine.model.spec import ModelSpec
from viz_engine.run.events import EnginePart


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What was chosen for one model."""

    compiled_decode: bool = False  # one query reads its rows with the custom kernel
    compiled_prefill: bool = False  # several do
    upcast_prefill: bool = False  # what several queries read, to float32
    onednn_off_for_one_token: bool = False
    parts: tuple[EnginePart, ...] = ()

    @classmethod
    def choose(
        cls, network: torch.nn.Module, spec: ModelSpec, device: str, dtype: torch.dtype
    ) -> Self:
        """Measure, and give the layers of `network` the faster kernels. Its attention is set."""
        matmuls = linear.choose(network, device, dtype)
        norms = norm.choose(network, device, dtype)
        heads = [(a.num_kv_heads, a.key_dim, a.value_dim) for a in spec.layers if a.num_kv_heads]
        reading = attention.choose(
            spec.num_query_heads,
            max(heads, key=heads.count, default=(0, 0, 0)),  # of most layers
            device,
            dtype,
            network.config._attn_implementation == attention.ATTENTION,
            matmuls.prefill_in_float32,
        )
        return cls(
            compiled_decode=reading[0].on,
            compiled_prefill=reading[1].on,
            upcast_prefill=matmuls.prefill_in_float32,
            onednn_off_for_one_token=matmuls.onednn_off_for_one_token,
            parts=(*reading, norms, *matmuls.parts),
        )

    @contextmanager
    def prefill(
        self, *, reads: RowReads | None = None, capture: Capture | None = None
    ) -> Iterator[None]:
        """The forward inside is fed several tokens of each sequence."""
        on = Forward(
            reads=reads,
            compiled=self.compiled_prefill,
            upcast=self.upcast_prefill,
            capture=capture,
        )
        with on.entered():
            yield

    @contextmanager
    def decode(
        self, batch: int, *, reads: RowReads | None = None, capture: Capture | None = None
    ) -> Iterator[None]:
        """The forward inside is fed one token of each of `batch` sequences."""
        on = Forward(reads=reads, compiled=self.compiled_decode, capture=capture)
        off = batch == 1 and self.onednn_off_for_one_token
        with on.entered(), linear.onednn(not off):
            yield
