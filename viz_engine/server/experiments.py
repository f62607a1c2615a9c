"""An experiment whose members are jobs of the queue: one after the other, each waiting its turn, so
that it never locks others out.

Members are measured with the live view off and no magnitudes taken. Nothing here knows how one is
made.

Try it: `python -m pytest tests/server/test_sweeps.py`
"""

import datetime
import secrets
import threading
from collections.abc import Callable

from viz_engine.run import ceilings
from viz_engine.run.command import sweep_command
from viz_engine.run.events import Event, RunSettings
from viz_engine.run.experiment import (
    CeilingsFound,
    ExperimentEvent,
    ExperimentStarted,
    MemberEvent,
    MemberRefused,
    MemberStarted,
    name_of,
    to_line,
)
from viz_engine.run.log import RunLog
from viz_engine.run.sweep import lean
from viz_engine.server.runs import Run
from viz_engine.server.supervisor import Supervisor
from viz_engine.text import Message


class QueuedExperiment:
    """Makes an experiment (`whole`) by the queue. The supervisor's threads write, any may stop it.

    Its lock is never held while the supervisor is called: that one calls back under a lock of its
    own. `measure` has the ceilings of a device measured.
    """

    def __init__(
        self, whole: Run, engine: Supervisor, measure: Callable[[str], Run], clock: Callable
    ) -> None:
        self.whole = whole
        self._engine = engine
        self._measure = measure
        self._clock = clock
        self._lock = threading.RLock()
        self._job: MemberJob | None = None  # in the queue, or on
        self._running_since: float | None = None
        self._asked = False  # for the ceilings
        self._stopped: str | None = None  # why

    def start(self) -> None:
        """Hand the supervisor the first member."""
        settings = self.whole.settings
        head = ExperimentStarted(
            experiment=name_of(settings),
            experiment_id=self.whole.id,
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            settings=settings,
            command=sweep_command(settings),
        )
        self.take(head)
        self._go_on()

    def stop(self, why: str = "cancelled", note: Message | None = None) -> None:
        """End it: the member that is on is cancelled, those that are over stay."""
        with self._lock:
            if self._stopped is not None or self.whole.finished:
                return
            self._stopped, self.whole.note = why, note
            job = self._job
        if job is None:
            self._go_on()  # to its end
        else:
            self._engine.cancel(job.id)

    def watch(self) -> None:
        """Stop a member that outlasts the budget. Called each second."""
        with self._lock:
            if self._job is None or self._job.log.started is None:
                self._running_since = None
                return
            if self._running_since is None:
                self._running_since = self._clock()
            left_s = self.whole.log.standing.left_s
            late = left_s is not None and self._clock() - self._running_since > max(left_s, 0)
        if late:
            self.stop("budget")

    def take(self, event: ExperimentEvent) -> None:
        with self._lock:
            self.whole.append_event(event, to_line(event))

    def over(self, job: "MemberJob") -> None:
        """A member has come to its end, whichever."""
        with self._lock:
            if job is not self._job:
                return
            self._job = None
            started, device = self.whole.log.started, None
            if started is not None and not self._asked and self._stopped is None:
                self._asked, device = True, started.hardware.device
                if (found := ceilings.load(started.hardware.name, device)) is not None:
                    self.take(CeilingsFound(ceilings=found))
                    device = None
        if device is None:
            self._go_on()
        else:
            self._wait_for(self._measure(device))

    def _wait_for(self, run: Run) -> None:
        """Go on when the ceilings of the machine are measured, or cannot be."""

        def changed() -> None:
            with self._lock:
                if not run.finished or not waiting:
                    return
                waiting.clear()
                found = run.log.finding(CeilingsFound)
                if found is not None and self.whole.log.finished is None:
                    self.take(found)
            run.unsubscribe(changed, self._clock())
            self._go_on()

        waiting = [run]
        run.subscribe(changed)
        changed()

    def _go_on(self) -> None:
        """Hand over the member that is due, or end."""
        with self._lock:
            log = self.whole.log
            if log.finished is not None or self._job is not None:
                return
            planned = None if self._stopped else log.standing.due()
            if planned is None:
                reason, error = log.standing.outcome()
                for event in log.closing(self._stopped or reason, error):
                    self.take(event)
                return
            member = len(log.members)
            self.take(MemberStarted(member=member, label=planned.label, repeat=planned.repeat))
            job = self._job = MemberJob(self, member, planned.run)
            self._running_since = None
        self._engine.submit(job, samples="none")
        if self._stopped is not None:  # while it was handed over
            self._engine.cancel(job.id)


class MemberJob:
    """A member in the supervisor's hands (`supervisor.Sink`)."""

    def __init__(self, experiment: QueuedExperiment, member: int, settings: RunSettings) -> None:
        self.id = secrets.token_urlsafe(16)
        self.settings = settings
        self.note: Message | None = None
        self._experiment = experiment
        self._member = member

    @property
    def client(self) -> str:
        return self._experiment.whole.client

    @property
    def log(self) -> RunLog:
        return self._experiment.whole.log.members[self._member].log

    @property
    def predicted(self) -> list[list[int | None]]:
        return self._experiment.whole.predicted

    def append(self, line: str) -> Event:
        event = RunLog.from_line(line)
        if (kept := lean(event)) is not None:
            self._experiment.take(MemberEvent(self._member, kept))
        if self.log.finished is not None:
            self._experiment.over(self)
        return event

    def set_status(self, state: str, **where: object) -> None:
        self._experiment.whole.set_status(state, **where)

    def finish(self, error: Message | None) -> None:
        """It never began."""
        if error is not None:
            self._experiment.take(MemberRefused(member=self._member, error=error))
        self._experiment.over(self)
