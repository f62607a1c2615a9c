"""How many people a memory pool serves: Little's law. Predictions only, on plain numbers.

Try it: `python -c "from viz_engine.memory import capacity; \
print(capacity.served(14, 20.0, think_s=30))"`
"""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What an average visitor asks: lengths in tokens, the pause before they ask again."""

    prompt_len: int
    output_len: int
    think_s: float = 0.0

    @property
    def peak_len(self) -> int:
        return self.prompt_len + self.output_len

    @property
    def mean_held_len(self) -> int:
        """Rows that a request holds on average while it is answered: its prompt and half of its
        answer, which grows evenly."""
        return self.prompt_len + math.ceil(self.output_len / 2)

    def duration_s(self, ttft_s: float, itl_s: float) -> float:
        """From asking to the last token: `TTFT + (tokens - 1) x ITL`."""
        return ttft_s + max(self.output_len - 1, 0) * itl_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a pool that holds `sequences` requests at a time serves."""

    sequences: int
    requests_per_s: float
    users: int


def served(sequences: int, duration_s: float, *, think_s: float = 0.0) -> Served:
    """Little's law, `N = X x (R + Z)`: with N requests in flight, each R seconds long, X = N / R
    requests leave a second; each of U users asks once every R + Z seconds, so U = X (R + Z)."""
    rate = sequences / duration_s if duration_s > 0 else 0.0
    return Served(
        sequences=sequences,
        requests_per_s=rate,
        users=int(rate * (duration_s + think_s) + 1e-9),
    )


def steady(
    requests_per_s: float, room: int, duration_s: Callable[[int], float]
) -> tuple[int, float] | None:
    """(requests in flight, their duration) when that many arrive a second: the fewest for which
    Little's law holds with the duration that they themselves cause, `L >= X R(L)`. `duration_s` of
    a number in flight never falls. None where even `room` of them, all that fit, are too slow."""
    low, high = 1, room
    if room < 1 or in_flight(requests_per_s, duration_s(room)) > room:
        return None
    while low < high:
        middle = (low + high) // 2
        if in_flight(requests_per_s, duration_s(middle)) <= middle:
            high = middle
        else:
            low = middle + 1
    return low, duration_s(low)


def in_flight(requests_per_s: float, duration_s: float) -> float:
    """Requests that are held at a time when that many arrive a second: Little's law, `L = X R`."""
    return requests_per_s * duration_s
