"""How each engine rounds and shares out what a model keeps: blocks, pages, cells, slots.

Each engine's own arithmetic, from its source: vLLM (v1/core/kv_cache_utils.py,
v1/kv_cache_interface.py), SGLang (mem_cache/memory_pool.py), llama.cpp (llama-kv-cache-iswa.cpp),
TensorRT-LLM (kvCacheManager.cpp). All bytes are of one rank. It knows nothing of weights, GPUs or
of what fits.

Try it: `python -m viz_engine size --model llama-3.1-8b --context 8192 --engine vllm`
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from viz_engine.memory.deployment import Deployment
from viz_engine.model.spec import LayerSpec
from viz_engine.run import cost
from viz_engine.text import UserError

PAD_CELLS = 256  # llama.cpp with flash attention, and its window cache always
OLD_PAD_CELLS = 32  # llama.cpp without flash attention, before late 2025
# More than this times the fewest layers of a kind, and vLLM makes groups of the fewest.
GROUP_RATIO = 1.5
MLA_ALIGN = 64  # of a block of latent rows beside states; 128 with CUTLASS MLA


# --- vLLM -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmGroup:
    """Layers that share a block table: `num_layers` of one kind, padding not counted."""

    kind: str
    num_layers: int
    block_len: int  # tokens in a block
    blocks_per_request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPool:
    """What vLLM makes of a model's cache on one rank."""

    block_len: int  # of the attention layers, grown where a state needs a larger page
    block_bytes: int  # one block id in all layers of a group: page x group size
    page_bytes: int  # one block of one layer
    group_size: int
    groups: tuple[VllmGroup, ...]
    state_page_bytes: int  # of one state layer before padding; 0: none
    context_parallel: int

    @property
    def blocks_per_request(self) -> int:
        """Block ids that one request of the longest length takes, over all groups."""
        return sum(group.blocks_per_request for group in self.groups)

    @property
    def request_bytes(self) -> int:
        """Bytes of one such request: what the start-up check asks for."""
        return self.blocks_per_request * self.block_bytes

    def num_blocks(self, available_bytes: int) -> int:
        """`floor(available / block bytes)`: "# GPU blocks"."""
        return available_bytes // self.block_bytes if self.block_bytes else 0

    def num_tokens(self, num_blocks: int) -> int:
        """Capacity of a uniform model, as "GPU KV cache size" prints it up to early 2026: blocks
        divided by groups, times the smallest block. No capacity where there are several groups."""
        smallest = min(group.block_len for group in self.groups)
        return num_blocks // len(self.groups) * smallest * self.context_parallel

    def concurrency(self, num_blocks: int) -> float:
        """ "Maximum concurrency": requests of the longest length that fit at once."""
        return num_blocks / self.blocks_per_request

    def num_tokens_by_concurrency(self, num_blocks: int, max_model_len: int) -> int:
        """ "GPU KV cache size" since mid 2026: concurrency times the longest length."""
        return int(self.concurrency(num_blocks) * max_model_len)


@lru_cache(maxsize=1024)
def vllm_pool(served: Deployment, context_len: int, hybrid: bool | None = None) -> VllmPool:
    """The pool of one rank (of the pipeline stage that needs most), `context_len` being the longest
    request.

    `hybrid` off counts window and chunked layers as full; None is vLLM's default: on, except for
    chunked layers and where window caches are off. State blocks: 1 without prefix caching, 2 with
    ("align"), and one more for each drafted token. Raises UserError where the pages of a model
    cannot be made equal.
    """
    if hybrid is None and not served.window_cache:
        hybrid = False
    ask = _VllmAsk(served=served, context_len=context_len, hybrid=hybrid)
    return max((ask.pool(stage) for stage in served.stages), key=lambda pool: pool.block_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _VllmAsk:
    served: Deployment
    context_len: int
    hybrid: bool | None

    def pool(self, counts: Mapping[LayerSpec, int]) -> VllmPool:
        """The pool of a stage whose layers `counts` counts."""
        attention: dict[tuple, tuple[LayerSpec, int]] = {}
        for layer, num in counts.items():
            if layer.num_kv_heads:
                seen = self._seen(layer, counts)
                key = (seen.kind, seen.window, seen.num_kv_heads, seen.key_dim, seen.value_dim)
                attention[key] = (seen, attention.get(key, (seen, 0))[1] + num)
        states = {x: n for x, n in counts.items() if x.conv_elements or x.recurrent_elements}
        state_page = max((self._state_bytes(x) for x in states), default=0)
        layers = [layer for layer, _ in attention.values()]
        block_len = self._grown_block(layers, state_page)
        pages = [block_len * self._row(layer) for layer in layers]
        nums = [num for _, num in attention.values()]
        if len({(x.kind, x.window) for x in layers}) == 1 and not states:
            # one group, whatever the widths of its layers
            return VllmPool(
                block_len=block_len,
                block_bytes=sum(page * num for page, num in zip(pages, nums, strict=True)),
                page_bytes=max(pages),
                group_size=sum(nums),
                groups=(self._group(layers[0], sum(nums), block_len),),
                state_page_bytes=0,
                context_parallel=self.served.dcp,
            )
        page = max(pages, default=state_page)
        kinds = [
            (x, n, self._page_block(p, page, block_len))
            for (x, n), p in zip(attention.values(), pages, strict=True)
        ]
        if states:
            kinds.append((None, sum(states.values()), block_len))
        fewest, most = (pick((num for _, num, _ in kinds), default=0) for pick in (min, max))
        size = most if most < fewest * GROUP_RATIO else fewest
        groups = []
        for layer, num, length in kinds:
            parts = -(-num // size)
            shares = [num // parts + (i < num % parts) for i in range(parts)]
            groups += [self._group(layer, share, length) for share in shares]
        return VllmPool(
            block_len=block_len,
            block_bytes=page * size,
            page_bytes=page,
            group_size=size,
            groups=tuple(groups),
            state_page_bytes=state_page,
            context_parallel=self.served.dcp,
        )

    def _seen(self, layer: LayerSpec, counts: Mapping[LayerSpec, int]) -> LayerSpec:
        """The layer as vLLM's manager sees it: a window counts only where hybrids are handled, or
        where all layers have it."""
        if layer.kind not in ("sliding", "chunked"):
            return layer
        others = any(x.num_kv_heads and x.kind != layer.kind for x in counts)
        off = self.hybrid is False or (self.hybrid is None and layer.kind == "chunked")
        return replace(layer, kind="full", window=None) if off and others else layer

    def _row(self, layer: LayerSpec) -> int:
        served = self.served
        return cost.layer_rows(layer, served.k_format, served.k_format, tp=served.tp).total

    def _state_bytes(self, layer: LayerSpec) -> int:
        return cost.layer_state(
            layer,
            self.served.conv_format,
            self.served.recurrent_format,
            tp=self.served.tp,
            extra_columns=self.served.num_draft_tokens,
        ).total

    def _grown_block(self, attention: list[LayerSpec], state_page: int) -> int:
        """`align x ceil(state page / (align x bytes of a token))` where that is more; with latent
        rows `align` is a multiple of 64, which the kernels ask for (`MLAAttention`'s backends)."""
        if not attention or not state_page:
            return self.served.block_len
        row = max(self._row(x) for x in attention)
        align = self.served.block_len
        if any(layer.kind == "latent" for layer in attention):
            align = pad(align, MLA_ALIGN)
        return max(align, align * math.ceil(state_page / (align * row)))

    @staticmethod
    def _page_block(page: int, largest: int, block_len: int) -> int:
        """Tokens in a block whose page is as large as the largest."""
        if largest % page:
            raise UserError("error.size_pages", page=page, largest=largest)
        return block_len * (largest // page)

    def _group(self, layer: LayerSpec | None, num_layers: int, block_len: int) -> VllmGroup:
        kind = "state" if layer is None else layer.kind
        length = self.context_len
        if kind == "state":
            blocks = self.served.state_blocks + self.served.num_draft_tokens
        elif kind == "sliding":
            seen = min(layer.window - 1 + self.served.batched_tokens, length)
            blocks = math.ceil(seen / block_len) + 1
        elif kind == "chunked":
            blocks = math.ceil(min(layer.window + self.served.batched_tokens, length) / block_len)
        elif kind == "cross":
            blocks = math.ceil((layer.fixed_len or self.served.cross_len or 0) / block_len)
        else:
            blocks = math.ceil(math.ceil(length / self.served.dcp) / block_len)
        return VllmGroup(
            kind=kind, num_layers=num_layers, block_len=block_len, blocks_per_request=blocks
        )


def vllm_longest(served: Deployment, available_bytes: int, *, upper: int) -> int:
    """ "estimated maximum model length": the longest request that `available_bytes` hold, at most
    `upper`; 0: not even one token."""
    low, high = 0, upper
    while low < high:
        middle = (low + high + 1) // 2
        if vllm_pool(served, middle).request_bytes <= available_bytes:
            low = middle
        else:
            high = middle - 1
    return low


# --- llama.cpp --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCache:
    """What llama.cpp reserves, all of it at start."""

    cells: int  # of a full layer
    window_cells: int  # of a window layer
    full_bytes: int
    window_bytes: int
    cross_bytes: int
    conv_bytes: int  # "R"
    recurrent_bytes: int  # "S"

    @property
    def kv_bytes(self) -> int:
        return self.full_bytes + self.window_bytes + self.cross_bytes

    @property
    def state_bytes(self) -> int:
        return self.conv_bytes + self.recurrent_bytes


def pad(value: int, multiple: int) -> int:
    """`value` rounded up to a multiple."""
    return -(-value // multiple) * multiple


def llama_cache(
    served: Deployment,
    *,
    num_cells: int,
    num_sequences: int = 1,
    pad_cells: int = PAD_CELLS,
    latent: str = "latent",
    state_format: str = "f32",
    cross_format: str | None = None,
) -> LlamaCache:
    """llama.cpp's caches for `num_cells` of context in all slots together (`n_ctx`).

    Window layers get `pad256(min(n_ctx, window x slots + micro-batch))` cells; without window
    caches (builds before May 2025, ik_llama.cpp, `--swa-full`) as many as full layers. States are
    kept once a slot and plane (1 + speculative snapshots). `latent`: see `cost.layer_rows`.
    """
    cells = pad(num_cells, pad_cells)
    planes = num_sequences * (1 + served.num_draft_tokens)
    full = window = cross = conv = recurrent = window_cells = 0
    for layer, num in served.model.layer_counts.items():
        row = cost.layer_rows(
            layer, served.k_format, served.v_format, latent=latent, sparse_fp8=False
        )
        if layer.kind in ("sliding", "chunked"):
            own = pad(min(cells, layer.window * num_sequences + served.batched_tokens), PAD_CELLS)
            own = own if served.window_cache else cells
            window_cells = max(window_cells, own)
            window += num * own * row.total
        elif layer.kind == "cross":
            name = cross_format or served.k_format
            cross += num * (layer.fixed_len or 0) * cost.layer_rows(layer, name, name).total
        else:
            full += num * cells * row.total
        state = cost.layer_state(layer, state_format, state_format)
        conv += num * state.conv * planes
        recurrent += num * state.recurrent * planes
    return LlamaCache(
        cells=cells,
        window_cells=window_cells,
        full_bytes=full,
        window_bytes=window,
        cross_bytes=cross,
        conv_bytes=conv,
        recurrent_bytes=recurrent,
    )


# --- SGLang -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangPool:
    """SGLang's pools on one rank, as its log prints them ("GB" there is GiB)."""

    key_bytes: int
    value_bytes: int
    index_bytes: int
    conv_bytes: int
    recurrent_bytes: int
    request_table_bytes: int

    @property
    def kv_bytes(self) -> int:
        return self.key_bytes + self.value_bytes + self.index_bytes


def sglang_pool(
    served: Deployment,
    *,
    num_tokens: int,
    num_state_slots: int = 0,
    max_running: int = 0,
    max_context_len: int = 0,
) -> SglangPool:
    """`(tokens + page) x bytes` for K and for V, states for one slot more than asked, and the
    table from requests to tokens, `(max_running + 1) x (context + 4) x 4` bytes."""
    held = num_tokens + served.block_len
    slots = num_state_slots + 1 if num_state_slots else 0
    key = value = index = conv = recurrent = 0
    for layer, num in served.layers.items():
        row = cost.layer_rows(layer, served.k_format, served.v_format, tp=served.tp)
        key += num * held * row.key
        value += num * held * row.value
        index += num * held * row.index
        state = cost.layer_state(layer, served.conv_format, served.recurrent_format, tp=served.tp)
        conv += num * slots * state.conv
        recurrent += num * slots * state.recurrent
    table = (max_running + 1) * (max_context_len + 4) * 4 if max_running else 0
    return SglangPool(
        key_bytes=key,
        value_bytes=value,
        index_bytes=index,
        conv_bytes=conv,
        recurrent_bytes=recurrent,
        request_table_bytes=table,
    )


# --- TensorRT-LLM -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtPool:
    """TensorRT-LLM's primary pool on one rank."""

    block_len: int
    block_bytes: int

    def num_blocks(self, free_bytes: float, fraction: float = 0.9) -> int:
        """`ceil(free memory x fraction / block bytes)`."""
        return math.ceil(free_bytes * fraction / self.block_bytes)

    def pool_bytes(self, num_tokens: int) -> int:
        """Bytes of the blocks that hold `num_tokens`."""
        return math.ceil(num_tokens / self.block_len) * self.block_bytes


def trt_pool(served: Deployment) -> TrtPool:
    """A block holds `block_len` tokens of all layers of a stage."""
    row = max(
        sum(
            num * cost.layer_rows(x, served.k_format, served.v_format, tp=served.tp).total
            for x, num in stage.items()
        )
        for stage in served.stages
    )
    return TrtPool(block_len=served.block_len, block_bytes=served.block_len * row)
