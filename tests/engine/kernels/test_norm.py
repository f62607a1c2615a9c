"""Norms: the compiled product takes the place of those whose numbers it gives, and of no others."""

from collections.abc import Callable

import pytest
import torch

from tests.support import architectures
from viz_engine.engine.kernels import build, norm
from viz_engine.engine.load import Loaded
from viz_engine.text import Message

WIDTH, HALF = 64, torch.bfloat16


class Like(torch.nn.Module):
    """Llama's norm, with what a test changes in it."""

    def __init__(self, dtype: torch.dtype = HALF, width: int = WIDTH, eps: float = 1e-5) -> None:
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
    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH, dtype=HALF), requires_grad=False)


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
    part = norm.choose(torch.nn.Sequential(module), "cpu", module.weight.dtype)
    if part.on:
        assert torch.allclose(module(x), before, rtol=norm.LAST_DIGIT, atol=1e-6)
    assert str(part.reason) and part.reason.text("zh")
    return part.on


def test_a_norm_as_llamas_is_replaced() -> None:
    torch.manual_seed(1)
    module = Like()
    assert chosen(module) and isinstance(module.forward, norm.FastNorm)


@pytest.mark.parametrize("kind", [Gated, OneMore, Unrounded, OtherEps, Biased, Raises, Sorted])
def test_whatever_gives_other_numbers_stays(kind: type[Like]) -> None:
    torch.manual_seed(1)
    assert not chosen(kind())


@pytest.mark.parametrize("module", [Like(torch.float32), Like(torch.float16), Like(width=24)])
def test_what_the_product_is_not_for_stays(module: Like) -> None:
    assert not chosen(module)


def test_without_kernels_or_on_a_gpu_the_model_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Like()
    assert norm.choose(module, "cuda:0", HALF).reason.key == "part.compiled_norm_plain"
    why = Message(key="part.compiled_no_compiler")
    monkeypatch.setattr(build, "_state", {"why": why})
    assert norm.choose(module, "cpu", HALF).reason == why
    assert "forward" not in vars(module)


def test_the_norms_of_a_llama_are_all_replaced(tiny: Callable[..., Loaded]) -> None:
    parts = {p.name: p for p in tiny("llama", "bfloat16").parts}
    assert parts["compiled_norm"].on
    assert parts["compiled_norm"].reason.params == {"num": 7}  # two in each layer, and the last
    assert parts["compiled_norm"].numbers == {"num": 7}


@pytest.mark.parametrize("model_type", ["gemma2", "mamba2"])
def test_others_keep_what_is_not_such_a_norm(model_type: str) -> None:
    network = architectures.build(model_type).to(HALF)
    norm.choose(network, "cpu", HALF)
    norms = [m for m in network.modules() if "Norm" in type(m).__name__]
    fast = [m for m in norms if isinstance(vars(m).get("forward"), norm.FastNorm)]
    assert len(fast) < len(norms) and not any("Gated" in type(m).__name__ for m in fast)


@pytest.mark.parametrize("shape", [(WIDTH,), (1, WIDTH), (2, 3, 5, WIDTH), (0, WIDTH)])
def test_the_product_is_llamas_norm_for_rows_of_any_shape(shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    module, x = Like(eps=1e-3), (torch.randn(shape) * 0.1).to(HALF)
    got, expected = build.rms_norm(x, module.weight, 1e-3), module(x)
    assert got.shape == expected.shape and got.dtype == HALF
    assert torch.allclose(got, expected, rtol=norm.LAST_DIGIT, atol=1e-6)


def test_wrong_sizes_are_an_error() -> None:
    for x, weight in (
        (torch.ones(2, 32).bfloat16(), torch.ones(64).bfloat16()),
        (torch.ones(2, 24).bfloat16(), torch.ones(24).bfloat16()),
        (torch.ones(2, 64).bfloat16(), torch.ones(64)),
        (torch.ones(2, 64), torch.ones(64)),
        (torch.ones(2, 64).bfloat16(), torch.ones(1, 64).bfloat16()),
    ):
        with pytest.raises(RuntimeError):
            build.rms_norm(x, weight, 1e-5)
