"""The keys of a config.json: read as data, each checked, each remembered with where it came from.

The same size has many names ("n_layer", "num_hidden_layers", "num_layers"); a key that a file
leaves out may have a default in its model type's configuration class, kept in
assets/config_defaults.json. It knows nothing of layers or bytes.

Try it: `python -c "from viz_engine.model.config_keys import parse; \
print(parse('{\"n_layer\": 12}'))"`
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from viz_engine.numbers import grouped
from viz_engine.paths import ASSETS
from viz_engine.text import Message, UserError, whole_characters

MAX_CHARS = 4_000_000  # the largest config.json met has 3.1 million: MiniMax-M3 in mixed types
MAX_DEPTH = 40
MAX_LAYERS = 2000
DEFAULTS = ASSETS / "config_defaults.json"

# Where configs of several parts keep the language model.
NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "language_model",
    "thinker_config",
    "decoder_config",
)
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_decoder_layers", "decoder_layers")
LAYERS += ("num_layers", "num_blocks")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "model_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads", "num_heads")
HEADS += ("num_decoder_attention_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads")
KV_HEADS += ("multi_query_group_num", "num_query_groups", "kv_n_heads")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "d_head")
VOCAB = ("vocab_size", "padded_vocab_size")
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
CONTEXT += ("seq_length", "n_ctx", "model_max_length", "max_target_positions", "context_length")
FFN = ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_hidden_size", "n_inner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """Where one size came from. `how`: "read" (a key of the file), "default" (of the model type's
    configuration class), "derived" (from other keys, `source` is the formula) or "assumed"
    (nothing says it; `source` says what was taken)."""

    field: str
    value: int | float | str
    source: str
    how: str = "read"


def parse(text: str | bytes) -> dict[str, object]:
    """The JSON object in `text`. Raises UserError: too large, no JSON, no object, nested too
    deeply."""
    if len(text) > MAX_CHARS:
        raise UserError("error.size_too_large", chars=grouped(len(text)), limit=grouped(MAX_CHARS))
    if not text.strip():
        raise UserError("error.size_empty")
    try:
        config = json.loads(text)  # with NaN and infinity: `whole` refuses them as a size
    except RecursionError:
        raise UserError("error.size_deep", depth=MAX_DEPTH) from None
    except json.JSONDecodeError as error:
        raise UserError(
            "error.size_no_json", line=error.lineno, column=error.colno, reason=error.msg
        ) from None
    except UnicodeDecodeError:
        raise UserError("error.size_encoding") from None
    except ValueError:  # json's only other complaint: thousands of digits
        raise UserError("error.size_digits") from None
    if not isinstance(config, dict):
        raise UserError("error.size_no_object", kind=Message(key=f"error.kind.{_kind(config)}"))
    _check_depth(config)
    return whole_characters(config)


def _kind(value: object) -> str:
    """What a JSON value is, in one word of the messages."""
    if value is None:
        return "null"
    kinds = {bool: "flag", int: "number", float: "number", str: "text"}
    return kinds.get(type(value), "list")


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise UserError("error.size_deep", depth=MAX_DEPTH)


@cache
def class_defaults() -> Mapping[str, Mapping[str, object]]:
    """By model type: what its configuration class in transformers takes for keys that a file
    leaves out."""
    return json.loads(DEFAULTS.read_text(encoding="utf-8"))["types"]


@cache
def architectures() -> Mapping[str, str]:
    """By class name ("LlamaForCausalLM"): the model type that it stands for."""
    return {
        name: model_type
        for model_type, found in class_defaults().items()
        if (name := found.get("architecture")) is not None
    }


def known_type(config: Mapping[str, object], model_type: str) -> str:
    """The type as configuration classes call it: `model_type` where it has one, else that of the
    class which `architectures` names (a renamed type that runs another's code)."""
    if model_type in class_defaults():
        return model_type
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return architectures().get(first, model_type) if isinstance(first, str) else model_type


class Keys:
    """The keys of one config, looked up by any of their names."""

    def __init__(self, config: Mapping[str, object], model_type: str) -> None:
        self.config = config
        self.model_type = model_type
        self.defaults = class_defaults().get(model_type, {})
        self.derivations: list[Derivation] = []
        self.used: set[str] = set()  # keys of the file that something was made of

    def note(self, field: str, value: object, source: str, how: str = "derived") -> None:
        """Remember where `field` came from."""
        if not any(known.field == field for known in self.derivations):
            self.derivations.append(Derivation(field=field, value=value, source=source, how=how))

    def get(self, name: str, default: object = None) -> object:
        """The value that the file itself gives `name`."""
        if self.config.get(name) is not None:
            self.used.add(name)
        return self.config.get(name, default)

    def has(self, *names: str) -> bool:
        """Whether the file itself gives one of `names` a value."""
        return any(self.config.get(name) is not None for name in names)

    def find(self, *names: str) -> tuple[str | None, object, str]:
        """(name, value, "read" or "default") of the first name that has one. A key that the file
        sets to null has none, whatever the class says."""
        for name in names:
            if self.config.get(name) is not None:
                return name, self.get(name), "read"
        if not any(name in self.config for name in names):
            for name in names:
                if self.defaults.get(name) is not None:
                    return name, self.defaults[name], "default"
        return None, None, "read"

    def number(
        self, field: str, names: tuple[str, ...], *, least: int = 1, most: int = 2**24
    ) -> int | None:
        """A whole number in `least .. most`, or None where no name has one. Raises UserError that
        names the key."""
        name, value, how = self.find(*names)
        if name is None:
            return None
        number = whole(name, value, least=least, most=most)
        self.note(field, number, f"{self.model_type}: {name}" if how == "default" else name, how)
        return number

    def needed(self, field: str, names: tuple[str, ...], *, most: int = 2**24) -> int:
        """As `number`; where it is missing, a UserError that lists the names it was looked for."""
        number = self.number(field, names, most=most)
        if number is None:
            raise UserError("error.size_missing", keys=", ".join(names))
        return number

    def flag(self, *names: str) -> bool | None:
        """A truth value, or None where no name has one. Raises UserError that names the key."""
        name, value, _ = self.find(*names)
        if name is None:
            return None
        if not isinstance(value, bool):
            raise UserError("error.size_flag", key=name, value=json.dumps(value)[:40])
        return value

    def listed(self, *names: str) -> tuple[str | None, list]:
        """(name, list) of the first name whose value is a list."""
        for name in names:
            if isinstance(self.config.get(name), list):
                return name, self.get(name)
        return None, []


def whole(name: str, value: object, *, least: int = 1, most: int = 2**24) -> int:
    """`value` as a whole number in `least .. most`. Raises UserError that names the key: text in
    place of a number, a fraction, not a number, too small, absurd."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, str):
        raise UserError("error.size_quoted", key=name, value=value[:40])
    if isinstance(value, float) and math.isinf(value):
        raise UserError("error.size_huge", key=name)
    if isinstance(value, float) and math.isnan(value):
        raise UserError("error.size_value", key=name, name="NaN")
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError("error.size_number", key=name, value=json.dumps(value)[:40])
    if not least <= value <= most:
        raise UserError(
            "error.size_range", key=name, value=value, least=grouped(least), most=grouped(most)
        )
    return value
