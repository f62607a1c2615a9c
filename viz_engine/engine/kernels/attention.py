"""The attention that reads the rows: exactly those handed in, each once for its whole query group.

Registered with transformers under a name; `RowReads` counts the bytes of K and V that it reads. It
raises on an argument that it would have to obey, so that the probe falls back. It knows nothing
of caches or models.

Try it: tests/engine/test_architectures.py runs every named type through it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from viz_engine.engine.kernels import build
from viz_engine.run.events import EnginePart
from viz_engine.text import Message

ATTENTION = "second_token"  # the name under which transformers finds `row_attention`
# These say nothing that the mask does not say, or speak of things that are not attention's.
IGNORED = {"position_ids", "use_cache", "is_causal", "sliding_window"}
_counting: list["RowReads"] = []  # the counter of the forward that is on
_in_float32: list[bool] = []  # not empty: inside `in_float32`
_compiled: list[bool] = []  # not empty: inside `compiled`
PROBED_ROWS = 1024  # on which both ways are timed
CHUNK = 256  # queries of a chunk of prefill
GAIN = 0.9  # of torch's time: what the own kernel must reach
_looks: list["AttentionLook"] = []  # the look of the forward that is on


class StoredRows(Protocol):
    """K or V in a store's own format, handed through the model in place of a tensor."""

    nbytes: int  # of the tensors behind it: what a read of it reads

    def dense(self) -> torch.Tensor:
        """As a tensor `[B, H, S, D]`."""


Rows = torch.Tensor | StoredRows


def dense(rows: Rows) -> torch.Tensor:
    """Rows as a tensor."""
    return rows if isinstance(rows, torch.Tensor) else rows.dense()


class RowReads:
    """Bytes of K and V that attention has read. A layer that reads another's rows counts them
    again; of latents the expanded keys and values count, which is what attention reads."""

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, key: Rows, value: Rows) -> None:
        self.num_bytes += key.nbytes + value.nbytes

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the reads of the forward inside. Not every model hands keyword arguments through
        to its attention, so the counter is not one."""
        _counting.append(self)
        try:
            yield
        finally:
            _counting.pop()


class AttentionLook:
    """The attention weights of one layer and query head: what a look at a forward brings.

    `weights` holds, after a forward inside `looking`, the last `most_queries` query rows of the
    first sequence as float32 `[queries, rows]`, each summing to 1.
    """

    __slots__ = ("layer", "most_queries", "query_head", "weights")

    def __init__(self, layer: int, query_head: int, most_queries: int) -> None:
        self.layer = layer
        self.query_head = query_head
        self.most_queries = most_queries
        self.weights: torch.Tensor | None = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at the forward inside. It costs a product more: never inside a timed span."""
        _looks.append(self)
        try:
            yield
        finally:
            _looks.pop()

    def take(self, query: torch.Tensor, key: torch.Tensor, scaling: float | None) -> None:
        """`query` `[B, Hq, T, D]`, `key` `[B, Hkv, S, D]` of the layer: a causal softmax, written
        out."""
        num_new, num_rows = query.shape[2], key.shape[2]
        first = max(0, num_new - self.most_queries)
        queries = query[0, self.query_head, first:].float()  # [n, D]
        keys = key[0, self.query_head // (query.shape[1] // key.shape[1])].float()  # [S, D]
        scores = queries @ keys.T * (query.shape[3] ** -0.5 if scaling is None else scaling)
        seen = torch.ones_like(scores, dtype=torch.bool).tril(num_rows - num_new + first)
        self.weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)


@contextmanager
def in_float32(wanted: bool) -> Iterator[None]:
    """Convert what several queries at once read to float32, which is exact: some processors
    multiply faster in it. The rows stay as they are."""
    if not wanted:
        yield
        return
    _in_float32.append(True)
    try:
        yield
    finally:
        _in_float32.pop()


@contextmanager
def compiled(wanted: bool) -> Iterator[None]:
    """Let queries read the rows with this program's own kernel."""
    if not wanted:
        yield
        return
    _compiled.append(True)
    try:
        yield
    finally:
        _compiled.pop()


def choose(
    num_query_heads: int | None,
    sizes: tuple[int, int, int],
    device: str,
    dtype: torch.dtype,
    own_attention: bool,
    upcast: bool,
) -> tuple[EnginePart, EnginePart]:
    """Whether `compiled` is faster than torch here in decode and in prefill (there with
    `in_float32(upcast)`), for a layer with `sizes` (KV heads, widths of K and of V): timed on some
    rows."""
    num_heads, width, value_width = sizes
    if device != "cpu" or not own_attention or not num_heads or not num_query_heads:
        return _both_off(Message(key="part.compiled_not_ours"))
    if why := build.load():
        return _both_off(why)
    queries = torch.ones(1, num_query_heads, CHUNK, width, dtype=dtype)
    key = torch.ones(1, num_heads, PROBED_ROWS, width, dtype=dtype)
    value = torch.ones(1, num_heads, PROBED_ROWS, value_width, dtype=dtype)
    if num_query_heads % num_heads or not build.takes_rows(key, value, None):
        return _both_off(Message(key="part.compiled_widths"))
    mask = torch.ones(CHUNK, PROBED_ROWS, dtype=torch.bool).tril(PROBED_ROWS - CHUNK)[None, None]
    one = (queries[:, :, :1], key, value, None, None)
    chunk = (queries, key, value, mask, None)
    ways = {"decode": (_one_query, one), "prefill": (_many_queries, chunk)}
    with torch.inference_mode(), in_float32(upcast):
        decode, prefill = (
            build.fastest_ms(
                {
                    "own": [lambda given=given: build.attend(*given)],
                    "torch": [lambda theirs=theirs, given=given: theirs(*given)],
                }
            )
            for theirs, given in ways.values()
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
    params = {f"{which}_ms": f"{ms:.3f}" for which, ms in took.items()} | {"rows": PROBED_ROWS}
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
    if _counting:
        _counting[-1].add(key, value)
    key, value = dense(key), dense(value)
    if _looks and module.layer_idx == _looks[-1].layer:
        _looks[-1].take(query, key, scaling)
    if softcap is not None or s_aux is not None:
        return _explicit(query, key, value, attention_mask, scaling, softcap, s_aux), None
    num_new = query.shape[2]
    alone = attention_mask is None and num_new not in (1, key.shape[2])  # which it sees is not said
    if _compiled and not alone and build.takes_rows(key, value, attention_mask, num_new):
        return build.attend(query, key, value, attention_mask, scaling), None
    if num_new == 1:
        return _one_query(query, key, value, attention_mask, scaling), None
    return _many_queries(query, key, value, attention_mask, scaling), None


def _many_queries(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    num_query_heads, num_kv_heads, dtype = query.shape[1], key.shape[1], query.dtype
    if _in_float32:
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
