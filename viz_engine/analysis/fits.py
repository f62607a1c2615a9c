"""Least squares with parts that cannot be negative: how much of a time is fixed, how much follows
the bytes, how much the FLOPs.

Times differ by orders of magnitude along a sweep, so residuals count as shares of the time; single
wild points are weighted down (Huber's weights). Plain numbers in, plain numbers out.

Try it: `python -c "from viz_engine.analysis import fits; \
print(fits.fit({'x': [1, 2, 3]}, [3, 5, 7]))"`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

ROUNDS = 4  # of re-weighting
HUBER = 1.345  # standard deviations within which a point counts in full


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """`value = fixed + sum of slope x feature`, no part negative."""

    fixed: float
    slopes: Mapping[str, float]
    r2: float | None  # share of the variance that is explained; None where nothing varies
    error: float  # median of |residual| / value
    num: int

    def at(self, **features: float) -> float:
        """The value of the line at these features; one that was not fitted counts nothing."""
        return self.fixed + sum(
            slope * features.get(name, 0.0) for name, slope in self.slopes.items()
        )


def fit(features: Mapping[str, Sequence[float]], values: Sequence[float]) -> Fit | None:
    """The fit with the smallest weighted residual, each slope and the fixed part at least 0. None
    with fewer values than parts."""
    names = list(features)
    y = np.asarray(values, dtype=float)
    if len(y) <= len(names) or not np.all(y > 0):
        return None
    columns = [np.ones_like(y), *(np.asarray(features[name], dtype=float) for name in names)]
    scales = np.array([max(np.abs(column).max(), 1e-300) for column in columns])
    x = np.stack(columns, axis=1) / scales
    weights = 1 / y
    share = np.ones_like(y)
    for _ in range(ROUNDS):
        parts = _nonnegative(x * (weights * share)[:, None], y * weights * share)
        residual = np.abs(x @ parts - y) * weights
        sigma = max(1.4826 * float(np.median(residual)), 1e-9)
        share = np.sqrt(np.minimum(1, HUBER * sigma / np.maximum(residual, 1e-12)))
    parts = parts / scales
    line = np.stack(columns, axis=1) @ parts
    variance = float(((y - y.mean()) ** 2).sum())
    return Fit(
        fixed=float(parts[0]),
        slopes=dict(zip(names, map(float, parts[1:]), strict=True)),
        r2=1 - float(((y - line) ** 2).sum()) / variance if variance > 0 else None,
        error=float(np.median(np.abs(line - y) / y)),
        num=len(y),
    )


def _nonnegative(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares with every part at least 0: the best of all subsets that come out so. Few
    columns, so all subsets can be tried."""
    best, least = np.zeros(x.shape[1]), float(y @ y)
    for size in range(1, x.shape[1] + 1):
        for chosen in combinations(range(x.shape[1]), size):
            part = x[:, chosen]
            found, _, rank, _ = np.linalg.lstsq(part, y, rcond=None)
            if rank < size or (found < 0).any():
                continue
            rest = y - part @ found
            if float(rest @ rest) < least:
                least = float(rest @ rest)
                best = np.zeros(x.shape[1])
                best[list(chosen)] = found
    return best


def varies(values: Sequence[float], by: float) -> bool:
    """Whether the largest is at least `by` times the smallest."""
    low, high = min(values, default=0), max(values, default=0)
    return high > 0 and high >= by * low


def alike(one: Sequence[float], other: Sequence[float], limit: float = 0.98) -> bool:
    """Whether two features rise and fall together so closely that no fit can tell them apart."""
    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return size > 0 and float(a @ b) / size > limit
