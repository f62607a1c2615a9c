"""This machine's ceilings, measured in seconds: how fast it reads memory, how fast it multiplies.

Bandwidth is the best of several kernels that read a buffer larger than the caches, and of a copy;
the FLOP rate is that of square matrix products, by dtype. A ceiling is the best try, so that a busy
moment does not lower it; its spread is kept beside it. It knows no model.

Try it: `python -m viz_engine ceilings`
"""

import datetime
import time
from collections.abc import Callable
from statistics import median

import torch

from viz_engine.engine.device import DTYPES
from viz_engine.engine.kernels import build, linear
from viz_engine.run import machine as run_machine
from viz_engine.run.ceilings import Ceiling, Ceilings

BUFFER_BYTES = 256 * 2**20
SIZES = (256, 1024, 2048)  # of the square products
MOST_S = 0.5  # for one kernel
MIN_TRIES = 4


def measure(
    device: str,
    machine: str,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    sizes: tuple[int, ...] = SIZES,
    most_s: float = MOST_S,
) -> Ceilings:
    """The ceilings of `device`, on as many threads as torch uses. About five seconds on two
    cores. Takes three times `buffer_bytes` of memory, less where there is less."""
    free = run_machine.available_bytes()
    while not device.startswith("cuda") and 4 * buffer_bytes > free and buffer_bytes > 2**20:
        buffer_bytes //= 2
    reads = {
        name: _tries(work, device, most_s)
        for name, work in _read_kernels(device, buffer_bytes).items()
    }
    moved = {name: buffer_bytes * (2 if name == "copy" else 1) for name in reads}
    best = max(reads, key=lambda name: moved[name] / min(reads[name]))
    return Ceilings(
        machine=machine,
        device=device,
        num_threads=None if device.startswith("cuda") else torch.get_num_threads(),
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        buffer_bytes=buffer_bytes,
        bandwidth=_ceiling(moved[best], reads[best], best),
        kernels={name: moved[name] / min(took) for name, took in reads.items()},
        flops={name: _rate(name, device, sizes, most_s) for name in _dtypes(device)},
    )


def _read_kernels(device: str, num_bytes: int) -> dict[str, Callable[[], object]]:
    """Ways to go through `num_bytes`; the copy writes as many again."""
    one = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    rows = one.view(-1, 1024)
    vector = torch.ones(1024, dtype=torch.float32, device=device)
    other = torch.empty_like(one)
    whole = one.view(torch.int64)
    return {
        "sum": one.sum,
        "dot": lambda: torch.dot(one, one),
        "max": one.max,
        "sum_int64": whole.sum,
        "matvec": lambda: torch.mv(rows, vector),
        "copy": lambda: other.copy_(one),
    }


def _dtypes(device: str) -> list[str]:
    """float16 only on CUDA: this engine takes it nowhere else."""
    return [name for name in DTYPES if name != "float16" or device.startswith("cuda")]


def _rate(dtype: str, device: str, sizes: tuple[int, ...], most_s: float) -> Ceiling:
    """The best of some products (torch's as written, and with rows by rows, as a linear layer does;
    this program's own) at several sizes; a size is left out where the one before says that it would
    take too long."""
    found: list[Ceiling] = []
    build.load()
    for size in sizes:
        if found and 2 * size**3 / max(one.per_s for one in found) > most_s / MIN_TRIES:
            break
        left = torch.ones(size, size, dtype=DTYPES[dtype], device=device)
        products = {
            "mm": lambda left=left: torch.mm(left, left),
            "linear": lambda left=left: torch.nn.functional.linear(left, left),
        }
        if build.takes_weight(left):
            products["own"] = lambda left=left: build.linear(left, left, None)
        for name, work in products.items():
            with linear.onednn(True):
                took = _tries(work, device, most_s / 2)
            found.append(_ceiling(2 * size**3, took, f"{name} {size}"))
    return max(found, key=lambda ceiling: ceiling.per_s)


def _tries(work: Callable[[], object], device: str, most_s: float) -> list[float]:
    """Seconds of each try, a first one (pages, kernels) dropped."""
    _timed(work, device)
    began = time.perf_counter()
    took: list[float] = []
    while len(took) < MIN_TRIES or time.perf_counter() - began < most_s:
        took.append(_timed(work, device))
    return took


def _timed(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize(torch.device(device))
    return time.perf_counter() - start


def _ceiling(amount: float, took: list[float], kernel: str) -> Ceiling:
    best = min(took)
    spread = 1 - best / median(took)
    return Ceiling(per_s=amount / best, spread=spread, num=len(took), kernel=kernel)
