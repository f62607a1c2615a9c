"""The numbers of a start-up log beside the calculator's own, and why they differ where they do.

Each start is judged by its own lines, a number of several ranks by the smallest. What a paste does
not say of its start is taken from the visitor's choices. A cause is named only where it explains
several numbers that do not follow from one another, and no other does. It knows nothing of pages.

Try it: `python -m viz_engine size --model llama-3.1-8b --log server.log`
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from viz_engine.memory import serving_engines
from viz_engine.memory.deployment import Deployment, Settings, resolve
from viz_engine.memory.server_log import GIB, Finding, Log, Start
from viz_engine.model import weights
from viz_engine.model.config import ModelConfig
from viz_engine.model.formats import weight_bits
from viz_engine.model.spec import LayerSpec
from viz_engine.run import cost
from viz_engine.text import Message, UserError

LLAMA_FORMATS = ("f16", "q8_0", "q4_0", "f32")
SERVER_FORMATS = ("fp8", "int8", "bf16")
SWAP_GIB = 4  # vLLM V0: --swap-space
NONE: Mapping[str, object] = {}
# What a server is mostly started with again.
KEPT = ("tp", "pp", "dcp", "kv_format", "block_len", "page_len", "prefix_caching", "draft_tokens")
# Numbers that follow from one another count as one where a cause is looked for.
ALIKE = {
    "concurrency": "kv_tokens",
    "v_size": "k_size",
    "kv_size": "k_size",
    "pools_size": "k_size",
    "longest": "need",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A number of a log beside ours. `verdict`: equal (as printed), within (`ours_range` holds it:
    what follows from numbers that the log rounds), differs, or unknown (the log does not say
    enough, or the number is a measurement). `cause` says why they differ, or that it is not known.
    `start`: which of the log's; `assumed`: settings that it does not say, as they were chosen."""

    finding: Finding
    ours: float | None
    verdict: str
    cause: Message | None = None
    ours_range: tuple[float, float] | None = None  # where ours follows from rounded numbers
    start: int = 0
    assumed: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One start beside a model: what a maker of our number takes."""

    start: Start
    model: ModelConfig
    engine: str
    said: Mapping[str, object]


def compare(
    log: Log, model: ModelConfig, chosen: Mapping[str, object] = NONE
) -> tuple[Comparison, ...]:
    """Each number of `log` beside what the calculator makes of `model` and of what the log says of
    its start. `chosen`: by the names of `server_log.SETTINGS`, what holds where it does not say."""
    found: list[Comparison] = []
    before: dict[str, object] = {}
    for number, start in enumerate(log.starts):
        found += _start(number, start, log.engine, model, chosen, before)
        before |= {name: start.settings[name] for name in KEPT if name in start.settings}
    return tuple(found)


def _start(
    number: int,
    start: Start,
    engine: str,
    model: ModelConfig,
    chosen: Mapping[str, object],
    before: Mapping[str, object],
) -> Iterator[Comparison]:
    case = _Case(start=start, model=model, engine=engine, said={**chosen, **start.settings})
    assumed = tuple((k, v) for k, v in chosen.items() if k not in start.settings)
    found = [_judged(case, finding) for finding in start.findings]
    differing = [one.finding for one in found if one.verdict == "differs"]
    earlier = {k: v for k, v in before.items() if k not in start.settings}
    cause = _cause(case, differing, earlier) if differing else None
    for one in found:
        why = cause if one.verdict == "differs" else None
        yield replace(one, cause=why, start=number, assumed=assumed)


def _judged(case: _Case, finding: Finding) -> Comparison:
    ours = _made(case, finding)
    if ours is None:
        return Comparison(finding=finding, ours=None, verdict="unknown")
    low, high = ours
    middle = low if low == high else (low + high) / 2
    if _meets(finding, (middle, middle)):
        return Comparison(finding=finding, ours=middle, verdict="equal")
    if _meets(finding, ours):
        return Comparison(finding=finding, ours=middle, verdict="within", ours_range=ours)
    return Comparison(finding=finding, ours=middle, verdict="differs")


def _made(
    case: _Case, finding: Finding, change: Mapping[str, object] = NONE
) -> tuple[float, float] | None:
    """(least, most) of our number, or None where the log lacks what it follows from."""
    make = MAKERS.get((finding.engine, finding.kind))
    try:
        changed = replace(case, said={**case.said, **change})
        return None if make is None else make(changed, finding)
    except (UserError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _meets(finding: Finding, ours: tuple[float, float]) -> bool:
    return ours[0] - finding.slack - 1e-6 <= finding.value <= ours[1] + finding.slack + 1e-6


# ---- causes --------------------------------------------------------------------------------------


def _cause(case: _Case, differing: list[Finding], earlier: Mapping[str, object]) -> Message:
    """Why all of them differ. What the lines themselves, or an earlier start, say stands; another
    cause only if it explains several numbers and is the only one that does."""
    if earlier and all(_explains(case, finding, earlier) for finding in differing):
        said = ", ".join(f"{name} = {value}" for name, value in earlier.items())
        return Message(key="log.cause.earlier", params={"settings": said})
    causes = [
        (Message(key=f"log.cause.{name}", params={"value": value}), change)
        for name, value, change in _changes(case)
        if all(_explains(case, finding, change) for finding in differing)
    ]
    for message, change in causes:
        if change.get("window_cache") is False and _full_windows(case, differing):
            return message
    if not causes:
        return Message(key="log.cause.unknown")
    if len(causes) > 1:
        one, two = causes[0][0], causes[1][0]
        return Message(key="log.cause.several", params={"one": one, "two": two})
    ((message, _),) = causes
    kinds = {ALIKE.get(finding.kind, finding.kind) for finding in differing}
    return (
        message if len(kinds) > 1 else Message(key="log.cause.perhaps", params={"cause": message})
    )


def _explains(case: _Case, finding: Finding, change: Mapping[str, object]) -> bool:
    made = _made(case, finding, change)
    return made is not None and _meets(finding, made)


def _full_windows(case: _Case, differing: list[Finding]) -> bool:
    """Whether the lines say that window layers have as many cells as the whole context."""
    return all(one.facts.get("cells", 0) >= case.said.get("n_ctx", 2**63) for one in differing)


def _changes(case: _Case) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Causes to try: (name, its value, what it changes)."""
    counts, said = case.model.layer_counts, case.said
    if any(layer.window for layer in counts):
        yield "window", "", {"window_cache": False}
    if any(layer.kind == "latent" for layer in counts):
        yield "expanded", "", {"latent": "expanded"}
        yield "copied", "", {"latent": "copied"}
    for name in LLAMA_FORMATS if case.engine == "llama.cpp" else SERVER_FORMATS:
        yield "format", name, {"kv_format": name, "forced": True}
    for tp in (1, 2, 4, 8, 16):
        if tp != said.get("tp", 1):
            yield "ranks", str(tp), {"tp": tp}
    if case.model.draft_layers and not said.get("drafts"):
        yield "drafts", "", {"drafts": True}
    if _states(case.model) and case.engine == "vllm" and not said.get("prefix_caching"):
        yield "prefixes", "", {"prefix_caching": True}
    for length in (16, 32, 64, 128):
        yield "block", str(length), {"block_len": length, "page_len": length}


# ---- what an engine makes of a start -------------------------------------------------------------


def _states(model: ModelConfig) -> bool:
    return any(x.conv_elements or x.recurrent_elements for x in model.layer_counts)


def _served(case: _Case) -> Deployment:
    """The deployment that a start's settings describe."""
    said, engine = case.said, case.engine
    block = "page_len" if engine == "sglang" else "block_len"
    block_len = said.get(block)
    if engine == "vllm" and _states(case.model):
        block_len = None  # what a log says is the length grown for the state
    settings = Settings(
        context_len=1,
        engine=engine,
        kv_format=said.get("kv_format", "auto"),
        tp=said.get("tp", 1),
        pp=said.get("pp", 1) if engine == "vllm" else 1,
        dcp=said.get("dcp", 1),
        block_len=block_len,
        batched_tokens=said.get("batched_tokens"),
        window_cache=said.get("window_cache", True),
        draft_layers=bool(said.get("drafts") or said.get("draft_method")),
        num_draft_tokens=said.get("draft_tokens", 0),
        state_blocks=2 if engine == "vllm" and said.get("prefix_caching") else 1,
    )
    return resolve(case.model, settings)


def _vllm(case: _Case, length: int | None = None) -> serving_engines.VllmPool:
    """The pool for requests of the longest length. Raises KeyError where the log does not say it
    and it matters."""
    if length is None:
        length = case.said["max_model_len"]
    return serving_engines.vllm_pool(_served(case), length)


def _free(case: _Case, finding: Finding) -> tuple[int, int] | None:
    """Least and most free bytes, as printed to two decimals: the smallest rank decides for all; of
    a rank that counts for itself, as engines of 2024 did, its own."""
    every = case.start.of("available")
    if not every:
        return None
    own = case.start.of(finding.kind)
    free = min(every, key=lambda one: one.value)
    if len(own) == len(every) > 1 and len({one.value for one in own}) > 1:
        free = every[own.index(finding)]
    return int(free.value - free.slack), int(free.value + free.slack)


def _blocks(case: _Case, finding: Finding) -> tuple | None:
    """vLLM V0: blocks of all attention layers together; states are kept apart from them."""
    free, size = _free(case, finding), _v0_block_bytes(case)
    return free and tuple(num_bytes // size for num_bytes in free)


def _v0_block_bytes(case: _Case) -> int:
    served = _served(case)
    layers = {x: n for x, n in served.layers.items() if x.num_kv_heads}
    rows = sum(
        n * cost.layer_rows(x, served.k_format, served.k_format, tp=served.tp).total
        for x, n in layers.items()
    )
    return served.block_len * rows


def _tokens(case: _Case, finding: Finding) -> tuple | None:
    """ "GPU KV cache size": of one group its blocks, of several what vLLM's version prints."""
    if (free := _free(case, finding)) is None:
        return None
    pool = _vllm(case, case.said.get("max_model_len", 1))
    blocks = [pool.num_blocks(num_bytes) for num_bytes in free]
    by_groups = tuple(pool.num_tokens(num) for num in blocks)
    if len(pool.groups) == 1 or by_groups[0] <= finding.value <= by_groups[1]:
        return by_groups
    length = case.said["max_model_len"]
    return tuple(pool.num_tokens_by_concurrency(num, length) for num in blocks)


def _concurrency(case: _Case, finding: Finding) -> tuple | None:
    """Requests of the longest length: from the tokens of one group, else from the free memory, else
    from the tokens of several groups, which stand for a few numbers of blocks."""
    length, pool = case.said["max_model_len"], _vllm(case)
    if blocks := case.start.of("gpu_blocks"):  # V0
        return (min(one.value for one in blocks) * _served(case).block_len / length,) * 2
    tokens = case.start.of("kv_tokens")
    fewest = min((one.value for one in tokens), default=None)
    if fewest is not None and len(pool.groups) == 1:
        return (fewest / length,) * 2
    if free := _free(case, finding):
        return tuple(pool.concurrency(pool.num_blocks(num_bytes)) for num_bytes in free)
    if fewest is None:
        return None
    by_length = (fewest / length, (fewest + 1) / length)
    if _meets(finding, by_length):
        return by_length
    smallest, groups = min(group.block_len for group in pool.groups), len(pool.groups)
    blocks, rest = divmod(fewest, smallest)
    if rest:
        return None
    ends = blocks * groups, blocks * groups + groups - 1
    return tuple(pool.concurrency(int(num)) for num in ends)


def _longest(case: _Case, finding: Finding) -> tuple | None:
    """The longest request that the free memory holds, which the log prints to two decimals."""
    if (free := _free(case, finding)) is None:
        return None
    kept = {key: case.said[key] for key in ("tp", "kv_format") if key in case.said}
    served, upper = _served(replace(case, said=kept)), case.said.get("max_model_len", 2**24)
    return tuple(serving_engines.vllm_longest(served, num_bytes, upper=upper) for num_bytes in free)


def _need(case: _Case, finding: Finding) -> tuple:
    """What one request of the longest length takes on one rank of one stage."""
    one_stage = replace(case, said={**case.said, "pp": 1})
    return (_vllm(one_stage).request_bytes,) * 2


def _weights(case: _Case, finding: Finding) -> tuple | None:
    """Buffers of adapters and of quantised kernels are not counted: 1 % either way."""
    if case.model.weights is None:
        return None
    model, tp = case.model, case.said.get("tp", 1)
    bits = weight_bits("auto", model.dtype)
    value = weights.allocated_bytes(model.weights, bits, tp, model.rope_cache_numbers, stored=True)
    return 0.99 * value, 1.01 * value


def _llama(case: _Case, finding: Finding) -> tuple | None:
    """Of the part that the line speaks of: one of a cache in two parts, the whole, or the state. A
    cache of several streams has one for each sequence."""
    facts, said, line = finding.facts, case.said, finding.line
    counts = case.model.layer_counts
    windowed = sum(n for x, n in counts.items() if x.window and x.num_kv_heads)
    full = sum(n for x, n in counts.items() if x.num_kv_heads) - windowed
    if finding.kind == "kv_part" and facts.get("layers", full) not in (full, windowed):
        return None  # of another model: one that drafts
    if "buffer size" in line and len(case.start.of(finding.kind)) > 1:
        return None  # a device's share
    stated = said["kv_format"] if said.get("forced") else None
    streams = facts.get("streams", 1)
    settings = Settings(
        context_len=1,
        engine="llama.cpp",
        kv_format=stated or facts.get("k_format", "f16"),
        v_format=stated or facts.get("v_format", "f16"),
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
        num_sequences=facts.get("seqs", said.get("n_seq", 1)) // streams,
        pad_cells=serving_engines.OLD_PAD_CELLS,
        latent=said.get("latent", layout),
    )
    if finding.kind == "state_size":
        return (cache.state_bytes,) * 2
    if finding.kind == "kv_size":
        return (cache.kv_bytes,) * 2
    is_window = windowed and facts.get("layers") == windowed
    return (streams * (cache.window_bytes if is_window else cache.full_bytes),) * 2


def _model_size(case: _Case, finding: Finding) -> tuple | None:
    bits, num = finding.facts["bits"], case.model.num_parameters
    return num and tuple(num * (bits + sign * 0.005) / 8 for sign in (-1, 1))


def _params(case: _Case, finding: Finding) -> tuple | None:
    num = case.model.num_parameters
    return num and (num, num)


def _sglang(part: str) -> Callable:
    """A part of the pools: of the one that the line speaks of where window layers have their own,
    which is made first (`SWAKVPool`)."""

    def make(case: _Case, finding: Finding) -> tuple:
        served = _served(case)
        alike = [one for one in case.start.of(finding.kind) if one.rank == finding.rank]
        windowed = {x: n for x, n in served.layers.items() if x.window}
        if len(alike) == 2 and windowed and len(windowed) < len(served.layers):
            own = alike.index(finding) == 0
            served = replace(served, layers=_part(served.layers, windowed, own=own))
        pool = serving_engines.sglang_pool(
            served,
            num_tokens=finding.facts.get("tokens", case.said.get("sglang_tokens", 0)),
            num_state_slots=case.said.get("mamba_slots", 0),
        )
        return (getattr(pool, part),) * 2

    return make


def _part(
    layers: Mapping[LayerSpec, int], windowed: Mapping[LayerSpec, int], *, own: bool
) -> Mapping[LayerSpec, int]:
    return {x: n for x, n in layers.items() if (x in windowed) == own}


def _trt(case: _Case) -> serving_engines.TrtPool:
    return serving_engines.trt_pool(_served(case))


def _trt_blocks(case: _Case, finding: Finding) -> tuple:
    pool, free = _trt(case), case.said["trt_available_gib"]
    fraction = case.said.get("trt_fraction", 0.9)
    return tuple(pool.num_blocks((free + sign * 0.005) * GIB, fraction) for sign in (-1, 1))


def _exactly(make: Callable[[_Case], float]) -> Callable:
    return lambda case, finding: (make(case),) * 2


MAKERS: dict[tuple[str, str], Callable] = {
    ("vllm", "gpu_blocks"): _blocks,
    ("vllm", "cpu_blocks"): _exactly(lambda case: SWAP_GIB * GIB // _v0_block_bytes(case)),
    ("vllm", "kv_tokens"): _tokens,
    ("vllm", "concurrency"): _concurrency,
    ("vllm", "weights"): _weights,
    ("vllm", "need"): _need,
    ("vllm", "longest"): _longest,
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
