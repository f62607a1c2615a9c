"""The watchdog of a child: what was heard of it and when, and the reason to end it, or none.

Pure but for its clock: it ends nothing itself, and knows neither the child nor the queue.

Try it: `python -m pytest tests/server/test_watchdog.py`
"""

from collections.abc import Callable

from viz_engine.run import cost
from viz_engine.run.log import RunLog
from viz_engine.text import Message

SILENT_S = 10.0  # without a heartbeat: hung
START_S = 120.0  # until the first `ready`: importing torch may hold every thread on a cold disk
LOADING_SILENT_S = 600.0  # loading without a word of progress
STEP_FLOOR_S = 60.0  # no step is called hung before this
SLOWEST_FLOPS_PER_S = 5e9  # assumed until a run has shown its own rate: one slow core
CANCEL_GRACE_S = 10.0  # asked to stop, still in the same step: killed


class Watchdog:
    """Watches one child, and the job that it is on. Times are seconds of `clock`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_at = self._looked_at = self._moved_at = clock()
        self._slowest = float("inf")  # FLOP/s of the slowest step of the job
        self._stop_at: float | None = None  # when the job was asked to stop

    def heard(self) -> None:
        """The child has said something, or was started just now."""
        self._heard_at = self._clock()

    def began(self) -> None:
        """The child was given a job."""
        self._moved_at, self._slowest, self._stop_at = self._clock(), float("inf"), None

    def moved(self) -> None:
        """The job has come further: a step, or a word of progress while loading."""
        self._moved_at = self._clock()

    def stepped(self, flops: int | None, duration_ns: int) -> None:
        """The job has made a step of `flops` (None: not known)."""
        self.moved()
        if flops and duration_ns:
            self._slowest = min(self._slowest, flops * 1e9 / duration_ns)

    def asked_to_stop(self) -> None:
        """The job was asked to stop."""
        self._stop_at = self._clock()

    def look(self, ready: bool, log: RunLog | None) -> Message | None:
        """Why the child must be ended now. `ready`: it has said so; `log`: of the run that it is
        on, empty before that has begun, None between two jobs."""
        now = self._clock()
        if now - self._looked_at > SILENT_S / 2:  # it was us who slept: listen first
            self._heard_at = self._moved_at = now
        self._looked_at = now
        silent, still = now - self._heard_at, now - self._moved_at
        if silent > (SILENT_S if ready else START_S):
            return Message(key="service.silent", params={"seconds": round(silent)})
        if log is None:
            return None
        if self._stop_at is not None:
            hung = now - self._stop_at > CANCEL_GRACE_S
            return Message(key="service.no_stop") if hung else None
        if log.started is None:
            limit_s, key = LOADING_SILENT_S, "service.loading_hung"
        else:
            limit_s, key = step_limit_s(log, self._slowest), "service.step_hung"
        return Message(key=key, params={"seconds": round(still)}) if still > limit_s else None


def step_limit_s(log: RunLog, slowest: float) -> float:
    """Seconds after which the next step of a run counts as hung: ten times what its FLOPs take at
    the slowest rate (FLOP/s) that the run has shown, and never under STEP_FLOOR_S."""
    settings, columns = log.started.settings, log.num_columns
    prompt = log.started.prompt_columns
    cached = settings.cache != "none"
    if cached and columns < prompt:
        new = min(settings.chunk_len or prompt, prompt - columns)
    else:
        new = 1 if cached else max(columns + 1, prompt) - columns
    rate = slowest if log.steps else SLOWEST_FLOPS_PER_S
    if log.started.spec is None:
        return STEP_FLOOR_S
    try:
        flops = cost.step(
            log.started.spec,
            settings.dtype,
            batch=settings.batch,
            num_new=new if cached else columns + new,
            num_columns=columns + new,
            prompt_columns=prompt,
            cached=cached,
            chunk_len=settings.chunk_len,
        ).flops
    except (KeyError, ValueError):  # a dtype without a size, a type without a formula
        return STEP_FLOOR_S
    return max(STEP_FLOOR_S, 10 * flops / rate)
