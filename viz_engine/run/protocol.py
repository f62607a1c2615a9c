"""What the web process and the engine process say to each other: a message a line, typed.

Messages are JSON as records are (codec.py). The records of a run go as they stand in its file, with
the run's id and a tab before them, so that a line is written once and read once. It knows nothing
of queues, models or processes.

Try it: `python -c "from viz_engine.run import protocol as p; print(p.to_bytes(p.Prepare()))"`
"""

from collections.abc import Mapping
from dataclasses import dataclass

from viz_engine.run import codec
from viz_engine.text import Message

# ---- to the engine -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Make a run, or an experiment of several."""

    kind = "start"
    run_id: str
    what: str  # run, or the kind of experiment
    settings: Mapping[str, object]  # plain, as codec.settings_to_dict gives them
    waited_ns: int = 0  # in the queue
    samples: str = "each"  # magnitudes of the rows: after each step, the last, or none


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop a run after the step that it is in."""

    kind = "cancel"
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Load the default model, so that it is there when the first visitor asks."""

    kind = "prepare"


# ---- from the engine -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """It can take commands; with a `problem` none of them will work."""

    kind = "ready"
    devices: tuple[str, ...]
    device: str | None = None  # what `auto` takes here
    dtype: str | None = None
    memory_bytes: int | None = None
    problem: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """A sign of life."""

    kind = "alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far loading is, of a run or (None) of a preparation. Without a message: over."""

    kind = "progress"
    run_id: str | None = None
    message: Message | None = None
    fraction: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A run that cannot be, or that ended without a last record."""

    kind = "refused"
    run_id: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """All records of a run have been sent."""

    kind = "done"
    run_id: str


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a run, as the line that its file will hold."""

    run_id: str  # without tabs
    line: str


Command = Start | Cancel | Prepare
Reply = Ready | Alive | Progress | Refused | Done | Record
COMMANDS: dict[str, type] = {cls.kind: cls for cls in (Start, Cancel, Prepare)}
REPLIES: dict[str, type] = {cls.kind: cls for cls in (Ready, Alive, Progress, Refused, Done)}


def to_bytes(message: Command | Reply) -> bytes:
    """The message as a line with its end."""
    if isinstance(message, Record):
        return f"{message.run_id}\t{message.line}\n".encode("ascii")
    return codec.to_line(message).encode("ascii") + b"\n"


def command_of(line: bytes) -> Command:
    """What a line asks for. Raises ValueError on anything that is no command."""
    return codec.from_line(line, COMMANDS)


def reply_of(line: bytes) -> Reply:
    """What a line says. Raises ValueError on anything that is no reply. JSON has no bare tab, so
    that a line with one is a record."""
    run_id, tab, record = line.partition(b"\t")
    if tab:
        return Record(run_id.decode("ascii"), record.removesuffix(b"\n").decode("ascii"))
    return codec.from_line(line, REPLIES)
