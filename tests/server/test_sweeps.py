"""A sweep on a server: the real child program with a fake model, and a child that does nothing."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.fake_engine import until
from tests.support.world import World
from viz_engine.run import ceilings
from viz_engine.run.codec import to_line
from viz_engine.run.events import RunStarted
from viz_engine.run.experiment import CeilingsFound, ExperimentLog
from viz_engine.run.sweep import SweepSettings
from viz_engine.server import registry
from viz_engine.server.limits import Limits
from viz_engine.server.registry import Registry
from viz_engine.server.supervisor import Supervisor
from viz_engine.text import UserError


def settings(**changes: object) -> SweepSettings:
    script = {name: changes.pop(name) for name in ("steps", "at", "refuse") if name in changes}
    run = dataclasses.replace(fake_engine.settings(**({"steps": 6} | script)), new_tokens=4)
    values = {"what": "ttft", "run": run, "values": (64, 128), "repeats": 2, "budget_s": 60.0}
    return SweepSettings(**(values | changes))


@pytest.fixture
def runs(
    starts_a_program: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Registry]:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path))
    runs = Registry(
        Supervisor(fake_engine.spawn()), Limits(sweep_s=120), alive=lambda session_id: True
    )
    yield runs
    runs.stop()


def test_a_sweep_runs_to_its_end_without_magnitudes(runs: Registry) -> None:
    run = runs.submit(settings(), "s")
    until(lambda: run.finished)
    log = run.log
    assert log.ended == "done" and len(log.runs()) == 4
    assert run.state == "finished" and log.progress().num_done == 4
    assert runs.get(run.id) is run
    kinds = [event.kind for event in log]
    assert "kv_sample" not in kinds
    assert kinds.index("ceilings_found") > kinds.index("run_finished")  # after the first run
    assert ceilings.load("fake", "cpu") == log.ceilings
    assert ExperimentLog.read("\n".join(run.lines).encode(), "sweep").events == log.events


def test_what_all_prompts_share_is_not_kept(runs: Registry) -> None:
    run = runs.submit(settings(repeats=1), "s")
    until(lambda: run.finished)
    begun = [e.event for e in run.log if e.kind == RunStarted.kind]
    assert len(begun) == 2 and not any("".join(one.prompt_texts[0]) for one in begun)


def test_stop_keeps_what_is_over(runs: Registry, tmp_path: Path) -> None:
    run = runs.submit(settings(at={"2": f"once:{tmp_path}/first"}), "s")
    until(lambda: len(run.log.runs()) == 1 and len(run.log.steps) == 2 and run.state == "running")
    runs.cancel(run.id)
    until(lambda: run.finished)
    assert run.log.ended == "cancelled" and run.error is None
    (log,) = run.log.runs()
    assert log.finished.finish_reason == "length"


def test_a_refused_run_ends_in_its_sentence(runs: Registry) -> None:
    run = runs.submit(settings(refuse=1), "s")
    until(lambda: run.finished)
    assert run.log.ended == "error" and run.error.key == "error.file_empty"
    assert {one.refused.key for one in run.log.members} == {"error.file_empty"}
    assert len(run.log.members) == 2, "a value that is refused is not tried again"


def test_a_session_has_one_sweep_and_the_server_its_limits(runs: Registry) -> None:
    with pytest.raises(UserError) as refused:
        runs.submit(settings(budget_s=121.0), "s")
    assert refused.value.message.key == "sweep.bad_budget"
    with pytest.raises(UserError) as refused:
        runs.submit(settings(what="batch", values=(1, 64)), "s")
    assert refused.value.message.key == "service.batch"
    with pytest.raises(UserError) as refused:
        runs.submit(settings(values=(64, 64)), "s")
    assert refused.value.message.key == "sweep.twice"
    first = runs.submit(settings(at={"2": "asked"}), "s")
    with pytest.raises(UserError) as refused:
        runs.submit(settings(), "s")
    assert refused.value.message.key == "sweep.one_sweep"
    beside = runs.submit(fake_engine.settings(steps=3), "s")  # a run waits its turn like anybody's
    runs.cancel(first.id)
    until(lambda: first.finished and beside.finished)


def test_other_visitors_runs_come_between(runs: Registry, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    sweep = runs.submit(settings(at={"2": f"wait:{gate}"}), "s")
    run = runs.submit(fake_engine.settings(steps=3), "other")
    gate.touch()
    until(lambda: sweep.finished)
    ends = [log.finished.end_ns for log in sweep.log.runs()]
    assert ends[0] < run.log.started.accepted_ns < run.log.finished.end_ns < ends[1]


def test_two_sweeps_take_turns(runs: Registry, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    one = runs.submit(settings(at={"2": f"wait:{gate}"}, repeats=1), "a")
    other = runs.submit(settings(repeats=1), "b")
    gate.touch()
    until(lambda: one.finished and other.finished)
    order = [
        (log.finished.end_ns, name)
        for name, sweep in (("a", one), ("b", other))
        for log in sweep.log.runs()
    ]
    assert "".join(name for _, name in sorted(order)) in ("abab", "abba")


def test_any_setting_can_be_swept(runs: Registry) -> None:
    run = runs.submit(settings(what="dtype", values=("float32", "bfloat16"), repeats=1), "s")
    until(lambda: run.finished)
    made = {one.label["dtype"]: one.log.started.settings.dtype for one in run.log.members}
    assert made == {"float32": "float32", "bfloat16": "bfloat16"} and len(run.log.runs()) == 2


def test_a_sweep_that_outlasts_its_budget_is_ended() -> None:
    world = World()
    world.sessions.add("s")
    run = world.registry.submit(settings(budget_s=10.0), "s")
    made = world.registry._queued[run.id]
    made._job.append(to_line(fake_engine.started(made._job.settings, "r", 0, 8)))
    world.pass_time(0)
    world.pass_time(9)
    assert made._stopped is None
    world.pass_time(2)
    assert made._stopped == "budget"


def test_a_sweep_whose_page_is_gone_is_stopped() -> None:
    world = World()
    world.sessions.add("s")
    run = world.registry.submit(settings(), "s")
    made = world.registry._queued[run.id]
    world.pass_time(registry.GRACE_S + 1)
    assert made._stopped is None
    world.sessions.clear()
    world.registry.seen(run)
    world.pass_time(0)
    assert made._stopped is None  # a page looked a moment ago
    world.pass_time(registry.GRACE_S + 1)
    assert made._stopped == "cancelled" and run.log.ended == "cancelled" and run.finished
    world.pass_time(1)
    assert world.registry._queued == {}


def test_a_sweep_waits_in_the_queue_as_long_as_it_takes() -> None:
    """Its budget is of what its runs take; the cap on a run is not on it."""
    world = World(run_s=60)
    world.sessions.add("s")
    run = world.registry.submit(settings(), "s")
    world.pass_time(1)
    world.pass_time(1000)
    assert not run.finished


def test_ceilings_are_measured_in_their_turn_by_the_engine_process(runs: Registry) -> None:
    run = runs.measure("cpu")
    assert runs.measuring is run is runs.measure("cpu"), "once for all who ask"
    until(lambda: run.finished)
    assert runs.measuring is None and run.error is None and run.what == "ceilings"
    assert run.log.finding(CeilingsFound).ceilings == ceilings.load("fake", "cpu")
    assert ceilings.load("fake", "cpu").bandwidth.per_s == 1e9


@pytest.mark.process
def test_a_measurement_that_fails_says_why_and_a_sweep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path / "file"))
    runs = Registry(Supervisor(fake_engine.spawn()), Limits(), alive=lambda session_id: True)
    run = runs.measure("cpu")
    until(lambda: run.finished)
    assert run.error.key == "service.engine_error"
    sweep = runs.submit(settings(), "s")
    until(lambda: sweep.finished)
    assert sweep.log.ended == "done" and sweep.log.ceilings is None
    runs.stop()


@pytest.mark.process
def test_nobody_has_to_watch_a_measurement() -> None:
    world = World()
    run = world.registry.measure("cpu")
    world.pass_time(10 * registry.GRACE_S)
    assert not run.finished
