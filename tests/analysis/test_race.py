"""The race: what its log takes, and what follows from it."""

import csv
import dataclasses
import io

import pytest

from tests.support import producer
from tests.support.races import RUN, SETTINGS, staged
from tests.support.specs import spec
from viz_engine.analysis import growth, race
from viz_engine.model import config, files
from viz_engine.run import command, cost, metrics
from viz_engine.run.events import AttentionSample, StepFinished, Telemetry
from viz_engine.run.experiment import (
    ExperimentFinished,
    ExperimentLog,
    LogitsCompared,
    MemberEvent,
    MemberStarted,
    PrefixChanged,
)
from viz_engine.run.files import LogError
from viz_engine.run.log import RunLog
from viz_engine.run.race import LANES
from viz_engine.text import UserError

SPEC = spec()  # the default model's sizes


def log_of(events: object) -> ExperimentLog:
    return ExperimentLog.of(events)


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


# ---- its command, and what the panels show -------------------------------------------------------


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


def test_a_table_of_all_tokens_works_out_each_lane_once(monkeypatch) -> None:
    log = log_of(staged(("full", 20), ("none", 100)))
    asked = []
    costs = race.token_costs
    monkeypatch.setattr(race, "token_costs", lambda run: (asked.append(run), costs(run))[1])
    assert race.csv_text(log) and len(asked) == 2
    assert race.so_far([], 3).flops == 0
