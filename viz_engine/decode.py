"""How the decode steps of a run are made: in Python or traced, on how many threads, and why.

A trace is made at the first run of a batch size and used where a probe finds its logits, its rows
and its counts equal to those of the step in Python, to the bit. It knows nothing of prompts or
records.

Try it: tests/test_decode.py
"""

from collections.abc import Callable, Iterator
from statistics import median

import torch

from viz_engine import linear
from viz_engine.cache import RowReads, Rows
from viz_engine.events import EnginePart
from viz_engine.models import Loaded, first_line
from viz_engine.text import Message
from viz_engine.trace import Traced, newest, rewind, trace

MAX_TRACES = 4  # kept; one takes some 40 MB on the default model
NUM_TIMED = 3

Fed = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]  # ids, positions, mask
Forward = Callable[..., torch.Tensor]


class Decoder:
    """The decode step of one run."""

    def __init__(
        self,
        loaded: Loaded,
        forward: Forward,
        *,
        batch: int,
        masked: bool,
        cached: bool,
        eager: bool,
        clock: Callable[[], int],
    ) -> None:
        """`forward` is the step in Python, `(ids, positions, mask, rows, reads) -> logits`."""
        self.loaded = loaded
        self.forward = forward
        self.batch = batch
        self.clock = clock
        self.key = (batch, masked)
        self.untraced = (
            "part.trace_uncached"
            if not cached
            else "part.trace_device"
            if loaded.device != "cpu"
            else "part.trace_detail"
            if eager
            else None
        )
        self.cached = cached
        loaded.threads.new_run()

    @property
    def is_ready(self) -> bool:
        """Whether `make_ready` has nothing to do."""
        timed = not self.cached or self.batch in self.loaded.threads.alone_ns
        return timed and (self.untraced is not None or self.key in self.loaded.traces)

    def make_ready(self, rows: Rows, num_columns: int, feed: Callable[[int], Fed]) -> None:
        """Trace the step and time it, on rows that hold `num_columns` and one more. `feed` gives
        what a step at a column is fed."""
        traces = self.loaded.traces
        if self.untraced is None and self.key not in traces:
            while len(traces) >= MAX_TRACES:
                del traces[next(iter(traces))]
            traces[self.key] = self._try_trace(rows, num_columns, feed)
        if self.cached and self.batch not in self.loaded.threads.alone_ns:

            def step() -> None:
                rewind(rows, num_columns)
                self._run(*feed(num_columns), rows, RowReads())

            self.loaded.threads.measure(self.batch, step, self.clock)

    def step(
        self,
        ids: torch.Tensor,  # [B, 1]
        positions: torch.Tensor,  # [B, 1]
        mask: torch.Tensor | None,  # bool [B, columns]
        rows: Rows,
        reads: RowReads,
    ) -> torch.Tensor:
        """Logits `[B, vocab]`."""
        with self.loaded.threads.step():
            return self._run(ids, positions, mask, rows, reads)

    def took(self, duration_ns: int) -> None:
        """Learn from the step that is over."""
        self.loaded.threads.took(self.batch, duration_ns)

    def parts(self) -> Iterator[EnginePart]:
        """What is on, and why, for RunStarted."""
        key = self.untraced or ("part.trace_cold" if self.key not in self.loaded.traces else None)
        traced, reason = (None, Message(key=key)) if key else self.loaded.traces[self.key]
        yield EnginePart(name="traced_step", on=traced is not None, reason=reason)
        threads = self.loaded.threads
        timed = threads.timed_ns.get(self.batch)
        if threads.most == 1 or not self.cached or timed is None:
            yield EnginePart(name="threads", on=False, reason=Message(key="part.threads_fixed"))
            return
        every, alone = (f"{ns / 1e6:.1f}" for ns in timed)
        params = {"num": threads.most, "all_ms": every, "one_ms": alone}
        reason = Message(key="part.threads", params=params)
        yield EnginePart(name="threads", on=True, reason=reason)

    def _run(self, *step: object) -> torch.Tensor:
        traced = None
        if self.untraced is None:
            traced, _ = self.loaded.traces.get(self.key, (None, None))
        return self._play(traced, *step) if traced is not None else self.forward(*step)

    def _play(self, traced: Traced, *step: object) -> torch.Tensor:
        off = self.batch == 1 and self.loaded.onednn_off_for_one_row
        with linear.onednn(not off):
            return traced(*step)

    def _try_trace(
        self, rows: Rows, num_columns: int, feed: Callable[[int], Fed]
    ) -> tuple[Traced | None, Message]:
        """A trace that was found equal, or None, and why."""
        try:
            rewind(rows, num_columns)
            off = self.batch == 1 and self.loaded.onednn_off_for_one_row
            with linear.onednn(not off):
                traced = trace(self.loaded.model, *feed(num_columns), rows)
            play = lambda *step: self._play(traced, *step)  # noqa: E731
            for at in sorted({1, num_columns // 2, num_columns} - {0}):
                if not _same(rows, at, feed, self.forward, play):
                    return None, Message(key="part.trace_differs")
            eager_ms, traced_ms = self._timed_ms(rows, num_columns, feed, (self.forward, play))
        except Exception as error:  # the tracer and a model can raise anything; Python goes on
            return None, Message(key="part.trace_failed", params={"reason": first_line(error)})
        params = {"eager_ms": f"{eager_ms:.1f}", "traced_ms": f"{traced_ms:.1f}"}
        return traced, Message(key="part.trace_on", params=params)

    def _timed_ms(
        self, rows: Rows, at: int, feed: Callable[[int], Fed], ways: tuple[Forward, ...]
    ) -> list[float]:
        """Milliseconds of a step each way, by turns (medians)."""
        took: list[list[int]] = [[] for _ in ways]
        for _ in range(NUM_TIMED):
            for way, times in zip(ways, took, strict=True):
                rewind(rows, at)
                start = self.clock()
                way(*feed(at), rows, RowReads())
                times.append(self.clock() - start)
        return [median(times) / 1e6 for times in took]


def _same(rows: Rows, at: int, feed: Callable[[int], Fed], one: Forward, other: Forward) -> bool:
    """Whether two ways to make the step at a column agree to the bit: logits, the row written,
    bytes read and written."""
    seen = []
    for way in (one, other):
        rewind(rows, at)
        reads, written = RowReads(), rows.bytes_written
        logits = way(*feed(at), rows, reads)
        seen.append(([logits, *newest(rows)], (reads.num_bytes, rows.bytes_written - written)))
    (tensors, counts), (others, other_counts) = seen
    # A sequence that is all pads yet has no numbers: both must have none.
    return counts == other_counts and all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(tensors, others, strict=True)
    )
