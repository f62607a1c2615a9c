"""A race in the service: one job in the queue, held back until its end, kept when it is cut short.

The engine is the real owner on a scripted child (tests/support/child.py); the records are produced.
"""

import dataclasses
import json

import pytest

from tests.support.child import Child
from tests.support.races import staged
from tests.support.world import World
from viz_engine.run import protocol
from viz_engine.run.codec import settings_from_dict
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import (
    ExperimentFinished,
    ExperimentLog,
    MemberEvent,
    MemberStarted,
    to_line,
)
from viz_engine.run.race import RaceSettings
from viz_engine.server.limits import Limits
from viz_engine.server.registry import Registry
from viz_engine.server.runs import Run
from viz_engine.server.supervisor import Supervisor
from viz_engine.text import UserError

SETTINGS = RaceSettings(run=RunSettings(model="m", prompts=("a",), new_tokens=8), repeats=1)


class Race:
    """A race that a scripted child is asked for."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.now = 0.0
        engine = Supervisor(self._spawn, clock=lambda: self.now)
        engine.start = engine.check  # no thread of its own
        self.registry = Registry(engine, Limits(), clock=lambda: self.now, alive=lambda s: True)
        self.run = self.registry.submit(SETTINGS, "s")
        self.child.ready()
        engine.check()
        self.engine = engine

    def _spawn(self, on_line, on_exit) -> Child:
        self.children.append(Child(on_line, on_exit))
        return self.children[-1]

    @property
    def child(self) -> Child:
        return self.children[-1]

    def say(self, *events: object) -> None:
        for event in events:
            self.child.say(protocol.Record(self.run.id, to_line(event)))

    def frame(self) -> tuple[dict, list[str]]:
        head, *lines = self.run.read(0, "en").text.split("\n")
        return json.loads(head), lines


def test_a_race_is_one_job_with_its_settings() -> None:
    race = Race()
    sent = [message for message in race.child.sent if getattr(message, "what", "") == "race"]
    assert len(sent) == 1
    assert settings_from_dict(sent[0].settings, RaceSettings) == SETTINGS


def test_nothing_of_a_race_is_sent_before_its_end_and_then_all() -> None:
    race, events = Race(), staged(("full", 20), ("none", 100))
    woken = []
    race.run.subscribe(lambda: woken.append(1))
    race.say(*events[:-1])
    head, lines = race.frame()
    assert head["count"] == 0 and lines == [] and head["status"]["state"] == "running"
    assert "Without a cache, run 1 of 1" in head["status"]["text"]
    assert 0 < head["status"]["fraction"] <= 1
    assert len(woken) < len(events) / 2, "the picture is told now and then only"
    race.say(events[-1])
    head, lines = race.frame()
    assert head["count"] == len(lines) == len(events)
    assert len(head["predicted"]) == sum(json.loads(x)["kind"] == "step_finished" for x in lines)
    assert race.run.finished and race.run.message is None


def test_an_engine_that_dies_in_mid_race_leaves_the_finished_lane() -> None:
    race, events = Race(), staged(("full", 20), ("none", 100))
    race.say(*events[:-6])
    race.child.exit(-9)
    log = race.run.log
    assert race.run.finished and log.finished.finish_reason == "error"
    assert len(log.runs({"cache": "full"})) == 1 and log.runs({"cache": "none"}) == []
    assert "memory" in race.run.error.text("en")
    assert ExperimentLog.read("\n".join(race.run.lines).encode() + b"\n").events == log.events


def test_one_that_dies_between_two_lanes_too() -> None:
    race, events = Race(), staged(("full", 20))[:-1]
    race.say(*events, MemberStarted(member=1, label={"cache": "none"}, repeat=0))
    race.child.exit(3)
    assert race.run.finished and len(race.run.log.runs({"cache": "full"})) == 1


def test_stop_is_sent_on_and_the_race_keeps_what_it_has() -> None:
    race, events = Race(), staged(("full", 20), ("none", 100))
    second = [i for i, e in enumerate(events) if isinstance(e, MemberStarted)][1]
    race.say(*events[: second + 4])
    race.registry.cancel(race.run.id)
    assert race.child.sent[-1] == protocol.Cancel(run_id=race.run.id)
    (last,) = race.run.log.members[-1].log.closing("cancelled", None)
    race.say(MemberEvent(1, last), ExperimentFinished(finish_reason="cancelled"))
    race.child.say(protocol.Done(run_id=race.run.id))
    assert race.run.finished and race.run.note.key == "service.cancelled"
    assert len(race.run.log.runs({"cache": "full"})) == 1


def test_a_race_before_its_first_lane_is_watched_as_a_load() -> None:
    race = Race()
    race.say(staged(("full", 20))[0])
    assert race.run.log.started is None
    race.now += 5
    race.engine.check()
    assert not race.child.killed
    race.child.exit(-9)
    assert race.run.finished and "memory" in race.run.error.text("en")


def test_limits_are_those_of_the_runs_in_it() -> None:
    world = World()
    long = dataclasses.replace(SETTINGS.run, new_tokens=100_000)
    with pytest.raises(UserError) as refused:
        world.registry.submit(dataclasses.replace(SETTINGS, run=long), "s")
    assert refused.value.message.key == "service.new_tokens"
    world.registry.submit(SETTINGS, "s")
    with pytest.raises(UserError) as refused:
        world.registry.submit(SETTINGS.run, "s")
    assert refused.value.message.key == "service.one_run"


def test_a_race_from_a_file_is_a_finished_race() -> None:
    log = ExperimentLog.of(staged(("full", 20), ("none", 100)))
    run = World().registry.add_log(log, run_id="recorded-race-x")
    assert (
        isinstance(run, Run) and run.what == "race" and run.finished and len(run.lines) == len(log)
    )
