"""Experiments put together from runs that are there."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from viz_engine.run.ceilings import Ceilings
from viz_engine.run.events import RunStarted
from viz_engine.run.experiment import (
    CeilingsFound,
    ExperimentFinished,
    ExperimentLog,
    ExperimentStarted,
    MemberEvent,
    MemberStarted,
)
from viz_engine.run.log import RunLog
from viz_engine.run.sweep import SweepSettings


def begun(settings: SweepSettings) -> ExperimentLog:
    """A sweep that has no member yet."""
    head = ExperimentStarted(
        experiment="sweep", experiment_id="s", started_at="", settings=settings, command=""
    )
    return ExperimentLog.of([head])


def swept(
    settings: SweepSettings, logs: Sequence[RunLog], ceilings: Ceilings | None = None
) -> ExperimentLog:
    """A sweep of these runs, whichever they are: its values are theirs."""
    values = [_value(run.started, settings.varied) for run in logs]
    log = begun(dataclasses.replace(settings, values=tuple(sorted(set(values)))))
    if ceilings is not None:
        log.append(CeilingsFound(ceilings=ceilings))
    repeats: Counter[object] = Counter()
    for member, (value, run) in enumerate(zip(values, logs, strict=True)):
        label = settings.label(value)
        log.append(MemberStarted(member=member, label=label, repeat=repeats[value]))
        repeats[value] += 1
        for event in run:
            if isinstance(event, RunStarted):
                asked = dataclasses.replace(event.settings, **label)
                event = dataclasses.replace(event, settings=asked)
            log.append(MemberEvent(member, event))
    log.append(ExperimentFinished(finish_reason="done"))
    return log


def _value(started: RunStarted, varied: str) -> int:
    return getattr(started.settings, varied) or started.prompt_columns
