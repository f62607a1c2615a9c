"""`bench --race`: what the cache saves, and whether the lane without one is honest.

The ratio of times without and with a cache, beside the ratio of FLOPs that it may not exceed; and
a step without a cache against transformers' own with `use_cache=False`, the same type, by turns.

Try it: `python -m viz_engine bench --race --quick` (a minute; without `--quick` about 15)
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from viz_engine.analysis import race
from viz_engine.bench import report
from viz_engine.bench.contenders import Transformers
from viz_engine.engine import generate, load, race_runs
from viz_engine.engine.convert import fetch
from viz_engine.engine.load import Loaded
from viz_engine.run import machine, metrics
from viz_engine.run.command import QUESTIONS
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import ExperimentLog, LogitsCompared
from viz_engine.run.log import RunLog
from viz_engine.run.race import LANES, RaceSettings

LEAST_RATIO = 10  # of decode times, at the longest prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is raced and how often."""

    prompts: tuple[int, ...] = (256, 1024)
    new_tokens: int = 64
    repeats: int = 2
    num_turns: int = 4  # of each contender in the steps without a cache


QUICK = Plan(prompts=(256,), new_tokens=16, repeats=1, num_turns=2)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Targets that are missed are said, not counted as an error."""
    plan = QUICK if args.quick else Plan()
    loaded = load.load(device="cpu")
    theirs = Transformers(fetch(loaded.name), loaded.dtype)
    question = {"chat": True, "context_len": max(plan.prompts), "filler": "en"}
    ids = loaded.tokenizer.encode_prompt(QUESTIONS["en"], **question)
    rows = measure(plan, loaded, theirs, ids, lambda text: print(text, file=sys.stderr, flush=True))
    document = {
        "machine": machine.cpu_name(),
        "num_threads": torch.get_num_threads(),
        "load_after": os.getloadavg()[0],
        "race": rows,
        "targets": targets(rows),
    }
    if args.json:
        print(json.dumps(document, indent=1))
        return 0
    print(f"{document['machine']}, {document['num_threads']} threads")
    print("\n".join([*table(rows), "", "Targets", *report.verdicts(document["targets"])]))
    return 0


def measure(
    plan: Plan, loaded: Loaded, theirs: Transformers, ids: list[int], say: Callable[[str], None]
) -> list[dict[str, object]]:
    """A row for each prompt length: ratios over the repeats, FLOP ratios, and the step without a
    cache of both contenders. `theirs` holds the same model in the same type."""
    rows = []
    for prompt in plan.prompts:
        say(f"race at {prompt}")
        log = _race(plan, loaded, prompt)
        say(f"without a cache at {prompt}, against transformers")
        ms = _steps(plan, loaded, theirs, ids[:prompt])
        rows.append({"prompt": prompt, "dtype": loaded.dtype, **_ratios(log), "uncached_ms": ms})
    return rows


def _race(plan: Plan, loaded: Loaded, prompt: int) -> ExperimentLog:
    run = RunSettings(
        model=loaded.name,
        prompts=(QUESTIONS["en"],),
        context_len=prompt,
        new_tokens=plan.new_tokens,
        stop_token_ids=(),
    )
    settings = RaceSettings(run=run, repeats=plan.repeats)
    return ExperimentLog.of(race_runs.race(lambda run: loaded, settings, experiment_id="bench"))


def _ratios(log: ExperimentLog) -> dict[str, object]:
    """Time without a cache / with it of each repeat, in all and of decode, and of FLOPs."""
    pairs = list(zip(*(log.runs(label) for label in LANES), strict=True))
    costs = [race.token_costs(race.shown(log, cache)) for cache in race.CACHES]
    num, compared = len(costs[0]), log.finding(LogitsCompared)
    flops = [race.so_far(part, num).flops for part in costs]
    decode = [race.so_far(part[1:], num).flops for part in costs]
    return {
        "new_tokens": num,
        "same_tokens": compared.first_difference is None,
        "largest_gap": max(compared.gaps),
        "total": report.spread([race.total_ns(a) / race.total_ns(b) for a, b in pairs]),
        "decode": report.spread([_decode_ns(a) / _decode_ns(b) for a, b in pairs]),
        "total_flops": race.ratio(*flops),
        "decode_flops": race.ratio(*decode),
    }


def _decode_ns(log: RunLog) -> int:
    return race.total_ns(log) - metrics.ttft_ns(log)


def _steps(
    plan: Plan, loaded: Loaded, theirs: Transformers, ids: list[int]
) -> dict[str, dict[str, float]]:
    """Milliseconds of a forward of the prompt without a cache, last row's logits only, by turns."""
    tokens = torch.tensor([ids])
    positions = torch.arange(len(ids))[None]
    ways = {
        report.OURS: lambda: generate.forward(loaded, tokens, positions, None, None),
        "transformers": lambda: theirs.uncached(tokens),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(plan.num_turns + 1):
        for name, way in ways.items():
            start = time.perf_counter_ns()
            way().argmax(-1).tolist()
            took[name] += [(time.perf_counter_ns() - start) / 1e6] if turn else []
    return {name: report.spread(times) for name, times in took.items()}


def targets(rows: list[Mapping[str, object]]) -> list[dict[str, object]]:
    """Every target with what was measured, as `bench_report.targets` gives them."""
    found = []

    def add(name: str, value: float, limit: float, *, least: bool) -> None:
        met = value >= limit if least else value <= limit
        found.append({"name": name, "value": value, "limit": limit, "least": least, "met": met})

    for row in rows:
        at = f"race at {row['prompt']}"
        if len(rows) > 1 and row is rows[-1]:
            add(f"{at}: decode ratio", row["decode"]["median"], LEAST_RATIO, least=True)
        for part in ("decode", "total"):
            if row[f"{part}_flops"] is not None:
                share = row[part]["median"] / row[f"{part}_flops"]
                add(f"{at}: {part} ratio, of the FLOP ratio", share, 1.0, least=False)
        ms = row["uncached_ms"]
        # "no slower within the spread": our fast tenth against their slow tenth
        within = ms[report.OURS]["p10"] / ms["transformers"]["p90"]
        add(f"{at}: a step without a cache, of transformers'", within, 1.0, least=False)
    return found


def table(rows: list[Mapping[str, object]]) -> list[str]:
    """Lines to read."""
    out = ["Race: time without a cache / with it, median (p10-p90) over repeats; ratio of FLOPs"]
    for row in rows:
        same = "same tokens" if row["same_tokens"] else "OTHER TOKENS"
        out.append(f"  prompt {row['prompt']}, {row['new_tokens']} new tokens, {same}")
        for part in ("decode", "total"):
            ratio, flops = row[part], row[f"{part}_flops"]
            beside = "-" if flops is None else f"{flops:.1f}"
            out.append(
                f"    {part:7}{ratio['median']:8.1f} ({ratio['p10']:.1f}-{ratio['p90']:.1f}), "
                f"{ratio['num']}   FLOPs {beside}"
            )
        for name, ms in row["uncached_ms"].items():
            spread = f"{ms['median']:.1f} ms ({ms['p10']:.1f}-{ms['p90']:.1f}), {ms['num']}"
            out.append(f"    a step without a cache, {row['dtype']}: {name:14}{spread}")
    return out
