"""The rows of a sequence: what is appended, taken back and evicted, against a set of positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viz_engine.run.history import History, Ranges

Step = tuple[tuple[int, int], list[tuple[int, int]]]


class Positions:
    """The same rules, position by position: the oracle."""

    def __init__(self, found: int) -> None:
        self.seen = found
        self.held = set(range(found))
        self.gone: set[int] = set()

    def follows(self, step: Step) -> bool:
        (first, stop), dropped = step
        if first != self.seen or stop < first:
            return False
        new = set(range(first, stop))
        rejected: set[int] = set()
        evicted: list[int] = []
        for start, end in dropped:
            if start < 0 or end <= start or end > stop:
                return False
            if end == stop and start > first and not rejected:
                rejected = set(range(start, end))
            else:
                evicted += range(start, end)
        kept = (self.held | new) - rejected
        newest = (min(rejected) if rejected else stop) - 1
        return len(set(evicted)) == len(evicted) and set(evicted) <= kept and newest not in evicted

    def take(self, step: Step) -> None:
        (first, stop), dropped = step
        rejected = [start for start, end in dropped if end == stop and start > first]
        self.held |= set(range(first, stop))
        for start, end in dropped:
            self.held -= set(range(start, end))
            if start not in rejected:
                self.gone |= set(range(start, end))
        self.seen = min(rejected, default=stop)


@st.composite
def steps(draw: st.DrawFn, seen: int) -> Step:
    """A step at or near `seen`, with ranges around it."""
    first = seen + draw(st.sampled_from((0, 0, 0, 0, 0, 0, 1, -1)))
    stop = first + draw(st.integers(-1, 5))
    ends = st.integers(-1, max(stop, 0) + 1)
    dropped = draw(st.lists(st.tuples(ends, ends), max_size=3))
    if draw(st.booleans()) and stop - 1 > first:
        dropped.append((draw(st.integers(first + 1, stop - 1)), stop))
    return (first, stop), dropped


@given(st.data(), st.integers(0, 6))
def test_what_follows_is_what_a_set_of_positions_allows(data: st.DataObject, found: int) -> None:
    history, oracle = History(seen=found, num_rows=found), Positions(found)
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(steps(oracle.seen))
        assert (history.problem(*step) is None) == oracle.follows(step), step
        if oracle.follows(step):
            before = set(oracle.gone)
            oracle.take(step)
            assert history.take(*step) == (oracle.gone != before)
        assert history.seen == oracle.seen and history.num_rows == len(oracle.held)
        for position in range(-1, oracle.seen + 3):
            assert history.evicted.meets(position, position + 1) == (position in oracle.gone)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=30))
def test_ranges_are_sorted_apart_and_hold_what_was_added(parts: list[tuple[int, int]]) -> None:
    ranges, held = Ranges(), set()
    for start, length in parts:
        new = set(range(start, start + length))
        assert ranges.meets(start, start + length) == bool(new & held)
        if not new & held:
            ranges.add(start, start + length)
            held |= new
        both = list(zip(ranges.starts, ranges.stops, strict=True))
        assert {i for a, b in both for i in range(a, b)} == held
        assert all(b < c for (_, b), (c, _) in zip(both, both[1:], strict=False))


def test_sinks_and_a_window_leave_one_gap_however_long_it_runs() -> None:
    history = History()
    history.take((0, 12), [])
    for stop in range(13, 3000):
        step = (stop - 1, stop), [(stop - 9, stop - 8)]
        assert history.problem(*step) is None
        assert history.take(*step)
    assert (history.evicted.starts, history.evicted.stops) == ([4], [2991])
    assert history.num_rows == 12 and history.seen == 2999


@pytest.mark.parametrize(
    ("appended", "dropped", "why"),
    [
        ((5, 6), [], "do not continue"),
        ((6, 5), [], "do not continue"),
        ((6, 7), [(6, 7)], "newest row"),
        ((6, 6), [(5, 6)], "newest row"),
        ((6, 10), [(8, 10), (7, 8)], "newest row"),
        ((6, 10), [(8, 10), (8, 9)], "dropped twice"),
        ((6, 10), [(3, 5), (4, 6)], "dropped twice"),
        ((6, 10), [(8, 10), (9, 10)], "dropped twice"),
        ((6, 7), [(2, 4)], "evicted before"),
        ((6, 7), [(0, 9)], "not there"),
        ((6, 7), [(3, 3)], "not there"),
    ],
)
def test_a_refusal_says_why(
    appended: tuple[int, int], dropped: list[tuple[int, int]], why: str
) -> None:
    history = History()
    history.take((0, 6), [(1, 3)])
    assert why in history.problem(appended, dropped)
    assert history.seen == 6 and history.num_rows == 4
