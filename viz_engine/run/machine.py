"""What the machine says of itself.

psutil for the processor and this process, NVML (nvidia-ml-py) for NVIDIA GPUs. A sensor that is
not there is None. It knows nothing of torch.

Try it: `python -c "from viz_engine.run import machine; print(machine.cpu_name())"`
"""

import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at the sensors. Shares are 0 to 1."""

    memory_used_bytes: int | None = None
    utilisation: float | None = None
    memory_bus_utilisation: float | None = None
    power_w: float | None = None


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
