"""How the decode steps of a run are made: in Python or traced, on how many threads, and why.

A trace is made at the first run of a batch size and used where a probe finds its logits, its rows
and its counts equal to those of the step in Python, to the bit. It knows nothing of prompts or
records.

Try it: tests/engine/test_decode.py
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from viz_engine.engine.cache.cache import KVCache
from viz_engine.engine.compatibility import first_line
from viz_engine.engine.kernels import linear
from viz_engine.engine.kernels.attention import compiled
from viz_engine.engine.load import Loaded
from viz_engine.engine.trace import Traced, trace
from viz_engine.run.events import EnginePart
from viz_engine.text import Message

MAX_TRACES = 4  # kept; one takes some 40 MB on the default model
PROBED = (300, 1, 40)  # columns before the step: where it is traced and timed, and others
NUM_TIMED = 3
TRACED_KINDS = ("full", "sliding")  # layers whose one query sees every row that it is handed

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
        policy: str,
        eager: bool,
        clock: Callable[[], int],
    ) -> None:
        """`forward` is the step in Python, `(ids, positions, mask, cache) -> logits`. `masked`:
        some sequences have pads. `policy`: how the cache keeps rows."""
        self.loaded = loaded
        self.forward = forward
        self.batch = batch
        self.cached = policy != "none"
        self.clock = clock
        self.timed = (policy, batch)  # as `threads` knows the step
        self.key = (policy, batch, masked)
        self.untraced = _untraced(loaded, masked=masked, cached=self.cached, eager=eager)
        loaded.threads.new_run()

    @property
    def is_ready(self) -> bool:
        """Whether `make_ready` has nothing to do."""
        timed = not self.cached or self.timed in self.loaded.threads.alone_ns
        return timed and (self.untraced is not None or self.key in self.loaded.traces)

    def make_ready(self, new_cache: Callable[[int], KVCache]) -> None:
        """Trace the step, and time it; on rows of its own that `new_cache` makes."""
        if self.is_ready:
            return
        traces = self.loaded.traces
        if self.untraced is None and self.key not in traces:
            while len(traces) >= MAX_TRACES:
                del traces[next(iter(traces))]
            traces[self.key] = self._try_trace(new_cache)
        if self.timed not in self.loaded.threads.alone_ns and not self.loaded.probed.theirs:
            trial = _Trial(self, new_cache, self._lengths()[0])
            step = lambda: trial.step(self._run)  # noqa: E731
            self.loaded.threads.measure(self.timed, step, self.clock)

    def step(
        self,
        ids: torch.Tensor,  # [B, 1]
        positions: torch.Tensor,  # [B, 1]
        mask: torch.Tensor | None,  # [B, columns]
        cache: KVCache,
    ) -> torch.Tensor:
        """Logits `[B, vocab]`."""
        with self.loaded.threads.step():
            return self._run(ids, positions, mask, cache)

    def took(self, duration_ns: int) -> None:
        """Learn from the step that is over."""
        self.loaded.threads.took(self.timed, duration_ns)

    def parts(self) -> Iterator[EnginePart]:
        """What is on, and why, for RunStarted."""
        key = self.untraced or ("part.trace_cold" if self.key not in self.loaded.traces else None)
        traced, reason = (None, Message(key=key)) if key else self.loaded.traces[self.key]
        yield EnginePart(name="traced_step", on=traced is not None, reason=reason)
        threads = self.loaded.threads
        timed = threads.timed_ns.get(self.timed)
        if threads.most == 1 or not self.cached or timed is None:
            yield EnginePart(name="threads", on=False, reason=Message(key="part.threads_fixed"))
            return
        numbers = {"num": threads.most, "all_ms": timed[0] / 1e6, "one_ms": timed[1] / 1e6}
        shown = {name: f"{numbers[name]:.1f}" for name in ("all_ms", "one_ms")}
        key = "part.threads_one" if threads.left else "part.threads"
        reason = Message(key=key, params=numbers | shown)
        yield EnginePart(name="threads", on=True, reason=reason, numbers=numbers)

    def _run(self, *step: object) -> torch.Tensor:
        traced = None
        if self.untraced is None:
            traced, _ = self.loaded.traces.get(self.key, (None, None))
        return self._play(traced, *step) if traced is not None else self.forward(*step)

    def _play(self, traced: Traced, *step: object) -> torch.Tensor:
        with self._chosen():
            return traced(*step)

    @contextmanager
    def _chosen(self) -> Iterator[None]:
        """The kernels that `engine.forward` takes for such a step."""
        off = self.batch == 1 and self.loaded.onednn_off_for_one_token
        with linear.onednn(not off), compiled(self.loaded.compiled_attention):
            yield

    def _lengths(self) -> list[int]:
        """Columns before a step, where it is probed: across each window's edge too."""
        windows = {layer.window for layer in self.loaded.spec.layers if layer.window}
        limit = self.loaded.spec.max_context_len
        lengths = [*PROBED, *(window + 1 for window in sorted(windows))]
        return [n for n in lengths if limit is None or n < limit] or [1]

    def _try_trace(self, new_cache: Callable[[int], KVCache]) -> tuple[Traced | None, Message]:
        """A trace that was found equal, or None, and why."""
        try:
            trials = [_Trial(self, new_cache, length) for length in self._lengths()]
            model, arguments = self.loaded.model, self.loaded.probed.arguments
            with self._chosen():
                traced = trials[0].step(lambda *step: trace(model, arguments, *step))
            play = lambda *step: self._play(traced, *step)  # noqa: E731
            if not all(trial.alike(self.forward, play) for trial in trials):
                return None, Message(key="part.trace_differs")
            eager_ms, traced_ms = trials[0].timed_ms((self.forward, play))
        except Exception as error:  # the tracer and a model can raise anything; Python goes on
            return None, Message(key="part.trace_failed", params={"reason": first_line(error)})
        params = {"eager_ms": f"{eager_ms:.1f}", "traced_ms": f"{traced_ms:.1f}"}
        return traced, Message(key="part.trace_on", params=params)


class _Trial:
    """One step behind `num_columns` rows of random numbers, as often as is asked for."""

    def __init__(
        self, decoder: Decoder, new_cache: Callable[[int], KVCache], num_columns: int
    ) -> None:
        _, batch, masked = decoder.key
        device = decoder.loaded.device
        self.num_columns = num_columns
        self.clock = decoder.clock
        self.cache = new_cache(num_columns + 1)
        rng = torch.Generator(device).manual_seed(7)
        for slab in self.cache.slabs.values():
            slab.fill(rng)
        # Other tokens at each length: what a trace froze of one (a choice of experts) is seen.
        ids = torch.arange(batch, device=device)[:, None] * 7 + 37 * num_columns
        self.ids = ids % decoder.loaded.spec.vocab_size
        self.positions = torch.full_like(self.ids, num_columns)
        self.mask = None
        if masked:
            self.mask = torch.ones(batch, num_columns + 1, dtype=torch.long, device=device)
            self.mask[1:, : (num_columns + 1) // 2] = 0

    def step(self, way: Callable[..., object]) -> object:
        """What `way` gives for the step."""
        self.cache.place(self.num_columns)
        return way(self.ids, self.positions, self.mask, self.cache)

    def alike(self, one: Forward, other: Forward) -> bool:
        """Whether two ways agree to the bit: logits, all rows, bytes read and written."""
        (tensors, counts), (others, other_counts) = map(self._seen, (one, other))
        return counts == other_counts and all(map(torch.equal, tensors, others))

    def timed_ms(self, ways: tuple[Forward, ...]) -> list[float]:
        """Milliseconds of a step each way, by turns: the fastest, which a busy moment moves
        least."""
        took: list[list[int]] = [[] for _ in ways]
        for _ in range(NUM_TIMED):
            for way, times in zip(ways, took, strict=True):
                start = self.clock()
                self.step(way)
                times.append(self.clock() - start)
        return [min(times) / 1e6 for times in took]

    def _seen(self, way: Forward) -> tuple[list[torch.Tensor], tuple[int, int]]:
        before = self.cache.bytes_read, self.cache.bytes_written
        tensors = [self.step(way)]
        tensors += [t.clone() for slab in self.cache.slabs.values() for t in slab.tensors]
        return tensors, (self.cache.bytes_read - before[0], self.cache.bytes_written - before[1])


def _untraced(loaded: Loaded, *, masked: bool, cached: bool, eager: bool) -> str | None:
    """Why the step is not even tried to be traced."""
    if not cached:
        return "part.trace_uncached"
    if loaded.device != "cpu":
        return "part.trace_device"
    if eager:
        return "part.trace_detail"
    kinds = {layer.kind for layer in loaded.spec.layers}
    plain = loaded.probed.own_attention and not loaded.probed.theirs
    if not plain or not kinds <= set(TRACED_KINDS) or (masked and "sliding" in kinds):
        return "part.trace_layers"
    return None
