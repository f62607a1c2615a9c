"""A run or an experiment as the service keeps it: its log and lines, who watches, and its frames.

Every subscriber reads it from a cursor of its own and gets all that is ready in one frame. Nothing
here knows how a run is made (supervisor), kept (registry), sent (routes) or drawn (view).

Try it: `python -m pytest tests/server/test_registry.py -k frame`
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from sys import getsizeof

from viz_engine.model.formats import element_bytes
from viz_engine.run import cost
from viz_engine.run.events import Event, RunSettings, RunStarted, StepFinished
from viz_engine.run.experiment import ExperimentEvent, ExperimentLog, Own, Settings, name_of
from viz_engine.run.log import RunLog
from viz_engine.text import Message

PROGRESS_NS = 500_000_000  # between words about an experiment that is on
_ENCODER = json.JSONEncoder(separators=(",", ":"))
BESIDE_BYTES = 1024  # of a step: its predicted cost by name, its columns
COST_FIELDS = (*(f.name for f in fields(cost.StepCost)), "flops")


class Run:
    """One run: its log, the lines of it, and where it stands. One thread writes, any may read.

    With the log of an experiment it is one: nothing of it is sent before its end, so that no
    picture slows what is being measured; until then there is a word about how far it is.
    """

    def __init__(
        self,
        run_id: str,
        settings: RunSettings | Settings | None,
        session_id: str | None,
        log: RunLog | ExperimentLog | None = None,
        *,
        browser: str | None = None,
        client: str | None = None,
    ) -> None:
        self.id = run_id
        self.browser = browser  # the secret of whoever may stop it, see visitors
        self.client = client or browser or session_id or run_id  # whose turn it takes
        self.settings = settings  # None: a run from a file
        self.session_id = session_id
        self.log = RunLog() if log is None else log
        self._told_ns = 0
        self.lines: list[str] = []
        self.sizes: list[dict[str, int] | None] = []  # one a RunStarted, see `Frame`
        self.columns: list[int] = []  # one a step: attended, pads included
        self.predicted: list[dict[str, int] | None] = []  # one a step, see `Frame`
        self.num_bytes = 0  # held: of records, lines and what is kept beside
        self.state = "queued"  # then loading, running, finished
        self.position: int | None = None
        self.message: Message | None = None
        self.fraction: float | None = None
        self.error: Message | None = None
        self.note: Message | None = None  # shown when it has ended without an error
        self.unwatched_since: float | None = None  # None: somebody subscribes
        self.started_at: float | None = None  # when it left the queue
        self._num_before: list[tuple[int, int]] = []  # starts and steps before each event
        self._subscribers: set[Callable[[], None]] = set()
        self._lock = threading.Lock()

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def what(self) -> str:
        """A run, or the kind of the experiment that it is."""
        head = self.log.head if isinstance(self.log, ExperimentLog) else None
        return head.experiment if head else name_of(self.settings)

    @property
    def held(self) -> bool:
        """Whether nothing is sent before its end."""
        return isinstance(self.log, ExperimentLog)

    def append(self, line: str) -> Event | Own:
        """Take the next line of its source, and give the record: of a member, as its run has it.
        Raises UserError on a line that is no record, LogError where it does not follow."""
        return self.append_event(self.log.from_line(line), line)

    def append_event(self, event: Event | ExperimentEvent, line: str) -> Event | Own:
        """Take a record and the line that it is written as. Raises LogError."""
        self.log.append(event)
        run, record = self.log.part(event)
        is_step = isinstance(record, StepFinished)
        predicted = _predict(run) if is_step else None
        with self._lock:
            self._num_before.append((len(self.sizes), len(self.predicted)))
            if is_step:
                self.columns.append(run.num_columns)
                self.predicted.append(predicted)
            elif isinstance(record, RunStarted):
                self.sizes.append(_sizes(record))
            self.lines.append(line)
            self.num_bytes += held_bytes(event) + getsizeof(line) + BESIDE_BYTES * is_step
            if self.state != "running":
                self.state, self.position, self.message, self.fraction = "running", None, None, None
            if self.log.finished is not None:
                self.state, self.error = "finished", record.error
                self.message = self.fraction = None
                if record.finish_reason != "cancelled":
                    self.note = None  # it came to its end before it was stopped
        if not self.held or self.finished:
            self._changed()
        elif record.kind in ("member_started", "step_finished"):
            self._tell(getattr(record, "end_ns", None))
        return record

    def _tell(self, now_ns: int | None) -> None:
        """How far an experiment is, now and then."""
        if now_ns is not None and now_ns - self._told_ns < PROGRESS_NS:
            return
        self._told_ns = now_ns or 0
        progress = self.log.progress()
        self.set_status("running", message=progress.message, fraction=progress.fraction)

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

    def read(self, first: int, language: str) -> "Frame":
        """The frame from event `first` on."""
        with self._lock:
            done = self.state == "finished"
            stop = len(self.lines) if done or not self.held else 0
            first = min(first, stop)
            lines = self.lines[first:stop]
            done_before = (len(self.sizes), len(self.predicted))
            starts, steps = self._num_before[first] if lines else done_before
            message = self.note if done else self.message
            told = {
                "first": first,
                "count": len(lines),
                "status": {
                    "state": self.state,
                    "position": self.position,
                    "text": message.text(language) if message else None,
                    "fraction": self.fraction,
                },
                "error": self.error.text(language) if self.error else None,
            }
            made = {
                "sizes": self.sizes[starts:],
                "columns": self.columns[steps:],
                "predicted": self.predicted[steps:],
            }
        return Frame(told, made, lines, stop, done)


@dataclass(frozen=True, slots=True)
class Frame:
    """All of a run from one event on, as the routes send it: a line of JSON (`first`, `count`,
    `status`, `error` in words, and what the log makes of the lines), then one line an event.

    `sizes` has for each run_started line the bytes of one row in all layers (`row_bytes`) and of
    one number (`element_bytes`); `columns` for each step_finished line the columns that it
    attended, pads included; `predicted` for each of them its StepCost by name, with `flops` and
    `flops_without_cache`. An entry is None where there is no basis.
    """

    told: Mapping[str, object]
    made: Mapping[str, Sequence[object]]  # of the lines
    lines: Sequence[str]
    stop: int  # the event after the last
    done: bool  # nothing more comes

    @property
    def text(self) -> str:
        return "".join(self._parts())

    def is_above(self, num_chars: int) -> bool:
        """Whether the text is longer, told without making it: what is made of a step is below
        `BESIDE_BYTES`."""
        made = sum(map(len, self.made.values())) * BESIDE_BYTES
        return sum(map(len, self.lines)) + made > num_chars

    def _parts(self) -> Iterator[str]:
        """The text a little at a time."""
        yield _ENCODER.encode(self.told)[:-1]
        for name, values in self.made.items():
            yield f',"{name}":['
            for number, value in enumerate(values):
                yield ("," if number else "") + _ENCODER.encode(value)
            yield "]"
        yield "}"
        for line in self.lines:
            yield f"\n{line}"

    def pieces(self, num_chars: int) -> Iterator[str]:
        """The text in pieces of at most `num_chars`, none of them made before it is asked for."""
        held: list[str] = []
        size = 0
        for text in self._parts():
            held.append(text)
            size += len(text)
            if size >= num_chars:
                whole = "".join(held)
                end = size - size % num_chars
                yield from (whole[at : at + num_chars] for at in range(0, end, num_chars))
                held, size = [whole[end:]], size - end
        yield "".join(held)


def held_bytes(value: object) -> int:
    """Bytes that a record holds, with all that is in it. A number or a word that others hold too
    counts each time: Python shares few."""
    if isinstance(value, tuple | list):
        return getsizeof(value) + sum(map(held_bytes, value))
    if isinstance(value, Mapping):
        return getsizeof(value) + sum(held_bytes(item) for pair in value.items() for item in pair)
    if is_dataclass(value):
        return getsizeof(value) + sum(held_bytes(getattr(value, f.name)) for f in fields(value))
    return 0 if value is None or isinstance(value, bool) else getsizeof(value)


def _sizes(started: RunStarted) -> dict[str, int] | None:
    try:
        size = element_bytes(started.settings.dtype)
    except KeyError:  # a file may name a dtype of its own
        return None
    if started.spec is None or started.settings.cache not in cost.POLICIES:
        return None
    row = cost.row_bytes(started.spec, started.settings.dtype)
    return {"row_bytes": row, "element_bytes": size}


def _predict(log: RunLog) -> dict[str, int] | None:
    """What the newest step costs, by name."""
    here, without = log.step_cost(-1), log.step_cost(-1, cached=False)
    if here is None or without is None:
        return None
    named = {name: getattr(here, name) for name in COST_FIELDS}
    return named | {"flops_without_cache": without.flops}
