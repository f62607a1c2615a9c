"""Runs as the service keeps them: what a visitor may ask for, who watches, how long a run is kept.

A `Run` is a RunLog (or the RaceLog of a race) with its lines; every subscriber reads it from a
cursor of its own and gets all that is ready in one frame. Nothing here knows how a run is made
(supervisor), sent (routes) or drawn (view).

Try it: `python -c "from viz_engine.server import registry; print(registry.Limits.from_env())"`
"""

import json
import os
import secrets
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from viz_engine.model.files import DEFAULT_MODEL
from viz_engine.run import metrics
from viz_engine.run.codec import from_line, to_line
from viz_engine.run.events import Event, RunSettings, StepFinished
from viz_engine.run.log import RunLog
from viz_engine.run.race import LaneStarted, RaceLog, RaceSettings
from viz_engine.server.supervisor import Supervisor
from viz_engine.text import Message, UserError, grouped

GRACE_S = 30.0  # nobody watches and the browser session has gone: stopped after this
PROGRESS_NS = 500_000_000  # between words about a race that is on
UNPREDICTED: list[int | None] = [None] * 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one visitor may ask of this server, whatever the page sends. Each is set by the
    environment variable SECOND_TOKEN_MAX_ and its name in capitals."""

    batch: int = 16
    new_tokens: int = 4096
    prompt_chars: int = 200_000
    queue: int = 16  # runs waiting
    run_s: int = 1800  # then a run is stopped
    sweep_s: int = 600  # the most that a sweep's budget may be
    kept_runs: int = 64  # finished runs in memory
    kept_mib: int = 256  # of their lines together
    models: tuple[str, ...] | None = None  # None: any model

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Limits":
        """Limits of this server. SECOND_TOKEN_HOSTED=1 offers the default model and those that
        SECOND_TOKEN_MODELS lists, separated by commas. Raises ValueError that names a variable
        that is not a whole number of at least 1."""
        limits = cls()
        for f in fields(cls):
            name = f"SECOND_TOKEN_MAX_{f.name.upper()}"
            if f.name == "models" or not env.get(name):
                continue
            if not env[name].strip().isdecimal() or int(env[name]) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1: {env[name]!r}")
            limits = replace(limits, **{f.name: int(env[name])})
        if env.get("SECOND_TOKEN_HOSTED", "") not in ("", "0"):
            listed = (name.strip() for name in env.get("SECOND_TOKEN_MODELS", "").split(","))
            models = dict.fromkeys([DEFAULT_MODEL, *filter(None, listed)])
            limits = replace(limits, models=tuple(models))
        return limits

    def check(self, settings: RunSettings | RaceSettings) -> None:
        """Raises UserError where `settings` ask for more than this server gives."""
        if isinstance(settings, RaceSettings):
            settings = settings.run
        num_chars = sum(len(prompt) for prompt in settings.prompts)
        if num_chars > self.prompt_chars:
            chars, limit = grouped(num_chars), grouped(self.prompt_chars)
            raise UserError("service.prompt_size", chars=chars, limit=limit)
        if not 1 <= settings.batch <= self.batch or len(settings.prompts) > self.batch:
            raise UserError("service.batch", batch=settings.batch, limit=self.batch)
        if not 1 <= settings.new_tokens <= self.new_tokens:
            tokens = settings.new_tokens
            raise UserError("service.new_tokens", tokens=tokens, limit=self.new_tokens)
        if self.models is not None and settings.model not in self.models:
            offered = ", ".join(self.models)
            raise UserError("service.model", model=settings.model[:80], offered=offered)


class Run:
    """One run: its log, the lines of it, and where it stands. One thread writes, any may read.

    With the log of a race it is a race: nothing of it is sent before its end, so that no picture
    slows what is being measured; until then there is a word about how far it is.
    """

    def __init__(
        self,
        run_id: str,
        settings: RunSettings | RaceSettings | None,
        session_id: str | None,
        log: RaceLog | None = None,
    ) -> None:
        self.id = run_id
        self.settings = settings  # None: a run from a file
        self.session_id = session_id
        self.is_race = log is not None
        self.log: RunLog | RaceLog = RunLog() if log is None else log
        self._told_ns = 0
        self.lines: list[str] = []
        self.predicted: list[list[int | None]] = []  # one a step, see `frame`
        self.num_bytes = 0  # of the lines
        self.state = "queued"  # then loading, running, finished
        self.position: int | None = None
        self.message: Message | None = None
        self.fraction: float | None = None
        self.error: Message | None = None
        self.note: Message | None = None  # shown when it has ended without an error
        self.unwatched_since: float | None = None  # None: somebody subscribes
        self.started_at: float | None = None  # when it left the queue
        self._num_steps_before: list[int] = []  # steps before each event
        self._subscribers: set[Callable[[], None]] = set()
        self._lock = threading.Lock()

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def append(self, line: str) -> Event:
        """Take the next line of its source. Raises UserError on a line that is no record, LogError
        where it does not follow."""
        event = from_line(line, self.log.kinds)
        self.append_event(event, line)
        return event

    def append_event(self, event: Event, line: str) -> None:
        """Take a record and the line that it is written as. Raises LogError."""
        columns_before = self.log.num_columns
        self.log.append(event)
        predicted = (
            _predict(self.log, event, columns_before) if isinstance(event, StepFinished) else None
        )
        with self._lock:
            self._num_steps_before.append(len(self.predicted))
            if predicted is not None:
                self.predicted.append(predicted)
            self.lines.append(line)
            self.num_bytes += len(line)
            if self.state != "running":
                self.state, self.position, self.message, self.fraction = "running", None, None, None
            if self.log.finished is not None:
                self.state, self.error = "finished", event.error
                self.message = self.fraction = None
                if event.finish_reason != "cancelled":
                    self.note = None  # it came to its end before it was stopped
        if not self.is_race or self.finished:
            self._changed()
        elif isinstance(event, LaneStarted | StepFinished):
            self._tell(event)

    def _tell(self, event: LaneStarted | StepFinished) -> None:
        """How far a race is, now and then."""
        lane = self.log.lanes[-1]
        now = getattr(event, "end_ns", None)
        if now is not None and now - self._told_ns < PROGRESS_NS:
            return
        self._told_ns = now or 0
        settings = self.log.race.settings
        if lane.purpose == "look":
            self.set_status("running", message=Message(key="service.race_look"), fraction=1.0)
            return
        num_tokens = sum(len(ids) for step in lane.log.steps for ids in step.token_ids)
        params = {
            "repeat": lane.repeat + 1,
            "repeats": settings.repeats,
            "token": num_tokens,
            "of": settings.run.new_tokens,
        }
        # Two literal keys, so that the tests of the texts see them.
        key = "service.race_none" if lane.cache == "none" else "service.race_full"
        share = (lane.repeat + num_tokens / settings.run.new_tokens * 0.9) / settings.repeats
        self.set_status("running", message=Message(key=key, params=params), fraction=share)

    def set_status(
        self,
        state: str,
        *,
        position: int | None = None,
        message: Message | None = None,
        fraction: float | None = None,
    ) -> None:
        """Where it stands before it runs. Does nothing once it has finished."""
        with self._lock:
            if self.state == "finished":
                return
            self.state, self.position = state, position
            self.message, self.fraction = message, fraction
        self._changed()

    def finish(self, error: Message | None) -> None:
        """End it without an event: it never began, or its file stops before its end."""
        with self._lock:
            self.state, self.error = "finished", error
            self.position = self.message = self.fraction = None
        self._changed()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` after every change, from whichever thread makes it."""
        with self._lock:
            self._subscribers.add(wake)
            self.unwatched_since = None

    def unsubscribe(self, wake: Callable[[], None], now: float) -> None:
        with self._lock:
            self._subscribers.discard(wake)
            if not self._subscribers:
                self.unwatched_since = now

    @property
    def num_subscribers(self) -> int:
        return len(self._subscribers)

    def _changed(self) -> None:
        for wake in tuple(self._subscribers):
            wake()

    def read(self, first: int, language: str) -> tuple[str, int, bool]:
        """The frame from event `first` on, the event after it, and whether nothing more comes."""
        with self._lock:
            done = self.state == "finished"
            stop = len(self.lines) if done or not self.is_race else 0
            first = min(first, stop)
            lines = self.lines[first:stop]
            steps = self.predicted[self._num_steps_before[first] :] if lines else []
            message = self.note if done else self.message
            header = {
                "first": first,
                "count": len(lines),
                "status": {
                    "state": self.state,
                    "position": self.position,
                    "text": message.text(language) if message else None,
                    "fraction": self.fraction,
                },
                "error": self.error.text(language) if self.error else None,
                "predicted": steps,
            }
        head = json.dumps(header, separators=(",", ":"))
        return "\n".join((head, *lines)), stop, done


def frame(run: Run, first: int, language: str) -> str:
    """All of a run from event `first` on, as the routes send it: a line of JSON (`first`, `count`,
    `status`, `error` in words, `predicted`), then one line an event.

    `predicted` has for each step_finished line `[flops, flops_without_cache, kv_live_bytes,
    kv_reserved_bytes, kv_bytes_read, kv_bytes_written, weight_bytes_read]`, each None where there
    is no basis.
    """
    return run.read(first, language)[0]


def _predict(log: RunLog, step: StepFinished, columns_before: int) -> list[int | None]:
    try:
        here, without = metrics.predicted_step(log.started, step, columns_before)
    except (KeyError, ValueError, ArithmeticError):  # a file may name a dtype of its own
        return UNPREDICTED
    return [
        here.flops,
        without.flops,
        here.kv_live_bytes,
        here.kv_reserved_bytes,
        here.kv_bytes_read,
        here.kv_bytes_written,
        here.weight_bytes_read,
    ]


# ---- the registry ------------------------------------------------------------------------------


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
        self.engine.on_tick = self.sweep
        self.limits = limits or Limits.from_env()
        self.on_submit: Callable[[], None] = lambda: None
        self._clock = clock
        self._alive = alive
        self._lock = threading.RLock()
        self._runs: dict[str, Run] = {}

    def start(self) -> None:
        """Start the engine process, so that the model is ready when the first visitor asks."""
        self.engine.start()

    def stop(self) -> None:
        self.engine.stop()

    def submit(self, settings: RunSettings | RaceSettings, session_id: str | None) -> Run:
        """Queue a run or a race for a browser session. Raises UserError where it is beyond the
        limits; what only the model can tell comes later, as the run's error."""
        self.limits.check(settings)
        with self._lock:
            if session_id is not None and any(
                run.session_id == session_id and not run.finished for run in self._runs.values()
            ):
                raise UserError("service.one_run")
            if self.engine.queue_len >= self.limits.queue:
                raise UserError("service.queue_full", limit=self.limits.queue)
            log = RaceLog() if isinstance(settings, RaceSettings) else None
            run = Run(secrets.token_urlsafe(16), settings, session_id, log)
            run.unwatched_since = self._clock()
            self._runs[run.id] = run
        self.engine.start()
        self.on_submit()
        self.engine.submit(run)
        return run

    def add_log(self, log: RunLog | RaceLog, run_id: str | None = None) -> Run:
        """A run or a race from a file. With a `run_id` (a recorded run that ships) the same run is
        returned the next time."""
        with self._lock:
            if run_id is not None and run_id in self._runs:
                return self.get(run_id)
        race = RaceLog() if isinstance(log, RaceLog) else None
        run = Run(run_id or secrets.token_urlsafe(16), None, None, race)
        for event in log:
            run.append_event(event, to_line(event))
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
            self.engine.cancel(run_id)
        return run is not None

    def active_run(self, session_id: str) -> Run | None:
        """The run of a session that is queued or on."""
        with self._lock:
            for run in self._runs.values():
                if run.session_id == session_id and not run.finished:
                    return run
        return None

    def runs_of(self, session_id: str, shown_id: str | None = None) -> list[Run]:
        """Finished runs with steps that a session made or shows, newest first."""
        with self._lock:
            runs = [run for run in self._runs.values() if run.session_id == session_id]
            shown = self._runs.get(shown_id or "")
        if shown is not None and shown not in runs and not shown.id.startswith("recorded-"):
            runs.append(shown)
        return [run for run in reversed(runs) if run.finished and run.log.steps]

    def subscribe(self, run: Run, wake: Callable[[], None]) -> None:
        run.subscribe(wake)

    def unsubscribe(self, run: Run, wake: Callable[[], None]) -> None:
        run.unsubscribe(wake, self._clock())

    def sweep(self) -> None:
        """Stop runs that nobody watches any more or that last too long, and forget the oldest
        finished ones. Called each second."""
        now = self._clock()
        with self._lock:
            runs = [run for run in self._runs.values() if not run.finished]
            self._evict()
        for run in runs:
            if run.state != "queued" and run.started_at is None:
                run.started_at = now
            since = run.unwatched_since
            if run.started_at is not None and now - run.started_at > self.limits.run_s:
                params = {"minutes": round(self.limits.run_s / 60, 1)}
                self.engine.cancel(run.id, Message(key="service.too_long", params=params))
            elif since is not None and now - since > GRACE_S and not self._alive(run.session_id):
                self.engine.cancel(run.id, Message(key="service.unwatched"))

    def _evict(self) -> None:
        kept = [run for run in self._runs.values() if run.finished]
        num, size = len(kept), sum(run.num_bytes for run in kept)
        for run in kept:
            if num <= self.limits.kept_runs and size <= self.limits.kept_mib * 2**20:
                break
            if not run.num_subscribers:
                del self._runs[run.id]
                num, size = num - 1, size - run.num_bytes


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
