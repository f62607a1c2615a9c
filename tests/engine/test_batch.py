"""The sequences of a run: pads, what a forward is fed, how far each is, how each ends."""

from collections.abc import Callable

import pytest

from viz_engine.engine.batch import Batch
from viz_engine.engine.load import Loaded
from viz_engine.run.events import RunSettings

PAD = 257
PROMPTS = [[1, 2, 3, 4, 5], [7], [8, 9]]


@pytest.fixture
def batch_of(tiny: Callable[..., Loaded]) -> Callable[..., Batch]:
    tokenizer = tiny().tokenizer

    def make(*prompts: list[int], forced: list[list[int]] | None = None, **changes) -> Batch:
        base = {"model": "tiny", "prompts": ("",), "new_tokens": 3, "stop_token_ids": (99,)}
        settings = RunSettings(**(base | changes))
        like = {"pad_token_id": PAD, "device": "cpu", "forced": forced}
        return Batch(prompts, settings, tokenizer, **like)

    return make


def test_shorter_prompts_are_padded_on_the_left(batch_of: Callable[..., Batch]) -> None:
    batch = batch_of(*PROMPTS)
    ids, positions, mask = batch.feed(0, batch.padded_len)
    assert ids.tolist() == [[1, 2, 3, 4, 5], [PAD] * 4 + [7], [PAD] * 3 + [8, 9]]
    assert positions.tolist() == [[0, 1, 2, 3, 4], [0] * 5, [0, 0, 0, 0, 1]]
    assert mask.tolist() == [[1] * 5, [0] * 4 + [1], [0] * 3 + [1, 1]]


def test_prompts_of_one_length_need_no_mask(batch_of: Callable[..., Batch]) -> None:
    assert batch_of([1, 2], [3, 4]).feed(0, 2)[2] is None


def test_a_token_is_fed_to_the_next_forward(batch_of: Callable[..., Batch]) -> None:
    batch = batch_of(*PROMPTS)
    batch.per_sequence(0, 5, [40, 41, 42])
    ids, positions, mask = batch.feed(5, 6)
    assert ids.tolist() == [[40], [41], [42]] and positions.tolist() == [[5], [1], [2]]
    assert mask.shape == (3, 6)


def test_own_tokens_are_counted_without_pads(batch_of: Callable[..., Batch]) -> None:
    batch = batch_of(*PROMPTS)
    first = batch.per_sequence(0, 4, [None] * 3)  # a chunk that is all pads for the second
    assert first["num_new_tokens"] == first["context_len"] == (4, 0, 1)
    assert first["appended"] == ((0, 4), (0, 0), (0, 1)) and first["token_ids"] == ((),) * 3
    second = batch.per_sequence(4, 5, [40, 41, 42])
    assert second["num_new_tokens"] == (1, 1, 1) and second["context_len"] == (5, 1, 2)


def test_without_a_cache_all_is_fed_again_and_nothing_is_kept(
    batch_of: Callable[..., Batch],
) -> None:
    batch = batch_of(*PROMPTS, cache="none")
    batch.per_sequence(0, 5, [40, 41, 42])
    again = batch.per_sequence(0, 6, [43, 44, 45])
    assert again["num_new_tokens"] == again["context_len"] == (6, 2, 3)
    assert again["appended"] == ((0, 0),) * 3


def test_a_sequence_that_has_ended_stands_still(batch_of: Callable[..., Batch]) -> None:
    batch = batch_of(*PROMPTS)
    batch.per_sequence(0, 5, [40, 99, 42])  # the second gives its stop token
    step = batch.per_sequence(5, 6, [43, None, 44])
    assert batch.reasons == [None, "stop", None] and batch.goes_on
    assert step["num_new_tokens"] == (1, 0, 1) and step["appended"][1] == (1, 1)
    batch.per_sequence(6, 7, [45, None, 46])
    assert batch.reasons == ["length", "stop", "length"] and not batch.goes_on


def test_forced_tokens_end_with_their_list(batch_of: Callable[..., Batch]) -> None:
    batch = batch_of([1], [2], forced=[[5], [6, 7]])
    assert batch.forced_tokens() == [5, 6]
    batch.per_sequence(0, 1, batch.forced_tokens())
    assert batch.reasons == ["length", None] and batch.forced_tokens() == [None, 7]
