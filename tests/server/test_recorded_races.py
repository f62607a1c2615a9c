"""The races that ship: each is whole, says what made it, and its lanes are what they claim."""

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from viz_engine.__main__ import parser
from viz_engine.analysis import race
from viz_engine.paths import ASSETS
from viz_engine.run import command, metrics
from viz_engine.run.experiment import ExperimentLog, LogitsCompared

if TYPE_CHECKING:
    from viz_engine.engine.load import Loaded

RACES = sorted((ASSETS / "recorded" / "races").glob("*.jsonl"))
EACH = pytest.mark.parametrize("path", RACES, ids=lambda path: path.stem)
MOST_BYTES = 600_000  # a page that opens at once


def read(path: Path) -> ExperimentLog:
    return ExperimentLog.read(path.read_bytes(), "race")


@EACH
def test_a_recorded_race_is_whole_and_can_be_made_again(path: Path) -> None:
    log = read(path)
    assert log.finished.finish_reason == "done" and race.missing(log) == []
    assert path.stat().st_size < MOST_BYTES
    args = parser().parse_args(shlex.split(log.head.command)[3:])
    assert command.race_settings_of(args) == log.settings
    assert all(lane.log.started.hardware.name for lane in log.members)
    assert len({lane.log.started.settings.dtype for lane in log.members}) == 1


@EACH
def test_work_and_bytes_of_a_recorded_race_are_those_of_the_formula(path: Path) -> None:
    for lane in read(path).members:
        for step, predicted in lane.log.with_costs():
            assert step.weight_bytes_read == predicted.weight_bytes_read
            assert step.kv_bytes_read == predicted.kv_bytes_read
            assert step.kv_bytes_written == predicted.kv_bytes_written


@EACH
def test_the_lanes_of_a_recorded_race_agree_or_say_where_they_part(path: Path) -> None:
    log = read(path)
    none, full = (log.runs({"cache": cache})[0] for cache in ("none", "full"))
    ids = [[step.token_ids[0][0] for step in metrics.token_steps(run)] for run in (none, full)]
    parts = next((k for k, pair in enumerate(zip(*ids, strict=True)) if pair[0] != pair[1]), None)
    assert log.finding(LogitsCompared).first_difference == parts


@EACH
def test_no_recorded_race_is_faster_than_its_work_allows(path: Path) -> None:
    log = read(path)
    costs = [race.token_costs(race.shown(log, cache)) for cache in ("none", "full")]
    work = race.ratio(*(race.so_far(part, len(part)).flops for part in costs))
    assert 1 < race.ratios(log)[-1].median <= work


@EACH
def test_a_recorded_races_prompt_ids_come_out_again(
    path: Path, default_model: Callable[[str], "Loaded"]
) -> None:
    from viz_engine.engine import generate

    started = read(path).started
    ids = generate.encode(default_model("bfloat16"), started.settings)
    assert tuple(map(tuple, ids)) == started.prompt_token_ids


def test_one_of_them_begins_with_one_token() -> None:
    """Its times stand beside the predicted growth."""
    assert 1 in {read(path).started.prompt_columns for path in RACES}


@EACH
def test_the_time_of_a_race_is_told_by_one_of_its_size_only(path: Path) -> None:
    log = read(path)
    spec = log.started.spec
    lanes = {cache: race.shown(log, cache) for cache in race.CACHES}
    work = {c: sum(one.flops for one in race.token_costs(run)) for c, run in lanes.items()}
    took = sum(race.total_ns(run) for run in lanes.values()) / 1e9
    assert race.seconds_at(log, spec, work) == pytest.approx(took)
    twice = {cache: 2 * flops for cache, flops in work.items()}
    assert race.seconds_at(log, spec, twice) == pytest.approx(2 * took)
    assert race.seconds_at(log, spec, {c: 11 * flops for c, flops in work.items()}) is None
    assert race.seconds_at(log, dataclasses.replace(spec, vocab_size=7), work) is None
