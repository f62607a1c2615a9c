"""Several runs made here, in this process, one after the other: sweeps by turns.

It knows nothing of queues; a server makes the same runs in its own (server/sweeps.py).
"""

import time
import uuid
from collections.abc import Callable, Sequence

from viz_engine.engine import generate
from viz_engine.run.log import RunLog
from viz_engine.run.sweep import Sweep, SweepResult, SweepSettings
from viz_engine.text import UserError

Say = Callable[[str], None]


def measure(loaded: object, settings: SweepSettings, say: Say = lambda text: None) -> SweepResult:
    """Make a sweep here, in this process, with a model that is loaded. Ctrl-C ends it and keeps
    what there is."""
    return measure_by_turns(loaded, [settings], say)[0]


def measure_by_turns(
    loaded: object, each: Sequence[SweepSettings], say: Say = lambda text: None
) -> list[SweepResult]:
    """Several sweeps, a run of each by turns: a drift of the machine meets all alike."""
    sweeps = [Sweep(settings) for settings in each]
    going = list(sweeps)
    try:
        while going:
            going = [sweep for sweep in going if _advance(loaded, sweep, say)]
    except KeyboardInterrupt:
        for sweep in sweeps:
            sweep.stop()
    return [sweep.result for sweep in sweeps]


def _advance(loaded: object, sweep: Sweep, say: Say) -> bool:
    """Make the next run; False where the sweep is over."""
    run = sweep.next()
    if run is None:
        return False
    stop_at = time.monotonic() + sweep.left_s + 1
    log, error = RunLog(), None
    rest = {
        "cancelled": lambda: time.monotonic() > stop_at,
        "options": generate.Options(samples="none"),
    }
    try:
        for event in generate.generate(loaded, run, run_id=uuid.uuid4().hex, **rest):
            if log.started is None:  # loading and warm-up are not in the budget
                stop_at = time.monotonic() + sweep.left_s
            log.append(event)
        error = log.finished.error
    except UserError as refused:
        error = refused.message
        say(str(refused))
    sweep.took(log, error)
    done = sweep.progress
    left = "" if done.left_s is None else f", about {done.left_s:.0f} s left"
    say(f"{done.num_done} of {done.num_total}{left}")
    return True
