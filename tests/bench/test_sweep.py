"""How two sweeps agree, by hand."""

import pytest

from tests.support.machine import Machine, result
from viz_engine.bench import sweep


def test_the_same_machine_agrees_and_a_slower_one_does_not() -> None:
    one, again = (result(Machine(noise=0.01).length_sweep(seed)) for seed in (1, 2))
    found = sweep.differences(one, again)
    assert len(found) == 12 and sweep.agreement(found) == 1.0
    assert "target 90%: met" in sweep.table(found)
    slow = sweep.differences(one, result(Machine(rate=0.4).length_sweep()))
    assert sweep.agreement(slow) < 0.9 and "missed" in sweep.table(slow)
    assert not sweep.document(slow)["met"]


def test_a_difference_is_a_share_of_the_first() -> None:
    one = sweep.Difference(figure="ITL", value=64, first_s=0.1, second_s=0.12)
    assert one.share == pytest.approx(0.2)
    assert sweep.agreement([one]) == 0 and sweep.agreement([]) is None
    assert "no point" in sweep.table([])
