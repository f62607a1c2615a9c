"""Descriptions of models that nobody loads."""

from viz_engine.model.spec import LayerSpec, ModelSpec


def spec(layers: int = 30, kv_heads: int = 3, head_dim: int = 64, **changes: object) -> ModelSpec:
    """The default model's sizes; others on request."""
    values = {
        "name": "test-model",
        "model_type": "llama",
        "layers": (LayerSpec(num_kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim),)
        * layers,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_query_heads": 9,
        "head_dim": head_dim,
        "vocab_size": 49152,
        "max_context_len": 65536,
        "tied_embeddings": True,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
    }
    return ModelSpec(**(values | changes))


# Two layers of one KV head: a row is two cells.
TOY = spec(
    2,
    kv_heads=1,
    head_dim=4,
    name="toy",
    hidden_size=8,
    intermediate_size=16,
    num_query_heads=2,
    vocab_size=32,
    max_context_len=8192,
)
