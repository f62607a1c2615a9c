"""Descriptions of models that nobody loads."""

from viz_engine.model import config, files
from viz_engine.model.spec import ModelSpec


def spec(
    layers: int = 30, kv_heads: int = 3, head_dim: int = 64, name: str = "test-model", **sizes: int
) -> ModelSpec:
    """The default model's sizes; others, by their keys of a config.json, on request."""
    heads = 9 if 9 % kv_heads == 0 else kv_heads
    asked = {
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "max_position_embeddings": 65536,
    }
    return config.read(files.DEFAULT_CONFIG | asked | sizes).spec(name)


# Two layers of one KV head: a row is two cells.
TOY = spec(
    2,
    kv_heads=1,
    head_dim=4,
    name="toy",
    hidden_size=8,
    intermediate_size=16,
    num_attention_heads=2,
    vocab_size=32,
    max_position_embeddings=8192,
)
