"""The engine process, seen from the web process: `Supervisor` owns it and the queue before it.

It starts the program (child), hands it one run at a time, ends it when it no longer answers
(watchdog) and starts it again. It knows nothing of models, pages or sockets, and never imports
torch.

Try it: `python -m pytest tests/server/test_worker.py -k real`
"""

import bisect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from viz_engine.run import protocol
from viz_engine.run.codec import settings_to_dict
from viz_engine.run.events import Event, RunSettings, RunStarted, StepFinished
from viz_engine.run.experiment import ExperimentLog, Settings, name_of
from viz_engine.run.files import LogError
from viz_engine.run.log import RunLog
from viz_engine.run.protocol import (
    Cancel,
    Done,
    Prepare,
    Progress,
    Ready,
    Record,
    Refused,
    Reply,
    Start,
)
from viz_engine.server.child import ChildProcess, exit_reason
from viz_engine.server.watchdog import Watchdog
from viz_engine.text import Message, UserError

COMMAND = (sys.executable, "-m", "viz_engine.engine.worker")
TICK_S = 1.0
MAX_BACK_OFF_S = 60.0  # between starts of a child that dies before it is ready
TRIES_WITHOUT_WORK = 3  # such deaths, after which only a new run starts it again


class Sink(Protocol):
    """What is told about a run or an experiment (`runs.Run`, `experiments.MemberJob`), from the
    supervisor's threads."""

    id: str
    client: str  # whose turn it takes
    settings: RunSettings | Settings
    log: RunLog | ExperimentLog
    predicted: list[Mapping[str, int] | None]  # of each step; None: cannot be predicted
    note: Message | None  # shown when it has ended without an error

    def append(self, line: str) -> Event: ...
    def set_status(
        self,
        state: str,
        *,
        position: int | None = None,
        message: Message | None = None,
        fraction: float | None = None,
    ) -> None: ...
    def finish(self, error: Message | None) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """A run in the queue or on."""

    run: Sink
    asked_at: float  # seconds of the supervisor's clock
    round: int  # its place among turns, see `Supervisor.submit`
    samples: str = "each"  # magnitudes of the rows: after each step, or none
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a page says of the engine process."""

    state: str  # stopped, starting, ready
    devices: tuple[str, ...]
    device: str | None  # what `auto` takes here
    dtype: str | None
    memory_bytes: int | None
    problem: Message | None  # why no run can work (torch is missing)
    progress: Message | None  # what it prepares now
    fraction: float | None


class Supervisor:
    """Owns the engine process: a queue of runs, in which clients take turns, and restarts.

    `check` does all that time brings about (start, dispatch, watch); a thread calls it each
    second and whenever something was asked for. The child is always spawned from that thread: on
    Linux niceness is a thread's own and is inherited, so the child keeps the priority that the
    thread had at `start`, whatever the web process does to itself later.
    """

    def __init__(
        self,
        spawn: Callable[[Callable, Callable], ChildProcess] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._spawn = spawn or (lambda line, end: ChildProcess(COMMAND, line, end))
        self._clock = clock
        self.on_tick = on_tick
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._queue: list[Job] = []
        self._current: Job | None = None
        self._round = 0  # of the job that was handed over last
        self._served: dict[str, int] = {}  # by client: its newest round, from `_round` on
        self._process: ChildProcess | None = None
        self._ready: Ready | None = None
        self._watchdog = Watchdog(clock)
        self._spawn_at = float("-inf")
        self._early_deaths = 0
        self._killed_for: Message | None = None
        self._preparing = False
        self._progress: tuple[Message, float | None] | None = None

    # -- what others ask for

    def start(self) -> None:
        """Start the thread, and with it the process. Does nothing the second time."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the process and the thread. Runs that are still on end as cancelled."""
        with self._lock:
            self._stopping = True
            process, self._process = self._process, None
            jobs = [job for job in (self._current, *self._queue) if job]
            self._current, self._queue = None, []
        self._wake.set()
        for job in jobs:
            _end(job, "cancelled", Message(key="service.shut_down"))
        if process is not None:
            process.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)

    def submit(self, run: Sink, *, samples: str = "each") -> None:
        """Put a run into the queue.

        A client has one run in each round, and rounds follow each other; within one, who asked
        first is served first. So whoever comes waits for one run of each other client at most,
        and a client alone is served as it asks. (Start-time fair queueing: Goyal, Vin, Cheng,
        SIGCOMM 1996, with runs of one length.)
        """
        with self._lock:
            rounds = [job.round for job in self._queue if job.run.client == run.client]
            newest = max(rounds, default=self._served.get(run.client, -1))
            job = Job(
                run=run,
                asked_at=self._clock(),
                round=max(self._round, newest + 1),
                samples=samples,
            )
            bisect.insort(self._queue, job, key=lambda job: job.round)
            self._tell_positions()
        self._wake.set()

    def cancel(self, run_id: str, note: Message | None = None) -> None:
        """Stop a run: out of the queue at once, while loading at once, else after the step that
        it is in. `note` says why, where it was not the visitor who asked."""
        with self._lock:
            for job in self._queue:
                if job.run.id == run_id:
                    self._queue.remove(job)
                    _end(job, "cancelled", note)
                    self._tell_positions()
                    return
            job = self._current
            if job is None or job.run.id != run_id or job.cancelled:
                return
            job.cancelled = True
            self._watchdog.asked_to_stop()
            job.run.note = note or Message(key="service.cancelled")
            self._process.send(Cancel(run_id=run_id))
            if job.run.log.started is None:  # the child drops it as soon as it looks
                self._current = None
                _end(job, "cancelled", note)
        self._wake.set()

    @property
    def queue_len(self) -> int:
        return len(self._queue)

    def num_waiting(self, client: str) -> int:
        """Runs of a client in the queue. Without the lock, which is held while a run's records are
        taken: whoever asks may hold the registry's, for which that may wait."""
        return sum(job.run.client == client for job in tuple(self._queue))

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process else None

    def info(self) -> EngineInfo:
        with self._lock:
            ready, progress = self._ready or Ready(devices=()), self._progress
            return EngineInfo(
                state="ready" if self._ready else "starting" if self._process else "stopped",
                devices=ready.devices,
                device=ready.device,
                dtype=ready.dtype,
                memory_bytes=ready.memory_bytes,
                problem=ready.problem,
                progress=progress[0] if progress else None,
                fraction=progress[1] if progress else None,
            )

    # -- what time brings about

    def _loop(self) -> None:
        while not self._stopping:
            try:
                self.check()
                self.on_tick()
            except Exception:  # the watchdog must outlive a fault
                traceback.print_exc()
            self._wake.wait(TICK_S)
            self._wake.clear()

    def check(self) -> None:
        """Watch the child, start it where it is due, hand it the next run."""
        now = self._clock()
        with self._lock:
            if self._stopping:
                return
            if self._process is not None:
                self._watch()
            elif now >= self._spawn_at and (self._queue or self._early_deaths < TRIES_WITHOUT_WORK):
                self._start_process(now)
            if self._process is not None and self._killed_for is None:
                self._dispatch(now)

    def _start_process(self, now: float) -> None:
        self._watchdog.heard()
        self._ready = self._killed_for = self._progress = None
        try:
            self._process = self._spawn(self._on_line, self._on_exit)
        except OSError as error:
            self._early_deaths += 1
            self._back_off(now)
            reason = Message(key="service.no_start", params={"reason": str(error)[:200]})
            for job in self._queue:
                _end(job, "error", reason)
            self._queue = []
            return
        if not self._preparing:  # a preparation that ended the child is not tried again
            self._preparing = True
            self._process.send(Prepare())

    def _dispatch(self, now: float) -> None:
        if self._current is not None or not self._queue:
            return
        job = self._current = self._queue.pop(0)
        self._round = self._served[job.run.client] = job.round
        self._served = {one: at for one, at in self._served.items() if at >= self._round}
        self._watchdog.began()
        message, fraction = self._progress or (
            Message(key="service.loading" if self._ready else "service.starting"),
            None,
        )
        job.run.set_status("loading", message=message, fraction=fraction)
        self._process.send(
            Start(
                run_id=job.run.id,
                what=name_of(job.run.settings),
                settings=settings_to_dict(job.run.settings),
                waited_ns=max(0, int((now - job.asked_at) * 1e9)),
                samples=job.samples,
            )
        )
        self._tell_positions()

    def _tell_positions(self) -> None:
        for place, job in enumerate(self._queue, start=1):
            message = Message(key="service.queued", params={"position": place})
            job.run.set_status("queued", position=place, message=message)

    def _watch(self) -> None:
        if self._killed_for is None:
            log = (self._current.run.log.latest or RunLog()) if self._current else None
            if reason := self._watchdog.look(self._ready is not None, log):
                self._kill(reason)

    def _kill(self, reason: Message) -> None:
        self._killed_for = reason
        self._process.kill()

    def _back_off(self, now: float) -> None:
        tries = self._early_deaths
        self._spawn_at = now + (min(2.0 ** (tries - 2), MAX_BACK_OFF_S) if tries > 1 else 0)

    # -- what the child says, and that it has gone

    def _on_exit(self, process: ChildProcess, code: int) -> None:
        with self._lock:
            if process is not self._process:
                return
            now = self._clock()
            reason = self._killed_for or exit_reason(code)
            self._early_deaths = 0 if self._ready else self._early_deaths + 1
            self._back_off(now)
            self._process = self._ready = self._progress = self._killed_for = None
            job, self._current = self._current, None
            if job is not None and job.cancelled:
                _end(job, "cancelled", job.run.note)
            elif job is not None:
                _end(job, "error", reason)
        self._wake.set()

    def _on_line(self, process: ChildProcess, line: bytes) -> None:
        with self._lock:
            if process is not self._process or self._killed_for is not None:
                return
            self._watchdog.heard()
            try:
                self._take(protocol.reply_of(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                traceback.print_exc()
                self._kill(Message(key="service.protocol"))

    def _take(self, message: Reply) -> None:
        if isinstance(message, Ready):
            self._ready = message
            return
        job = self._current
        mine = job is not None and getattr(message, "run_id", None) == job.run.id
        if isinstance(message, Progress):
            self._take_progress(job, mine, message)
        elif isinstance(message, Record) and mine:
            self._take_event(job, message.line)
        elif isinstance(message, Done | Refused) and mine:
            self._current = None
            error = message.message if isinstance(message, Refused) else None
            if job.run.log.finished is None:
                if job.cancelled:
                    _end(job, "cancelled", job.run.note)
                else:
                    _end(job, "error", error or Message(key="service.no_end"))
            self._wake.set()

    def _take_progress(self, job: Job | None, mine: bool, message: Progress) -> None:
        told = (message.message, message.fraction) if message.message else None
        if message.run_id is None:
            self._progress, self._preparing = told, told is not None
        elif not mine:
            return
        if job is None or job.cancelled:
            return
        self._watchdog.moved()  # a race may load in mid-race
        if job.run.log.started is None:
            if told is None:
                told = (Message(key="service.loading"), None)
            job.run.set_status("loading", message=told[0], fraction=told[1])

    def _take_event(self, job: Job, line: str) -> None:
        try:
            event = job.run.append(line)
        except (UserError, LogError) as error:
            self._current = None
            self._process.send(Cancel(run_id=job.run.id))
            params = {"reason": str(error)[:300]}
            _end(job, "error", Message(key="service.bad_event", params=params))
            self._wake.set()
            return
        if isinstance(event, RunStarted):
            self._watchdog.moved()
        elif isinstance(event, StepFinished):
            predicted = job.run.predicted[-1]
            flops = None if predicted is None else predicted["flops"]
            self._watchdog.stepped(flops, event.duration_ns)


def _end(job: Job, finish_reason: str, why: Message | None) -> None:
    """Close a run that its source did not close. Rows that it has are kept; a run that never began
    has no events and only a reason."""
    log = job.run.log
    error = why if finish_reason == "error" else None
    if error is None:
        job.run.note = why or Message(key="service.cancelled")
    if log.started is None:
        job.run.finish(error)
    elif log.finished is None:
        for event in log.closing(finish_reason, error):
            job.run.append(log.to_line(event))
