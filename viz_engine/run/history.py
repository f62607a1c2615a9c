"""Which rows of one sequence a cache holds, from what its steps append, take back and evict.

`seen` is the end of the kept history: rows are appended there, a rollback of rejected drafts moves
it back, an eviction leaves it. What is evicted is kept as ranges, so that memory grows with the
number of gaps, never with positions. It knows nothing of records or other sequences.

Try it: tests/run/test_history.py compares it with a set of positions.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

Range = tuple[int, int]  # half-open


class Ranges:
    """Positions as sorted ranges that neither overlap nor touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def meets(self, start: int, stop: int) -> bool:
        """Whether a position of `[start, stop)` is among them."""
        at = bisect_right(self.stops, start)  # the first range that ends after `start`
        return at < len(self.starts) and self.starts[at] < stop

    def add(self, start: int, stop: int) -> None:
        """Take `[start, stop)` in, which meets none of them; neighbours become one."""
        first = bisect_left(self.stops, start)  # of those that touch or follow
        last = bisect_right(self.starts, stop)
        if first < last:
            start = min(start, self.starts[first])
            stop = max(stop, self.stops[last - 1])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]


def rollback_start(appended: Range, dropped: Sequence[Range]) -> int | None:
    """Where rejected drafts begin: of the range that ends where `appended` does and begins above
    its start. None without one."""
    first, stop = appended
    return next((start for start, end in dropped if end == stop and start > first), None)


@dataclass(slots=True)
class History:
    """The rows of one sequence."""

    seen: int = 0  # end of the kept history
    num_rows: int = 0  # held now
    evicted: Ranges = field(default_factory=Ranges)

    def problem(self, appended: Range, dropped: Sequence[Range]) -> str | None:
        """What is wrong with a step of this sequence, in words; None where it follows."""
        first, stop = appended
        if first != self.seen or stop < first:
            return f"rows {first}-{stop} do not continue"
        if any(not 0 <= start < end <= stop for start, end in dropped):
            return "rows dropped that are not there"
        rejected = rollback_start(appended, dropped)
        seen = stop if rejected is None else rejected
        last_end = 0
        for start, end in sorted(dropped):
            if start < last_end:
                return f"rows {start}-{end} are dropped twice"
            last_end = end
            if start == rejected:
                continue
            if end > seen - 1:
                return "the newest row is evicted"
            if self.evicted.meets(start, end):
                return f"rows {start}-{end} were evicted before"
        return None

    def take(self, appended: Range, dropped: Sequence[Range]) -> bool:
        """Take a step in which `problem` finds nothing; whether rows were evicted."""
        rejected = rollback_start(appended, dropped)
        evictions = [part for part in dropped if part[0] != rejected]
        self.num_rows += appended[1] - appended[0] - sum(end - start for start, end in dropped)
        self.seen = appended[1] if rejected is None else rejected
        for start, end in evictions:
            self.evicted.add(start, end)
        return bool(evictions)
