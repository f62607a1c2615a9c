"""From a model's name to a model that can run: its files, its checks, its device, its kernels.

Everything automatic gives its reason as a Message. It knows nothing of prompts or runs.

Try it: `python -c "from viz_engine.engine import load; print(load.load().spec)"`
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from viz_engine.engine.compatibility import (
    Compatibility,
    check_compatibility,
    check_formula,
    check_served,
    describe,
    first_line,
)
from viz_engine.engine.convert import fetch
from viz_engine.engine.device import (
    DTYPES,
    choose_device,
    choose_dtype,
    describe_device,
    free_bytes,
    is_out_of_memory,
)
from viz_engine.engine.kernels import attention, build
from viz_engine.engine.kernels.backend import Backend
from viz_engine.engine.kernels.build import Progress
from viz_engine.engine.kernels.threads import Threads
from viz_engine.engine.trace import Traced
from viz_engine.model import files as model_files
from viz_engine.model.formats import element_bytes
from viz_engine.model.spec import ModelSpec
from viz_engine.model.tokenizer import PromptTokenizer
from viz_engine.numbers import mib
from viz_engine.paths import read_file
from viz_engine.run import checks, machine
from viz_engine.run.events import EnginePart, Hardware
from viz_engine.text import Message, UserError


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
    compatibility: Compatibility  # what agrees with the model as it was loaded
    backend: Backend  # the kernels of its forwards
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
    described = model_files.described(config, name)
    num_weights = described.num_parameters if described else model_files.num_weights(folder)
    weights = checks.Footprint(
        weight_bytes=num_weights * element_bytes(chosen_dtype),
        kv_reserved_bytes=0,
        num_rows=0,
    )
    checks.check_fits(weights, free_bytes(chosen_device) + machine.process_bytes())
    progress(Message(key="progress.loading", params={"model": name}), None)
    tokenizer = PromptTokenizer.load(folder)
    network = _load_network(folder, chosen_device, chosen_dtype, weights.weight_bytes)
    compatible = check_compatibility(network)
    once, lookup = count_weights(network)
    formula = check_formula(described, network, compatible, (once, lookup))
    spec = described if formula.on else describe(network, compatible.layers, name)
    reasons = [device_reason, dtype_reason]
    if model == model_files.DEFAULT_MODEL:
        reasons.append(Message(key="reason.dequantised"))
    backend = Backend.choose(network, spec, chosen_device, DTYPES[chosen_dtype])
    return Loaded(
        name=model,
        model=network,
        tokenizer=tokenizer,
        spec=spec,
        device=chosen_device,
        dtype=chosen_dtype,
        hardware=describe_device(chosen_device),
        reasons=tuple(reasons),
        parts=(*compatible.parts, *backend.parts, formula),
        compatibility=compatible,
        stop_token_ids=_stop_token_ids(folder, config, tokenizer),
        pad_token_id=_pad_token_id(config, tokenizer, spec.vocab_size),
        backend=backend,
        threads=Threads(torch.get_num_threads(), torch.set_num_threads),
        weight_bytes_once=once,
        lookup_row_bytes=lookup,
    )


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
