"""The table of accelerators: memory, bandwidth and rates, each figure with its source.

A figure that could not be confirmed is left out. It knows nothing of models.

Try it: `python -c "from viz_engine.memory import devices; print(devices.device('NVIDIA L4'))"`
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from viz_engine.paths import ASSETS
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.machine import cpu_name, memory_bytes
from viz_engine.text import Message

TABLE = ASSETS / "hardware.json"


GB, GIB = 10**9, 2**30  # vendors count memory in the first, engines in the second


UNITS = {"GB": GB, "GiB": GIB, "MiB": 2**20, "GB/s": GB, "GiB/s": GIB, "GFLOP/s": 10**9}


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

    `memory` is what the vendor sells, in its own unit; `reported` what nvidia-smi, rocm-smi or the
    driver shows: an "80 GB" H100 reports 81 559 MiB, 79.6 GiB, 85.5 GB; `seen` what CUDA or Metal
    then lets programs have, as logs print it, up to 3 % less: 79.18 GiB. `tflops`
    are dense matrix rates with FP32 accumulation, by number format, never the sparse ones of the
    first line of a datasheet; fp32 is that of plain float32 products. `named`: the words by which
    the device is known where it names itself in another order.
    """

    name: str
    kind: str  # gaming, workstation, unified, data_centre, tpu, here
    memory: Figure
    reported: Figure | None = None
    seen: Figure | None = None
    bandwidth: Figure | None = None
    tflops: Mapping[str, Figure] = field(default_factory=dict)
    named: tuple[str, ...] = ()

    @property
    def capacity(self) -> Figure:
        """The memory to plan with: the least that is known. Without a reported size a vendor's GB
        counts as 10^9 bytes: that much is certain to be there."""
        return self.seen or self.reported or self.memory

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

    def promised(self, dtype: str) -> Figure | None:
        """The maker's rate for products in a type of torch's; float16's is bfloat16's too."""
        names = {"float32": ("fp32",), "bfloat16": ("bf16",), "float16": ("fp16", "bf16")}
        found = (self.tflops.get(name) for name in names.get(dtype, ()))
        return next((rate for rate in found if rate), None)


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
            seen=figure(*row["seen"]) if "seen" in row else None,
            bandwidth=figure(*row["bandwidth"]),
            tflops={
                name: figure(value, "TFLOP/s", source)
                for name, (value, source) in row.get("tflops", {}).items()
            },
            named=tuple(row.get("named", ())),
        )
        for row in table["devices"]
    )


def size_message(device: Device) -> Message | None:
    """Which of its sizes is planned with, and what may be missing of it. None for this machine,
    which was asked."""
    if device.kind == "here":
        return None
    params = {"device": device.name, "sold": str(device.memory)}
    if device.reported is not None:
        params["reported"] = str(device.reported)
    if device.seen is not None:
        params["seen"] = str(device.seen)
        return Message(
            key="mem.device.seen" if device.reported else "mem.device.seen_sold", params=params
        )
    return Message(
        key="mem.device.reported" if device.reported else "mem.device.sold", params=params
    )


def device(name: str) -> Device:
    """The device of that name in the table. Raises KeyError that names the closest ones."""
    for row in devices():
        if row.name.casefold() == name.casefold():
            return row
    near = [row.name for row in devices() if name.casefold() in row.name.casefold()]
    raise KeyError(f"no device {name!r}; {near or [row.name for row in devices()]}")


def called(machine: str) -> Device | None:
    """The device of the table that calls itself `machine`; None where it is none of them. Of
    processors there is none: what a machine reaches depends on its memory modules."""
    words = machine.replace("-", " ").split()
    for row in devices():
        if row.named and set(row.named) <= set(words) or row.name.split() == words:
            return row
    return None


def this_machine(ceilings: Ceilings | None = None) -> Device:
    """The memory of this machine, asked of the system, and what the engine has measured of its
    processor. Products of 16 bits may be made in float32 where that is faster: the better counts.
    """
    figure = partial(Figure, source=cpu_name(), checked="here")
    size = figure(value=memory_bytes() / GIB, unit="GiB")
    if ceilings is None:
        return Device(name=cpu_name(), kind="here", memory=size)
    rates = {
        "bf16": ceilings.roof("bfloat16", widened=True),
        "fp32": ceilings.roof("float32", widened=False),
    }
    return Device(
        name=cpu_name(),
        kind="here",
        memory=size,
        bandwidth=figure(value=ceilings.bandwidth.per_s / GB, unit="GB/s"),
        tflops={
            name: figure(value=ceilings.flops[roof].per_s / 10**9, unit="GFLOP/s")
            for name, roof in rates.items()
            if roof is not None
        },
    )
