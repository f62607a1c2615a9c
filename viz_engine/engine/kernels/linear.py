"""How a model's linear layers multiply on a processor: the kernel that is faster here.

For a few rows, as in decode: this program's own, oneDNN, torch's, or oneDNN on weights packed
beforehand (a second copy of them). For many rows, as in prefill: bfloat16, or in float32 with each
weight converted as it is used, which is exact, by torch or by this program's own. Each sums up in
float32 and rounds once. Measured at load on the model's own matrices. It knows nothing of models'
structure or of runs.

Try it: `python -m viz_engine bench --quick` shows each part with its reason
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from viz_engine.engine.kernels import build
from viz_engine.engine.kernels.build import fastest_ms
from viz_engine.run.events import EnginePart
from viz_engine.text import Message, mib

# From so many rows on a conversion of the weight may cost less than it wins: where bfloat16 is
# slow, as without AVX-512, from few rows on. The own kernel is for fewer (batches, short prompts)
# or for any number. All are measured.
MANY_ROWS = (24, 96)
SOME_ROWS = (8, 16)
PIECE = 256  # rows of a piece of prefill
SAMPLE_BYTES = 24 * 2**20  # of matrices to measure on, besides the output matrix
SMALLEST_BYTES = 16 * 2**20  # below this a model's matrices say nothing
GAIN = 0.9  # of the plain kernel's time: what a copy, a conversion or a kernel must reach
SWITCH_GAIN = 0.95  # the same for a switch that costs nothing
ANY = 2**62  # rows


# Where weights of a shape are converted to: fresh memory for each would take as long again.
_rooms: dict[torch.Size, torch.Tensor] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What was chosen, and why."""

    onednn_off_for_one_row: bool = False
    packed_bytes: int = 0  # of the second copy
    prefill_in_float32: bool = False
    parts: tuple[EnginePart, ...]


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


with warnings.catch_warnings():
    # Scripted, because the tracer cannot record this operation's arguments by itself.
    warnings.simplefilter("ignore", DeprecationWarning)
    _packed_product = torch.jit.script(_product)


class FastLinear:
    """The forward of one linear layer: the own kernel or the packed weight for few rows, float32
    for many."""

    def __init__(
        self,
        layer: torch.nn.Linear,
        packed: torch.Tensor | None,
        *,
        own_rows: int,
        many_rows: int,
        widen: bool,
    ) -> None:
        self.layer = layer
        self.packed = packed  # oneDNN's own layout; torch cannot look into it
        self.own_rows = own_rows if build.takes_weight(layer.weight) else 0
        self.many_rows = many_rows
        self.widen = widen

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        num_rows = x.numel() // x.shape[-1]
        if num_rows <= self.own_rows:
            return build.linear(x, weight, bias)
        many = num_rows >= self.many_rows
        if many and self.widen:
            return _widened(x, weight, bias)
        if many or self.packed is None:
            return F.linear(x, weight, bias)
        return _packed_product(x, self.packed, bias)


def choose(network: torch.nn.Module, device: str, dtype: torch.dtype, free_bytes: int) -> Kernels:
    """Measure, and give each linear layer of `network` the faster forward."""
    layers = [m for m in network.modules() if type(m) is torch.nn.Linear]
    num_bytes = sum(layer.weight.nbytes for layer in layers)
    if device != "cpu" or dtype not in build.DTYPES or num_bytes < SMALLEST_BYTES:
        reason = Message(key="part.linear_plain")
        return Kernels(parts=(EnginePart(name="linear", on=False, reason=reason),))
    _rooms.clear()
    sample = _sample(layers)
    half = dtype == torch.bfloat16
    with torch.inference_mode():
        packed = [_pack(layer) for layer in sample] if half and can_pack() else None
        one = _one_row_ms(sample, packed, half=half)
        rows = (*SOME_ROWS, *MANY_ROWS, PIECE)
        more = {num: _rows_ms(sample, num, half=half) for num in rows}
    own_rows = _own_rows(one, more)
    own_rows = ANY if own_rows == PIECE else own_rows
    plain = min(time for name, time in one.items() if name in ("onednn", "native"))
    pack = packed is not None and not own_rows and one["packed"] < GAIN * plain
    roomy = free_bytes > 2 * num_bytes
    copied = pack and roomy
    widen = half and _wins("float32", more[PIECE])
    many_rows = MANY_ROWS[not (half and _wins("float32", more[MANY_ROWS[0]]))]
    many_rows = max(many_rows, own_rows + 1)
    if copied or widen or own_rows:
        for layer in layers:
            layer.forward = FastLinear(
                layer,
                _pack(layer) if copied else None,
                own_rows=own_rows,
                many_rows=many_rows,
                widen=widen,
            )
    off = half and not (copied or own_rows) and one["native"] < SWITCH_GAIN * one["onednn"]
    parts = [_own_part(one, own_rows)]
    if half:
        widened = more[PIECE] | {"rows": many_rows}
        parts += _half_parts(
            one, widened, num_bytes, pack=pack, roomy=roomy, widen=widen, off=off, own=own_rows
        )
    return Kernels(
        onednn_off_for_one_row=off,
        packed_bytes=num_bytes if copied else 0,
        prefill_in_float32=widen,
        parts=tuple(parts),
    )


def _wins(name: str, times: dict[str, float]) -> bool:
    """Whether it is faster than torch's plain product."""
    return name in times and times[name] < GAIN * times["plain"]


def _own_rows(one: dict[str, float], more: Mapping[int, dict[str, float]]) -> int:
    """Up to how many rows the own kernel is used: the largest number measured before which it is
    the fastest throughout."""
    if not _is_fastest(one):
        return 0
    most = 1
    for num, times in more.items():
        if not _is_fastest(times, SWITCH_GAIN):
            break
        most = num
    return most


def _is_fastest(times: dict[str, float], gain: float = GAIN) -> bool:
    """Whether the own kernel, where it was tried, beats every other."""
    others = [time for name, time in times.items() if name != "own"]
    return "own" in times and times["own"] < gain * min(others)


def packed_layers(network: torch.nn.Module) -> list[FastLinear]:
    """The forwards of `network` that hold a packed weight."""
    forwards = (vars(module).get("forward") for module in network.modules())
    return [f for f in forwards if isinstance(f, FastLinear) and f.packed is not None]


def can_pack() -> bool:
    """Whether oneDNN packs bfloat16 weights on this processor; where it does not (x86 without
    AVX-512), it raises RuntimeError."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _pack(layer: torch.nn.Linear) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), 1)


def _widened(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    bias = None if bias is None else bias.float()
    room = _rooms.get(weight.shape)
    if room is None:
        room = _rooms[weight.shape] = torch.empty(weight.shape, dtype=torch.float32)
    return F.linear(x.float(), room.copy_(weight), bias).to(x.dtype)


def _sample(layers: list[torch.nn.Linear]) -> list[torch.nn.Linear]:
    """The first layers up to SAMPLE_BYTES, and the largest."""
    sample, total = [max(layers, key=lambda layer: layer.weight.nbytes)], 0
    for layer in layers:
        if total < SAMPLE_BYTES and layer is not sample[0]:
            sample.append(layer)
            total += layer.weight.nbytes
    return sample


def _one_row_ms(
    sample: list[torch.nn.Linear], packed: list[torch.Tensor] | None, *, half: bool
) -> dict[str, float]:
    """Milliseconds of one row through the sample, by kernel."""
    rows = [torch.ones(1, layer.in_features, dtype=layer.weight.dtype) for layer in sample]

    def plain(enabled: bool) -> None:
        with onednn(enabled):
            for layer, row in zip(sample, rows, strict=True):
                F.linear(row, layer.weight, layer.bias)

    def on_packed() -> None:
        for layer, row, weight in zip(sample, rows, packed, strict=True):
            _packed_product(row, weight, layer.bias)

    def own() -> None:
        for layer, row in zip(sample, rows, strict=True):
            build.linear(row, layer.weight, layer.bias)

    work = {"onednn": lambda: plain(True)}
    if half:
        work["native"] = lambda: plain(False)
    if packed is not None:
        work["packed"] = on_packed
    if all(build.takes_weight(layer.weight) for layer in sample):
        work["own"] = own
    return fastest_ms(work)


def _rows_ms(sample: list[torch.nn.Linear], num_rows: int, *, half: bool) -> dict[str, float]:
    """Milliseconds of rows of a prompt through a few layers, by the way it is computed."""
    few = sample[1:8] or sample
    rows = [torch.ones(num_rows, layer.in_features, dtype=layer.weight.dtype) for layer in few]
    both = list(zip(few, rows, strict=True))
    work = {"plain": lambda: [F.linear(r, layer.weight, layer.bias) for layer, r in both]}
    if half:
        work["float32"] = lambda: [_widened(r, layer.weight, layer.bias) for layer, r in both]
    if all(build.takes_weight(layer.weight) for layer in few):
        work["own"] = lambda: [build.linear(r, layer.weight, layer.bias) for layer, r in both]
    return fastest_ms(work)


def _own_part(one: dict[str, float], own_rows: int) -> EnginePart:
    """The own kernel, and what was measured of one row."""
    name = "compiled_linear"
    if "own" not in one:
        why = build.load() or Message(key="part.compiled_widths")
        return EnginePart(name=name, on=False, reason=why)
    others = min(time for name, time in one.items() if name != "own")
    params = {"own_ms": f"{one['own']:.2f}", "torch_ms": f"{others:.2f}"}
    if own_rows == ANY:
        reason = Message(key="part.compiled_linear_any", params=params)
    elif own_rows:
        reason = Message(key="part.compiled_linear_on", params=params | {"rows": own_rows})
    else:
        reason = Message(key="part.compiled_linear_off", params=params)
    return EnginePart(name=name, on=own_rows > 0, reason=reason)


def _half_parts(
    one: dict[str, float],
    many: dict[str, float],
    num_bytes: int,
    *,
    pack: bool,
    roomy: bool,
    widen: bool,
    off: bool,
    own: int,
) -> tuple[EnginePart, ...]:
    """The three choices of bfloat16, each with what was measured."""
    shown = {"packed_ms": "-"} | {f"{name}_ms": f"{value:.2f}" for name, value in one.items()}
    switch = "part.onednn_off" if off else "part.onednn_unused" if own else "part.onednn_on"
    size = {"size": mib(num_bytes)}
    if pack:
        packed = "part.packed_on" if roomy else "part.packed_memory"
    elif own:
        packed = "part.packed_needless"
    else:
        packed = "part.packed_off" if "packed" in one else "part.packed_absent"
    wide = {"float32_ms": f"{many['float32']:.2f}", "bfloat16_ms": f"{many['plain']:.2f}"}
    if own == ANY:
        widened = "part.widened_own"
        wide["own_ms"] = f"{many['own']:.2f}"
    else:
        widened = _widened_key(many["rows"]) if widen else "part.widened_off"
        wide["rows"] = many["rows"]
    return (
        EnginePart(
            name="packed_weights",
            on=pack and roomy,
            reason=Message(key=packed, params=shown | size),
        ),
        EnginePart(name="onednn_off_for_one_row", on=off, reason=Message(key=switch, params=shown)),
        EnginePart(
            name="prefill_in_float32",
            on=widen or own == ANY,
            reason=Message(key=widened, params=wide),
        ),
    )


def _widened_key(rows: int) -> str:
    return "part.widened_from" if rows < MANY_ROWS[1] else "part.widened_on"


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Run with oneDNN on or off. The switch is of the whole process: put back in any case."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
