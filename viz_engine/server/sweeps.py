"""A sweep on a server: its runs go through the engine's queue one after the other, each waiting its
turn, so that a sweep never locks others out.

`SweepJob` is what a page asks for progress; `SweepJobs` keeps them. Runs of a sweep are measured
with the live view off and no magnitudes taken. Nothing here knows how a run is made.

Try it: `python -m pytest tests/server/test_sweeps.py`
"""

import secrets
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass

from viz_engine.run import ceilings
from viz_engine.run.sweep import Progress, Sweep, SweepResult, SweepSettings
from viz_engine.server import registry as server_registry
from viz_engine.server.registry import GRACE_S, Registry, registry
from viz_engine.server.runs import Run
from viz_engine.server.supervisor import Supervisor
from viz_engine.text import Message, UserError

KEPT = 16  # finished sweeps in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a page says of a sweep under way."""

    state: str  # measuring, queued, loading, running, finished
    message: Message | None
    fraction: float | None  # of loading
    value: int | None  # of the run under way
    progress: Progress


class SweepJob:
    """One sweep. The engine's threads write, any may read."""

    def __init__(
        self, sweep: Sweep, session_id: str | None, engine: Supervisor, clock: Callable[[], float]
    ) -> None:
        self.id = secrets.token_urlsafe(16)
        self.session_id = session_id
        self.sweep = sweep
        self.seen_at = clock()
        self._engine = engine
        self._clock = clock
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._running_since: float | None = None
        self._asked = False
        self.finished = False

    def start(self) -> None:
        """Hand the engine the first run."""
        self._go_on()

    def stop(self, why: str = "cancelled") -> None:
        """End it: the run under way is cancelled, those that are over stay."""
        with self._lock:
            self.sweep.stop(why)
            run = self._run
        if run is not None:
            self._engine.cancel(run.id)

    def seen(self) -> None:
        """A page looks at it."""
        self.seen_at = self._clock()

    def status(self) -> Status:
        with self._lock:
            run = self._run
            return Status(
                state="finished" if self.finished or run is None else run.state,
                message=run.message if run else None,
                fraction=run.fraction if run else None,
                value=self.sweep.current,
                progress=self.sweep.progress,
            )

    def result(self) -> SweepResult:
        """What there is so far, with the ceilings of the machine that ran it."""
        result = self.sweep.result
        if result.ceilings is None and result.started is not None:
            machine = result.started.hardware
            result.ceilings = ceilings.load(machine.name, machine.device)
        return result

    def watch(self, now: float) -> None:
        """Stop a run that outlasts the budget. Called each second."""
        with self._lock:
            run = self._run
            if run is None or run.log.started is None:
                self._running_since = None
                return
            if self._running_since is None:
                self._running_since = now
            late = now - self._running_since > max(self.sweep.left_s, 0)
        if late:
            self.stop("budget")

    def _go_on(self) -> None:
        with self._lock:
            settings = self.sweep.next()
            if settings is None:
                self._run, self.finished = None, True
                return
            run = self._run = Run(secrets.token_urlsafe(16), settings, self.session_id)
            self._running_since = None
        run.subscribe(lambda: self._changed(run))
        self._engine.submit(run, samples="none")

    def _changed(self, run: Run) -> None:
        with self._lock:
            if not run.finished or run is not self._run:
                return
            self._run = None
            self.sweep.took(run.log, run.error)
        self._want_ceilings()
        self._go_on()

    def _want_ceilings(self) -> None:
        """Have the machine's ceilings measured after the first run, where none are kept."""
        if not self._asked and self.sweep.result.started is not None:
            self._asked = True
            machine = self.sweep.result.started.hardware
            if ceilings.load(machine.name, machine.device) is None:
                self._engine.measure(machine.device)


class SweepJobs:
    """The sweeps of this process."""

    def __init__(
        self, runs: Registry, clock: Callable[[], float] = time.monotonic, alive: Callable = None
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._alive = alive or server_registry.session_alive
        self._lock = threading.Lock()
        self._jobs: dict[str, SweepJob] = {}
        runs.every_second.append(self.tick)

    def submit(self, settings: SweepSettings, session_id: str | None) -> SweepJob:
        """Start a sweep for a browser session. Raises UserError beyond the limits of the server,
        or where the session has a sweep or a run already."""
        limits = self._runs.limits
        if settings.budget_s > limits.sweep_s:
            raise UserError("sweep.bad_budget", most=limits.sweep_s)
        sweep = Sweep(settings)
        for value in settings.values:
            limits.check(settings.run_at(value))
        with self._lock:
            jobs = self._jobs.values()
            if session_id is not None and any(
                job.session_id == session_id and not job.finished for job in jobs
            ):
                raise UserError("sweep.one_sweep")
            if self._runs.engine.queue_len >= limits.queue:
                raise UserError("service.queue_full", limit=limits.queue)
            job = SweepJob(sweep, session_id, self._runs.engine, self._clock)
            self._jobs[job.id] = job
            done = [job.id for job in self._jobs.values() if job.finished]
            for old in done[: max(len(done) - KEPT, 0)]:
                del self._jobs[old]
        self._runs.engine.start()
        self._runs.on_submit()
        job.start()
        return job

    def add(self, result: SweepResult) -> SweepJob:
        """A sweep from a file, so that it has a link."""
        sweep = Sweep(result.settings)
        sweep.result = result
        job = SweepJob(sweep, None, self._runs.engine, self._clock)
        job.finished = True
        with self._lock:
            self._jobs[job.id] = job
        return job

    def get(self, job_id: str) -> SweepJob | None:
        return self._jobs.get(job_id)

    def tick(self) -> None:
        """Stop sweeps that are over their time, and those that nobody watches any more."""
        now = self._clock()
        with self._lock:
            jobs = [job for job in self._jobs.values() if not job.finished]
        for job in jobs:
            job.watch(now)
            if now - job.seen_at > GRACE_S and not self._alive(job.session_id):
                job.stop()


_HOLDER = "second_token_sweeps"  # not one of our files: hot reload leaves it alone


def sweeps() -> SweepJobs:
    """The sweeps of this process, made on first use, on the registry of `live`."""
    runs = registry()
    holder = sys.modules.setdefault(_HOLDER, types.ModuleType(_HOLDER))
    lock = holder.__dict__.setdefault("lock", threading.Lock())
    with lock:
        if getattr(holder, "runs", None) is not runs:
            holder.runs, holder.jobs = runs, SweepJobs(runs)
        return holder.jobs
