"""ModelSpec: what a model's config.json says about the size of its layers and of its K/V rows.

It reads the Llama family (llama, mistral, qwen2, qwen3), all layers with full attention. It knows
nothing of dtypes, batches or time: `cost.py` makes bytes and FLOPs of it.

Try it: `python -c "import json; from viz_engine.spec import ModelSpec; \
print(ModelSpec.from_config(json.load(open('config.json')), name='mine'))"`
"""

from collections.abc import Mapping
from dataclasses import dataclass

from viz_engine.text import UserError

LLAMA_FAMILY = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer's K/V row: `num_kv_heads` keys of `key_dim` and as many values of `value_dim`."""

    num_kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def row_elements(self) -> int:
        """Numbers that one position stores in this layer, K and V together."""
        return self.num_kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The sizes of a decoder, as its config states them. Lengths in tokens, sizes in elements."""

    name: str
    model_type: str
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    intermediate_size: int
    num_query_heads: int
    head_dim: int
    vocab_size: int
    max_context_len: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_columns(self) -> int:
        """Columns of the matrix: one for each KV head of each layer."""
        return sum(layer.num_kv_heads for layer in self.layers)

    @property
    def row_elements(self) -> int:
        """Numbers that one position stores in all layers."""
        return sum(layer.row_elements for layer in self.layers)

    @property
    def query_elements(self) -> int:
        """Width of all query heads of a layer together."""
        return self.num_query_heads * self.head_dim

    @property
    def num_layer_matmul_weights(self) -> int:
        """Weights of all layers that take part in a matrix product, once for each token."""
        attention = sum(
            self.hidden_size * (self.query_elements + layer.row_elements)
            + self.query_elements * self.hidden_size
            for layer in self.layers
        )
        return attention + self.num_layers * 3 * self.hidden_size * self.intermediate_size

    @property
    def num_layer_other_weights(self) -> int:
        """Norms and biases of all layers and the last norm."""
        total = self.num_layers * 2 * self.hidden_size + self.hidden_size
        for layer in self.layers:
            total += self.qkv_bias * (self.query_elements + layer.row_elements)
            total += self.qk_norm * 2 * self.head_dim
        total += self.num_layers * self.output_bias * self.hidden_size
        total += self.num_layers * self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        return total

    @property
    def num_head_weights(self) -> int:
        """The output matrix, `[vocab, hidden]`: the embedding table again where they are tied."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All weights held, a tied table once."""
        tables = self.num_head_weights * (1 if self.tied_embeddings else 2)
        return tables + self.num_layer_matmul_weights + self.num_layer_other_weights

    @classmethod
    def from_config(cls, config: Mapping[str, object], *, name: str) -> "ModelSpec":
        """Read a Hugging Face config. Raises UserError that names the key or the kind it cannot
        read."""
        model_type = str(config.get("model_type") or "?")
        if model_type not in LLAMA_FAMILY:
            raise UserError(
                "error.model_family", model_type=model_type, family=", ".join(LLAMA_FAMILY)
            )
        if _uses_window(config):
            raise UserError("error.model_window", model_type=model_type)

        def number(key: str, default: int | None = None, most: int = 2**31) -> int:
            value = config.get(key)
            value = default if value is None else value
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise UserError("error.config_key", key=key)
            return value

        heads = number("num_attention_heads")
        head_dim = number("head_dim", number("hidden_size") // heads)
        layer = LayerSpec(
            num_kv_heads=number("num_key_value_heads", heads), key_dim=head_dim, value_dim=head_dim
        )
        attention_bias = bool(config.get("attention_bias"))
        return cls(
            name=name,
            model_type=model_type,
            layers=(layer,) * number("num_hidden_layers", most=2000),
            hidden_size=number("hidden_size"),
            intermediate_size=number("intermediate_size"),
            num_query_heads=heads,
            head_dim=head_dim,
            vocab_size=number("vocab_size"),
            max_context_len=number("max_position_embeddings"),
            tied_embeddings=bool(config.get("tie_word_embeddings")),
            qkv_bias=attention_bias or model_type == "qwen2",
            output_bias=attention_bias and model_type in ("llama", "qwen3"),
            mlp_bias=bool(config.get("mlp_bias")) and model_type == "llama",
            qk_norm=model_type == "qwen3",
        )


def _uses_window(config: Mapping[str, object]) -> bool:
    """Whether any layer attends to a window only. Qwen configs name a window that is switched
    off."""
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list):
        return any(kind != "full_attention" for kind in layer_types)
    # Mistral's configuration class has a window where config.json does not speak of one.
    default = 4096 if config.get("model_type") == "mistral" else None
    if config.get("sliding_window", default) is None:
        return False
    return bool(config.get("use_sliding_window", config.get("model_type") == "mistral"))
