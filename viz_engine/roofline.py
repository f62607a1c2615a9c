"""The roofline of a machine: its two ceilings, where a step stands under them, what it should take.

A step that computes `flops` and moves `bytes` takes at least `max(flops / rate, bytes / bandwidth)`
(Williams, Waterman, Patterson, "Roofline", CACM 2009). The ceilings are measured by `ceilings.py`
in the engine process and kept in the user's cache folder; here they are read, without torch.

Try it: `python -m viz_engine ceilings`
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from viz_engine import metrics
from viz_engine.events import RunLog, RunStarted
from viz_engine.model_files import cache_folder

FILE = "ceilings.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The best of several tries of several kernels, and how far the tries lay apart."""

    per_s: float  # bytes or FLOPs a second: the best try
    spread: float  # (best - median) / best of the winning kernel's tries
    num: int  # tries of the winning kernel
    kernel: str  # which one won


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What one device of one machine can do at most, as measured."""

    machine: str
    device: str
    num_threads: int | None
    measured_at: str  # ISO 8601, UTC
    buffer_bytes: int  # what the read kernels went through: larger than the caches
    bandwidth: Ceiling
    kernels: Mapping[str, float]  # best bytes a second of each read kernel and of the copy
    flops: Mapping[str, Ceiling]  # by dtype

    def roof(self, dtype: str, *, widened: bool) -> str | None:
        """The number format whose rate is the ceiling of a run in `dtype`: its own or, where the
        engine `widened` products and those are faster, float32. float32 too where the own format
        was not measured; None where neither was."""
        names = (dtype, "float32") if widened or dtype not in self.flops else (dtype,)
        known = [name for name in names if name in self.flops]
        return max(known, key=lambda name: self.flops[name].per_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasheet:
    """What the maker promises: dense, without sparsity."""

    bandwidth_per_s: float
    flops_per_s: Mapping[str, float]
    source: str


# A part of the device's name -> datasheet; the first that fits. NVIDIA's own product pages.
DATASHEETS = {
    "H200": Datasheet(
        bandwidth_per_s=4.8e12,
        flops_per_s={"bfloat16": 989e12, "float16": 989e12, "float32": 67e12},
        source="nvidia.com/en-us/data-center/h200",
    ),
    "H100 PCIe": Datasheet(
        bandwidth_per_s=2.0e12,
        flops_per_s={"bfloat16": 756e12, "float16": 756e12, "float32": 51e12},
        source="nvidia.com/en-us/data-center/h100",
    ),
    "H100": Datasheet(
        bandwidth_per_s=3.35e12,
        flops_per_s={"bfloat16": 989e12, "float16": 989e12, "float32": 67e12},
        source="nvidia.com/en-us/data-center/h100",
    ),
    "A100": Datasheet(
        bandwidth_per_s=2.039e12,
        flops_per_s={"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12},
        source="nvidia.com/en-us/data-center/a100",
    ),
    "L4": Datasheet(
        bandwidth_per_s=0.3e12,
        flops_per_s={"bfloat16": 121e12, "float16": 121e12, "float32": 30.3e12},
        source="nvidia.com/en-us/data-center/l4",
    ),
    "T4": Datasheet(
        bandwidth_per_s=0.32e12,
        flops_per_s={"float16": 65e12, "float32": 8.1e12},
        source="nvidia.com/en-us/data-center/tesla-t4",
    ),
}


def datasheet(machine: str) -> Datasheet | None:
    """The maker's numbers, where this table knows the device. Of processors none: what a machine
    reaches depends on its memory modules, which it does not name."""
    words = machine.replace("-", " ").split()
    for name, sheet in DATASHEETS.items():
        if all(word in words for word in name.split()):
            return sheet
    return None


# ---- kept by machine ---------------------------------------------------------------------------


def _key(machine: str, device: str, num_threads: int | None) -> str:
    return f"{machine} | {device} | {num_threads}"


def to_dict(ceilings: Ceilings) -> dict[str, object]:
    """Plain JSON types."""
    return dataclasses.asdict(ceilings)


def from_dict(data: Mapping[str, object]) -> Ceilings:
    """The inverse of `to_dict`. Raises ValueError, KeyError or TypeError on anything else."""
    fields = {field.name: data[field.name] for field in dataclasses.fields(Ceilings)}
    fields["bandwidth"] = Ceiling(**fields["bandwidth"])
    fields["flops"] = {name: Ceiling(**one) for name, one in fields["flops"].items()}
    found = Ceilings(**fields)
    rates = [found.bandwidth, *found.flops.values()]
    if not all(isinstance(one.per_s, float | int) and one.per_s > 0 for one in rates):
        raise ValueError("a ceiling is a positive number")
    return found


def save(ceilings: Ceilings, folder: Path | None = None) -> None:
    """Keep them, in place of older ones of the same device and threads. Atomic."""
    path = (folder or cache_folder()) / FILE
    kept = _read(path)
    kept[_key(ceilings.machine, ceilings.device, ceilings.num_threads)] = to_dict(ceilings)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{FILE}.{os.getpid()}")
    draft.write_text(json.dumps({"schema": SCHEMA, "ceilings": kept}, indent=1), "utf-8")
    draft.replace(path)


def load(machine: str, device: str, folder: Path | None = None) -> Ceilings | None:
    """The last ones kept of a device, whatever its number of threads; None where there are none."""
    found = []
    for data in _read((folder or cache_folder()) / FILE).values():
        try:
            one = from_dict(data)
        except (ValueError, KeyError, TypeError, AttributeError):  # by hand, or another version
            continue
        if (one.machine, one.device) == (machine, device):
            found.append(one)
    return max(found, key=lambda one: one.measured_at, default=None)


def _read(path: Path) -> dict[str, dict]:
    try:
        data = json.loads(path.read_text("utf-8"))
        return dict(data["ceilings"]) if data["schema"] == SCHEMA else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


# ---- the roof of a run ---------------------------------------------------------------------------


def roof_of(ceilings: Ceilings, started: RunStarted) -> str | None:
    """The number format whose rate a run stands under. Its kernels for a few rows are other ones
    than the products whose rate was measured, and can be faster than its own format's: where the
    run says that it widens products to float32, the best of both rates is the ceiling of all."""
    widened = any(part.name == "prefill_in_float32" and part.on for part in started.parts)
    return ceilings.roof(started.settings.dtype, widened=widened)


def rate_of(ceilings: Ceilings, started: RunStarted) -> float | None:
    """FLOPs a second that a run can reach at most."""
    roof = roof_of(ceilings, started)
    return None if roof is None else ceilings.flops[roof].per_s


# ---- steps under the roof ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One step with what it cost. Seconds are measured, bytes counted, FLOPs predicted."""

    phase: str
    batch: int
    num_new: int  # columns fed
    columns: int  # attended, of one sequence
    seconds: float
    gap_s: float  # between the end of the step before (or acceptance) and its start
    linear_flops: int | None
    attention_flops: int | None
    weight_bytes: int | None
    kv_bytes: int | None  # read and written
    grew: bool  # memory for rows was reserved in it or right before it

    @property
    def flops(self) -> int | None:
        return None if self.linear_flops is None else self.linear_flops + self.attention_flops

    @property
    def num_bytes(self) -> int | None:
        """None as soon as a part is not known: a sum of parts would be too small."""
        if self.weight_bytes is None or self.kv_bytes is None:
            return None
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte."""
        return self.flops / self.num_bytes if self.flops and self.num_bytes else None


def step_points(log: RunLog) -> list[StepPoint]:
    """Each step of a run. What a source does not tell is None."""
    points, columns, reserved = [], 0, None
    last_ns = log.started.accepted_ns if log.started else 0
    for step in log.steps:
        prefill = step.phase == "prefill"
        now = max(step.context_len) if prefill else columns + 1
        try:
            predicted, _ = metrics.predicted_step(log.started, step, columns)
            flops = predicted.linear_flops, predicted.attention_flops
        except (KeyError, ValueError, ArithmeticError):  # a type or dtype without a formula
            flops = None, None
        kv = (step.kv_bytes_read, step.kv_bytes_written)
        points.append(
            StepPoint(
                phase=step.phase,
                batch=log.started.settings.batch,
                num_new=now - columns if log.started.settings.cache != "none" else now,
                columns=now,
                seconds=step.duration_ns / 1e9,
                gap_s=(step.start_ns - last_ns) / 1e9,
                linear_flops=flops[0],
                attention_flops=flops[1],
                weight_bytes=step.weight_bytes_read,
                kv_bytes=None if None in kv else sum(kv),
                grew=step.kv_reserved_bytes is not None and step.kv_reserved_bytes != reserved,
            )
        )
        columns, reserved, last_ns = now, step.kv_reserved_bytes, step.end_ns
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The least time that a step can take under the ceilings, predicted."""

    compute_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.memory_s)


def predict(
    ceilings: Ceilings, rate: float | None, *, flops: float | None, num_bytes: float | None
) -> Predicted | None:
    """`flops / rate` and `bytes / bandwidth`; None where one of them has no basis."""
    if rate is None or flops is None or num_bytes is None:
        return None
    return Predicted(compute_s=flops / rate, memory_s=num_bytes / ceilings.bandwidth.per_s)


def mfu(rate: float | None, flops: float | None, seconds: float) -> float | None:
    """Model FLOPs utilisation: FLOPs a second over the rate (PaLM, 2022)."""
    return flops / seconds / rate if flops is not None and rate and seconds > 0 else None


def mbu(ceilings: Ceilings, num_bytes: float | None, seconds: float) -> float | None:
    """Model bandwidth utilisation: bytes a second over the bandwidth (Databricks, 2023)."""
    if num_bytes is None or seconds <= 0:
        return None
    return num_bytes / seconds / ceilings.bandwidth.per_s
