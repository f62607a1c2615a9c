"""Doors: a store of another kind is one class. It is kept, read, traced, counted and sampled by an
engine that knows nothing of it.

`Int8Slab` keeps another format, `RecentSlab` drops rows; neither is for use.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tests.support.tally import Tally
from viz_engine.engine import generate
from viz_engine.engine.cache import cache
from viz_engine.engine.cache.slab import Slab, Tensors
from viz_engine.engine.load import Loaded
from viz_engine.run import checks
from viz_engine.run.events import KVSample, RunSettings, StepFinished
from viz_engine.run.log import RunLog
from viz_engine.text import UserError

PROMPT = "The notebook has its price, and she is honest about it. " * 5
SINKS, RECENT, SLACK = 4, 20, 8
TOLERANCE = 1e-4
COUNTS = ("kv_live_bytes", "kv_reserved_bytes", "kv_bytes_read", "kv_bytes_written", "token_ids")


class Int8Rows:
    """K or V as it stands: int8 `[..., D]` and a scale a row `[..., 1]`."""

    def __init__(self, quantised: torch.Tensor, scales: torch.Tensor) -> None:
        self.quantised, self.scales = quantised, scales
        self.nbytes = quantised.nbytes + scales.nbytes

    def dense(self) -> torch.Tensor:
        return self.quantised.to(self.scales.dtype) * self.scales


def scales_of(rows: torch.Tensor) -> torch.Tensor:
    return (rows.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-8)


class Int8Slab(Slab):
    """int8, one scale a row and head."""

    hands_tensors = False

    def empty(self, capacity: int) -> Tensors:
        like = {"device": self.device}
        made = []
        for width in (self.spec.key_dim, self.spec.value_dim):
            made += [
                torch.empty((*self.shape, capacity, width), dtype=torch.int8, **like),
                torch.empty((*self.shape, capacity, 1), dtype=self.dtype, **like),
            ]
        return tuple(made)

    @staticmethod
    def store(places: Tensors, keys: torch.Tensor, values: torch.Tensor) -> None:
        for at, rows in ((0, keys), (2, values)):
            scales = scales_of(rows)
            places[at].copy_((rows / scales).round())
            places[at + 1].copy_(scales)

    @staticmethod
    def read(rows: Tensors) -> tuple[Int8Rows, Int8Rows]:
        return Int8Rows(*rows[:2]), Int8Rows(*rows[2:])


class RecentSlab(Slab):
    """The first rows and the last ones; what is between is dropped, some at a time."""

    def settle(self) -> None:
        held = self.length - self.origin
        if held > SINKS + RECENT + SLACK:
            newest = tuple(t.clone() for t in self._places(held - RECENT, held))
            self._move(newest, self._places(SINKS, SINKS + RECENT))
            self.origin += held - SINKS - RECENT


class EagerSlab(Int8Slab):
    """One that cannot be traced, and says so."""

    @staticmethod
    def store(places: Tensors, keys: torch.Tensor, values: torch.Tensor) -> None:
        if torch.jit.is_tracing():
            raise NotImplementedError("its rows are chosen in Python")
        Int8Slab.store(places, keys, values)


STORES = {"int8": Int8Slab, "recent": RecentSlab, "eager": EagerSlab}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word of each store is a cache policy."""
    monkeypatch.setattr(checks, "CACHES", (*checks.CACHES, *STORES))
    for word, store in STORES.items():
        monkeypatch.setitem(cache.STORES, word, store)


def settings_of(policy: str, **changes: object) -> RunSettings:
    given = {"prompts": (PROMPT,), "new_tokens": 6, "chunk_len": 100, "stop_token_ids": ()}
    return RunSettings(model="tiny", chat=False, cache=policy, **(given | changes))


def run(
    loaded: Loaded, settings: RunSettings, **given: object
) -> tuple[RunLog, list[torch.Tensor]]:
    logits: list[torch.Tensor] = []
    options = generate.Options(on_logits=lambda _, at: logits.append(at), **given)
    events = generate.generate(loaded, settings, run_id="r", options=options)
    log = RunLog.of(events)  # each record is checked
    assert log.finished.error is None
    return log, logits


def part(log: RunLog, name: str) -> object:
    return next(p for p in log.started.parts if p.name == name)


@pytest.mark.parametrize("eager", [False, True], ids=["traced", "eager"])
@pytest.mark.parametrize("policy", ["int8", "recent"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_those_of_the_stores_own_tensors(
    tiny: Callable[..., Loaded], dtype: str, policy: str, eager: bool
) -> None:
    loaded = tiny("llama", dtype)
    prompts = (PROMPT, "short") if policy == "int8" else (PROMPT,)
    settings = settings_of(policy, prompts=prompts, batch=len(prompts), chunk_len=20)
    log, tally = RunLog(), Tally(loaded.model)
    with tally:
        options = generate.Options(eager=eager)
        for event in generate.generate(loaded, settings, run_id="r", options=options):
            if isinstance(event, StepFinished):
                assert event.kv_bytes_read == tally.kv_bytes_read, event.step
                assert event.kv_bytes_written == tally.kv_bytes_written, event.step
            log.append(event)
            tally.reset()
    assert log.finished.error is None and part(log, "traced_step").on is not eager
    size = 4 if dtype == "float32" else 2
    if policy == "int8":
        widths = sum(at.num_kv_heads * 2 * (at.key_dim + size) for at in loaded.spec.layers)
        held = [2 * widths * (len(PROMPT) + n) for n in range(6)]
        assert [step.kv_live_bytes for step in log.steps][-6:] == held
    else:
        row = loaded.spec.row_elements * size
        assert all(s.kv_live_bytes <= (SINKS + RECENT + SLACK) * row for s in log.steps)
        assert {s.kv_live_bytes // row for s in log.steps[2:]} >= {SINKS + RECENT}


@pytest.mark.parametrize("policy", ["int8", "recent"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_traced_steps_give_the_numbers_of_python_steps(
    tiny: Callable[..., Loaded], family: str, policy: str
) -> None:
    settings = settings_of(policy, new_tokens=16, chunk_len=20)
    (traced, logits), (eager, expected) = (
        run(tiny(family), settings, eager=eager) for eager in (False, True)
    )
    assert part(traced, "traced_step").on, part(traced, "traced_step").reason
    assert all(map(torch.equal, logits, expected)) and len(logits) == 16
    for ours, theirs in zip(traced.steps, eager.steps, strict=True):
        assert [getattr(ours, n) for n in COUNTS] == [getattr(theirs, n) for n in COUNTS]


def test_a_store_has_a_trace_of_its_own(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny("qwen3")
    for policy in ("full", "int8"):
        run(loaded, settings_of(policy))
    assert {("full", 1, False), ("int8", 1, False)} <= set(loaded.traces)


def test_a_store_that_cannot_be_traced_is_read_in_python_and_the_run_says_why(
    tiny: Callable[..., Loaded],
) -> None:
    (log, logits), (_, expected) = (run(tiny(), settings_of(p)) for p in ("eager", "int8"))
    assert not part(log, "traced_step").on
    assert "its rows are chosen in Python" in str(part(log, "traced_step").reason)
    assert all(map(torch.equal, logits, expected))


class Rounded(DynamicLayer):
    """Transformers' own layer, of rows that went through int8."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        rounded = [
            (rows / scales_of(rows)).round() * scales_of(rows)
            for rows in (key_states, value_states)
        ]
        return super().update(*rounded)


def test_what_is_read_and_sampled_is_what_was_stored(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny()
    log, logits = run(loaded, settings_of("int8"))
    tokens = [s.token_ids[0][0] for s in log.steps if s.token_ids[0]]
    ids = [*log.started.prompt_token_ids[0], *tokens]
    theirs = DynamicCache(config=loaded.model.config)
    theirs.layers = [Rounded() for _ in theirs.layers]
    with torch.inference_mode():
        given = {"input_ids": torch.tensor([ids[:-1]]), "cache": theirs, "use_cache": True}
        expected = loaded.model(**given).logits[0, -len(logits) :]
    _, full = run(loaded, settings_of("full"), forced_tokens=[tokens])
    lost = (torch.cat(full) - expected).abs().max()  # by int8
    # Here and there a number is rounded the other way, where sums differ in their last digit.
    assert (torch.cat(logits) - expected).abs().max() < lost / 20
    for which in ("keys", "values"):
        rows = [getattr(layer, which) for layer in theirs.layers]
        norms = torch.cat([r[0].norm(dim=-1) for r in rows]).T.numpy()  # [rows, L * H]
        samples = [getattr(e, which[0]) for e in log if isinstance(e, KVSample)]
        seen = np.frombuffer(b"".join(samples), np.uint8).reshape(norms.shape)
        assert np.abs(seen - np.clip(np.round(128 + 12 * np.log2(norms)), 1, 255)).max() <= 1


def test_a_query_reads_the_rows_that_are_left(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny()
    log, logits = run(loaded, settings_of("recent", prompts=("abcdefghij",), new_tokens=60))
    ids = list(log.started.prompt_token_ids[0])
    tokens = [s.token_ids[0][0] for s in log.steps]
    theirs = DynamicCache(config=loaded.model.config)
    kept: list[int] = []
    for step, (fed, got) in enumerate(zip([ids, *([t] for t in tokens)], logits, strict=False)):
        first = len(ids) + step - 1 if step else 0
        stop = first + len(fed)
        mask = torch.zeros(1, 1, len(fed), stop, dtype=torch.bool)
        for at in range(len(fed)):
            mask[..., at, kept + list(range(first, first + at + 1))] = True
        given = {"cache": theirs, "use_cache": True, "attention_mask": mask}
        positions = torch.arange(first, stop)[None]
        with torch.inference_mode():
            fed = torch.tensor([fed])
            expected = loaded.model(input_ids=fed, position_ids=positions, **given).logits[:, -1]
        assert (got - expected).abs().max() < TOLERANCE, step
        kept += range(first, stop)
        if len(kept) > SINKS + RECENT + SLACK:
            kept = kept[:SINKS] + kept[-RECENT:]
    assert len(kept) < stop


def test_a_format_that_a_model_cannot_read_is_refused(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = tiny()
    theirs = dataclasses.replace(loaded.compatibility, own_attention=False)
    monkeypatch.setattr(loaded, "compatibility", theirs)
    with pytest.raises(UserError, match="needs this program's own attention"):
        next(generate.generate(loaded, settings_of("int8"), run_id="r"))
    assert run(loaded, settings_of("full"))[0].finished.finish_reason == "length"
