"""A race as it is made on a real model, and what goes wrong while it is."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from tests.support.flops import UNKNOWN
from tests.support.races import PROMPT, RUN, SETTINGS
from viz_engine.analysis import race
from viz_engine.engine import generate, race_runs
from viz_engine.engine.load import Loaded
from viz_engine.run.codec import to_line
from viz_engine.run.events import RunSettings, StepFinished
from viz_engine.run.experiment import (
    ExperimentLog,
    LogitsCompared,
    PrefixChanged,
)
from viz_engine.run.log import RunLog
from viz_engine.run.race import RaceSettings
from viz_engine.text import UserError


def made(loaded: Loaded, settings: RaceSettings = SETTINGS, **given: object) -> ExperimentLog:
    return ExperimentLog.of(
        race_runs.race(lambda run: loaded, settings, experiment_id="r", **given)
    )


def lane(cache: str) -> RunSettings:
    """What a lane of RUN does."""
    return SETTINGS.lane({"cache": cache})


def test_lanes_alternate_after_a_dropped_pair_and_write_the_same(
    tiny: Callable[..., Loaded],
) -> None:
    log = made(tiny())
    order = [(one.label["cache"], one.repeat, one.purpose) for one in log.members]
    assert order == [
        ("full", 0, "measured"), ("none", 0, "measured"),
        ("none", 1, "measured"), ("full", 1, "measured"),
        ("full", 0, "look"), ("none", 0, "look"),
    ]  # fmt: skip
    texts = {one.log.texts(0) for one in log.members if one.purpose == "measured"}
    assert len(texts) == 1 and log.finished.finish_reason == "done"
    settings = [one.log.started.settings for one in log.members]
    assert len({(s.dtype, s.device, s.new_tokens, s.prompts) for s in settings[:4]}) == 1
    assert ExperimentLog.read(log.to_jsonl().encode()).events == log.events


def test_logits_are_compared_token_by_token_and_agree_in_float32(
    tiny: Callable[..., Loaded],
) -> None:
    log = made(tiny())
    found = log.finding(LogitsCompared)
    assert len(found.gaps) == len(found.margins) == 6
    assert found.first_difference is None
    assert max(found.gaps) < 1e-4 * max(1, found.largest_logit)
    assert "logits" not in to_line(log.members[0].log.steps[0])


def test_the_largest_gap_is_that_of_the_logits_of_both_runs(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny("llama", "bfloat16")
    log = made(loaded, dataclasses.replace(SETTINGS, repeats=1, layer=None))
    seen: dict[str, list[torch.Tensor]] = {"none": [], "full": []}
    for cache, kept in seen.items():
        asked = lane(cache)
        on_logits = lambda step, logits, kept=kept: kept.append(logits[0].float())  # noqa: E731
        options = generate.Options(on_logits=on_logits)
        list(generate.generate(loaded, asked, run_id="again", options=options))
    for gap, without, cached in zip(
        log.finding(LogitsCompared).gaps, seen["none"], seen["full"], strict=False
    ):
        assert gap == pytest.approx(float((without - cached).abs().max()), abs=1e-6)


def test_where_the_lanes_choose_differently_it_is_said_and_comparison_ends() -> None:
    logits = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0]), torch.tensor([0.0, 1.0])]
    comparison = race_runs._Comparison(logits)
    comparison.take(torch.tensor([1.0, 2.5]))
    comparison.take(torch.tensor([3.0, 3.25]))
    comparison.take(torch.tensor([0.0, 1.0]))
    found = comparison.compared()
    assert found.first_difference == 1
    assert found.gaps == (0.5, 2.25) and found.margins == (1.5, 0.25)


def test_rows_are_sampled_once_at_the_end_and_are_those_of_a_plain_run(
    tiny: Callable[..., Loaded],
) -> None:
    log = made(tiny(), dataclasses.replace(SETTINGS, layer=None))
    samples = [e.event for e in log if e.kind == "kv_sample"]
    assert [(s.first, s.stop) for s in samples] == [(0, len(PROMPT) + 5)]
    plain = list(generate.generate(tiny(), lane("full"), run_id="plain"))
    each = [e for e in plain if e.kind == "kv_sample"]
    assert samples[0].k == b"".join(s.k for s in each)
    assert samples[0].v == b"".join(s.v for s in each)


def test_attention_weights_are_those_of_transformers_own_eager_attention(
    tiny: Callable[..., Loaded], tiny_folder: Callable[..., object]
) -> None:
    log = made(tiny())
    oracle = AutoModelForCausalLM.from_pretrained(tiny_folder(), attn_implementation="eager")
    first = log.members[0].log
    ids = list(first.started.prompt_token_ids[0]) + [s.token_ids[0][0] for s in first.steps[-6:]]
    prompt_len = len(first.started.prompt_token_ids[0])
    for one in log.members[-2:]:
        samples = [e for e in one.log if e.kind == "attention_sample"]
        assert len(samples) == 2
        for n, sample in enumerate(samples, start=1):
            with torch.inference_mode():
                out = oracle(torch.tensor([ids[: prompt_len + n]]), output_attentions=True)
            theirs = out.attentions[1][0, 2, sample.first_query :]
            assert torch.tensor(sample.weights) == pytest.approx(theirs, abs=2e-5)
            queries = 1 if one.label["cache"] == "full" else race_runs.MOST_QUERIES
            assert len(sample.weights) == queries
            assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in sample.weights)


def test_the_cached_query_row_is_the_last_row_of_the_square_and_old_rows_stay(
    tiny: Callable[..., Loaded],
) -> None:
    log = made(tiny())
    rows, squares = (
        [e for e in one.log if e.kind == "attention_sample"] for one in log.members[-2:]
    )
    for row, square in zip(rows, squares, strict=True):
        assert np.array(row.weights[0]) == pytest.approx(square.weights[-1], abs=2e-5)
    before, after = np.array(squares[0].weights), np.array(squares[1].weights)
    assert after[-2, :-1] == pytest.approx(before[-1], abs=2e-5)
    assert after[-2, -1] == 0


def test_a_look_leaves_rows_tokens_and_counts_as_they_were(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny()
    asked = lane("full")
    plain = RunLog.of(generate.generate(loaded, asked, run_id="a"))
    capture = race_runs.Capture(1, 0, 4)
    options = generate.Options(capture=capture)
    looked = RunLog.of(generate.generate(loaded, asked, run_id="b", options=options))
    for one, other in zip(plain.steps, looked.steps, strict=True):
        untimed = {"start_ns": 0, "end_ns": 0}
        assert dataclasses.replace(one, **untimed) == dataclasses.replace(other, **untimed)
    samples = [[e.k for e in log if e.kind == "kv_sample"] for log in (plain, looked)]
    assert samples[0] == samples[1]


def test_another_first_token_moves_every_row_above_layer_0_and_no_other_in_it(
    tiny: Callable[..., Loaded],
) -> None:
    changed = made(tiny()).finding(PrefixChanged)
    moved = np.frombuffer(changed.changes, np.uint8).reshape(changed.num_rows, changed.num_layers)
    assert changed.num_rows == len(PROMPT) and changed.num_layers == 3
    assert moved[0, 0] > 0 and not moved[1:, 0].any()
    assert moved[:, 1:].all()


def test_the_work_of_both_lanes_equals_torchs_counter(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny()
    for cache in ("none", "full"):
        asked = dataclasses.replace(lane(cache), warm_up=False)
        counter = FlopCounterMode(display=False, custom_mapping=UNKNOWN)
        with counter, sdpa_kernel(SDPBackend.MATH):
            log = RunLog.of(generate.generate(loaded, asked, run_id="r"))
        assert race.so_far(race.token_costs(log), 6).flops == counter.get_total_flops()


def test_the_counter_misses_the_flash_kernel_of_a_cpu() -> None:
    """Why the steps are counted with the math kernel."""
    q, k, v = torch.randn(3, 1, 2, 8, 16).unbind()
    found = []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with FlopCounterMode(display=False) as counter, sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
        found.append(counter.get_total_flops())
    assert found == [4 * 2 * 8 * 8 * 16, 0]


def test_the_lane_without_a_cache_works_out_the_logits_of_one_row_only(
    tiny: Callable[..., Loaded],
) -> None:
    loaded = tiny()
    asked = dataclasses.replace(lane("none"), warm_up=False)
    shapes = []
    hook = loaded.model.get_output_embeddings().register_forward_hook(
        lambda module, args, out: shapes.append(tuple(out.shape[:2]))
    )
    steps = [e for e in generate.generate(loaded, asked, run_id="r") if isinstance(e, StepFinished)]
    hook.remove()
    assert shapes == [(1, 1)] * len(steps) and steps[-1].num_new_tokens == (len(PROMPT) + 5,)


def test_both_lanes_take_the_same_attention_in_the_same_type(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AttentionInterface

    from viz_engine.engine.kernels.attention import ATTENTION, row_attention

    seen = set()

    def watched(module, query, *args, **kwargs):
        seen.add((name, query.dtype))
        return row_attention(module, query, *args, **kwargs)

    loaded = tiny("llama", "bfloat16")
    monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION, watched)
    for name in ("none", "full"):
        asked = dataclasses.replace(lane(name), warm_up=False)
        list(generate.generate(loaded, asked, run_id="r", options=generate.Options(eager=True)))
    assert seen == {("none", torch.bfloat16), ("full", torch.bfloat16)}


def test_any_two_settings_are_raced(tiny: Callable[..., Loaded]) -> None:
    """Two number formats: two models, and never both held."""
    asked: list[str] = []

    def load(run: RunSettings) -> Loaded:
        asked.append(run.dtype)
        return tiny("llama", run.dtype)

    lanes = ({"dtype": "float32"}, {"dtype": "bfloat16"})
    settings = dataclasses.replace(SETTINGS, lanes=lanes, layer=None)
    log = ExperimentLog.of(race_runs.race(load, settings, experiment_id="r"))
    assert log.finished.finish_reason == "done"
    labels = [one.label["dtype"] for one in log.members]
    assert labels == ["bfloat16", "float32", "float32", "bfloat16"]
    for one in log.members:
        assert one.log.started.settings.dtype == one.label["dtype"]
    assert len(log.finding(LogitsCompared).gaps) >= 1
    assert all(a != b for a, b in zip(asked, asked[1:], strict=False)), "loaded when it differs"


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "run", "key"),
    [
        ({"repeats": 0}, {}, "error.race_repeats"),
        ({"repeats": 6}, {}, "error.race_repeats"),
        ({"layer": 3}, {}, "error.race_layer"),
        ({"query_head": 4}, {}, "error.race_head"),
        ({}, {"batch": 2}, "error.race_batch"),
        ({}, {"temperature": 0.5}, "error.race_temperature"),
        ({}, {"new_tokens": 0}, "error.new_tokens_zero"),
        ({}, {"prompts": ("",)}, "error.prompt_empty"),
        ({}, {"prompts": ("x" * 2000,)}, "error.prompt_window"),
        ({}, {"new_tokens": 2000}, "error.new_tokens_window"),
    ],
)
def test_a_race_that_cannot_be_is_refused_before_it_begins(
    tiny: Callable[..., Loaded], changes: dict, run: dict, key: str
) -> None:
    settings = dataclasses.replace(SETTINGS, run=dataclasses.replace(RUN, **run), **changes)
    with pytest.raises(UserError) as refused:
        next(race_runs.race(lambda run: tiny(), settings, experiment_id="r"))
    assert refused.value.message.key == key


def test_a_cancelled_race_keeps_the_lane_that_came_to_its_end(tiny: Callable[..., Loaded]) -> None:
    asked = iter(range(10_000))
    stop_at = 4 + 8 + 3  # looks at the warm-up, at the lane with the cache, into the other
    log = made(tiny(), cancelled=lambda: next(asked) > stop_at)
    assert log.finished.finish_reason == "cancelled"
    assert len(log.runs({"cache": "full"})) == 1 and log.runs({"cache": "none"}) == []
    assert [m.params for m in race.missing(log)] == [
        {"made": 0, "asked": 2},
        {"made": 1, "asked": 2},
    ]
    assert race.table(log, 6)[0]["so_far"][1] == len(PROMPT) + 5
    assert ExperimentLog.read(log.to_jsonl().encode()).finished == log.finished


def test_a_failure_in_mid_race_is_its_last_record(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = generate.forward, []

    def fails(*args: object) -> torch.Tensor:
        calls.append(args)
        if len(calls) > 24:
            raise RuntimeError("the model fell over")
        return forward(*args)

    loaded = tiny()
    monkeypatch.setattr(generate, "forward", fails)
    log = made(loaded)
    assert log.finished.finish_reason == "error" and "fell over" in str(log.finished.error)
    assert log.members and log.members[-1].log.finished is not None


def test_a_single_token_race_has_no_looks_and_still_ends(tiny: Callable[..., Loaded]) -> None:
    run = dataclasses.replace(RUN, new_tokens=1, prompts=("x",))
    log = made(tiny(), dataclasses.replace(SETTINGS, run=run, repeats=1))
    assert log.finished.finish_reason == "done" and len(log.finding(LogitsCompared).gaps) == 1
    assert not [e for e in log if e.kind == "attention_sample"]
