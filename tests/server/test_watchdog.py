"""The watchdog, on a clock that moves when told; more of it in test_worker, on a scripted child."""

import pytest

from tests.support import fake_engine
from tests.support.fake_engine import PIECE
from viz_engine.run.log import RunLog
from viz_engine.server import watchdog
from viz_engine.server.watchdog import Watchdog

SETTINGS = fake_engine.settings()


class World:
    """A watchdog that is called each second, as the supervisor does it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.dog = Watchdog(lambda: self.now)

    def pass_time(self, seconds: float, log: RunLog | None = None, *, beats: bool = True):
        """The key of the reason to end the child, as soon as there is one."""
        for _ in range(round(seconds)):
            self.now += 1
            if beats:
                self.dog.heard()
            if reason := self.dog.look(True, log):
                return reason.key
        return None


def begun() -> RunLog:
    return RunLog.of([fake_engine.started(SETTINGS, "r", 0, 2 * PIECE)])


def test_between_two_jobs_only_silence_counts() -> None:
    world = World()
    assert world.pass_time(10 * watchdog.LOADING_SILENT_S) is None
    assert world.pass_time(watchdog.SILENT_S, beats=False) is None
    assert world.pass_time(1, beats=False) == "service.silent"


def test_a_child_that_is_starting_may_be_silent_for_longer() -> None:
    world = World()
    while world.now < 100 + watchdog.START_S:
        world.now += 1
        assert world.dog.look(False, None) is None
    world.now += 1
    assert world.dog.look(False, None).params == {"seconds": watchdog.START_S + 1}


def test_a_new_job_starts_every_measure_anew() -> None:
    world, log = World(), begun()
    world.dog.began()
    world.dog.stepped(1, 10**12)  # a rate that would allow any time
    world.dog.asked_to_stop()
    world.dog.began()
    assert world.pass_time(watchdog.STEP_FLOOR_S, log) is None
    assert world.pass_time(1, log) == "service.step_hung"


@pytest.mark.parametrize("flops, duration_ns", [(None, 10), (0, 10), (10, 0)])
def test_a_step_without_a_rate_leaves_the_slowest_as_it_was(flops, duration_ns) -> None:
    world, log = World(), begun()
    world.dog.began()
    world.dog.stepped(flops, duration_ns)
    assert world.pass_time(watchdog.STEP_FLOOR_S + 1, log) == "service.step_hung"


def test_the_slowest_step_of_a_job_gives_the_next_its_time() -> None:
    log = begun()
    log.append(fake_engine.forward(SETTINGS, 0, "prefill", 0, PIECE, 2 * PIECE, (), ()))
    world = World()
    world.dog.began()
    world.dog.stepped(100, 10**9)  # 100 FLOP/s; a piece of SPEC takes thousands
    world.dog.stepped(10**6, 10**9)
    limit = watchdog.step_limit_s(log, 100)
    assert limit > 2 * watchdog.STEP_FLOOR_S
    assert world.pass_time(limit - 1, log) is None
    assert world.pass_time(2, log) == "service.step_hung"
