"""The engine process: one run at a time, watched, ended when it hangs, started again when it dies.

The first half runs `Supervisor` on a scripted child and a clock that stands still; the second on
real child programs whose model is fake, and on the real engine once.
"""

import dataclasses
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import fake_engine
from tests.support.child import SETTINGS, Child
from tests.support.fake_engine import until
from tests.support.specs import spec
from viz_engine.paths import ROOT
from viz_engine.run import protocol
from viz_engine.run.codec import settings_to_dict, to_line
from viz_engine.run.events import RunSettings
from viz_engine.server import supervisor, watchdog
from viz_engine.server.runs import Run
from viz_engine.text import Message

DEFAULT_MODEL = "SmolLM2-135M-Instruct"


class World:
    """An engine on scripted children and a clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.children: list[Child] = []
        self.engine = supervisor.Supervisor(self.spawn, clock=lambda: self.now)
        self.engine.check()

    def spawn(self, on_line, on_exit) -> Child:
        self.children.append(Child(on_line, on_exit))
        return self.children[-1]

    @property
    def child(self) -> Child:
        return self.children[-1]

    def submit(self, name: str = "r") -> Run:
        run = Run(name, SETTINGS, None)
        self.engine.submit(run)
        self.engine.check()
        return run

    def pass_time(self, seconds: float, beats: bool = True) -> None:
        """Let time pass in steps of five seconds, with a heartbeat at each or none."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 5.0, end)
            if beats and not self.child.killed:
                self.child.say(protocol.Alive())
            self.engine.check()

    def at(self, stage: str) -> Run:
        """A run that has come as far as `stage`."""
        self.child.ready()
        run = self.submit()
        if stage != "loading":
            self.child.begin(run)
            self.child.step(run)
        if stage == "decode":
            self.child.step(run)
            self.child.step(run)
        return run


STAGES = {"loading": 0, "prefill": 1, "decode": 3}  # and the steps that a run has there


@pytest.fixture
def world() -> World:
    return World()


def test_runs_are_served_in_order_and_see_their_place(world: World) -> None:
    first, second, third = (world.submit(name) for name in "abc")
    assert [message.run_id for message in world.child.sent if message.kind == "start"] == ["a"]
    assert (first.state, second.position, third.position) == ("loading", 1, 2)
    assert second.message.text("en").count("1") == 1
    world.child.begin(first)
    world.child.finish(first)
    world.engine.check()
    assert (first.state, second.state, third.position) == ("finished", "loading", 1)


def test_a_queued_run_is_cancelled_at_once_and_the_others_move_up(world: World) -> None:
    _, second, third = (world.submit(name) for name in "abc")
    world.engine.cancel("b")
    assert second.finished and second.error is None and second.note.key == "service.cancelled"
    assert third.position == 1
    assert "cancel" not in world.child.asked


def test_a_run_is_cancelled_while_loading_and_the_next_one_is_sent(world: World) -> None:
    first, second = world.submit("a"), world.submit("b")
    world.engine.cancel("a")
    world.engine.check()
    assert first.finished and second.state == "loading"
    world.child.say(protocol.Refused(run_id="a", message=Message(key="service.cancelled")))
    assert second.state == "loading"


def test_a_cancelled_run_ends_as_the_child_says(world: World) -> None:
    run = world.at("decode")
    world.engine.cancel(run.id, Message(key="service.unwatched"))
    assert world.child.asked[-1] == "cancel" and not run.finished
    world.child.finish(run, "cancelled")
    assert run.finished and run.log.finished.finish_reason == "cancelled"
    assert run.note.key == "service.unwatched"


def test_a_run_that_does_not_react_to_cancel_is_ended_with_its_process(world: World) -> None:
    run = world.at("decode")
    world.engine.cancel(run.id)
    world.pass_time(watchdog.CANCEL_GRACE_S)
    assert not world.child.killed
    world.pass_time(5)
    assert world.child.killed
    world.child.exit(-9)
    assert run.log.finished.finish_reason == "cancelled" and run.error is None
    assert len(run.log.steps) == 3


@pytest.mark.parametrize("stage", STAGES)
def test_a_silent_process_is_killed_and_its_run_says_so(world: World, stage: str) -> None:
    run = world.at(stage)
    world.pass_time(watchdog.SILENT_S, beats=False)
    assert not world.child.killed
    world.pass_time(5, beats=False)
    assert world.child.killed
    world.child.exit(-9)
    assert run.finished and run.error.key == "service.silent"
    assert len(run.log.steps) == STAGES[stage]
    assert (run.log.finished is not None) == (stage != "loading")
    after = world.submit("next")
    assert len(world.children) == 2 and after.state == "loading"


def test_a_web_process_that_slept_does_not_blame_the_engine(world: World) -> None:
    run = world.at("decode")
    world.now += 1000  # neither heard anything nor looked
    world.engine.check()
    assert not world.child.killed and not run.finished
    world.pass_time(watchdog.SILENT_S + 5, beats=False)
    assert world.child.killed


def test_a_step_that_never_ends_is_ended_in_spite_of_heartbeats(world: World) -> None:
    run = world.at("prefill")
    world.pass_time(watchdog.STEP_FLOOR_S)
    assert not world.child.killed
    world.child.step(run)  # each step starts the measure anew
    world.pass_time(watchdog.STEP_FLOOR_S)
    assert not world.child.killed
    world.pass_time(5)
    world.child.exit(-9)
    assert run.error.key == "service.step_hung" and len(run.log.steps) == 2


def test_a_slow_model_gets_ten_times_what_its_own_rate_predicts(world: World) -> None:
    run = world.at("decode")
    flops = run.predicted[-1]["flops"]
    assert watchdog.step_limit_s(run.log, flops) == watchdog.STEP_FLOOR_S  # one second a step
    assert watchdog.step_limit_s(run.log, flops / 30) == pytest.approx(300, rel=0.1)


def test_a_long_prompt_in_one_piece_gets_the_time_that_it_needs() -> None:
    whole = dataclasses.replace(SETTINGS, chunk_len=0)
    limits = []
    for settings in (SETTINGS, whole):
        run = Run("r", settings, None)
        big = spec(2, kv_heads=1, head_dim=4, hidden_size=4096, intermediate_size=16384)
        begun = fake_engine.started(settings, "r", 0, 8000)
        run.append(to_line(dataclasses.replace(begun, spec=big)))
        limits.append(watchdog.step_limit_s(run.log, float("inf")))
    assert limits[1] > 20 * limits[0]  # 32 pieces


def test_loading_may_take_long_while_it_makes_progress(world: World) -> None:
    run = world.at("loading")
    for percent in range(5):
        world.pass_time(watchdog.LOADING_SILENT_S)
        message = Message(key="service.loading")
        world.child.say(protocol.Progress(run_id=run.id, message=message, fraction=percent / 5))
        assert run.fraction == percent / 5
    assert not world.child.killed
    world.pass_time(watchdog.LOADING_SILENT_S + 5)
    assert world.child.killed
    world.child.exit(-9)
    assert run.error.key == "service.loading_hung"


def test_what_is_prepared_in_advance_is_shown_to_the_run_that_waits_for_it(world: World) -> None:
    run = world.submit()
    message = Message(key="service.loading")
    world.child.say(protocol.Progress(message=message, fraction=0.4))
    assert (run.message.key, run.fraction) == ("service.loading", 0.4)
    assert world.engine.info().fraction == 0.4
    world.child.say(protocol.Progress())
    assert world.engine.info().progress is None


@pytest.mark.parametrize(
    "code, words",
    [(-9, "out of memory"), (-11, "signal 11"), (-15, "SIGTERM"), (3, "exit code 3")],
)
def test_the_exit_is_told_in_words(world: World, code: int, words: str) -> None:
    run = world.at("decode")
    world.child.exit(code)
    assert words in run.error.text("en") and run.error.text("zh") != run.error.text("en")
    assert run.log.finished.end_ns == run.log.steps[-1].end_ns
    assert run.log.finished.finish_reason == "error" and len(run.log.steps) == 3


def test_a_process_that_dies_again_and_again_is_started_ever_later(world: World) -> None:
    world.child.exit(1)
    world.engine.check()
    assert len(world.children) == 2  # at once the first time
    world.child.exit(1)
    world.engine.check()
    assert len(world.children) == 2
    world.now += 1
    world.engine.check()
    assert len(world.children) == 3
    world.child.exit(1)
    world.now += 1000
    world.engine.check()
    assert len(world.children) == 3  # not without work
    run = world.submit()
    assert len(world.children) == 4 and run.state == "loading"
    world.child.exit(1)
    assert run.error.key == "service.exit_code"


def test_the_model_is_prepared_at_every_start_unless_that_ended_the_process(world: World) -> None:
    assert world.child.asked == ["prepare"]
    world.child.ready()
    world.child.say(protocol.Progress())
    world.child.exit(-9)
    world.engine.check()
    assert len(world.children) == 2 and world.child.asked == ["prepare"]
    world.child.ready()
    world.child.exit(-9)
    world.engine.check()
    assert len(world.children) == 3 and world.child.asked == []


def test_a_record_that_does_not_follow_ends_the_run_and_not_the_engine(world: World) -> None:
    run = world.at("prefill")
    world.child.event(run, fake_engine.started(SETTINGS, run.id, 0, 4))
    assert run.error.key == "service.bad_event" and len(run.log.steps) == 1
    assert world.child.asked[-1] == "cancel"
    after = world.submit("next")
    world.child.step(run)  # what the old one still says is ignored
    world.child.begin(after)
    assert after.state == "running" and len(world.children) == 1


@pytest.mark.parametrize("line", [b"not json\n", b"[1]\n", b"{}\n", b"\xff\xfe\n", b'"kind"\n'])
def test_a_process_that_speaks_nonsense_is_replaced(world: World, line: bytes) -> None:
    run = world.at("decode")
    world.child.on_line(world.child, line)
    assert world.child.killed
    world.child.exit(-9)
    assert run.error.key == "service.protocol"


def test_a_process_that_cannot_be_started_is_told(world: World) -> None:
    def spawn(on_line, on_exit) -> Child:
        raise OSError("no such program")

    engine = supervisor.Supervisor(spawn, clock=lambda: 0.0)
    run = Run("r", SETTINGS, None)
    engine.submit(run)
    engine.check()
    assert "no such program" in run.error.text("en")


def test_stopping_ends_every_run(world: World) -> None:
    first, second = world.at("decode"), world.submit("b")
    world.engine.stop()
    assert world.child.closed and first.finished and second.finished
    assert first.log.finished.finish_reason == "cancelled"
    assert first.note.key == "service.shut_down"


# ---- real child programs -----------------------------------------------------------------------


@pytest.fixture
def engine(starts_a_program: None) -> Iterator[supervisor.Supervisor]:
    engine = supervisor.Supervisor(fake_engine.spawn())
    engine.start()
    yield engine
    engine.stop()


def submit(engine: supervisor.Supervisor, settings: RunSettings) -> Run:
    submit.count += 1
    run = Run(f"run-{submit.count}", settings, None)
    engine.submit(run)
    return run


submit.count = 0


def run_to_end(engine: supervisor.Supervisor, settings: RunSettings) -> Run:
    run = submit(engine, settings)
    until(lambda: run.finished)
    return run


@pytest.mark.parametrize(
    "settings, num_steps",
    [
        (fake_engine.settings(model="die"), 0),
        (fake_engine.settings(at={"1": "die"}), 1),
        (fake_engine.settings(at={"4": "die"}), 4),
        (fake_engine.settings(at={"4": "crash"}), 4),
        (fake_engine.settings(at={"4": "exit"}), 4),
    ],
    ids=["loading", "prefill", "decode", "crash", "exit"],
)
def test_a_killed_engine_keeps_the_rows_and_the_next_run_works(
    engine: supervisor.Supervisor, settings: RunSettings, num_steps: int
) -> None:
    run = run_to_end(engine, settings)
    assert len(run.log.steps) == num_steps and run.error.key.startswith("service.exit_")
    after = run_to_end(engine, fake_engine.settings(steps=5))
    assert after.error is None and len(after.log.steps) == 5


@pytest.mark.parametrize("what", ["raise", "memory", "skip"])
def test_a_run_that_fails_leaves_the_process_and_its_model_alive(
    engine: supervisor.Supervisor, what: str
) -> None:
    run_to_end(engine, SETTINGS)
    pid = engine.pid
    run = run_to_end(engine, fake_engine.settings(at={"3": what}))
    assert run.log.finished.finish_reason == "error" and len(run.log.steps) == 3
    assert run_to_end(engine, SETTINGS).error is None and engine.pid == pid


def test_a_refusal_passes_its_sentence(engine: supervisor.Supervisor) -> None:
    for settings in (fake_engine.settings(model="refuse"), fake_engine.settings(refuse=True)):
        run = run_to_end(engine, settings)
        assert run.error.key == "error.file_empty" and len(run.log) == 0


def test_what_a_library_prints_does_not_break_the_protocol(engine: supervisor.Supervisor) -> None:
    run = run_to_end(engine, fake_engine.settings(at={"2": "print"}))
    assert run.error is None and len(run.log.steps) == 5


def test_stop_takes_effect_after_the_step_that_is_on(engine: supervisor.Supervisor) -> None:
    run = submit(engine, fake_engine.settings(steps=100, at={"4": "asked"}))
    until(lambda: len(run.log.steps) == 4)
    engine.cancel(run.id)
    until(lambda: run.finished)
    assert run.log.finished.finish_reason == "cancelled" and run.error is None
    assert len(run.log.steps) == 5
    assert run_to_end(engine, SETTINGS).error is None


def test_a_run_says_that_it_warms_up_until_its_first_record(
    engine: supervisor.Supervisor, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    run = submit(engine, fake_engine.settings(at={"warm_up": f"wait:{gate}"}))
    until(lambda: run.message == Message(key="progress.warm_up"))
    assert run.log.started is None
    gate.touch()
    until(lambda: run.finished)
    assert run.error is None and len(run.log.steps) == 5


def test_stop_while_loading_ends_the_load(engine: supervisor.Supervisor, tmp_path: Path) -> None:
    run = submit(engine, fake_engine.settings(model=f"wait:{tmp_path}/never"))
    until(lambda: run.fraction == 0.5)
    engine.cancel(run.id)
    assert run.finished and run.error is None
    pid = engine.pid
    assert run_to_end(engine, SETTINGS).error is None and engine.pid == pid


@pytest.mark.process
def test_a_hanging_process_is_found_and_replaced() -> None:
    clock = types.SimpleNamespace(ahead=0.0)
    engine = supervisor.Supervisor(
        fake_engine.spawn(), clock=lambda: time.monotonic() + clock.ahead
    )
    engine.start()
    try:
        run = submit(engine, fake_engine.settings(at={"3": "hang"}))
        until(lambda: len(run.log.steps) == 3)
        pid = engine.pid
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)

        def later() -> bool:
            clock.ahead += watchdog.SILENT_S / 4
            engine.check()
            return run.finished

        until(later)  # what was on its way when the process stopped is heard late
        assert run.error.key == "service.silent" and len(run.log.steps) == 3
        assert run_to_end(engine, SETTINGS).error is None and engine.pid != pid
    finally:
        engine.stop()


@pytest.mark.process
def test_without_torch_every_run_is_refused_with_the_cure() -> None:
    engine = supervisor.Supervisor(fake_engine.spawn("no_torch"))
    engine.start()
    try:
        first = run_to_end(engine, SETTINGS)
        pid = engine.pid
        second = run_to_end(engine, SETTINGS)
        assert first.error == second.error and engine.pid == pid
        assert "torch" in first.error.text("en") and "pip install" in first.error.text("en")
        assert engine.info().problem == first.error
    finally:
        engine.stop()


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.process
def test_a_word_that_is_no_command_ends_the_engine_rather_than_its_hearing() -> None:
    command = [sys.executable, "-m", "tests.support.fake_engine"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=b"sing\n", env=env, capture_output=True, timeout=120)
    assert done.returncode == 1 and b"UserError" in done.stderr


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a step"])
@pytest.mark.process
def test_the_engine_ends_when_its_parent_is_killed(busy: bool) -> None:
    settings = fake_engine.settings(at={"2": "stuck"} if busy else {})
    program = f"""
import time
from tests.support import fake_engine
from viz_engine.run import events
from viz_engine.run import codec
from viz_engine.server.runs import Run
from viz_engine.server import supervisor
from viz_engine.server.runs import Run
engine = supervisor.Supervisor(fake_engine.spawn())
engine.start()
settings = codec.settings_from_dict({settings_to_dict(settings)!r})
run = Run("r", settings, None)
engine.submit(run)
fake_engine.until(lambda: len(run.log.steps) >= 2)
print(engine.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with parent:
        pid = int(parent.stdout.readline())
        assert not ended(pid)
        parent.kill()
    until(lambda: ended(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a thread's own on Linux only")
@pytest.mark.process
def test_a_restarted_engine_keeps_the_priority_that_the_web_process_gave_up() -> None:
    seen: list[int] = []

    def web_process() -> None:
        engine = supervisor.Supervisor(fake_engine.spawn())
        engine.start()
        os.nice(3)  # of this thread
        first = engine.pid
        until(lambda: engine.info().state == "ready")
        first = engine.pid
        psutil.Process(first).kill()
        until(lambda: engine.pid not in (None, first))
        seen.extend((psutil.Process(engine.pid).nice(), os.nice(0)))
        engine.stop()

    before = os.nice(0)
    thread = threading.Thread(target=web_process)
    thread.start()
    thread.join(240)
    assert seen == [before, before + 3]


@pytest.mark.process
def test_the_real_engine_killed_in_mid_run_keeps_its_rows_and_runs_again() -> None:
    engine = supervisor.Supervisor()
    engine.start()
    settings = RunSettings(
        model=DEFAULT_MODEL, prompts=("Why?",), new_tokens=512, stop_token_ids=(), warm_up=False
    )
    try:
        run = submit(engine, settings)
        until(lambda: len(run.log.steps) >= 8)
        psutil.Process(engine.pid).kill()
        until(lambda: run.finished)
        assert run.log.steps[-1].phase == "decode" and run.error.key == "service.exit_killed"
        after = submit(engine, dataclasses.replace(settings, new_tokens=4))
        until(lambda: after.finished)
        assert after.error is None and after.log.finished.finish_reason == "length"
        assert sum(len(step.token_ids[0]) for step in after.log.steps) == 4
    finally:
        engine.stop()
