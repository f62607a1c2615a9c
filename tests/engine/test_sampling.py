"""Choosing a token: the likeliest, or one drawn as the shares say."""

import torch

from viz_engine.engine import sampling


def test_without_a_temperature_it_is_the_likeliest() -> None:
    logits = torch.tensor([[0.1, 3.0, 2.9], [5.0, -1.0, 0.0]])
    assert sampling.Sampler(0, 1.0, 7, 2).choose(logits) == [1, 0]


def test_a_sequence_draws_the_same_alone_and_in_a_batch() -> None:
    logits = torch.zeros(3, 1000)
    together, alone = sampling.Sampler(1.0, 1.0, 7, 3), sampling.Sampler(1.0, 1.0, 7, 1)
    drawn = [together.choose(logits) for _ in range(5)]
    assert [one[0] for one in drawn] == [alone.choose(logits[:1])[0] for _ in range(5)]
    assert len({id for one in drawn for id in one}) > 10


def test_top_p_keeps_the_likeliest_that_reach_it() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    generators = [sampling.sequence_generator(0, 0)]
    seen = {sampling.sample(logits, 1.0, 0.7, generators)[0] for _ in range(300)}
    assert seen == {0, 1}
    seen = {sampling.sample(logits, 1.0, 1.0, generators)[0] for _ in range(600)}
    assert seen == {0, 1, 2, 3}


def test_sampling_follows_the_shares() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.3]]))
    generators = [sampling.sequence_generator(1, 0)]
    ones = sum(sampling.sample(logits, 1.0, 1.0, generators)[0] for _ in range(4000))
    assert 1050 < ones < 1350  # 1200 expected, five standard deviations either way
