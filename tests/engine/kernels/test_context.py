"""The forward that is on: entered once, asked by the attention, gone afterwards."""

from types import SimpleNamespace

import pytest
import torch

from viz_engine.engine.kernels import attention, context

LAYER = SimpleNamespace(layer_idx=1)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def test_outside_of_a_forward_nothing_is_counted() -> None:
    assert context.current() is context.NONE and context.NONE.reads is None
    attention.row_attention(LAYER, rows(1, 4, 1, 8), rows(1, 2, 5, 8), rows(1, 2, 5, 8), None)


def test_a_forward_inside_a_forward_is_refused() -> None:
    with context.Forward().entered(), pytest.raises(AssertionError, match="inside a forward"):
        with context.Forward().entered():
            pass
    assert context.current() is context.NONE


def test_a_forward_that_raises_is_over() -> None:
    with pytest.raises(RuntimeError), context.Forward(upcast=True).entered():
        assert context.current().upcast
        raise RuntimeError
    assert context.current() is context.NONE


def test_reads_are_those_of_this_forward() -> None:
    reads = context.RowReads()
    query, key, value = rows(1, 4, 1, 8), rows(1, 2, 5, 8), rows(1, 2, 5, 8)
    with context.Forward(reads=reads).entered():
        attention.row_attention(LAYER, query, key, value, None)
    attention.row_attention(LAYER, query, key, value, None)
    assert reads.num_bytes == key.nbytes + value.nbytes


def test_weights_are_captured_of_the_layer_and_head_asked_for() -> None:
    query, key, value = rows(1, 4, 3, 8), rows(1, 2, 6, 8), rows(1, 2, 6, 8)
    mask = torch.ones(3, 6, dtype=torch.bool).tril(3)[None, None]
    capture = context.Capture(layer=1, query_head=2, most_queries=2)
    with context.Forward(capture=capture).entered():
        attention.row_attention(SimpleNamespace(layer_idx=0), query, key, value, mask)
        assert capture.weights is None
        out, _ = attention.row_attention(LAYER, query, key, value, mask)
    assert capture.weights.shape == (2, 6) and capture.weights[0, 5] == 0
    assert torch.allclose(capture.weights @ value[0, 1], out[0, 1:, 2], atol=1e-6)
