"""Which token comes next: the likeliest, or one drawn by a seed.

Each sequence has random numbers of its own, so it draws the same alone and in a batch. It knows
nothing of runs.

Try it: tests/engine/test_sampling.py
"""

from collections.abc import Sequence

import torch


class Sampler:
    """Chooses for the sequences of one run."""

    def __init__(self, temperature: float, top_p: float, seed: int, batch: int) -> None:
        self.temperature = temperature
        self.top_p = top_p
        self.generators = [sequence_generator(seed, b) for b in range(batch)]

    def choose(self, logits: torch.Tensor) -> list[int]:
        """A token a sequence, of logits `[B, vocab]`."""
        if self.temperature == 0:
            return logits.argmax(dim=-1).tolist()
        return sample(logits, self.temperature, self.top_p, self.generators)


def sequence_generator(seed: int, sequence: int) -> torch.Generator:
    """Random numbers of one sequence: the same for a seed, others for each sequence."""
    generator = torch.Generator()
    generator.manual_seed((seed * 1_000_003 + sequence) % 2**63)
    return generator


def sample(
    logits: torch.Tensor,  # [B, vocab]
    temperature: float,
    top_p: float,
    generators: Sequence[torch.Generator],
) -> list[int]:
    """A token a sequence: softmax at `temperature`, of the likeliest that sum to `top_p`."""
    logits = logits.float().cpu()
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperature
    shares, order = torch.softmax(scaled, dim=-1).sort(dim=-1, descending=True)
    shares = shares.masked_fill(shares.cumsum(dim=-1) - shares >= top_p, 0.0)
    shares[:, 0].clamp_(min=1e-9)  # the likeliest always stays
    places = [
        torch.multinomial(row, 1, generator=g) for row, g in zip(shares, generators, strict=True)
    ]
    return [int(ids[place]) for ids, place in zip(order, places, strict=True)]
