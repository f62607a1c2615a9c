"""The decode step: traced equals Python to the bit, counts included; on as many threads as it is
due; each part falls back by itself and says why."""

import dataclasses
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support import architectures
from viz_engine.engine import decode, generate, load, trace
from viz_engine.engine.kernels.threads import Threads
from viz_engine.engine.load import Loaded
from viz_engine.run.events import RunSettings
from viz_engine.run.log import RunLog

COUNTS = ("kv_live_bytes", "kv_reserved_bytes", "weight_bytes_read", "kv_bytes_read")
COUNTS += ("kv_bytes_written", "context_len", "appended", "token_ids")


def run(
    loaded: Loaded, settings: RunSettings, **given: object
) -> tuple[RunLog, list[torch.Tensor]]:
    logits = []
    options = generate.Options(on_logits=lambda _, at: logits.append(at), **given)
    events = generate.generate(loaded, settings, run_id="r", options=options)
    return RunLog.of(events), logits


def settings_of(*prompts: str, **given: object) -> RunSettings:
    given = {"chat": False, "new_tokens": 6, "batch": len(prompts)} | given
    return RunSettings(model="tiny", prompts=prompts, **given)


def part(log: RunLog, name: str) -> object:
    return next(p for p in log.started.parts if p.name == name)


def assert_alike(loaded: Loaded, settings: RunSettings) -> None:
    (traced, logits), (eager, expected) = run(loaded, settings), run(loaded, settings, eager=True)
    assert part(traced, "traced_step").on, part(traced, "traced_step").reason
    assert part(eager, "traced_step").reason.key == "part.trace_detail"
    assert len(traced.steps) == len(eager.steps)
    for ours, theirs in zip(traced.steps, eager.steps, strict=True):
        for name in COUNTS:
            assert getattr(ours, name) == getattr(theirs, name), (ours.step, name)
    assert all(torch.equal(a, b) for a, b in zip(logits, expected, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_traced_steps_give_the_logits_and_counts_of_python_steps(
    tiny: Callable[..., Loaded], family: str, dtype: str
) -> None:
    assert_alike(tiny(family, dtype), settings_of("abc def " * 31, new_tokens=12))


@pytest.mark.parametrize("model_type", architectures.NAMED)
def test_every_named_type_is_traced_right_or_not_at_all(tmp_path: Path, model_type: str) -> None:
    loaded = architectures.load(architectures.build(model_type), tmp_path)
    if not loaded.compatibility.cached:
        return
    for batch in (1, 3):
        settings = architectures.settings_of(batch, chunk_len=0, new_tokens=24)
        settings = dataclasses.replace(settings, warm_up=True)
        (ours, logits), (eager, expected) = run(loaded, settings), run(loaded, settings, eager=True)
        assert all(torch.equal(a, b) for a, b in zip(logits, expected, strict=True))
        assert [[getattr(step, name) for name in COUNTS] for step in ours.steps] == [
            [getattr(step, name) for name in COUNTS] for step in eager.steps
        ]
        traced = part(ours, "traced_step")
        assert traced.reason.key in ("part.trace_on", "part.trace_layers"), str(traced.reason)
        windows = any(layer.window for layer in loaded.spec.layers)
        plain = {layer.kind for layer in loaded.spec.layers} <= {"full", "sliding"}
        if plain and loaded.compatibility.own_attention and not loaded.compatibility.hf_layers:
            assert traced.on is (batch == 1 or not windows)


def test_one_trace_serves_every_length_of_a_batch_size(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny()
    loaded.traces.clear()
    for prompt in ("a", "abc " * 70, "abc " * 20):
        assert_alike(loaded, settings_of(prompt, new_tokens=4))
    assert list(loaded.traces) == [("full", 1, False)]


def test_a_left_padded_batch_is_traced_with_its_mask(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny()
    assert_alike(loaded, settings_of("abc def ghi", "x", "longer than a piece of sixteen"))
    assert_alike(loaded, settings_of("abc" * 20, "x", chunk_len=16))  # a first chunk of pads only
    assert {("full", 3, True), ("full", 2, True)} <= set(loaded.traces)


def test_the_default_model_is_traced_in_bfloat16(default_model: Callable[[str], Loaded]) -> None:
    settings = settings_of("Why is the sky blue?", context_len=250, chat=True, new_tokens=10)
    assert_alike(default_model("bfloat16"), settings)


def test_few_traces_are_kept(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny("qwen2")
    for batch in range(1, trace.MAX_TRACES + 3):
        run(loaded, settings_of("ab", batch=batch, new_tokens=2))
    assert len(loaded.traces) == trace.MAX_TRACES
    assert ("full", batch, False) in loaded.traces


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (settings_of("abc", cache="none"), "part.trace_uncached"),
        (settings_of("abc" * 3, "a", "b", "c", "d", warm_up=False), "part.trace_cold"),
    ],
)
def test_where_nothing_is_traced_the_run_says_why(
    tiny: Callable[..., Loaded], settings: RunSettings, key: str
) -> None:
    log, _ = run(tiny(), settings)
    assert not part(log, "traced_step").on and part(log, "traced_step").reason.key == key


def test_a_model_that_cannot_be_traced_runs_in_python(
    tiny_folder: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load.load(str(tiny_folder()), "cpu", "float32")

    def failing(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no such thing\nmore")

    monkeypatch.setattr(torch.jit, "trace", failing)
    log, _ = run(loaded, settings_of("abc"))
    assert log.finished.finish_reason == "length"
    assert str(part(log, "traced_step").reason).endswith("(RuntimeError: no such thing).")


def test_a_trace_that_gives_other_numbers_is_not_used(
    tiny_folder: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load.load(str(tiny_folder()), "cpu", "float32")
    real = trace.Slot.update

    def wrong(self: trace.Slot, keys: torch.Tensor, values: torch.Tensor, *args, **kwargs):
        keys, values = real(self, keys, values)
        return keys, values * 1.0001

    monkeypatch.setattr(trace.Slot, "update", wrong)
    log, logits = run(loaded, settings_of("abc"))
    assert part(log, "traced_step").reason.key == "part.trace_differs"
    _, expected = run(loaded, settings_of("abc"), eager=True)
    assert all(torch.equal(a, b) for a, b in zip(logits, expected, strict=True))


def test_a_model_that_is_let_go_frees_its_weights(tiny_folder: Callable[..., object]) -> None:
    loaded = load.load(str(tiny_folder()), "cpu", "float32")
    log, _ = run(loaded, settings_of("abc"))
    assert part(log, "traced_step").on
    weight = weakref.ref(loaded.model.lm_head.weight)
    del loaded
    gc.collect()
    assert weight() is None, "the trace keeps the weights"


def test_a_run_puts_the_number_of_threads_back(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny("qwen3")
    before = torch.get_num_threads()
    seen = []
    loaded.threads.most, most = 2, loaded.threads.most
    use, loaded.threads.use = loaded.threads.use, seen.append
    try:
        loaded.threads.alone_ns["full", 1] = 1.0  # every step with all threads is slow
        log, _ = run(loaded, settings_of("abc", new_tokens=9))
        assert part(log, "threads").name == "threads"
        assert 1 in seen and seen[-1] == 2
    finally:
        loaded.threads.use, loaded.threads.most = use, most
        loaded.threads.alone_ns.clear()
        loaded.threads.left = 0
    assert torch.get_num_threads() == before


def test_a_trace_asks_only_for_sizes_that_grow_with_the_rows(tmp_path: Path) -> None:
    kinds = {}
    for model_type in ("llama", "gemma2"):  # gemma2's scores are written out, in shapes of the rows
        loaded = architectures.load(architectures.build(model_type), tmp_path / model_type)
        settings = architectures.settings_of(1, chunk_len=0, new_tokens=3)
        log, _ = run(loaded, dataclasses.replace(settings, warm_up=True))
        assert part(log, "traced_step").on
        traced, _ = loaded.traces["full", 1, False]
        kinds[model_type] = [node.kind() for node in traced.step.graph.nodes()]
    assert "aten::size" not in kinds["llama"] and "aten::floor_divide" not in kinds["llama"]
    assert "aten::size" in kinds["gemma2"]


@pytest.mark.parametrize(("every", "key"), [(100, "part.threads"), (1_000_000, "part.threads_one")])
def test_a_run_says_which_threads_its_first_steps_take(
    tiny: Callable[..., Loaded], every: int, key: str
) -> None:
    now, used = [0], [2]
    threads = Threads(2, use=lambda num: used.append(num))

    def step() -> None:
        now[0] += 1_000 if used[-1] == 1 else every

    loaded = dataclasses.replace(tiny("qwen3"), threads=threads)
    given = {"batch": 1, "masked": False, "policy": "full", "eager": True}
    decoder = decode.Decoder(loaded, None, **given, clock=lambda: now[0])
    threads.measure(decoder.timed, step, lambda: now[0])
    (part,) = (part for part in decoder.parts() if part.name == "threads")
    said = part.reason
    assert said.key == key and "no text for" not in said.text("en") + said.text("zh")
    assert part.numbers == {"num": 2, "all_ms": every / 1e6, "one_ms": 1_000 / 1e6}
