"""The run itself: prefill in chunks, decode, the no-cache baseline. A generator of records.

Transformers' modelling code does the forward; ours are the cache, the attention that reads it,
this loop, and what is counted and timed. Bytes are asked of the tensors, never of `cost.py`.
It knows nothing of queues, processes or pages.

Try it: `python -m viz_engine record --prompt "Why is the sky blue?" --out run.jsonl`
"""

import dataclasses
import datetime
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import transformers

from viz_engine.engine.batch import Batch
from viz_engine.engine.cache import norms
from viz_engine.engine.cache.cache import STORES, KVCache
from viz_engine.engine.compatibility import call, first_line
from viz_engine.engine.decode import Decoder
from viz_engine.engine.device import (
    DTYPES,
    available_bytes,
    device_memory_bytes,
    is_out_of_memory,
    read_sensors,
    start_timer,
    stop_timer,
)
from viz_engine.engine.kernels.context import Capture
from viz_engine.engine.load import Loaded
from viz_engine.engine.sampling import Sampler
from viz_engine.model.tokenizer import clean
from viz_engine.run.checks import check, check_settings, check_window
from viz_engine.run.command import record_command
from viz_engine.run.events import (
    AttentionSample,
    EnginePart,
    Event,
    KVSample,
    RunFinished,
    RunSettings,
    RunStarted,
    StepFinished,
    Telemetry,
)
from viz_engine.text import Message, UserError

TELEMETRY_NS = 1_000_000_000
OnLogits = Callable[[int, torch.Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked of a run besides its settings, by who looks at it or compares it."""

    # Called with the step and the logits `[B, vocab]` of each step that gives tokens.
    on_logits: OnLogits | None = None
    # One list a sequence, taken in place of the model's choice; a sequence whose list is used up
    # ends.
    forced_tokens: Sequence[Sequence[int]] | None = None
    eager: bool = False  # every step in Python, as a look at single layers needs it
    samples: str = "each"  # norms of the rows: after `each` step, all after the `last`, or `none`
    # Each decode step is made a second time, in Python and untimed, for its attention weights. Of
    # one sequence only.
    capture: Capture | None = None


DEFAULTS = Options()


def generate(
    loaded: Loaded,
    settings: RunSettings,
    *,
    run_id: str,
    queued_ns: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], int] = time.perf_counter_ns,
    options: Options = DEFAULTS,
) -> Iterator[Event]:
    """The records of one run, each stamped when its step is over and then given.

    Raises UserError before the first record where the run cannot be (`checks.check`); after it,
    never: what goes wrong is said by the last record. `cancelled` is asked before every step.
    """
    queued_ns = clock() if queued_ns is None else queued_ns
    check_settings(settings)
    check_cache(loaded, settings)
    stop_asked = settings.stop_token_ids
    check_window(loaded.spec, settings.context_len or 0)  # before as much text is made
    settings = resolve(loaded, settings)
    prompts = encode(loaded, settings)
    room = available_bytes(loaded.device)
    check(loaded.spec, settings, [len(ids) for ids in prompts], room)
    run = _Run(loaded, settings, prompts, clock, options)
    if settings.warm_up:
        try:
            run.warm_up()
        except Exception as caught:
            message = explain(caught)
            raise UserError(message.key, **message.params) from caught
    started = RunStarted(
        run_id=run_id,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        source="engine",
        settings=settings,
        spec=loaded.spec,
        hardware=loaded.hardware,
        prompt_token_ids=tuple(tuple(ids) for ids in prompts),
        prompt_texts=tuple(loaded.tokenizer.texts(ids) for ids in prompts),
        accepted_ns=clock(),
        queued_ns=queued_ns,
        versions=versions(),
        command=record_command(dataclasses.replace(settings, stop_token_ids=stop_asked)),
        reasons=loaded.reasons,
        parts=(*loaded.parts, *run.decoder.parts(), chunks(loaded, settings)),
    )
    yield started
    error = None
    try:
        yield from run.steps(cancelled)
    except Exception as caught:
        error = explain(caught)
    finally:
        run.cache = None  # the memory goes back before anybody reads the last record
    yield run.finished(error)


def resolve(loaded: Loaded, settings: RunSettings) -> RunSettings:
    """`settings` with nothing left to choose: device, dtype, stop tokens; prompts are clean."""
    stop = settings.stop_token_ids
    return dataclasses.replace(
        settings,
        device=loaded.device,
        dtype=loaded.dtype,
        stop_token_ids=loaded.stop_token_ids if stop is None else stop,
        chunk_len=settings.chunk_len if loaded.compatibility.chunks else 0,
        prompts=tuple(clean(text) for text in settings.prompts),
    )


def encode(loaded: Loaded, settings: RunSettings) -> list[list[int]]:
    """Prompt ids, one list a sequence. Raises UserError on a prompt that cannot be."""
    lists = [
        loaded.tokenizer.encode_prompt(
            text, chat=settings.chat, context_len=settings.context_len, filler=settings.filler
        )
        for text in settings.prompts
    ]
    return lists * settings.batch if len(lists) == 1 else lists


def explain(error: BaseException) -> Message:
    """What an exception in mid-run means, in words."""
    if is_out_of_memory(error):
        return Message(key="error.out_of_memory")
    return Message(key="error.engine", params={"reason": first_line(error)})


def check_cache(loaded: Loaded, settings: RunSettings) -> None:
    """Raises UserError where a cache is asked of a model that takes none, or not this one."""
    if settings.cache == "none":
        return
    compatible = loaded.compatibility
    if not compatible.cached:
        raise UserError("error.cache_none_only", model_type=loaded.spec.model_type)
    unfolded = any(layer.kind == "latent" for layer in loaded.spec.layers)  # by the model's code
    if not STORES[settings.cache].hands_tensors and (unfolded or not compatible.own_attention):
        params = {"cache": settings.cache, "model_type": loaded.spec.model_type}
        raise UserError("error.cache_attention", **params)


def chunks(loaded: Loaded, settings: RunSettings) -> EnginePart:
    """How the prompt is read, for RunStarted. Without a cache there is nothing to go on from. Its
    name is that of the runs recorded so far."""
    if settings.chunk_len and settings.cache != "none":
        numbers = {"chunk_len": settings.chunk_len}
        reason = Message(key="part.pieces", params=numbers)
        return EnginePart(name="pieces", on=True, reason=reason, numbers=numbers)
    reason = loaded.compatibility.chunks_reason or Message(key="part.one_piece")
    return EnginePart(name="pieces", on=False, reason=reason)


def versions() -> dict[str, str]:
    """What the numbers of a run depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


class _Run:
    """The state of one run: its batch, its cache, and how far it is."""

    def __init__(
        self,
        loaded: Loaded,
        settings: RunSettings,
        prompts: list[list[int]],
        clock: Callable[[], int],
        options: Options,
    ) -> None:
        self.loaded = loaded
        self.settings = settings
        self.clock = clock
        self.options = options
        self.batch = Batch(
            prompts,
            settings,
            loaded.tokenizer,
            pad_token_id=loaded.pad_token_id,
            device=loaded.device,
            forced=options.forced_tokens,
        )
        self.sampler = Sampler(settings.temperature, settings.top_p, settings.seed, self.batch.size)
        self.cached = settings.cache != "none"
        self.seen = 0  # positions attended so far
        self.num_steps = 0
        self.cache: KVCache | None = None
        self.decoder = Decoder(
            loaded,
            lambda *step: forward(loaded, *step),
            batch=self.batch.size,
            masked=self.batch.mask is not None,
            policy=settings.cache,
            eager=options.eager,
            clock=clock,
        )
        self.was_cancelled = False
        self.telemetry_ns = clock()
        read_sensors(loaded.device)  # shares are since the reading before

    def warm_up(self) -> None:
        """One chunk and one token, discarded: first calls of a shape are slow. Once a shape. Then
        the decoder is made ready."""
        chunk = min(self.settings.chunk_len or self.batch.padded_len, self.batch.padded_len)
        shape = (self.settings.cache, self.batch.size, chunk)
        if shape in self.loaded.warmed and self.decoder.is_ready:
            return
        cache = self._new_cache(chunk) if self.cached else None
        for first, stop in ((0, chunk), (chunk, chunk + 1))[: 1 if cache is None else 2]:
            if cache is not None:
                cache.reserve(stop)
            forward(self.loaded, *self.batch.feed(first, stop), cache)
        self.decoder.make_ready(self._new_cache)
        stop_timer(start_timer(self.loaded.device))
        self.loaded.warmed.add(shape)

    def _new_cache(self, padded_len: int) -> KVCache:
        return new_cache(self.loaded, self.settings.cache, self.batch.size, padded_len)

    def steps(self, cancelled: Callable[[], bool]) -> Iterator[Event]:
        """Prefill and decode until every sequence has ended or `cancelled` says so."""
        last = self.batch.padded_len
        chunk = self.settings.chunk_len if self.cached else 0
        if self.cached:
            self.cache = self._new_cache(last)
        for stop in [*range(chunk, last, chunk), last] if chunk else [last]:
            if self._stops(cancelled):
                return
            yield from self._step("prefill", stop)
        while self.batch.goes_on:
            if self._stops(cancelled):
                return
            yield from self._step("decode", self.seen + 1)

    def finished(self, error: Message | None) -> RunFinished:
        """The last record."""
        if error is not None:
            rest = "error"
        else:
            rest = "cancelled" if self.was_cancelled else "length"
        reasons = tuple(reason or rest for reason in self.batch.reasons)
        whole = "stop" if set(reasons) == {"stop"} else rest
        return RunFinished(
            end_ns=self.clock(), finish_reason=whole, sequence_reasons=reasons, error=error
        )

    def _stops(self, cancelled: Callable[[], bool]) -> bool:
        self.was_cancelled = cancelled()
        return self.was_cancelled

    def _step(self, phase: str, stop: int) -> Iterator[Event]:
        """One forward of the positions up to `stop`, timed, then its records."""
        first = self.seen if self.cached else 0
        counts = self._row_counts()
        start_ns = self.clock()
        timer = start_timer(self.loaded.device)
        if self.cache is not None:
            self.cache.reserve(stop)
        fed = self.batch.feed(first, stop)
        if self.cached and phase == "decode":
            logits = self.decoder.step(*fed, self.cache)
        else:
            logits = forward(self.loaded, *fed, self.cache)
        if self.cache is not None:
            self.cache.settle()
        is_last = stop >= self.batch.padded_len  # of the prompt: from here on it gives tokens
        tokens = self._choose(logits) if is_last else [None] * self.batch.size
        device_ns = stop_timer(timer)
        end_ns = self.clock()
        read, written = (
            now - before for now, before in zip(self._row_counts(), counts, strict=True)
        )
        if self.options.on_logits is not None and is_last:
            self.options.on_logits(self.num_steps, logits)
        step = StepFinished(
            step=self.num_steps,
            phase=phase,
            start_ns=start_ns,
            end_ns=end_ns,
            device_ns=device_ns,
            **self.batch.per_sequence(first, stop, tokens),
            kv_live_bytes=0 if self.cache is None else self.cache.live_bytes,
            kv_reserved_bytes=0 if self.cache is None else self.cache.reserved_bytes,
            weight_bytes_read=self._weight_bytes(fed[0].numel()),
            kv_bytes_read=read,
            kv_bytes_written=written,
            device_memory_bytes=device_memory_bytes(self.loaded.device),
            num_columns=stop,
        )
        if self.cached and phase == "decode":
            self.decoder.took(step.duration_ns)
        self.seen = stop
        self.num_steps += 1
        yield step
        yield from self._sampled(step, first)

    def _row_counts(self) -> tuple[int, int]:
        """Bytes of K, V and states read and written so far."""
        cache = self.cache
        return (0, 0) if cache is None else (cache.bytes_read, cache.bytes_written)

    def _weight_bytes(self, num_tokens: int) -> int | None:
        once = self.loaded.weight_bytes_once
        return None if once is None else once + num_tokens * self.loaded.lookup_row_bytes

    def _choose(self, logits: torch.Tensor) -> list[int | None]:
        """The next token of each sequence that goes on; None for one that has ended."""
        forced = self.options.forced_tokens is not None
        chosen = self.batch.forced_tokens() if forced else self.sampler.choose(logits)
        return [None if end else id for id, end in zip(chosen, self.batch.reasons, strict=True)]

    def _sampled(self, step: StepFinished, first: int) -> Iterator[Event]:
        """Outside the timed span: the norms of the new rows, attention weights where they
        are asked for, and the sensors once a second."""
        if self.cache is not None and self.loaded.spec.num_columns:
            if self.options.samples == "each":
                yield from self._sample(step, first)
            elif self.options.samples == "last" and not self.batch.goes_on:
                yield from self._sample(step, 0)
        if self.options.capture is not None and step.phase == "decode":
            yield self._attention(step)
        now = self.clock()
        if now - self.telemetry_ns >= TELEMETRY_NS:
            self.telemetry_ns = now
            reading = read_sensors(self.loaded.device)
            yield Telemetry(t_ns=now, **dataclasses.asdict(reading))

    def _sample(self, step: StepFinished, first: int) -> Iterator[KVSample]:
        """Norms of each sequence's rows from position `first` on."""
        levels = norms.sample(self.cache, first, self.seen)  # [2, B, n, cells]
        for b, (start, stop) in enumerate(step.appended):
            start = start if self.options.samples == "each" else 0
            if stop > start:
                at = self.batch.pads[b] - first
                k, v = levels[:, b, at + start : at + stop]
                yield KVSample(
                    step=step.step,
                    sequence=b,
                    first=start,
                    stop=stop,
                    k=k.tobytes(),
                    v=v.tobytes(),
                )

    def _attention(self, step: StepFinished) -> AttentionSample:
        """The same step once more, in Python: it stores the same row again, and its weights are
        kept."""
        first = self.seen - 1 if self.cached else 0
        if self.cache is not None:
            self.cache.truncate(first)
        capture = self.options.capture
        forward(self.loaded, *self.batch.feed(first, self.seen), self.cache, capture)
        return AttentionSample(
            step=step.step,
            sequence=0,
            layer=capture.layer,
            query_head=capture.query_head,
            first_query=self.seen - len(capture.weights),
            weights=tuple(tuple(round(w, 5) for w in row) for row in capture.weights.tolist()),
        )


def new_cache(loaded: Loaded, policy: str, batch: int, padded_len: int) -> KVCache:
    """Room for the rows of `batch` sequences, kept as `policy` (a key of STORES) says."""
    return KVCache(
        loaded.spec.layers,
        batch=batch,
        num_positions=padded_len,
        dtype=DTYPES[loaded.dtype],
        device=loaded.device,
        store=STORES[policy],
        hf_layers=loaded.compatibility.hf_layers,
        own_attention=loaded.compatibility.own_attention,
    )


def forward(
    loaded: Loaded,
    ids: torch.Tensor,  # [B, T]
    positions: torch.Tensor,  # [B, T]
    mask: torch.Tensor | None,  # 0 or 1, [B, S]
    cache: KVCache | None,
    capture: Capture | None = None,
) -> torch.Tensor:
    """Logits `[B, vocab]` of the last position."""
    batch, num_new = ids.shape
    given = {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": mask,
        "cache": cache,
        "use_cache": cache is not None,
        "logits_to_keep": 1,
    }
    told = {"reads": None if cache is None else cache.reads, "capture": capture}
    backend = loaded.backend
    with backend.decode(batch, **told) if num_new == 1 else backend.prefill(**told):
        return call(loaded.model, loaded.compatibility.arguments, given)[:, -1]
