"""The log of a run: keeps its records in order and checks each against those before it.

Every source is checked so. It knows nothing of how a record was made or how it is drawn.

Try it: `python -c "from viz_engine.run.log import RunLog; \
print(len(RunLog.read(open('run.jsonl','rb').read())))"`
"""

import json
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from viz_engine.run.codec import from_line, to_line
from viz_engine.run.events import (
    KINDS,
    MAX_BATCH,
    SCHEMA,
    AttentionSample,
    Event,
    KVSample,
    RunFinished,
    RunStarted,
    StepFinished,
)
from viz_engine.text import Message, UserError

MAX_FILE_BYTES = 64 * 1024**2
MAX_HEAD_BYTES = 2**20  # of a file's first line
FIRST_LINES = {  # how this app's files begin -> the sentence that names the page for one
    "run_started": "error.file_is_run",
    "race_started": "error.file_is_race",
    "sweep": "error.file_is_sweep",
}
MAX_COLUMNS = 2**22  # positions of a run: beyond any window, and a picture can still be made
REASONS = ("stop", "length", "cancelled", "error", "refused")


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
