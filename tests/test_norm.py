"""Norms: the compiled product takes the place of those whose numbers it gives, and of no others."""

from collections.abc import Callable
from pathlib import Path

import architectures
import pytest
import torch

from viz_engine import kernels, norm
from viz_engine.models import Loaded
from viz_engine.text import Message

WIDTH = 64


class Like(torch.nn.Module):
    """Llama's norm, with what a test changes in it."""

    def __init__(self, dtype: torch.dtype, width: int = WIDTH, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter((torch.randn(width) + 1).to(dtype), requires_grad=False)
        self.variance_epsilon = eps

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * self.scaled(x).to(x.dtype)


class Gated(Like):
    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x if gate is None else x * gate)


class OneMore(Like):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 + self.weight) * self.scaled(x).to(x.dtype)


class Unrounded(Like):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight.float() * self.scaled(x)).to(x.dtype)


class OtherEps(Like):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return wide / (wide.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


class Biased(Like):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH, dtype=dtype), requires_grad=False)


class Raises(Like):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not like this")


class Sorted(Like):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sort().values


def chosen(module: torch.nn.Module) -> bool:
    """Whether the compiled product took its place; what it gives then stays the same."""
    x = torch.randn(2, 3, module.weight.numel()).to(module.weight.dtype)
    before = type(module).forward(module, x) if not isinstance(module, Raises) else None
    part = norm.choose(torch.nn.Sequential(module), "cpu")
    if part.on:
        gap = (module(x).float() - before.float()).abs()
        assert (gap <= before.float().abs() * norm.TOLERANCE[x.dtype] + 1e-6).all()
    assert str(part.reason) and part.reason.text("zh")
    return part.on


@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_a_norm_as_llamas_is_replaced(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    module = Like(dtype)
    assert chosen(module) and isinstance(module.forward, norm.FastNorm)


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize("kind", [Gated, OneMore, OtherEps, Biased, Raises, Sorted])
def test_whatever_gives_other_numbers_stays(kind: type[Like], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    assert not chosen(kind(dtype))


def test_a_norm_that_rounds_elsewhere_stays_in_bfloat16_and_is_equal_in_float32() -> None:
    torch.manual_seed(1)
    assert not chosen(Unrounded(torch.bfloat16)) and chosen(Unrounded(torch.float32))


@pytest.mark.parametrize("module", [Like(torch.float16), Like(torch.float32, width=24)])
def test_what_the_product_cannot_take_stays(module: Like) -> None:
    assert not chosen(module)


def test_without_kernels_or_on_a_gpu_the_model_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Like(torch.float32)
    assert norm.choose(module, "cuda:0").reason.key == "part.compiled_not_ours"
    why = Message(key="part.compiled_no_compiler")
    monkeypatch.setattr(kernels, "_state", {"why": why})
    assert norm.choose(module, "cpu").reason == why
    assert "forward" not in vars(module)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_norms_of_a_llama_are_all_replaced(tiny: Callable[..., Loaded], dtype: str) -> None:
    loaded = tiny("llama", dtype)
    part = next(p for p in loaded.parts if p.name == "compiled_norm")
    assert part.on and part.reason.params == {"num": 7}  # two in each of three layers, and the last


@pytest.mark.parametrize(("model_type", "all_of_them"), [("gemma2", False), ("mamba2", False)])
def test_others_keep_what_is_not_such_a_norm(
    tmp_path: Path, model_type: str, all_of_them: bool
) -> None:
    loaded = architectures.load(architectures.build(model_type), tmp_path)
    norms = [m for m in loaded.model.modules() if "Norm" in type(m).__name__]
    fast = [m for m in norms if isinstance(vars(m).get("forward"), norm.FastNorm)]
    assert (len(fast) == len(norms)) is all_of_them
    assert not any("gate" in type(m).__name__.lower() for m in fast)


@pytest.mark.parametrize("shape", [(WIDTH,), (1, WIDTH), (2, 3, 5, WIDTH), (0, WIDTH)])
@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_the_product_is_llamas_norm_for_rows_of_any_shape(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(2)
    module, x = Like(dtype, eps=1e-3), (torch.randn(shape) * 0.1).to(dtype)
    got, expected = kernels.rms_norm(x, module.weight, 1e-3), module(x)
    assert got.shape == expected.shape and got.dtype == dtype
    assert torch.allclose(got, expected, rtol=norm.TOLERANCE[dtype], atol=1e-6)


def test_wrong_sizes_are_an_error() -> None:
    for x, weight in (
        (torch.ones(2, 32), torch.ones(64)),
        (torch.ones(2, 24), torch.ones(24)),
        (torch.ones(2, 64).bfloat16(), torch.ones(64)),
        (torch.ones(2, 64), torch.ones(1, 64)),
    ):
        with pytest.raises(RuntimeError):
            kernels.rms_norm(x, weight, 1e-5)
