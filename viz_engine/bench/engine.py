"""`bench`: this engine against transformers, llama.cpp and the bare read of the weights.

Each contender is a process of its own, which is stopped while another is timed. All hold the same
rows and take the same tokens, by turns (A B A B), the first step of each turn dropped. Rows are
read once by this engine and copied into the others' caches: the time of a step depends on their
number, not on what they say. llama.cpp takes its own tokens. With the default model they take 5
GiB of memory together, and 13 with 8 sequences of 8 000 tokens.

Try it: `python -m viz_engine bench --quick`
"""

import argparse
import contextlib
import dataclasses
import datetime
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from viz_engine.bench import contenders, report
from viz_engine.bench.process import Contender
from viz_engine.bench.report import BARE, CHUNKS, LLAMA, OURS, WHOLE
from viz_engine.run import machine

HF_DTYPES = ("float32", "bfloat16", "float16")
STEP_SIZES = (1, 2, 4, 8, 16)  # tokens of one forward
SLOW = 4.0  # times the best of a first round: not taken by turns, even that round was warm-up


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured and how often."""

    cells: tuple[tuple[int, int], ...]  # (context, batch) of decode
    prefills: tuple[int, ...]
    slope: tuple[int, ...]
    steps_at: int = 512  # context of the steps of several tokens
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
        return max(*contexts, self.steps_at + max(STEP_SIZES)) + self.num_steps + 2


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
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def start(name: str, kind: str, **made_by: object) -> Contender:
            return stack.enter_context(Contender(name, contenders.command(kind), **made_by))

        say("loading")
        ours = start(OURS, "ours", model=model)  # alone: it chooses its kernels by their times
        about = ours.about()
        others = {
            name: start(name, kind, **made_by)
            for name, (kind, made_by) in _others(
                plan, about, folder, packaged=model is None
            ).items()
        }
        weights = {name: child.about()["weight_bytes"] for name, child in others.items()}
        read = start(BARE, "read", num_bytes=about["weight_bytes_once"])
        read_bytes = read.about()["num_bytes"]
        ids = ours.ask("encode", num=plan.most_columns)
        rounds = Rounds(plan, {OURS: ours, **others}, read, ids, folder, say)
        say("logits")
        divergence = rounds.divergence()
        say(f"reading {plan.most_columns} tokens")
        ours.ask("keep", ids=ids, path=rounds.rows)
        decode = list(rounds.decode())
        say("time against context")
        slope = rounds.slope(about["row_bytes"])
        say("steps of several tokens")
        steps = rounds.steps()
        prefill = list(rounds.prefill())
        say("instrumentation")
        asked = {"run": plan.run, "num_steps": plan.num_instrumented}
        instrumentation = ours.ask("instrumentation", **asked)
    memory = None
    if plan.memory_at is not None:
        say(f"memory at {plan.memory_at}")
        memory = _memory(plan.memory_at)
    first = plan.cells[0][0]
    at_32 = report.cell(decode, contender=OURS, context=first, batch=1)
    num_bytes = about["weight_bytes_once"] + about["lookup_row_bytes"]
    num_bytes += (first + 1) * about["row_bytes"]
    bare = report.cell(decode, contender=BARE, context=first, batch=1)["ms"]
    gb_per_s = read_bytes / bare["median"] / 1e6
    document = {
        "machine": machine.cpu_name(),
        "num_threads": about["num_threads"],
        "date": datetime.date.today().isoformat(),
        "quick": plan.quick,
        "model": about["model"],
        "dtype": about["dtype"],
        "versions": about["versions"],
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "took_s": time.monotonic() - began,
        "weights": {OURS: about["weight_bytes"], **weights},
        "read": {"ms": bare, "gb_per_s": gb_per_s},
        "decode": decode,
        "prefill": prefill,
        "slope": slope,
        "steps": steps,
        "mbu": num_bytes / at_32["ms"]["median"] / 1e6 / gb_per_s,
        "divergence": divergence,
        "parts": instrumentation.pop("parts"),
        "instrumentation": instrumentation,
        "memory": memory,
    }
    document["targets"] = report.targets(document)
    return document


def _others(
    plan: Plan, about: Mapping[str, object], folder: Path, *, packaged: bool
) -> dict[str, tuple[str, dict[str, object]]]:
    """By name the kind of contender, and what its process is made by. llama.cpp where its wheel is
    installed and the model is the packaged one."""
    found: dict[str, tuple[str, dict[str, object]]] = {}
    for dtype in HF_DTYPES:
        made_by = {"folder": about["folder"], "dtype": dtype}
        found[f"transformers {dtype}"] = "transformers", made_by
    if packaged and importlib.util.find_spec("xllamacpp") is not None:
        made_by = {"folder": str(folder), "num_threads": about["num_threads"]}
        found[LLAMA] = "llama", made_by | {"most_columns": plan.most_columns + 64}
    return found


def _turns(num: int, most_s: float) -> Iterator[int]:
    """0 (a warm-up) to `num`; on a machine that is busy fewer, but one at least."""
    began = time.monotonic()
    for i in range(num + 1):
        if i > 1 and time.monotonic() - began > most_s:
            return
        yield i


def _slow(took: dict[str, list[float]]) -> set[str]:
    """Who was so far behind in the first round that the others' turns are worth more."""
    best = min(times[0] for times in took.values())
    return {name for name, times in took.items() if times[0] > SLOW * best}


def _but_first(child: Contender, **asked: object) -> list[int]:
    """The steps of a turn but the first."""
    return child.ask("decode", **asked)[1:]


class Rounds:
    """What is asked of the contenders, by turns."""

    def __init__(
        self,
        plan: Plan,
        contenders: Mapping[str, Contender],
        read: Contender,
        ids: list[int],
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self.contenders = contenders
        self.read = read
        self.ids = ids
        self.rows = str(folder / "rows.safetensors")
        self.logits = str(folder / "logits.safetensors")
        self.say = say

    @property
    def ours(self) -> Contender:
        return self.contenders[OURS]

    @property
    def llama(self) -> Contender | None:
        return self.contenders.get(LLAMA)

    @property
    def theirs(self) -> dict[str, Contender]:
        """transformers, by dtype."""
        return {n: child for n, child in self.contenders.items() if n not in (OURS, LLAMA)}

    def divergence(self) -> list[dict[str, object]]:
        """Against transformers in float32 with its greedy tokens forced: the first token that
        another would have chosen, and the largest gap of a logit."""
        first = "transformers float32"
        asked = {"ids": self.ids[: min(96, len(self.ids))]}
        num = self.plan.num_compared
        tokens = self.contenders[first].ask("keep_logits", num=num, path=self.logits, **asked)
        asked |= {"tokens": tokens, "reference": self.logits}
        return [
            {"contender": name, **child.ask("difference", **asked)}
            for name, child in {OURS: self.ours, **self.theirs}.items()
            if name != first
        ]

    def prefill(self) -> Iterator[dict[str, object]]:
        """A row for each contender and length."""
        for context in self.plan.prefills:
            self.say(f"prefill of {context}")
            ids = self.ids[:context]
            turns = {
                f"{OURS} {CHUNKS}": partial(self.ours.ask, "prefill_ns", ids=ids, chunk_len=256),
                f"{OURS} {WHOLE}": partial(self.ours.ask, "prefill_ns", ids=ids, chunk_len=0),
            }
            for name, child in self.contenders.items():
                slow = name == "transformers float16" and context > 512
                if child is not self.ours and not slow:
                    turns[name] = partial(child.ask, "prefill_ns", ids=ids)
            took: dict[str, list[float]] = {name: [] for name in turns}
            slow: set[str] = set()
            for i in _turns(self.plan.num_prefills, 2 * self.plan.most_s):
                for name in [name for name in turns if name not in slow]:
                    took[name].append(turns[name]() / 1e6)
                if i == 0:
                    slow = _slow(took)
            for name, times in took.items():
                times = times if name in slow else times[1:]
                row = {"contender": name, "context": context, "load": os.getloadavg()[0]}
                yield row | {"ms": report.spread(times)}

    def decode(self) -> Iterator[dict[str, object]]:
        """A row for each contender, context and batch: every first step of a turn dropped."""
        num = self.plan.num_steps
        for context, batch in self.plan.cells:
            self.say(f"decode at {context} x {batch}")
            tokens = self.ids[context : context + num + 1]
            turns = {}
            for name, child in {OURS: self.ours, **self.theirs}.items():
                child.ask("hold", path=self.rows, batch=batch, num_columns=context)
                turns[name] = partial(_but_first, child, tokens=tokens)
            if self.llama is not None and batch == 1:
                self.llama.ask("hold", ids=self.ids[:context])
                turns[LLAMA] = partial(self.llama.ask, "decode", num=num)
            if batch == 1:
                turns[BARE] = partial(_but_first, self.read, num=num + 1)
            took: dict[str, list[float]] = {name: [] for name in turns}
            for i in _turns(self.plan.num_turns, self.plan.most_s):
                for name, turn in turns.items():
                    times = turn()
                    took[name] += [ns / 1e6 for ns in times] if i else []
            load = os.getloadavg()[0]
            for name, times in took.items():
                row = {"contender": name, "context": context, "batch": batch, "load": load}
                yield row | {"ms": report.spread(times)}
            for child in self.theirs.values():
                child.ask("drop")

    def slope(self, row_bytes: int) -> dict[str, object]:
        """Medians of this engine's steps at several contexts, by turns, and the line through
        them."""
        self.ours.ask("hold", path=self.rows, batch=1, num_columns=max(self.plan.slope))
        took: dict[int, list[float]] = {context: [] for context in self.plan.slope}
        tokens = [1] * (self.plan.num_steps + 1)
        for i in _turns(self.plan.num_turns, self.plan.most_s):
            for context, times in took.items() if i else ():
                step_ns = self.ours.ask("decode", tokens=tokens, at=context)[1:]
                times += [ns / 1e6 for ns in step_ns]
        points = [
            {"context": context, "ms": report.spread(times)["median"]}
            for context, times in took.items()
        ]
        slope, start, r2 = report.line([p["context"] for p in points], [p["ms"] for p in points])
        return {
            "points": points,
            "us_per_row": slope * 1e3,
            "ms_at_0": start,
            "r2": r2,
            "gb_per_s": row_bytes / (slope * 1e6) if slope > 0 else float("inf"),
            "load": os.getloadavg()[0],
        }

    def steps(self) -> dict[str, object]:
        """This engine's forwards of several tokens at once, by turns, and what each takes of one
        token's."""
        context, num = self.plan.steps_at, self.plan.num_steps
        self.ours.ask("hold", path=self.rows, batch=1, num_columns=context)
        took: dict[int, list[float]] = {size: [] for size in STEP_SIZES}
        for i in _turns(self.plan.num_turns, self.plan.most_s):
            for size, times in took.items():
                tokens = self.ids[context : context + size]
                step_ns = self.ours.ask("forward", tokens=tokens, num=num + 1)[1:]
                times += [ns / 1e6 for ns in step_ns] if i else []
        found = [{"tokens": size, "ms": report.spread(times)} for size, times in took.items()]
        one = found[0]["ms"]["median"]
        return {
            "context": context,
            "steps": [step | {"ratio": step["ms"]["median"] / one} for step in found],
            "load": os.getloadavg()[0],
        }


def _memory(context: int) -> dict[str, object]:
    """What a process holds that only runs the engine at this context."""
    with Contender("the engine alone", contenders.command("alone"), context=context) as child:
        return child.about()
