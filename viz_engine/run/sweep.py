"""A sweep: the same run at several lengths or batch sizes, repeated in shuffled order, and what
comes of it.

`SweepSettings` says what, `Sweep` chooses the next run that fits the budget, `SweepResult` is the
runs with the settings, one file. Who makes the runs (the command line, `sweeps` on a server)
is not known here.

Try it: `python -m viz_engine sweep --what ttft --budget 60 --out sweep.jsonl`
"""

import dataclasses
import json
import random
import re
from dataclasses import dataclass, field

from viz_engine.run import ceilings
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.checks import check_settings
from viz_engine.run.codec import from_line, settings_from_dict, settings_to_dict
from viz_engine.run.events import MAX_BATCH, KVSample, RunSettings, RunStarted
from viz_engine.run.log import MAX_FILE_BYTES, LogError, RunLog, check_first_line
from viz_engine.text import Message, UserError

SCHEMA = 1
KINDS = ("ttft", "itl", "batch")
VALUES = {
    "ttft": (64, 128, 256, 512, 1024, 2048),
    "itl": (64, 256, 512, 1024, 2048),
    "batch": (1, 2, 4, 8),
}
NEW_TOKENS = {"ttft": 8, "itl": 24, "batch": 16}
BATCH_CONTEXT = 256  # prompt length while the batch grows
REPEATS, BUDGET_S = 3, 120.0
MAX_VALUES, MAX_REPEATS, MAX_BUDGET_S = 16, 20, 3600.0
TOKEN_WORK = 8.0  # a decode step counts as this many prompt tokens until runs have shown better


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """What is measured. `run` is what all runs share; `values` are prompt lengths in tokens
    (ttft), context lengths (itl) or batch sizes (batch)."""

    what: str
    run: RunSettings
    values: tuple[int, ...]
    repeats: int = REPEATS
    budget_s: float = BUDGET_S
    seed: int = 0  # of the order

    def run_at(self, value: int) -> RunSettings:
        """The run at one value. It never stops early: every repeat does the same work."""
        if self.what == "batch":
            return dataclasses.replace(self.run, batch=value, stop_token_ids=())
        return dataclasses.replace(self.run, context_len=value, stop_token_ids=())

    def order(self) -> list[int]:
        """All runs: each value once, shuffled, then all again: a drift of the machine meets every
        value alike, and a sweep that is stopped early has as many of each."""
        dice = random.Random(self.seed)
        rounds = [list(self.values) for _ in range(self.repeats)]
        for values in rounds:
            dice.shuffle(values)
        return [value for values in rounds for value in values]


def default_settings(what: str, run: RunSettings) -> SweepSettings:
    """The usual values for `what`; `run` gives model, device, dtype, prompt."""
    changes = {"new_tokens": NEW_TOKENS[what]}
    if what == "batch":
        changes["context_len"] = BATCH_CONTEXT
    run = dataclasses.replace(run, **changes)
    return SweepSettings(what=what, run=run, values=VALUES[what])


def check_sweep(settings: SweepSettings) -> None:
    """Raises UserError on settings that no model could follow."""
    if settings.what not in KINDS:
        raise UserError("sweep.bad_kind", known=", ".join(KINDS))
    most = MAX_BATCH if settings.what == "batch" else 2**22
    values = settings.values
    if not 1 <= len(values) <= MAX_VALUES or not all(1 <= value <= most for value in values):
        raise UserError("sweep.bad_values", most=MAX_VALUES, limit=most)
    twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
    if twice is not None:
        raise UserError("sweep.twice", value=twice)
    if not 1 <= settings.repeats <= MAX_REPEATS:
        raise UserError("sweep.bad_repeats", most=MAX_REPEATS)
    if not 1 <= settings.budget_s <= MAX_BUDGET_S:
        raise UserError("sweep.bad_budget", most=round(MAX_BUDGET_S))
    for value in values:
        check_settings(settings.run_at(value))


@dataclass(slots=True)
class SweepResult:
    """The runs of a sweep in the order in which they were made, and why it ended."""

    settings: SweepSettings
    logs: list[RunLog] = field(default_factory=list)
    ceilings: Ceilings | None = None
    ended: str = "done"  # done, budget, cancelled, error
    error: Message | None = None

    @property
    def started(self) -> RunStarted | None:
        """The first run's first record: machine, model, date."""
        return self.logs[0].started if self.logs else None

    def to_jsonl(self) -> str:
        """Settings, then the runs, a line a record."""
        head = {
            "kind": "sweep",
            "schema": SCHEMA,
            "settings": settings_dict(self.settings),
            "ceilings": None if self.ceilings is None else ceilings.to_dict(self.ceilings),
            "ended": self.ended,
        }
        return json.dumps(head) + "\n" + "".join(log.to_jsonl() for log in self.logs)

    @classmethod
    def read(cls, data: bytes) -> "SweepResult":
        """The sweep in a file. Raises UserError with what is wrong. A file that is cut keeps the
        runs that are whole."""
        if len(data) > MAX_FILE_BYTES:
            raise UserError(
                "error.file_size", size=len(data) // 2**20, most=MAX_FILE_BYTES // 2**20
            )
        check_first_line(data, "sweep")
        head, *lines = data.splitlines() or [b""]
        result = _read_head(cls, head)
        for number, line in enumerate(lines, start=2):
            try:
                event = from_line(line)
                if isinstance(event, RunStarted):
                    result.logs.append(RunLog())
                if not result.logs:
                    raise LogError("a run begins with RunStarted")
                result.logs[-1].append(event)
            except UserError as error:
                if number == len(data.splitlines()) and not data.endswith(b"\n"):
                    break
                raise UserError("error.file_at_line", line=number, reason=error.message) from None
            except LogError as error:
                raise UserError("error.file_order", line=number, reason=str(error)) from None
        return result


def _read_head(cls: type, head: bytes) -> SweepResult:
    try:
        data = json.loads(head)
        if data["kind"] != "sweep" or data["schema"] != SCHEMA:
            raise ValueError
        settings = settings_of_dict(data["settings"])
        check_sweep(settings)
        kept = data.get("ceilings")
        known = None if kept is None else ceilings.from_dict(kept)
        return cls(settings=settings, ceilings=known, ended=str(data.get("ended", "done")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError("sweep.bad_file") from None


def settings_dict(settings: SweepSettings) -> dict[str, object]:
    """Plain JSON types."""
    data = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return data | {"run": settings_to_dict(settings.run), "values": list(settings.values)}


def settings_of_dict(data: dict[str, object]) -> SweepSettings:
    """The inverse. Raises ValueError (a UserError too), KeyError or TypeError."""
    return SweepSettings(
        what=str(data["what"]),
        run=settings_from_dict(data["run"]),
        values=tuple(int(value) for value in data["values"]),
        repeats=int(data["repeats"]),
        budget_s=float(data["budget_s"]),
        seed=int(data["seed"]),
    )


def lean(log: RunLog) -> RunLog:
    """A run as a sweep keeps it: no magnitudes, and no texts of the prompt, which all share."""
    return RunLog.of(
        dataclasses.replace(event, prompt_texts=tuple(("",) * len(t) for t in event.prompt_texts))
        if isinstance(event, RunStarted)
        else event
        for event in log
        if not isinstance(event, KVSample)
    )


# ---- under way -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a sweep is. Seconds left are an estimate from the runs so far, None before any."""

    num_done: int
    num_total: int
    elapsed_s: float
    left_s: float | None


class Sweep:
    """Chooses the next run; keeps what is over. Time is what the runs took, loading and waiting
    left out."""

    def __init__(self, settings: SweepSettings) -> None:
        check_sweep(settings)
        self.result = SweepResult(settings=settings)
        self._todo = settings.order()
        self._num_total = len(self._todo)
        self._spent_s = 0.0
        self._took: dict[int, list[float]] = {}  # value -> seconds of each of its runs
        self._left_out: set[int] = set()
        self._stopped = False
        self.current: int | None = None  # the value of the run under way

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.result.settings.budget_s - self._spent_s

    def next(self) -> RunSettings | None:
        """The next run, or None when the sweep is over. A run that would not fit into what is left
        of the budget is left out, and shorter ones still made."""
        self.current = None
        while self._todo and not self._stopped:
            value = self._todo.pop(0)
            if value in self._left_out:
                continue
            if self.left_s <= 0 or (self._estimate(value) or 0) > self.left_s:
                self.result.ended = "budget"
                continue
            self.current = value
            return self.result.settings.run_at(value)
        return None

    def took(self, log: RunLog, error: Message | None = None) -> None:
        """Take the run that is over. One that did not come to its end is not kept; a value that
        was refused (beyond the model's window) is not tried again."""
        seconds = _seconds(log)
        self._spent_s += seconds
        ended = log.finished.finish_reason if log.finished else None
        if ended in ("length", "stop"):
            self._took.setdefault(self.current, []).append(seconds)
            self.result.logs.append(lean(log))
        elif error is not None:
            self._left_out.add(self.current)
            self.result.error = error
            if log.started is not None or not self._took:
                self.result.ended = "error"
        self.current = None

    def stop(self, why: str = "cancelled") -> None:
        """No further run; what is there stays."""
        if not self._stopped:
            self._stopped, self.result.ended = True, why

    @property
    def progress(self) -> Progress:
        todo = [value for value in self._todo if value not in self._left_out]
        rest = [*todo, *([] if self.current is None else [self.current])]
        estimates = [self._estimate(value) for value in rest]
        left = None if None in estimates else min(sum(estimates), max(self.left_s, 0.0))
        return Progress(
            num_done=len(self.result.logs),
            num_total=len(self.result.logs) + len(rest),
            elapsed_s=self._spent_s,
            left_s=left,
        )

    def _estimate(self, value: int) -> float | None:
        """Seconds of a run at `value`: what it took before, or in proportion to its work."""
        if value in self._took:
            return sum(self._took[value]) / len(self._took[value])
        done = sum(sum(times) for times in self._took.values())
        work = sum(self._work(value) * len(times) for value, times in self._took.items())
        return done * self._work(value) / work if work else None

    def _work(self, value: int) -> float:
        run = self.result.settings.run_at(value)
        return run.batch * (run.context_len or 64) + TOKEN_WORK * run.new_tokens


def _seconds(log: RunLog) -> float:
    if log.started is None:
        return 0.0
    last = log.finished.end_ns if log.finished else log.steps[-1].end_ns if log.steps else 0
    return max(last - log.started.accepted_ns, 0) / 1e9


# ---- what comes of it ----------------------------------------------------------------------------


def values_of(text: str) -> tuple[int, ...]:
    """`64,128; 256` as numbers. Raises UserError on anything else: not on a list without commas
    either, for `2 048` is one number to whoever copies it from the page."""
    words = [word.strip() for word in re.split("[,;，；、]", text) if word.strip()]
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise UserError("sweep.bad_numbers", text=text[:60])
    return tuple(int(word[:9]) for word in words)
