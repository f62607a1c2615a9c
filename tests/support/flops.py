"""What torch's FLOP counter does not know of: products of experts, and custom kernels."""

import math

import torch

from viz_engine.engine.kernels import build


def _linear(rows: list[int], weight: list[int], *args: object, **given: object) -> int:
    return 2 * math.prod(rows) * weight[0]


def _attend(query: list[int], key: list[int], value: list[int], *args: object, **given) -> int:
    batch, heads, num_new, width = query
    return 2 * batch * heads * num_new * key[2] * (width + value[3])


def _grouped(rows: list[int], weights: list[int], *args: object, **given: object) -> int:
    """Of a mixture of experts: each row with the matrix of its expert, `[M, K]` x `[E, K, N]`."""
    return 2 * rows[0] * weights[1] * weights[2]


UNKNOWN = {torch.ops.aten._grouped_mm: _grouped}
if build.load() is None:
    UNKNOWN |= {torch.ops.second_token.linear: _linear, torch.ops.second_token.attend: _attend}
