"""`bench`: this engine against transformers, llama.cpp and the bare read of the weights.

All contenders hold the same rows and take the same tokens, by turns (A B A B), the first step of
each turn dropped. Rows are read once by this engine and copied into the others' caches: the time
of a step depends on their number, not on what they say. llama.cpp takes its own tokens.

Try it: `python -m viz_engine bench --quick`
"""

import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from viz_engine.bench import report
from viz_engine.bench.contenders import LlamaCpp, Ours, Transformers
from viz_engine.bench.report import BARE, LLAMA, OURS, PIECES, WHOLE
from viz_engine.engine import generate
from viz_engine.engine import load as engine_load
from viz_engine.engine.load import Loaded
from viz_engine.paths import ROOT
from viz_engine.run import cost, machine
from viz_engine.run.codec import to_line
from viz_engine.run.command import QUESTIONS
from viz_engine.run.events import RunSettings, StepFinished

HF_DTYPES = ("float32", "bfloat16", "float16")
REST_S = 0.3  # before a prefill: threads of the contender before look out for work for a while
SLOW = 4.0  # times the best of a first round: not taken by turns, even that round was warm-up
NUM_TRIED = 3  # of each way to read the weights, before one is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured and how often."""

    cells: tuple[tuple[int, int], ...]  # (context, batch) of decode
    prefills: tuple[int, ...]
    slope: tuple[int, ...]
    num_turns: int = 8  # of each contender in a cell
    num_steps: int = 8  # of a turn, besides the one dropped
    num_prefills: int = 6
    num_instrumented: int = 160
    run: tuple[int, int] = (2000, 64)  # tokens read and written: the live page's first preset
    num_compared: int = 48  # tokens whose logits are compared
    memory_at: int | None = 8000
    most_s: float = 75.0  # of a decode cell, twice that of a prefill: then no further turns
    quick: bool = False

    @property
    def most_columns(self) -> int:
        contexts = [*self.prefills, *self.slope, *(context for context, _ in self.cells)]
        return max(contexts) + self.num_steps + 2


CELLS = ((32, 1), (512, 1), (2048, 1), (32, 8), (512, 8), (2048, 8), (8000, 1))
FULL = Plan(cells=CELLS, prefills=(512, 2048), slope=(32, 512, 1024, 2048, 4096, 6000, 8000))
QUICK = Plan(
    cells=((32, 1), (512, 1)),
    prefills=(512,),
    slope=(32, 512, 1024, 2048),
    num_turns=3,
    num_prefills=2,
    num_instrumented=40,
    num_compared=16,
    memory_at=None,
    quick=True,
)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Targets that are missed are said, not counted as an error."""
    plan = QUICK if args.quick else FULL
    if args.full:
        plan = dataclasses.replace(plan, cells=(*plan.cells, (8000, 8)))
    document = measure(plan, say=lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(document, indent=1) if args.json else report.table(document))
    return 0


def measure(
    plan: Plan, *, model: str | None = None, say: Callable[[str], None] = lambda text: None
) -> dict[str, object]:
    """The document: all measurements, and the targets with what they came to."""
    began, load_before = time.monotonic(), os.getloadavg()[0]
    transformers_logging.disable_progress_bar()
    loaded = engine_load.load(*([] if model is None else [model]), device="cpu")
    ours = Ours(loaded)
    folder = engine_load.fetch(loaded.name)
    theirs = {f"transformers {dtype}": Transformers(folder, dtype) for dtype in HF_DTYPES}
    question = {"chat": True, "context_len": plan.most_columns, "filler": "en"}
    ids = loaded.tokenizer.encode_prompt(QUESTIONS["en"], **question)
    with tempfile.TemporaryDirectory() as kept:
        llama = _llama(Path(kept), plan, model)
        contenders = {OURS: ours, **theirs} | ({} if llama is None else {LLAMA: llama})
        weights = {name: contender.weight_bytes for name, contender in contenders.items()}
        read = _BareRead(loaded)
        say("logits")
        divergence = _divergence(ours, theirs, ids[: min(96, len(ids))], plan.num_compared)
        say(f"reading {plan.most_columns} tokens")
        ours.prefill(torch.tensor([ids]), 256)
        source = ours.rows
        decode = list(_decode(plan, ours, theirs, llama, read, source, ids, say))
        say("time against context")
        slope = _slope(plan, ours, source, loaded)
        ours.rows = source = None
        prefill = list(_prefill(plan, ours, theirs, llama, ids, say))
        llama = contenders = None
    say("instrumentation")
    instrumentation = _instrumentation(loaded, plan.run, plan.num_instrumented)
    memory = None
    if plan.memory_at is not None:
        say(f"memory at {plan.memory_at}")
        memory = _memory(plan.memory_at)
    at_32 = report.cell(decode, contender=OURS, context=plan.cells[0][0], batch=1)
    columns = plan.cells[0][0] + 1
    num_bytes = loaded.weight_bytes_once + loaded.lookup_row_bytes
    num_bytes += columns * cost.row_bytes(loaded.spec, loaded.dtype)
    bare = report.cell(decode, contender=BARE, context=plan.cells[0][0], batch=1)["ms"]
    gb_per_s = read.num_bytes / bare["median"] / 1e6
    document = {
        "machine": machine.cpu_name(),
        "num_threads": torch.get_num_threads(),
        "date": datetime.date.today().isoformat(),
        "quick": plan.quick,
        "model": loaded.spec.name,
        "dtype": loaded.dtype,
        "versions": generate.versions(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "took_s": time.monotonic() - began,
        "weights": weights,
        "read": {"ms": bare, "gb_per_s": gb_per_s},
        "decode": decode,
        "prefill": prefill,
        "slope": slope,
        "mbu": num_bytes / at_32["ms"]["median"] / 1e6 / gb_per_s,
        "divergence": divergence,
        "instrumentation": instrumentation,
        "memory": memory,
        "parts": [
            {"name": part.name, "on": part.on, "reason": str(part.reason)}
            for part in instrumentation.pop("parts")
        ],
    }
    document["targets"] = report.targets(document)
    return document


def _llama(folder: Path, plan: Plan, model: str | None) -> LlamaCpp | None:
    """llama.cpp where its wheel is installed and the model is the packaged one."""
    if model is not None or importlib.util.find_spec("xllamacpp") is None:
        return None
    return LlamaCpp(folder, plan.most_columns + 64, torch.get_num_threads())


class _BareRead:
    """The fastest of torch's ways to read as many bytes as the weights have, all threads: the
    floor of a step."""

    def __init__(self, loaded: Loaded) -> None:
        once = torch.ones(loaded.weight_bytes_once // 4, dtype=torch.float32)
        self.num_bytes = once.nbytes
        ways = [once.sum, lambda: torch.dot(once, once)]
        self.turn = min(map(_timed, ways), key=lambda way: min(way() for _ in range(NUM_TRIED)))

    def reads(self, num: int) -> list[int]:
        """Nanoseconds of each."""
        return [self.turn() for _ in range(num)]


def _timed(work: Callable[[], object]) -> Callable[[], int]:
    """A call that gives the nanoseconds of `work`."""

    def turn() -> int:
        start = time.perf_counter_ns()
        work()
        return time.perf_counter_ns() - start

    return turn


def _turns(num: int, most_s: float) -> Iterator[int]:
    """0 (a warm-up) to `num`; on a machine that is busy fewer, but one at least."""
    began = time.monotonic()
    for i in range(num + 1):
        if i > 1 and time.monotonic() - began > most_s:
            return
        yield i


def _prefill(
    plan: Plan,
    ours: Ours,
    theirs: dict[str, Transformers],
    llama: LlamaCpp | None,
    ids: list[int],
    say: Callable[[str], None],
) -> Iterator[dict[str, object]]:
    for context in plan.prefills:
        say(f"prefill of {context}")
        part = ids[:context]
        tensor = torch.tensor([part])

        turns = {
            f"{OURS} {PIECES}": _timed(lambda tensor=tensor: ours.prefill(tensor, 256)),
            f"{OURS} {WHOLE}": _timed(lambda tensor=tensor: ours.prefill(tensor, 0)),
        }
        for name, contender in theirs.items():
            if not name.endswith("float16") or name.endswith("bfloat16") or context <= 512:
                turns[name] = _timed(lambda c=contender, tensor=tensor: c.prefill(tensor))
        if llama is not None:
            turns[LLAMA] = lambda part=part: llama.prefill(part)
        took: dict[str, list[float]] = {name: [] for name in turns}
        slow: set[str] = set()
        for i in _turns(plan.num_prefills, 2 * plan.most_s):
            for name in [name for name in turns if name not in slow]:
                time.sleep(REST_S)
                took[name].append(turns[name]() / 1e6)
            if i == 0:
                slow = _slow(took)
        for name, times in took.items():
            times = times if name in slow else times[1:]
            yield {"contender": name, "context": context, "ms": report.spread(times)}


def _slow(took: dict[str, list[float]]) -> set[str]:
    """Who was so far behind in the first round that the others' turns are worth more."""
    best = min(times[0] for times in took.values())
    return {name for name, times in took.items() if times[0] > SLOW * best}


def _decode(
    plan: Plan,
    ours: Ours,
    theirs: dict[str, Transformers],
    llama: LlamaCpp | None,
    read: _BareRead,
    source: object,
    ids: list[int],
    say: Callable[[str], None],
) -> Iterator[dict[str, object]]:
    for context, batch in plan.cells:
        say(f"decode at {context} x {batch}")
        tokens = ids[context : context + plan.num_steps + 1]
        ours.hold(source, batch, context)
        turns = {OURS: lambda tokens=tokens: ours.decode(tokens)[1:]}
        for name, contender in theirs.items():
            contender.hold(source, batch, context)
            turns[name] = lambda c=contender, tokens=tokens: c.decode(tokens)[1:]
        if llama is not None and batch == 1:
            llama.hold(ids[:context])
            turns[LLAMA] = lambda: llama.decode(plan.num_steps)
        if batch == 1:
            turns[BARE] = lambda: read.reads(plan.num_steps)
        took: dict[str, list[float]] = {name: [] for name in turns}
        for i in _turns(plan.num_turns, plan.most_s):
            for name, turn in turns.items():
                times = turn()
                took[name] += [ns / 1e6 for ns in times] if i else []
        load = os.getloadavg()[0]
        for name, times in took.items():
            row = {"contender": name, "context": context, "batch": batch, "load": load}
            yield row | {"ms": report.spread(times)}
        for contender in theirs.values():
            contender.cache = None


def _slope(plan: Plan, ours: Ours, source: object, loaded: Loaded) -> dict[str, object]:
    """Medians of steps at several contexts, by turns, and the line through them."""
    ours.hold(source, 1, max(plan.slope))
    took: dict[int, list[float]] = {context: [] for context in plan.slope}
    tokens = [1] * (plan.num_steps + 1)
    for i in _turns(plan.num_turns, plan.most_s):
        for context, times in took.items() if i else ():
            times += [ns / 1e6 for ns in ours.decode(tokens, at=context)[1:]]
    points = [
        {"context": context, "ms": report.spread(times)["median"]}
        for context, times in took.items()
    ]
    slope, start, r2 = report.line([p["context"] for p in points], [p["ms"] for p in points])
    row = cost.row_bytes(loaded.spec, loaded.dtype)
    return {
        "points": points,
        "us_per_row": slope * 1e3,
        "ms_at_0": start,
        "r2": r2,
        "gb_per_s": row / (slope * 1e6) if slope > 0 else float("inf"),
    }


def _divergence(
    ours: Ours, theirs: dict[str, Transformers], ids: list[int], num: int
) -> list[dict[str, object]]:
    """Against transformers in float32 with its greedy tokens forced: the first token that another
    would have chosen, and the largest gap of a logit."""
    reference = theirs["transformers float32"].logits(ids, None, num)
    tokens = reference.argmax(-1)
    all_logits = {OURS: ours.logits(ids, tokens.tolist())}
    for name, contender in theirs.items():
        if name != "transformers float32":
            all_logits[name] = contender.logits(ids, tokens.tolist(), num)
    rows = []
    for name, logits in all_logits.items():
        other = (logits.argmax(-1) != tokens).nonzero()
        first = int(other[0]) if len(other) else None
        gap = float((logits - reference).abs().max())
        rows.append({"contender": name, "first": first, "num": num, "gap": gap})
    return rows


def _instrumentation(loaded: Loaded, run: tuple[int, int], num_steps: int) -> dict[str, object]:
    """What records, sampling and sensors add, each record made a line: of decode steps against the
    same steps bare, by turns, and of a whole run (tokens read, tokens written). Of prefill it is
    what is done outside the timed spans, since its pieces differ by more than that."""
    settings = RunSettings(
        model=loaded.name,
        prompts=(QUESTIONS["en"],),
        context_len=run[0],
        new_tokens=num_steps + 2,
        stop_token_ids=(),
    )
    events = generate.generate(loaded, settings, run_id="bench")
    started = next(events)
    ids = torch.tensor(started.prompt_token_ids)
    to_line(started)
    prefill_ns = outside_ns = 0
    while True:
        start = time.perf_counter_ns()
        for event in events:
            line = to_line(event)
            if isinstance(event, StepFinished):
                break
        if event.phase == "decode":
            break
        prefill_ns += event.duration_ns
        outside_ns += time.perf_counter_ns() - start - event.duration_ns
    bare = Ours(loaded)
    bare.prefill(ids, settings.chunk_len)
    prompt = bare.rows
    bare.hold(prompt, 1, ids.shape[1])
    column, token = ids.shape[1], 1
    on, off = [], []
    for _ in range(num_steps):
        start = time.perf_counter_ns()
        for event in events:
            line = to_line(event)
            if isinstance(event, StepFinished):
                break
        on.append(time.perf_counter_ns() - start)
        start = time.perf_counter_ns()
        bare.rows.reserve(column + 1)
        fed = torch.tensor([[token]]), torch.tensor([[column]]), None
        token = bare.decoder.step(*fed, bare.rows).argmax(-1).tolist()[0]
        off.append(time.perf_counter_ns() - start)
        column += 1
    events.close()
    of_steps = report.trimmed_share(on, off)
    decode_ns = run[1] * statistics.median(off)
    extra_ns = outside_ns + of_steps * decode_ns
    return {
        "share": extra_ns / (prefill_ns + decode_ns),
        "of_steps": of_steps,
        "num": len(on),
        "run": list(run),
        "line_bytes": len(line),
        "parts": started.parts,
    }


def _memory(context: int) -> dict[str, object]:
    """What a process holds that only runs the engine at this context."""
    command = [sys.executable, "-m", "viz_engine.bench.engine", str(context)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _run_alone(context: int) -> dict[str, object]:
    loaded = engine_load.load(device="cpu")
    settings = RunSettings(
        model=loaded.name,
        prompts=(QUESTIONS["en"],),
        context_len=context,
        new_tokens=4,
        stop_token_ids=(),
    )
    reserved = 0
    for event in generate.generate(loaded, settings, run_id="bench"):
        if isinstance(event, StepFinished):
            reserved = event.kv_reserved_bytes
            held = machine.process_bytes()
    return {
        "context": context,
        "peak_bytes": machine.peak_process_bytes(),
        "held_bytes": held,
        "weight_bytes": Ours(loaded).weight_bytes,
        "reserved_bytes": reserved,
    }


if __name__ == "__main__":
    print(json.dumps(_run_alone(int(sys.argv[1]))))
