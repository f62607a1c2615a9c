"""What the picture samples: norms in numpy and compiled, of rows that are there or have gone."""

import pytest
import torch

from viz_engine.engine.cache import norms
from viz_engine.engine.cache.slab import Slab
from viz_engine.engine.kernels import build
from viz_engine.model.spec import LayerSpec


@pytest.fixture
def loaded() -> None:
    why = build.load()
    assert why is None, f"{why} (the tests need a C++ compiler)"


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", build.DTYPES)
def test_compiled_norms_are_numpys_but_for_a_level_where_two_are_as_near(
    loaded: None, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    layer = LayerSpec(num_kv_heads=3, key_dim=32, value_dim=16, kind="full")
    slab = Slab(layer, 4, 2, 600, dtype, "cpu")
    keys, values = slab.tensors
    keys.copy_(numbers(*keys.shape) * 10 ** numbers(*keys.shape[:-1], 1, seed=2))
    values.copy_(numbers(*values.shape, seed=3))
    keys[0, 0, 0, 1], values[1, 1, 2, 2] = 0, 1e-30
    for where in ((0, 600), (599, 600), (1, 3)):
        ours = norms.of_slab(slab, *where).astype(int)
        with monkeypatch.context() as patch:
            patch.setattr(build, "takes_rows", lambda *rows: False)
            theirs = norms.of_slab(slab, *where).astype(int)
        assert ours.shape == theirs.shape == (2, 2, where[1] - where[0], 12)
        assert abs(ours - theirs).max() <= 1 and (ours != theirs).mean() < 1e-3
        assert ((ours == 0) == (theirs == 0)).all()


def test_rows_that_have_slid_out_of_a_slab_have_no_norm(loaded: None) -> None:
    layer = LayerSpec(num_kv_heads=1, key_dim=16, value_dim=16, kind="sliding", window=8)
    slab = Slab(layer, 1, 1, 8, torch.float32, "cpu")
    for rows in slab.tensors:
        rows.fill_(1)
    slab.origin = 5
    levels = norms.of_slab(slab, 2, 9)
    assert levels.shape == (2, 1, 7, 1) and (levels[:, :, :3] == 0).all()
    assert (levels[:, :, 3:] == 152).all()  # 128 + 12 log2(4)
