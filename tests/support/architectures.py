"""Types of language models, tiny and random, and whether the engine runs them as transformers does.

`make architectures` sweeps every causal-LM type that the pinned transformers can build from a tiny
config and writes ARCHITECTURES.md. The tests take the named types from here.
"""

import contextlib
import io
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from viz_engine.run import machine

machine.share_cores()  # before torch comes

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import (  # noqa: E402
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from tests.support.models import write_tokenizer  # noqa: E402
from viz_engine.engine import generate  # noqa: E402
from viz_engine.engine import load as engine_load  # noqa: E402
from viz_engine.engine.kernels import build as kernels_build  # noqa: E402
from viz_engine.engine.load import Loaded  # noqa: E402
from viz_engine.paths import ROOT  # noqa: E402
from viz_engine.run.events import RunSettings  # noqa: E402
from viz_engine.run.log import RunLog  # noqa: E402
from viz_engine.text import UserError  # noqa: E402

NUM_STEPS = 40  # after the prefill
PROMPTS = ("The first of three, and the longest.#", "One of middle length.", "Short one")
CHUNK = 16
WINDOW = 16
TOLERANCE = 1e-4
LAST_DIGIT = 2**-24  # of a float32 number, as a share of it
CHAOS = 100 * TOLERANCE  # a logit that moves so far for that
MOST_PARAMETERS = 30_000_000
MOST_SECONDS = 120  # a type
# Every key that the type's own config knows is set to this; what it does not know is left out.
TINY: dict[str, object] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 320,
    "is_decoder": True,
    "d_model": 64,
    "decoder_layers": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_layers": 1,
    "encoder_ffn_dim": 96,
    "ffn_dim": 96,
    "embedding_size": 64,
    "word_embed_proj_dim": 64,
    "rotary_dim": 8,
    "state_size": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_mamba_heads": 2,
    "ssm_state_size": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 64,
    "ffn_hidden_size": 96,
    "num_shared_experts": 1,
    "moe_num_experts": 4,
    "moe_k": 2,
    "attention_multiplier": 0.25,
}
FULL = {"sliding_window": None}
LATENT = {"head_dim": 8, "num_key_value_heads": 4}
# What a type needs beside that. Those of the first group run in the tests.
NAMED: dict[str, dict[str, object]] = {
    "llama": {},
    "mistral": {},
    "qwen2": FULL,
    "qwen3": FULL,
    "qwen3_moe": FULL,
    "mixtral": FULL,
    "gemma2": {},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [96] * 4,
    },
    "phi3": FULL,
    "gpt2": {"n_positions": 512},
    "gpt_neox": {},
    "falcon": {},
    "olmo2": {},
    "granite": {},
    "smollm3": FULL,
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "llama4_text": {"num_local_experts": 2, "intermediate_size_mlp": 96},
    "qwen3_next": {},
    "jamba": {
        "mamba_d_state": 8,
        "mamba_dt_rank": 8,
        "num_experts": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_expand": 1,
    },
    "mamba2": {
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 1,
        "expand": 2,
        "time_step_rank": 8,
    },
}
OTHERS: dict[str, dict[str, object]] = {
    "axk1": LATENT,
    "axk2": LATENT,
    "deepseek_v32": LATENT,
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": LATENT,
    "minicpm3": LATENT,
    "longcat_flash": LATENT
    | {"ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "num_layers": 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "bailing_hybrid": LATENT | {"layer_types": ["linear_attention", "full_attention"] * 2},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "kimi_linear": LATENT | {"layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "inkling2_loop_text": {"unpadded_vocab_size": 320},
    "inkling2_text": {"unpadded_vocab_size": 320},
    "sarvam_mla": LATENT,
    "youtu": LATENT,
    "xlnet": {"d_head": 16, "head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "dots1": {"n_shared_experts": 1},
    "zaya": {"num_experts_per_tok": 1},
    "cpmant": {"prompt_types": 2, "prompt_length": 4},
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [16, 32]},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One type: how it runs, whether as `generate` does, and if not, what is wrong."""

    model_type: str
    attention: str = ""  # ours, own
    layers: str = ""  # 2 full, 2 sliding
    pieces: str = ""
    gap: float | None = None  # the largest between our logits and transformers'
    notes: str = ""  # why something is not ours
    reason: str = ""  # "" where tokens are identical


def tiny_config(model_type: str) -> PreTrainedConfig:
    """A small config of a type: the keys of TINY that it knows, and what the tables add."""
    cls = CONFIG_MAPPING[model_type]
    known = cls()
    changes = {key: value for key, value in TINY.items() if _has(known, key)}
    config = cls(**_settable(cls, changes | NAMED.get(model_type, OTHERS.get(model_type, {}))))
    return config


def _has(config: PreTrainedConfig, key: str) -> bool:
    try:
        return hasattr(config, key)
    except Exception:  # some are known for each layer only; they can be set for all
        return True


def _settable(cls: type[PreTrainedConfig], changes: dict[str, object]) -> dict[str, object]:
    """Without what only can be read (Falcon's head_dim)."""
    computed = {name for name in dir(cls) if isinstance(getattr(cls, name, None), property)}
    return {key: value for key, value in changes.items() if key not in computed}


def build(model_type: str) -> PreTrainedModel:
    """A tiny random model in float32. Raises whatever transformers does."""
    config = tiny_config(model_type)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    num = sum(p.numel() for p in empty.parameters())
    if num > MOST_PARAMETERS:
        raise ValueError(f"{num} parameters from a tiny config")
    torch.manual_seed(7)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in network.parameters():  # some are made empty, for a checkpoint to fill
        if not torch.isfinite(parameter).all():
            torch.nn.init.normal_(parameter, std=0.1)
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    network.generation_config.forced_eos_token_id = None
    return network.eval().requires_grad_(False)


def load(network: PreTrainedModel, folder: Path) -> Loaded:
    """The same weights as the engine loads them, its compiled attention on wherever it can read
    the rows: what is measured to be faster on a tiny model says nothing."""
    network.save_pretrained(folder)
    write_tokenizer(folder)
    loaded = engine_load.load(str(folder), "cpu", "float32")
    on = kernels_build.is_loaded()
    loaded.backend = replace(loaded.backend, compiled_decode=on, compiled_prefill=on)
    return loaded


def generated(
    network: PreTrainedModel, prompts: list[list[int]], pad: int = 0, use_cache: bool = True
) -> tuple[list[list[int]], torch.Tensor]:
    """Transformers' own greedy `generate`: new tokens of each sequence, logits `[n, B, vocab]`."""
    longest = max(map(len, prompts))
    out = network.generate(
        input_ids=torch.tensor([[pad] * (longest - len(p)) + p for p in prompts]),
        attention_mask=torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
        max_new_tokens=NUM_STEPS + 1,
        do_sample=False,
        use_cache=use_cache,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[:, longest:].tolist(), torch.stack(out.logits)


def settings_of(
    batch: int, *, chunk_len: int, cache: str = "full", new_tokens: int = NUM_STEPS + 1
) -> RunSettings:
    return RunSettings(
        model="tiny",
        prompts=PROMPTS[:batch],
        batch=batch,
        chat=False,
        new_tokens=new_tokens,
        chunk_len=chunk_len,
        cache=cache,
        stop_token_ids=(),
        warm_up=False,
    )


def difference(network: PreTrainedModel, loaded: Loaded) -> tuple[float, str]:
    """The largest logit gap of all runs, and where the tokens part first ("" where nowhere)."""
    worst, parted = 0.0, ""
    for batch in (1, 3):
        prompts = generate.encode(loaded, settings_of(batch, chunk_len=0))
        # The same pads: some types take no mask, and read them.
        tokens, logits = generated(
            network, prompts, loaded.pad_token_id, use_cache=loaded.compatibility.cached
        )
        for chunk_len in (0, CHUNK) if loaded.compatibility.chunks else (0,):
            cache = "full" if loaded.compatibility.cached else "none"
            settings = settings_of(batch, chunk_len=chunk_len, cache=cache)
            ours: list[torch.Tensor] = []
            take = lambda step, got, ours=ours: ours.append(got.clone())  # noqa: E731
            options = generate.Options(on_logits=take)
            log = RunLog.of(generate.generate(loaded, settings, run_id="r", options=options))
            if log.finished.error is not None:
                return worst, str(log.finished.error)
            mine = [[id for s in log.steps for id in s.token_ids[b]] for b in range(batch)]
            worst = max(worst, float((torch.stack(ours) - logits).abs().max()))
            if mine != tokens and not parted:
                at = min(
                    n
                    for b in range(batch)
                    for n in range(41)
                    if mine[b][n:] != tokens[b][n:] and mine[b][n] != tokens[b][n]
                )
                parted = f"batch {batch}, pieces of {chunk_len}: token {at} differs"
    return worst, parted


def sensitivity(network: PreTrainedModel, loaded: Loaded) -> float:
    """How far the last logits move when the embedding moves in its last digit. A random network
    that runs through its layers again and again can be chaotic: no two orders of sums agree."""
    ids = torch.tensor([generate.encode(loaded, settings_of(1, chunk_len=0))[0]])
    weight = network.get_input_embeddings().weight
    before = weight.data.clone()
    with torch.inference_mode():
        logits = network(ids).logits[0, -1]
        dice = torch.Generator().manual_seed(5)
        weight.data += LAST_DIGIT * before.abs() * torch.randn(before.shape, generator=dice)
        moved = network(ids).logits[0, -1]
        weight.data.copy_(before)
    return float((moved - logits).abs().max())


def _chunks(loaded: Loaded) -> str:
    """Whether the prompt can be read in chunks, for the table."""
    if not loaded.compatibility.cached:
        return "no cache"
    return "yes" if loaded.compatibility.chunks else "no"


def outcome_of(model_type: str) -> Outcome:
    """Build a type, load it, and compare."""
    try:
        network = build(model_type)
    except Exception as error:
        return Outcome(model_type=model_type, reason=f"not built: {engine_load.first_line(error)}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            loaded = load(network, Path(folder))
        except UserError as error:
            return Outcome(model_type=model_type, reason=f"not served: {error.message.text('en')}")
        except Exception as error:
            return Outcome(
                model_type=model_type, reason=f"not loaded: {engine_load.first_line(error)}"
            )
    notes = [str(part.reason) for part in loaded.compatibility.parts if not part.on]
    try:
        gap, reason = difference(network, loaded)
        on = loaded.backend.compiled_decode
        if reason and on and (moves := sensitivity(network, loaded)) > CHAOS:
            off = {"compiled_decode": False, "compiled_prefill": False}
            loaded.backend = replace(loaded.backend, **off)
            gap, reason = difference(network, loaded)
            notes.append(f"Compared with torch's attention: the last digit of an embedding moves "
                         f"a logit by {moves:.0e}, so no other order of sums agrees.")  # fmt: skip
    except Exception as error:
        gap, reason = None, f"generate fails: {engine_load.first_line(error)}"
    kinds = [layer.kind for layer in loaded.spec.layers]
    return Outcome(
        model_type=model_type,
        attention="ours" if loaded.compatibility.own_attention else "own",
        layers=", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)),
        pieces=_chunks(loaded),
        gap=gap,
        notes=" ".join(notes),
        reason=reason,
    )


def sweep(model_types: list[str]) -> Iterator[Outcome]:
    """What becomes of each type."""
    for model_type in model_types:
        quiet = io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(quiet),
            contextlib.redirect_stdout(quiet),
        ):
            warnings.simplefilter("ignore")
            signal.alarm(MOST_SECONDS)
            try:
                outcome = outcome_of(model_type)
            except TimeoutError:
                outcome = Outcome(model_type=model_type, reason="not built: takes too long")
            finally:
                signal.alarm(0)
        yield outcome


def table(outcomes: list[Outcome]) -> str:
    """The Markdown that is kept in the repository."""
    same = [o for o in outcomes if o.gap is not None and not o.reason]
    cached = [o for o in same if o.pieces != "no cache"]
    built = [o for o in outcomes if not o.reason.startswith("not built")]
    lines = [
        "# Architectures",
        "",
        f"Made by `make architectures` with transformers {transformers.__version__} and torch "
        f"{torch.__version__.partition('+')[0]}. Of its {len(outcomes)} causal-LM types "
        f"{len(built)} could be built from a tiny config; of those {len(cached)} run with a cache "
        f"and {len(same) - len(cached)} without one, with the tokens of `generate` in float32: "
        f"{NUM_STEPS} steps after the prompt, batch 1 and a left-padded batch of 3, the prompt in "
        f"one piece and, where the type allows it, in pieces of {CHUNK}.",
        "",
        "Attention: ours, or the model's own. Layers: what each keeps. Pieces: whether the prompt "
        "can be read in pieces. Gap: the largest between a logit and transformers'.",
        "",
        "| type | attention | layers | pieces | gap | note |",
        "|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        gap = "" if o.gap is None else f"{o.gap:.0e}" if o.gap else "0"
        note = (o.reason or o.notes).replace("|", "/").replace("\n", " ")
        lines.append(
            f"| {o.model_type} | {o.attention} | {o.layers} | {o.pieces} | {gap} | {note} |"
        )
    return "\n".join(lines) + "\n"


def _give_up(signum: int, frame: object) -> None:
    raise TimeoutError


def main() -> None:
    """Sweep all types and write the table; with names, print what becomes of these."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    signal.signal(signal.SIGALRM, _give_up)
    outcomes = []
    for outcome in sweep(sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)):
        outcomes.append(outcome)
        print(outcome, flush=True)
    if not sys.argv[1:]:
        (ROOT / "ARCHITECTURES.md").write_text(table(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
