"""What a run really took in memory, beside what was predicted, and what is left over.

Counted are the cache's live and reserved bytes (the engine asked its tensors), measured is the
memory of its process or GPU. It knows nothing of pages.

Try it: `python -c "from viz_engine.analysis import memory_account; help(memory_account.account)"`
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from viz_engine.run import cost
from viz_engine.run.events import Telemetry
from viz_engine.run.log import RunLog

SIZE = re.compile(r"([\d.\u202f]+) (B|KiB|MiB|GiB)")
UNIT = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The memory of process or GPU at one moment, and the cache that was live then."""

    seconds: float  # since the run was accepted
    used_bytes: int  # measured
    live_bytes: int  # counted, of the step before


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One run's memory. None where the run has no such reading or no formula stands for it."""

    predicted_live_bytes: int | None
    live_bytes: int | None
    predicted_reserved_bytes: int | None
    reserved_bytes: int | None
    weight_bytes: int  # predicted: parameters x bytes
    packed_bytes: int  # reported by the engine: a second copy of the weights; 0: none
    points: tuple[Point, ...]

    @property
    def used_bytes(self) -> int | None:
        """Measured at the last reading."""
        return self.points[-1].used_bytes if self.points else None

    @property
    def grown_bytes(self) -> int | None:
        """Measured: from the first reading to the last."""
        enough = len(self.points) > 1
        return self.points[-1].used_bytes - self.points[0].used_bytes if enough else None

    @property
    def grown_live_bytes(self) -> int | None:
        """Counted: what the cache grew between the same two readings."""
        enough = len(self.points) > 1
        return self.points[-1].live_bytes - self.points[0].live_bytes if enough else None

    @property
    def rest_bytes(self) -> int | None:
        """What is in use and neither weights, nor their second copy, nor live cache: programs and
        libraries, activations, memory that the allocator keeps."""
        if self.used_bytes is None:
            return None
        known = self.weight_bytes + self.packed_bytes + self.points[-1].live_bytes
        return self.used_bytes - known


def account(log: RunLog, predicted: Sequence[Sequence[int | None]]) -> Account:
    """The memory of a run. `predicted` has for each step what `live.frame` sends, of which the
    third and fourth number are live and reserved bytes. Raises ValueError for a dtype without a
    size."""
    steps, started = log.steps, log.started
    dtype = started.settings.dtype
    if dtype not in cost.ELEMENT_SIZE:
        raise ValueError(f"no size for {dtype}")
    last, expected = (steps[-1], predicted[-1]) if steps else (None, None)
    return Account(
        predicted_live_bytes=expected[2] if expected else None,
        live_bytes=last.kv_live_bytes if last else None,
        predicted_reserved_bytes=expected[3] if expected else None,
        reserved_bytes=last.kv_reserved_bytes if last else None,
        weight_bytes=cost.weight_bytes(started.spec, dtype),
        packed_bytes=_packed_bytes(log),
        points=_points(log),
    )


def _points(log: RunLog) -> tuple[Point, ...]:
    """Readings of the device where its steps carry them, else of the process."""
    start, found = log.started.accepted_ns, []
    if any(step.device_memory_bytes is not None for step in log.steps):
        for step in log.steps:
            if step.device_memory_bytes is not None:
                at, used, live = step.end_ns, step.device_memory_bytes, step.kv_live_bytes
                found.append(Point(seconds=(at - start) / 1e9, used_bytes=used, live_bytes=live))
        return tuple(found)
    live = 0
    for event in log:
        if isinstance(event, Telemetry):
            if event.memory_used_bytes is not None:
                seconds, used = (event.t_ns - start) / 1e9, event.memory_used_bytes
                found.append(Point(seconds=seconds, used_bytes=used, live_bytes=live))
        else:
            live = getattr(event, "kv_live_bytes", live)
    return tuple(found)


def _packed_bytes(log: RunLog) -> int:
    """The second copy of the weights that the engine said it made."""
    for part in log.started.parts:
        if part.name == "packed_weights" and part.on:
            if found := SIZE.fullmatch(str(part.reason.params.get("size", ""))):
                return round(float(found[1].replace("\u202f", "")) * UNIT[found[2]])
    return 0
