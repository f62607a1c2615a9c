"""How the decode steps of a run are made: in Python or traced, on how many threads, and why.

Both are tried at the first run of a kind, on random rows. It knows nothing of prompts or records.

Try it: tests/engine/test_decode.py
"""

from collections.abc import Callable, Iterator

import torch

from viz_engine.engine.cache.cache import KVCache
from viz_engine.engine.load import Loaded
from viz_engine.engine.trace import Tracing
from viz_engine.engine.trial import Step, Trial
from viz_engine.run.events import EnginePart
from viz_engine.text import Message

TRIED = (300, 1, 40)  # positions before the step: where it is traced and timed, and others
TRACED_KINDS = ("full", "sliding")  # layers whose one query sees every row that it is handed


class Decoder:
    """The decode step of one run."""

    def __init__(
        self,
        loaded: Loaded,
        forward: Step,
        *,
        batch: int,
        masked: bool,
        policy: str,
        eager: bool,
        clock: Callable[[], int],
    ) -> None:
        """`forward` is the step in Python. `masked`: some sequences have pads. `policy`: how the
        cache keeps rows."""
        self.loaded = loaded
        self.forward = forward
        self.batch = batch
        self.masked = masked
        self.cached = policy != "none"
        self.clock = clock
        self.timed = (policy, batch)  # as `threads` knows the step
        self.tracing = Tracing(
            loaded.model,
            loaded.compatibility.arguments,
            loaded.backend,
            key=(policy, batch, masked),
            traces=loaded.traces,
            why_not=_why_not_traced(loaded, masked=masked, cached=self.cached, eager=eager),
        )
        loaded.threads.new_run()

    @property
    def is_ready(self) -> bool:
        """Whether `make_ready` has nothing to do."""
        timed = not self.cached or self.timed in self.loaded.threads.alone_ns
        return timed and self.tracing.is_ready

    def make_ready(self, new_cache: Callable[[int], KVCache]) -> None:
        """Trace the step, and time it; on rows of its own that `new_cache` makes."""
        if self.is_ready:
            return
        if not self.tracing.is_ready:
            trials = lambda: [self._trial(new_cache, length) for length in self._lengths()]  # noqa: E731
            self.tracing.make_ready(trials, self.forward, self.clock)
        threads = self.loaded.threads
        if self.timed not in threads.alone_ns and not self.loaded.compatibility.hf_layers:
            trial = self._trial(new_cache, self._lengths()[0])
            step = lambda: trial.make(self._step())  # noqa: E731
            threads.measure(self.timed, step, self.clock)

    def step(
        self,
        ids: torch.Tensor,  # [B, 1]
        positions: torch.Tensor,  # [B, 1]
        mask: torch.Tensor | None,  # [B, S]
        cache: KVCache,
    ) -> torch.Tensor:
        """Logits `[B, vocab]`."""
        with self.loaded.threads.step():
            return self._step()(ids, positions, mask, cache)

    def took(self, duration_ns: int) -> None:
        """Learn from the step that is over."""
        self.loaded.threads.took(self.timed, duration_ns)

    def parts(self) -> Iterator[EnginePart]:
        """What is on, and why, for RunStarted."""
        yield self.tracing.part()
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

    def _step(self) -> Step:
        return self.tracing.step() or self.forward

    def _trial(self, new_cache: Callable[[int], KVCache], seen: int) -> Trial:
        vocab_size = self.loaded.spec.vocab_size
        like = {"batch": self.batch, "masked": self.masked, "vocab_size": vocab_size}
        return Trial(new_cache(seen + 1), seen, **like)

    def _lengths(self) -> list[int]:
        """Positions before a step, where it is tried: across each window's edge too."""
        windows = {layer.window for layer in self.loaded.spec.layers if layer.window}
        limit = self.loaded.spec.max_context_len
        lengths = [*TRIED, *(window + 1 for window in sorted(windows))]
        return [n for n in lengths if limit is None or n < limit] or [1]


def _why_not_traced(loaded: Loaded, *, masked: bool, cached: bool, eager: bool) -> str | None:
    """Why the step is not even tried to be traced."""
    if not cached:
        return "part.trace_uncached"
    if loaded.device != "cpu":
        return "part.trace_device"
    if eager:
        return "part.trace_detail"
    kinds = {layer.kind for layer in loaded.spec.layers}
    plain = loaded.compatibility.own_attention and not loaded.compatibility.hf_layers
    if not plain or not kinds <= set(TRACED_KINDS) or (masked and "sliding" in kinds):
        return "part.trace_layers"
    return None
