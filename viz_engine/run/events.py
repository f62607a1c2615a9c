"""The run: inert records that a source emits, one JSON line each (codec.py).

Measured, counted and predicted never share a field. Nothing here knows how a record was made, what
order they come in (log.py) or how one is drawn.
"""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field

from viz_engine.model.spec import ModelSpec
from viz_engine.text import Message

SCHEMA = 1
MAX_BATCH = 64
MAX_INT = 2**53 - 1  # the largest that JSON readers keep exactly
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
    """A part of the engine that is on or off, and why. `numbers` are those behind the reason, as
    they were measured or counted; the reason shows them rounded."""

    name: str
    on: bool
    reason: Message
    numbers: Mapping[str, float] = field(default_factory=dict)


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
    engine. `found_len` is empty where no sequence found rows of an earlier one."""

    kind = "run_started"
    run_id: str
    started_at: str  # ISO 8601, UTC
    source: str  # engine, endpoint, simulation
    settings: RunSettings
    spec: ModelSpec | None  # None: a server's model whose sizes nobody knows
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
    found_len: tuple[int, ...] = ()  # rows reused from before, one number a sequence
    schema: int = SCHEMA

    @property
    def prompt_columns(self) -> int:
        """Columns of the left-padded prompt: the longest sequence."""
        return max(len(ids) for ids in self.prompt_token_ids)

    def found(self, sequence: int) -> int:
        """Rows of a sequence that were there before the run."""
        return self.found_len[sequence] if self.found_len else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One forward. Tuples have one entry a sequence; a sequence that has ended has 0 new tokens
    and keeps its rows. Positions are absolute.

    A range of `dropped` that ends where this step's `appended` does and begins above its start
    takes rejected drafts back (rollback): their positions are written again. Every other range is
    evicted for good.

    `kv_live_bytes` is what the cache holds: rows that a window has dropped are not in it, of
    latents it is the latents, and states count. `kv_bytes_read` is what attention reads: a layer
    that shares another's rows reads them again, latents are read expanded, states whole.
    `weight_bytes_read` is None where experts are chosen by token. `kv_bytes_needed` is what the
    step would read if it moved only the rows that it attends to.
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
    num_columns: int | None = None  # attended, pads included; None in old files (RunLog.columns)
    drafted: tuple[tuple[int, ...], ...] = ()  # ids fed to be verified; empty: no speculation
    kv_bytes_needed: int | None = None  # None: all that is read is needed

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
class KeptCells:
    """Which cells of the rows `[first, stop)` of one sequence the cache still holds after `step`,
    where its heads differ in what they keep.

    `kept` is `[stop - first, cells]`, row by row, the cells in KVSample's order: cell i is the bit
    `i & 7` of byte `i >> 3`, 1 where it is held. What is left of the last byte is 0.
    """

    kind = "kept_cells"
    step: int
    sequence: int
    first: int
    stop: int
    kept: bytes


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


Event = RunStarted | StepFinished | KVSample | KeptCells | AttentionSample | Telemetry | RunFinished
KINDS: dict[str, type] = {cls.kind: cls for cls in typing.get_args(Event)}
