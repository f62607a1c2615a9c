"""What the race's panels say, of races whose times are known, in both languages."""

import functools

import pytest

from tests.support.races import staged
from viz_engine.analysis import growth, race
from viz_engine.analysis.race import CACHES, Spread
from viz_engine.run.experiment import ExperimentLog, LogitsCompared, PrefixChanged
from viz_engine.text import LANGUAGES, t
from viz_engine.view.race import words


@pytest.fixture(params=LANGUAGES)
def say(request: pytest.FixtureRequest) -> functools.partial:
    return lambda key, **params: t(key, request.param, **params)


def both(**changes: object) -> ExperimentLog:
    return ExperimentLog.of(staged(("full", 20), ("none", 100), **changes))


def english(key: str, **params: object) -> str:
    return t(key, "en", **params)


def test_the_cost_says_both_lanes_their_ratio_and_a_time_where_one_is_known(say) -> None:
    flops = {"none": 3_000_000_000, "full": 1_000_000_000}
    line = words.cost(2000, 8, flops, None, say)
    assert "2\u202f000" in line and "3 GFLOP" in line and "1 GFLOP" in line and "3.0" in line
    longer = words.cost(2000, 8, flops, 42.4, say)
    assert longer != line and "42" in longer


def test_the_gain_names_its_first_token_or_says_that_there_is_none(say) -> None:
    log = both(new_tokens=64)
    found, start = race.ratios(log), race.gain_from(log)
    assert start is not None and str(start) in words.gain(found, start, say)
    assert words.gain(found, None, say) == say(
        "race.gain.never", most=len(found), ratio=f"{found[-1].median:.1f}", num=1, n=None
    )


def test_the_gain_of_a_prompt_of_one_token_is_told_beside_another_prompt(say) -> None:
    log, tiny = both(), both(prompt_len=1)
    told = words.gain_note(log, tiny, say)
    assert told.startswith(say("race.gain.note")) and len(told) > len(say("race.gain.note")) + 1
    for none in (words.gain_note(log, None, say), words.gain_note(tiny, tiny, say)):
        assert none == say("race.gain.note") + " "


@pytest.mark.parametrize(("full", "apart"), [((1, 2, 3), False), ((4, 5, 6), True)])
def test_the_first_token_is_told_apart_only_beyond_chance(full, apart: bool) -> None:
    def spread(low: float, median: float, high: float) -> Spread:
        return Spread(low=low, median=median, high=high, num=3)

    told = words.ttft_note(both(), {"none": spread(1, 2, 3), "full": spread(*full)}, english)
    key = "race.gain.ttft_apart" if apart else "race.gain.ttft_same"
    assert told == english(key, prompt="300", num=3)


def test_the_proof_says_where_the_lanes_part(say) -> None:
    same = LogitsCompared(
        gaps=(0.0, 1e-5), margins=(2.0, 1.0), largest_logit=20.0, first_difference=None
    )
    parted = LogitsCompared(
        gaps=(0.0, 0.3), margins=(2.0, 0.125), largest_logit=20.0, first_difference=1
    )
    assert "1e-05" in words.proof(same, "float32", say)
    told = words.proof(parted, "bfloat16", say)
    assert "0.12" in told and "0.3" in told and "bfloat16" in told


def test_the_work_says_the_exponents_of_the_linear_layers(say) -> None:
    spec = both().started.spec
    lengths = growth.lengths(8192)
    lanes = {c: growth.grown(spec, lengths, cached=c == "full") for c in CACHES}
    laws = {c: growth.law(spec, cached=c == "full") for c in CACHES}
    told = words.work(lanes, laws, say)
    assert "2.00" in told and "1.00" in told and "·10" in told


def test_times_from_another_machine_are_called_recorded() -> None:
    run = race.shown(both(), "full")
    assert words.work_source(run, english, recorded=True) != words.work_source(
        run, english, recorded=False
    )


def test_the_prefix_leaves_out_the_first_row_and_the_first_layer(say) -> None:
    changed = PrefixChanged(
        before="<a>", after="*", num_rows=3, num_layers=2, changes=bytes((128, 128, 0, 128, 0, 0))
    )
    told = words.prefix(changed, race.moved(changed), say)
    assert "50%" in told and "\\<a\\>" in told and "\\*" in told
