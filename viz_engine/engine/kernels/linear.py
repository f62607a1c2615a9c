"""How a model's linear layers multiply on a processor: the way that is fastest here, for each
number of tokens.

A layer multiplies M tokens `[M, K]` with its weight `[N, K]`. The ways: the custom matmul kernels,
torch's own, and for bfloat16 an upcast of each weight to float32 as it is used, which is exact.
Each sums up in float32 and rounds once. For one token there is torch without oneDNN, too: a switch
of the whole step. All are measured at load on the model's own matrices. It knows nothing of
models' structure or of runs.

Try it: `python -m viz_engine bench --quick` shows each part with its reason
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby

import torch
import torch.nn.functional as F

from viz_engine.engine.kernels import build
from viz_engine.run.events import EnginePart
from viz_engine.text import Message

CHUNK = 256  # tokens of a chunk of prefill
SIZES = (1, 2, 4, 8, 16, 24, CHUNK)  # tokens at which each way is measured
# Up to FEW tokens memory is the limit, so what is measured on must not lie in the caches: some
# matrices and the output matrix. For more some matrices say as much.
FEW = 4
FEW_BYTES = 24 * 2**20
SEVERAL_BYTES = 6 * 2**20
SMALLEST_BYTES = 16 * 2**20  # below this a model's matrices say nothing
GAIN = 0.95  # of the time of the way before: what another must reach to be taken from there on

Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
Times = Mapping[int, Mapping[str, float]]  # tokens -> way -> ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What was chosen, and why."""

    # In a step of one token, where torch multiplies it. Measured where no compiler is, on a
    # processor with AVX-512: 14.0 ms a step of the default model against 27.2 with oneDNN on.
    onednn_off_for_one_token: bool = False
    prefill_in_float32: bool = False  # torch is faster so in a chunk
    parts: tuple[EnginePart, ...]


class FastLinear:
    """The forward of one linear layer: `ways[M]` multiplies M tokens, the last of them more."""

    __slots__ = ("layer", "most", "ways")

    def __init__(self, layer: torch.nn.Linear, ways: tuple[Way, ...]) -> None:
        self.layer = layer
        self.ways = ways
        self.most = len(ways) - 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_tokens = x.numel() // x.shape[-1]
        way = self.ways[num_tokens if num_tokens < self.most else self.most]
        return way(x, self.layer.weight, self.layer.bias)


def choose(network: torch.nn.Module, device: str, dtype: torch.dtype) -> Chosen:
    """Measure, and give each linear layer of `network` the fastest way for each number of
    tokens."""
    layers = [m for m in network.modules() if type(m) is torch.nn.Linear]
    num_bytes = sum(layer.weight.nbytes for layer in layers)
    if device != "cpu" or dtype not in build.DTYPES or num_bytes < SMALLEST_BYTES:
        reason = Message(key="part.linear_plain")
        return Chosen(parts=(EnginePart(name="linear", on=False, reason=reason),))
    _scratch.clear()
    with torch.inference_mode():
        times = fastest_times(_work(layers, half=dtype == torch.bfloat16))
    one, chunk = times[1], times[CHUNK]
    off = one.get("native", math.inf) < GAIN * one["torch"]
    torch_ms = one["native"] if off else one["torch"]
    times = times | {1: _without(one, "native") | {"torch": torch_ms}}
    names = fastest_names(times)
    others = fastest_names({num: _without(took, "own") for num, took in times.items()})
    off = off and names[1] == "torch"
    ways = _ways()
    for layer in layers:
        mine = names if build.takes_weight(layer.weight) else others
        if set(mine) != {"torch"}:
            layer.forward = FastLinear(layer, tuple(ways[name] for name in mine))
    parts = [_own_part(one, names)]
    if dtype == torch.bfloat16:
        parts += [_switch_part(one, names, off=off), _upcast_part(chunk, names)]
    return Chosen(
        onednn_off_for_one_token=off,
        prefill_in_float32=chunk.get("upcast", math.inf) < GAIN * chunk["torch"],
        parts=tuple(parts),
    )


def fastest_names(times: Times) -> tuple[str, ...]:
    """The way for 0, 1, 2 ... tokens, up to the most that were measured; more go as those.

    For every number of tokens the way with the least time: as measured, or between two sizes, with
    each way's time as a share of the fastest's there in a straight line between them, on
    logarithmic scales. So where one way was fastest at both sizes, or nearly, it is taken between
    them. torch's is the first, and a way stays until another takes less than GAIN of its time."""
    names, now = [], "torch"
    for num in range(1, max(times) + 1):
        shares = _shares(times, num)
        best = min(shares, key=shares.__getitem__)
        if shares[best] < GAIN * shares[now]:
            now = best
        names.append(now)
    return (names[0], *names)


def _shares(times: Times, num: int) -> dict[str, float]:
    """The time of each way for `num` tokens, over the fastest's."""
    low = max(size for size in times if size <= num)
    high = min(size for size in times if size >= num)
    at = 0.0 if low == high else math.log(num / low) / math.log(high / low)
    share = lambda size, name: times[size][name] / min(times[size].values())  # noqa: E731
    ways = [name for name in times[low] if name in times[high]]
    return {name: share(low, name) ** (1 - at) * share(high, name) ** at for name in ways}


def _without(times: Mapping[str, float], way: str) -> dict[str, float]:
    return {name: ms for name, ms in times.items() if name != way}


# --- measuring ------------------------------------------------------------------------------


def fastest_times(
    work: Mapping[tuple[int, str], Sequence[Callable[[], object]]],
    clock: Callable[[], int] = build.CLOCK,
) -> dict[int, dict[str, float]]:
    """Milliseconds by number of tokens and by way. `work`: the calls of each."""
    times: dict[int, dict[str, float]] = {}
    found = build.fastest_ms(work, contest=lambda name: name[0], clock=clock)
    for (num, way), ms in found.items():
        times.setdefault(num, {})[way] = ms
    return times


def _work(
    layers: list[torch.nn.Linear], *, half: bool
) -> dict[tuple[int, str], list[Callable[[], object]]]:
    """The calls to be measured, one a matrix: a short one is sooner left undisturbed. In such an
    order that a matrix is called again only after many others, and comes from memory as in a
    step. Of matrices that the custom kernel takes, where there are such."""
    layers = [layer for layer in layers if build.takes_weight(layer.weight)] or layers
    head = max(layers, key=lambda layer: layer.weight.nbytes)
    rest = [layer for layer in layers if layer is not head]
    samples: dict[int, list[torch.nn.Linear]] = {}
    for num in SIZES:
        if num <= FEW:
            samples[num] = [head, *_first(rest, FEW_BYTES)]
        else:
            samples[num] = _first(rest, SEVERAL_BYTES) or [head]
            rest = rest[len(samples[num]) :] + rest[: len(samples[num])]
    ways = _ways()
    if not build.takes_weight(head.weight):
        del ways["own"]
    if not half:
        del ways["upcast"], ways["native"]
    work = {}
    for name, way in ways.items():
        for num, sample in samples.items():
            if name != "native" or num == 1:
                work[num, name] = [_call(way, layer, num) for layer in sample]
    return work


def _call(way: Way, layer: torch.nn.Linear, num: int) -> Callable[[], object]:
    x = torch.ones(num, layer.in_features, dtype=layer.weight.dtype)
    return partial(way, x, layer.weight, layer.bias)


def _first(layers: list[torch.nn.Linear], most_bytes: int) -> list[torch.nn.Linear]:
    """The first of them, until they have so many bytes."""
    before = accumulate((layer.weight.nbytes for layer in layers), initial=0)
    return [layer for layer, total in zip(layers, before, strict=False) if total < most_bytes]


# --- the ways -------------------------------------------------------------------------------

# Where weights of a shape are converted to: fresh memory for each would take as long again.
_scratch: dict[torch.Size, torch.Tensor] = {}


def _upcast(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    bias = None if bias is None else bias.float()
    room = _scratch.get(weight.shape)
    if room is None:
        room = _scratch[weight.shape] = torch.empty(weight.shape, dtype=torch.float32)
    return F.linear(x.float(), room.copy_(weight), bias).to(x.dtype)


def _native(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    with onednn(False):
        return F.linear(x, weight, bias)


def _ways() -> dict[str, Way]:
    return {"own": build.linear, "torch": F.linear, "upcast": _upcast, "native": _native}


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Run with oneDNN on or off. The switch is of the whole process: put back in any case."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


# --- the reasons ----------------------------------------------------------------------------


def _own_part(one: Mapping[str, float], names: tuple[str, ...]) -> EnginePart:
    """The custom kernel, and what was measured of one token."""
    name = "compiled_linear"
    if "own" not in one:
        why = build.load() or Message(key="part.compiled_widths")
        return EnginePart(name=name, on=False, reason=why)
    others = min(ms for way, ms in one.items() if way != "own")
    params = {"own_ms": f"{one['own']:.2f}", "torch_ms": f"{others:.2f}"}
    if set(names) == {"own"}:
        key = "part.compiled_linear_any"
    elif "own" in names:
        key = "part.compiled_linear_some"
        params["tokens"] = _ranges(names, "own")
    else:
        key = "part.compiled_linear_off"
    return EnginePart(name=name, on="own" in names, reason=Message(key=key, params=params))


def _switch_part(one: Mapping[str, float], names: tuple[str, ...], *, off: bool) -> EnginePart:
    """Whether oneDNN is off in steps of one token."""
    key = "part.onednn_on" if names[1] == "torch" else "part.onednn_unused"
    params = {"native_ms": f"{one['native']:.2f}", "onednn_ms": f"{one['torch']:.2f}"}
    reason = Message(key="part.onednn_off" if off else key, params=params)
    return EnginePart(name="onednn_off_for_one_token", on=off, reason=reason)


def _upcast_part(chunk: Mapping[str, float], names: tuple[str, ...]) -> EnginePart:
    """Whether a chunk of prefill is multiplied in float32, and what was measured of it."""
    params = {f"{name}_ms": f"{ms:.2f}" for name, ms in chunk.items()}
    params |= {"float32_ms": params.pop("upcast_ms"), "bfloat16_ms": params.pop("torch_ms")}
    if names[-1] == "upcast":
        num = 1 + max((i for i, name in enumerate(names) if name != "upcast"), default=0)
        key = "part.widened_from" if num <= SIZES[-2] else "part.widened_on"
        params["rows"] = num
    else:
        key = "part.widened_own" if names[-1] == "own" else "part.widened_off"
    on = names[-1] != "torch"
    return EnginePart(name="prefill_in_float32", on=on, reason=Message(key=key, params=params))


def _ranges(names: tuple[str, ...], name: str) -> str:
    """The numbers of tokens that go that way: "1-11, 24+"."""
    found = []
    for way, group in groupby(range(1, len(names)), key=names.__getitem__):
        nums = list(group)
        if way == name:
            first, last = nums[0], nums[-1]
            end = "+" if last == len(names) - 1 else f"\u2013{last}" if last > first else ""
            found.append(f"{first}{end}")
    return ", ".join(found)
