"""This program's custom kernels for matmul, attention and norms, where the machine has a C++
compiler.

`kernels.cpp` is compiled for this processor at the first load, once, and kept in the cache folder;
what it gives is compared with torch before it is used. Without a compiler torch's own kernels do
the same, slower. Whether a kernel wins here is measured by who uses it.

Try it: `python -m viz_engine.engine.kernels.build` compiles and says what came of it
"""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from filelock import FileLock

from viz_engine import paths
from viz_engine.run import machine
from viz_engine.text import Message

Progress = Callable[[Message, float | None], None]
Name = TypeVar("Name")

SOURCE = Path(__file__).with_name("kernels.cpp")
INCLUDED = ("simd.h", "gemm.h")
# GNU's: another has its own OpenMP, and would keep threads of its own beside torch's.
COMPILERS = ("g++", "c++")
# For this processor's own instructions, as x86 and as ARM call it.
FLAGS = ("-march=native", "-mcpu=native")
MOST_S = 300  # of compiling
BLOCK = 32  # `linear` takes widths that are multiples of it
WIDTH = 16  # `attend`, `levels` and `rms_norm` likewise
MOST_WIDTH = 320  # of a key
DTYPES = (torch.bfloat16, torch.float32)
NUM_ALIKE = 3  # calls of each that have to agree: two can meet the same busy moment
SPREAD = 1.2
FAR_BEHIND = 3.0
MOST_TURNS = 24
MOST_TIMED_S = 4.0
# Of this thread alone where there is a clock fine enough: the time in which other programs have
# the core is not in it.
FINE = time.get_clock_info("thread_time").resolution < 1e-6
CLOCK = time.thread_time_ns if FINE else time.perf_counter_ns
KEPT = 4  # compiled files: of other versions, or of other machines that share the folder

_state: dict[str, Message | None] = {}  # "why": None once loaded, else why not


def load(progress: Progress = lambda message, fraction: None) -> Message | None:
    """Compile what is not compiled yet, and load it: None, or why not. Tried once a process."""
    if "why" not in _state:
        _state["why"] = _load(progress)
    return _state["why"]


def is_loaded() -> bool:
    """Whether `linear` and `attend` can be called."""
    return _state.get("why", True) is None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`F.linear` of tokens `[..., K]`; bfloat16 or float32, the weight as it lies."""
    return torch.ops.second_token.linear(x, weight, bias)


def takes_weight(weight: torch.Tensor) -> bool:
    """Whether `linear` can multiply with it."""
    fits = weight.shape[1] % BLOCK == 0 and weight.is_contiguous() and not weight.is_cuda
    return is_loaded() and fits and weight.dtype in DTYPES


def attend(
    query: torch.Tensor,  # [B, Hq, T, D]
    key: torch.Tensor,  # [B, Hkv, S, D]
    value: torch.Tensor,  # [B, Hkv, S, Dv]
    mask: torch.Tensor | None,  # bool [B, 1, T, S]; None: each of the last T sees all before it
    scaling: float | None,
) -> torch.Tensor:
    """Attention `[B, T, Hq, Dv]`: each row read once for its query group, of several queries once
    for a few hundred of them."""
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    return torch.ops.second_token.attend(query, key, value, mask, scaling)


def takes_rows(
    key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, num_new: int = 1
) -> bool:
    """Whether `attend` can read them for `num_new` queries, or `levels` without a mask."""
    widths = key.shape[-1] % WIDTH == 0 and value.shape[-1] % WIDTH == 0
    widths = widths and key.shape[-1] <= MOST_WIDTH
    order = key.stride(-1) == 1 and value.stride(-1) == 1
    alike = key.dtype == value.dtype and key.dtype in DTYPES and not key.is_cuda
    seen = mask is None or mask.shape == (key.shape[0], 1, num_new, key.shape[-2])
    return is_loaded() and widths and order and alike and seen


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """bfloat16 rows `[..., width]` over the root of their mean square plus `eps`, rounded, times
    `weight`, rounded: as Llama's norm."""
    return torch.ops.second_token.rms_norm(x, weight, eps)


def takes_norm(weight: torch.Tensor) -> bool:
    """Whether `rms_norm` can multiply with it."""
    fits = weight.dim() == 1 and weight.numel() % WIDTH == 0 and weight.is_contiguous()
    return is_loaded() and fits and weight.dtype == torch.bfloat16 and not weight.is_cuda


def levels(keys: torch.Tensor, values: torch.Tensor, first: int, stop: int) -> torch.Tensor:
    """Norms of the rows `[first, stop)` of `[L, B, H, rows, D]`, as `cache/norms.py` gives them:
    uint8 `[2, B, stop - first, L * H]`. A level may differ by one from numpy's where the logarithm
    lies between two."""
    return torch.ops.second_token.levels(keys, values, first, stop)


def fastest_ms(
    work: Mapping[Name, Sequence[Callable[[], object]]],
    *,
    contest: Callable[[Name], object] = lambda name: None,
    clock: Callable[[], int] = CLOCK,
) -> dict[Name, float]:
    """Milliseconds of each one's calls: the fastest of each call, added up. On one thread: where
    other programs run, threads that wait for each other are all that is seen.

    By turns, so that a busy moment meets all, the first turn dropped; until every sum of the calls'
    third fastest lies within SPREAD of that of their fastest. Who is settled so, and FAR_BEHIND
    another of its contest that is, is left out. A model waits for this while it is loaded: after
    MOST_TURNS or MOST_TIMED_S what was seen counts."""
    took = {name: [[] for _ in calls] for name, calls in work.items()}
    left, began = dict(work), time.monotonic()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for turn in range(MOST_TURNS):
            for name, calls in left.items():
                for call, times in zip(calls, took[name], strict=True):
                    start = clock()
                    call()
                    times.append(clock() - start)
            if turn >= NUM_ALIKE:
                least, most = ({name: _sum(took[name], nth) for name in work} for nth in (0, 2))
                settled = {name for name in work if most[name] <= SPREAD * least[name]}
                best: dict[object, int] = {}
                for name in settled:
                    best[contest(name)] = min(least[name], best.get(contest(name), least[name]))
                far = {n for n in settled if least[n] > FAR_BEHIND * best[contest(n)]}
                left = {name: calls for name, calls in left.items() if name not in far}
                if settled >= set(left) or time.monotonic() - began > MOST_TIMED_S:
                    break
    finally:
        torch.set_num_threads(num_threads)
    return {name: _sum(times, 0) / 1e6 for name, times in took.items()}


def _sum(took: list[list[int]], nth: int) -> int:
    """The nth fastest of each call, without the first, added up."""
    return sum(sorted(times[1:])[nth] for times in took)


# --- compiling ------------------------------------------------------------------------------


def _load(progress: Progress) -> Message | None:
    try:
        path = compiled(progress)
        torch.ops.load_library(str(path))
    except LookupError:
        return Message(key="part.compiled_no_compiler")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return Message(key="part.compiled_failed", params={"reason": _reason(error)})
    if not _agrees():
        return Message(key="part.compiled_differs")
    return None


def compiled(progress: Progress = lambda message, fraction: None) -> Path:
    """The library for this processor and torch, compiled where it is not there yet: atomic, and
    locked against a second process. Raises LookupError without a compiler, OSError where the
    folder cannot be used or can be written by others, SubprocessError where compiling fails."""
    if os.name != "posix":
        raise LookupError
    folder = paths.cache_folder() / "kernels"
    path = folder / f"{_key()}.so"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(folder)
    if not path.is_file():
        with FileLock(folder / ".lock"):
            if not path.is_file():
                progress(Message(key="progress.compiling"), None)
                _compile(path)
    _check_owner(path)
    return path


def _key() -> str:
    """What a compiled file depends on: the source, torch, the processor's instructions."""
    about = [torch.__version__, machine.cpu_name(), *machine.cpu_flags(), *FLAGS]
    sources = [path.read_bytes() for path in (SOURCE, *map(SOURCE.with_name, INCLUDED))]
    return hashlib.sha256(b"".join(sources) + "\n".join(about).encode()).hexdigest()[:24]


def _compile(path: Path) -> None:
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise LookupError
    home = Path(torch.__file__).parent
    draft = path.with_name(f".{path.stem}.{os.getpid()}")
    common = [
        *("-std=c++20", "-O3", "-fopenmp", "-shared", "-fPIC", str(SOURCE), "-o", str(draft)),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *("-isystem", str(home / "include"), "-L", str(home / "lib"), "-ltorch_cpu", "-lc10"),
    ]
    try:
        for flag in FLAGS:
            done = subprocess.run(
                [compiler, flag, *common],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=MOST_S,
                text=True,
                errors="replace",
            )
            if done.returncode == 0:
                draft.chmod(0o600)
                draft.replace(path)
                for old in sorted(path.parent.glob("*.so"), key=_age)[KEPT:]:
                    old.unlink(missing_ok=True)
                return
        raise subprocess.SubprocessError(done.stderr or f"the compiler gave {done.returncode}")
    finally:
        draft.unlink(missing_ok=True)


def _age(path: Path) -> float:
    return -path.stat().st_mtime


def _check_owner(path: Path) -> None:
    """A library is code: nobody else may be able to put another in its place. Raises OSError."""
    about = path.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(f"{path.name}: others can write to it")


def _agrees() -> bool:
    """Whether the kernels give what torch gives, up to rounding."""
    dice = torch.Generator().manual_seed(11)
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        shapes = (50, 64), (9, 64), (9,), (2, 6, 9, 32), (2, 2, 700, 32), (2, 2, 700, 16)
        made = (torch.randn(shape, generator=dice).to(dtype) for shape in shapes)
        x, weight, bias, query, key, value = made
        mask = torch.rand(2, 1, 9, 700, generator=dice) > 0.3
        both = [(linear(rows, weight, bias), F.linear(rows, weight, bias)) for rows in (x[:5], x)]
        for num in (1, 9):
            asked, seen = query[:, :, :num], mask[:, :, :num]
            theirs = F.scaled_dot_product_attention(
                asked, key, value, attn_mask=seen, enable_gqa=True
            )
            both.append((attend(asked, key, value, seen, None), theirs.transpose(1, 2)))
        if not all((a - b).abs().max() <= most * b.abs().max() for a, b in both):
            return False
    normed = rms_norm(x, x[0].contiguous(), 1e-5), F.rms_norm(x, (64,), x[0], 1e-5)
    return torch.allclose(*normed, rtol=most)  # x is of bfloat16 by now


def _reason(error: Exception) -> str:
    """What is wrong, in a line without the machine's paths: visitors see it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    wrong = next((line for line in lines if "error: " in line), lines[0] if lines else "")
    text = wrong.rpartition("error: ")[2]
    return text[:200] if text and "/" not in text else type(error).__name__


if __name__ == "__main__":
    print(load(lambda message, fraction: print(message)) or f"loaded {compiled()}")
