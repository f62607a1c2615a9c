"""The log of a run: keeps its records in order and checks each against those before it.

Every source is checked so. It knows nothing of how a record was made or how it is drawn.

Try it: `python -c "from viz_engine.run.log import RunLog; \
print(len(RunLog.read(open('run.jsonl','rb').read())))"`
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from viz_engine.model.spec import ModelSpec
from viz_engine.run import cost
from viz_engine.run.codec import from_line, to_line
from viz_engine.run.events import (
    MAX_BATCH,
    SCHEMA,
    AttentionSample,
    Event,
    KeptCells,
    KVSample,
    RunFinished,
    RunStarted,
    StepFinished,
)
from viz_engine.run.files import LogError, check_first_line, read_into
from viz_engine.run.history import History, rollback_start
from viz_engine.text import Message, UserError

MAX_LAYERS, MAX_WEIGHT_GROUPS, MAX_WEIGHTS, MAX_DIMENSIONS = 2000, 1000, 2**60, 8
MAX_COLUMNS = 2**22  # positions of a run: beyond any window, and a picture can still be made
REASONS = ("stop", "length", "cancelled", "error", "refused")


@dataclass(slots=True)
class RunLog:
    """The records of one run in order. `append` checks each against those before it, so every
    source is checked. A record that is refused changes nothing."""

    to_line, from_line = staticmethod(to_line), staticmethod(from_line)

    events: list[Event] = field(default_factory=list)
    steps: list[StepFinished] = field(default_factory=list)
    started: RunStarted | None = None
    finished: RunFinished | None = None
    columns: list[int] = field(default_factory=list)  # attended by each step, pads included
    histories: list[History] = field(default_factory=list)  # one a sequence
    _apart: bool = False  # a sequence's columns are no one stretch any more: rows do not say them

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    @property
    def num_rows(self) -> list[int]:
        """Rows held now, one number a sequence."""
        return [history.num_rows for history in self.histories]

    @property
    def num_columns(self) -> int:
        """Columns that the last step attended, pads included."""
        return self.columns[-1] if self.columns else 0

    def append(self, event: Event) -> None:
        """Add a record. Raises LogError where it does not follow from those before."""
        if self.finished is not None:
            raise LogError("nothing follows RunFinished")
        if isinstance(event, RunStarted):
            self._check_started(event)
            self.started = event
            found = [event.found(b) for b in range(event.settings.batch)]
            self.histories = [History(seen=n, num_rows=n) for n in found]
        elif self.started is None:
            raise LogError("a run begins with RunStarted")
        elif isinstance(event, StepFinished):
            self._check_step(event)
            self._take_step(event)
        elif isinstance(event, KVSample):
            self._check_sample(event)
        elif isinstance(event, KeptCells):
            self._check_kept(event)
        elif isinstance(event, AttentionSample):
            self._check_attention(event)
        elif isinstance(event, RunFinished):
            if event.finish_reason not in REASONS:
                raise LogError(f"unknown finish_reason {event.finish_reason!r}")
            if self.steps and event.end_ns < self.steps[-1].end_ns:
                raise LogError("time goes back at RunFinished")
            self.finished = event
        self.events.append(event)

    @property
    def latest(self) -> "RunLog":
        """The run that is on: of an experiment, one of several."""
        return self

    def part(self, event: Event) -> tuple["RunLog", Event]:
        """The run that a record is of, and the record as that run has it."""
        return self, event

    def take_line(self, line: bytes) -> None:
        """Append a line of a file."""
        self.append(from_line(line))

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
        if event.spec is not None:
            _check_spec(event.spec)
        if len(event.found_len) not in (0, batch):
            raise LogError("found rows are not given for each sequence")
        for b, ids in enumerate(event.prompt_token_ids):
            if event.found(b) and event.settings.cache == "none":
                raise LogError("rows found without a cache")
            if not 0 <= event.found(b) < len(ids):
                raise LogError("more rows found than a prompt has before its last token")
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
        if event.end_ns == event.start_ns:
            raise LogError(f"step {event.step} takes no time")
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
        if len(event.drafted) not in (0, batch):
            raise LogError(f"step {event.step}: drafts are not given for each sequence")
        if not any(event.num_new_tokens):
            raise LogError(f"step {event.step} feeds nothing")
        cached = self.started.settings.cache != "none"
        for b, history in enumerate(self.histories):
            first, stop = event.appended[b]
            if len(event.token_ids[b]) != len(event.token_texts[b]):
                raise LogError(f"step {event.step}: tokens and texts do not match")
            if not 0 <= event.num_new_tokens[b] <= event.context_len[b]:
                raise LogError(f"step {event.step}: more tokens fed than attended")
            if max(event.context_len[b], stop) > MAX_COLUMNS:
                raise LogError(f"step {event.step}: more positions than {MAX_COLUMNS}")
            if cached and event.context_len[b] > stop:
                raise LogError(f"step {event.step}: more positions attended than there are")
            if not cached and (stop != first or event.dropped[b]):
                raise LogError(f"step {event.step}: rows appended or dropped without a cache")
            if not cached and event.num_new_tokens[b] not in (0, event.context_len[b]):
                raise LogError(f"step {event.step}: without a cache every token is fed again")
            if cached and stop != first + event.num_new_tokens[b]:
                raise LogError(f"step {event.step}: rows {first}-{stop} do not continue")
            if cached and (why := history.problem((first, stop), event.dropped[b])):
                raise LogError(f"step {event.step}: {why}")
            if event.drafted:
                self._check_drafts(event, b)
        self._check_columns(event)
        needed, read = event.kv_bytes_needed, event.kv_bytes_read
        if needed is not None and read is not None and needed > read:
            raise LogError(f"step {event.step}: more bytes needed than read")

    def _check_drafts(self, event: StepFinished, b: int) -> None:
        """Drafts are fed behind a token; those that are accepted come out as they went in, and one
        token more."""
        drafted, given = event.drafted[b], event.token_ids[b]
        if drafted and len(drafted) >= event.num_new_tokens[b]:
            raise LogError(f"step {event.step}: more drafts than tokens fed")
        if len(given) > len(drafted) + 1:
            raise LogError(f"step {event.step}: more tokens accepted than drafted and one")
        if given[:-1] != drafted[: max(len(given) - 1, 0)]:
            raise LogError(f"step {event.step}: tokens accepted that were not drafted")

    def _columns_of(self, event: StepFinished) -> int:
        """Columns that a step attends to, as long as every sequence holds one stretch of them: its
        pads and what it attends to. One that is fed nothing (a chunk of its pads, an end before)
        says nothing."""
        prompt = self.started.prompt_columns
        return max(
            (
                prompt - len(ids) + context
                for ids, context, fed in zip(
                    self.started.prompt_token_ids,
                    event.context_len,
                    event.num_new_tokens,
                    strict=True,
                )
                if fed
            ),
            default=self.num_columns,
        )

    def _check_columns(self, event: StepFinished) -> None:
        if event.num_columns is None:
            return
        held = max(
            history.num_rows + stop - first
            for history, (first, stop) in zip(self.histories, event.appended, strict=True)
        )
        exact = event.num_columns if self._apart else self._columns_of(event)
        if event.num_columns != exact or event.num_columns < held:
            raise LogError(f"step {event.step}: {event.num_columns} columns do not fit its rows")
        if event.num_columns > MAX_COLUMNS:
            raise LogError(f"step {event.step}: more columns than {MAX_COLUMNS}")

    def _take_step(self, event: StepFinished) -> None:
        derived = self._columns_of(event)
        self.columns.append(derived if event.num_columns is None else event.num_columns)
        if self.started.settings.cache != "none":
            for history, appended, dropped in zip(
                self.histories, event.appended, event.dropped, strict=True
            ):
                rolls_back = rollback_start(appended, dropped) is not None
                evicts = history.take(appended, dropped)
                self._apart |= evicts or (rolls_back and len(self.histories) > 1)
        self.steps.append(event)

    def _check_sample(self, event: KVSample) -> None:
        if not 0 <= event.sequence < self.started.settings.batch:
            raise LogError("a sample of a sequence that is not there")
        if self.started.spec is None:
            raise LogError("a sample of a model whose heads are not known")
        size = (event.stop - event.first) * self.started.spec.num_columns
        seen = self.histories[event.sequence].seen
        if self.started.settings.cache == "none" and self.steps:
            seen = self.steps[-1].context_len[event.sequence]
        if event.stop > seen:
            raise LogError("a sample of rows that are not there")
        if not 0 <= event.first <= event.stop or len(event.k) != size or len(event.v) != size:
            raise LogError("a sample whose bytes are not rows x columns")

    def _check_kept(self, event: KeptCells) -> None:
        if not 0 <= event.sequence < self.started.settings.batch:
            raise LogError("kept cells of a sequence that is not there")
        if self.started.spec is None:
            raise LogError("kept cells of a model whose heads are not known")
        if not self.steps or event.step != self.steps[-1].step:
            raise LogError("kept cells of a step that is not the last")
        history, num_cells = self.histories[event.sequence], self.started.spec.num_columns
        if not 0 <= event.first < event.stop <= history.seen:
            raise LogError("kept cells of rows that are not there")
        num_bits = (event.stop - event.first) * num_cells
        if len(event.kept) != -(-num_bits // 8) or num_bits % 8 and event.kept[-1] >> num_bits % 8:
            raise LogError("kept cells whose bits are not rows x cells")
        whole = True
        for row in range(event.first, event.stop):
            cells = _row_bits(event.kept, (row - event.first) * num_cells, num_cells)
            if bool(cells) == history.evicted.meets(row, row + 1):
                raise LogError(f"kept cells of row {row} do not agree with what was dropped")
            whole &= cells == (1 << num_cells) - 1
        if whole and not history.evicted.starts:
            raise LogError("kept cells where nothing was dropped")

    def _check_attention(self, event: AttentionSample) -> None:
        last = self.steps[-1] if self.steps else None
        widths = {len(row) for row in event.weights}
        if last is None or not widths or event.sequence >= self.started.settings.batch:
            raise LogError("attention weights of a step that is not there")
        context = event.first_query + len(event.weights)
        if widths != {context} or context > last.context_len[event.sequence]:
            raise LogError("attention weights that are not queries x context")

    def columns_fed(self, at: int) -> int:
        """Columns that step `at` fed to the model. A sequence that goes on is fed in all of them
        but its pads, and one of them has none."""
        if self.started.settings.cache == "none":
            return self.columns[at]
        return max(self.steps[at].num_new_tokens)

    def step_cost(self, at: int, *, cached: bool | None = None) -> cost.StepCost | None:
        """What `cost.py` says that step `at` costs, or with `cached` False the same tokens without
        a cache. None where no formula stands for the model or for its cache policy, and no size
        for its number format."""
        started, columns = self.started, self.columns[at]
        if started.spec is None or started.settings.cache not in cost.POLICIES:
            return None
        if cached is None:
            cached = started.settings.cache != "none"
        try:
            return cost.step(
                started.spec,
                started.settings.dtype,
                batch=started.settings.batch,
                num_new=self.columns_fed(at) if cached else columns,
                num_columns=columns,
                prompt_columns=started.prompt_columns,
                cached=cached,
                chunk_len=started.settings.chunk_len,
            )
        except (KeyError, ValueError, ArithmeticError):  # a file may name a dtype of its own
            return None

    def with_costs(self) -> Iterator[tuple[StepFinished, cost.StepCost | None]]:
        """Each step with its predicted cost."""
        for at, step in enumerate(self.steps):
            yield step, self.step_cost(at)

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
        check_first_line(data, "run")
        log = cls()
        read_into(log, data)
        if log.started is None:
            raise UserError("error.file_empty")
        return log


def _check_spec(spec: ModelSpec) -> None:
    """Raises LogError on sizes that no model has, which would be worked with in each step."""
    if not (1 <= len(spec.layers) <= MAX_LAYERS and 0 <= spec.num_columns <= 100_000):
        raise LogError("the model's layers are out of bounds")
    weights = spec.weights or ()
    if len(weights) > MAX_WEIGHT_GROUPS or any(len(w.shape) > MAX_DIMENSIONS for w in weights):
        raise LogError("the model's weights are out of bounds")
    if spec.num_parameters > MAX_WEIGHTS:
        raise LogError("the model's weights are out of bounds")


def _row_bits(data: bytes, start: int, num: int) -> int:
    """`num` bits from bit `start` on, the first one lowest."""
    part = data[start >> 3 : (start + num + 7) >> 3]
    return int.from_bytes(part, "little") >> (start & 7) & (1 << num) - 1
