"""Makes assets/config_defaults.json from transformers: what the configuration class of each model
type takes for keys that a config.json leaves out, and whether `weights.py` counts the weights of
the type as transformers does. Run by `make defaults`.
"""

import json
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import CONFIG_MAPPING, AutoModelForCausalLM  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from viz_engine.model import config, config_keys, layer_kinds, weights  # noqa: E402
from viz_engine.paths import ROOT  # noqa: E402
from viz_engine.text import UserError  # noqa: E402

NESTED = ("text_config", "llm_config", "thinker_config")
READ = set(
    config_keys.LAYERS
    + config_keys.HIDDEN
    + config_keys.HEADS
    + config_keys.KV_HEADS
    + config_keys.HEAD_DIM
    + config_keys.VOCAB
    + config_keys.CONTEXT
    + config_keys.FFN
    + layer_kinds.PERIODS
    + weights.EXPERTS
    + weights.CHOSEN
    + config.DRAFT_LAYERS
)
# Every other key that is looked up by name in the three modules.
SOURCES = ("config", "layer_kinds", "layer_rows", "weights")
SKIP = {"layer_types", "dtype", "attention_layers", "bias", "_name_or_path", "model_type"}


def keys_read() -> set[str]:
    """Names of keys that the modules mention, as quoted words."""
    import re

    text = "".join((ROOT / f"viz_engine/model/{name}.py").read_text("utf-8") for name in SOURCES)
    return (READ | set(re.findall(r'"([a-z0-9_]+)"', text))) - SKIP


def pattern_of(layer_types: object) -> list[str] | None:
    """The shortest list of layer types that, repeated, gives all of them."""
    if not isinstance(layer_types, list):
        return None
    for length in range(1, 9):
        head = layer_types[:length]
        if len(layer_types) >= 2 * length and all(
            kind == head[i % length] for i, kind in enumerate(layer_types)
        ):
            # full or linear alone says nothing: other keys may make windows or a mixture of them
            plain = len(set(head)) == 1 and head[0] in ("full_attention", "linear_attention")
            return None if plain else head
    return None


def follows(model_type: str, written: dict) -> set[str]:
    """Keys whose default follows from another size: head_dim from hidden_size, say. They are no
    defaults; whoever reads a config derives them."""
    found = set()
    for names in (config_keys.HIDDEN, config_keys.HEADS, config_keys.LAYERS):
        name = next((n for n in names if isinstance(written.get(n), int)), None)
        if name is None:
            continue
        try:
            other = CONFIG_MAPPING[model_type](**{name: 2 * written[name]}).to_dict()
        except Exception:  # a class that checks its sizes against each other
            continue
        found |= {k for k, v in other.items() if k != name and written.get(k) != v}
    return found


def plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str) or (
        isinstance(value, list) and all(isinstance(item, int) for item in value)
    )


def counted(model_type: str, settings: dict) -> tuple[int, dict]:
    """Weights that transformers makes for a type, and its whole config."""
    made = CONFIG_MAPPING[model_type](**settings)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(made)
    return sum(p.numel() for p in network.parameters()), json.loads(
        made.to_json_string(use_diff=False)
    )


def is_described(model_type: str, settings: dict) -> tuple[bool, int, int | None]:
    num, written = counted(model_type, settings)
    try:
        ours = config.read(written).num_parameters
    except UserError as error:
        return False, num, str(error)
    return ours == num, num, ours


def main() -> None:
    types = sorted(CONFIG_MAPPING)
    found = {}
    wanted = keys_read()
    for model_type in types:
        try:
            written = CONFIG_MAPPING[model_type]().to_dict()
        except Exception:  # a class that needs arguments has no defaults
            continue
        if any(isinstance(written.get(name), dict) for name in NESTED):
            continue  # its parts are types of their own
        if not any(name in written for name in config_keys.LAYERS):
            continue
        derived = follows(model_type, written)
        kept = {k: v for k, v in written.items() if k in wanted and k not in derived and plain(v)}
        if pattern := pattern_of(written.get("layer_types")):
            kept["layer_pattern"] = pattern
        if name := MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type):
            kept["architecture"] = name
        found[model_type] = kept
    text = {"source": f"transformers {transformers.__version__}", "types": found}
    for model_type in set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & found.keys():
        found[model_type]["weights_described"] = True
    write(text)
    report = []
    for model_type in sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & found.keys()):
        try:
            good, num, ours = is_described(model_type, {})
        except Exception as error:  # cannot be built at its defaults
            good, num, ours = False, 0, str(error)[:80]
        found[model_type]["weights_described"] = good
        report.append((good, model_type, num, ours))
    write(text)
    for good, model_type, num, ours in sorted(report, key=lambda r: (r[0], r[1])):
        print("ok  " if good else "none", model_type, num, ours)


def write(text: dict) -> None:
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(text["types"].items())]
    body = ",\n".join(lines)
    config_keys.DEFAULTS.write_text(
        f'{{"source": {json.dumps(text["source"])}, "types": {{\n{body}\n}}}}\n', encoding="utf-8"
    )
    config_keys.class_defaults.cache_clear()
    config_keys.architectures.cache_clear()


if __name__ == "__main__":
    main()
