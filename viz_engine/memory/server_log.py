"""A start-up log of vLLM, SGLang, llama.cpp or TensorRT-LLM: the capacity numbers in it.

`read` finds them, each with what it means; `compare` sets each against the calculator's own number
for a model, and where they differ names the cause that makes them equal, if one does. A log is
data: nothing of it runs, no line is kept longer than LINE_CHARS. It knows nothing of pages.

    from viz_engine.memory import server_log
    from viz_engine.model import config
    log = logs.read(open("server.log").read())
    for line in logs.compare(log, config.preset("llama-3.1-8b")):
        print(line.finding.kind, line.finding.value, line.ours, line.verdict, line.cause)

Try it: `python -m viz_engine size --model llama-3.1-8b --log server.log`
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from viz_engine.memory import serving_engines
from viz_engine.memory.deployment import Deployment, Settings, resolve
from viz_engine.model import weights
from viz_engine.model.config import ModelConfig
from viz_engine.model.formats import weight_bits
from viz_engine.numbers import grouped
from viz_engine.text import Message, UserError

MAX_CHARS = 5_000_000
LINE_CHARS = 300  # of a line that is kept
READ_CHARS = 4000  # of a line that is read
MAX_FINDINGS = 400  # sixteen ranks that say all they can, several times
GIB, MIB = 1024**3, 1024**2
# Patterns are linear in the text: what repeats is bounded, and a number is tried once, at its first
# digit. None of them crosses the end of a line.
NUMBER = r"(?<![\d.,])(\d[\d,]{0,63}(?:\.\d{1,12})?)"
GAP = r"[ \t]{0,16}"
FOR_LENGTH = r"Maximum concurrency for [\d,]{1,24} tokens"
SIZE = NUMBER + GAP + r"([KMG]i?B)"
LLAMA_FORMATS = ("f16", "q8_0", "q4_0", "f32")
SERVER_FORMATS = ("fp8", "int8", "bf16")
SWAP_GIB = 4  # vLLM V0: --swap-space


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One capacity number. `value` in `unit` (bytes, tokens, blocks, times, weights); `slack` is
    half of its last printed digit, in the same unit."""

    engine: str
    kind: str
    value: float
    unit: str
    slack: float
    line: str
    line_number: int
    meaning: Message
    facts: Mapping[str, object] = field(default_factory=dict)  # what else its line says


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What was found. `settings` is what the log says of how the server was started."""

    engine: str
    findings: tuple[Finding, ...]
    settings: Mapping[str, object]

    def last(self, kind: str) -> Finding | None:
        """The last number of that kind (a server that was started twice says it twice)."""
        return next((f for f in reversed(self.findings) if f.kind == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A number of a log beside ours. `verdict`: equal (as printed), within (`ours_range` holds it:
    what follows from numbers that the log rounds), differs, or unknown (the log does not say
    enough, or the number is a measurement). `cause` makes them equal, where one was found."""

    finding: Finding
    ours: float | None
    verdict: str
    cause: Message | None
    ours_range: tuple[float, float] | None = None  # where ours follows from rounded numbers


# (engine, kind, unit, pattern): the first group is the number, for bytes the second its unit.
PATTERNS = (
    ("vllm", "gpu_blocks", "blocks", rf"# (?:GPU|cuda) blocks: {NUMBER}"),
    ("vllm", "cpu_blocks", "blocks", rf"# CPU blocks: {NUMBER}"),
    ("vllm", "kv_tokens", "tokens", rf"GPU KV cache size: {NUMBER} tokens"),
    ("vllm", "concurrency", "times", rf"{FOR_LENGTH}[^:\n]{{0,80}}: {NUMBER}x"),
    ("vllm", "available", "bytes", rf"(?:Available KV cache memory: |KV [Cc]ache is ){SIZE}"),
    ("vllm", "available", "bytes", rf"available KV cache memory \({SIZE}\)"),
    ("vllm", "weights", "bytes", rf"(?:[Mm]odel loading took |[Mm]odel weights take ){SIZE}"),
    ("vllm", "activations", "bytes", rf"PyTorch activation peak memory takes {SIZE}"),
    ("vllm", "non_torch", "bytes", rf"non_torch_memory takes {SIZE}"),
    ("vllm", "need", "bytes", rf"\(?{SIZE} KV cache is needed"),
    ("vllm", "longest", "tokens", rf"estimated maximum model length is {NUMBER}"),
    ("vllm", "block_len", "tokens", rf"Setting attention block size to {NUMBER} tokens"),
    ("llama.cpp", "kv_size", "bytes", rf"KV (?:self|buffer) size{GAP}={GAP}{SIZE}"),
    ("llama.cpp", "state_size", "bytes", rf"recurrent\w{{0,32}}:?{GAP}size{GAP}={GAP}{SIZE}"),
    ("llama.cpp", "kv_part", "bytes", rf"kv_cache\w{{0,32}}:{GAP}size{GAP}={GAP}{SIZE}"),
    ("llama.cpp", "model_size", "bytes", rf"(?:model|file) size{GAP}={GAP}{SIZE}"),
    ("llama.cpp", "model_buffer", "bytes", rf"model buffer size{GAP}={GAP}{SIZE}"),
    ("llama.cpp", "compute_buffer", "bytes", rf"compute buffer size{GAP}={GAP}{SIZE}"),
    ("llama.cpp", "params", "weights", rf"model params{GAP}={GAP}{NUMBER}{GAP}([TBM])"),
    ("sglang", "loaded", "bytes", rf"mem usage={SIZE}"),
    ("sglang", "k_size", "bytes", rf"#tokens: [\d,]{{1,24}}, K size: {SIZE}"),
    ("sglang", "v_size", "bytes", rf", V size: {SIZE}"),
    ("sglang", "kv_size", "bytes", rf"#tokens: [\d,]{{1,24}}, KV size: {SIZE}"),
    ("sglang", "conv_size", "bytes", rf"conv_state size: {SIZE}"),
    ("sglang", "ssm_size", "bytes", rf"ssm_state size: {SIZE}"),
    ("sglang", "kv_tokens", "tokens", rf"max_total_num_tokens={NUMBER}"),
    ("tensorrt-llm", "gpu_blocks", "blocks", rf"blocks in KV cache primary pool: {NUMBER}"),
    ("tensorrt-llm", "kv_size", "bytes", rf"Allocated {SIZE} for max tokens in paged KV cache"),
    ("tensorrt-llm", "kv_size", "bytes", rf"Allocate {NUMBER} (bytes) for k/v cache"),
)
# What else is read: (name, pattern). Numbers become int.
SETTINGS = (
    ("max_model_len", r"max_(?:seq|model)_len[=:][ \t]{0,16}(\d+)"),
    ("max_model_len", r"Maximum concurrency for ([\d,]{1,24}) tokens"),
    ("max_model_len", r"max seq len \((\d{1,18})\)"),
    ("tp", r"tensor_parallel_size=(\d+)"),
    ("tp", r"\btp_size=(\d+)"),
    ("pp", r"pipeline_parallel_size=(\d+)"),
    ("dcp", r"decode_context_parallel_size=(\d+)"),
    ("block_len", r"\bblock_size=(\d+)"),
    ("block_len", r"[Nn]umber of tokens per block: (\d+)"),
    ("page_len", r"\bpage_size=(\d+)"),
    ("kv_format", r"kv_cache_dtype='?(?:torch\.)?([a-z0-9_]+)"),
    ("batched_tokens", r"max_num_batched_tokens[=:][ \t]{0,16}(\d+)"),
    ("n_ctx", r"n_ctx[ \t]{0,16}=[ \t]{0,16}(\d+)"),
    ("n_seq", r"n_seq_max[ \t]{0,16}=[ \t]{0,16}(\d+)"),
    ("micro_batch", r"n_ubatch[ \t]{0,16}=[ \t]{0,16}(\d+)"),
    ("sglang_tokens", r"#tokens: ([\d,]+)"),
    ("mamba_slots", r"max_mamba_cache_size: (\d+)"),
    ("trt_tokens", r"in paged KV cache \((\d{1,18})\)"),
    ("trt_tokens", r"for k/v cache, (\d{1,18}) tokens"),
    ("trt_available_gib", r"available: ([\d.]{1,18}) GiB"),
    ("trt_fraction", r"(?:free_gpu_memory_fraction|freeGpuMemoryFraction)[=: ]{1,8}([\d.]{1,18})"),
)


CELLS = re.compile(r"\([ \t]{0,16}(\d{1,12}) cells,[ \t]{0,16}(\d{1,9}) layers")
FORMATS = re.compile(r"K \((\w{1,16})\).{0,120}?V \((\w{1,16})\)")
BITS = re.compile(r"\(([\d.]{1,12}) BPW\)")


def read(text: str) -> Log:
    """The capacity numbers of a log, in order. Raises UserError where there are none, too many, or
    too much text. Takes time in proportion to the text, whatever stands in it."""
    if len(text) > MAX_CHARS:
        raise UserError("error.log_too_large", chars=grouped(len(text)), limit=grouped(MAX_CHARS))
    text = "\n".join([line[:READ_CHARS] for line in text.splitlines()])
    found = [
        (match.start(), row, match)
        for row, (*_, pattern) in enumerate(PATTERNS)
        for match in _first_of_each_line(pattern, text)
    ]
    if not found:
        raise UserError("error.log_nothing")
    findings, number, at = [], 1, 0
    for start, row, match in sorted(found, key=lambda one: one[:2]):
        number, at = number + text.count("\n", at, start), start
        findings += _finding(match, row, number)
    names = [finding.engine for finding in findings]
    engine = max(dict.fromkeys(names), key=names.count)
    kept = tuple(finding for finding in findings if finding.engine == engine)
    return Log(engine=engine, findings=kept, settings=_settings(text))


def holds(text: str) -> bool:
    """Whether `read` finds a server's line in a text."""
    try:
        read(text)
    except UserError:
        return False
    return True


def _first_of_each_line(pattern: str, text: str) -> Iterator[re.Match[str]]:
    """The first match in each line. Raises UserError where more lines match than a log has."""
    compiled, start, num = re.compile(pattern), 0, 0
    while (match := compiled.search(text, start)) is not None:
        num += 1
        if num > MAX_FINDINGS:
            raise UserError("error.log_too_many", limit=grouped(MAX_FINDINGS))
        yield match
        end = text.find("\n", match.end())
        if end < 0:
            return
        start = end + 1


def _settings(text: str) -> dict[str, object]:
    """What a log says of how the server was started; what it says last holds."""
    last: dict[str, tuple[int, str]] = {}
    for name, pattern in SETTINGS:
        line_end = -1
        for match in re.finditer(pattern, text):
            if match.start() < line_end:
                continue  # the first of a line counts
            line_end = text.find("\n", match.end())
            line_end = len(text) if line_end < 0 else line_end
            if match.start() >= last.get(name, (0, ""))[0]:
                last[name] = match.start(), match[1]
    return {name: _plain(value) for name, (_, value) in last.items()}


def _finding(found: re.Match[str], row: int, number: int) -> Iterator[Finding]:
    """The number that a pattern of PATTERNS has found; nothing where another says it better."""
    engine, kind, unit, _ = PATTERNS[row]
    start = found.string.rfind("\n", 0, found.start()) + 1
    end = found.string.find("\n", found.end())
    line = found.string[start : len(found.string) if end < 0 else end]
    if kind == "kv_part" and "recurrent" in line:
        return
    scale = _scale(found[2], engine) if found.re.groups > 1 else 1
    digits = len(found[1].partition(".")[2])
    facts: dict[str, object] = {}
    if cells := CELLS.search(line):
        facts = {"cells": int(cells[1]), "layers": int(cells[2])}
    if formats := FORMATS.search(line):
        facts |= {"k_format": formats[1], "v_format": formats[2]}
    if bits := BITS.search(line):
        facts["bits"] = _plain(bits[1])
    yield Finding(
        engine=engine,
        kind=kind,
        value=float(found[1].replace(",", "")) * scale,
        unit=unit,
        slack=0.5 * 10**-digits * scale if digits or scale > 1 else 0,
        line=line.strip()[:LINE_CHARS],
        line_number=number,
        meaning=Message(key=f"log.means.{kind}"),
        facts=facts,
    )


def _scale(unit: str, engine: str) -> float:
    """Bytes in a unit as engines mean it: their "GB" is 2^30 bytes."""
    sizes = {"K": 1024, "M": MIB, "G": GIB}
    if unit in ("T", "B", "M") and engine == "llama.cpp":
        return {"T": 1e12, "B": 1e9, "M": 1e6}[unit]
    return 1 if unit == "bytes" else sizes[unit[0]]


def _plain(text: str) -> int | float | str:
    digits = text.replace(",", "")
    if digits.isdecimal():
        return int(digits[:18])
    try:
        return float(digits)
    except ValueError:
        return text[:40]


def compare(log: Log, model: ModelConfig) -> tuple[Comparison, ...]:
    """Each number of `log` beside what the calculator makes of `model` and of what the log says of
    its start."""
    return tuple(_compared(finding, log, model) for finding in log.findings)


def _compared(finding: Finding, log: Log, model: ModelConfig) -> Comparison:
    make = MAKERS.get((finding.engine, finding.kind))
    ours = None if make is None else _made(make, finding, log, model, {})
    if ours is None:
        return Comparison(finding=finding, ours=None, verdict="unknown", cause=None)
    low, high = ours
    middle = low if low == high else (low + high) / 2
    if _meets(finding, (middle, middle)):
        return Comparison(finding=finding, ours=middle, verdict="equal", cause=None)
    if _meets(finding, ours):
        return Comparison(
            finding=finding, ours=middle, verdict="within", cause=None, ours_range=ours
        )
    cause = next(
        (
            Message(key=f"log.cause.{name}", params={"value": value})
            for name, value, change in _changes(log, model)
            if (made := _made(make, finding, log, model, change)) is not None
            and _meets(finding, made)
        ),
        Message(key="log.cause.unknown"),
    )
    return Comparison(finding=finding, ours=middle, verdict="differs", cause=cause)


def _made(
    make: Callable, finding: Finding, log: Log, model: ModelConfig, change: Mapping[str, object]
) -> tuple[float, float] | None:
    """(least, most) of our number, or None where the log lacks what it follows from."""
    try:
        return make(finding, log, model, {**log.settings, **change})
    except (UserError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _meets(finding: Finding, ours: tuple[float, float]) -> bool:
    return ours[0] - finding.slack - 1e-6 <= finding.value <= ours[1] + finding.slack + 1e-6


def _changes(log: Log, model: ModelConfig) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Causes to try, the likeliest first: (name, its value, what it changes)."""
    if any(layer.window for layer in model.layer_counts):
        yield "window", "", {"window_cache": False}
    if any(layer.kind == "latent" for layer in model.layer_counts):
        yield "expanded", "", {"latent": "expanded"}
        yield "copied", "", {"latent": "copied"}
    for name in LLAMA_FORMATS if log.engine == "llama.cpp" else SERVER_FORMATS:
        yield "format", name, {"kv_format": name, "forced": True}
    for tp in (1, 2, 4, 8, 16):
        if tp != log.settings.get("tp", 1):
            yield "ranks", str(tp), {"tp": tp}
    if model.draft_layers:
        yield "drafts", "", {"drafts": len(model.draft_layers)}
    for length in (16, 32, 64, 128):
        yield "block", str(length), {"block_len": length, "page_len": length}


def _served(engine: str, model: ModelConfig, said: Mapping[str, object]) -> Deployment:
    """The deployment that a log's settings describe."""
    block = "page_len" if engine == "sglang" else "block_len"
    settings = Settings(
        context_len=1,
        engine=engine,
        kv_format=said.get("kv_format", "auto"),
        tp=said.get("tp", 1),
        pp=said.get("pp", 1) if engine == "vllm" else 1,
        dcp=said.get("dcp", 1),
        block_len=said.get(block),
        batched_tokens=said.get("batched_tokens"),
        window_cache=said.get("window_cache", True),
        draft_layers=bool(said.get("drafts")),
    )
    return resolve(model, settings)


def _vllm(model: ModelConfig, said: Mapping[str, object]) -> serving_engines.VllmPool:
    if any(x.conv_elements or x.recurrent_elements for x in model.layer_counts):
        said = {**said, "block_len": None}  # what a log says is the length grown for the state
    return serving_engines.vllm_pool(_served("vllm", model, said), said.get("max_model_len", 1))


def _from_available(finding: Finding, log: Log, model: ModelConfig, said: Mapping) -> tuple:
    """Blocks or tokens, from the free memory that the log prints to two decimals."""
    free = log.last("available")
    if free is None:
        return None
    pool = _vllm(model, said)
    blocks = [pool.num_blocks(int(free.value + sign * free.slack)) for sign in (-1, 1)]
    if finding.kind == "gpu_blocks":
        return tuple(blocks)
    if finding.kind == "concurrency":
        return tuple(pool.concurrency(num) for num in blocks)
    by_length = [pool.num_tokens_by_concurrency(b, said.get("max_model_len", 1)) for b in blocks]
    by_groups = [pool.num_tokens(num) for num in blocks]
    older = by_groups[0] <= finding.value <= by_groups[1]
    return tuple(by_groups if older or len(pool.groups) == 1 else by_length)


def _concurrency(finding: Finding, log: Log, model: ModelConfig, said: Mapping) -> tuple:
    tokens = log.last("kv_tokens")
    uniform = len(_vllm(model, said).groups) == 1
    if tokens is not None and uniform:
        return (tokens.value / said["max_model_len"],) * 2
    return _from_available(finding, log, model, said)


def _longest(finding: Finding, log: Log, model: ModelConfig, said: Mapping) -> tuple | None:
    """The longest request that the free memory holds, which the log prints to two decimals."""
    free = log.last("available")
    if free is None:
        return None
    named = {key: said[key] for key in ("tp", "kv_format") if key in said}
    served, upper = _served("vllm", model, named), said.get("max_model_len", 2**24)
    return tuple(
        serving_engines.vllm_longest(served, int(free.value + sign * free.slack), upper=upper)
        for sign in (-1, 1)
    )


def _exactly(make: Callable[[ModelConfig, Mapping], float]) -> Callable:
    def made(finding: Finding, log: Log, model: ModelConfig, said: Mapping) -> tuple:
        value = make(model, said)
        return value, value

    return made


def _weights(finding: Finding, log: Log, model: ModelConfig, said: Mapping) -> tuple | None:
    if model.weights is None:
        return None
    bits = weight_bits("auto", model.dtype)
    value = weights.allocated_bytes(
        model.weights, bits, said.get("tp", 1), model.rope_cache_numbers, stored=True
    )
    return (
        0.99 * value,
        1.01 * value,
    )  # buffers of adapters and of quantised kernels are not counted


def _llama(finding: Finding, log: Log, model: ModelConfig, said: Mapping) -> tuple | None:
    """Of the part that the line speaks of: one of a cache in two parts, the whole, or the state."""
    facts = finding.facts
    stated = said["kv_format"] if said.get("forced") else None
    settings = Settings(
        context_len=1,
        engine="llama.cpp",
        kv_format=stated or facts.get("k_format", "f16"),
        v_format=stated or facts.get("v_format", "f16"),
        batched_tokens=said.get("micro_batch"),
        window_cache=said.get("window_cache", finding.kind == "kv_part"),
    )
    expanded = any(x.kind == "latent" for x in model.layer_counts) and "V (" in finding.line
    cache = serving_engines.llama_cache(
        resolve(model, settings),
        num_cells=said["n_ctx"] if "n_ctx" in said else facts["cells"],
        num_sequences=said.get("n_seq", 1),
        pad_cells=serving_engines.OLD_PAD_CELLS,
        latent=said.get("latent", "expanded" if expanded else "latent"),
    )
    if finding.kind == "state_size":
        return (cache.state_bytes,) * 2
    if finding.kind == "kv_size":
        return (cache.kv_bytes,) * 2
    windowed = sum(n for x, n in model.layer_counts.items() if x.window and x.num_kv_heads)
    is_window = windowed and facts.get("layers") == windowed
    return (cache.window_bytes if is_window else cache.full_bytes,) * 2


def _model_size(finding: Finding, log: Log, model: ModelConfig, said: Mapping) -> tuple | None:
    bits = finding.facts["bits"]
    if model.num_parameters is None:
        return None
    return tuple(model.num_parameters * (bits + sign * 0.005) / 8 for sign in (-1, 1))


def _sglang(part: str) -> Callable:
    def make(model: ModelConfig, said: Mapping) -> float:
        pool = serving_engines.sglang_pool(
            _served("sglang", model, said),
            num_tokens=said.get("sglang_tokens", 0),
            num_state_slots=said.get("mamba_slots", 0),
        )
        return getattr(pool, part)

    return _exactly(make)


def _trt(model: ModelConfig, said: Mapping) -> serving_engines.TrtPool:
    return serving_engines.trt_pool(_served("tensorrt-llm", model, said))


def _trt_blocks(finding: Finding, log: Log, model: ModelConfig, said: Mapping) -> tuple:
    pool, free = _trt(model, said), said["trt_available_gib"]
    fraction = said.get("trt_fraction", 0.9)
    return tuple(pool.num_blocks((free + sign * 0.005) * GIB, fraction) for sign in (-1, 1))


MAKERS: dict[tuple[str, str], Callable] = {
    ("vllm", "gpu_blocks"): _from_available,
    ("vllm", "cpu_blocks"): _exactly(lambda m, said: _vllm(m, said).num_blocks(SWAP_GIB * GIB)),
    ("vllm", "kv_tokens"): _from_available,
    ("vllm", "concurrency"): _concurrency,
    ("vllm", "weights"): _weights,
    ("vllm", "need"): _exactly(lambda m, said: _vllm(m, {**said, "pp": 1}).request_bytes),
    ("vllm", "longest"): _longest,
    ("vllm", "block_len"): _exactly(lambda m, said: _vllm(m, said).block_len),
    ("llama.cpp", "kv_size"): _llama,
    ("llama.cpp", "kv_part"): _llama,
    ("llama.cpp", "state_size"): _llama,
    ("llama.cpp", "model_size"): _model_size,
    ("llama.cpp", "params"): _exactly(lambda m, said: m.num_parameters),
    ("sglang", "k_size"): _sglang("key_bytes"),
    ("sglang", "v_size"): _sglang("value_bytes"),
    ("sglang", "kv_size"): _sglang("kv_bytes"),
    ("sglang", "conv_size"): _sglang("conv_bytes"),
    ("sglang", "ssm_size"): _sglang("recurrent_bytes"),
    ("tensorrt-llm", "gpu_blocks"): _trt_blocks,
    ("tensorrt-llm", "kv_size"): _exactly(
        lambda m, said: _trt(m, said).pool_bytes(said["trt_tokens"])
    ),
}
