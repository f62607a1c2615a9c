"""RMS norms in one go: the modules whose numbers the compiled product gives, and no others.

Written in torch a norm is eight operations, and a decode step has two in each layer: a tenth of a
step in bfloat16, less in float32, where they stay as they are. Which modules are such norms is seen
by what they give, not by their type. It knows nothing of runs.

Try it: tests/engine/kernels/test_norm.py
"""

import inspect

import torch

from viz_engine.engine.kernels import build
from viz_engine.run.events import EnginePart
from viz_engine.text import Message

NAMES = ("variance_epsilon", "eps")  # where transformers' norms keep the small number
SIZES = (1.0, 1e-3, 30.0)  # of the rows that are tried; the small ones show where it is added
NUM_ROWS = 5
LAST_DIGIT = 2**-7  # of a bfloat16 number
MOST_ROUNDED = 0.02  # numbers whose last digit may differ: another order of sums moves few, another
# place of rounding many


class FastNorm:
    """The forward of one norm."""

    def __init__(self, module: torch.nn.Module, eps: float) -> None:
        self.module = module
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return build.rms_norm(x, self.module.weight, self.eps)


def choose(network: torch.nn.Module, device: str, dtype: torch.dtype) -> EnginePart:
    """Give each norm of `network` the compiled product where it gives the same numbers."""
    name = "compiled_norm"
    if device != "cpu" or dtype != torch.bfloat16:
        return EnginePart(name=name, on=False, reason=Message(key="part.compiled_norm_plain"))
    if why := build.load():
        return EnginePart(name=name, on=False, reason=why)
    num = 0
    with torch.inference_mode():
        for module in network.modules():
            eps = next((e for n in NAMES if isinstance(e := getattr(module, n, None), float)), None)
            if eps is not None and _is_such(module, eps):
                module.forward = FastNorm(module, eps)
                num += 1
    key = "part.compiled_norm_on" if num else "part.compiled_norm_off"
    numbers = {"num": num}
    return EnginePart(
        name=name, on=num > 0, reason=Message(key=key, params=numbers), numbers=numbers
    )


def _is_such(module: torch.nn.Module, eps: float) -> bool:
    """Whether it has a weight and nothing else, and gives what `build.rms_norm` gives."""
    weight = getattr(module, "weight", None)
    parts = [*module.parameters(), *module.buffers(), *module.children()]
    if len(parts) != 1 or not isinstance(weight, torch.Tensor) or not build.takes_norm(weight):
        return False
    if len(inspect.signature(module.forward).parameters) != 1:  # Mamba's also take a gate
        return False
    dice = torch.Generator().manual_seed(3)
    rows = torch.randn(1, NUM_ROWS, weight.numel(), generator=dice)
    for size in SIZES:
        x = (rows * size).to(weight.dtype)
        try:
            theirs = module(x)
        except Exception:  # a module can raise anything: then it is no such norm
            return False
        ours = build.rms_norm(x, weight, eps)
        alike = isinstance(theirs, torch.Tensor) and theirs.dtype == ours.dtype
        if not alike or theirs.shape != ours.shape:
            return False
        differ = (ours != theirs).float().mean()
        if differ > MOST_ROUNDED or not torch.allclose(ours, theirs, rtol=LAST_DIGIT, atol=1e-6):
            return False
    return True
