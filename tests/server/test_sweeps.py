"""A sweep on a server: the real child program with a fake model, and a child that does nothing."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.fake_engine import until
from tests.support.world import World
from viz_engine.run import ceilings
from viz_engine.run.sweep import SweepSettings
from viz_engine.server import registry
from viz_engine.server.limits import Limits
from viz_engine.server.supervisor import Supervisor
from viz_engine.server.sweeps import SweepJobs
from viz_engine.text import UserError


def settings(**changes: object) -> SweepSettings:
    script = {name: changes.pop(name) for name in ("steps", "at", "refuse") if name in changes}
    run = dataclasses.replace(fake_engine.settings(**({"steps": 6} | script)), new_tokens=4)
    values = {"what": "ttft", "run": run, "values": (64, 128), "repeats": 2, "budget_s": 60.0}
    return SweepSettings(**(values | changes))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweepJobs]:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path))
    runs = registry.Registry(Supervisor(fake_engine.spawn()), Limits(sweep_s=120))
    yield SweepJobs(runs, alive=lambda session_id: True)
    runs.stop()


def test_a_sweep_runs_to_its_end_without_magnitudes(jobs: SweepJobs) -> None:
    job = jobs.submit(settings(), "s")
    until(lambda: job.finished)
    result = job.result()
    assert result.ended == "done" and len(result.logs) == 4
    assert job.status().state == "finished" and job.status().progress.num_done == 4
    assert jobs.get(job.id) is job
    until(lambda: job.result().ceilings is not None)  # measured after the first run


def test_stop_keeps_what_is_over(jobs: SweepJobs, tmp_path: Path) -> None:
    job = jobs.submit(settings(at={"2": f"once:{tmp_path}/first"}), "s")
    until(lambda: len(job.sweep.result.logs) == 1 and job.status().state == "running")
    job.stop()
    until(lambda: job.finished)
    assert job.result().ended == "cancelled"
    (log,) = job.result().logs
    assert log.finished.finish_reason == "length"


def test_a_refused_run_ends_in_its_sentence(jobs: SweepJobs) -> None:
    job = jobs.submit(settings(refuse=1), "s")
    until(lambda: job.finished)
    assert job.result().ended == "error" and job.result().error.key == "error.file_empty"


def test_a_session_has_one_sweep_and_the_server_its_limits(jobs: SweepJobs) -> None:
    with pytest.raises(UserError) as refused:
        jobs.submit(settings(budget_s=121.0), "s")
    assert refused.value.message.key == "sweep.bad_budget"
    with pytest.raises(UserError) as refused:
        jobs.submit(settings(what="batch", values=(1, 64)), "s")
    assert refused.value.message.key == "service.batch"
    first = jobs.submit(settings(at={"2": "asked"}), "s")
    with pytest.raises(UserError) as refused:
        jobs.submit(settings(), "s")
    assert refused.value.message.key == "sweep.one_sweep"
    first.stop()


def test_other_visitors_runs_come_between(jobs: SweepJobs, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    job = jobs.submit(settings(at={"2": f"wait:{gate}"}), "s")
    run = jobs._runs.submit(fake_engine.settings(steps=3), "other")
    gate.touch()
    until(lambda: job.finished)
    ends = [log.finished.end_ns for log in job.result().logs]
    assert ends[0] < run.log.started.accepted_ns < run.log.finished.end_ns < ends[1]


def test_a_sweep_that_outlasts_its_budget_is_ended() -> None:
    world = World()
    jobs = SweepJobs(world.registry, lambda: world.now, lambda session_id: True)
    job = jobs.submit(settings(budget_s=10.0), "s")
    job._run.append_event(fake_engine.started(job._run.settings, "r", 0, 8), "")
    jobs.tick()
    world.now += 9
    jobs.tick()
    assert not job.sweep._stopped
    world.now += 2
    jobs.tick()
    assert job.sweep._stopped and job.result().ended == "budget"


def test_a_sweep_whose_page_is_gone_is_stopped() -> None:
    world = World()
    gone = []
    jobs = SweepJobs(world.registry, lambda: world.now, lambda session_id: not gone)
    job = jobs.submit(settings(), "s")
    world.now += registry.GRACE_S + 1
    jobs.tick()
    assert not job.sweep._stopped
    gone.append(1)
    job.seen()
    jobs.tick()
    assert not job.sweep._stopped  # a page looked a moment ago
    world.now += registry.GRACE_S + 1
    jobs.tick()
    assert job.sweep._stopped


def test_ceilings_are_measured_between_runs_by_the_engine_process(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path))
    engine = Supervisor(fake_engine.spawn())
    engine.measure("cpu")
    assert engine.info().measuring
    engine.start()
    until(lambda: not engine.info().measuring)
    engine.stop()
    assert engine.info().measure_problem is None
    assert ceilings.load("fake", "cpu").bandwidth.per_s == 1e9
