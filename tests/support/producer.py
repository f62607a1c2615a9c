"""A test producer: run logs of any length from the real records, with bytes from `cost.py`.

It stands in for the engine where the picture is tested, not the model: tokens are words of a short
list, magnitudes are noise with a shape of its own for each column, times are what is asked for.
"""

import random
from collections.abc import Iterator

from tests.support.specs import spec
from viz_engine.model.spec import ModelSpec
from viz_engine.run import cost
from viz_engine.run.events import (
    Event,
    Hardware,
    KVSample,
    RunFinished,
    RunSettings,
    RunStarted,
    StepFinished,
)
from viz_engine.run.log import RunLog

WORDS = (
    " the", " sky", " is", " blue", " because", " light", " of", " short", " waves", ",", " 天空",
    "\n", " <b>", " scatters", ".", " more", " 🙂", " than", " red", " one",
)  # fmt: skip
MS = 1_000_000


def started(
    prompt_lens: tuple[int, ...], new_tokens: int, cache: str, model: ModelSpec
) -> RunStarted:
    texts = tuple(
        tuple(WORDS[(i * 7 + b) % len(WORDS)] for i in range(n)) for b, n in enumerate(prompt_lens)
    )
    return RunStarted(
        run_id="test", started_at="2026-01-02T03:04:05+00:00", source="engine",
        settings=RunSettings(
            model="test-model", prompts=("test",), device="cpu", dtype="bfloat16", cache=cache,
            batch=len(prompt_lens), new_tokens=new_tokens,
        ),
        spec=model,
        hardware=Hardware(device="cpu", name="test machine", num_threads=2, memory_bytes=None),
        prompt_token_ids=tuple(tuple(range(n)) for n in prompt_lens), prompt_texts=texts,
        accepted_ns=1_000 * MS, queued_ns=900 * MS, versions={}, command="test", reasons=(),
        parts=(),
    )  # fmt: skip


class Magnitudes:
    """Bytes that look like K and V norms: a level for each column, noise, a dim first row."""

    def __init__(self, columns: int, seed: int = 0) -> None:
        self.columns = columns
        self.random = random.Random(seed)
        self.levels = [self.random.randrange(110, 190) for _ in range(columns)]
        noise = [max(-40, min(40, int(self.random.gauss(0, 12)))) for _ in range(8192)]
        self.bank = bytes(128 + n for n in noise)

    def rows(self, first: int, stop: int) -> bytes:
        out = bytearray()
        for row in range(first, stop):
            at = self.random.randrange(len(self.bank) - self.columns)
            noise = self.bank[at : at + self.columns]
            dim = 60 if row == 0 else 0
            out += bytes(
                min(255, max(1, level + n - 128 - dim))
                for level, n in zip(self.levels, noise, strict=True)
            )
        return bytes(out)


def events(
    prompt_lens: tuple[int, ...] = (12,),
    new_tokens: int = 8,
    *,
    cache: str = "full",
    piece: int = 256,
    piece_ms: int = 400,
    step_ms: int = 20,
    ended_at: dict[int, int] | None = None,
    finish: str | None = "length",
    model: ModelSpec | None = None,
    sampled: bool = True,
) -> Iterator[Event]:
    """The records of a run. `ended_at[b]` is the number of tokens after which a sequence ends."""
    model = model or spec()
    first = started(prompt_lens, new_tokens, cache, model)
    log = RunLog()
    noise = Magnitudes(model.num_columns)
    clock = first.accepted_ns + 3 * MS
    ended_at = ended_at or {}
    batch, longest = len(prompt_lens), max(prompt_lens)
    rows, given = [0] * batch, [0] * batch

    def step(phase: str, new: list[int], ms: int, gives: bool) -> list[Event]:
        nonlocal clock
        alive = [b for b in range(batch) if given[b] < ended_at.get(b, new_tokens)]
        tokens = tuple(
            (WORDS[(given[b] * 3 + b) % len(WORDS)],) if gives and b in alive else ()
            for b in range(batch)
        )
        kept = cache != "none"
        after = [rows[b] + new[b] for b in range(batch)]
        columns = max(longest - prompt_lens[b] + after[b] for b in range(batch) if new[b])
        record = {
            "step": len(log.steps), "phase": phase, "start_ns": clock,
            "end_ns": clock + ms * MS + len(log.steps) % 7 * 100_003, "device_ns": None,
            "num_new_tokens": tuple(new if kept else after),
            "context_len": tuple(after),
            "appended": tuple(
                (rows[b], after[b]) if kept else (0, 0) for b in range(batch)
            ),
            "dropped": ((),) * batch,
            "token_ids": tuple(tuple(7 for _ in texts) for texts in tokens), "token_texts": tokens,
            "device_memory_bytes": None,
            "num_columns": columns,
        }  # fmt: skip
        here = cost.step(
            model, first.settings.dtype, batch=batch, num_new=max(new) if kept else columns,
            num_columns=columns, prompt_columns=longest, cached=kept,
        )  # fmt: skip
        done = StepFinished(
            **record,
            kv_live_bytes=here.kv_live_bytes, kv_reserved_bytes=here.kv_reserved_bytes,
            weight_bytes_read=here.weight_bytes_read, kv_bytes_read=here.kv_bytes_read,
            kv_bytes_written=here.kv_bytes_written,
        )  # fmt: skip
        made: list[Event] = [done]
        for b in range(batch):
            if kept and sampled and new[b]:
                k, v = noise.rows(rows[b], after[b]), noise.rows(rows[b], after[b])
                sample = KVSample(
                    step=done.step, sequence=b, first=rows[b], stop=after[b], k=k, v=v
                )
                made.append(sample)
            rows[b] = after[b]
            given[b] += len(tokens[b])
        clock = done.end_ns + MS // 5
        log.append(done)
        return made

    log.append(first)
    yield first
    for at in range(0, longest, piece):
        stop = min(longest, at + piece)
        new = [
            max(0, stop - (longest - n)) - max(0, at - (longest - n)) for n in prompt_lens
        ]  # left-padded
        yield from step("prefill", new, piece_ms, gives=stop == longest)
    while any(given[b] < ended_at.get(b, new_tokens) for b in range(batch)):
        alive = [int(given[b] < ended_at.get(b, new_tokens)) for b in range(batch)]
        yield from step("decode", alive, step_ms, gives=True)
    if finish:
        reasons = tuple("stop" if b in ended_at else finish for b in range(batch))
        yield RunFinished(end_ns=clock, finish_reason=finish, sequence_reasons=reasons)


def log(*args: object, **kwargs: object) -> RunLog:
    """The same as a checked log."""
    return RunLog.of(events(*args, **kwargs))
