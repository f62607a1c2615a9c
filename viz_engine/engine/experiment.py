"""Experiments made here, in this process: sweeps, one or several by turns, and ceilings.

It knows nothing of queues; a server makes the members of a sweep in its own
(server/experiments.py). How a race is made stands in race_runs.
"""

import datetime
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

from viz_engine.engine import generate
from viz_engine.run.ceilings import Ceilings, save
from viz_engine.run.command import sweep_command
from viz_engine.run.experiment import (
    CeilingsFound,
    CeilingsSettings,
    ExperimentEvent,
    ExperimentFinished,
    ExperimentLog,
    ExperimentStarted,
    MemberEvent,
    MemberRefused,
    MemberStarted,
)
from viz_engine.run.sweep import SweepSettings, lean
from viz_engine.text import UserError

Say = Callable[[str], None]


def measure(
    loaded: object,
    settings: SweepSettings,
    say: Say = lambda text: None,
    found: Ceilings | None = None,
) -> ExperimentLog:
    """Make a sweep with a model that is loaded. Ctrl-C ends it and keeps what there is. `found`:
    the ceilings of this machine, where they are known."""
    return measure_by_turns(loaded, [settings], say, found)[0]


def measure_by_turns(
    loaded: object,
    each: Sequence[SweepSettings],
    say: Say = lambda text: None,
    found: Ceilings | None = None,
) -> list[ExperimentLog]:
    """Several sweeps, a run of each by turns: a drift of the machine meets all alike."""
    logs = []
    for settings in each:
        log = ExperimentLog.of([_started("sweep", settings, sweep_command(settings))])
        if found is not None:
            log.append(CeilingsFound(ceilings=found))
        logs.append(log)
    going, stopped = list(logs), False
    try:
        while going:
            going = [log for log in going if _advance(loaded, log, say)]
    except KeyboardInterrupt:
        stopped = True
    for log in logs:
        reason, error = ("cancelled", None) if stopped else log.standing.outcome()
        for event in log.closing(reason, error):
            log.append(event)
    return logs


def _advance(loaded: object, log: ExperimentLog, say: Say) -> bool:
    """Make the member that is due; False where the sweep is over."""
    standing = log.standing
    planned = standing.due()
    if planned is None:
        return False
    member = len(log.members)
    log.append(MemberStarted(member=member, label=planned.label, repeat=planned.repeat))
    stop_at = time.monotonic() + standing.left_s + 1
    rest = {
        "cancelled": lambda: time.monotonic() > stop_at,
        "options": generate.Options(samples="none"),
    }
    begun = False
    try:
        for event in generate.generate(loaded, planned.run, run_id=uuid.uuid4().hex, **rest):
            if not begun:  # loading and warm-up are not in the budget
                begun, stop_at = True, time.monotonic() + standing.left_s
            if (kept := lean(event)) is not None:
                log.append(MemberEvent(member, kept))
    except UserError as refused:
        log.append(MemberRefused(member=member, error=refused.message))
        say(str(refused))
    done = log.progress()
    left = "" if done.left_s is None else f", about {done.left_s:.0f} s left"
    say(f"{done.num_done} of {done.num_total}{left}")
    return True


def ceilings(
    load: object, settings: CeilingsSettings, *, experiment_id: str, **asked: object
) -> Iterator[ExperimentEvent]:
    """Measure the ceilings of a device, and keep them in the cache folder."""
    from viz_engine.engine import ceilings
    from viz_engine.engine.device import describe_device

    command = f"python -m viz_engine ceilings --device {settings.device}"
    yield _started("ceilings", settings, command, experiment_id)
    found = ceilings.measure(settings.device, describe_device(settings.device).name)
    save(found)
    yield CeilingsFound(ceilings=found)
    yield ExperimentFinished(finish_reason="done")


def _started(
    experiment: str, settings: object, command: str, experiment_id: str | None = None
) -> ExperimentStarted:
    return ExperimentStarted(
        experiment=experiment,
        experiment_id=experiment_id or uuid.uuid4().hex,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        settings=settings,
        command=command,
    )
