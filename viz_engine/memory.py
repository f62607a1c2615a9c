"""What a choice of model, context and batch takes in memory, before it runs. Predicted, from
`cost.py`.

Try it from the live page: the line under the sliders is `footprint`.
"""

from dataclasses import dataclass

from viz_engine import cost
from viz_engine.spec import ModelSpec
from viz_engine.text import UserError, mib

OVERHEAD_BYTES = (
    600 * 1024**2
)  # torch, tokenizer, activations of one piece: what the engine process holds beside the two below


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that a run takes at its end."""

    weight_bytes: int
    kv_reserved_bytes: int
    num_rows: int  # of one sequence

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_reserved_bytes + OVERHEAD_BYTES


def footprint(
    spec: ModelSpec,
    dtype: str,
    *,
    batch: int,
    prompt_len: int,
    new_tokens: int,
    cached: bool = True,
) -> Footprint:
    """Weights and reserved rows at the last step: the last token never gets a row."""
    columns = prompt_len + max(new_tokens - 1, 0)
    reserved = cost.reserved_bytes(spec, dtype, batch=batch, num_columns=columns)
    return Footprint(
        weight_bytes=cost.weight_bytes(spec, dtype),
        kv_reserved_bytes=reserved if cached else 0,
        num_rows=columns,
    )


def check_fits(need: Footprint, available_bytes: int | None) -> None:
    """Raises UserError with the numbers where `need` is more than `available_bytes` (None:
    unknown, passes)."""
    if available_bytes is not None and need.total_bytes > available_bytes:
        raise UserError(
            "error.memory",
            total=mib(need.total_bytes),
            weights=mib(need.weight_bytes),
            cache=mib(need.kv_reserved_bytes),
            available=mib(available_bytes),
        )
