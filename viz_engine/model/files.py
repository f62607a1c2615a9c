"""Where a model's files are and whether they can be used: the packaged default, local folders,
hub ids.

It reads small JSON files only and never goes to the network, so the page asks it too. Making the
default model's files and downloading are `engine/convert.py`, in the engine process.

Try it: `python -c "from viz_engine.model import files; \
print(files.spec_of(files.DEFAULT_MODEL))"`
"""

import json
import math
import re
from pathlib import Path

from viz_engine.model import config as model_config
from viz_engine.model.spec import ModelSpec
from viz_engine.paths import cache_folder, read_file
from viz_engine.text import UserError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_FOLDER = "SmolLM2-135M-Instruct-bfloat16-1"  # the number: how it was converted
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
MAX_HEADER_BYTES = 100_000_000  # what the format allows
# Ends of the names of classes that write text token by token.
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "GenerationDecoder")
MAX_JSON_BYTES = 32 * 2**20  # of a config or an index: a mixture of experts lists 100 000 tensors
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def default_folder() -> Path:
    """Folder of the converted default model, there or not."""
    return cache_folder() / DEFAULT_FOLDER


def is_hub_id(model: str) -> bool:
    """Whether a name that is no folder can be a hub id: `owner/name`."""
    return bool(HUB_ID.fullmatch(model)) and len(model) <= 96


def locate(model: str) -> Path | None:
    """The folder of a model's files, or None while it is not on this machine (a default that is
    not converted yet, a hub id that is not downloaded yet). Raises UserError for a name that is
    neither folder nor hub id."""
    if model == DEFAULT_MODEL:
        return default_folder() if (default_folder() / "config.json").is_file() else None
    if not model.strip() or "\0" in model or len(model) > 1000:
        raise UserError("error.model_name", model=model[:100])
    folder = _folder(model)
    if folder is not None:
        return folder
    if not is_hub_id(model):
        raise UserError("error.model_name", model=model[:100])
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        raise UserError("error.model_name", model=model[:100]) from None
    if isinstance(config, str) and weight_files(Path(config).parent):
        return Path(config).parent
    return None


def is_ready(model: str) -> bool:
    """Whether `model` can be loaded without conversion or download."""
    return locate(model) is not None


def spec_of(model: str) -> ModelSpec | None:
    """The sizes of a model whose files are here, else None; of the default always. None too for a
    type whose sizes only the loaded model tells.

    Raises UserError where the files are of a kind that cannot be used.
    """
    folder = locate(model)
    if folder is not None:
        found = described(check_folder(folder), display_name(model))
        return None if found is None or found.uncounted else found
    return described(DEFAULT_CONFIG, DEFAULT_MODEL) if model == DEFAULT_MODEL else None


def described(config: dict[str, object], name: str) -> ModelSpec | None:
    """The sizes of a model of whose type the weights are described, else None. Raises UserError
    where the config has no usable number for one of them."""
    if not model_config.describes_weights(config.get("model_type")):
        return None
    return model_config.read(config).spec(name)


def display_name(model: str) -> str:
    """A model's short name: of a folder its last part."""
    folder = _folder(model)
    return model if folder is None else folder.resolve().name


def _folder(model: str) -> Path | None:
    """The folder of that name, `~` read as a shell does; None where there is none."""
    try:
        folder = Path(model).expanduser()
        return folder if folder.is_dir() else None
    except (RuntimeError, OSError, ValueError):  # no such user, a name too long, a NUL
        return None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that are complete: with an index, all that it lists."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    try:
        weight_map = json.loads(read_file(index, MAX_JSON_BYTES))["weight_map"]
        names = {str(name) for name in weight_map.values()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError("error.model_broken", reason=index.name) from None
    paths = [folder / name for name in sorted(names)]
    return paths if all(path.is_file() for path in paths) else []


def num_weights(folder: Path) -> int:
    """Numbers in a model's weight files, as their headers state them: each tensor once."""
    tensors: dict[str, int] = {}
    for path in weight_files(folder):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            try:
                header = json.loads(file.read(min(size, MAX_HEADER_BYTES)))
                for name, about in header.items():
                    if name != "__metadata__":
                        tensors[name] = math.prod(about["shape"])
            except (ValueError, TypeError, KeyError, AttributeError):
                raise UserError("error.model_broken", reason=path.name) from None
    return sum(tensors.values())


def check_folder(folder: Path) -> dict[str, object]:
    """config.json of a model's folder. Raises UserError with what is wrong: no config.json, not a
    causal language model, code of its own, weights as pickles only, no weights."""
    config = read_config(folder / "config.json")
    check_config(config)
    if not weight_files(folder):
        pickled = any(path for pattern in PICKLES for path in folder.glob(pattern))
        raise UserError(
            "error.model_pickle" if pickled else "error.model_no_weights", folder=folder.name
        )
    return config


def read_config(path: Path) -> dict[str, object]:
    """The JSON object in a config.json. Raises UserError where there is none."""
    try:
        config = json.loads(read_file(path, MAX_JSON_BYTES))
    except FileNotFoundError:
        raise UserError("error.model_no_config", folder=path.parent.name) from None
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UserError("error.model_bad_config", folder=path.parent.name)
    return config


def check_config(config: dict[str, object]) -> None:
    """Raises UserError where a config is not of a causal language model, or wants code from its
    author to run."""
    if "auto_map" in config:
        raise UserError("error.model_remote_code")
    if "quantization_config" in config:
        raise UserError("error.model_quantized")
    names = config.get("architectures") or []
    if not isinstance(names, list) or not any(
        str(name).endswith(LANGUAGE_MODELS) for name in names
    ):
        raise UserError(
            "error.model_not_causal", kind=", ".join(map(str, names))[:100] if names else "?"
        )


DEFAULT_CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "bfloat16",
}
