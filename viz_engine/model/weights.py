"""The weight matrices of a model, from the keys of its config: how many, how large, how shared.

What a rank of tensor parallel holds, and what torch's allocator makes
of it. A type whose matrices are not described here gives None, never a guess. It knows nothing of
caches.

Try it: `python -m viz_engine size --model qwen3-32b --context 1 --tp 2 --engine vllm`
"""

from collections import Counter

from viz_engine.model.config_keys import FFN, HEADS, VOCAB, Keys, whole
from viz_engine.model.spec import LayerSpec, WeightGroup

MIB = 1024**2


def file_bytes(num_parameters: int, bits: float) -> int:
    """`parameters x bits / 8`: what a GGUF file prints as "model size"."""
    return round(num_parameters * bits / 8)


def mean_bits(groups: tuple[WeightGroup, ...], bits: float) -> float:
    """Bits of a weight as released, the mean of all; `bits` where nothing else is said."""
    every = sum(group.num_weights for group in groups)
    return sum(g.num_weights * (g.stored_bits or bits) for g in groups) / every


def rank_bytes(
    groups: tuple[WeightGroup, ...], bits: float, tp: int, *, stored: bool = False
) -> int:
    """Bytes of all weights on one of `tp` ranks, without any rounding; `stored`: each in the type
    that it was released in, where that is not `bits`."""
    return round(
        sum(
            group.rank_size(tp) * group.count * (stored and group.stored_bits or bits)
            for group in groups
        )
        / 8
    )


def allocated_bytes(
    groups: tuple[WeightGroup, ...],
    bits: float,
    tp: int,
    rope_cache_numbers: int = 0,
    *,
    stored: bool = False,
    mix: bool = False,
) -> int:
    """What torch's allocator counts for them, and for the rotary table of 16-bit cos and sin: what
    vLLM prints as "Model loading took". Tables, routers, norms and biases stay in 16 bits where
    the rest is quantised, unless `bits` are the mean of a `mix` that counts them in already;
    `stored` as in `rank_bytes`. Tensors are rounded to 512 bytes; one of
    10 MiB and more takes whole segments of 2 MiB unless more than 1 MiB would be left over
    (CUDACachingAllocator: kMinLargeAlloc, kRoundLarge, kSmallSize)."""
    total = _allocated(rope_cache_numbers * 2)
    for group in groups:
        kept = max(bits, 16.0) if group.stays_wide and not mix else bits
        kept = stored and group.stored_bits or kept
        total += _allocated(round(group.rank_size(tp) * kept / 8)) * group.count
    return total


def _allocated(num_bytes: int) -> int:
    num_bytes = -(-num_bytes // 512) * 512
    if num_bytes < 10 * MIB:
        return num_bytes
    segment = -(-num_bytes // (2 * MIB)) * 2 * MIB
    return segment if segment - num_bytes <= MIB else num_bytes


def widest(groups: tuple[WeightGroup, ...]) -> int:
    """Width of the widest MLP that one token passes through: gate and up of a dense layer, or of
    the experts it is routed to together. 0: none known."""
    inner = [
        g.shape[-1] * (g.active or 1) // g.count if "expert" in g.name else g.shape[-1]
        for g in groups
        if g.name.startswith("mlp.") and g.name.endswith("up")
    ]
    return max(inner, default=0)


# Types whose matrices have biases, norms or shapes that no key of the config tells.
QKV_BIAS = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text")
QKV_BIAS += ("chatglm", "glm", "ernie4_5")
ALL_BIAS = (
    "gpt2",
    "opt",
    "gpt_neox",
    "bloom",
    "gpt_bigcode",
    "starcoder2",
    "phi",
    "gptj",
    "codegen",
)
QK_NORM = ("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5_text")
QK_NORM += ("qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe", "qwen3_next", "gemma3", "gemma3_text")
GATED_QUERY = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
FOUR_NORMS = ("gemma2", "gemma3", "gemma3_text", "glm4", "olmo2")
PLAIN_MLP = (
    "gpt2",
    "opt",
    "gpt_neox",
    "bloom",
    "gpt_bigcode",
    "starcoder2",
    "phi",
    "gptj",
    "codegen",
)
PLAIN_MLP += ("falcon", "mpt", "nemotron", "persimmon", "fuyu", "biogpt", "xglm")


def groups_of(
    keys: Keys, layers: tuple[LayerSpec, ...], hidden: int, tied: bool
) -> tuple[WeightGroup, ...] | None:
    """All matrices and vectors of the language model, draft layers left out. None where the type
    is one whose matrices are not described here, or the file does not say enough."""
    vocab = keys.number("vocab_size", VOCAB, most=2**24)
    if vocab is None or not _is_described(keys, layers):
        return None
    bias = keys.model_type in ALL_BIAS or bool(keys.flag("use_bias", "bias"))
    groups = [
        WeightGroup(
            name="embedding", shape=(vocab, hidden), split="vocab", looked_up=True, per_layer=False
        )
    ]
    if not tied:
        groups.append(
            WeightGroup(name="head", shape=(vocab, hidden), split="vocab", per_layer=False)
        )
    groups += _positions(keys, hidden)
    groups.append(_vector("norm", hidden * (2 if bias else 1), 1, per_layer=False))
    for layer, count in Counter(layers).items():
        groups += _attention(keys, layer, hidden, count, bias)
    mlp = _mlps(keys, len(layers), hidden, bias)
    return None if mlp is None else tuple(groups + mlp)


def _vector(name: str, numbers: int, count: int, *, per_layer: bool = True) -> WeightGroup:
    """A norm or a bias: whole on every rank."""
    return WeightGroup(name=name, shape=(numbers,), count=count, split="none", per_layer=per_layer)


def _is_described(keys: Keys, layers: tuple[LayerSpec, ...]) -> bool:
    """Whether this module's matrices are those of the type: compared with transformers for every
    type that it has (assets/config_defaults.json); a config without a type is read as Llama."""
    if keys.get("is_encoder_decoder") or any(x.kind == "cross" for x in layers):
        return False
    return not keys.model_type or bool(keys.defaults.get("weights_described"))


def _positions(keys: Keys, hidden: int) -> list[WeightGroup]:
    """Learned positions, in the types that have them."""
    extra = {"gpt2": 0, "gpt_bigcode": 0, "opt": 2, "biogpt": 2}.get(keys.model_type)
    if extra is None:
        return []
    rows = keys.needed("positions", ("n_positions", "max_position_embeddings")) + extra
    return [
        WeightGroup(
            name="positions", shape=(rows, hidden), split="none", looked_up=True, per_layer=False
        )
    ]


def _attention(
    keys: Keys, layer: LayerSpec, hidden: int, count: int, bias: bool
) -> list[WeightGroup]:
    """The matrices of a layer beside its MLP, and its norms."""
    norms = 4 if keys.model_type in FOUR_NORMS else 2
    if keys.model_type in ("mamba", "mamba2", "falcon_mamba", "nemotron_h"):
        norms = 1
    if keys.model_type in ("phi", "gptj", "codegen", "cohere", "cohere2"):
        norms = 1  # attention and MLP side by side behind one norm
    found = [_vector("norms", norms * hidden * (2 if bias else 1), count)]
    if layer.kind == "latent":
        return found + _latent(keys, layer, hidden, count)
    if layer.num_kv_heads:
        found += _heads(keys, layer, hidden, count, bias)
    if layer.recurrent_elements or layer.conv_elements:
        found += _state(keys, layer, hidden, count)
    return found


def _heads(keys: Keys, layer: LayerSpec, hidden: int, count: int, bias: bool) -> list[WeightGroup]:
    query_heads = keys.needed("num_query_heads", HEADS)
    query = query_heads * layer.key_dim
    key_value = layer.num_kv_heads * (layer.key_dim + layer.value_dim)
    width = query * (2 if keys.model_type in GATED_QUERY else 1) + key_value
    out = query_heads * layer.value_dim
    attention_bias = bool(keys.flag("attention_bias"))
    qkv_bias = attention_bias or bool(keys.flag("qkv_bias", "add_qkv_bias", "use_qkv_bias"))
    qkv_bias = qkv_bias or bias or keys.model_type in QKV_BIAS
    out_bias = bias or (
        attention_bias and keys.model_type in ("llama", "qwen3", "gpt_oss", "qwen3_moe")
    )
    shared = {"split": "heads", "kv_heads": layer.num_kv_heads}
    found = [
        WeightGroup(
            name="attention.qkv",
            shape=(hidden, width),
            count=count,
            kv_numbers=hidden * key_value,
            **shared,
        ),
        WeightGroup(name="attention.out", shape=(out, hidden), count=count),
    ]
    if qkv_bias:
        found.append(
            WeightGroup(
                name="attention.qkv_bias",
                shape=(width,),
                count=count,
                kv_numbers=key_value,
                **shared,
            )
        )
    if out_bias:
        found.append(_vector("attention.out_bias", hidden, count))
    if keys.model_type in QK_NORM:
        found.append(_vector("attention.qk_norm", 2 * layer.key_dim, count))
    if keys.model_type == "olmo2":
        found.append(
            _vector("attention.qk_norm", query + layer.num_kv_heads * layer.key_dim, count)
        )
    if keys.model_type == "gpt_oss":
        found.append(_vector("attention.sinks", query_heads, count))
    return found


def _latent(keys: Keys, layer: LayerSpec, hidden: int, count: int) -> list[WeightGroup]:
    heads = keys.needed("num_query_heads", HEADS)
    rank, rope = layer.key_dim, layer.value_dim
    nope = layer.expanded_key_elements // heads - rope
    value = layer.expanded_value_elements // heads
    query_rank = keys.number("q_lora_rank", ("q_lora_rank",))
    query = heads * (nope + rope)
    found = [
        WeightGroup(name="attention.kv_a", shape=(hidden, rank + rope), count=count, split="none"),
        _vector("attention.kv_norm", rank, count),
        WeightGroup(name="attention.kv_b", shape=(rank, heads * (nope + value)), count=count),
        WeightGroup(name="attention.out", shape=(heads * value, hidden), count=count),
    ]
    if query_rank:
        found += [
            WeightGroup(
                name="attention.q_a", shape=(hidden, query_rank), count=count, split="none"
            ),
            _vector("attention.q_norm", query_rank, count),
            WeightGroup(name="attention.q_b", shape=(query_rank, query), count=count),
        ]
    else:
        found.append(WeightGroup(name="attention.q", shape=(hidden, query), count=count))
    if layer.index_dim:
        index_heads = keys.needed("index_heads", ("index_n_heads",))
        dim = layer.index_dim
        numbers = (
            (query_rank or hidden) * index_heads * dim + hidden * (dim + index_heads) + 2 * dim
        )
        found.append(
            WeightGroup(name="attention.indexer", shape=(numbers,), count=count, split="none")
        )
    return found


def _state(keys: Keys, layer: LayerSpec, hidden: int, count: int) -> list[WeightGroup]:
    width = layer.conv_width
    kernel = layer.conv_elements // width + 1 if width else 0
    heads = keys.number("linear_num_value_heads", ("linear_num_value_heads",))
    if heads:  # gated delta net
        dim = keys.needed("linear_value_head_dim", ("linear_value_head_dim",))
        values = heads * dim
        shapes = [(hidden, width + values), (hidden, 2 * heads), (width, kernel), (values, hidden)]
        small = 2 * heads + dim
    elif layer.recurrent_elements:  # mamba
        state = keys.needed("mamba_state", ("ssm_state_size", "mamba_d_state", "state_size"))
        inner = layer.recurrent_elements // state
        heads = keys.number("mamba_heads", ("mamba_num_heads", "mamba_n_heads", "num_heads"))
        if heads and keys.model_type != "mamba":
            shapes = [(hidden, inner + width + heads), (width, kernel), (inner, hidden)]
            small = 3 * heads + width + inner
        else:
            rank = keys.number("mamba_rank", ("time_step_rank", "mamba_dt_rank")) or -(
                -hidden // 16
            )
            shapes = [
                (hidden, 2 * inner),
                (inner, kernel),
                (inner, rank + 2 * state),
                (rank, inner),
                (inner, state),
                (inner, hidden),
            ]
            small = 3 * inner + (rank + 2 * state if keys.model_type == "jamba" else 0)
    else:  # short convolution
        shapes, small = [(hidden, 3 * hidden), (hidden, kernel), (hidden, hidden)], 0
    found = [WeightGroup(name="state", shape=shape, count=count) for shape in shapes]
    return [*found, _vector("state.small", small, count)] if small else found


EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token")


def _mlps(keys: Keys, num_layers: int, hidden: int, bias: bool) -> list[WeightGroup] | None:
    """Dense layers and mixtures of experts. None: no width is known."""
    mats = 1 if keys.model_type in PLAIN_MLP else 2  # up, or gate and up
    inner = keys.number("intermediate_size", FFN)
    if keys.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return []
    if inner is None and keys.model_type in (
        "gpt2",
        "gptj",
        "codegen",
        "gpt_bigcode",
        "bloom",
        "falcon",
    ):
        inner = 4 * hidden
        keys.note("intermediate_size", inner, "4 x hidden_size")
    experts = keys.number("num_experts", EXPERTS, least=0) or 0
    sparse = _sparse_layers(keys, num_layers) if experts > 1 else 0
    found = []
    if num_layers > sparse:
        if inner is None:
            return None
        dense = num_layers - sparse
        found += [
            WeightGroup(name="mlp.up", shape=(hidden, mats * inner), count=dense),
            WeightGroup(name="mlp.down", shape=(inner, hidden), count=dense),
        ]
        if bias or keys.flag("mlp_bias"):
            found.append(_vector("mlp.bias", mats * inner + hidden, dense))
    if not sparse:
        return found
    width = keys.number("moe_intermediate_size", ("moe_intermediate_size",)) or inner
    if width is None:
        return None
    chosen = keys.number("num_experts_per_token", CHOSEN) or 1
    count, active = sparse * experts, sparse * min(chosen, experts)
    found += [
        WeightGroup(name="mlp.expert_up", shape=(hidden, 2 * width), count=count, active=active),
        WeightGroup(name="mlp.expert_down", shape=(width, hidden), count=count, active=active),
        WeightGroup(name="mlp.router", shape=(hidden, experts), count=sparse, split="none"),
    ]
    if keys.model_type == "gpt_oss":
        small = {"split": "none", "count": count, "active": active}
        found.append(WeightGroup(name="mlp.expert_bias", shape=(2 * width + hidden,), **small))
        found.append(_vector("mlp.router_bias", experts, sparse))
    num_shared = keys.number(
        "num_shared_experts", ("n_shared_experts", "num_shared_experts"), least=0
    )
    shared = keys.number("shared_width", ("shared_expert_intermediate_size",), least=0)
    gate = bool(shared)
    shared = shared or (num_shared or 0) * width
    if shared:
        found += [
            WeightGroup(name="mlp.shared_up", shape=(hidden, 2 * shared), count=sparse),
            WeightGroup(name="mlp.shared_down", shape=(shared, hidden), count=sparse),
        ]
        if gate:
            found.append(
                WeightGroup(name="mlp.shared_gate", shape=(hidden, 1), count=sparse, split="none")
            )
    return found


def _sparse_layers(keys: Keys, num_layers: int) -> int:
    """Layers with a mixture of experts in place of one MLP."""
    name, listed = keys.listed("mlp_layer_types", "moe_layer_freq")
    if name == "mlp_layer_types":
        return sum(kind == "sparse" for kind in listed[:num_layers])
    if name == "moe_layer_freq":
        return sum(1 for sparse in listed[:num_layers] if sparse)
    period = keys.number("expert_layer_period", ("expert_layer_period",))
    if period:
        offset = keys.number("expert_layer_offset", ("expert_layer_offset",), least=0) or 0
        return sum(i % period == offset for i in range(num_layers))
    first = keys.number(
        "first_k_dense_replace", ("first_k_dense_replace", "num_dense_layers"), least=0
    )
    step = keys.number("decoder_sparse_step", ("decoder_sparse_step",)) or 1
    dense = {whole("mlp_only_layers", i, least=0) for i in keys.listed("mlp_only_layers")[1]}
    return sum(
        i >= (first or 0) and (i + 1) % step == 0 and i not in dense for i in range(num_layers)
    )
