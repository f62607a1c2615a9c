"""Ceilings as they are measured on this machine."""

import torch

from viz_engine.engine.ceilings import measure
from viz_engine.run import ceilings


def test_measured_ceilings_are_the_best_try_of_the_best_kernel() -> None:
    found = measure("cpu", "toy", buffer_bytes=2**22, sizes=(64, 128), most_s=0.01)
    assert found.bandwidth.per_s == max(found.kernels.values())
    assert set(found.flops) == {"float32", "bfloat16"} and "copy" in found.kernels
    assert all(0 <= one.spread < 1 and one.num >= 4 for one in found.flops.values())
    assert found.num_threads == torch.get_num_threads()
    assert ceilings.from_dict(ceilings.to_dict(found)) == found
