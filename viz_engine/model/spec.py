"""ModelSpec: the sizes of a model's layers, of what each keeps from token to token, of its weights.

Of the Llama family (llama, mistral, qwen2, qwen3; all layers with full attention) config.json says
all of it. Of any other type the loaded model is asked (`engine/compatibility.py`); its weights are
then counted and no formula stands for them. It knows nothing of dtypes, batches or time.

Try it: `python -c "import json; from viz_engine.model.spec import ModelSpec; \
print(ModelSpec.from_config(json.load(open('config.json')), name='mine'))"`
"""

from collections.abc import Mapping
from dataclasses import dataclass

from viz_engine.text import UserError

LLAMA_FAMILY = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What one layer keeps: a row a position (`num_kv_heads` keys of `key_dim`, as many values of
    `value_dim`), a state of constant size, both, or nothing.

    Kinds: full (all rows), sliding and chunked (the last `window` positions), latent (one
    compressed row for all heads: `key_dim` and `value_dim` are its two parts), cross (rows of an
    image or of an encoder, `fixed_len` of them), state (no rows), shared (reads the rows of layer
    `shares`), none (no attention, or nothing kept).

    A probed layer says its state in bytes, one that was read from a config in numbers.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    kind: str = "full"
    window: int | None = None  # positions that a query attends to, its own included
    state_bytes: int = 0  # of one sequence, whatever its length
    shares: int | None = None
    fixed_len: int | None = None  # of cross: rows whatever the text's length; None: not known
    conv_elements: int = 0  # of the state: the last inputs of a short convolution, token shifts
    conv_width: int = 0  # of the state: numbers that one more input of the convolution takes
    recurrent_elements: int = 0  # of the state: what the recurrence carries
    expanded_key_elements: int = 0  # of latent: K of all heads, for engines that unfold it
    expanded_value_elements: int = 0
    index_dim: int = 0  # of latent: key of the indexer that picks the rows to attend to

    @property
    def row_elements(self) -> int:
        """Numbers that one position stores in this layer, K and V together."""
        return self.num_kv_heads * (self.key_dim + self.value_dim)

    def num_kept(self, num_columns: int) -> int:
        """Rows in use after `num_columns` columns: with a window, those that the next query can
        see."""
        return num_columns if self.window is None else min(num_columns, self.window - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The sizes of a decoder. Lengths in tokens, sizes in elements.

    With `counted_parameters` the weights were counted in the loaded model; what a formula would
    make of them raises ValueError.
    """

    name: str
    model_type: str
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    intermediate_size: int | None
    num_query_heads: int | None
    head_dim: int | None
    vocab_size: int
    max_context_len: int | None  # None: no limit
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    counted_parameters: int | None = None

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
        self._need_formula()
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
        self._need_formula()
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
        if self.counted_parameters is not None:
            return self.counted_parameters
        tables = self.num_head_weights * (1 if self.tied_embeddings else 2)
        return tables + self.num_layer_matmul_weights + self.num_layer_other_weights

    def _need_formula(self) -> None:
        if self.counted_parameters is not None:
            raise ValueError(f"no formula for the weights of the type {self.model_type}")

    @classmethod
    def from_config(cls, config: Mapping[str, object], *, name: str) -> "ModelSpec":
        """Read the config of a model that `has_formula`. Raises UserError that names the key that
        it cannot read."""
        model_type = str(config.get("model_type"))

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


def has_formula(config: Mapping[str, object]) -> bool:
    """Whether config.json alone says all sizes: the Llama family without a window."""
    return config.get("model_type") in LLAMA_FAMILY and not _uses_window(config)


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
