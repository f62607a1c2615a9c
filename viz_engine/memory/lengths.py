"""How long requests are: two averages, a spread around them, or a visitor's own pairs.

A pair is (tokens read, tokens written) of one request. What is worked out of pairs are means, and
representatives of the prompts, since the time to read one is no straight line. It knows nothing of
models.

Try it: `python -c "from viz_engine.memory import lengths; print(lengths.spread(2048, 512, 4.0))"`
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from viz_engine.numbers import grouped
from viz_engine.text import UserError

MAX_BYTES = 2 * 1024**2
MAX_PAIRS = 100_000
MAX_TOKENS = 10**7  # of a request, either way
NUM_REPRESENTATIVES = 32  # prompts whose time stands for all
NUM_MADE = 128  # pairs of a made spread
STRIDE = 53  # coprime to it: the two lengths of a made pair have nothing to do with one another
Z90 = NormalDist().inv_cdf(0.9)
READ, WRITTEN = "prompt_tokens", "new_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The lengths of requests, in tokens. All means are over requests."""

    num: int  # pairs behind it; 1: two averages
    prompt_mean: float
    output_mean: float
    held_mean: float  # rows of a request in flight, on average over the time that it writes
    prompts: tuple[int, ...]  # representatives, each of as many requests
    longest: int  # of a request: read and written
    prompt_quantiles: tuple[int, int, int]  # p50, p90, most
    output_quantiles: tuple[int, int, int]


def averages(prompt_len: int, output_len: int) -> Lengths:
    """All requests alike."""
    return of_pairs([(prompt_len, output_len)])


def spread(prompt_len: int, output_len: int, times: float) -> Lengths:
    """Log-normal lengths around two averages: the 90th percentile is `times` the median. The two
    lengths of a request are independent."""
    sigma = math.log(times) / Z90
    steps = [NormalDist().inv_cdf((i + 0.5) / NUM_MADE) for i in range(NUM_MADE)]
    prompts, outputs = (_around(mean, steps, sigma) for mean in (prompt_len, output_len))
    return of_pairs([(prompts[i], outputs[i * STRIDE % NUM_MADE]) for i in range(NUM_MADE)])


def _around(mean: int, steps: Sequence[float], sigma: float) -> list[int]:
    """Quantiles of a log-normal length whose mean is `mean`."""
    made = [math.exp(sigma * z) for z in steps]
    scale = mean / fmean(made)
    return [max(1, round(one * scale)) for one in made]


def of_pairs(pairs: Sequence[tuple[int, int]]) -> Lengths:
    """What follows from the pairs of all requests."""
    prompts, outputs = (sorted(pair[i] for pair in pairs) for i in (0, 1))
    written = sum(outputs)
    # A request is in flight for about as many steps as it writes tokens, and holds its prompt and
    # on average half of its answer: long answers count for longer.
    held = sum(n * (p + n / 2) for p, n in pairs) / written
    num = min(len(pairs), NUM_REPRESENTATIVES)
    return Lengths(
        num=len(pairs),
        prompt_mean=sum(prompts) / len(pairs),
        output_mean=written / len(pairs),
        held_mean=held,
        prompts=tuple(prompts[int((i + 0.5) / num * len(pairs))] for i in range(num)),
        longest=max(p + n for p, n in pairs),
        prompt_quantiles=_quantiles(prompts),
        output_quantiles=_quantiles(outputs),
    )


def _quantiles(values: Sequence[int]) -> tuple[int, int, int]:
    """p50, p90 and the most: of a value each that there is."""
    last = len(values) - 1
    return values[last // 2], values[math.ceil(0.9 * last)], values[-1]


def read(data: bytes) -> Lengths:
    """The pairs of a CSV: two whole numbers a line, tokens read and tokens written; a first line
    may name the columns. Raises UserError with the line that is wrong."""
    if len(data) > MAX_BYTES:
        raise UserError("lengths.too_large", most=MAX_BYTES // 1024**2)
    columns, pairs = (0, 1), []
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        cells = _cells(line, number)
        if not any(cells):
            continue
        if number == 1 and not any(cell.isdecimal() for cell in cells):
            columns = _columns(cells)
            continue
        pairs.append(_pair(cells, columns, number))
        if len(pairs) > MAX_PAIRS:
            raise UserError("lengths.too_many", most=grouped(MAX_PAIRS))
    if not pairs:
        raise UserError("lengths.empty")
    return of_pairs(pairs)


def _cells(line: str, number: int) -> list[str]:
    """A line's cells. Raises UserError where it is no line of a CSV."""
    try:
        row = next(csv.reader([line]), [])
    except csv.Error:
        raise UserError("lengths.line", line=number, text=line[:60]) from None
    return [cell.strip() for cell in row]


def _columns(names: Sequence[str]) -> tuple[int, int]:
    if READ in names and WRITTEN in names:
        return names.index(READ), names.index(WRITTEN)
    if len(names) == 2:
        return 0, 1
    raise UserError("lengths.columns", read=READ, written=WRITTEN)


def _pair(cells: Sequence[str], columns: tuple[int, int], number: int) -> tuple[int, int]:
    try:
        read_len, written = (cells[i] for i in columns)
        if not (read_len.isascii() and written.isascii()):
            raise ValueError
        pair = int(read_len[:12]), int(written[:12])
    except (IndexError, ValueError):
        raise UserError("lengths.line", line=number, text=",".join(cells)[:60]) from None
    if not all(1 <= one <= MAX_TOKENS for one in pair):
        raise UserError("lengths.range", line=number, most=grouped(MAX_TOKENS))
    return pair
