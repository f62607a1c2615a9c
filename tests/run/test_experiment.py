"""The log of an experiment: whose record is whose, what follows what, and any setting varied."""

import dataclasses
import json

import pytest

from tests.support import producer
from tests.support.experiments import begun
from viz_engine.run import experiment
from viz_engine.run.checks import check_race
from viz_engine.run.codec import settings_from_dict, settings_to_dict
from viz_engine.run.codec import to_line as run_line
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import (
    KINDS,
    CeilingsSettings,
    ExperimentFinished,
    ExperimentLog,
    ExperimentStarted,
    MemberEvent,
    MemberRefused,
    MemberStarted,
    from_line,
    name_of,
    to_line,
)
from viz_engine.run.files import LogError, what_is
from viz_engine.run.members import changed
from viz_engine.run.race import RaceSettings
from viz_engine.run.sweep import SweepSettings, check_sweep
from viz_engine.text import Message, UserError

RUN = RunSettings(model="m", prompts=("a",), new_tokens=4)
SWEEP = SweepSettings(what="batch", run=RUN, values=(1, 2), repeats=1)
SETTINGS = {
    "run": RUN,
    "race": RaceSettings(run=RUN, lanes=({"dtype": "float32"}, {"chunk_len": 64, "chat": False})),
    "sweep": dataclasses.replace(SWEEP, what="cache", values=("full", "none")),
    "ceilings": CeilingsSettings(device="cpu"),
}


def of_batch(batch: int, new_tokens: int = 4) -> list:
    return list(producer.events((12,) * batch, new_tokens, sampled=False))


def started(member: int, batch: int) -> MemberStarted:
    return MemberStarted(member=member, label={"batch": batch}, repeat=0)


def two_at_once() -> list:
    """Two members whose records come by turns."""
    runs = [of_batch(1), of_batch(2)]
    records = [started(0, 1), started(1, 2)]
    for pair in zip(*runs, strict=True):
        records += [MemberEvent(member, event) for member, event in enumerate(pair)]
    return [*begun(SWEEP), *records, ExperimentFinished(finish_reason="done")]


def test_members_may_be_open_at_once_and_each_has_its_own_records() -> None:
    log = ExperimentLog.of(two_at_once())
    assert [one.log.events for one in log.members] == [of_batch(1), of_batch(2)]
    assert [len(log.runs({"batch": batch})) for batch in (1, 2)] == [1, 1]
    assert log.runs({"batch": 4}) == [] and len(log.runs()) == 2
    assert ExperimentLog.read(log.to_jsonl().encode(), "sweep").events == log.events


def test_a_record_of_a_member_is_the_line_of_its_run_and_whose_it_is() -> None:
    for event in producer.events((12,), 2):
        line, plain = to_line(MemberEvent(7, event)), run_line(event)
        assert json.loads(line) == json.loads(plain) | {"member": 7}
        assert line.startswith(plain[:-1]) and "member" not in json.loads(plain)
        assert from_line(line) == from_line(line.encode() + b"\n") == MemberEvent(7, event)
        with pytest.raises(UserError, match="member"):
            from_line(plain)


def test_a_prompt_that_looks_like_a_member_is_none() -> None:
    first = of_batch(1)[0]
    texts = (('x","member":3}',) * 12,)
    event = dataclasses.replace(first, prompt_texts=texts, command='","member":5}')
    assert from_line(to_line(MemberEvent(0, event))) == MemberEvent(0, event)
    with pytest.raises(UserError):
        from_line(run_line(event))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_table_names_what_settings_ask_for_and_reads_them_back(name: str) -> None:
    settings = SETTINGS[name]
    assert name_of(settings) == name
    kind = KINDS[name].settings if name in KINDS else RunSettings
    assert settings_from_dict(settings_to_dict(settings), kind) == settings
    if name in KINDS:
        head = ExperimentStarted(
            experiment=name, experiment_id="x", started_at="", settings=settings, command=""
        )
        assert from_line(to_line(head)) == head
        assert what_is(to_line(head).encode()) == name


def broken() -> dict[str, list]:
    whole = two_at_once()
    head, records = whole[:1], whole[1:]
    refused = MemberRefused(member=0, error=Message(key="error.file_empty"))
    return {
        "no head": records,
        "two heads": [*head, *head],
        "a member out of turn": [*head, started(1, 2)],
        "a value that is not planned": [*head, started(0, 3)],
        "another setting": [*head, MemberStarted(member=0, label={"seed": 1}, repeat=0)],
        "a run of another member": [*head, started(0, 1), MemberEvent(0, of_batch(2)[0])],
        "a record of nobody": [*head, MemberEvent(0, of_batch(1)[0])],
        "an end while a run is on": [*whole[:5], ExperimentFinished(finish_reason="done")],
        "a refusal in mid-run": [*whole[:5], refused],
        "a record after the refusal": [*whole[:3], refused, whole[3]],
        "a refusal of nobody": [*head, refused],
        "two ends": [*whole, whole[-1]],
        "an unknown reason": [*head, ExperimentFinished(finish_reason="won")],
    }


@pytest.mark.parametrize("what", broken())
def test_a_record_out_of_its_place_is_refused(what: str) -> None:
    with pytest.raises(LogError):
        ExperimentLog.of(broken()[what])


def test_closing_ends_every_member_that_is_on() -> None:
    log = ExperimentLog.of(two_at_once()[:7])
    for event in log.closing("cancelled", None):
        log.append(event)
    assert [one.log.finished.finish_reason for one in log.members] == ["cancelled"] * 2
    assert log.ended == "cancelled" and log.runs() == []


def test_a_member_that_was_refused_is_in_the_file_with_its_reason() -> None:
    why = Message(key="error.batch", params={"batch": 2, "most": 1})
    log = ExperimentLog.of([*begun(SWEEP), started(0, 2), MemberRefused(member=0, error=why)])
    again = ExperimentLog.read(log.to_jsonl().encode())
    assert again.members[0].error == why and not again.members[0].open
    assert [planned.label for planned in again.standing._rest()] in ([], [{"batch": 1}])


# ---- any two settings, any setting ---------------------------------------------------------------


def test_what_a_label_changes_is_checked_like_any_setting() -> None:
    assert changed(RUN, {"chunk_len": 64, "cache": "none"}).chunk_len == 64
    for label in ({"colour": "red"}, {"chunk_len": "much"}, {"chat": 3}):
        with pytest.raises(UserError):
            changed(RUN, label)


@pytest.mark.parametrize(
    "lanes, key",
    [
        (({"cache": "none"},), "error.race_lanes"),
        (({"cache": "none"}, {"cache": "none"}), "error.race_lanes"),
        (({"cache": "none"}, {"colour": "red"}), "experiment.no_setting"),
        (({"cache": "none"}, {"cache": "half"}), "error.cache_policy"),
        (({"batch": 1}, {"batch": 2}), "error.race_batch"),
        (({"temperature": 0.0}, {"temperature": 0.5}), "error.race_temperature"),
    ],
)
def test_lanes_that_cannot_be_raced_are_refused_in_words(lanes: tuple, key: str) -> None:
    with pytest.raises(UserError) as refused:
        check_race(RaceSettings(run=RUN, lanes=lanes), 3, 4)
    assert refused.value.message.key == key


def test_a_sweep_of_any_setting_is_planned() -> None:
    asked = SETTINGS["sweep"]
    check_sweep(asked)
    assert sorted(p.run.cache for p in asked.order()) == ["full", "none"]
    with pytest.raises(UserError) as refused:
        check_sweep(dataclasses.replace(asked, values=("full", "half")))
    assert refused.value.message.key == "error.cache_policy"


def test_the_kind_that_others_may_interrupt_is_the_sweep() -> None:
    assert {name for name, kind in KINDS.items() if not kind.exclusive} == {"sweep"}
    assert experiment.SCHEMA == 2
