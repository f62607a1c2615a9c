"""The device: which one, in which dtype, and what it says of its time and its memory.

What is chosen comes with its reason as a Message. CUDA's part is small, so that a fake can stand in
for it. It knows nothing of models or runs.

Try it: `python -c "from viz_engine.engine import device; print(device.choose_device('auto'))"`
"""

import contextlib
import json
import os

import torch

from viz_engine.engine.kernels import build
from viz_engine.paths import cache_folder
from viz_engine.run import machine
from viz_engine.run.events import Hardware
from viz_engine.text import Message, UserError

SINGLE_GAIN = 1.5  # by how much a row in float32 must be faster to be worth twice the memory
ROW_TIMES = "row_times.json"  # in the cache folder
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def devices() -> list[str]:
    """The devices that a run can name."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def choose_device(wanted: str) -> tuple[str, Message]:
    """The device and the reason. Raises UserError on one that is not here."""
    known = devices()
    if wanted == "auto":
        if len(known) > 1:
            name = torch.cuda.get_device_name(0)
            return known[1], Message(key="reason.device_cuda", params={"name": name})
        return "cpu", Message(key="reason.device_cpu")
    chosen = "cuda:0" if wanted == "cuda" else wanted
    if chosen not in known:
        raise UserError("error.device", device=wanted[:40], known=", ".join(known))
    return chosen, Message(key="reason.device_chosen", params={"device": chosen})


def choose_dtype(wanted: str, device: str) -> tuple[str, Message]:
    """The element type and the reason. Raises UserError on one that this device cannot do."""
    on_cuda = device.startswith("cuda")
    known = ["float32", "bfloat16"] + ["float16"] * on_cuda
    if wanted != "auto":
        if wanted not in known:
            raise UserError("error.dtype", dtype=wanted[:40], device=device, known=", ".join(known))
        return wanted, Message(key="reason.dtype_chosen", params={"dtype": wanted})
    if on_cuda:
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bfloat16", Message(key="reason.dtype_cuda")
        return "float16", Message(key="reason.dtype_cuda_old")
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return "bfloat16", Message(key="reason.dtype_cpu")
    single, half = row_times()
    # Measured on one thread: with all of them memory is the limit, and bfloat16 asks half of it.
    chosen = "bfloat16" if half <= SINGLE_GAIN * single else "float32"
    measured = {"dtype": chosen, "float32": single / 1e6, "bfloat16": half / 1e6}
    return chosen, Message(
        key="reason.dtype_measured",
        params={k: v if isinstance(v, str) else f"{v:.2f}" for k, v in measured.items()},
    )


def row_times() -> tuple[int, int]:
    """`one_row_ns` in float32 and in bfloat16, measured once for a machine and kept: an engine
    that starts again, perhaps while others are busy, must not choose another type."""
    path, key = (
        cache_folder() / ROW_TIMES,
        f"{machine.cpu_name()}, {torch.__version__}, own kernels: {build.is_loaded()}",
    )
    kept: dict[str, object] = {}
    try:
        kept = dict(json.loads(path.read_text("utf-8")))
        single, half = kept[key]
        return int(single), int(half)
    except (OSError, ValueError, KeyError, TypeError):
        times = one_row_ns(4096, torch.float32), one_row_ns(4096, torch.bfloat16)
    with contextlib.suppress(OSError):  # nowhere to keep them: measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{ROW_TIMES}.{os.getpid()}")
        draft.write_text(json.dumps(kept | {key: times}), "utf-8")
        draft.replace(path)
    return times


def one_row_ns(width: int, dtype: torch.dtype) -> int:
    """Nanoseconds of one row against a square matrix, as in decode: the fastest of five, of the
    own kernel where there is one."""
    weight, row = torch.ones(width, width, dtype=dtype), torch.ones(1, width, dtype=dtype)
    work = {"torch": [lambda: torch.nn.functional.linear(row, weight)]}
    if build.takes_weight(weight):
        work["own"] = [lambda: build.linear(row, weight, None)]
    return int(min(build.fastest_ms(work).values()) * 1e6)


def free_bytes(device: str) -> int:
    """Memory of the device that can still be taken."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(torch.device(device))[0]
    return machine.available_bytes()


def describe_device(device: str) -> Hardware:
    """The device as it names itself."""
    if device.startswith("cuda"):
        about = torch.cuda.get_device_properties(torch.device(device))
        return Hardware(
            device=device, name=about.name, num_threads=None, memory_bytes=about.total_memory
        )
    return Hardware(
        device=device,
        name=machine.cpu_name(),
        num_threads=torch.get_num_threads(),
        memory_bytes=machine.memory_bytes(),
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out: torch says it in several ways."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


def available_bytes(device: str) -> int:
    """Memory that this process may hold on `device` in all: what is free and what it has."""
    if device.startswith("cuda"):
        held = torch.cuda.memory_reserved(torch.device(device))
    else:
        held = machine.process_bytes()
    return free_bytes(device) + held


# --- time, memory, sensors ---


def start_timer(device: str) -> tuple[object, object] | None:
    """A pair of CUDA events, the first one recorded; None on a processor."""
    if not device.startswith("cuda"):
        return None
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    return start, stop


def stop_timer(timer: tuple[object, object] | None) -> int | None:
    """Wait for the device; the nanoseconds between the events, None on a processor."""
    if timer is None:
        return None
    start, stop = timer
    stop.record()
    stop.synchronize()
    return int(start.elapsed_time(stop) * 1e6)


def device_memory_bytes(device: str) -> int | None:
    """What CUDA's allocator has handed out; None on a processor."""
    if not device.startswith("cuda"):
        return None
    return torch.cuda.memory_allocated(torch.device(device))


def read_sensors(device: str) -> machine.Reading:
    """NVML for a GPU, this process elsewhere."""
    if device.startswith("cuda"):
        return machine.read_gpu(int(device.partition(":")[2] or 0))
    return machine.read_process()
