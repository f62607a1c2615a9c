"""The engine's loop: what a run is, how it ends, what it refuses."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from viz_engine.engine import generate
from viz_engine.engine.cache import norms
from viz_engine.engine.load import Loaded
from viz_engine.run.codec import to_line
from viz_engine.run.events import KVSample, RunSettings, StepFinished, Telemetry
from viz_engine.run.log import RunLog
from viz_engine.text import UserError


def settings_of(prompt: str | tuple[str, ...] = "abc", **changes: object) -> RunSettings:
    prompts = (prompt,) if isinstance(prompt, str) else prompt
    base = {"model": "tiny", "prompts": prompts, "batch": len(prompts), "chat": False}
    return RunSettings(**(base | {"new_tokens": 6, "stop_token_ids": ()} | changes))


def run(
    loaded: Loaded,
    settings: RunSettings,
    cancelled: Callable[[], bool] = lambda: False,
    **options: object,
) -> RunLog:
    asked = {"cancelled": cancelled, "options": generate.Options(**options)}
    return RunLog.of(generate.generate(loaded, settings, run_id="r", **asked))


def tokens_of(log: RunLog, sequence: int = 0) -> list[int]:
    return [id for step in log.steps for id in step.token_ids[sequence]]


class FakeClock:
    """Each look is a microsecond later."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


# --- what a run is ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("cache", ["full", "none"])
@pytest.mark.parametrize("chunk_len", [0, 7, 256])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_run_keeps_the_logs_invariants(
    tiny: Callable[..., Loaded], family: str, cache: str, chunk_len: int, dtype: str
) -> None:
    settings = settings_of(("a prompt of twenty..", "b", "two"), cache=cache, chunk_len=chunk_len)
    log = run(tiny(family, dtype), settings)  # RunLog.append checks each record
    assert log.finished.finish_reason == "length"
    num_chunks = 3 if cache == "full" and chunk_len == 7 else 1
    assert [s.phase for s in log.steps] == ["prefill"] * num_chunks + ["decode"] * 5
    assert log.num_rows == ([25, 6, 8] if cache == "full" else [0, 0, 0])
    assert all(len(tokens_of(log, b)) == 6 for b in range(3))
    assert RunLog.read(log.to_jsonl().encode()).events == log.events


def test_the_last_token_never_gets_a_row(tiny: Callable[..., Loaded]) -> None:
    log = run(tiny(), settings_of("abcd", new_tokens=1))
    assert len(log.steps) == 1 and log.num_rows == [4]
    assert len(tokens_of(log)) == 1


@pytest.mark.parametrize("chunk_len", [1, 3, 16, 0])
def test_chunks_give_the_same_tokens_as_one_forward(
    tiny: Callable[..., Loaded], chunk_len: int
) -> None:
    prompts = ("a longer prompt that is read in chunks", "short")
    whole = run(tiny(), settings_of(prompts, chunk_len=0))
    chunks = run(tiny(), settings_of(prompts, chunk_len=chunk_len))
    assert [tokens_of(chunks, b) for b in (0, 1)] == [tokens_of(whole, b) for b in (0, 1)]


def test_a_chunk_of_pads_only_feeds_a_sequence_nothing(tiny: Callable[..., Loaded]) -> None:
    log = run(tiny(), settings_of(("x" * 20, "y"), chunk_len=8))
    assert [s.num_new_tokens for s in log.steps[:3]] == [(8, 0), (8, 0), (4, 1)]
    assert [s.context_len for s in log.steps[:3]] == [(8, 0), (16, 0), (20, 1)]
    assert log.steps[0].appended == ((0, 8), (0, 0))


def test_a_padded_sequence_writes_what_it_writes_alone(tiny: Callable[..., Loaded]) -> None:
    prompts = ("the first one is long", "b", "the third")
    for cache in ("full", "none"):
        together = run(tiny(), settings_of(prompts, cache=cache, new_tokens=12))
        for b, prompt in enumerate(prompts):
            alone = run(tiny(), settings_of(prompt, cache=cache, new_tokens=12))
            assert tokens_of(together, b) == tokens_of(alone)


def test_one_prompt_serves_a_whole_batch(tiny: Callable[..., Loaded]) -> None:
    log = run(tiny(), settings_of("abc", batch=3))
    assert len(set(log.started.prompt_token_ids)) == 1
    assert tokens_of(log, 0) == tokens_of(log, 2)


def test_started_says_all_that_was_chosen_and_why(tiny: Callable[..., Loaded]) -> None:
    log = run(tiny(), settings_of(device="auto", dtype="auto", stop_token_ids=None))
    started = log.started
    assert (started.settings.device, started.settings.dtype) == ("cpu", "float32")
    assert started.settings.stop_token_ids == (257,)
    assert {part.name for part in started.parts} == {
        "attention",
        "compiled_attention",
        "compiled_attention_prefill",
        "compiled_norm",
        "formula",
        "linear",
        "traced_step",
        "threads",
        "pieces",
    }
    numbers = {part.name: part.numbers for part in started.parts}
    assert numbers["pieces"] == {"chunk_len": 256} and numbers["traced_step"] == {}
    for message in (*started.reasons, *(part.reason for part in started.parts)):
        for language in ("en", "zh"):
            assert "no text for" not in message.text(language)
    assert {"torch", "transformers", "python"} <= set(started.versions)
    assert started.queued_ns <= started.accepted_ns <= log.steps[0].start_ns


# --- how it ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_cancel_ends_the_run_before_the_next_step(tiny: Callable[..., Loaded], after: int) -> None:
    asked = itertools.count()
    settings = settings_of("x" * 40, chunk_len=16)  # three chunks, then decode
    log = run(tiny(), settings, cancelled=lambda: next(asked) >= after)
    assert len(log.steps) == after
    assert log.finished.finish_reason == "cancelled"
    assert log.finished.sequence_reasons == ("cancelled",)


def test_a_stop_token_ends_its_sequence_only(tiny: Callable[..., Loaded]) -> None:
    prompts = ("abc", "xyzxyz")
    free = run(tiny(), settings_of(prompts, new_tokens=10))
    stop = tokens_of(free, 0)[3]
    log = run(tiny(), settings_of(prompts, new_tokens=10, stop_token_ids=(stop,)))
    assert tokens_of(log, 0) == tokens_of(free, 0)[:4]
    assert log.finished.sequence_reasons[0] == "stop"
    ended = log.steps[4:]
    assert all(s.num_new_tokens[0] == 0 and s.token_ids[0] == () for s in ended)
    assert all(s.context_len[0] == 6 and s.appended[0] == (6, 6) for s in ended)
    assert log.num_rows[0] == 6  # prompt 3, and rows of all tokens but the last
    if stop not in tokens_of(free, 1):
        assert tokens_of(log, 1) == tokens_of(free, 1)
        assert log.finished.finish_reason == "length"


def test_a_run_ends_when_all_sequences_have(tiny: Callable[..., Loaded]) -> None:
    free = run(tiny(), settings_of("abc", batch=2, new_tokens=10))
    stop = tokens_of(free)[2]
    log = run(tiny(), settings_of("abc", batch=2, new_tokens=10, stop_token_ids=(stop,)))
    assert len(log.steps) == 3 and log.finished.finish_reason == "stop"


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "error.out_of_memory"),
        (
            RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: you tried"),
            "error.out_of_memory",
        ),
        (MemoryError(), "error.out_of_memory"),
        (ValueError("odd\nsecond line"), "error.engine"),
    ],
)
def test_what_goes_wrong_in_mid_run_is_the_last_record(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch, error: Exception, key: str
) -> None:
    calls = itertools.count()
    real = generate.forward

    def failing(*args: object) -> torch.Tensor:
        if next(calls) == 2:
            raise error
        return real(*args)

    monkeypatch.setattr(generate, "forward", failing)
    log = run(tiny(), settings_of(warm_up=False), eager=True)
    assert len(log.steps) == 2
    assert log.finished.finish_reason == "error" and log.finished.error.key == key
    assert "Traceback" not in str(log.finished.error) and "\n" not in str(log.finished.error)


def test_what_goes_wrong_while_warming_up_refuses_the_run(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(generate, "forward", failing)
    with pytest.raises(UserError, match="Memory ran out"):
        next(generate.generate(tiny(), settings_of("never seen before" * 3), run_id="r"))


def test_forced_tokens_are_taken_in_place_of_the_models_choice(
    tiny: Callable[..., Loaded],
) -> None:
    log = run(tiny(), settings_of("abc", batch=2), forced_tokens=[[1, 2, 3], [9, 8, 7, 6, 5, 4]])
    assert tokens_of(log, 0) == [1, 2, 3] and tokens_of(log, 1) == [9, 8, 7, 6, 5, 4]


# --- choosing tokens -------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_and_sequences_differ(tiny: Callable[..., Loaded]) -> None:
    hot = settings_of("abc", batch=3, temperature=1.5, new_tokens=12, seed=5)
    first, again = run(tiny(), hot), run(tiny(), hot)
    assert [tokens_of(first, b) for b in range(3)] == [tokens_of(again, b) for b in range(3)]
    assert len({tuple(tokens_of(first, b)) for b in range(3)}) == 3
    other = run(tiny(), settings_of("abc", batch=3, temperature=1.5, new_tokens=12, seed=6))
    assert tokens_of(other) != tokens_of(first)
    alone = run(tiny(), settings_of("abc", temperature=1.5, new_tokens=12, seed=5))
    assert tokens_of(alone) == tokens_of(first)


@pytest.mark.parametrize("how", [{"top_p": 1e-9}, {"temperature": 1e-9}])
def test_a_tiny_top_p_or_temperature_is_greedy(
    tiny: Callable[..., Loaded], how: dict[str, float]
) -> None:
    greedy = run(tiny(), settings_of("abc"))
    sampled = run(tiny(), settings_of("abc", **({"temperature": 2.0} | how)))
    assert tokens_of(sampled) == tokens_of(greedy)


# --- what it sees ----------------------------------------------------------------------------


def test_magnitudes_are_those_of_transformers_rows(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny("qwen2")
    log = run(loaded, settings_of(("some prompt", "x"), chunk_len=4))
    for b in range(2):
        ids = list(log.started.prompt_token_ids[b]) + tokens_of(log, b)[:-1]
        theirs = DynamicCache(config=loaded.model.config)
        with torch.inference_mode():
            loaded.model(input_ids=torch.tensor([ids]), cache=theirs, use_cache=True)
        for which in ("k", "v"):
            rows = [layer.keys if which == "k" else layer.values for layer in theirs.layers]
            norms = torch.cat([r[0].norm(dim=-1) for r in rows]).T.numpy()  # [rows, L * H]
            samples = [e for e in log if isinstance(e, KVSample) and e.sequence == b]
            assert [s.first for s in samples[1:]] == [s.stop for s in samples[:-1]]
            seen = np.concatenate(
                [
                    np.frombuffer(getattr(s, which), np.uint8).reshape(s.stop - s.first, -1)
                    for s in samples
                ]
            )
            expected = np.clip(np.round(128 + 12 * np.log2(norms)), 1, 255)
            assert seen.shape == expected.shape
            assert np.abs(seen.astype(int) - expected).max() <= 1


def test_a_row_of_zeros_has_magnitude_zero(tiny: Callable[..., Loaded]) -> None:
    cache = generate.new_cache(tiny(), "full", 1, 2)
    (slab,) = cache.slabs.values()
    for side in slab.tensors:
        side.zero_()
        side[..., 1, 0] = 2 ** (100 / 12)
    cache.place(2)
    assert norms.sample(cache, 0, 2)[0, 0, 0].max() == 0
    assert norms.sample(cache, 0, 2)[0, 0, 1].min() == 228


def test_a_slow_reader_is_not_billed_to_a_step(tiny: Callable[..., Loaded]) -> None:
    clock = FakeClock()
    log = RunLog()
    for event in generate.generate(tiny(), settings_of(), run_id="r", clock=clock):
        log.append(event)
        clock.now += 10**12  # a reader that takes a quarter of an hour for each record
    assert all(step.duration_ns < 10**9 for step in log.steps)


def test_telemetry_comes_about_once_a_second(tiny: Callable[..., Loaded]) -> None:
    clock = FakeClock()
    log = RunLog()
    for event in generate.generate(tiny(), settings_of(new_tokens=21), run_id="r", clock=clock):
        log.append(event)
        if isinstance(event, StepFinished):
            clock.now += 10**8
    readings = [e for e in log if isinstance(e, Telemetry)]
    assert len(readings) == 2  # 21 steps of a tenth of a second
    assert all(r.memory_used_bytes > 10**7 and r.power_w is None for r in readings)


def test_onednn_is_off_in_steps_of_one_token_only(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = tiny()
    seen = []
    backend = dataclasses.replace(loaded.backend, onednn_off_for_one_token=True)
    monkeypatch.setattr(loaded, "backend", backend)
    real = loaded.model.forward

    def looking(**kwargs: object) -> object:
        seen.append((kwargs["input_ids"].numel(), torch._C._get_mkldnn_enabled()))
        return real(**kwargs)

    monkeypatch.setattr(loaded.model, "forward", looking)
    run(loaded, settings_of("abc", new_tokens=2, warm_up=False), eager=True)
    run(loaded, settings_of("abc", batch=2, new_tokens=2, warm_up=False), eager=True)
    assert seen == [(3, True), (1, False), (6, True), (2, True)]


# --- bad input -------------------------------------------------------------------------------

ODD = (
    "half \ud83d here",
    "nul \0 inside",
    "\u202eright to left\u202c שלום",
    "<script>alert('x')</script><img src=x onerror=alert(1)>",
    "\x1b[31m\r\n\x07",
    "𝒳" * 50,
)


@pytest.mark.parametrize("prompt", ODD)
def test_odd_text_runs_and_survives_the_file(tiny: Callable[..., Loaded], prompt: str) -> None:
    log = run(tiny(), settings_of(prompt, chat=True, new_tokens=3))
    assert log.finished.finish_reason == "length"
    again = RunLog.read(log.to_jsonl().encode())
    assert again.events == log.events
    assert all(to_line(event).isascii() for event in log)
    "".join(log.started.prompt_texts[0]).encode()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompts": ("",)}, "prompt is empty"),
        ({"prompts": (" \n ",)}, "prompt is empty"),
        ({"prompts": ("x" * 1025,)}, "1025 tokens; this model can attend to at most 1024"),
        ({"prompts": ("x" * 2**20,)}, "1048576 tokens"),
        ({"new_tokens": 0}, "0 new tokens were asked for"),
        ({"new_tokens": -3}, "-3 new tokens were asked for"),
        ({"new_tokens": 1023}, "At most 1022 fit"),
        ({"batch": 0}, "batch of 0"),
        ({"batch": 65}, "1 to 64"),
        ({"prompts": ("a", "b"), "batch": 3}, "2 prompts for a batch of 3"),
        ({"prompts": ()}, "0 prompts for a batch of 1"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_p": 0.0}, "top-p value 0.0"),
        ({"top_p": float("nan")}, "top-p value nan"),
        ({"chunk_len": -1}, "chunk of -1"),
        ({"cache": "magic"}, "no cache policy “magic”"),
        ({"speculation": "draft"}, "cannot speculate"),
        ({"context_len": 0}, "0 tokens cannot be filled"),
        ({"context_len": 1025}, "1025 tokens"),
        ({"filler": "xx"}, "no filler text"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(
    tiny: Callable[..., Loaded], changes: dict[str, object], sentence: str
) -> None:
    settings = settings_of(**({"context_len": None} | changes))
    if changes.get("filler"):
        settings = settings_of(context_len=100, **changes)
    with pytest.raises(UserError) as refused:
        next(generate.generate(tiny(), settings, run_id="r"))
    assert sentence in refused.value.message.text("en")
    assert refused.value.message.text("zh") != refused.value.message.text("en")


def test_a_prompt_may_end_on_the_windows_last_position(tiny: Callable[..., Loaded]) -> None:
    log = run(tiny(), settings_of("x" * 1024, new_tokens=1))
    assert log.num_rows == [1024] and log.finished.finish_reason == "length"
    with pytest.raises(UserError, match="At most 1 fit"):
        run(tiny(), settings_of("x" * 1024, new_tokens=2))


def test_what_does_not_fit_in_memory_is_refused_with_the_numbers(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of("abc", batch=64, new_tokens=1000)
    run(tiny(), settings_of("abc"))
    monkeypatch.setattr(generate, "available_bytes", lambda device: 700 * 2**20 - 2**26)
    with pytest.raises(UserError) as refused:
        next(generate.generate(tiny(), settings, run_id="r"))
    text = str(refused.value)
    assert "does not fit in memory" in text and "636.0 MiB are available" in text
    assert "48.0 MiB" in text  # the cache: 64 sequences x 1024 rows x 768 bytes
