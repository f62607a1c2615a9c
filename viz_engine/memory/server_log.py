"""A start-up log of vLLM, SGLang, llama.cpp, ik_llama.cpp or TensorRT-LLM: its capacity numbers.

A paste is one or more starts, each of one or more ranks. `read` finds the numbers of each, what
each means, and what the log says of how the server was started; log_comparison.py sets them beside
the calculator's. A log is data: nothing of it runs, no line is kept longer than LINE_CHARS.

Try it: `python -m viz_engine size --model llama-3.1-8b --log server.log`
"""

import bisect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from viz_engine.numbers import grouped
from viz_engine.text import Message, UserError

MAX_CHARS = 5_000_000
LINE_CHARS = 300  # of a line that is kept
READ_CHARS = 4000  # of a line that is read
MAX_FINDINGS = 400  # sixteen ranks that say all they can, several times
GIB, MIB = 1024**3, 1024**2
# Patterns are linear in the text: what repeats is bounded, and a number is tried once, at its first
# digit. None of them crosses the end of a line.
NUMBER = r"(?<![\d.,])(\d[\d,]{0,63}(?:\.\d{1,20})?)"
GAP = r"[ \t]{0,16}"
FOR_LENGTH = r"Maximum concurrency for [\d,]{1,24} tokens"
SIZE = NUMBER + GAP + r"([KMG]i?B)"


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
    rank: str = ""  # as its line names it; "": it does not
    facts: Mapping[str, object] = field(default_factory=dict)  # what else its line says


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a server. `settings` is what the log says of it, by the names of SETTINGS."""

    findings: tuple[Finding, ...]
    settings: Mapping[str, object]

    def of(self, kind: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What was found, start by start."""

    engine: str
    starts: tuple[Start, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for start in self.starts for finding in start.findings)


# (engine, kind, unit, pattern): the first group is the number, for bytes the second its unit.
PATTERNS = (
    ("vllm", "gpu_blocks", "blocks", rf"\b(?:GPU|cuda|rocm|xpu|hpu) blocks: {NUMBER}"),
    ("vllm", "cpu_blocks", "blocks", rf"# CPU blocks: {NUMBER}"),
    ("vllm", "kv_tokens", "tokens", rf"\b[A-Z]PU KV cache size: {NUMBER} tokens"),
    ("vllm", "kv_tokens", "tokens", rf"tokens that can be stored in KV cache \({NUMBER}\)"),
    ("vllm", "concurrency", "times", rf"{FOR_LENGTH}[^:\n]{{0,80}}: {NUMBER}x"),
    ("vllm", "available", "bytes", rf"(?:Available KV cache memory: |KV [Cc]ache is ){SIZE}"),
    ("vllm", "available", "bytes", rf"available KV [Cc]ache memory \({SIZE}\)"),
    ("vllm", "available", "bytes", rf"kv_cache_size={SIZE}"),
    ("vllm", "available", "bytes", rf"Explicitly set \({NUMBER}/[\d.]{{1,12}}\) (GiB) for"),
    ("vllm", "weights", "bytes", rf"[Mm]odel (?:loading took|weights take|weights took) {SIZE}"),
    ("vllm", "activations", "bytes", rf"PyTorch activation peak memory takes {SIZE}"),
    ("vllm", "non_torch", "bytes", rf"non_torch_memory takes {SIZE}"),
    ("vllm", "need", "bytes", rf"\(?{SIZE} KV cache is ?needed"),
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
    ("sglang", "pools_size", "bytes", rf"KVPool mem usage: {SIZE}"),
    ("sglang", "conv_size", "bytes", rf"conv_state size: {SIZE}"),
    ("sglang", "ssm_size", "bytes", rf"ssm_state size: {SIZE}"),
    ("sglang", "kv_tokens", "tokens", rf"max_total_num_tokens={NUMBER}"),
    ("tensorrt-llm", "gpu_blocks", "blocks", rf"blocks in KV cache primary pool: {NUMBER}"),
    ("tensorrt-llm", "kv_size", "bytes", rf"Allocated {SIZE} for max tokens in paged KV cache"),
    ("tensorrt-llm", "kv_size", "bytes", rf"Allocate {NUMBER} (bytes) for k/v cache"),
)


def _option(name: str, value: str = r"\d{1,18}") -> str:
    """A setting as Python prints it (`name=value`, `'name': value`) or as a command line has it
    (`--name value`, with either mark between words)."""
    flag = name.replace("_", "[-_]")
    mark = r"['\"]?[ \t]{0,4}[=:][ \t]{0,4}"
    return rf"(?:\b{name}{mark}|--{flag}[= \t]{{1,4}})['\"]?({value})"


FORMAT = r"(?:torch\.)?[a-z0-9_]{1,40}"
FLAG = "[Tt]rue|[Ff]alse|[01]"
# How tokens are drafted; "method" alone says too little.
METHODS = (
    r"[a-z0-9_]{0,24}mtp|ngram\w{0,8}|suffix|eagle3?|medusa|mlp_speculator|draft_model|"
    r"dflash\d?|dspark"
)
# What else is read: (name, pattern). Numbers become int, `True` and its like bool.
SETTINGS = (
    ("max_model_len", _option("max_seq_len")),
    ("max_model_len", _option("max_model_len")),
    ("max_model_len", r"Maximum concurrency for ([\d,]{1,24}) tokens"),
    ("max_model_len", r"max seq len \((\d{1,18})\)"),
    ("tp", _option("tensor_parallel_size")),
    ("tp", _option("tp_size")),
    ("tp", r"(?<!\S)--?(?:tp|tensor[-_]parallel)[= ]{1,4}(\d{1,6})"),
    ("pp", _option("pipeline_parallel_size")),
    ("pp", r"(?<!\S)-pp[= ]{1,4}(\d{1,6})"),
    ("dp", _option("dp_size")),
    ("dp_attention", _option("enable_dp_attention", FLAG)),
    ("dp_attention", r"(--enable-dp-attention)(?![=\w])"),
    ("dcp", _option("decode_context_parallel_size")),
    ("block_len", _option("block_size")),
    ("block_len", r"[Nn]umber of tokens per block: (\d{1,9})"),
    ("page_len", _option("page_size")),
    ("kv_format", _option("kv_cache_dtype", FORMAT)),
    ("batched_tokens", _option("max_num_batched_tokens")),
    ("prefix_caching", _option("enable_prefix_caching", FLAG)),
    ("prefix_caching", r"(--(?:no[-_])?enable[-_]prefix[-_]caching)(?![=\w])"),
    ("draft_tokens", _option("num_speculative_tokens", r"\d{1,4}")),
    ("draft_tokens", _option("num_spec_tokens", r"\d{1,4}")),
    ("draft_tokens", r"--spec[a-z-]{0,20}\.num_speculative_tokens[= ]{1,4}(\d{1,4})"),
    ("draft_method", _option("method", METHODS)),
    ("draft_algorithm", _option("speculative_algorithm", r"(?!None)[A-Za-z0-9_]{1,24}")),
    ("device", _option("device_config", r"[a-z]{1,12}")),
    ("blocks_override", _option("num_gpu_blocks_override")),
    ("n_ctx", r"(?<!\S)(?:-c|--ctx-size)[= ]{1,4}(\d{1,18})"),
    ("n_ctx", r"(?:context|context_with_model|from_model): n_ctx[ \t]{0,16}=[ \t]{0,16}(\d{1,18})"),
    ("n_seq", r"(?<!\S)(?:-np|--parallel)[= ]{1,4}(\d{1,9})"),
    ("n_seq", r"n_seq_max[ \t]{0,16}=[ \t]{0,16}(\d{1,9})"),
    ("micro_batch", r"(?<!\S)(?:-ub|--ubatch-size)[= ]{1,4}(\d{1,9})"),
    ("micro_batch", r"n_ubatch[ \t]{0,16}=[ \t]{0,16}(\d{1,9})"),
    ("unified", rf"kv_unified[ \t]{{0,16}}=[ \t]{{0,16}}({FLAG})"),
    ("unified", r"(?<!\S)(-kvu|--kv-unified)(?!\S)"),
    ("k_format", r"type_k[ \t]{0,4}=[ \t]{0,4}'(\w{1,16})'"),
    ("k_format", r"(?<!\S)(?:-ctk|--cache-type-k)[= ]{1,4}(\w{1,16})"),
    ("v_format", r"type_v[ \t]{0,4}=[ \t]{0,4}'(\w{1,16})'"),
    ("v_format", r"(?<!\S)(?:-ctv|--cache-type-v)[= ]{1,4}(\w{1,16})"),
    ("sglang_tokens", r"#tokens: ([\d,]{1,24})"),
    ("mamba_slots", r"max_mamba_cache_size: (\d{1,12})"),
    ("trt_tokens", r"in paged KV cache \((\d{1,18})\)"),
    ("trt_tokens", r"for k/v cache, (\d{1,18}) tokens"),
    ("trt_available_gib", r"available: ([\d.]{1,18}) GiB"),
    ("trt_fraction", r"(?:free_gpu_memory_fraction|freeGpuMemoryFraction)[=: ]{1,8}([\d.]{1,18})"),
)
# What a server says before its capacity: after a capacity number it is another start's.
BEGINS = re.compile(
    r"Initializing (?:a V\d )?(?:an )?(?:LLM )?(?:LLM engine|engine)|non-default args|"
    r"vLLM API server version|Setting attention block size|Chunked prefill is enabled|"
    r"server_args=|llama_model_loader: loaded meta data|\] TensorRT-LLM version"
)
MEASURED = ("weights", "block_len", "activations", "non_torch", "loaded")  # come before capacity
POOLED = ("kv_tokens", "gpu_blocks", "concurrency")  # what a start says once its pool is made
CHECKED = ("need", "longest", "available")  # what it says before, or in place of it
RANK = re.compile(
    r"(?:DP\d{1,4}[_ ])?(?:PP\d{1,4}[_ ])?TP\d{1,4}|rank[= ]\d{1,4}|DP\d{1,4}|pid=\d{1,9}"
)
RANK_CHARS = 200  # of a line, where it names its rank
CELLS = re.compile(
    r"\([ \t]{0,16}(\d{1,12}) cells,[ \t]{0,16}(\d{1,9}) layers"
    r"(?:,[ \t]{0,16}(\d{1,9})(?:/(\d{1,9}))? seqs)?(?:,?[ \t]{0,16}(\d{1,9}) rs_seq)?"
)
CELL_FACTS = ("cells", "layers", "seqs", "streams", "snapshots")
FORMATS = re.compile(r"K \((\w{1,16})\).{0,120}?V \((\w{1,16})\)")
LATENT_FORMAT = re.compile(r"c\^KV \((\w{1,16})\)")  # ik_llama.cpp
TOKENS = re.compile(r"#tokens: ([\d,]{1,24})")
BITS = re.compile(r"\(([\d.,]{1,12}) BPW\)")


@lru_cache(maxsize=2)
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
        findings += [(start, one) for one in _finding(match, row, number)]
    names = [finding.engine for _, finding in findings]
    engine = max(dict.fromkeys(names), key=names.count)
    kept = [(at, finding) for at, finding in findings if finding.engine == engine]
    return Log(engine=engine, starts=tuple(_starts(text, kept)))


def _starts(text: str, findings: list[tuple[int, Finding]]) -> Iterator[Start]:
    """The starts that a text has, each with its own numbers and settings. Settings that stand
    behind the last number belong to its start, unless that has a beginning of its own: an extract
    may give the command after the numbers."""
    edges = [0, *_edges(text, findings), len(text) + 1]
    settings = _settings(text, edges)
    parts = [[one for at, one in findings if a <= at < b] for a, b in pairwise(edges)]
    if len(parts) > 1 and not parts[-1] and not BEGINS.search(text, edges[-3], edges[-2]):
        settings[-3] = settings[-2] | settings[-3]
    for own, said in zip(parts, settings, strict=False):
        if own:
            yield Start(findings=tuple(own), settings=said)


def _edges(text: str, findings: list[tuple[int, Finding]]) -> Iterator[int]:
    """Where another start begins: at what a server says first, after a capacity number; where a
    rank that has its pool, or was counted for one, is counted again."""
    told = [(match.start(), None) for match in BEGINS.finditer(text)]
    capacity, pooled, counted = False, set(), set()
    for at, finding in sorted(told + findings, key=lambda one: one[0]):
        if finding is None:
            again = capacity
        else:
            known = pooled | counted if pooled and finding.rank else pooled
            again = finding.kind in CHECKED and finding.rank in known
        if again:
            yield text.rfind("\n", 0, at) + 1
            capacity, pooled, counted = False, set(), set()
        if finding is not None:
            capacity = capacity or finding.kind not in MEASURED
            if finding.kind in POOLED:
                pooled.add(finding.rank)
            if finding.kind in CHECKED:
                counted.add(finding.rank)


def holds(text: str) -> bool:
    """Whether `read` finds a server's line in a text. Raises UserError where it is too long to be
    read."""
    if len(text) > MAX_CHARS:
        raise UserError("error.log_too_large", chars=grouped(len(text)), limit=grouped(MAX_CHARS))
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


def _settings(text: str, edges: list[int]) -> list[dict[str, object]]:
    """What a log says of how the server was started, for each start; what it says last holds."""
    last: list[dict[str, tuple[int, str]]] = [{} for _ in edges]
    for name, pattern in SETTINGS:
        line_end = -1
        for match in re.finditer(pattern, text):
            if match.start() < line_end:
                continue  # the first of a line counts
            line_end = text.find("\n", match.end())
            line_end = len(text) if line_end < 0 else line_end
            own = last[bisect.bisect_right(edges, match.start()) - 1]
            if match.start() >= own.get(name, (0, ""))[0]:
                own[name] = match.start(), match[1]
    return [{name: _plain(value) for name, (_, value) in own.items()} for own in last]


def _finding(found: re.Match[str], row: int, number: int) -> Iterator[Finding]:
    """The number that a pattern of PATTERNS has found; nothing where another says it better."""
    engine, kind, unit, _ = PATTERNS[row]
    start = found.string.rfind("\n", 0, found.start()) + 1
    end = found.string.find("\n", found.end())
    line = found.string[start : len(found.string) if end < 0 else end]
    if kind == "kv_part" and "recurrent" in line:
        return
    scale = _scale(found[2], engine) if found.re.groups > 1 else 1
    # llama.cpp prints no thousands apart, and its decimals as the locale has them.
    comma = engine == "llama.cpp" and found[1].count(",") == 1 and "." not in found[1]
    printed = found[1].replace(",", "." if comma else "")
    digits = len(printed.partition(".")[2])
    rank = RANK.search(line[:RANK_CHARS])
    yield Finding(
        engine=engine,
        kind=kind,
        value=float(printed) * scale,
        unit=unit,
        slack=0.5 * 10**-digits * scale if digits or scale > 1 else 0,
        line=line.strip()[:LINE_CHARS],
        line_number=number,
        meaning=Message(key=f"log.means.{kind}"),
        rank=rank[0] if rank else "",
        facts=_facts(line),
    )


def _facts(line: str) -> dict[str, object]:
    """What else the line of a number says."""
    facts: dict[str, object] = {}
    if cells := CELLS.search(line):
        named = zip(CELL_FACTS, cells.groups(), strict=True)
        facts = {name: int(value) for name, value in named if value is not None}
    if formats := FORMATS.search(line):
        facts |= {"k_format": formats[1], "v_format": formats[2]}
    elif formats := LATENT_FORMAT.search(line):
        facts |= {"k_format": formats[1], "v_format": formats[1]}
    if tokens := TOKENS.search(line):
        facts["tokens"] = _plain(tokens[1])
    if bits := BITS.search(line):
        facts["bits"] = _plain(bits[1].replace(",", "."))
    return facts


def _scale(unit: str, engine: str) -> float:
    """Bytes in a unit as engines mean it: their "GB" is 2^30 bytes."""
    sizes = {"K": 1024, "M": MIB, "G": GIB}
    if unit in ("T", "B", "M") and engine == "llama.cpp":
        return {"T": 1e12, "B": 1e9, "M": 1e6}[unit]
    return 1 if unit == "bytes" else sizes[unit[0]]


def _plain(text: str) -> int | float | str | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith("-"):
        return not text.startswith("--no")
    digits = text.replace(",", "")
    if digits.isdecimal():
        return int(digits[:18])
    try:
        return float(digits)
    except ValueError:
        return text[:40]
