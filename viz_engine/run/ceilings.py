"""What this machine reaches at most: measured once, kept in the user's cache folder.

A ceiling is a rate with the kernel that reached it and its spread. Measuring is the engine's
(engine/ceilings.py); where a step stands under them is analysis/roofline.py.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from viz_engine.paths import cache_folder

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
