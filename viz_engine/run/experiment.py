"""An experiment: several labelled runs under one head, in one log, with what was found beside them.

A race and a sweep are two kinds of it; `KINDS` is the table of all. A record of a member is the
line of that run with one field more at its end, `member`: whose it is, since several may be open at
once. Nothing here knows how an experiment is made, drawn, or what follows from it.

Try it: `python -c "from viz_engine.run.experiment import ExperimentLog; \
print(len(ExperimentLog.read(open('race.jsonl','rb').read()).members))"`
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from viz_engine.run import codec, race, schema1, sweep
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.codec import settings_from_dict
from viz_engine.run.events import KINDS as RUN_KINDS
from viz_engine.run.events import MAGNITUDE_SCALE, Event, RunSettings, RunStarted, StepFinished
from viz_engine.run.files import LogError, check_first_line, read_into
from viz_engine.run.log import RunLog
from viz_engine.run.members import Label, Member, Planned, Progress, Standing
from viz_engine.run.race import RaceSettings
from viz_engine.run.sweep import SweepSettings
from viz_engine.text import Message, UserError

SCHEMA = 2
PURPOSES = ("measured", "look")
REASONS = ("done", "budget", "cancelled", "error")
MAX_CHANGES = 2**22  # rows x layers of a PrefixChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingsSettings:
    """The ceilings of a device are measured: one finding, no members."""

    kind = "ceilings_settings"
    device: str

    def order(self) -> list[Planned]:
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of experiment: what it asks for, and who makes it."""

    settings: type
    maker: str | None  # module:function of the engine process, which makes it in one go (exclusive:
    # nobody's run comes between its members); None: its members are jobs of the queue
    max_members: int
    no_file: str  # the sentence for a file without a head
    check: Callable[[typing.Any], None] = lambda settings: None
    check_run: Callable[[typing.Any, RunStarted, RunStarted], None] = lambda *of: None

    @property
    def exclusive(self) -> bool:
        return self.maker is not None


KINDS = {
    "race": Kind(
        settings=RaceSettings,
        maker="viz_engine.engine.race_runs:race",
        max_members=race.MAX_MEMBERS,
        no_file="error.file_no_race",
        check=race.check_lanes,
        check_run=race.check_run,
    ),
    "sweep": Kind(
        settings=SweepSettings,
        maker=None,
        max_members=sweep.MAX_MEMBERS,
        no_file="sweep.bad_file",
        check=sweep.check_sweep,
    ),
    "ceilings": Kind(
        settings=CeilingsSettings,
        maker="viz_engine.engine.experiment:ceilings",
        max_members=0,
        no_file="error.file_empty",
    ),
}
Settings = RaceSettings | SweepSettings | CeilingsSettings


def name_of(settings: RunSettings | Settings) -> str:
    """The name of what settings ask for: "run", or one of KINDS."""
    found = (name for name, kind in KINDS.items() if isinstance(settings, kind.settings))
    return next(found, "run")


# ---- the records ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentStarted:
    """The first record. `settings` are those of the kind that `experiment` names."""

    kind = "experiment_started"
    experiment: str
    experiment_id: str
    started_at: str  # ISO 8601, UTC
    settings: typing.Any
    command: str  # re-makes it
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStarted:
    """The records of a member may follow. `measured` members are timed; a `look` is a short run
    for the attention weights, whose times stand for nothing."""

    kind = "member_started"
    member: int  # counts up from 0
    label: Label
    repeat: int
    purpose: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRefused:
    """A member could not begin."""

    kind = "member_refused"
    member: int
    error: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsCompared:
    """Both lanes' logits in the first repeat, token by token, while their texts are the same.

    `gaps` is the largest difference of any logit; `margins` how far the chosen token is ahead of
    the second best in the first lane. They end with the first token that differs.
    """

    kind = "logits_compared"
    gaps: tuple[float, ...]
    margins: tuple[float, ...]
    largest_logit: float  # magnitude, in the first lane
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
class CeilingsFound:
    """What the machine of the members reaches at most."""

    kind = "ceilings_found"
    ceilings: Ceilings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFinished:
    """The last record. Reasons: done, budget, cancelled, error."""

    kind = "experiment_finished"
    finish_reason: str
    error: Message | None = None


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """A record of a member's log, and whose it is."""

    member: int
    event: Event

    @property
    def kind(self) -> str:
        return self.event.kind


Finding = LogitsCompared | PrefixChanged | CeilingsFound
Own = ExperimentStarted | MemberStarted | MemberRefused | Finding | ExperimentFinished
ExperimentEvent = Own | MemberEvent
OWN_KINDS: dict[str, type] = {cls.kind: cls for cls in typing.get_args(Own)}
_MEMBER = re.compile(rb',\s*"member"\s*:\s*(\d{1,9})\s*\}\s*$')
Found = typing.TypeVar("Found", LogitsCompared, PrefixChanged, CeilingsFound)


def to_line(event: ExperimentEvent) -> str:
    """The record as one line of JSON, without a line break."""
    if isinstance(event, MemberEvent):
        return f'{codec.to_line(event.event)[:-1]},"member":{event.member}}}'
    return codec.to_line(event)


def from_line(line: str | bytes) -> ExperimentEvent:
    """The record that a line holds. Raises UserError on anything that is not one."""
    event = codec.from_line(line, RUN_KINDS | OWN_KINDS)
    if event.kind in RUN_KINDS:
        found = _MEMBER.search(line.encode() if isinstance(line, str) else line)
        if found is None:
            raise UserError("error.file_field", field=f"{event.kind}.member")
        return MemberEvent(int(found[1]), event)
    if isinstance(event, ExperimentStarted):
        if event.schema != SCHEMA:
            raise UserError("error.file_schema", schema=event.schema, known=SCHEMA)
        kind = KINDS.get(event.experiment)
        if kind is None or not isinstance(event.settings, dict):
            raise UserError("error.file_field", field=f"{event.kind}.experiment")
        settings = settings_from_dict(event.settings, kind.settings)
        kind.check(settings)
        return dataclasses.replace(event, settings=settings)
    return event


# ---- the log -------------------------------------------------------------------------------------


@dataclass(slots=True)
class ExperimentLog:
    """The records of an experiment in order, checked as they come."""

    events: list[ExperimentEvent] = field(default_factory=list)
    head: ExperimentStarted | None = None
    order: list[Planned] = field(default_factory=list)  # what is to be measured
    members: list[Member] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)  # by kind, the newest of each
    finished: ExperimentFinished | None = None
    _upgrade: schema1.Upgrade | None = None  # of a file that an older version wrote

    to_line = staticmethod(to_line)
    from_line = staticmethod(from_line)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[ExperimentEvent]:
        return iter(self.events)

    @property
    def kind(self) -> Kind:
        return KINDS[self.head.experiment]

    @property
    def settings(self) -> typing.Any:
        return self.head.settings

    @property
    def started(self) -> RunStarted | None:
        """The first record of the first member that has begun: model, machine, date."""
        return next((one.log.started for one in self.members if one.log.started), None)

    @property
    def latest(self) -> RunLog | None:
        """The newest run that has begun: the one that is on, or was last."""
        return next((one.log for one in reversed(self.members) if one.log.started), None)

    @property
    def steps(self) -> list[StepFinished]:
        return self.latest.steps if self.latest else []

    @property
    def ended(self) -> str:
        """Why it is over; "done" too while it is on."""
        return self.finished.finish_reason if self.finished else "done"

    @property
    def error(self) -> Message | None:
        return self.finished.error if self.finished else None

    @property
    def ceilings(self) -> Ceilings | None:
        found = self.finding(CeilingsFound)
        return found.ceilings if found else None

    def finding(self, kind: type[Found]) -> Found | None:
        """What was found of a kind."""
        return self.findings.get(kind.kind)

    def runs(self, label: Label | None = None, purpose: str = "measured") -> list[RunLog]:
        """The runs (of a label) that came to their end, in order."""
        return [
            one.log
            for one in self.members
            if one.done and one.purpose == purpose and label in (None, one.label)
        ]

    def part(self, event: ExperimentEvent) -> tuple[RunLog | None, Event | Own]:
        """The run that a record is of, if any, and the record as that run has it. Raises
        LogError."""
        if not isinstance(event, MemberEvent):
            return None, event
        if event.member >= len(self.members):
            raise LogError("a record of a run outside of a member")
        return self.members[event.member].log, event.event

    def append(self, event: ExperimentEvent) -> None:
        """Add a record. Raises LogError where it does not follow from those before."""
        if self.finished is not None:
            raise LogError("nothing follows ExperimentFinished")
        if (self.head is None) != isinstance(event, ExperimentStarted):
            raise LogError("an experiment begins with one ExperimentStarted")
        if isinstance(event, MemberEvent):
            self._take_record(event)
        elif isinstance(event, ExperimentStarted):
            self.head, self.order = event, event.settings.order()
        elif isinstance(event, MemberStarted):
            self._take_member(event)
        elif isinstance(event, MemberRefused):
            if not event.member < len(self.members) or self.members[event.member].log.events:
                raise LogError("a member is refused before it begins")
            self.members[event.member].refused = event.error
        elif isinstance(event, ExperimentFinished):
            if event.finish_reason not in REASONS:
                raise LogError(f"unknown finish_reason {event.finish_reason!r}")
            if self._on():
                raise LogError(f"{event.kind} before the run has ended")
            self.finished = event
        else:
            self._take_finding(event)
        self.events.append(event)

    def _take_record(self, event: MemberEvent) -> None:
        log, record = self.part(event)
        member = self.members[event.member]
        if member.refused is not None:
            raise LogError("a record of a member that was refused")
        if isinstance(record, RunStarted):
            for name, value in member.label.items():
                if value not in ("auto", getattr(record.settings, name)):
                    raise LogError("the run is not of its member")
            self.kind.check_run(self.settings, self.started or record, record)
        log.append(record)

    def _take_member(self, event: MemberStarted) -> None:
        if event.member != len(self.members):
            raise LogError(f"member {event.member} where {len(self.members)} is due")
        if len(self.members) >= self.kind.max_members:
            raise LogError("more members than such an experiment has")
        known = any(event.label == planned.label for planned in self.order)
        if not known or event.purpose not in PURPOSES:
            raise LogError(f"unknown member {dict(event.label)!r} {event.purpose!r}")
        if self.kind.exclusive and self._on():
            raise LogError(f"{event.kind} before the run has ended")
        self.members.append(Member(event.label, event.repeat, event.purpose))

    def _take_finding(self, event: Finding) -> None:
        if self.kind.exclusive and self._on():
            raise LogError(f"{event.kind} before the run has ended")
        if isinstance(event, LogitsCompared) and len(event.gaps) != len(event.margins):
            raise LogError("gaps and margins do not match")
        if isinstance(event, PrefixChanged):
            size = event.num_rows * event.num_layers
            if size != len(event.changes) or not 0 < size <= MAX_CHANGES:
                raise LogError("changes that are not rows x layers")
        self.findings[event.kind] = event

    def _on(self) -> list[int]:
        """The members that have begun and are not over."""
        return [i for i, one in enumerate(self.members) if one.open and one.log.started]

    @property
    def standing(self) -> Standing:
        """Which member is due, and why it is over where none is."""
        return Standing(self.order, self.members, getattr(self.settings, "budget_s", None))

    def progress(self) -> Progress:
        """How far it is."""
        return self.standing.progress()

    def closing(self, finish_reason: str, error: Message | None) -> list[ExperimentEvent]:
        """The last records of an experiment whose source did not write them."""
        last = [
            MemberEvent(i, event)
            for i in self._on()
            for event in self.members[i].log.closing(finish_reason, error)
        ]
        return [*last, ExperimentFinished(finish_reason=finish_reason, error=error)]

    def to_jsonl(self) -> str:
        """The whole log, a line a record."""
        return "".join(to_line(event) + "\n" for event in self.events)

    @classmethod
    def of(cls, events: typing.Iterable[ExperimentEvent]) -> "ExperimentLog":
        log = cls()
        for event in events:
            log.append(event)
        return log

    def take_line(self, line: bytes) -> None:
        """Append a line of a file, of this version or of the one before it."""
        if not self.events:
            self._upgrade = schema1.upgrade_of(line)
        lines = [line] if self._upgrade is None else self._upgrade.lines(line)
        for one in lines:
            self.append(from_line(one))

    @classmethod
    def read(cls, data: bytes, experiment: str | None = None) -> "ExperimentLog":
        """The experiment in a .jsonl file, of any kind or of one. Raises UserError with the line
        that is wrong and why; a file whose last lines are missing is read as far as it goes
        (`finished` is then None)."""
        check_first_line(data, experiment)
        log = cls()
        try:
            read_into(log, data)
        except UserError as error:
            unread = log.head is None and error.message.key != "error.file_size"
            if unread and experiment == "sweep":  # its page says no more than that
                raise UserError(KINDS["sweep"].no_file) from None
            raise
        if log.head is None:
            raise UserError(KINDS[experiment or "race"].no_file)
        if log._upgrade is not None and log.finished is None and not log._on():
            for line in log._upgrade.last():
                log.append(from_line(line))
        return log
