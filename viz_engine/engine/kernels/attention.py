"""The attention that reads the rows: exactly those handed in, each once for its whole query group.

Registered with transformers under a name; the forward that is on (`context.py`) says with which
kernel it reads, and counts what. It raises on an argument that it would have to obey, so that the
compatibility check falls back. It knows nothing of caches or models.

Try it: tests/engine/test_architectures.py runs every named type through it.
"""

from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from viz_engine.engine.kernels import build, context
from viz_engine.run.events import EnginePart
from viz_engine.text import Message

ATTENTION = "second_token"  # the name under which transformers finds `row_attention`
# These say nothing that the mask does not say, or speak of things that are not attention's.
IGNORED = {"position_ids", "use_cache", "is_causal", "sliding_window"}
TIMED_ROWS = 1024  # that both ways read
CHUNK = 256  # queries of a chunk of prefill
GAIN = 0.9  # of torch's time: what the own kernel must reach


class StoredRows(Protocol):
    """K or V in a store's own format, handed through the model in place of a tensor."""

    nbytes: int  # of the tensors behind it: what a read of it reads

    def dense(self) -> torch.Tensor:
        """As a tensor `[B, H, S, D]`."""


Rows = torch.Tensor | StoredRows


def dense(rows: Rows) -> torch.Tensor:
    """Rows as a tensor."""
    return rows if isinstance(rows, torch.Tensor) else rows.dense()


def choose(
    num_query_heads: int | None,
    sizes: tuple[int, int, int],
    device: str,
    dtype: torch.dtype,
    own_attention: bool,
    upcast: bool,
) -> tuple[EnginePart, EnginePart]:
    """Whether the custom kernel is faster than torch here in decode and in prefill (there with
    `upcast`), for a layer with `sizes` (KV heads, widths of K and of V): timed on some rows."""
    num_heads, width, value_width = sizes
    if device != "cpu" or not own_attention or not num_heads or not num_query_heads:
        return _both_off(Message(key="part.compiled_not_ours"))
    if why := build.load():
        return _both_off(why)
    queries = torch.ones(1, num_query_heads, CHUNK, width, dtype=dtype)
    key = torch.ones(1, num_heads, TIMED_ROWS, width, dtype=dtype)
    value = torch.ones(1, num_heads, TIMED_ROWS, value_width, dtype=dtype)
    if num_query_heads % num_heads or not build.takes_rows(key, value, None):
        return _both_off(Message(key="part.compiled_widths"))
    mask = torch.ones(CHUNK, TIMED_ROWS, dtype=torch.bool).tril(TIMED_ROWS - CHUNK)[None, None]
    one = (queries[:, :, :1], key, value, None, None)
    chunk = (queries, key, value, mask, None)
    ways = ((_one_query, one), (partial(_many_queries, upcast=upcast), chunk))
    with torch.inference_mode():
        decode, prefill = (
            build.fastest_ms(
                {
                    "own": [lambda given=given: build.attend(*given)],
                    "torch": [lambda way=way, given=given: way(*given)],
                }
            )
            for way, given in ways
        )
    return (
        _measured(
            "compiled_attention",
            "part.compiled_attention_on",
            "part.compiled_attention_off",
            decode,
        ),
        _measured(
            "compiled_attention_prefill",
            "part.compiled_prefill_on",
            "part.compiled_prefill_off",
            prefill,
        ),
    )


def _both_off(why: Message) -> tuple[EnginePart, EnginePart]:
    return (
        EnginePart(name="compiled_attention", on=False, reason=why),
        EnginePart(name="compiled_attention_prefill", on=False, reason=why),
    )


def _measured(name: str, if_on: str, if_off: str, took: dict[str, float]) -> EnginePart:
    on = took["own"] < GAIN * took["torch"]
    params = {f"{which}_ms": f"{ms:.3f}" for which, ms in took.items()} | {"rows": TIMED_ROWS}
    reason = Message(key=if_on if on else if_off, params=params)
    return EnginePart(name=name, on=on, reason=reason)


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [B, Hq, T, D]
    key: Rows,  # [B, Hkv, S, D]
    value: Rows,  # [B, Hkv, S, Dv]
    attention_mask: torch.Tensor | None,  # bool [B, 1, T, S]
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,  # [Hq], a sink's score
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention over exactly the rows handed in, each K and V read once for its whole query group.

    Gives `[B, T, Hq, Dv]`. Raises NotImplementedError on an argument that it would have to obey.
    """
    unknown = [
        name
        for name, value in kwargs.items()
        if name not in IGNORED and value is not None and value is not False
    ]
    if unknown or dropout:
        raise NotImplementedError(", ".join(unknown) or "dropout")
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        raise NotImplementedError("attention_mask as numbers")
    on = context.current()
    if on.reads is not None:
        on.reads.add(key.nbytes + value.nbytes)
    key, value = dense(key), dense(value)
    if on.capture is not None and module.layer_idx == on.capture.layer:
        on.capture.take(query, key, scaling)
    if softcap is not None or s_aux is not None:
        return _explicit(query, key, value, attention_mask, scaling, softcap, s_aux), None
    num_new = query.shape[2]
    alone = attention_mask is None and num_new not in (1, key.shape[2])  # which it sees is not said
    if on.compiled and not alone and build.takes_rows(key, value, attention_mask, num_new):
        return build.attend(query, key, value, attention_mask, scaling), None
    if num_new == 1:
        return _one_query(query, key, value, attention_mask, scaling), None
    return _many_queries(query, key, value, attention_mask, scaling, upcast=on.upcast), None


def _many_queries(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    *,
    upcast: bool,
) -> torch.Tensor:
    num_query_heads, num_kv_heads, dtype = query.shape[1], key.shape[1], query.dtype
    if upcast:
        query, key, value = query.float(), key.float(), value.float()
    grouped = num_query_heads != num_kv_heads
    if grouped and mask is not None and query.is_cuda:
        # With a mask CUDA's fast kernels take no groups.
        key = key.repeat_interleave(num_query_heads // num_kv_heads, dim=1)
        value = value.repeat_interleave(num_query_heads // num_kv_heads, dim=1)
        grouped = False
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=grouped,
    )
    return out.to(dtype).transpose(1, 2)


def _one_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """The queries of a group become rows of one product: enable_gqa is five times slower here."""
    batch, num_query_heads, _, width = query.shape
    folded = query.reshape(batch, key.shape[1], -1, width)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, 1, num_query_heads, -1)


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The same written out, for scores that are capped (Gemma 2) or share with a sink (gpt-oss),
    which torch's own function cannot do."""
    batch, num_query_heads, num_new, width = query.shape
    num_kv_heads, num_rows = key.shape[1], key.shape[2]
    folded = query.reshape(batch, num_kv_heads, -1, width)  # [B, Hkv, G * T, D]
    scores = folded @ key.transpose(2, 3) * (width**-0.5 if scaling is None else scaling)
    scores = scores.view(batch, num_kv_heads, -1, num_new, num_rows)  # [B, Hkv, G, T, S]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is None and num_new > 1:
        mask = torch.ones(num_new, num_rows, dtype=torch.bool, device=query.device).tril(
            num_rows - num_new
        )[None, None]
    if mask is not None:
        scores = scores.masked_fill(~mask[:, :, None], torch.finfo(scores.dtype).min)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, num_kv_heads, -1, 1, 1)
        column = column.expand(batch, -1, -1, num_new, -1)
        scores = torch.cat([scores, column], dim=-1)
    shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    shares = shares[..., :num_rows].reshape(batch, num_kv_heads, -1, num_rows)
    out = (shares @ value).view(batch, num_query_heads, num_new, -1)
    return out.transpose(1, 2)


def register() -> None:
    """Make `row_attention` known to transformers. Without the mask's name no mask is made."""
    AttentionInterface.register(ATTENTION, row_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
