"""The calculator's own number for each capacity number of a start-up log.

`ours` answers with the least and the most that ours may be (they differ where it follows from
numbers that the log rounds), or with the reason why there is none: the log lacks what it follows
from, or it is of a model that drafts. It knows nothing of verdicts and of causes.

Try it: `python -c "from viz_engine.memory import log_numbers; print(*log_numbers.MAKERS)"`
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from viz_engine.memory import serving_engines
from viz_engine.memory.deployment import Deployment, Settings, resolve
from viz_engine.memory.server_log import GIB, Finding, Start
from viz_engine.model import weights
from viz_engine.model.config import ModelConfig
from viz_engine.model.formats import weight_bits
from viz_engine.run import cost
from viz_engine.text import UserError

SWAP_GIB = 4  # vLLM V0: --swap-space
CPU_BLOCK_LEN = 128  # vLLM on a CPU, where none is asked
OWN_DRAFTS = re.compile(r".*mtp|ngram.*|suffix")  # of the model's own layers, or of none
DATA_RANK = re.compile(r"DP(\d+)")
# Why there is no number of ours, by the names of "log.none.*".
NO_LENGTH, NO_FREE, SHARE, DRAFTS = "length", "free", "share", "drafts"

Range = tuple[float, float]  # least, most


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One start beside a model. `said`: what holds of its settings, by the names of
    `server_log.SETTINGS`."""

    start: Start
    model: ModelConfig
    engine: str
    said: Mapping[str, object]

    @property
    def has_states(self) -> bool:
        return any(x.conv_elements or x.recurrent_elements for x in self.model.layer_counts)


def ours(case: Case, finding: Finding) -> Range | str | None:
    """Least and most of our number; a reason of "log.none.*" where there is none; None where
    nothing is to be said: the number is a measurement."""
    make = MAKERS.get((finding.engine, finding.kind))
    try:
        return None if make is None else make(case, finding)
    except KeyError as error:
        return NO_LENGTH if error.args == ("max_model_len",) else None
    except (UserError, TypeError, ValueError, ZeroDivisionError):
        return None


def served(case: Case) -> Deployment:
    """The deployment that a start's settings describe. Raises UserError where they contradict."""
    said, engine = case.said, case.engine
    block = "page_len" if engine == "sglang" else "block_len"
    block_len = said.get(block)
    if engine == "vllm" and case.has_states:
        block_len = None  # what a log says is the length grown for the state
    elif engine == "vllm" and block_len is None and said.get("device") == "cpu":
        block_len = CPU_BLOCK_LEN
    tp = said.get("tp", 1)
    if engine == "sglang" and said.get("dp_attention"):  # heads are shared by fewer ranks
        tp //= said.get("dp", 1)
    settings = Settings(
        context_len=1,
        engine=engine,
        kv_format=said.get("kv_format", "auto"),
        tp=tp,
        pp=said.get("pp", 1) if engine == "vllm" else 1,
        dcp=said.get("dcp", 1),
        block_len=block_len,
        batched_tokens=said.get("batched_tokens"),
        window_cache=said.get("window_cache", True),
        draft_layers=bool(said.get("drafts") or "mtp" in str(said.get("draft_method"))),
        num_draft_tokens=said.get("draft_tokens", 0),
        state_blocks=2 if engine == "vllm" and said.get("prefix_caching") else 1,
    )
    return resolve(case.model, settings)


# ---- vLLM ----------------------------------------------------------------------------------------


def _foreign_drafts(case: Case) -> bool:
    """Whether another model drafts: its layers are in the pool, and their sizes are not known."""
    method = case.said.get("draft_method")
    return method is not None and not OWN_DRAFTS.fullmatch(str(method))


def _pooled(make: Callable[[Case, Finding], Range | str | None]) -> Callable:
    """A maker of a number that another model's layers would change."""
    return lambda case, finding: DRAFTS if _foreign_drafts(case) else make(case, finding)


def _vllm(case: Case, length: int | None = None) -> serving_engines.VllmPool:
    """The pool for requests of the longest length. Raises KeyError where the log does not say it
    and it matters."""
    if length is None:
        length = case.said["max_model_len"]
    return serving_engines.vllm_pool(served(case), length)


def _free(case: Case, finding: Finding) -> tuple[int, int] | None:
    """Least and most free bytes, as printed to two decimals: the smallest rank decides for all; of
    a rank that counts for itself, as engines of 2024 did, its own."""
    every, own = _alike(case, finding, "available"), _alike(case, finding, finding.kind)
    if not every:
        return None
    free = min(every, key=lambda one: one.value)
    if len(own) == len(every) > 1 and len({one.value for one in own}) > 1:
        free = every[own.index(finding)]
    return int(free.value - free.slack), int(free.value + free.slack)


def _alike(case: Case, finding: Finding, kind: str) -> list[Finding]:
    """The numbers of a kind that belong to the same engine: with data parallelism each has a pool,
    and its lines name it."""
    every, mine = case.start.of(kind), DATA_RANK.search(finding.rank)
    named = [(one, DATA_RANK.search(one.rank)) for one in every]
    if mine is None or not all(rank for _, rank in named):
        return every
    return [one for one, rank in named if rank[1] == mine[1]]


def _blocks(case: Case, finding: Finding) -> Range | str:
    """vLLM V0: blocks of all attention layers together; states are kept apart from them."""
    free, size = _free(case, finding), _v0_block_bytes(case)
    return NO_FREE if free is None else tuple(num_bytes // size for num_bytes in free)


def _v0_block_bytes(case: Case) -> int:
    deployment = served(case)
    rows = sum(
        n * cost.layer_rows(x, deployment.k_format, deployment.k_format, tp=deployment.tp).total
        for x, n in deployment.layers.items()
        if x.num_kv_heads
    )
    return deployment.block_len * rows


def _num_blocks(case: Case, finding: Finding, pool: serving_engines.VllmPool) -> Range | None:
    """Blocks of a pool: as overridden, else as the free memory holds them."""
    if override := case.said.get("blocks_override"):
        return override, override
    free = _free(case, finding)
    return free and tuple(pool.num_blocks(num_bytes) for num_bytes in free)


def _tokens(case: Case, finding: Finding) -> Range | str:
    """ "GPU KV cache size": of one group its blocks, of several what vLLM's version prints."""
    if told := _alike(case, finding, "gpu_blocks"):  # V0, of a request that is too long
        return (min(one.value for one in told) * served(case).block_len,) * 2
    pool = _vllm(case, case.said.get("max_model_len", 1))
    blocks = _num_blocks(case, finding, pool)
    if blocks is None:
        return NO_FREE
    by_groups = tuple(pool.num_tokens(num) for num in blocks)
    if len(pool.groups) == 1 or by_groups[0] <= finding.value <= by_groups[1]:
        return by_groups
    length = case.said["max_model_len"]
    return tuple(pool.num_tokens_by_concurrency(num, length) for num in blocks)


def _concurrency(case: Case, finding: Finding) -> Range | str:
    """Requests of the longest length: from the tokens of one group, else from the free memory, else
    from the tokens of several groups, which stand for a few numbers of blocks."""
    length, pool = case.said["max_model_len"], _vllm(case)
    if blocks := _alike(case, finding, "gpu_blocks"):  # V0
        return (min(one.value for one in blocks) * served(case).block_len / length,) * 2
    tokens = _alike(case, finding, "kv_tokens")
    fewest = min((one.value for one in tokens), default=None)
    if fewest is not None and len(pool.groups) == 1:
        return (fewest / length,) * 2
    if (num_blocks := _num_blocks(case, finding, pool)) is not None:
        return tuple(pool.concurrency(num) for num in num_blocks)
    if fewest is None:
        return NO_FREE
    by_length = (fewest / length, (fewest + 1) / length)
    if finding.value - finding.slack <= by_length[1] and by_length[0] <= (
        finding.value + finding.slack
    ):
        return by_length
    smallest, groups = min(group.block_len for group in pool.groups), len(pool.groups)
    of_each, rest = divmod(fewest, smallest)
    if rest:
        return NO_FREE
    ends = of_each * groups, of_each * groups + groups - 1
    return tuple(pool.concurrency(int(num)) for num in ends)


def _longest(case: Case, finding: Finding) -> Range | str:
    """The longest request that the free memory holds, which the log prints to two decimals."""
    if (free := _free(case, finding)) is None:
        return NO_FREE
    deployment, upper = served(_one_stage(case)), case.said.get("max_model_len", 2**24)
    return tuple(
        serving_engines.vllm_longest(deployment, num_bytes, upper=upper) for num_bytes in free
    )


def _need(case: Case, finding: Finding) -> Range:
    """What one request of the longest length takes on one rank."""
    return (_vllm(_one_stage(case)).request_bytes,) * 2


def _one_stage(case: Case) -> Case:
    """The start as its check for the longest request sees it: all layers, whatever the stages
    (`get_kv_cache_configs` merges them first)."""
    return replace(case, said={**case.said, "pp": 1})


def _weights(case: Case, finding: Finding) -> Range | None:
    """Buffers of adapters and of quantised kernels are not counted: 1 % either way."""
    if case.model.weights is None:
        return None
    model, tp = case.model, case.said.get("tp", 1)
    bits = weight_bits("auto", model.dtype)
    value = weights.allocated_bytes(model.weights, bits, tp, model.rope_cache_numbers, stored=True)
    return 0.99 * value, 1.01 * value


# ---- llama.cpp -----------------------------------------------------------------------------------


def _llama(case: Case, finding: Finding) -> Range | str:
    """Of the part that the line speaks of: one of a cache in two parts, the whole, or the state. A
    cache of several streams has one for each sequence; where the line does not tell their number,
    `kv_unified` does."""
    facts, said, line = finding.facts, case.said, finding.line
    counts = case.model.layer_counts
    windowed = sum(n for x, n in counts.items() if x.window and x.num_kv_heads)
    full = sum(n for x, n in counts.items() if x.num_kv_heads) - windowed
    if finding.kind == "kv_part" and facts.get("layers", full) not in (full, windowed):
        return DRAFTS
    if "buffer size" in line and len(case.start.of(finding.kind)) > 1:
        return SHARE
    num_sequences = facts.get("seqs", said.get("n_seq", 1))
    apart = 1 if said.get("unified", True) else num_sequences
    streams = facts.get("streams", apart)
    key, value = (_llama_format(case, finding, part) for part in "kv")
    settings = Settings(
        context_len=1,
        engine="llama.cpp",
        kv_format=key,
        v_format=value,
        batched_tokens=said.get("micro_batch"),
        window_cache=said.get("window_cache", finding.kind == "kv_part"),
        num_draft_tokens=facts.get("snapshots", 0),
    )
    latent = any(x.kind == "latent" for x in counts)
    layout = "latent"
    if latent and "kv^T (" in line:
        layout = "copied"
    elif latent and ", V (" in line:
        layout = "expanded"
    cells = said["n_ctx"] // streams if "n_ctx" in said else facts["cells"]
    cache = serving_engines.llama_cache(
        resolve(case.model, settings),
        num_cells=cells,
        num_sequences=num_sequences // streams,
        pad_cells=serving_engines.OLD_PAD_CELLS,
        latent=said.get("latent", layout),
    )
    if finding.kind == "state_size":
        return (cache.state_bytes * streams,) * 2
    if finding.kind == "kv_size":
        return (streams * cache.kv_bytes,) * 2
    is_window = windowed and facts.get("layers") == windowed
    return (streams * (cache.window_bytes if is_window else cache.full_bytes),) * 2


def _llama_format(case: Case, finding: Finding, part: str) -> str:
    """The format of K ("k") or V ("v"): what is tried as a cause, else what the line says, else
    the start, else what was chosen."""
    said, name = case.said, f"{part}_format"
    if said.get("forced"):
        return said["kv_format"]
    return finding.facts.get(name) or said.get(name) or said.get("kv_format", "f16")


def _model_size(case: Case, finding: Finding) -> Range | None:
    bits, num = finding.facts["bits"], case.model.num_parameters
    return num and tuple(num * (bits + sign * 0.005) / 8 for sign in (-1, 1))


def _params(case: Case, finding: Finding) -> Range | None:
    num = case.model.num_parameters
    return num and (num, num)


# ---- SGLang --------------------------------------------------------------------------------------


def _sglang(part: str) -> Callable:
    """A part of the pools: of the one that the line speaks of where window layers have their own,
    which is made first (`SWAKVPool`). What a rank says after its own pools is of the model that
    drafts for it."""

    def make(case: Case, finding: Finding) -> Range | str:
        deployment = served(case)
        alike = [one for one in case.start.of(finding.kind) if one.rank == finding.rank]
        windowed = {x: n for x, n in deployment.layers.items() if x.window}
        split = 0 < len(windowed) < len(deployment.layers) and part in ("key_bytes", "value_bytes")
        drafts = case.said.get("draft_algorithm", "NGRAM") != "NGRAM"
        if drafts and alike.index(finding) >= 1 + split:
            return DRAFTS
        if split and len(alike) >= 2:
            own = alike.index(finding) % 2 == 0
            layers = {x: n for x, n in deployment.layers.items() if (x in windowed) == own}
            deployment = replace(deployment, layers=layers)
        pool = serving_engines.sglang_pool(
            deployment,
            num_tokens=finding.facts.get("tokens", case.said.get("sglang_tokens", 0)),
            num_state_slots=case.said.get("mamba_slots", 0),
        )
        return (getattr(pool, part),) * 2

    return make


# ---- TensorRT-LLM --------------------------------------------------------------------------------


def _trt(case: Case) -> serving_engines.TrtPool:
    return serving_engines.trt_pool(served(case))


def _trt_blocks(case: Case, finding: Finding) -> Range:
    pool, free = _trt(case), case.said["trt_available_gib"]
    fraction = case.said.get("trt_fraction", 0.9)
    return tuple(pool.num_blocks((free + sign * 0.005) * GIB, fraction) for sign in (-1, 1))


def _exactly(make: Callable[[Case], float]) -> Callable:
    return lambda case, finding: (make(case),) * 2


MAKERS: dict[tuple[str, str], Callable[[Case, Finding], Range | str | None]] = {
    ("vllm", "gpu_blocks"): _pooled(_blocks),
    ("vllm", "cpu_blocks"): _pooled(_exactly(lambda case: SWAP_GIB * GIB // _v0_block_bytes(case))),
    ("vllm", "kv_tokens"): _pooled(_tokens),
    ("vllm", "concurrency"): _pooled(_concurrency),
    ("vllm", "weights"): _weights,
    ("vllm", "need"): _pooled(_need),
    ("vllm", "longest"): _pooled(_longest),
    ("vllm", "block_len"): _exactly(lambda case: _vllm(case, 1).block_len),
    ("llama.cpp", "kv_size"): _llama,
    ("llama.cpp", "kv_part"): _llama,
    ("llama.cpp", "state_size"): _llama,
    ("llama.cpp", "model_size"): _model_size,
    ("llama.cpp", "params"): _params,
    ("sglang", "k_size"): _sglang("key_bytes"),
    ("sglang", "v_size"): _sglang("value_bytes"),
    ("sglang", "kv_size"): _sglang("kv_bytes"),
    ("sglang", "pools_size"): _sglang("kv_bytes"),
    ("sglang", "conv_size"): _sglang("conv_bytes"),
    ("sglang", "ssm_size"): _sglang("recurrent_bytes"),
    ("tensorrt-llm", "gpu_blocks"): _trt_blocks,
    ("tensorrt-llm", "kv_size"): _exactly(
        lambda case: _trt(case).pool_bytes(case.said["trt_tokens"])
    ),
}
