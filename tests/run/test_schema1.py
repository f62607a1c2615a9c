"""Files of the first published form open for ever, as what they were: shortened copies of a run, a
race and sweeps that shipped, from before records had columns, drafts, found rows or numbers of
parts, and races and sweeps one form; and lines made here."""

import json
from pathlib import Path

import pytest

from tests.support import producer
from viz_engine.analysis import race
from viz_engine.analysis.points import points_of
from viz_engine.run.codec import from_line
from viz_engine.run.events import KINDS
from viz_engine.run.experiment import ExperimentLog, LogitsCompared, PrefixChanged
from viz_engine.run.log import RunLog
from viz_engine.server.runs import Run
from viz_engine.text import UserError

FOLDER = Path(__file__).parents[1] / "data" / "schema1"
RUN = FOLDER / "run.jsonl"
NEW = ("num_columns", "drafted", "kv_bytes_needed", "found_len", "numbers", "kept_cells")
BYTES = ("kv_live_bytes", "kv_reserved_bytes", "kv_bytes_read", "kv_bytes_written")
RACES = [FOLDER / "race.jsonl"]
SWEEPS = sorted(FOLDER.glob("sweep-*.jsonl"))


@pytest.mark.parametrize("path", [RUN, *RACES, *SWEEPS], ids=lambda path: path.stem)
def test_the_files_are_as_old_as_they_say(path: Path) -> None:
    text = path.read_text(encoding="ascii")
    assert '"schema":1' in text and not any(f'"{field}"' in text for field in NEW)


def test_an_old_run_opens_and_its_bytes_are_those_of_the_formula() -> None:
    log = RunLog.read(RUN.read_bytes())
    assert len(log.steps) == 10 and log.finished is not None and log.started.found_len == ()
    assert {event.kind for event in log} >= {"kv_sample", "step_finished"}
    assert log.num_columns == log.num_rows[0] == log.started.prompt_columns + 9
    for step, predicted in log.with_costs():
        assert all(getattr(step, field) == getattr(predicted, field) for field in BYTES)
    assert RunLog.read(log.to_jsonl().encode()).events == log.events


@pytest.mark.parametrize("path", RACES + SWEEPS, ids=lambda path: path.stem)
def test_members_of_old_files_have_the_bytes_of_the_formula(path: Path) -> None:
    log = ExperimentLog.read(path.read_bytes())
    assert log.members
    for one in log.members:
        assert one.log.columns[-1] == max(one.log.steps[-1].context_len)
        for step, predicted in one.log.with_costs():
            assert all(getattr(step, field) == getattr(predicted, field) for field in BYTES)


@pytest.mark.parametrize("path", [RUN, *RACES, *SWEEPS], ids=lambda path: path.stem)
def test_an_old_file_is_shown_with_columns_and_costs(path: Path) -> None:
    log = (RunLog if path is RUN else ExperimentLog).read(path.read_bytes())
    run = Run("old", None, None, type(log)())
    for event in log:
        run.append_event(event, log.to_line(event))
    assert run.finished and run.columns and None not in (*run.sizes, *run.predicted)


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("path", RACES + SWEEPS, ids=lambda path: path.stem)
def test_every_record_of_a_run_is_kept_as_it_was(path: Path) -> None:
    log = ExperimentLog.read(path.read_bytes(), path.stem.partition("-")[0])
    old = [from_line(json.dumps(line)) for line in lines_of(path) if line["kind"] in KINDS]
    assert [event for one in log.members for event in one.log] == old
    assert log.finished is not None and all(one.done for one in log.members)


@pytest.mark.parametrize("path", RACES + SWEEPS, ids=lambda path: path.stem)
def test_what_was_read_is_written_in_todays_form_and_read_back_equal(path: Path) -> None:
    log = ExperimentLog.read(path.read_bytes())
    lines = log.to_jsonl().splitlines()
    assert ExperimentLog.read(log.to_jsonl().encode()).events == log.events
    assert json.loads(lines[0])["kind"] == "experiment_started"
    assert json.loads(lines[-1])["kind"] == "experiment_finished"


@pytest.mark.parametrize("path", RACES, ids=lambda path: path.stem)
def test_a_race_has_its_lanes_and_what_was_found(path: Path) -> None:
    log, old = ExperimentLog.read(path.read_bytes(), "race"), lines_of(path)
    head = old[0]
    assert (log.head.experiment, log.head.experiment_id) == ("race", head["race_id"])
    assert (log.head.command, log.head.started_at) == (head["command"], head["started_at"])
    assert log.settings.repeats == head["settings"]["repeats"]
    lanes = [line for line in old if line["kind"] == "lane_started"]
    assert [(one.label, one.repeat, one.purpose) for one in log.members] == [
        ({"cache": lane["cache"]}, lane["repeat"], lane["purpose"]) for lane in lanes
    ]
    assert any(event.kind == "attention_sample" for event in log)
    kinds = {line["kind"] for line in old}
    assert (log.finding(LogitsCompared) is not None) == ("logits_compared" in kinds)
    assert (log.finding(PrefixChanged) is not None) == ("prefix_changed" in kinds)
    assert log.ended == "done" and race.table(log, 2)[0]["so_far"][2] > 1


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweep_has_its_settings_ceilings_and_labels(path: Path) -> None:
    log, head = ExperimentLog.read(path.read_bytes(), "sweep"), lines_of(path)[0]
    assert log.settings.what == path.stem.removeprefix("sweep-") == head["settings"]["what"]
    assert list(log.settings.values) == head["settings"]["values"]
    assert log.ceilings.bandwidth.per_s == head["ceilings"]["bandwidth"]["per_s"]
    assert log.ended == head["ended"]
    varied = log.settings.varied
    for one in log.members:
        assert one.label == {varied: getattr(one.log.started.settings, varied)}
    assert [point.value for point in points_of(log)] == sorted(
        {one.label[varied] for one in log.members}
    )


@pytest.mark.parametrize("path", RACES + SWEEPS, ids=lambda path: path.stem)
def test_one_that_is_cut_is_read_as_far_as_it_goes(path: Path) -> None:
    data = path.read_bytes()
    whole = ExperimentLog.read(data)
    last = data.rindex(b'{"kind":"run_finished"')
    log = ExperimentLog.read(data[: last + 30])
    assert log.finished is None and len(log.runs()) == sum(
        one.done and one.purpose == "measured" for one in whole.members[:-1]
    )


def race_lines(*between: str) -> bytes:
    started = {
        "kind": "race_started",
        "race_id": "r",
        "started_at": "",
        "settings": {"run": {"model": "m", "prompts": ["a"]}},
        "command": "",
        "schema": 1,
    }
    lane = {"kind": "lane_started", "cache": "full", "repeat": 0, "purpose": "measured"}
    return "\n".join([json.dumps(started), json.dumps(lane), *between, ""]).encode()


def test_magnitudes_are_taken_too() -> None:
    run = producer.log((12,), 3)
    assert any(event.kind == "kv_sample" for event in run)
    log = ExperimentLog.read(race_lines(*run.to_jsonl().splitlines()))
    assert log.members[0].log.events == run.events
    assert isinstance(log.members[0].log, RunLog)


@pytest.mark.parametrize(
    "line, words",
    [
        ('{"kind":"lane_started","cache":"full"}', "lane_started.repeat"),
        ('{"kind":"dream"}', "dream"),
        ('"a word"', "Line 3"),
        ("{", "Line 3"),
        ('{"kind":"step_finished"}', "Line 3"),
    ],
)
def test_a_line_that_is_wrong_is_named_by_its_place_in_the_file(line: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        ExperimentLog.read(race_lines(line, "{}"))
    assert "Line 3" in str(refused.value)


def test_a_schema_of_the_future_is_refused() -> None:
    data = race_lines().replace(b'"schema": 1', b'"schema": 7')
    with pytest.raises(UserError, match="7"):
        ExperimentLog.read(data)
