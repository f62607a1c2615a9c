"""The numbers of a start-up log beside the calculator's own, and why they differ where they do.

Each start is judged by its own lines, a number of several ranks by the smallest. What a paste does
not say of its start is taken from the visitor's choices. A cause is named only where it explains
several numbers that do not follow from one another, and no other does. It knows nothing of pages.

Try it: `python -m viz_engine size --model llama-3.1-8b --log server.log`
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from viz_engine.memory import log_numbers
from viz_engine.memory.deployment import Settings
from viz_engine.memory.log_numbers import Case, Range
from viz_engine.memory.server_log import Finding, Log, Start
from viz_engine.model.config import ModelConfig
from viz_engine.text import Message

LLAMA_FORMATS = ("f16", "q8_0", "q4_0", "f32")
SERVER_FORMATS = ("fp8", "int8", "bf16")
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
    "cpu_blocks": "gpu_blocks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A number of a log beside ours. `verdict`: equal (as printed), within (`ours_range` holds it:
    what follows from numbers that the log rounds), differs, or unknown (the log does not say
    enough, or the number is a measurement). `cause` says why they differ, or that it is not known,
    or what is missing.
    `start`: which of the log's; `assumed`: settings that it does not say, as they were chosen."""

    finding: Finding
    ours: float | None
    verdict: str
    cause: Message | None = None
    ours_range: tuple[float, float] | None = None  # where ours follows from rounded numbers
    start: int = 0
    assumed: tuple[tuple[str, object], ...] = ()


def chosen(settings: Settings, engine: str) -> dict[str, object]:
    """What `settings` say where a log of `engine` is silent, by the names of
    `server_log.SETTINGS`. What is a default is no choice, and of settings for another engine only
    the devices hold."""
    held: dict[str, object] = {}
    if engine != "llama.cpp":
        held["tp"] = settings.tp if settings.tp > 1 else None
    if engine == "vllm":
        held["pp"] = settings.pp if settings.pp > 1 else None
    if settings.engine in (engine, "exact"):
        held["kv_format"] = settings.kv_format if settings.kv_format != "auto" else None
        held |= OF_ENGINE[engine](settings)
    return {name: value for name, value in held.items() if value is not None}


def _of_vllm(settings: Settings) -> dict[str, object]:
    return {
        "dcp": settings.dcp if settings.dcp > 1 else None,
        "block_len": settings.block_len,
        "batched_tokens": settings.batched_tokens,
        "drafts": settings.draft_layers or None,
        "draft_tokens": settings.num_draft_tokens or None,
        "prefix_caching": settings.state_blocks > 1 or None,
    }


def _of_llama(settings: Settings) -> dict[str, object]:
    return {
        "v_format": settings.v_format,
        "micro_batch": settings.batched_tokens,
        "n_seq": settings.num_sequences if settings.num_sequences > 1 else None,
        "unified": settings.unified or None,
    }


OF_ENGINE: Mapping[str, Callable[[Settings], dict[str, object]]] = {
    "vllm": _of_vllm,
    "llama.cpp": _of_llama,
    "sglang": lambda s: {"page_len": s.block_len, "drafts": s.draft_layers or None},
    "tensorrt-llm": lambda s: {"block_len": s.block_len},
}


def compare(
    log: Log, model: ModelConfig, choices: Mapping[str, object] = NONE
) -> tuple[Comparison, ...]:
    """Each number of `log` beside what the calculator makes of `model` and of what the log says of
    its start. `choices`: what holds where it does not say, by the names of `server_log.SETTINGS`
    (`chosen` makes them)."""
    found: list[Comparison] = []
    before: dict[str, object] = {}
    for number, start in enumerate(log.starts):
        found += _start(number, start, log.engine, model, choices, before)
        before |= {name: start.settings[name] for name in KEPT if name in start.settings}
    return tuple(found)


def _start(
    number: int,
    start: Start,
    engine: str,
    model: ModelConfig,
    choices: Mapping[str, object],
    before: Mapping[str, object],
) -> Iterator[Comparison]:
    case = Case(start=start, model=model, engine=engine, said={**choices, **start.settings})
    assumed = tuple((k, v) for k, v in choices.items() if k not in start.settings)
    found = [_judged(case, finding) for finding in start.findings]
    differing = [one.finding for one in found if one.verdict == "differs"]
    earlier = {k: v for k, v in before.items() if k not in start.settings}
    cause = _cause(case, differing, earlier) if differing else None
    for one in found:
        why = cause if one.verdict == "differs" else one.cause
        yield replace(one, cause=why, start=number, assumed=assumed)


def _judged(case: Case, finding: Finding) -> Comparison:
    ours = log_numbers.ours(case, finding)
    if ours is None or isinstance(ours, str):
        reason = None if ours is None else Message(key=f"log.none.{ours}")
        return Comparison(finding=finding, ours=None, verdict="unknown", cause=reason)
    low, high = ours
    middle = low if low == high else (low + high) / 2
    if _meets(finding, (middle, middle)):
        return Comparison(finding=finding, ours=middle, verdict="equal")
    if _meets(finding, ours):
        return Comparison(finding=finding, ours=middle, verdict="within", ours_range=ours)
    return Comparison(finding=finding, ours=middle, verdict="differs")


def _meets(finding: Finding, ours: Range) -> bool:
    return ours[0] - finding.slack - 1e-6 <= finding.value <= ours[1] + finding.slack + 1e-6


# ---- causes --------------------------------------------------------------------------------------


def _cause(case: Case, differing: list[Finding], earlier: Mapping[str, object]) -> Message:
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


def _explains(case: Case, finding: Finding, change: Mapping[str, object]) -> bool:
    made = log_numbers.ours(replace(case, said={**case.said, **change}), finding)
    return isinstance(made, tuple) and _meets(finding, made)


def _full_windows(case: Case, differing: list[Finding]) -> bool:
    """Whether the lines say that window layers have as many cells as the whole context."""
    return all(one.facts.get("cells", 0) >= case.said.get("n_ctx", 2**63) for one in differing)


def _changes(case: Case) -> Iterator[tuple[str, str, dict[str, object]]]:
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
    if case.has_states and case.engine == "vllm" and not said.get("prefix_caching"):
        yield "prefixes", "", {"prefix_caching": True}
    for length in (16, 32, 64, 128):
        yield "block", str(length), {"block_len": length, "page_len": length}
