"""What a run really took in memory, beside what was predicted, and what is left over.

Counted are the cache's live and reserved bytes (the engine asked its tensors), measured is the
memory of its process or GPU. It knows nothing of pages.

Try it: `python -c "from viz_engine.analysis import memory_account; help(memory_account.account)"`
"""

from dataclasses import dataclass

from viz_engine.model.formats import DTYPES
from viz_engine.run import cost
from viz_engine.run.events import Telemetry
from viz_engine.run.log import RunLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The memory of process or GPU at one moment, and the cache that was live then."""

    seconds: float  # since the run was accepted
    used_bytes: int  # measured
    live_bytes: int | None  # counted, of the step before; None where a source does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One run's memory. None where the run has no such reading or no formula stands for it."""

    predicted_live_bytes: int | None
    live_bytes: int | None
    predicted_reserved_bytes: int | None
    reserved_bytes: int | None
    weight_bytes: int | None  # predicted: parameters x bytes
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
        ends = [self.points[at].live_bytes for at in (0, -1)] if len(self.points) > 1 else [None]
        return None if None in ends else ends[1] - ends[0]

    @property
    def rest_bytes(self) -> int | None:
        """What is in use and neither weights nor live cache: programs and libraries, activations,
        memory that the allocator keeps."""
        live = self.points[-1].live_bytes if self.points else None
        if None in (self.used_bytes, self.weight_bytes, live):
            return None
        return self.used_bytes - self.weight_bytes - live


def account(log: RunLog) -> Account:
    """The memory of a run. Raises ValueError for a dtype without a size."""
    steps, started = log.steps, log.started
    dtype = started.settings.dtype
    if dtype not in DTYPES:
        raise ValueError(f"no size for {dtype}")
    last, predicted = (steps[-1], log.step_cost(-1)) if steps else (None, None)
    return Account(
        predicted_live_bytes=predicted and predicted.kv_live_bytes,
        live_bytes=last.kv_live_bytes if last else None,
        predicted_reserved_bytes=predicted and predicted.kv_reserved_bytes,
        reserved_bytes=last.kv_reserved_bytes if last else None,
        weight_bytes=started.spec and cost.weight_bytes(started.spec, dtype),
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
