"""Rollback and reuse: a slab that went back, or took over another's rows, is as one that only ever
had those rows; what it hands out is what transformers' own cache has."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from viz_engine.engine import generate
from viz_engine.engine.cache.cache import KVCache
from viz_engine.engine.cache.slab import Slab
from viz_engine.engine.load import Loaded
from viz_engine.model.spec import LayerSpec
from viz_engine.run.cost import BLOCK_LEN

HEADS, WIDTH, BATCH = 2, 4, 2
FULL = LayerSpec(num_kv_heads=HEADS, key_dim=WIDTH, value_dim=WIDTH)
WINDOW = LayerSpec(num_kv_heads=HEADS, key_dim=WIDTH, value_dim=WIDTH, kind="sliding", window=40)
TOLERANCE = 1e-4

# Rows to append, or (negative) to go back by. Large ones cross blocks, and slide a window.
STEPS = st.lists(
    st.one_of(st.integers(1, 8), st.integers(200, 300), st.integers(-20, -1)), max_size=14
)


def rows_of(num: int, seed: int) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, HEADS, num, WIDTH, generator=dice)


def new_slab(layer: LayerSpec) -> Slab:
    return Slab(layer, 1, BATCH, 1, torch.float32, "cpu")


def append(slab: Slab, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    slab.reserve(slab.length + rows.shape[2])
    return slab.append(0, rows, -rows)


def played(slab: Slab, steps: list[int]) -> torch.Tensor:
    """Rows `[B, H, n, D]` that stay when `steps` are done, those gone back by left out."""
    kept = torch.empty(BATCH, HEADS, 0, WIDTH)
    for seed, num in enumerate(steps):
        if num > 0:
            new = rows_of(num, seed)
            kept = torch.cat([kept, new], dim=2)
            append(slab, new)
            continue
        length = max(slab.length + num, 0)
        try:
            slab.truncate(length)
        except ValueError:  # those rows have left the slab
            assert slab.spec.window is not None
            continue
        kept = kept[:, :, :length]
    return kept


@pytest.mark.parametrize("layer", [FULL, WINDOW], ids=["full", "window"])
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_rows_gone_back_by_leave_no_trace(layer: LayerSpec, steps: list[int]) -> None:
    slab, straight = new_slab(layer), new_slab(layer)
    kept = played(slab, steps)
    append(straight, kept) if kept.shape[2] else None
    assert slab.length == straight.length == kept.shape[2]
    assert slab.live_bytes == straight.live_bytes
    new = rows_of(3, 99)
    for ours, theirs in zip(append(slab, new), append(straight, new), strict=True):
        assert torch.equal(ours, theirs)
    seen = torch.cat([kept[:, :, kept.shape[2] - layer.num_kept(kept.shape[2]) :], new], dim=2)
    assert torch.equal(append_nothing_more(slab, 3), seen)


def append_nothing_more(slab: Slab, num_new: int) -> torch.Tensor:
    """Keys of the rows that the last `num_new` queries read."""
    stop = slab.length - slab.origin
    kept = slab.spec.num_kept(slab.length - num_new)
    return slab.tensors[0][0, :, :, stop - num_new - kept : stop]


@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_a_full_slab_hands_out_what_a_dynamic_layer_has(steps: list[int]) -> None:
    slab, theirs = new_slab(FULL), DynamicLayer()
    for seed, num in enumerate(steps):
        if num > 0:
            rows = rows_of(num, seed)
            ours, expected = append(slab, rows), theirs.update(rows, -rows)
            assert all(map(torch.equal, ours, expected))
        elif slab.length:
            num = max(num, 1 - slab.length)
            slab.truncate(slab.length + num)
            theirs.crop(num)
    assert slab.length == (theirs.get_seq_length() if steps and slab.length else slab.length)


@given(steps=st.lists(st.one_of(st.integers(1, 8), st.integers(30, 300)), max_size=14))
@settings(max_examples=60, deadline=None)
def test_a_window_hands_out_what_a_dynamic_window_has(steps: list[int]) -> None:
    slab, theirs = new_slab(WINDOW), DynamicSlidingWindowLayer(WINDOW.window)
    for seed, num in enumerate(steps):
        rows = rows_of(num, seed)
        for ours, expected in zip(append(slab, rows), theirs.update(rows, -rows), strict=True):
            assert torch.equal(ours, expected)
        assert slab.live_bytes == theirs.keys.nbytes + theirs.values.nbytes


@pytest.mark.parametrize("layer", [FULL, WINDOW], ids=["full", "window"])
@given(steps=STEPS, back=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_a_copied_prefix_is_as_if_it_had_been_read(
    layer: LayerSpec, steps: list[int], back: int
) -> None:
    source, straight = new_slab(layer), new_slab(layer)
    kept = played(source, steps)
    length = max(kept.shape[2] - back, 0)
    slab = Slab(layer, 1, BATCH, max(length, 1), torch.float32, "cpu")
    try:
        slab.copy_from(source, length)
    except ValueError:
        assert layer.window is not None
        return
    append(straight, kept[:, :, :length]) if length else None
    assert slab.live_bytes == straight.live_bytes == slab.bytes_written == slab.bytes_read
    new = rows_of(2, 7)
    for ours, theirs in zip(append(slab, new), append(straight, new), strict=True):
        assert torch.equal(ours, theirs)


def test_one_sequence_is_copied_into_each_of_a_batch() -> None:
    source = Slab(FULL, 3, 1, 5, torch.float32, "cpu")
    source.fill(torch.Generator().manual_seed(1))
    source.place(5)
    slab = Slab(FULL, 3, 4, 6, torch.float32, "cpu")
    slab.copy_from(source, 5)
    assert slab.bytes_written == 4 * slab.bytes_read
    for rows, one in zip(slab.peek(0, 5), source.peek(0, 5), strict=True):
        assert torch.equal(rows, one.expand(3, 4, HEADS, 5, WIDTH))


def test_what_is_not_held_is_refused_and_nothing_changes() -> None:
    slab = new_slab(WINDOW)
    append(slab, rows_of(300, 1)), append(slab, rows_of(300, 2))  # the first rows have slid out
    assert slab.origin > 0
    before = slab.length, slab.bytes_read, slab.bytes_written
    for length in (-1, slab.origin, 601):
        with pytest.raises(ValueError, match=f"of 600 positions the first {length} are not held"):
            slab.truncate(length)
    other = new_slab(WINDOW)
    with pytest.raises(ValueError, match="not held"):
        other.copy_from(slab, 50)
    assert before == (slab.length, slab.bytes_read, slab.bytes_written) and other.length == 0


# --- with a model ------------------------------------------------------------------------------


def forward(loaded: Loaded, cache: KVCache, ids: list[int]) -> torch.Tensor:
    """Logits after `ids`, which are read at once behind what is in the cache."""
    first = cache.get_seq_length()
    cache.reserve(first + len(ids))
    positions = torch.arange(first, first + len(ids))[None]
    return generate.forward(loaded, torch.tensor([ids]), positions, None, cache)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_rejected_drafts_leave_the_models_numbers_as_they_were(
    tiny: Callable[..., Loaded], family: str
) -> None:
    loaded = tiny(family)
    prompt = [(7 * i + 3) % 256 for i in range(BLOCK_LEN - 3)]
    rolled, straight = (generate.new_cache(loaded, "full", 1, len(prompt)) for _ in range(2))
    theirs = DynamicCache(config=loaded.model.config)
    with torch.inference_mode():
        loaded.model(input_ids=torch.tensor([prompt]), cache=theirs, use_cache=True)
    forward(loaded, rolled, prompt), forward(loaded, straight, prompt)
    for token in (11, 222, 33, 44):
        forward(loaded, rolled, [1, 2, 3, 4, 5])  # drafts, over a block's edge
        rolled.truncate(straight.get_seq_length())
        logits = forward(loaded, rolled, [token])
        assert torch.equal(logits, forward(loaded, straight, [token]))
        with torch.inference_mode():
            loaded.model(input_ids=torch.tensor([[1, 2, 3, 4, 5]]), cache=theirs, use_cache=True)
            theirs.crop(-5)
            given = {"input_ids": torch.tensor([[token]]), "cache": theirs, "use_cache": True}
            expected = loaded.model(**given).logits[:, -1]
        assert (logits - expected).abs().max() < TOLERANCE
    assert rolled.live_bytes == straight.live_bytes


def test_a_copied_prefix_gives_the_numbers_of_one_that_was_read(
    tiny: Callable[..., Loaded],
) -> None:
    loaded = tiny()
    prefix, rest = [5] * 40 + [9] * 30, [1, 2, 3]
    source, read = (generate.new_cache(loaded, "full", 1, 100) for _ in range(2))
    forward(loaded, source, prefix), forward(loaded, source, [77] * 20)  # and what came after
    forward(loaded, read, prefix)
    copied = generate.new_cache(loaded, "full", 1, 100)
    copied.copy_from(source, len(prefix))
    assert copied.bytes_read == copied.bytes_written == copied.live_bytes == read.live_bytes
    assert torch.equal(forward(loaded, copied, rest), forward(loaded, read, rest))


def test_what_transformers_layers_keep_is_not_taken_back() -> None:
    cache = KVCache(
        (FULL, FULL),
        batch=BATCH,
        num_positions=8,
        dtype=torch.float32,
        device="cpu",
        hf_layers={1: DynamicLayer},
    )
    cache.truncate(0)  # nothing is kept yet
    cache.reserve(2)
    for layer in (0, 1):
        cache.update(rows_of(2, 1), rows_of(2, 2), layer)
    with pytest.raises(ValueError, match="transformers' own"):
        cache.truncate(1)
    assert cache.get_seq_length() == 2
