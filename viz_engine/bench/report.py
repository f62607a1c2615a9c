"""What `bench` makes of its measurements: medians and spread, a line, targets, a table.

Pure functions of plain numbers and of the document that `bench` prints as JSON. It measures
nothing and knows no model.

Try it: tests/bench/test_engine.py
"""

from collections.abc import Mapping, Sequence

from viz_engine.numbers import mib
from viz_engine.run.metrics import percentile

OURS = "second token"
CHUNKS, WHOLE = "in chunks of 256", "in one chunk"
LLAMA = "llama.cpp float16"
BARE = "bare read of the weights"
Document = Mapping[str, object]


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Median, p10, p90 and how many."""
    return {
        "median": percentile(values, 0.5),
        "p10": percentile(values, 0.1),
        "p90": percentile(values, 0.9),
        "num": len(values),
    }


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Slope, intercept and R² of the least-squares line."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    sxx = sum((x - mean_x) ** 2 for x in xs)
    sxy = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    syy = sum((y - mean_y) ** 2 for y in ys)
    slope = sxy / sxx
    return slope, mean_y - slope * mean_x, sxy**2 / (sxx * syy) if syy else 1.0


def trimmed_share(on: Sequence[float], off: Sequence[float]) -> float:
    """How much longer `on` takes than `off`, as a share of `off`: sums without the tenth of the
    pairs that differ most either way."""
    pairs = sorted(zip(on, off, strict=True), key=lambda pair: pair[0] - pair[1])
    cut = len(pairs) // 10
    kept = pairs[cut : len(pairs) - cut]
    return sum(a for a, _ in kept) / sum(b for _, b in kept) - 1


def cell(rows: Sequence[Mapping[str, object]], **where: object) -> Mapping[str, object] | None:
    """The row that says so, None where there is none."""
    for row in rows:
        if all(row[key] == value for key, value in where.items()):
            return row
    return None


def best_of_transformers(
    rows: Sequence[Mapping[str, object]], **where: object
) -> Mapping[str, object] | None:
    """The fastest row of transformers' dtypes."""
    theirs = [
        row
        for row in rows
        if row["contender"].startswith("transformers")
        and all(row[key] == value for key, value in where.items())
    ]
    return min(theirs, key=lambda row: row["ms"]["median"], default=None)


def targets(document: Document) -> list[dict[str, object]]:
    """Every target with what was measured: {name, limit, least, value, met}. One that this run did
    not measure is left out."""
    found: list[dict[str, object]] = []

    def add(name: str, value: float | None, limit: float, *, least: bool) -> None:
        if value is not None:
            met = value >= limit if least else value <= limit
            found.append({"name": name, "value": value, "limit": limit, "least": least, "met": met})

    decode, prefill = document["decode"], document["prefill"]
    for context, limit in ((32, 1.4), (512, 1.7), (2048, 2.4)):
        name = f"decode at {context}: times transformers' best"
        add(name, _ratio(decode, context, 1), limit, least=True)
    for context, limit in ((32, 1.4), (512, 1.3), (2048, 1.05)):
        ours = cell(decode, contender=OURS, context=context, batch=1)
        theirs = cell(decode, contender=LLAMA, context=context, batch=1)
        value = ours and theirs and ours["ms"]["median"] / theirs["ms"]["median"]
        add(f"decode at {context}: of llama.cpp's time", value, limit, least=False)
    for context in (32, 512, 2048):
        name = f"decode at {context}, batch 8: times transformers' best"
        add(name, _ratio(decode, context, 8), 1.0, least=True)
    for context in (512, 2048):
        best = best_of_transformers(prefill, context=context)
        whole = cell(prefill, contender=f"{OURS} {WHOLE}", context=context)
        chunks = cell(prefill, contender=f"{OURS} {CHUNKS}", context=context)
        llama = cell(prefill, contender=LLAMA, context=context)
        if best and whole:
            # "no slower within the spread": our fast tenth against their slow tenth
            within = whole["ms"]["p10"] / best["ms"]["p90"]
            add(f"prefill of {context} in one chunk: of transformers' best", within, 1, least=False)
        if best and chunks:
            value = chunks["ms"]["median"] / best["ms"]["median"]
            add(f"prefill of {context} in chunks: of transformers' best", value, 1.2, least=False)
        if llama and chunks:
            value = llama["ms"]["median"] / chunks["ms"]["median"]
            add(f"prefill of {context}: times llama.cpp's rate", value, 2.0, least=True)
    add("read bandwidth reached at 32", document["mbu"], 0.55, least=True)
    add("R² of time against context", document["slope"]["r2"], 0.95, least=True)
    for step in (document.get("steps") or {"steps": ()})["steps"]:
        if step["tokens"] == 8:
            add("step of 8 tokens: times a step of one", step["ratio"], 3.0, least=False)
    share = document["instrumentation"]["share"]
    add("instrumentation: share of a run's wall time", share, 0.03, least=False)
    memory = document.get("memory")
    if memory:
        rest = memory["peak_bytes"] - memory["weight_bytes"] - memory["reserved_bytes"]
        add("memory at 8 000 beyond weights and rows, MB", rest / 1e6, 600, least=False)
    return found


def _ratio(decode: Sequence[Mapping[str, object]], context: int, batch: int) -> float | None:
    ours = cell(decode, contender=OURS, context=context, batch=batch)
    best = best_of_transformers(decode, context=context, batch=batch)
    return ours and best and best["ms"]["median"] / ours["ms"]["median"]


def table(document: Document) -> str:
    """The document to read."""
    out = [
        f"{document['machine']}, {document['num_threads']} threads, {document['date']}"
        + (", a QUICK run: few repeats" if document["quick"] else ""),
        f"model {document['model']}, load average before {document['load_before']:.2f}, "
        f"after {document['load_after']:.2f}; took {document['took_s']:.0f} s",
        "",
        "Weights in memory, every copy",
    ]
    out += [f"  {name:34}{mib(size):>12}" for name, size in document["weights"].items()]
    read = document["read"]
    out += [
        "",
        f"Bare read of the weights, by turns with decode at the first context: "
        f"{read['ms']['median']:.1f} ms, {read['gb_per_s']:.1f} GB/s",
        "",
        "Decode, ms a step: median (p10-p90), number of steps; load average after it",
    ]
    for row in document["decode"]:
        where = f"{row['context']} x {row['batch']}"
        out.append(f"  {where:10}{row['contender']:24}{_ms(row['ms'])}   load {row['load']:.1f}")
    out += ["", "Prefill, ms: median (p10-p90), number (1: too far behind for turns); tokens/s"]
    for row in document["prefill"]:
        rate = row["context"] * 1e3 / row["ms"]["median"]
        out.append(
            f"  {row['context']:<6}{row['contender']:34}{_ms(row['ms'])}  {rate:7.0f}/s   "
            f"load {row['load']:.1f}"
        )
    out += ["", *_facts(document), "", "Targets"]
    out += verdicts(document["targets"])
    out += ["", "Parts of the engine"]
    for part in document["parts"]:
        out.append(f"  {'on ' if part['on'] else 'off'} {part['name']}: {part['reason']}")
    return "\n".join(out)


def verdicts(targets: Sequence[Mapping[str, object]]) -> list[str]:
    """A line for each target."""
    out = []
    for target in targets:
        side = "at least" if target["least"] else "at most"
        verdict = "met" if target["met"] else "NOT MET"
        out.append(
            f"  {target['name']:52}{target['value']:9.3g}  {side} {target['limit']:g}  {verdict}"
        )
    return out


def _ms(ms: Mapping[str, float]) -> str:
    return f"{ms['median']:8.1f} ({ms['p10']:.1f}-{ms['p90']:.1f}), {ms['num']}"


def _facts(document: Document) -> list[str]:
    slope = document["slope"]
    points = ", ".join(f"{p['context']}: {p['ms']:.1f}" for p in slope["points"])
    out = [
        f"Time against context (ms): {points}   load {slope['load']:.1f}",
        f"  {slope['us_per_row']:.2f} us a row, R² {slope['r2']:.3f}: the rows are read at "
        f"{slope['gb_per_s']:.1f} GB/s, the weights' bare read at "
        f"{document['read']['gb_per_s']:.1f} GB/s",
        f"Read bandwidth reached at context 32 (bytes counted / time / bare read): "
        f"{document['mbu']:.2f}",
    ]
    steps = document["steps"]
    shown = ", ".join(
        f"{step['tokens']}: {step['ms']['median']:.1f} ({step['ratio']:.2f})"
        for step in steps["steps"]
    )
    out += [
        f"Step of several tokens behind {steps['context']}, in Python, ms (times that of one):",
        f"  {shown}   load {steps['load']:.1f}",
    ]
    on = document["instrumentation"]
    out.append(
        f"Events, sampling, telemetry: {on['share']:.1%} of the wall time of a whole run "
        f"({on['run'][0]} tokens read, {on['run'][1]} written), {on['of_steps']:.1%} of that of "
        f"its decode steps ({on['num']})"
    )
    memory = document.get("memory")
    if memory:
        out.append(
            f"Engine process at context {memory['context']}: peak {mib(memory['peak_bytes'])}, "
            f"weights {mib(memory['weight_bytes'])}, rows {mib(memory['reserved_bytes'])}"
        )
    out.append("Against transformers in float32, its tokens forced")
    for row in document["divergence"]:
        first = "none" if row["first"] is None else row["first"]
        out.append(
            f"  {row['contender']:24}first other choice at token {first} of {row['num']}, "
            f"largest logit gap {row['gap']:.2g}"
        )
    return out
