"""The run: inert records that a source emits, and the RunLog that keeps and checks them.

Measured, counted and predicted never share a field. Nothing here knows how a record was made or
how it is drawn; a record is one JSON line (ASCII, so that any text survives any transport), the
same in a file and on the wire.

Try it: `python -c "from viz_engine.run.events import RunLog; \
print(len(RunLog.read(open('run.jsonl','rb').read())))"`
"""

import base64
import binascii
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import ClassVar

from viz_engine.model.spec import ModelSpec
from viz_engine.text import Message, UserError

SCHEMA = 1
MAX_FILE_BYTES = 64 * 1024**2
MAX_HEAD_BYTES = 2**20  # of a file's first line
FIRST_LINES = {  # how this app's files begin -> the sentence that names the page for one
    "run_started": "error.file_is_run",
    "race_started": "error.file_is_race",
    "sweep": "error.file_is_sweep",
}
MAX_BATCH = 64
MAX_INT = 2**53 - 1  # the largest that JSON readers keep exactly
MAX_COLUMNS = 2**22  # positions of a run: beyond any window, and a picture can still be made
MAGNITUDE_SCALE = "2**((u-128)/12), 0 is zero"  # u: the stored byte; resolution 5.9 %


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What was asked for. `prompts` has one text for each sequence, or one for all of them."""

    kind = "run_settings"
    model: str
    prompts: tuple[str, ...]
    device: str = "auto"
    dtype: str = "auto"
    cache: str = "full"  # or "none"
    batch: int = 1
    context_len: int | None = None  # tokens to fill the prompt up to; None: as it is
    filler: str = "en"  # language of the text that fills the context
    chat: bool = True  # chat template, or raw text
    new_tokens: int = 64
    stop_token_ids: tuple[int, ...] | None = None  # None: the model's own; (): never stop
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    seed: int = 0
    chunk_len: int = 256  # positions in a piece of prefill
    speculation: str | None = None
    warm_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePart:
    """A part of the engine that is on or off, and why."""

    name: str
    on: bool
    reason: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machine that ran it, as it names itself."""

    device: str  # cpu, cuda:0, ...
    name: str
    num_threads: int | None
    memory_bytes: int | None  # of the device: RAM on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The first record. `settings` are the resolved ones: no `auto` is left in a run of the
    engine."""

    kind = "run_started"
    run_id: str
    started_at: str  # ISO 8601, UTC
    source: str  # engine, endpoint, simulation
    settings: RunSettings
    spec: ModelSpec
    hardware: Hardware
    prompt_token_ids: tuple[tuple[int, ...], ...]  # one a sequence
    prompt_texts: tuple[tuple[str, ...], ...]  # the same tokens as text pieces
    accepted_ns: int  # TTFT counts from here: model loaded, warmed up
    queued_ns: int  # when the visitor asked; the same monotonic clock
    versions: Mapping[str, str]
    command: str  # re-makes the run
    reasons: tuple[Message, ...]  # why this device and dtype
    parts: tuple[EnginePart, ...]
    derived: tuple[str, ...] = ()  # fields that were inferred, not observed
    schema: int = SCHEMA

    @property
    def prompt_columns(self) -> int:
        """Columns of the left-padded prompt: the longest sequence."""
        return max(len(ids) for ids in self.prompt_token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One forward. Tuples have one entry a sequence; a sequence that has ended has 0 new tokens
    and keeps its rows.

    `kv_live_bytes` is what the cache holds: rows that a window has dropped are not in it, of
    latents it is the latents, and states count. `kv_bytes_read` is what attention reads: a layer
    that shares another's rows reads them again, latents are read expanded, states whole.
    `weight_bytes_read` is None where experts are chosen by token.
    """

    kind = "step_finished"
    step: int
    phase: str  # prefill, decode
    start_ns: int
    end_ns: int
    device_ns: int | None
    num_new_tokens: tuple[int, ...]
    context_len: tuple[int, ...]
    appended: tuple[tuple[int, int], ...]  # half-open range of row positions; empty: (n, n)
    dropped: tuple[tuple[tuple[int, int], ...], ...]
    token_ids: tuple[tuple[int, ...], ...]  # accepted in this step; their rows come with the next
    token_texts: tuple[tuple[str, ...], ...]
    kv_live_bytes: int | None
    kv_reserved_bytes: int | None
    weight_bytes_read: int | None
    kv_bytes_read: int | None
    kv_bytes_written: int | None
    device_memory_bytes: int | None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSample:
    """Magnitudes (L2 norm over the head's width) of the rows `[first, stop)` of one sequence.

    `k` and `v` hold one byte for each row, layer and KV head, in that order: `[rows, columns]`.
    """

    kind = "kv_sample"
    step: int
    sequence: int
    first: int
    stop: int
    k: bytes
    v: bytes
    scale: str = MAGNITUDE_SCALE


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSample:
    """Attention weights of some query rows of one layer and head: `[queries, context]`, each row
    sums to 1."""

    kind = "attention_sample"
    step: int
    sequence: int
    layer: int
    query_head: int
    first_query: int
    weights: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """A reading of the machine. None where it has no such sensor."""

    kind = "telemetry"
    t_ns: int
    memory_used_bytes: int | None
    utilisation: float | None  # 0 to 1
    memory_bus_utilisation: float | None
    power_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The last record. Reasons: stop, length, cancelled, error, refused."""

    kind = "run_finished"
    end_ns: int
    finish_reason: str
    sequence_reasons: tuple[str, ...]
    error: Message | None = None


Event = RunStarted | StepFinished | KVSample | AttentionSample | Telemetry | RunFinished
KINDS = {
    cls.kind: cls
    for cls in (RunStarted, StepFinished, KVSample, AttentionSample, Telemetry, RunFinished)
}
REASONS = ("stop", "length", "cancelled", "error", "refused")


def to_line(event: Event) -> str:
    """The record as one line of ASCII JSON, without a line break."""
    return _ENCODER.encode({"kind": event.kind, **_fields(event)})


def from_line(line: str | bytes, kinds: Mapping[str, type] = KINDS) -> Event:
    """The record that a line holds, of the kinds that its log takes. Raises UserError on anything
    that is not one, naming the field."""
    try:
        data = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise UserError("error.file_line") from None
    if not isinstance(data, dict):
        raise UserError("error.file_line")
    cls = kinds.get(data.get("kind")) if isinstance(data.get("kind"), str) else None
    if cls is None:
        raise UserError("error.file_kind", name=str(data.get("kind"))[:40])
    return _read(cls, data, cls.kind)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


Settings = typing.TypeVar("Settings")


def settings_to_dict(settings: object) -> dict[str, object]:
    """RunSettings (or those of a race) as plain JSON types, for a command or a permalink."""
    return json.loads(_ENCODER.encode(_fields(settings)))


def settings_from_dict(data: Mapping[str, object], kind: type[Settings] = RunSettings) -> Settings:
    """The inverse of `settings_to_dict`. Raises UserError that names the field."""
    return _read(kind, data, "settings")


def _fields(record: object) -> dict[str, object]:
    names, values_of = _getter(type(record))
    return dict(zip(names, values_of(record), strict=True))


@cache
def _getter(cls: type) -> tuple[tuple[str, ...], Callable[[object], Sequence[object]]]:
    """The names of a record's fields, and what gives their values in one call."""
    names = tuple(_field_types(cls))
    if len(names) > 1:
        return names, operator.attrgetter(*names)
    return names, lambda record: [getattr(record, name) for name in names]


def _plain(value: object) -> object:
    """What JSON has no form of."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return dict(value) if isinstance(value, Mapping) else _fields(value)


# Made once: after a step its code is cold, and the fewer lines of Python run the better.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


@cache
def _field_types(cls: type) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _read(cls: type, data: Mapping[str, object], where: str) -> typing.Any:
    values = {}
    for f in fields(cls):
        if f.name in data:
            values[f.name] = _value(_field_types(cls)[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise UserError("error.file_field", field=f"{where}.{f.name}")
    return cls(**values)


def _value(hint: object, value: object, where: str) -> object:
    """`value` as the annotated type, checked: files and pipes are data from elsewhere."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        options = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
        return None if value is None else _value(options[0], value, where)
    if origin is tuple:
        args = typing.get_args(hint)
        if isinstance(value, list):
            if args[-1] is Ellipsis:
                return tuple(_value(args[0], item, where) for item in value)
            if len(args) == len(value):
                return tuple(
                    _value(arg, item, where) for arg, item in zip(args, value, strict=True)
                )
    elif origin is Mapping:
        if isinstance(value, dict) and all(
            isinstance(item, str) or _finite(item) for item in value.values()
        ):
            return value
    elif hasattr(hint, "__dataclass_fields__"):
        if isinstance(value, dict):
            return _read(hint, value, where)
    elif hint is bytes:
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                pass
    elif hint is float:
        if _finite(value):
            return float(value)
    elif hint is int:
        if type(value) is int and 0 <= value <= MAX_INT:  # no record has a negative count
            return value
    elif hint in (str, bool) and type(value) is hint:
        return value
    raise UserError("error.file_field", field=where)


def _finite(value: object) -> bool:
    """Whether a value is a number that a JSON reader elsewhere can keep."""
    if type(value) is int:
        return abs(value) <= MAX_INT
    return type(value) is float and math.isfinite(value)


class LogError(ValueError):
    """A record that breaks an invariant of the log: a fault of its source, never of the visitor."""


@dataclass(slots=True)
class RunLog:
    """The records of one run in order. `append` checks each against those before it, so every
    source is checked."""

    kinds: ClassVar[Mapping[str, type]] = KINDS
    events: list[Event] = field(default_factory=list)
    steps: list[StepFinished] = field(default_factory=list)
    started: RunStarted | None = None
    finished: RunFinished | None = None
    num_rows: list[int] = field(default_factory=list)  # rows held now, one a sequence
    num_columns: int = 0  # columns attended by the last step, pads included

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def append(self, event: Event) -> None:
        """Add a record. Raises LogError where it does not follow from those before."""
        if self.finished is not None:
            raise LogError("nothing follows RunFinished")
        if isinstance(event, RunStarted):
            self._check_started(event)
            self.started = event
            self.num_rows = [0] * event.settings.batch
        elif self.started is None:
            raise LogError("a run begins with RunStarted")
        elif isinstance(event, StepFinished):
            self._check_step(event)
            self._take_step(event)
        elif isinstance(event, KVSample):
            self._check_sample(event)
        elif isinstance(event, AttentionSample):
            self._check_attention(event)
        elif isinstance(event, RunFinished):
            if event.finish_reason not in REASONS:
                raise LogError(f"unknown finish_reason {event.finish_reason!r}")
            if self.steps and event.end_ns < self.steps[-1].end_ns:
                raise LogError("time goes back at RunFinished")
            self.finished = event
        self.events.append(event)

    def _check_started(self, event: RunStarted) -> None:
        if self.started is not None:
            raise LogError("a run has one RunStarted")
        if event.schema != SCHEMA:
            raise UserError("error.file_schema", schema=event.schema, known=SCHEMA)
        batch = event.settings.batch
        if not 1 <= batch <= MAX_BATCH:
            raise LogError(f"batch {batch} is not within 1 to {MAX_BATCH}")
        if len(event.prompt_token_ids) != batch or len(event.prompt_texts) != batch:
            raise LogError("prompt tokens are not given for each sequence")
        if any(
            len(ids) != len(texts) or not ids
            for ids, texts in zip(event.prompt_token_ids, event.prompt_texts, strict=True)
        ):
            raise LogError("prompt tokens and their texts do not match")
        if not 1 <= len(event.spec.layers) <= 2000 or not 0 <= event.spec.num_columns <= 100_000:
            raise LogError("the model's layers are out of bounds")
        if event.accepted_ns < event.queued_ns:
            raise LogError("accepted before it was queued")

    def _check_step(self, event: StepFinished) -> None:
        batch = self.started.settings.batch
        if event.step != len(self.steps):
            raise LogError(f"step {event.step} where {len(self.steps)} is due")
        if event.phase not in ("prefill", "decode"):
            raise LogError(f"unknown phase {event.phase!r}")
        if event.phase == "prefill" and self.steps and self.steps[-1].phase == "decode":
            raise LogError("prefill after decode")
        last_ns = self.steps[-1].end_ns if self.steps else self.started.accepted_ns
        if event.end_ns < event.start_ns or event.start_ns < last_ns:
            raise LogError(f"time goes back at step {event.step}")
        per_sequence = (
            event.num_new_tokens,
            event.context_len,
            event.appended,
            event.dropped,
            event.token_ids,
            event.token_texts,
        )
        if any(len(values) != batch for values in per_sequence):
            raise LogError(f"step {event.step} does not speak of {batch} sequences")
        cached = self.started.settings.cache != "none"
        for b in range(batch):
            first, stop = event.appended[b]
            if len(event.token_ids[b]) != len(event.token_texts[b]):
                raise LogError(f"step {event.step}: tokens and texts do not match")
            if not 0 <= event.num_new_tokens[b] <= event.context_len[b]:
                raise LogError(f"step {event.step}: more tokens fed than attended")
            if max(event.context_len[b], stop) > MAX_COLUMNS:
                raise LogError(f"step {event.step}: more positions than {MAX_COLUMNS}")
            if any(not 0 <= start < end <= stop for start, end in event.dropped[b]):
                raise LogError(f"step {event.step}: rows dropped that are not there")
            if cached:
                if first != self.num_rows[b] or stop != first + event.num_new_tokens[b]:
                    raise LogError(f"step {event.step}: rows {first}-{stop} do not continue")
            elif stop != first:
                raise LogError(f"step {event.step}: rows appended without a cache")
            elif event.num_new_tokens[b] not in (0, event.context_len[b]):
                raise LogError(f"step {event.step}: without a cache every token is fed again")

    def _take_step(self, event: StepFinished) -> None:
        for b, (_, stop) in enumerate(event.appended):
            gone = sum(end - start for start, end in event.dropped[b])
            self.num_rows[b] = stop - gone
        # While the prompt is read the longest sequence fills every column; then each step adds one.
        self.num_columns = (
            max(event.context_len) if event.phase == "prefill" else self.num_columns + 1
        )
        self.steps.append(event)

    def _check_sample(self, event: KVSample) -> None:
        if not 0 <= event.sequence < self.started.settings.batch:
            raise LogError("a sample of a sequence that is not there")
        size = (event.stop - event.first) * self.started.spec.num_columns
        last = self.steps[-1] if self.steps else None
        seen = (
            max(last.appended[event.sequence][1], last.context_len[event.sequence]) if last else 0
        )
        if event.stop > seen:
            raise LogError("a sample of rows that are not there")
        if not 0 <= event.first <= event.stop or len(event.k) != size or len(event.v) != size:
            raise LogError("a sample whose bytes are not rows x columns")

    def _check_attention(self, event: AttentionSample) -> None:
        last = self.steps[-1] if self.steps else None
        widths = {len(row) for row in event.weights}
        if last is None or not widths or event.sequence >= self.started.settings.batch:
            raise LogError("attention weights of a step that is not there")
        context = event.first_query + len(event.weights)
        if widths != {context} or context > last.context_len[event.sequence]:
            raise LogError("attention weights that are not queries x context")

    def texts(self, sequence: int) -> str:
        """What the model has written so far in one sequence."""
        return "".join(text for s in self.steps for text in s.token_texts[sequence])

    def to_jsonl(self) -> str:
        """The whole log, a line a record."""
        return "".join(to_line(event) + "\n" for event in self.events)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "RunLog":
        log = cls()
        for event in events:
            log.append(event)
        return log

    def closing(self, finish_reason: str, error: Message | None) -> list[Event]:
        """The last record of a run whose source did not write it."""
        end_ns = self.steps[-1].end_ns if self.steps else self.started.accepted_ns
        reasons = (finish_reason,) * self.started.settings.batch
        return [
            RunFinished(
                end_ns=end_ns, finish_reason=finish_reason, sequence_reasons=reasons, error=error
            )
        ]

    @classmethod
    def read(cls, data: bytes) -> "RunLog":
        """The log in a .jsonl file. Raises UserError with the line that is wrong and why; a file
        whose last lines are missing is read as far as it goes (`finished` is then None)."""
        check_first_line(data, "run_started")
        log = cls()
        read_into(log, data)
        if log.started is None:
            raise UserError("error.file_empty")
        return log


def check_first_line(data: bytes, own: str) -> None:
    """Raises UserError that names the right page, where a file is this app's own but of another
    kind than `own`; what else may be wrong is for others to say."""
    try:
        head = json.loads(data[:MAX_HEAD_BYTES].split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return
    kind = head.get("kind") if isinstance(head, dict) else None
    if isinstance(kind, str) and kind != own and kind in FIRST_LINES:
        raise UserError(FIRST_LINES[kind])


def read_into(log: typing.Any, data: bytes) -> None:
    """Append the lines of a file to a log. Raises UserError with the line that is wrong and why;
    a last line that was cut in the middle is left out."""
    if len(data) > MAX_FILE_BYTES:
        raise UserError("error.file_size", size=len(data) // 2**20, most=MAX_FILE_BYTES // 2**20)
    lines = data.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            log.append(from_line(line, log.kinds))
        except UserError as error:
            if number == len(lines) and log.steps and not data.endswith(b"\n"):
                break
            reason = error.message
            raise UserError("error.file_at_line", line=number, reason=reason) from None
        except LogError as error:
            raise UserError("error.file_order", line=number, reason=str(error)) from None
