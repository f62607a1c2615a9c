"""The runs and experiments of this process: who asks for one, how long it lasts, how long it is
kept.

Nothing here knows how a run is made (supervisor), sent (routes) or drawn (view).

Try it: `python -m pytest tests/server/test_registry.py -k session`
"""

import secrets
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable

from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import KINDS, CeilingsSettings, ExperimentLog, Settings, name_of
from viz_engine.run.log import RunLog
from viz_engine.server.experiments import QueuedExperiment
from viz_engine.server.limits import Limits
from viz_engine.server.runs import Run
from viz_engine.server.supervisor import Supervisor
from viz_engine.text import Message, UserError

GRACE_S = 30.0  # nobody watches and the browser session has gone: stopped after this


def session_alive(session_id: str | None) -> bool:
    """Whether a browser tab is connected to this Streamlit session. True where no server runs
    (a page under test)."""
    from streamlit.runtime import Runtime

    if not Runtime.exists():
        return True
    return session_id is not None and Runtime.instance().is_active_session(session_id)


class Registry:
    """All runs of this process, newest use last, and the engine that makes them."""

    def __init__(
        self,
        engine: Supervisor | None = None,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        alive: Callable[[str | None], bool] = session_alive,
    ) -> None:
        self.engine = engine or Supervisor()
        self.engine.on_tick = self.tick
        self.every_second: list[Callable[[], None]] = [self.expire]
        self.limits = limits or Limits.from_env()
        self.on_submit: Callable[[], None] = lambda: None
        self._clock = clock
        self._alive = alive
        self._lock = threading.RLock()
        self._runs: dict[str, Run] = {}
        self._sockets: Counter[str | None] = Counter()  # open ones by client
        self._queued: dict[str, QueuedExperiment] = {}  # those that are on, by the id of their run

    def start(self) -> None:
        """Start the engine process, so that the model is ready when the first visitor asks."""
        self.engine.start()

    def stop(self) -> None:
        self.engine.stop()

    def submit(
        self,
        settings: RunSettings | Settings,
        session_id: str | None,
        *,
        browser: str | None = None,
        client: str | None = None,
    ) -> Run:
        """Queue a run or an experiment for a browser session (`visitors` says who `browser` and
        `client` are). Raises UserError where it is beyond the limits; what only the model can tell
        comes later, as its error."""
        if name_of(settings) in KINDS:
            KINDS[name_of(settings)].check(settings)
        self.limits.check(settings)
        in_turns = _in_turns(settings)
        with self._lock:
            if session_id is not None and any(
                run.session_id == session_id and _in_turns(run.settings) == in_turns
                for run in self._runs.values()
                if not run.finished
            ):
                # What takes turns holds nobody up, so a visitor may have one of each.
                raise UserError("sweep.one_sweep" if in_turns else "service.one_run")
            run = self._new(settings, session_id, browser, client)
            self._check_queue(run.client)
            self._add(run)
        self._start(run)
        return run

    def measure(self, device: str) -> Run:
        """Have the ceilings of a device measured, once for all who ask meanwhile."""
        with self._lock:
            if (run := self.measuring) is not None:
                return run
            run = self._new(CeilingsSettings(device=device), None, None, None)
            self._add(run)
        self._start(run)
        return run

    @property
    def measuring(self) -> Run | None:
        """The measurement of ceilings that is on or in the queue."""
        with self._lock:
            for run in self._runs.values():
                if isinstance(run.settings, CeilingsSettings) and not run.finished:
                    return run
        return None

    def _check_queue(self, client: str) -> None:
        """Raises UserError where the queue is full; for a client that has a run in it, where no
        more than a quarter is left: that is kept for others."""
        taken, limit = self.engine.queue_len, self.limits.queue
        if taken >= limit:
            raise UserError("service.queue_full", limit=limit)
        if taken >= limit - max(1, limit // 4) and self.engine.num_waiting(client):
            raise UserError("service.queue_share", taken=taken, limit=limit)

    def _new(
        self,
        settings: RunSettings | Settings,
        session_id: str | None,
        browser: str | None,
        client: str | None,
    ) -> Run:
        log = RunLog() if isinstance(settings, RunSettings) else ExperimentLog()
        run_id = secrets.token_urlsafe(16)
        run = Run(run_id, settings, session_id, log, browser=browser, client=client)
        run.unwatched_since = self._clock()
        return run

    def _add(self, run: Run) -> None:
        self._runs[run.id] = run
        if _in_turns(run.settings):
            made = QueuedExperiment(run, self.engine, self.measure, self._clock)
            self._queued[run.id] = made

    def _start(self, run: Run) -> None:
        self.engine.start()
        self.on_submit()
        if run.id in self._queued:
            self._queued[run.id].start()
        else:
            self.engine.submit(run)

    def add_log(
        self,
        log: RunLog | ExperimentLog,
        run_id: str | None = None,
        *,
        client: str | None = None,
    ) -> Run:
        """A run or an experiment from a file that `client` brought. With a `run_id` (a recorded
        one that ships) the same is returned the next time."""
        with self._lock:
            if run_id is not None and run_id in self._runs:
                return self.get(run_id)
        run = Run(run_id or secrets.token_urlsafe(16), None, None, type(log)(), client=client)
        for event in log:
            run.append_event(event, log.to_line(event))
        if not run.finished:
            run.note = Message(key="service.file_cut")
            run.finish(None)
        run.unwatched_since = self._clock()
        with self._lock:
            run = self._runs.setdefault(run.id, run)
            self._evict()
        return run

    def get(self, run_id: str) -> Run | None:
        """The run, or None where this process has none of that id (any more)."""
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is not None:
                self._runs[run_id] = run  # used last
            return run

    def cancel(self, run_id: str) -> bool:
        """Stop a run. False where there is none of that id."""
        run = self.get(run_id)
        if run is not None and not run.finished:
            self._cancel(run, None)
        return run is not None

    def _cancel(self, run: Run, note: Message | None) -> None:
        made = self._queued.get(run.id)
        if made is not None:
            made.stop(note=note)
        else:
            self.engine.cancel(run.id, note)

    def seen(self, run: Run) -> None:
        """A page looks at a run that it does not subscribe to."""
        run.unwatched_since = self._clock()

    def runs_of(self, session_id: str, shown_id: str | None = None) -> list[Run]:
        """Finished runs with steps that a session made or shows, newest first."""
        with self._lock:
            runs = [run for run in self._runs.values() if run.session_id == session_id]
            shown = self._runs.get(shown_id or "")
        if shown is not None and shown not in runs and not shown.id.startswith("recorded-"):
            runs.append(shown)
        return [run for run in reversed(runs) if run.finished and run.log.steps and not run.held]

    def subscribe(self, run: Run, wake: Callable[[], None], client: str | None = None) -> None:
        """Watch a run. Raises UserError where too many do, or where `client` watches too much."""
        with self._lock:
            if run.num_subscribers >= self.limits.run_sockets:
                raise UserError("service.sockets", limit=self.limits.run_sockets)
            if self._sockets[client] >= self.limits.client_sockets:
                raise UserError("service.sockets", limit=self.limits.client_sockets)
            self._sockets[client] += 1
        run.subscribe(wake)

    def unsubscribe(self, run: Run, wake: Callable[[], None], client: str | None = None) -> None:
        run.unsubscribe(wake, self._clock())
        with self._lock:
            self._sockets[client] -= 1
            if not self._sockets[client]:
                del self._sockets[client]

    def tick(self) -> None:
        """What is due each second."""
        for act in self.every_second:
            act()

    def expire(self) -> None:
        """Stop runs that nobody watches any more or that last too long, and forget the oldest
        finished ones."""
        now = self._clock()
        with self._lock:
            runs = [run for run in self._runs.values() if not run.finished]
            for run_id in self._queued.keys() - {run.id for run in runs}:
                del self._queued[run_id]
            queued = list(self._queued.values())
            self._evict()
        for made in queued:
            made.watch()
        for run in runs:
            if run.state != "queued" and run.started_at is None:
                run.started_at = now
            since = run.unwatched_since
            too_long = run.started_at is not None and now - run.started_at > self.limits.run_s
            if too_long and run.id not in self._queued:  # those have a budget, and wait in between
                params = {"minutes": round(self.limits.run_s / 60, 1)}
                self._cancel(run, Message(key="service.too_long", params=params))
            elif isinstance(run.settings, CeilingsSettings):  # for whoever asks: nobody's own
                continue
            elif since is not None and now - since > GRACE_S and not self._alive(run.session_id):
                self._cancel(run, Message(key="service.unwatched"))

    def _evict(self) -> None:
        """Forget finished runs while there are too many or they hold too much: of the client that
        holds the most, the one used longest ago that nobody watches. The newest stays: it is about
        to be shown."""
        kept = [run for run in self._runs.values() if run.finished]
        loose = [run for run in kept[:-1] if not run.num_subscribers]
        num, size = len(kept), sum(run.num_bytes for run in kept)
        while loose and (num > self.limits.kept_runs or size > self.limits.kept_mib * 2**20):
            weight = Counter()
            for run in kept:
                weight[run.client] += run.num_bytes if num <= self.limits.kept_runs else 1
            most = max(weight[run.client] for run in loose)
            run = next(run for run in loose if weight[run.client] == most)
            del self._runs[run.id]
            loose.remove(run)
            kept.remove(run)
            num, size = num - 1, size - run.num_bytes


def _in_turns(settings: RunSettings | Settings | None) -> bool:
    """Whether others may run between its members."""
    return name_of(settings) in KINDS and not KINDS[name_of(settings)].exclusive


_HOLDER = "second_token_process_state"  # not one of our files: hot reload leaves it alone


def install(registry_: Registry) -> None:
    """Make this the registry of the process."""
    holder = sys.modules.setdefault(_HOLDER, types.ModuleType(_HOLDER))
    holder.registry = registry_


def registry() -> Registry:
    """The registry of this process, made on first use. Streamlit's hot reload imports this module
    anew; the registry outlives that."""
    holder = sys.modules.setdefault(_HOLDER, types.ModuleType(_HOLDER))
    lock = holder.__dict__.setdefault("lock", threading.Lock())
    with lock:
        if not hasattr(holder, "registry"):
            holder.registry = Registry()
        return holder.registry
