"""What a model is, in numbers: what each layer keeps from token to token, what its weights are.

`config.read` makes it of a config.json; where that does not describe the weights, or a loaded model
turns out otherwise, the loaded model is asked (`engine/compatibility.py`), and no formula stands
for its weights. It knows nothing of dtypes, batches or time.

Try it: `python -c "from viz_engine.model import config; print(config.preset('gpt2').spec())"`
"""

import math
from dataclasses import dataclass

COUNTED_KINDS = ("full", "sliding", "chunked", "latent")  # layers whose steps `run/cost.py` counts
CHOOSERS = ("mlp.router", "mlp.shared_gate")  # small matrices that weigh experts


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

    @property
    def read_elements(self) -> int:
        """Numbers that attention reads of one position: those stored, of a latent row its keys and
        values for all heads, unfolded."""
        if self.kind != "latent":
            return self.row_elements
        return self.expanded_key_elements + self.expanded_value_elements

    @property
    def is_counted(self) -> bool:
        """Whether `run/cost.py` counts its steps: rows only, all of which a query reads."""
        return self.kind in COUNTED_KINDS and not (self.keeps_state or self.index_dim)

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps anything of constant size."""
        return bool(self.state_bytes or self.conv_elements or self.recurrent_elements)

    def num_kept(self, num_columns: int) -> int:
        """Rows in use after `num_columns` columns: with a window, those that the next query can
        see."""
        return num_columns if self.window is None else min(num_columns, self.window - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroup:
    """`count` tensors of one shape. `active` of them take part in one token (all but the experts
    it is not routed to). `split`: how tensor parallel shares one: "tensor" (an equal part),
    "vocab" (rows padded to 64 first), "heads" (`kv_numbers` of it belong to `kv_heads` heads, of
    which a rank holds at least one), "none" (whole on every rank)."""

    name: str
    shape: tuple[int, ...]
    count: int = 1
    active: int | None = None
    split: str = "tensor"
    kv_heads: int = 0
    kv_numbers: int = 0
    looked_up: bool = False  # a table of which a token reads one row
    stored_bits: float | None = None  # of a weight as released; None: the model's own type
    per_layer: bool = True

    @property
    def size(self) -> int:
        """Numbers in one tensor."""
        return math.prod(self.shape)

    @property
    def num_weights(self) -> int:
        return self.size * self.count

    @property
    def multiplies(self) -> bool:
        """Whether it is a matrix: each token of a forward is multiplied with it."""
        return len(self.shape) > 1 and not self.looked_up

    @property
    def stays_wide(self) -> bool:
        """Whether quantising servers leave it in 16 bits: no matrix of a layer, or one that
        chooses."""
        return len(self.shape) == 1 or self.split == "vocab" or self.name in CHOOSERS

    @property
    def num_active(self) -> int:
        return self.size * (self.count if self.active is None else self.active)

    def rank_size(self, tp: int) -> int:
        """Numbers of one tensor on one of `tp` ranks."""
        if self.split == "none" or tp == 1 and self.split != "vocab":
            return self.size
        if self.split == "vocab":
            rows = -(-self.shape[0] // 64) * 64
            return -(-rows // tp) * math.prod(self.shape[1:])
        if self.split == "heads":
            held = max(1, -(-self.kv_heads // tp))
            return -(-(self.size - self.kv_numbers) // tp) + self.kv_numbers // self.kv_heads * held
        return -(-self.size // tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The sizes of a decoder. Lengths in tokens, sizes in elements."""

    name: str
    model_type: str
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    num_query_heads: int | None
    head_dim: int | None
    vocab_size: int
    max_context_len: int | None  # None: no limit
    weights: tuple[WeightGroup, ...] | None = None  # None: no config describes them
    counted_parameters: int | None = None  # in the loaded model, where no config describes them

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
    def num_parameters(self) -> int:
        """All weights held, a tied table once."""
        if self.weights is None:
            return self.counted_parameters or 0
        return sum(group.num_weights for group in self.weights)

    @property
    def uncounted(self) -> str | None:
        """Why no formula tells what a step costs: "weights" (nothing describes them) or "layers"
        (one of a kind whose steps are not counted). None: it does."""
        if self.weights is None or self.num_query_heads is None:
            return "weights"
        return None if all(layer.is_counted for layer in self.layers) else "layers"
