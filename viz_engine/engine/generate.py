"""The run itself: prefill in pieces, decode, the no-cache baseline. A generator of records.

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
from contextlib import nullcontext

import torch
import transformers

from viz_engine.engine import load
from viz_engine.engine.cache import norms
from viz_engine.engine.cache.cache import STORES, KVCache
from viz_engine.engine.compatibility import call, first_line
from viz_engine.engine.decode import Decoder
from viz_engine.engine.kernels import linear
from viz_engine.engine.kernels.attention import AttentionLook, compiled, in_float32
from viz_engine.engine.load import DTYPES, Loaded
from viz_engine.model.tokenizer import TextStream, clean
from viz_engine.run import machine
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


def generate(
    loaded: Loaded,
    settings: RunSettings,
    *,
    run_id: str,
    queued_ns: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], int] = time.perf_counter_ns,
    on_logits: OnLogits | None = None,
    forced_tokens: Sequence[Sequence[int]] | None = None,
    eager: bool = False,
    samples: str = "each",
    look: AttentionLook | None = None,
) -> Iterator[Event]:
    """The records of one run, each stamped when its step is over and then given.

    Raises UserError before the first record where the run cannot be (`checks.check`); after it,
    never: what goes wrong is said by the last record. `cancelled` is asked before every step.
    `on_logits` is called with the step and the logits `[B, vocab]` of each step that gives
    tokens. `forced_tokens` (one list a sequence) are taken in place of the model's choice; a
    sequence whose list is used up ends. `eager`: every step in Python, as a look at single layers
    needs it. `samples`: the rows' magnitudes after `each` step, all of them after the `last`, or
    `none`. With `look` each decode step is made a second time, in Python and untimed, for its
    attention weights (one sequence only).
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
    run = _Run(loaded, settings, prompts, clock, on_logits, forced_tokens, eager)
    run.samples, run.look = samples, look
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
        parts=(*loaded.parts, *run.decoder.parts(), pieces(loaded, settings)),
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
        chunk_len=settings.chunk_len if loaded.probed.pieces else 0,
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


def available_bytes(device: str) -> int:
    """Memory that this process may hold on `device` in all: what is free and what it has."""
    if device.startswith("cuda"):
        held = torch.cuda.memory_reserved(torch.device(device))
    else:
        held = machine.process_bytes()
    return load.free_bytes(device) + held


def explain(error: BaseException) -> Message:
    """What an exception in mid-run means, in words."""
    if load.is_out_of_memory(error):
        return Message(key="error.out_of_memory")
    return Message(key="error.engine", params={"reason": first_line(error)})


def check_cache(loaded: Loaded, settings: RunSettings) -> None:
    """Raises UserError where a cache is asked of a model that takes none, or not this one."""
    if settings.cache == "none":
        return
    probed = loaded.probed
    if not probed.cached:
        raise UserError("error.cache_none_only", model_type=loaded.spec.model_type)
    unfolded = any(layer.kind == "latent" for layer in loaded.spec.layers)  # by the model's code
    if not STORES[settings.cache].hands_tensors and (unfolded or not probed.own_attention):
        params = {"cache": settings.cache, "model_type": loaded.spec.model_type}
        raise UserError("error.cache_attention", **params)


def pieces(loaded: Loaded, settings: RunSettings) -> EnginePart:
    """How the prompt is read, for RunStarted. Without a cache there is nothing to go on from."""
    if settings.chunk_len and settings.cache != "none":
        numbers = {"chunk_len": settings.chunk_len}
        reason = Message(key="part.pieces", params=numbers)
        return EnginePart(name="pieces", on=True, reason=reason, numbers=numbers)
    reason = loaded.probed.pieces_reason or Message(key="part.one_piece")
    return EnginePart(name="pieces", on=False, reason=reason)


def versions() -> dict[str, str]:
    """What the numbers of a run depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


class _Run:
    """The state of one run: its columns, its rows, and how far each sequence is."""

    def __init__(
        self,
        loaded: Loaded,
        settings: RunSettings,
        prompts: list[list[int]],
        clock: Callable[[], int],
        on_logits: OnLogits | None,
        forced_tokens: Sequence[Sequence[int]] | None,
        eager: bool,
    ) -> None:
        self.loaded = loaded
        self.settings = settings
        self.clock = clock
        self.on_logits = on_logits
        self.forced = forced_tokens
        self.batch = settings.batch
        self.cached = settings.cache != "none"
        self.prompt_columns = max(len(ids) for ids in prompts)
        self.pads = [self.prompt_columns - len(ids) for ids in prompts]
        self._lay_out(prompts)
        self.columns = 0  # attended so far
        self.num_steps = 0
        self.own_len = [0] * self.batch  # own tokens attended, pads and later ones not counted
        self.num_written = [0] * self.batch
        self.reasons: list[str | None] = [None] * self.batch  # why a sequence has ended
        self.streams = [TextStream(loaded.tokenizer) for _ in prompts]
        self.generators = [sequence_generator(settings.seed, b) for b in range(self.batch)]
        self.cache: KVCache | None = None
        self.decoder = Decoder(
            loaded,
            lambda *step: forward(loaded, *step),
            batch=self.batch,
            masked=self.mask is not None,
            policy=settings.cache,
            eager=eager,
            clock=clock,
        )
        self.was_cancelled = False
        self.samples = "each"
        self.look: AttentionLook | None = None
        self.telemetry_ns = clock()
        read_sensors(loaded.device)  # shares are since the reading before

    def _lay_out(self, prompts: list[list[int]]) -> None:
        """All columns of the run: ids, positions and, where there are pads, the mask `[B, C]`."""
        shape = (self.batch, self.prompt_columns + self.settings.new_tokens)
        device = self.loaded.device
        ids = torch.full(shape, self.loaded.pad_token_id, dtype=torch.long)
        own = torch.ones(shape, dtype=torch.bool)
        for b, prompt in enumerate(prompts):
            ids[b, self.pads[b] : self.prompt_columns] = torch.tensor(prompt)
            own[b, : self.pads[b]] = False
        self.ids = ids.to(device)
        self.positions = (own.cumsum(dim=1) - 1).clamp(min=0).to(device)
        # Numbers, as generate gives them: some models calculate with the mask.
        self.mask = own.long().to(device) if any(self.pads) else None

    def warm_up(self) -> None:
        """One piece and one token, discarded: first calls of a shape are slow. Once a shape. Then
        the decoder is made ready on the same rows."""
        piece = min(self.settings.chunk_len or self.prompt_columns, self.prompt_columns)
        policy = self.settings.cache
        shape = (policy, self.batch, piece)
        if shape in self.loaded.warmed and self.decoder.is_ready:
            return
        cache = self._new_cache(piece) if self.cached else None
        for first, stop in ((0, piece), (piece, piece + 1))[: 1 if cache is None else 2]:
            if cache is not None:
                cache.reserve(stop)
            forward(self.loaded, *self._feed(first, stop), cache)
        self.decoder.make_ready(self._new_cache)
        stop_timer(start_timer(self.loaded.device))
        self.loaded.warmed.add(shape)

    def _new_cache(self, num_columns: int) -> KVCache:
        return new_cache(self.loaded, self.settings.cache, self.batch, num_columns)

    def _feed(
        self, first: int, stop: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Ids and positions `[B, stop - first]` and the mask `[B, stop]` of a forward."""
        columns = slice(first, stop)
        mask = None if self.mask is None else self.mask[:, :stop]
        return self.ids[:, columns], self.positions[:, columns], mask

    def steps(self, cancelled: Callable[[], bool]) -> Iterator[Event]:
        """Prefill and decode until every sequence has ended or `cancelled` says so."""
        last = self.prompt_columns
        chunk = self.settings.chunk_len if self.cached else 0
        if self.cached:
            self.cache = self._new_cache(last)
        for stop in [*range(chunk, last, chunk), last] if chunk else [last]:
            if self._stops(cancelled):
                return
            yield from self._step("prefill", stop)
        while None in self.reasons:
            if self._stops(cancelled):
                return
            yield from self._step("decode", self.columns + 1)

    def finished(self, error: Message | None) -> RunFinished:
        """The last record."""
        if error is not None:
            rest = "error"
        else:
            rest = "cancelled" if self.was_cancelled else "length"
        reasons = tuple(reason or rest for reason in self.reasons)
        whole = "stop" if set(reasons) == {"stop"} else rest
        return RunFinished(
            end_ns=self.clock(), finish_reason=whole, sequence_reasons=reasons, error=error
        )

    def _stops(self, cancelled: Callable[[], bool]) -> bool:
        self.was_cancelled = cancelled()
        return self.was_cancelled

    def _step(self, phase: str, stop: int) -> Iterator[Event]:
        """One forward of the columns up to `stop`, timed, then its records."""
        first = self.columns if self.cached else 0
        counts = self._row_counts()
        start_ns = self.clock()
        timer = start_timer(self.loaded.device)
        if self.cache is not None:
            self.cache.reserve(stop)
        fed = self._feed(first, stop)
        if self.cached and phase == "decode":
            logits = self.decoder.step(*fed, self.cache)
        else:
            logits = forward(self.loaded, *fed, self.cache)
        if self.cache is not None:
            self.cache.settle()
        tokens = self._choose(logits) if stop >= self.prompt_columns else [None] * self.batch
        device_ns = stop_timer(timer)
        end_ns = self.clock()
        read, written = (
            now - before for now, before in zip(self._row_counts(), counts, strict=True)
        )
        if self.on_logits is not None and stop >= self.prompt_columns:
            self.on_logits(self.num_steps, logits)
        step = StepFinished(
            step=self.num_steps,
            phase=phase,
            start_ns=start_ns,
            end_ns=end_ns,
            device_ns=device_ns,
            **self._per_sequence(first, stop, tokens),
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
        self.columns = stop
        self.num_steps += 1
        yield step
        yield from self._look(step, first)

    def _row_counts(self) -> tuple[int, int]:
        """Bytes of K, V and states read and written so far."""
        cache = self.cache
        return (0, 0) if cache is None else (cache.bytes_read, cache.bytes_written)

    def _weight_bytes(self, num_tokens: int) -> int | None:
        once = self.loaded.weight_bytes_once
        return None if once is None else once + num_tokens * self.loaded.lookup_row_bytes

    def _choose(self, logits: torch.Tensor) -> list[int | None]:
        """The next token of each sequence that goes on; None for one that has ended."""
        if self.forced is not None:
            chosen = [
                None if reason else ids[n]
                for ids, n, reason in zip(self.forced, self.num_written, self.reasons, strict=True)
            ]
        elif self.settings.temperature == 0:
            chosen = logits.argmax(dim=-1).tolist()
        else:
            chosen = sample(logits, self.settings.temperature, self.settings.top_p, self.generators)
        return [None if end else id for id, end in zip(chosen, self.reasons, strict=True)]

    def _per_sequence(self, first: int, stop: int, tokens: list[int | None]) -> dict[str, object]:
        """The fields of StepFinished that have one entry a sequence; takes the tokens in."""
        goes_on = [reason is None for reason in self.reasons]
        before = self.own_len
        self.own_len = [
            max(stop - pad, 0) if on else own
            for pad, on, own in zip(self.pads, goes_on, before, strict=True)
        ]
        starts = before if self.cached else [0] * self.batch
        fed = [
            (now - start) * on for now, start, on in zip(self.own_len, starts, goes_on, strict=True)
        ]
        if self.cached:
            appended = tuple(zip(before, self.own_len, strict=True))
        else:
            appended = ((0, 0),) * self.batch
        texts = tuple(
            () if token is None else (self._accept(b, token, stop),)
            for b, token in enumerate(tokens)
        )
        return {
            "num_new_tokens": tuple(fed),
            "context_len": tuple(self.own_len),
            "appended": appended,
            "dropped": ((),) * self.batch,
            "token_ids": tuple(() if token is None else (token,) for token in tokens),
            "token_texts": texts,
        }

    def _accept(self, b: int, token: int, column: int) -> str:
        """Take a token: its text, whether its sequence ends, its place in the next column."""
        self.num_written[b] += 1
        if token in self.settings.stop_token_ids:
            self.reasons[b] = "stop"
        elif self.num_written[b] == self.settings.new_tokens:
            self.reasons[b] = "length"
        elif self.forced is not None and self.num_written[b] == len(self.forced[b]):
            self.reasons[b] = "length"
        if self.reasons[b] is None:
            self.ids[b, column] = token
        return self.streams[b].push(token, last=self.reasons[b] is not None)

    def _look(self, step: StepFinished, first: int) -> Iterator[Event]:
        """Outside the timed span: the magnitudes of the new rows, attention weights where they
        are asked for, and the sensors once a second."""
        if self.cache is not None and self.loaded.spec.num_columns:
            if self.samples == "each":
                yield from self._sample(step, first)
            elif self.samples == "last" and None not in self.reasons:
                yield from self._sample(step, 0)
        if self.look is not None and step.phase == "decode":
            yield self._attention(step)
        now = self.clock()
        if now - self.telemetry_ns >= TELEMETRY_NS:
            self.telemetry_ns = now
            reading = read_sensors(self.loaded.device)
            yield Telemetry(t_ns=now, **dataclasses.asdict(reading))

    def _sample(self, step: StepFinished, first: int) -> Iterator[KVSample]:
        """Magnitudes of each sequence's rows that stand in the columns from `first` on."""
        levels = norms.sample(self.cache, first, self.columns)  # [2, B, n, columns of the matrix]
        for b, (start, stop) in enumerate(step.appended):
            start = start if self.samples == "each" else 0
            if stop > start:
                at = self.pads[b] - first
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
        first = self.columns - 1 if self.cached else 0
        if self.cache is not None:
            self.cache.truncate(first)
        with self.look.looking():
            forward(self.loaded, *self._feed(first, self.columns), self.cache)
        weights = self.look.weights
        return AttentionSample(
            step=step.step,
            sequence=0,
            layer=self.look.layer,
            query_head=self.look.query_head,
            first_query=self.columns - len(weights),
            weights=tuple(tuple(round(w, 5) for w in row) for row in weights.tolist()),
        )


def new_cache(loaded: Loaded, policy: str, batch: int, num_columns: int) -> KVCache:
    """Room for the rows of `batch` sequences, kept as `policy` (a key of STORES) says."""
    return KVCache(
        loaded.spec.layers,
        batch=batch,
        num_columns=num_columns,
        dtype=DTYPES[loaded.dtype],
        device=loaded.device,
        store=STORES[policy],
        hf_layers=loaded.probed.theirs,
        own_attention=loaded.probed.own_attention,
    )


def forward(
    loaded: Loaded,
    ids: torch.Tensor,  # [B, T]
    positions: torch.Tensor,  # [B, T]
    mask: torch.Tensor | None,  # 0 or 1, [B, columns]
    cache: KVCache | None,
) -> torch.Tensor:
    """Logits `[B, vocab]` of the last column."""
    off = ids.numel() == 1 and loaded.onednn_off_for_one_token
    given = {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": mask,
        "cache": cache,
        "use_cache": cache is not None,
        "logits_to_keep": 1,
    }
    counting = nullcontext() if cache is None else cache.reads.counting()
    upcast = loaded.prefill_in_float32 and ids.shape[1] > 1
    own = compiled(loaded.compiled_prefill if ids.shape[1] > 1 else loaded.compiled_attention)
    with counting, linear.onednn(not off), in_float32(upcast), own:
        return call(loaded.model, loaded.probed.arguments, given)[:, -1]


def sequence_generator(seed: int, sequence: int) -> torch.Generator:
    """Random numbers of one sequence: the same for a seed, others for each sequence."""
    generator = torch.Generator()
    generator.manual_seed((seed * 1_000_003 + sequence) % 2**63)
    return generator


def sample(
    logits: torch.Tensor,  # [B, vocab]
    temperature: float,
    top_p: float,
    generators: Sequence[torch.Generator],
) -> list[int]:
    """A token a sequence: softmax at `temperature`, of the likeliest that sum to `top_p`."""
    logits = logits.float().cpu()
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperature
    shares, order = torch.softmax(scaled, dim=-1).sort(dim=-1, descending=True)
    shares = shares.masked_fill(shares.cumsum(dim=-1) - shares >= top_p, 0.0)
    shares[:, 0].clamp_(min=1e-9)  # the likeliest always stays
    places = [
        torch.multinomial(row, 1, generator=g) for row, g in zip(shares, generators, strict=True)
    ]
    return [int(ids[place]) for ids, place in zip(order, places, strict=True)]


# --- the device: small, so that a fake can stand in for CUDA ---------------------------------


def start_timer(device: str) -> tuple[object, object] | None:
    """A pair of CUDA events, the first one recorded; None on a processor."""
    if not device.startswith("cuda"):
        return None
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    return start, stop


def stop_timer(timer: tuple[object, object] | None) -> int | None:
    """Wait for the device; the nanoseconds between the events, None on a processor."""
    if timer is None:
        return None
    start, stop = timer
    stop.record()
    stop.synchronize()
    return int(start.elapsed_time(stop) * 1e6)


def device_memory_bytes(device: str) -> int | None:
    """What CUDA's allocator has handed out; None on a processor."""
    if not device.startswith("cuda"):
        return None
    return torch.cuda.memory_allocated(torch.device(device))


def read_sensors(device: str) -> machine.Reading:
    """NVML for a GPU, this process elsewhere."""
    if device.startswith("cuda"):
        return machine.read_gpu(int(device.partition(":")[2] or 0))
    return machine.read_process()
