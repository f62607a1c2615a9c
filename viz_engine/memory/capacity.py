"""How many requests and people a memory pool serves. Predictions only, on plain numbers.

A server reads prompts and writes tokens. Whether it can do both at once is the range: with no
overlap the time to read a prompt is nobody's time to write, with perfect overlap the slower of the
two decides. Within it Little's law turns requests a second into people.

Try it: `python -c "from viz_engine.memory import capacity; \
print(capacity.served(14, ttft_s=0.3, itl_s=0.02, output_len=500, think_s=30))"`
"""

from collections.abc import Callable
from dataclasses import dataclass

from viz_engine.memory.lengths import Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What visitors ask: how long their requests are, the pause before they ask again."""

    lengths: Lengths
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a pool that holds `sequences` requests at a time serves: (no overlap, perfect overlap)
    of reading prompts and writing tokens."""

    sequences: int
    requests_per_s: tuple[float, float]
    users: tuple[int, int]

    @property
    def duration_s(self) -> tuple[float, float]:
        """From asking to the last token, the machine full: Little's law, `R = N / X`."""
        return tuple(self.sequences / rate if rate else 0.0 for rate in self.requests_per_s)


def served(
    sequences: int,
    *,
    ttft_s: float,
    itl_s: float,
    output_len: float,
    think_s: float = 0.0,
    read_s: float | None = None,
) -> Served:
    """N requests at a time, each with a prompt that takes TTFT to read and n tokens to write at ITL
    a step: `X = 1 / (TTFT + (n - 1) ITL / N)` requests a second where reading and writing take
    turns, `X = min(1 / TTFT, N / ((n - 1) ITL))` where they overlap perfectly; short prompts then
    share a forward, of which one takes `read_s` in place of TTFT. By the interactive
    response time law `N = X (R + Z)` over all people, those who wait and those who think:
    `U = N + X Z`."""
    if not sequences:
        return Served(sequences=0, requests_per_s=(0.0, 0.0), users=(0, 0))
    writing = max(output_len - 1, 0) * itl_s / sequences  # of one request, shared with the others
    read = ttft_s if read_s is None else read_s
    rates = 1 / (ttft_s + writing), min(1 / read, 1 / writing if writing else float("inf"))
    users = tuple(int(sequences + rate * think_s + 1e-9) for rate in rates)
    return Served(sequences=sequences, requests_per_s=rates, users=users)


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


def duration(
    requests_per_s: float, *, ttft_s: float, itl_s: float, output_len: float, overlap: bool
) -> float:
    """From asking to the last token beside others of which `requests_per_s` arrive: without overlap
    their prompts take the share `X TTFT` of the time, and writing has the rest."""
    writing = max(output_len - 1, 0) * itl_s
    if overlap:
        return ttft_s + writing
    rest = 1 - requests_per_s * ttft_s
    return ttft_s + writing / rest if rest > 0 else float("inf")
