"""What the machine says of itself, and what vendors say of the accelerators that people use.

psutil for the processor and this process, NVML (nvidia-ml-py) for NVIDIA GPUs. A sensor that is
not there is None. The table of devices is assets/hardware.json: each figure names its source, and
a figure that could not be confirmed is left out. It knows nothing of torch.

Try it: `python -c "from viz_engine import hardware; print(hardware.device('NVIDIA H200 SXM'))"`
"""

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

TABLE = Path(__file__).resolve().parent.parent / "assets" / "hardware.json"
GB, GIB = 10**9, 2**30  # vendors count memory in the first, engines in the second
UNITS = {"GB": GB, "GiB": GIB, "MiB": 2**20, "GB/s": GB, "GiB/s": GIB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at the sensors. Shares are 0 to 1."""

    memory_used_bytes: int | None = None
    utilisation: float | None = None
    memory_bus_utilisation: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number as its source prints it. `checked`: page (read at the source), copies (at least two
    independent copies of the source agree), here (asked of this machine)."""

    value: float
    unit: str
    source: str
    checked: str

    @property
    def plain(self) -> float:
        """In bytes, bytes/s or FLOP/s."""
        return self.value * UNITS.get(self.unit, 10**12)

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator, or this machine. What no source gives is None or missing.

    `memory` is what the vendor sells, in its own unit; `reported` what nvidia-smi shows, which is
    what an engine can divide up: an "80 GB" H100 reports 81 559 MiB, 79.6 GiB, 85.5 GB. `tflops`
    are dense matrix rates with FP32 accumulation, by number format, never the sparse ones of the
    first line of a datasheet.
    """

    name: str
    kind: str  # gaming, workstation, unified, data_centre, tpu, here
    memory: Figure
    reported: Figure | None = None
    bandwidth: Figure | None = None
    tflops: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def capacity(self) -> Figure:
        """The memory to plan with. Without a reported size a vendor's GB counts as 10^9 bytes:
        that much is certain to be there."""
        return self.reported or self.memory

    @property
    def capacity_bytes(self) -> int:
        return int(self.capacity.plain)

    def flops_per_s(self, dtype: str) -> Figure | None:
        """The rate for products in `dtype`; bfloat16 and float16 stand in for one another, and an
        8-bit or 4-bit type that the device has no unit for is computed in 16 bits."""
        wanted = {"fp4": ("fp4", "fp8", "bf16", "fp16"), "fp8": ("fp8", "bf16", "fp16")}
        for name in wanted.get(dtype, ("bf16", "fp16")):
            if name in self.tflops:
                return self.tflops[name]
        return None


@cache
def devices() -> tuple[Device, ...]:
    """The table, in its order: gaming, workstation, unified memory, data centre, others."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))

    def figure(value: float, unit: str, source: str) -> Figure:
        found = table["sources"][source]
        return Figure(value=value, unit=unit, source=found["url"], checked=found["checked"])

    return tuple(
        Device(
            name=row["name"],
            kind=row["kind"],
            memory=figure(*row["memory"]),
            reported=figure(*row["reported"]) if "reported" in row else None,
            bandwidth=figure(*row["bandwidth"]),
            tflops={
                name: figure(value, "TFLOP/s", source)
                for name, (value, source) in row.get("tflops", {}).items()
            },
        )
        for row in table["devices"]
    )


def device(name: str) -> Device:
    """The device of that name in the table. Raises KeyError that names the closest ones."""
    for row in devices():
        if row.name.casefold() == name.casefold():
            return row
    near = [row.name for row in devices() if name.casefold() in row.name.casefold()]
    raise KeyError(f"no device {name!r}; {near or [row.name for row in devices()]}")


def this_machine() -> Device:
    """The memory of this machine, asked of the system; its rates are for the engine to measure."""
    size = Figure(value=memory_bytes() / GIB, unit="GiB", source=cpu_name(), checked="here")
    return Device(name=cpu_name(), kind="here", memory=size)


def share_cores() -> None:
    """Let torch's threads give way where other programs want the cores; call before torch loads.

    A thread that waits for another spins first. By default it spins so long that on two busy
    cores a decode step took 1 200 ms instead of 65; 10 000 turns cost nothing when it is quiet.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@cache
def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_flags() -> list[str]:
    """The instruction sets that the processor names, where Linux lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    named = (line for line in lines if line.lower().startswith(("flags", "features")))
    return next(named, "").partition(":")[2].split()


def memory_bytes() -> int:
    """RAM of this machine, or of the container's limit where that is lower."""
    total = psutil.virtual_memory().total
    limit = _cgroup_number("memory.max")
    return min(total, limit) if limit else total


def available_bytes() -> int:
    """RAM that can still be taken without swapping, within the container's limit."""
    free = psutil.virtual_memory().available
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    return min(free, max(limit - used, 0)) if limit and used else free


def _cgroup_number(name: str) -> int | None:
    try:
        return int(Path("/sys/fs/cgroup", name).read_text())
    except (OSError, ValueError):  # not Linux, not in a container, or "max"
        return None


@cache
def _process() -> psutil.Process:
    process = psutil.Process()
    process.cpu_percent()  # shares are since the call before: this one is the first
    return process


def process_bytes() -> int:
    """Resident memory of this process."""
    return _process().memory_info().rss


def peak_process_bytes() -> int:
    """The most resident memory that this process has had. Not getrusage's figure on Linux: a
    child's begins there with what its parent holds."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on a Mac, else KiB
        return peak if sys.platform == "darwin" else peak * 1024
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def read_process() -> Reading:
    """This process on the processor: resident memory, share of all cores since the reading
    before."""
    share = _process().cpu_percent() / 100 / (psutil.cpu_count() or 1)
    return Reading(memory_used_bytes=process_bytes(), utilisation=min(share, 1.0))


def read_gpu(index: int) -> Reading:
    """An NVIDIA GPU through NVML; each sensor that it lacks is None, all of them without a
    driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:  # no package, no driver, no such GPU: all mean no reading
        return Reading()

    def ask(read):
        try:
            return read()
        except pynvml.NVMLError:
            return None

    memory = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    rates = ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    power = ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    return Reading(
        memory_used_bytes=memory,
        utilisation=None if rates is None else rates.gpu / 100,
        memory_bus_utilisation=None if rates is None else rates.memory / 100,
        power_w=None if power is None else power / 1000,
    )
