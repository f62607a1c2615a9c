"""The race: the same run without a cache and with one, several times; its records and its log.

A race is a list of runs, each told by a `LaneStarted` before its records, and what only the engine
process can compare: the logits of both lanes, and the keys under a changed first token. It knows
nothing of how a race is made (engine/race_runs), drawn, or what follows from it (analysis/race).

Try it: `python -c "from viz_engine.run.race import RaceLog; \
print(len(RaceLog.read(open('race.jsonl','rb').read()).lanes))"`
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from viz_engine.run.codec import to_line
from viz_engine.run.cost import StepCost
from viz_engine.run.events import (
    KINDS,
    MAGNITUDE_SCALE,
    SCHEMA,
    Event,
    RunSettings,
    RunStarted,
    StepFinished,
)
from viz_engine.run.log import LogError, RunLog, check_first_line, read_into
from viz_engine.text import Message, UserError

CACHES = ("none", "full")  # the two lanes
PURPOSES = ("measured", "look")
MAX_REPEATS = 5
MAX_CHANGES = 2**22  # rows x layers of a PrefixChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSettings:
    """What was asked for. `run` is what both lanes do; its `cache` says nothing here."""

    kind = "race_settings"
    run: RunSettings
    repeats: int = 2  # runs of each lane
    layer: int | None = None  # whose attention is looked at; None: no look
    query_head: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceStarted:
    """The first record of a race."""

    kind = "race_started"
    race_id: str
    started_at: str  # ISO 8601, UTC
    settings: RaceSettings
    command: str  # re-makes the race
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStarted:
    """The records of a run follow. `measured` runs are timed; a `look` is a short run for the
    attention weights, whose times stand for nothing."""

    kind = "lane_started"
    cache: str
    repeat: int
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsCompared:
    """Both lanes' logits in the first repeat, token by token, while their texts are the same.

    `gaps` is the largest difference of any logit; `margins` how far the chosen token is ahead of
    the second best without a cache. They end with the first token that differs.
    """

    kind = "logits_compared"
    gaps: tuple[float, ...]
    margins: tuple[float, ...]
    largest_logit: float  # magnitude, without a cache
    first_difference: int | None  # index of the token at which the lanes choose differently


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixChanged:
    """How the keys of the prompt move when its first token is another one.

    `changes` holds one byte for each row and layer, `[rows, layers]`: the largest |K' - K| / |K|
    of its KV heads, in `scale`.
    """

    kind = "prefix_changed"
    before: str
    after: str
    num_rows: int
    num_layers: int
    changes: bytes
    scale: str = MAGNITUDE_SCALE


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceFinished:
    """The last record. Reasons: done, cancelled, error."""

    kind = "race_finished"
    finish_reason: str
    error: Message | None = None


RaceEvent = (
    RaceStarted | LaneStarted | LogitsCompared | PrefixChanged | RaceFinished | Event
)  # those of its runs too
RACE_KINDS: dict[str, type] = KINDS | {
    cls.kind: cls for cls in (RaceStarted, LaneStarted, LogitsCompared, PrefixChanged, RaceFinished)
}
REASONS = ("done", "cancelled", "error")


@dataclass(slots=True)
class Lane:
    """One run of a race."""

    cache: str
    repeat: int
    purpose: str
    log: RunLog = field(default_factory=RunLog)


@dataclass(slots=True)
class RaceLog:
    """The records of a race in order, checked as they come. `started`, `steps`, `num_columns` and
    `step_cost` are those of the run that is on: what is asked of a run can be asked of a race."""

    kinds: ClassVar[Mapping[str, type]] = RACE_KINDS
    events: list[RaceEvent] = field(default_factory=list)
    race: RaceStarted | None = None
    lanes: list[Lane] = field(default_factory=list)
    logits: LogitsCompared | None = None
    prefix: PrefixChanged | None = None
    finished: RaceFinished | None = None

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[RaceEvent]:
        return iter(self.events)

    @property
    def started(self) -> RunStarted | None:
        begun = [lane for lane in self.lanes[-2:] if lane.log.started is not None]
        return begun[-1].log.started if begun else None

    @property
    def steps(self) -> list[StepFinished]:
        return self.lanes[-1].log.steps if self.lanes else []

    @property
    def num_columns(self) -> int:
        return self.lanes[-1].log.num_columns if self.lanes else 0

    def step_cost(self, at: int, *, cached: bool | None = None) -> StepCost | None:
        """That of a step of the run that is on."""
        return self.lanes[-1].log.step_cost(at, cached=cached)

    def append(self, event: RaceEvent) -> None:
        """Add a record. Raises LogError where it does not follow from those before."""
        if self.finished is not None:
            raise LogError("nothing follows RaceFinished")
        if self.race is None and not isinstance(event, RaceStarted):
            raise LogError("a race begins with RaceStarted")
        open_lane = self.lanes[-1] if self.lanes and self.lanes[-1].log.finished is None else None
        if event.kind in KINDS:
            if open_lane is None:
                raise LogError("a record of a run outside of a lane")
            if isinstance(event, RunStarted):
                self._check_run(open_lane, event)
            open_lane.log.append(event)
        elif open_lane is not None and open_lane.log.started is not None:
            raise LogError(f"{event.kind} before the run has ended")
        else:
            self._take(event)
        self.events.append(event)

    def _check_run(self, lane: Lane, event: RunStarted) -> None:
        if (event.settings.cache == "none") != (lane.cache == "none"):
            raise LogError("the run is not of its lane")
        if event.settings.batch != 1:
            raise LogError("a race is run with one sequence")
        first = self.lanes[0].log.started
        if first is not None and event.prompt_token_ids != first.prompt_token_ids:
            raise LogError("the lanes read different prompts")

    def _take(self, event: RaceEvent) -> None:
        if isinstance(event, RaceStarted):
            if self.race is not None:
                raise LogError("a race has one RaceStarted")
            if event.schema != SCHEMA:
                raise UserError("error.file_schema", schema=event.schema, known=SCHEMA)
            self.race = event
        elif isinstance(event, LaneStarted):
            if event.cache not in CACHES or event.purpose not in PURPOSES:
                raise LogError(f"unknown lane {event.cache!r} {event.purpose!r}")
            if len(self.lanes) >= 2 * MAX_REPEATS + 2:
                raise LogError("more runs than a race has")
            self.lanes.append(Lane(event.cache, event.repeat, event.purpose))
        elif isinstance(event, LogitsCompared):
            if len(event.gaps) != len(event.margins):
                raise LogError("gaps and margins do not match")
            self.logits = event
        elif isinstance(event, PrefixChanged):
            size = event.num_rows * event.num_layers
            if size != len(event.changes) or not 0 < size <= MAX_CHANGES:
                raise LogError("changes that are not rows x layers")
            self.prefix = event
        elif isinstance(event, RaceFinished):
            if event.finish_reason not in REASONS:
                raise LogError(f"unknown finish_reason {event.finish_reason!r}")
            self.finished = event

    def runs(self, cache: str, purpose: str = "measured") -> list[RunLog]:
        """The runs of a lane that came to their end, in order."""
        return [
            lane.log
            for lane in self.lanes
            if lane.cache == cache
            and lane.purpose == purpose
            and lane.log.finished is not None
            and lane.log.finished.finish_reason in ("stop", "length")
        ]

    def closing(self, finish_reason: str, error: Message | None) -> list[RaceEvent]:
        """The last records of a race whose source did not write them."""
        lane = self.lanes[-1] if self.lanes else None
        last: list[RaceEvent] = []
        if lane is not None and lane.log.started is not None and lane.log.finished is None:
            last += lane.log.closing(finish_reason, error)
        return [*last, RaceFinished(finish_reason=finish_reason, error=error)]

    def to_jsonl(self) -> str:
        """The whole log, a line a record."""
        return "".join(to_line(event) + "\n" for event in self.events)

    @classmethod
    def read(cls, data: bytes) -> "RaceLog":
        """The race in a .jsonl file. Raises UserError with the line that is wrong and why; a file
        whose last lines are missing is read as far as it goes (`finished` is then None)."""
        check_first_line(data, "race_started")
        log = cls()
        read_into(log, data)
        if log.race is None:
            raise UserError("error.file_no_race")
        return log
