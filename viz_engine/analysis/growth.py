"""How the work of a run grows with its length, with a cache and without: predicted FLOPs.

Try it: `python -c "from viz_engine.analysis import growth; print(growth.lengths(8192))"`
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from viz_engine.model.spec import ModelSpec
from viz_engine.run import cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """FLOPs of writing `num_tokens` tokens in all after a prompt of one token: predicted."""

    num_tokens: int
    linear: int
    attention: int

    @property
    def flops(self) -> int:
        return self.linear + self.attention


def lengths(window: int | None) -> list[int]:
    """At least six lengths between 64 and the window, doubling."""
    most = min(window or 8192, 131072)
    found = [64]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    while len(found) < 6:  # a small window: halfway between neighbours
        at = max(range(len(found)), key=lambda i: found[i] / (found[i - 1] if i else 32))
        found.insert(at, (found[at] + (found[at - 1] if at else 32)) // 2)
    return found


def grown(spec: ModelSpec, lengths: Sequence[int], *, cached: bool) -> list[Growth]:
    """The FLOPs of the steps that feed 1 to n columns, for each n of `lengths`: the formulas of
    `cost.py` are linear in tokens and in pairs, so both are summed first. Raises ValueError for a
    type without a formula."""
    found = []
    for n in lengths:
        columns = n * (n + 1) // 2
        linear = cost.linear_flops(spec, num_tokens=n if cached else columns, num_logit_rows=n)
        linear += cost.unfold_flops(spec, columns - n) if cached else 0
        attention = sum(
            flops * (cost.num_pairs(n, window) if cached else n * (n + 1) * (2 * n + 1) // 6)
            for flops, window in cost.pair_flops(spec)
        )
        found.append(Growth(num_tokens=n, linear=linear, attention=attention))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """`a * n**p + b * n**(p + 1)`: the leading terms of `grown`, p = 2 without a cache, 1 with."""

    a: float
    b: float
    power: int

    @property
    def crossing(self) -> float:
        """Tokens from which on attention is the larger part."""
        return self.a / self.b


def law(spec: ModelSpec, *, cached: bool) -> Law:
    """With W weights in the layers' matrices, H in the output matrix, A = 4 x layers x query width:
    without a cache `sum of (2 W t + 2 H + A t^2)` leads with `W n^2 + (A / 3) n^3`; with one
    `sum of (2 (W + H) + A t)` with `2 (W + H) n + (A / 2) n^2`. Raises ValueError for a type
    without a formula, with windows, whose attention grows as the linear layers do, and with latent
    rows, whose linear layers grow as attention does."""
    if any(window for _, window in cost.pair_flops(spec)) or cost.unfold_flops(spec, 1):
        raise ValueError("no law of two terms for windows and latent rows")
    per_query = sum(flops for flops, _ in cost.pair_flops(spec))
    layers = cost.matmul_weights(spec)
    if cached:
        return Law(a=2 * (layers + cost.head_weights(spec)), b=per_query / 2, power=1)
    return Law(a=layers, b=per_query / 3, power=2)


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    log_x, log_y = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_x, mean_y = sum(log_x) / len(xs), sum(log_y) / len(ys)
    pairs = zip(log_x, log_y, strict=True)
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sum(
        (x - mean_x) ** 2 for x in log_x
    )


def lane_flops(spec: ModelSpec, dtype: str, prompt_len: int, new_tokens: int, cache: str) -> int:
    """FLOPs of a lane of a race: the prompt, then a step a token."""
    cached = cache != "none"
    total = 0
    for columns in range(prompt_len, prompt_len + new_tokens):
        num_new = 1 if cached and columns > prompt_len else columns
        total += cost.step(
            spec,
            dtype,
            batch=1,
            num_new=num_new,
            num_columns=columns,
            prompt_columns=prompt_len,
            cached=cached,
            chunk_len=0,
        ).flops
    return total
