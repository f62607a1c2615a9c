"""The race: what its log takes, how it is made on a real model, and what follows from it."""

import csv
import dataclasses
import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from tests.support import producer
from tests.support.flops import UNKNOWN
from tests.support.races import staged
from tests.support.specs import spec
from viz_engine.analysis import growth, race
from viz_engine.engine import generate, race_runs
from viz_engine.engine.load import Loaded
from viz_engine.model import config, files
from viz_engine.run import command, cost, metrics
from viz_engine.run.codec import to_line
from viz_engine.run.events import AttentionSample, RunSettings, StepFinished, Telemetry
from viz_engine.run.experiment import (
    ExperimentFinished,
    ExperimentLog,
    LogitsCompared,
    MemberEvent,
    MemberStarted,
    PrefixChanged,
)
from viz_engine.run.log import LogError, RunLog
from viz_engine.run.race import LANES, RaceSettings
from viz_engine.text import UserError

PROMPT = "a prompt of some length, long enough for two pieces"
RUN = RunSettings(
    model="tiny", prompts=(PROMPT,), chat=False, new_tokens=6, chunk_len=20, stop_token_ids=()
)
SETTINGS = RaceSettings(run=RUN, repeats=2, layer=1, query_head=2)
SPEC = spec()  # the default model's sizes


def made(loaded: Loaded, settings: RaceSettings = SETTINGS, **given: object) -> ExperimentLog:
    return log_of(race_runs.race(lambda run: loaded, settings, experiment_id="r", **given))


def log_of(events: object) -> ExperimentLog:
    return ExperimentLog.of(events)


def lane(cache: str) -> RunSettings:
    """What a lane of RUN does."""
    return SETTINGS.lane({"cache": cache})


def both(**changes: object) -> ExperimentLog:
    return log_of(staged(("full", 20), ("none", 100), **changes))


# ---- the log -----------------------------------------------------------------------------------


def test_a_race_is_read_back_equal_from_its_file() -> None:
    log = both()
    again = ExperimentLog.read(log.to_jsonl().encode())
    assert again.events == log.events and again.finished.finish_reason == "done"
    assert [one.label["cache"] for one in again.members] == ["full", "none"]


def test_a_record_out_of_its_place_is_refused() -> None:
    events = staged(("full", 20), ("none", 100))
    lane = events.index(next(e for e in events if isinstance(e, MemberStarted)))
    wrong = MemberStarted(member=0, label={"cache": "none"}, repeat=0)
    uneven = LogitsCompared(gaps=(1.0,), margins=(), largest_logit=1.0, first_difference=None)
    broken = [
        events[1:],  # without ExperimentStarted
        [events[0], *events[lane + 1 :]],  # a run outside of a lane
        [*events[:lane], wrong, *events[lane + 1 :]],  # a cached run in the other lane
        [*events[: lane + 3], ExperimentFinished(finish_reason="done")],  # in mid-run
        [*events[: lane + 3], dataclasses.replace(wrong, member=1)],  # one inside another
        [*events, events[-1]],
        [events[0], events[0]],
        [*events[:-1], ExperimentFinished(finish_reason="won")],
        [events[0], dataclasses.replace(wrong, label={"cache": "half"})],
        [events[0], dataclasses.replace(wrong, member=1)],
        [events[0], dataclasses.replace(wrong, purpose="fun")],
        [events[0], *[dataclasses.replace(wrong, member=i) for i in range(20)]],
        [events[0], uneven],
    ]
    for part in broken:
        with pytest.raises(LogError):
            log_of(part)


def test_lanes_that_read_different_prompts_are_refused() -> None:
    other = staged(("full", 20), ("none", 100), prompt_len=20)
    begin = other.index(MemberStarted(member=1, label={"cache": "none"}, repeat=0))
    events = staged(("full", 20))[:-1] + other[begin:]
    with pytest.raises(LogError, match="different prompts"):
        log_of(events)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b"", "error.file_no_race"),
        (b"hello", "error.file_at_line"),
        (b'{"kind":"dream"}', "error.file_at_line"),
        (b'{"kind":"race_started"}', "error.file_at_line"),
        (b'{"kind":"race_finished","finish_reason":"done"}', "error.file_order"),
    ],
)
def test_a_file_that_is_no_race_is_refused_in_words(data: bytes, key: str) -> None:
    with pytest.raises(UserError) as refused:
        ExperimentLog.read(data, "race")
    assert refused.value.message.key == key


def test_a_file_of_this_app_of_another_kind_names_the_page_that_opens_it() -> None:
    files = [
        ("error.file_is_run", producer.log((12,), 3).to_jsonl().encode()),
        ("error.file_is_race", both().to_jsonl().encode()),
        ("error.file_is_race", b'{"kind":"race_started","race_id":"r","schema":1}\n'),
        ("error.file_is_sweep", b'{"kind": "sweep", "schema": 1}\n'),
        ("error.file_is_sweep", b'{"kind":"experiment_started","experiment":"sweep"}\n'),
    ]
    readers = {
        "run": RunLog.read,
        "race": lambda data: ExperimentLog.read(data, "race"),
        "sweep": lambda data: ExperimentLog.read(data, "sweep"),
    }
    for name, read in readers.items():
        own = f"error.file_is_{name}"
        for key, data in files:
            if key != own:
                with pytest.raises(UserError) as refused:
                    read(data)
                assert refused.value.message.key == key


def test_a_race_whose_end_is_missing_closes_with_what_it_has() -> None:
    log = log_of(staged(("full", 20), ("none", 100))[:-6])
    assert log.finished is None
    for event in log.closing("cancelled", None):
        log.append(event)
    assert log.finished.finish_reason == "cancelled"
    assert len(log.runs({"cache": "full"})) == 1 and log.runs({"cache": "none"}) == []
    assert [message.key for message in race.missing(log)] == ["race.missing.none"]


def test_a_lane_that_never_began_closes_too() -> None:
    start = staged(("full", 20))[:-1]
    log = log_of([*start, MemberStarted(member=1, label={"cache": "none"}, repeat=0)])
    for event in log.closing("error", None):
        log.append(event)
    assert len(log.runs({"cache": "full"})) == 1 and log.started is log.members[0].log.started


# ---- alignment, table, spread --------------------------------------------------------------------


def test_at_token_k_both_lanes_stand_at_prompt_plus_k_minus_1_rows() -> None:
    log = both(prompt_len=300, new_tokens=8)
    for k in range(1, 9):
        rows = {}
        for cache in ("none", "full"):
            run = race.shown(log, cache)
            step = metrics.token_steps(run)[k - 1]
            rows[cache] = step.num_new_tokens[0] if cache == "none" else step.appended[0][1]
        assert rows == {"none": 300 + k - 1, "full": 300 + k - 1}
    steps = [metrics.token_steps(race.shown(log, cache))[1].step for cache in ("none", "full")]
    assert steps == [1, 3], "the lanes are aligned by token, not by step number"


def test_the_table_is_the_sum_of_the_events() -> None:
    log = both()
    table = {row["name"]: row for row in race.table(log, 5)}
    for place, cache in enumerate(("none", "full")):
        run = race.shown(log, cache)
        last = metrics.token_steps(run)[4]
        steps = run.steps[: last.step + 1]
        assert table["rows"]["so_far"][place] == sum(s.num_new_tokens[0] for s in steps)
        assert table["rows"]["token"][place] == last.num_new_tokens[0]
        moved = sum(s.weight_bytes_read + s.kv_bytes_read + s.kv_bytes_written for s in steps)
        assert table["moved_bytes"]["so_far"][place] == moved
        assert table["ns"]["so_far"][place] == last.end_ns - run.started.accepted_ns
        assert table["ns"]["token"][place] == last.end_ns - steps[-2].end_ns
    for row in table.values():
        for span in ("token", "so_far"):
            without, cached, ratio = row[span]
            assert ratio == (without / cached if cached else None)
    assert table["energy_j"]["so_far"] == (None, None, None), "no sensor, no number"


def test_the_csv_holds_the_table_of_every_token() -> None:
    log = both(new_tokens=5)
    rows = list(csv.DictReader(io.StringIO(race.csv_text(log))))
    assert [row["token"] for row in rows] == ["1", "2", "3", "4", "5"]
    for k, row in enumerate(rows, start=1):
        for found in race.table(log, k)[:4]:
            for span in ("token", "so_far"):
                for part, value in zip(race.PARTS, found[span], strict=True):
                    assert float(row[f"{found['name']}.{span}.{part}"]) == value
    assert rows[0]["energy_j.so_far.none"] == ""


def test_a_lane_that_is_missing_has_no_numbers_and_no_ratio() -> None:
    log = log_of(staged(("full", 20)))
    for row in race.table(log, 3):
        assert row["token"][0] is None and row["token"][2] is None
    assert race.ratios(log) == [None] * 8 and race.gain_from(log) is None


def test_the_run_of_median_time_is_shown_and_the_spread_is_over_all() -> None:
    log = log_of(staged(("full", 20), ("none", 100), ("none", 140), ("full", 30), ("full", 25)))
    assert race.shown(log, "full") is log.runs({"cache": "full"})[2]
    assert race.shown(log, "none") is log.runs({"cache": "none"})[0], "of two the faster"
    spread = race.times_ns(log, "full", 8)
    totals = sorted(race.total_ns(run) for run in log.runs({"cache": "full"}))
    assert (spread.low, spread.median, spread.high, spread.num) == (*totals, 3)
    last = race.ratios(log)[-1]
    assert last.low < last.median < last.high


def test_the_gain_begins_where_a_tenth_is_saved_to_the_end() -> None:
    assert race.gain_from(both(prompt_len=128)) is not None
    assert race.gain_from(log_of(staged(("full", 20), ("none", 20), prompt_len=128))) is None
    late = log_of(staged(("full", 20), ("none", 30), prompt_len=128, new_tokens=40))
    found = race.gain_from(late)
    ratios = [spread.low for spread in race.ratios(late)]
    assert 1 < found and ratios[found - 2] < race.NO_GAIN <= min(ratios[found - 1 :])


def test_a_gain_that_only_some_runs_show_is_none() -> None:
    lanes = (("full", 20), ("none", 200), ("none", 20), ("full", 20))
    noisy = log_of(staged(*lanes, prompt_len=128))
    assert race.ratios(noisy)[-1].median > race.NO_GAIN and race.gain_from(noisy) is None


def test_energy_is_the_power_held_from_reading_to_reading() -> None:
    run = RunLog.of(list(producer.events((12,), 3))[:1])
    start = run.started.accepted_ns
    reading = Telemetry(
        t_ns=0, memory_used_bytes=None, utilisation=None, memory_bus_utilisation=None, power_w=None
    )
    for at_s, power in ((1, 100.0), (2, 50.0), (3, None), (9, 999.0)):
        run.append(dataclasses.replace(reading, t_ns=start + at_s * 10**9, power_w=power))
    assert race.energy_j(run, start + 4 * 10**9) == 100 + 100 + 2 * 50
    assert race.energy_j(run, start + 1 * 10**9) is None


# ---- how the work grows --------------------------------------------------------------------------


def test_linear_layers_grow_with_exponent_2_without_a_cache_and_1_with() -> None:
    lengths = growth.lengths(8192)
    assert len(lengths) >= 6 and lengths[0] == 64 and lengths[-1] == 8192
    for cached, linear, attention in ((False, 2.0, 3.0), (True, 1.0, 2.0)):
        found = growth.grown(SPEC, lengths, cached=cached)
        assert growth.exponent(lengths, [g.linear for g in found]) == pytest.approx(
            linear, abs=0.05
        )
        assert growth.exponent(lengths, [g.attention for g in found]) == pytest.approx(
            attention, abs=0.05
        )


@pytest.mark.parametrize("cached", [False, True])
def test_the_law_is_the_leading_part_of_the_sum(cached: bool) -> None:
    law = growth.law(SPEC, cached=cached)
    n = 4096
    [found] = growth.grown(SPEC, [n], cached=cached)
    assert law.a * n**law.power == pytest.approx(found.linear, rel=0.002)
    assert law.b * n ** (law.power + 1) == pytest.approx(found.attention, rel=0.002)
    around = [round(law.crossing * share) for share in (0.99, 1.01)]
    below, above = growth.grown(SPEC, around, cached=cached)
    assert below.linear > below.attention and above.linear < above.attention


def test_six_lengths_are_found_in_a_small_window_too() -> None:
    assert len(growth.lengths(100)) == 6 and max(growth.lengths(100)) <= 100
    assert growth.lengths(None)[-1] == 8192


WINDOWED = {"model_type": "mistral", "sliding_window": 8}
LATENT = {"model_type": "minicpm3", "kv_lora_rank": 32, "q_lora_rank": 16, "qk_rope_head_dim": 8}
LATENT |= {"qk_nope_head_dim": 16, "v_head_dim": 16}


@pytest.mark.parametrize("changes", [WINDOWED, LATENT])
@pytest.mark.parametrize("cached", [False, True])
def test_with_windows_and_latent_rows_the_work_is_the_sum_of_its_steps(
    changes: dict, cached: bool
) -> None:
    spec = config.read(files.DEFAULT_CONFIG | changes).spec()
    given = {"batch": 1, "prompt_columns": 1, "cached": cached, "chunk_len": 0}
    steps = [
        cost.step(spec, "bfloat16", num_new=1 if cached else n, num_columns=n, **given)
        for n in range(1, 31)
    ]
    [grown] = growth.grown(spec, [30], cached=cached)
    assert grown.flops == sum(step.flops for step in steps)
    with pytest.raises(ValueError, match="no law"):
        growth.law(spec, cached=cached)


def test_growth_is_what_a_run_of_that_length_is_predicted_to_cost() -> None:
    for cache in ("none", "full"):
        run = producer.log((1,), 40, cache=cache, sampled=False)
        costs = race.token_costs(run)
        [grown] = growth.grown(producer.spec(), [40], cached=cache == "full")
        assert race.so_far(costs, 40).flops == grown.flops


# ---- made on a model -----------------------------------------------------------------------------


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
    log = log_of(race_runs.race(load, settings, experiment_id="r"))
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


@pytest.mark.parametrize("lanes", [LANES, ({"chunk_len": 8}, {"chat": False, "seed": 1})])
def test_the_command_of_a_race_makes_the_same_race(lanes: tuple) -> None:
    import shlex

    from viz_engine.__main__ import parser

    run = dataclasses.replace(RUN, model="some/where", chunk_len=256, stop_token_ids=None)
    settings = dataclasses.replace(SETTINGS, run=run, lanes=lanes)
    words = shlex.split(command.race_command(settings))
    args = parser().parse_args(words[3:])
    assert command.race_settings_of(args) == settings


def test_cost_of_a_cached_step_is_the_last_row_of_the_square() -> None:
    common = {"batch": 1, "num_columns": 300, "prompt_columns": 1}
    without = cost.step(SPEC, "bfloat16", num_new=300, cached=False, **common)
    cached = cost.step(SPEC, "bfloat16", num_new=1, cached=True, **common)
    assert without.attention_flops == 300 * cached.attention_flops


# ---- what the panels show ------------------------------------------------------------------------


def test_the_ratio_of_work_at_each_token_is_that_of_all_so_far() -> None:
    log = both()
    found = race.flop_ratios(log)
    rows = {row["name"]: row for row in race.table(log, 5)}
    assert len(found) == race.num_tokens(log) and found[4] == rows["flops"]["so_far"][2]


def test_a_lane_is_predicted_to_cost_what_its_run_is() -> None:
    log = both(prompt_len=100)  # in one piece
    for cache in ("none", "full"):
        run = race.shown(log, cache)
        flops = race.so_far(race.token_costs(run), race.num_tokens(log)).flops
        settings, prompt_len = run.started.settings, run.started.prompt_columns
        assert flops == growth.lane_flops(
            run.started.spec, settings.dtype, prompt_len, settings.new_tokens, cache
        )


def test_times_are_taken_at_halves_of_a_run() -> None:
    run = race.shown(both(new_tokens=64), "full")
    found = race.times_at(run)
    assert [n for n, _ in found] == [1, 2, 4, 8, 16, 32, 64]
    seconds = [s for _, s in found]
    assert seconds == sorted(seconds) and seconds[-1] == race.total_ns(run) / 1e9


def sample(first_query: int, *rows: tuple[float, ...]) -> AttentionSample:
    return AttentionSample(
        step=0, sequence=0, layer=3, query_head=1, first_query=first_query, weights=rows
    )


def test_the_same_row_of_two_attention_panels_is_level() -> None:
    second, third, fourth = (0.5, 0.5, 0.0), (0.2, 0.3, 0.5), (0.1, 0.2, 0.3, 0.4)
    grown = [(*second, 0.0), (*third, 0.0), fourth]
    looked = {
        "none": [sample(1, second, third), sample(1, *grown)],
        "full": [sample(2, third), sample(3, fourth)],
    }
    events = staged(("full", 20), ("none", 100))
    for member, (cache, samples) in enumerate(looked.items(), 2):
        lane = MemberStarted(member=member, label={"cache": cache}, repeat=0, purpose="look")
        run = with_samples(cache, samples)
        events[-1:-1] = [lane, *(MemberEvent(member, event) for event in run)]
    rows = race.attention_rows(log_of(events))
    assert (rows.layer, rows.query_head, rows.first_query) == (3, 1, 1)
    assert (rows.num_queries, rows.num_keys) == (2, 3)
    without, with_it = rows.panels[:2], rows.panels[2:]
    assert without[0] == [list(second), list(third), [None]]
    assert without[1] == [list(row) for row in grown]
    assert with_it[0] == [[None] * 4, list(third), [None] * 4]
    assert with_it[1] == [[None] * 4, [None] * 4, list(fourth)]
    assert race.attention_rows(both()) is None


def with_samples(cache: str, samples: list[AttentionSample]) -> list[object]:
    """A run's records with samples behind its first step."""
    events = [*producer.events((300,), 2, cache=cache, piece=300, step_ms=1, sampled=False)]
    at = next(i for i, event in enumerate(events) if isinstance(event, StepFinished)) + 1
    return [*events[:at], *samples, *events[at:]]


def test_a_byte_of_128_is_a_key_that_moved_by_its_own_length_and_12_a_doubling() -> None:
    changed = PrefixChanged(
        before="a", after="b", num_rows=2, num_layers=2, changes=bytes((128, 116, 140, 0))
    )
    assert race.moved(changed) == [[1.0, 0.5], [2.0, 0.0]]
