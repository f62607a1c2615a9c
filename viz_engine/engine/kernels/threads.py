"""How many threads a decode step takes: all, or one while other programs want the cores.

A step waits some two hundred times for its slowest thread. Where another program has a core, a
step on all cores takes two to fifty times as long as on one; where it is quiet, all are faster.
So the steps that are over say what the next one does. It knows no torch: who builds it says how
to set the number.

Try it: tests/engine/kernels/test_threads.py plays it through.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from statistics import median

SLOW = 1.5  # times the duration on one thread: more than that is not this program's doing
NUM_SLOW = 2  # such steps in a row; a single one can be anything
BETTER = 0.8  # of the slow step's duration: what one thread must reach to be worth it
FIRST_HOLD, LONGEST_HOLD = 64, 512  # steps on one thread before all are tried again
NUM_TIMED = 3


class Threads:
    """Knows how long steps take on one thread, by kind (batch size and such); nothing is switched
    before it does."""

    def __init__(self, most: int, use: Callable[[int], object]) -> None:
        self.most = most
        self.use = use
        self.alone_ns: dict[Hashable, float] = {}  # kind -> a step on one thread
        self.timed_ns: dict[Hashable, tuple[float, float]] = {}  # -> with all, with one
        self.left = 0  # steps that one thread still takes
        self._hold = FIRST_HOLD
        self._num_slow = 0
        self._trying = False  # all threads, after a time with one
        self._slow_ns = 0
        self._held_ns: list[int] = []

    def measure(
        self, kind: Hashable, step: Callable[[], object], clock: Callable[[], int]
    ) -> tuple[float, float]:
        """Time a step with all threads and with one, by turns; nanoseconds of both (medians)."""
        took: dict[int, list[int]] = {self.most: [], 1: []}
        for _ in range(NUM_TIMED):
            for num, times in took.items():
                with self._using(num):
                    start = clock()
                    step()
                    times.append(clock() - start)
        every, alone = median(took[self.most]), median(took[1])
        self.alone_ns[kind] = alone
        self.timed_ns[kind] = every, alone
        if every > SLOW * alone:
            self._hold_one(int(every))
        return every, alone

    def new_run(self) -> None:
        """Try all threads again, whatever the run before has met."""
        if self.left:
            self.left, self._trying = 0, True

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run one decode step with as many threads as it is due."""
        with self._using(1 if self.left else self.most):
            yield

    def took(self, kind: Hashable, duration_ns: int) -> None:
        """Learn from a step that is over."""
        alone = self.alone_ns.get(kind)
        if not alone or self.most == 1:
            return
        if self.left:
            self._took_alone(kind, duration_ns)
        elif duration_ns > SLOW * alone:
            self._num_slow += 1
            if self._trying or self._num_slow == NUM_SLOW:
                self._hold_one(duration_ns)
        else:
            self._num_slow = 0
            self._trying, self._hold = False, FIRST_HOLD

    def _hold_one(self, slow_ns: int) -> None:
        self._hold = min(2 * self._hold, LONGEST_HOLD) if self._trying else FIRST_HOLD
        self.left, self._slow_ns, self._held_ns = self._hold, slow_ns, []
        self._num_slow = 0

    def _took_alone(self, kind: Hashable, duration_ns: int) -> None:
        self._held_ns.append(duration_ns)
        self.left -= 1
        if len(self._held_ns) == NUM_SLOW and min(self._held_ns) > BETTER * self._slow_ns:
            self.left = 0  # one thread is no better: the step has grown, or every core is taken
        if not self.left:
            self.alone_ns[kind] = min(self._held_ns)  # longer contexts take longer
            self._trying = True

    @contextmanager
    def _using(self, num: int) -> Iterator[None]:
        if num == self.most:
            yield
            return
        self.use(num)
        try:
            yield
        finally:
            self.use(self.most)
