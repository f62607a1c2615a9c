"""A decode step behind random rows, as often as is asked for: to compare ways to make it, and to
time them. It knows nothing of what the ways are.

Try it: tests/engine/test_decode.py
"""

from collections.abc import Callable

import torch

from viz_engine.engine.cache.cache import KVCache

NUM_TIMED = 3

# A decode step: ids and positions `[B, 1]`, the mask `[B, S]` or None, the cache -> logits.
Step = Callable[..., torch.Tensor]


class Trial:
    """One step behind `seen` positions."""

    def __init__(
        self, cache: KVCache, seen: int, *, batch: int, masked: bool, vocab_size: int
    ) -> None:
        """`cache`: of its own, with room for one position more. `masked`: with pads."""
        self.cache = cache
        self.seen = seen
        device = cache.device
        rng = torch.Generator(device).manual_seed(7)
        for slab in cache.slabs.values():
            slab.fill(rng)
        # Other tokens at each length: what a trace froze of one (a choice of experts) is seen.
        ids = torch.arange(batch, device=device)[:, None] * 7 + 37 * seen
        self.ids = ids % vocab_size
        self.positions = torch.full_like(self.ids, seen)
        self.mask = None
        if masked:
            self.mask = torch.ones(batch, seen + 1, dtype=torch.long, device=device)
            self.mask[1:, : (seen + 1) // 2] = 0

    def make(self, step: Callable[..., object]) -> object:
        """What `step` gives."""
        self.cache.place(self.seen)
        return step(self.ids, self.positions, self.mask, self.cache)

    def is_equal(self, one: Step, other: Step) -> bool:
        """Whether two ways agree to the bit: logits, all rows, bytes read and written."""
        (tensors, counts), (others, other_counts) = map(self._seen, (one, other))
        return counts == other_counts and all(map(torch.equal, tensors, others))

    def timed_ms(self, steps: tuple[Step, ...], clock: Callable[[], int]) -> list[float]:
        """Milliseconds of each way, by turns: the fastest, which a busy moment moves least."""
        times_ns: list[list[int]] = [[] for _ in steps]
        for _ in range(NUM_TIMED):
            for step, times in zip(steps, times_ns, strict=True):
                start = clock()
                self.make(step)
                times.append(clock() - start)
        return [min(times) / 1e6 for times in times_ns]

    def _seen(self, step: Step) -> tuple[list[torch.Tensor], tuple[int, int]]:
        before = self.cache.bytes_read, self.cache.bytes_written
        tensors = [self.make(step)]
        tensors += [t.clone() for slab in self.cache.slabs.values() for t in slab.tensors]
        return tensors, (self.cache.bytes_read - before[0], self.cache.bytes_written - before[1])
