"""Bytes: counted by the engine = predicted by cost.py = the independent tally, at every step."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tests.support import architectures
from tests.support.tally import Tally
from viz_engine.engine import generate
from viz_engine.engine.cache import cache, slab
from viz_engine.engine.load import Loaded
from viz_engine.model.spec import LayerSpec
from viz_engine.run import cost
from viz_engine.run.events import RunSettings, StepFinished
from viz_engine.run.log import RunLog

KINDS = (
    "weight_bytes_read",
    "kv_bytes_read",
    "kv_bytes_written",
    "kv_live_bytes",
    "kv_reserved_bytes",
)
# Of the types whose weights are described, one of each sort; all of them were compared once.
MIXTURES = ("mixtral", "qwen2_moe", "gpt_oss")
DESCRIBED = ("gpt2", "opt", "gpt_neox", "phi3", "glm4", "gemma2", "cohere2", "mistral", *MIXTURES)
LONG = "The notebook has its price, and she is honest about it. Every paragraph adds a line. " * 4


class ConcatenatingCache(cache.KVCache):
    """What a cache must not do: every step makes all rows anew."""

    tally: Tally

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.layers = [ConcatenatingLayer(self) for _ in self.layers]

    def reserve(self, num_columns: int) -> None:
        pass


class ConcatenatingLayer(DynamicLayer):
    def __init__(self, cache: ConcatenatingCache) -> None:
        super().__init__()
        self.cache = cache

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        keys, values = super().update(key_states, value_states)
        self.cache.tally.hold(keys)
        self.cache.tally.hold(values)
        return keys, values


def tallied(
    loaded: Loaded, settings: RunSettings, tally: Tally, **given: object
) -> Iterator[tuple[StepFinished, Tally, cost.StepCost]]:
    """Each step with what the tally saw of it and what cost.py says of it."""
    log = RunLog()
    with tally:
        options = generate.Options(**given)
        for event in generate.generate(loaded, settings, run_id="r", options=options):
            log.append(event)
            if isinstance(event, StepFinished):
                yield event, tally, log.step_cost(-1)
            tally.reset()  # what happens between the steps (norms) is not of a step
    assert log.finished.finish_reason in ("length", "stop"), log.finished.error


def assert_counts_agree(loaded: Loaded, settings: RunSettings) -> list[StepFinished]:
    steps = []
    for step, tally, predicted in tallied(loaded, settings, Tally(loaded.model)):
        for kind in KINDS:
            assert getattr(step, kind) == getattr(predicted, kind), (step.step, kind)
        for kind in KINDS[:3]:
            if kind != "weight_bytes_read" and settings.cache == "none":
                continue
            if getattr(step, kind) is None:  # experts are chosen by token
                continue
            assert getattr(step, kind) == getattr(tally, kind), (step.step, kind)
        steps.append(step)
    return steps


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_counted_equals_predicted_equals_tally_at_every_step(
    tiny: Callable[..., Loaded], family: str, dtype: str
) -> None:
    settings = RunSettings(model="tiny", prompts=(LONG,), chat=False, new_tokens=5, chunk_len=100)
    steps = assert_counts_agree(tiny(family, dtype), settings)
    assert [step.phase for step in steps] == ["prefill"] * 4 + ["decode"] * 4


@pytest.mark.parametrize("model_type", DESCRIBED)
def test_counted_equals_predicted_for_types_that_a_config_describes(
    model_type: str, tmp_path: Path
) -> None:
    loaded = architectures.load(architectures.build(model_type), tmp_path)
    settings = architectures.settings_of(3, chunk_len=architectures.CHUNK, new_tokens=6)
    steps = assert_counts_agree(loaded, settings)
    assert (steps[0].weight_bytes_read is None) == (model_type in MIXTURES)


@pytest.mark.parametrize("model_type", ["minicpm3", "deepseek_v3"])
def test_latent_rows_are_counted_and_predicted_as_they_are_read_unfolded(
    model_type: str, tmp_path: Path
) -> None:
    # What is unfolded is no slab's: test_architectures has an observer that sees it.
    loaded = architectures.load(architectures.build(model_type), tmp_path)
    settings = architectures.settings_of(3, chunk_len=architectures.CHUNK, new_tokens=6)
    for step, tally, predicted in tallied(loaded, settings, Tally(loaded.model)):
        assert all(getattr(step, kind) == getattr(predicted, kind) for kind in KINDS)
        assert step.kv_bytes_written == tally.kv_bytes_written
        assert step.weight_bytes_read in (None, tally.weight_bytes_read)


@settings_of_hypothesis(max_examples=40, deadline=None)
@given(
    window=st.none() | st.integers(2, 700),
    prompt=st.integers(1, 900),
    chunk=st.integers(0, 400),
    new=st.integers(1, 900),
)
def test_what_a_slab_reserves_and_copies_is_foretold_wherever_it_slides(
    window: int | None, prompt: int, chunk: int, new: int
) -> None:
    kind = "full" if window is None else "sliding"
    layer = LayerSpec(num_kv_heads=1, key_dim=1, value_dim=1, kind=kind, window=window)
    rows = slab.Slab(layer, 1, 1, prompt, torch.float32, "cpu")
    prefill = [*range(chunk, prompt, chunk), prompt] if chunk else [prompt]
    seen = 0
    for stop in (*prefill, *range(prompt + 1, prompt + new)):
        before = rows.bytes_read
        rows.reserve(stop)
        copied_bytes = rows.bytes_read - before
        rows.append(0, *(torch.zeros(1, 1, stop - seen, 1) for _ in range(2)))
        room, copied = cost.slab_after(
            window, num_new=stop - seen, num_columns=stop, prompt_columns=prompt, chunk_len=chunk
        )
        assert (rows.reserved_bytes, copied_bytes) == (8 * room, 8 * copied)
        seen = stop


def test_without_the_chunks_nothing_is_foretold_of_a_window(tmp_path: Path) -> None:
    spec = architectures.load(architectures.build("mistral"), tmp_path).spec
    given = {"batch": 1, "num_new": 1, "num_columns": 9, "prompt_columns": 8, "cached": True}
    with pytest.raises(ValueError, match="chunks"):
        cost.step(spec, "float32", **given)
    assert cost.step(spec, "float32", chunk_len=0, **given).flops


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_matrix_counts_once_tied_or_not(tiny: Callable[..., Loaded], tied: bool) -> None:
    settings = RunSettings(model="tiny", prompts=("ab",), chat=False, new_tokens=3)
    assert_counts_agree(tiny("llama", tie_word_embeddings=tied), settings)


def test_biases_of_every_kind_are_counted(tiny: Callable[..., Loaded]) -> None:
    settings = RunSettings(model="tiny", prompts=("ab",), chat=False, new_tokens=3)
    assert_counts_agree(tiny("llama", attention_bias=True, mlp_bias=True), settings)
    assert_counts_agree(tiny("qwen3", attention_bias=True), settings)


@pytest.mark.parametrize("cache_policy", ["full", "none"])
def test_counts_agree_in_a_left_padded_batch(
    tiny: Callable[..., Loaded], cache_policy: str
) -> None:
    settings = RunSettings(
        model="tiny",
        prompts=(LONG, "a", "abc def", LONG[:120]),
        batch=4,
        chat=False,
        new_tokens=6,
        chunk_len=64,
        cache=cache_policy,
    )
    loaded = tiny()
    steps = assert_counts_agree(loaded, settings)
    if cache_policy == "full":
        # pads are held and read: live bytes are all columns of all sequences
        columns = len(LONG) + len(steps) - 6
        assert steps[-1].kv_live_bytes == 4 * columns * cost.row_bytes(loaded.spec, "float32")


def test_an_ended_sequence_keeps_its_column_and_is_counted(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny()
    free = RunSettings(model="tiny", prompts=("abc", "xyzxyz"), batch=2, chat=False, new_tokens=8)
    first = [step.token_ids[0][0] for step in assert_counts_agree(loaded, free)]
    stopping = RunSettings(
        model="tiny",
        prompts=free.prompts,
        batch=2,
        chat=False,
        new_tokens=8,
        stop_token_ids=(first[2],),
    )
    steps = assert_counts_agree(loaded, stopping)
    assert not steps[-1].token_ids[0] and steps[-1].num_new_tokens[0] == 0
    assert steps[-1].kv_live_bytes > steps[3].kv_live_bytes


def test_growing_past_a_block_counts_the_copy(tiny: Callable[..., Loaded]) -> None:
    prompt = LONG[: cost.BLOCK_LEN - 2]
    settings = RunSettings(model="tiny", prompts=(prompt,), chat=False, new_tokens=8)
    loaded = tiny()
    steps = assert_counts_agree(loaded, settings)
    row = cost.row_bytes(loaded.spec, "float32")
    grown = [step for step in steps if step.kv_bytes_written > row and step.phase == "decode"]
    assert len(grown) == 1
    assert grown[0].kv_bytes_written == (cost.BLOCK_LEN + 1) * row
    assert grown[0].kv_reserved_bytes == 2 * cost.BLOCK_LEN * row


def test_the_default_model_counts_alike_in_bfloat16(
    default_model: Callable[[str], Loaded],
) -> None:
    settings = RunSettings(
        model="default", prompts=("Why is the sky blue?",), context_len=254, new_tokens=5
    )
    assert_counts_agree(default_model("bfloat16"), settings)


def test_live_bytes_are_those_of_transformers_own_cache(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny("qwen3")
    settings = RunSettings(model="tiny", prompts=("hello there",), chat=False, new_tokens=4)
    log = RunLog.of(generate.generate(loaded, settings, run_id="r"))
    ids = list(log.started.prompt_token_ids[0])
    for step in log.steps:
        theirs = DynamicCache(config=loaded.model.config)
        with torch.inference_mode():
            loaded.model(input_ids=torch.tensor([ids]), cache=theirs, use_cache=True)
        tensors = [t for layer in theirs.layers for t in (layer.keys, layer.values)]
        assert step.kv_live_bytes == sum(t.numel() * t.element_size() for t in tensors)
        ids += step.token_ids[0]


def test_the_tally_notices_a_cache_that_copies(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = tiny()
    tally = Tally(loaded.model)
    monkeypatch.setattr(ConcatenatingCache, "tally", tally, raising=False)
    monkeypatch.setattr(generate, "KVCache", ConcatenatingCache)
    settings = RunSettings(model="tiny", prompts=("abcdefgh",), chat=False, new_tokens=4)
    row = cost.row_bytes(loaded.spec, "float32")
    more = []
    for step, seen, predicted in tallied(loaded, settings, tally, eager=True, samples="none"):
        if step.phase == "decode":
            more.append(seen.kv_bytes_read - predicted.kv_bytes_read)
    # each decode step reads all earlier rows once more, to copy them
    assert more == [(8 + i) * row for i in range(3)]


def test_cost_rows_are_what_the_slab_is_made_of(tiny: Callable[..., Loaded]) -> None:
    spec = tiny().spec
    like = {"dtype": torch.float32, "device": "cpu"}
    made = cache.KVCache(spec.layers, batch=2, num_positions=300, **like)
    assert made.reserved_bytes == 2 * 512 * cost.row_bytes(spec, "float32")
    assert made.live_bytes == 0
