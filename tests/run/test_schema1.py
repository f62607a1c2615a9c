"""Files of the first published form open for ever: shortened copies of a recorded run and race,
from before records had columns, drafts, found rows or numbers of parts."""

from pathlib import Path

import pytest

from viz_engine.run.log import RunLog
from viz_engine.run.race import RaceLog
from viz_engine.server import registry

DATA = Path(__file__).parents[1] / "data" / "schema1"
NEW = ("num_columns", "drafted", "kv_bytes_needed", "found_len", "numbers", "kept_cells")
BYTES = ("kv_live_bytes", "kv_reserved_bytes", "kv_bytes_read", "kv_bytes_written")


@pytest.mark.parametrize("name", ["run", "race"])
def test_the_files_are_as_old_as_they_say(name: str) -> None:
    text = (DATA / f"{name}.jsonl").read_text(encoding="ascii")
    assert '"schema":1' in text and not any(f'"{field}"' in text for field in NEW)


def test_an_old_run_opens_and_its_bytes_are_those_of_the_formula() -> None:
    log = RunLog.read((DATA / "run.jsonl").read_bytes())
    assert len(log.steps) == 10 and log.finished is not None and log.started.found_len == ()
    assert {event.kind for event in log} >= {"kv_sample", "step_finished"}
    assert log.num_columns == log.num_rows[0] == log.started.prompt_columns + 9
    for step, predicted in log.with_costs():
        assert all(getattr(step, field) == getattr(predicted, field) for field in BYTES)
    assert RunLog.read(log.to_jsonl().encode()).events == log.events


def test_an_old_race_opens_with_all_kinds_of_its_records() -> None:
    log = RaceLog.read((DATA / "race.jsonl").read_bytes())
    assert log.finished is not None and log.logits is not None and log.prefix is not None
    assert [(lane.cache, lane.purpose) for lane in log.lanes[:2]] == [
        ("full", "measured"),
        ("none", "measured"),
    ]
    assert any(event.kind == "attention_sample" for event in log)
    for lane in log.lanes:
        assert lane.log.columns[-1] == max(lane.log.steps[-1].context_len)
        for step, predicted in lane.log.with_costs():
            assert all(getattr(step, field) == getattr(predicted, field) for field in BYTES)


def shown(log: RunLog | RaceLog) -> registry.Run:
    run = registry.Run("old", None, None, RaceLog() if isinstance(log, RaceLog) else None)
    for event in log:
        run.append_event(event, registry.to_line(event))
    return run


def test_an_old_file_is_shown_with_columns_and_costs() -> None:
    for log in (
        RunLog.read((DATA / "run.jsonl").read_bytes()),
        RaceLog.read((DATA / "race.jsonl").read_bytes()),
    ):
        run = shown(log)
        assert run.columns and None not in (*run.sizes, *run.predicted)
