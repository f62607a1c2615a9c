"""An estimate in words: cards, notices and tables of the memory page, in the visitor's language.

Functions of an `Estimate` (or of what is beside it) and `say`, which looks up a text. Every number
says what it is and opens to its formula with the numbers filled in. It knows nothing of Streamlit.

Try it: `python -c "from viz_engine.view.memory import words; \
print(words.engine_name('vllm', None))"`
"""

from collections.abc import Mapping

from viz_engine.memory import deployment, estimate, speed
from viz_engine.memory import plan as memory_plan
from viz_engine.memory.estimate import Estimate
from viz_engine.memory.plan import Limit
from viz_engine.memory.speed import StepTime
from viz_engine.model.config import ModelConfig
from viz_engine.numbers import (
    NONE,
    billions,
    bytes_text,
    grouped,
    mib,
    short_count,
    three,
    time_text,
)
from viz_engine.run import cost
from viz_engine.text import Say, plain
from viz_engine.view.markup import Number


def engine_name(name: str, say: Say) -> str:
    """An engine as its makers write it."""
    return deployment.PRODUCTS.get(name) or say(f"mem.engine.{name}")


def choice_line(name: str, found: Estimate, say: Say) -> str:
    """A choice in one line: model, lengths, devices, how they share it, engine."""
    settings, choice = found.choice.settings, found.choice
    return " · ".join(
        (
            name,
            f"{short_count(settings.context_len)} × {grouped(settings.num_sequences)}",
            f"{choice.num_devices} × {choice.device.name or say('mem.here')}",
            f"TP {settings.tp}",
            f"PP {settings.pp}",
            engine_name(settings.engine, say),
        )
    )


def model_line(model: ModelConfig, say: Say) -> str:
    """One line of what a model is: layers, heads, parameters, bytes a token."""
    kept = [layer for layer in model.layers if layer.num_kv_heads]
    kinds = {(x.kind, x.num_kv_heads, x.key_dim, x.value_dim, x.window) for x in kept}
    if len(kinds) == 1 and kept[0].kind == "latent":
        heads = say("mem.heads_latent", dim=kept[0].key_dim + kept[0].value_dim)
    elif len(kinds) == 1:
        heads = say("mem.heads", heads=kept[0].num_kv_heads, dim=kept[0].key_dim)
    else:
        heads = say("mem.heads_mixed", kinds=len(set(model.layers)))
    num = model.num_parameters
    row = sum(cost.layer_rows(x, model.dtype, model.dtype).total for x in kept if x.window is None)
    return say(
        "mem.summary",
        layers=model.num_layers,
        heads=heads,
        parameters=say("mem.no_parameters") if num is None else billions(num),
        growth=mib(row),
    )


def model_caption(model: ModelConfig, shipped: Mapping[str, str], say: Say) -> tuple[str, str]:
    """The line of a model as Markdown with its source, and where each of its sizes comes from.
    `shipped` is its entry in the table of presets, if it has one."""
    source = shipped.get("source", "")
    lines = [f"{say('mem.source')}: {plain(source)}"] if source else []
    if stored := shipped.get("quantization_source"):
        lines.append(f"quantization\\_config: {plain(stored)}")
    lines.append(say("mem.provenance") + ":")
    for found in model.derivations:
        how = say(f"mem.how.{found.how}")
        lines.append(
            f"{plain(found.field)} = {plain(str(found.value))} · {how} {plain(found.source)}"
        )
    link = f" · [{say('mem.source')}]({source})" if source.startswith("https://") else ""
    return plain(model_line(model, say)) + link, "\n\n".join(lines)


# ---- cards -------------------------------------------------------------------------------------


def card(name: str, say: Say, **shown: str) -> Number:
    """A predicted number, called by its texts."""
    label, help_text = say(f"mem.card.{name}"), say(f"mem.card.{name}_help")
    return Number(label=label, help=help_text, tag=say("mem.predicted"), **shown)


def cards(found: Estimate, say: Say, language: str) -> list[Number]:
    """The eight numbers beside the bar."""
    choice, settings, request = found.choice, found.choice.settings, found.request
    context, sequences = grouped(settings.context_len), grouped(settings.num_sequences)
    half = limit_text(found.most_twice, say)
    held = _held_lines(found, request.kv_bytes, found.request_bytes, say)
    grown = _held_lines(found, request.growth_bytes, found.growth_bytes, say)
    return [
        _total_card(found, say, language),
        card(
            "request",
            say,
            value=bytes_text(found.request_bytes),
            note=_request_note(found, say),
            formula="\n".join((*cache_lines(request, say, language), *held)),
        ),
        card(
            "longest",
            say,
            **limit_of(found, found.longest, deployment.MAX_CONTEXT, say),
            note=say("mem.longest_note", sequences=sequences),
        ),
        card(
            "most",
            say,
            **limit_of(found, found.most, deployment.MAX_SEQUENCES, say),
            note=say("mem.most_note", context=context, half=half) if choice.knows_weights else "",
        ),
        _time_card("ttft", found, found.ttft, say, language),
        _time_card("itl", found, found.itl, say, language),
        card(
            "growth",
            say,
            value=mib(found.growth_bytes),
            note=say("mem.growth_note"),
            formula="\n".join((*cache_lines(request, say, language, rows=False), *grown)),
        ),
        _crossing_card(found, say),
    ]


def _crossing_card(found: Estimate, say: Say) -> Number:
    """From how many sequences on the cache is larger than the weights."""
    note = say("mem.crossing_note", context=grouped(found.choice.settings.context_len))
    crossing = estimate.crossing(found)
    if crossing is None:
        return card("crossing", say, value=NONE, note=note)
    formula = say(
        "mem.formula.crossing",
        weights=bytes_text(found.rank_request.part("weights").num_bytes),
        request=bytes_text(found.rank_request.kv_bytes),
    )
    return card("crossing", say, value=grouped(crossing), note=note, formula=formula)


def _request_note(found: Estimate, say: Say) -> str:
    """Which of the two sizes it is, where the engine reserves more than the plain rows."""
    settings = found.choice.settings
    if found.reserved_bytes == found.rank_request.kv_bytes:
        return say("mem.request_note", context=grouped(settings.context_len))
    size, engine = bytes_text(found.reserved_bytes), engine_name(settings.engine, say)
    return say("mem.request_reserved", engine=engine, size=size)


def _held_lines(found: Estimate, once: int, held: int, say: Say) -> list[str]:
    """The step from bytes of the whole model to those of all ranks, where some hold the same."""
    if held == once:
        return []
    tp = found.choice.settings.tp
    return [say("mem.formula.held_twice", tp=tp, rank=mib(held // tp), total=mib(held))]


def _total_card(found: Estimate, say: Say, language: str) -> Number:
    plan, choice = found.plan, found.choice
    budget, total = choice.budget_bytes, plan.total_bytes
    known = choice.knows_weights
    if not known:
        note = say("mem.weights_missing")
    elif found.fits:
        note = say("mem.fits", budget=bytes_text(budget))
    else:
        note = say("mem.no_fit", over=bytes_text(total - budget), budget=bytes_text(budget))
    if known and choice.num_replicas > 1:
        note += say("mem.copies", copies=choice.num_replicas)
    shown = [part for part in plan.parts if part.num_bytes]
    lines = [
        say("mem.formula.part", name=say(f"mem.part.{p.kind}"), formula=p.formula.text(language))
        for p in shown
    ]
    lines.append(sum_line(plan, say))
    capacity_of = choice.device.capacity
    lines.append(
        say(
            "mem.formula.budget",
            share=f"{budget / max(choice.device.capacity_bytes, 1):.0%}",
            memory=bytes_text(choice.device.capacity_bytes),
            shown=str(capacity_of),
        )
    )
    return card(
        "total",
        say,
        value=bytes_text(total) if known else NONE,
        tone="" if not known else "good" if found.fits else "bad",
        note=note,
        formula="\n".join(lines),
    )


def sum_line(plan: memory_plan.Plan, say: Say) -> str:
    """The parts of a plan added up."""
    parts = " + ".join(bytes_text(part.num_bytes) for part in plan.parts if part.num_bytes)
    return say("mem.formula.sum", parts=parts, total=bytes_text(plan.total_bytes))


def cache_lines(plan: memory_plan.Plan, say: Say, language: str, *, rows: bool = True) -> list[str]:
    """How a plan's cache comes about, a line for each kind of layer: bytes of a token, and with
    `rows` the tokens held. `plan` is of one device, nothing rounded."""
    lines = []
    for row in plan.kinds:
        layer = row.layer
        if layer is None:
            lines.append(row.formula.text(language) if rows else "")
            continue
        name = say(f"mem.kind.{row.kind}")
        params = {
            "kind": f"{name} {grouped(row.window)}" if row.window else name,
            "layers": row.num_layers,
            "key": layer.key_dim,
            "value": layer.value_dim,
            "k_format": plan.deployment.k_format,
            "row": grouped(row.row_bytes * row.num_layers),
        }
        key = "mem.formula.latent" if row.kind == "latent" else "mem.formula.layer"
        line = say(key, heads=layer.num_kv_heads, v_format=plan.deployment.v_format, **params)
        if rows:
            line += " " + say(
                "mem.formula.kept",
                rows=grouped(row.rows),
                context=grouped(plan.settings.context_len),
                total=bytes_text(row.num_bytes),
            )
        lines.append(line)
    return [line for line in lines if line] or [say("mem.formula.no_growth")]


def limit_text(limit: Limit, say: Say) -> str:
    return say("mem.unbounded") if limit.unbounded else grouped(limit.value)


def limit_of(found: Estimate, limit: Limit, most: int, say: Say) -> dict[str, str]:
    """An inverse as the value, tone and formula of its card; without the weights there is none."""
    if not found.choice.knows_weights:
        return {"value": NONE}
    return {
        "value": limit_text(limit, say),
        "tone": "bad" if limit.value == 0 else "",
        "formula": _limit_formula(found, limit, most, say),
    }


def _limit_formula(found: Estimate, limit: Limit, most: int, say: Say) -> str:
    budget = bytes_text(found.choice.budget_bytes)
    if limit.unbounded:
        return say("mem.formula.inverse_all", value=grouped(most))
    if limit.plan is None:
        return say("mem.formula.inverse_none", budget=budget)
    total = bytes_text(limit.plan.total_bytes)
    return say("mem.formula.inverse", budget=budget, value=grouped(limit.value), total=total)


def _time_card(
    name: str, found: Estimate, time: StepTime | None, say: Say, language: str
) -> Number:
    if time is None:
        why = estimate.why_no_time(found.choice).text(language)
        known = found.choice.device.bandwidth is not None
        formula = say(f"mem.formula.{name}_needs") if known else ""
        return card(name, say, value=NONE, note=why, formula=formula)
    value, _, unit = time_text(time.bound_s).partition(" ")
    return card(
        name,
        say,
        value=value,
        unit=unit,
        note=say("mem.range", fast=time_text(time.fast_s), slow=time_text(time.slow_s)),
        formula="\n".join((say(f"mem.formula.{name}"), *time_lines(found, time, say))),
    )


def time_lines(found: Estimate, time: StepTime, say: Say) -> list[str]:
    """The formula of a step's least time with its numbers."""
    lines = [
        say(
            "mem.formula.time_memory",
            bytes=bytes_text(time.work.num_bytes),
            bandwidth=str(time.bandwidth),
            time=time_text(time.least.memory_s),
        )
    ]
    low, high = speed.BANDWIDTH_SHARE
    shares = {"memory": f"{low:.0%}–{high:.0%}"}
    if time.rate is not None:
        ranks = found.choice.settings.tp
        lines.append(
            say(
                "mem.formula.time_compute",
                flops=f"{three(time.work.flops / 1e12)} TFLOP",
                rate=str(time.rate),
                ranks=ranks,
                time=time_text(time.least.compute_s),
            )
        )
        lines.append(say("mem.formula.time_bound", which=say(f"mem.bound.{time.least.bound_by}")))
        low, high = speed.COMPUTE_SHARE
        lines.append(say("mem.formula.time_range", compute=f"{low:.0%}–{high:.0%}", **shares))
    else:
        lines.append(say("mem.formula.time_unknown", least=speed.MEMORY_BOUND_BELOW))
        lines.append(say("mem.formula.time_range_bytes", **shares))
    if any(g.active is not None and g.active < g.count for g in found.choice.model.weights or ()):
        lines.append(say("mem.formula.time_experts"))
    return lines
