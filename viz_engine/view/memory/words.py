"""An estimate in words: cards, notices and tables of the memory page, in the visitor's language.

Functions of an `Estimate` (or of what is beside it) and `say`, which looks up a text. Every number
says what it is and opens to its formula with the numbers filled in. It knows nothing of Streamlit.

Try it: `python -c "from viz_engine.view.memory import words; \
print(words.PRECISIONS)"`
"""

from collections.abc import Mapping, Sequence

from viz_engine.memory import capacity, deployment, estimate, speed
from viz_engine.memory import plan as memory_plan
from viz_engine.memory.devices import Device, Figure
from viz_engine.memory.estimate import Estimate, Service
from viz_engine.memory.plan import Limit, Option
from viz_engine.memory.speed import StepTime
from viz_engine.model.config import ModelConfig
from viz_engine.numbers import billions, bytes_text, grouped, mib, short_count, three, time_text
from viz_engine.run import cost
from viz_engine.text import Say, plain
from viz_engine.view import markup
from viz_engine.view.markup import Cell, Number

PRECISIONS = ("f32", "bf16", "fp8", "int8", "q6_k", "q5_k_m", "q4_k_m", "int4", "q3_k_m", "int2")
CHECKED = {"page": "✓", "copies": "≈", "here": "✓"}


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


def cards(found: Estimate, say: Say, language: str) -> list[Number]:
    """The eight numbers beside the bar."""
    choice, settings = found.choice, found.choice.settings
    context, sequences = grouped(settings.context_len), grouped(settings.num_sequences)
    crossing = estimate.crossing(found)
    return [
        _total_card(found, say, language),
        Number(
            label=say("mem.card.request"),
            help=say("mem.card.request_help"),
            value=bytes_text(found.request_bytes),
            tag=say("mem.predicted"),
            note=_request_note(found, say),
            formula="\n".join(
                [
                    *cache_lines(found.request, say, language),
                    *_held_lines(found, found.request.kv_bytes, found.request_bytes, say),
                ]
            ),
        ),
        Number(
            label=say("mem.card.longest"),
            help=say("mem.card.longest_help"),
            tag=say("mem.predicted"),
            **_limit(found, found.longest, deployment.MAX_CONTEXT, say),
            note=say("mem.longest_note", sequences=sequences),
        ),
        Number(
            label=say("mem.card.most"),
            help=say("mem.card.most_help"),
            tag=say("mem.predicted"),
            **_limit(found, found.most, deployment.MAX_SEQUENCES, say),
            note=say("mem.most_note", context=context, half=_limit_text(found.most_twice, say))
            if choice.knows_weights
            else "",
        ),
        _time_card("ttft", found, found.ttft, say, language),
        _time_card("itl", found, found.itl, say, language),
        Number(
            label=say("mem.card.growth"),
            help=say("mem.card.growth_help"),
            value=mib(found.growth_bytes),
            tag=say("mem.predicted"),
            note=say("mem.growth_note"),
            formula="\n".join(
                [
                    *cache_lines(found.request, say, language, rows=False),
                    *_held_lines(found, found.request.growth_bytes, found.growth_bytes, say),
                ]
            ),
        ),
        Number(
            label=say("mem.card.crossing"),
            help=say("mem.card.crossing_help"),
            value="-" if crossing is None else grouped(crossing),
            tag=say("mem.predicted"),
            note=say("mem.crossing_note", context=context),
            formula=""
            if crossing is None
            else say(
                "mem.formula.crossing",
                weights=bytes_text(found.rank_request.part("weights").num_bytes),
                request=bytes_text(found.rank_request.kv_bytes),
            ),
        ),
    ]


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
    return Number(
        label=say("mem.card.total"),
        help=say("mem.card.total_help"),
        value=bytes_text(total) if known else "-",
        tag=say("mem.predicted"),
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


def _limit_text(limit: Limit, say: Say) -> str:
    return say("mem.unbounded") if limit.unbounded else grouped(limit.value)


def _limit(found: Estimate, limit: Limit, most: int, say: Say) -> dict[str, str]:
    """An inverse as the value, tone and formula of its card; without the weights there is none."""
    if not found.choice.knows_weights:
        return {"value": "-"}
    return {
        "value": _limit_text(limit, say),
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
    label, help_text = say(f"mem.card.{name}"), say(f"mem.card.{name}_help")
    if time is None:
        why = estimate.why_no_time(found.choice).text(language)
        tag = say("mem.predicted")
        known = found.choice.device.bandwidth is not None
        lines = say(f"mem.formula.{name}_needs") if known else ""
        return Number(label=label, help=help_text, value="-", tag=tag, note=why, formula=lines)
    value, _, unit = time_text(time.bound_s).partition(" ")
    return Number(
        label=label,
        help=help_text,
        value=value,
        unit=unit,
        tag=say("mem.predicted"),
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


# ---- notices and tables ------------------------------------------------------------------------


def accident_notices(found: Estimate, say: Say) -> list[tuple[str, str, str]]:
    """The three accidents as (tone, heading, text)."""
    shown = []
    for accident in estimate.accidents(found):
        key = f"mem.accident.{accident.kind}"
        name = "bad" if accident.bad else "good" if accident.fits else "none"
        if accident.kind == "longer" and accident.before_bytes == accident.after_bytes:
            name = "same"
        sizes = {
            "cache": _cache_name(found, say),
            "before": bytes_text(accident.before_bytes),
            "after": bytes_text(accident.after_bytes),
        }
        tone = "bad" if accident.bad else "good" if accident.fits else ""
        shown.append((tone, say(f"{key}.head"), say(f"{key}.{name}", **sizes)))
    return shown


def _cache_name(found: Estimate, say: Say) -> str:
    """Whose size it is that grows: the rows themselves, or what the engine reserves for them."""
    engine = found.choice.settings.engine
    if engine == "exact":
        return say("mem.cache_rows")
    return say("mem.cache_reserved", engine=engine_name(engine, say))


def compare_table(bills: Sequence[tuple[str, Estimate]], say: Say) -> str:
    """Choices side by side, a row each."""
    head = [say(f"mem.col.{name}") for name in ("choice", "needs", "kv", "longest", "most")]
    head += [say("mem.col.ttft"), say("mem.col.itl")]
    rows = []
    for name, found in bills:
        settings, known = found.choice.settings, found.choice.knows_weights
        total = f"{bytes_text(found.plan.total_bytes)} {_mark(found.fits)}" if known else "-"
        tone = "weak" if not known else "good" if found.fits else "bad"
        size = f"{short_count(settings.context_len)} × {grouped(settings.num_sequences)}"
        rows.append(
            [
                f"{name} · {size} · {found.choice.device.name}",
                Cell(
                    text=total,
                    tone=tone,
                    help=sum_line(found.plan, say),
                ),
                bytes_text(found.plan.kv_bytes),
                _limit(found, found.longest, deployment.MAX_CONTEXT, say)["value"],
                _limit(found, found.most, deployment.MAX_SEQUENCES, say)["value"],
                time_text(found.ttft.bound_s) if found.ttft else "-",
                time_text(found.itl.bound_s) if found.itl else "-",
            ]
        )
    return markup.table(head, rows)


def _mark(fits: bool) -> str:
    return "✓" if fits else "✗"


def layer_table(found: Estimate, say: Say, language: str) -> str:
    """What each kind of layer keeps."""
    head = [say(f"mem.col.{n}") for n in ("kind", "layers", "window", "row", "rows", "total")]
    head.append(say("mem.col.share"))
    every = sum(row.num_bytes for row in found.plan.kinds) or 1
    rows = [
        [
            say(f"mem.kind.{row.kind}"),
            str(row.num_layers),
            grouped(row.window) if row.window else "-",
            grouped(row.row_bytes or row.state_bytes),
            grouped(row.rows) if row.row_bytes else "-",
            Cell(text=bytes_text(row.num_bytes), help=row.formula.text(language)),
            f"{row.num_bytes / every:.1%}",
        ]
        for row in found.plan.kinds
    ]
    return markup.table(head, rows)


def precision_table(found: Estimate, say: Say, language: str) -> str:
    """The weights in each format, and what then is left."""
    choice, settings = found.choice, found.choice.settings
    head = [say(f"mem.col.{n}") for n in ("format", "bits", "weights", "each", "left", "most")]
    own = estimate.bits_of(choice, settings.weight_format)
    rows = []
    own_first = ("auto",) if choice.model.stored else ()
    for name, plan, most in estimate.precisions(choice, (*own_first, *PRECISIONS)):
        bits = estimate.bits_of(choice, name)
        each, total = plan.part("weights").num_bytes, estimate.model_weight_bytes(choice, name)
        left = choice.budget_bytes - (plan.total_bytes - plan.kv_bytes)
        rows.append(
            [
                Cell(text=name, tone="good" if bits == own else ""),
                f"{bits:.3g}",
                "-" if total is None else bytes_text(total),
                Cell(text=bytes_text(each), help=plan.part("weights").formula.text(language)),
                bytes_text(left) if left > 0 else Cell(text=_mark(False), tone="bad"),
                _limit_text(most, say),
            ]
        )
    return markup.table(head, rows)


def options_table(options: Sequence[Option], found: Estimate, say: Say, language: str) -> str:
    """What must change to fit, one change a line."""
    head = [say(f"mem.col.{name}") for name in ("change", "needs", "kv", "fits")]
    rows = []
    for option in options:
        fits = Cell(
            text=f"{_mark(option.fits)} {say('mem.yes' if option.fits else 'mem.no')}",
            tone="good" if option.fits else "bad",
        )
        plan = option.plan
        change = option.change.text(language)
        needs = Cell(text=bytes_text(plan.total_bytes), help=sum_line(plan, say))
        rows.append([change, needs, bytes_text(plan.kv_bytes), fits])
    return markup.table(head, rows)


def device_table(found: Estimate, devices: Sequence[Device], say: Say) -> str:
    """Every device with its figures and sources, and whether this choice fits it."""
    names = ("device", "sold", "shown", "gib", "bandwidth", "rate16", "rate8", "rate4", "need")
    rows = []
    for device in devices:
        fits = found.plan.fits(device.capacity_bytes)
        rates = [device.tflops.get("bf16") or device.tflops.get("fp16")]
        rates += [device.tflops.get("fp8"), device.tflops.get("fp4")]
        rows.append(
            [
                Cell(text=device.name, tone="good" if device == found.choice.device else ""),
                _figure(device.memory),
                _figure(device.reported),
                f"{device.capacity_bytes / 2**30:.1f}",
                _figure(device.bandwidth),
                *(_figure(rate, unit=False) for rate in rates),
                Cell(text=_mark(fits), tone="good" if fits else "bad")
                if found.choice.knows_weights
                else "-",
            ]
        )
    return markup.table([say(f"mem.col.{name}") for name in names], rows)


def _figure(figure: Figure | None, *, unit: bool = True) -> str | Cell:
    if figure is None:
        return Cell(text="-", tone="weak")
    text = str(figure) if unit else f"{figure.value:g}"
    return Cell(text=f"{text} {CHECKED[figure.checked]}", href=figure.source, help=figure.source)


# ---- users -------------------------------------------------------------------------------------


def service_cards(
    found: Estimate, service: Service, rate: float, say: Say, language: str
) -> list[Number]:
    """Who is served by all copies, and how many requests are in flight at `rate` a second."""
    load, copies = found.choice.load, found.choice.num_replicas
    if service.paged is None:
        why = estimate.why_no_time(found.choice).text(language)
        note = why if service.room else say("mem.none_fits")
        return [Number(label=say("mem.card.users"), value="-", tag=say("mem.predicted"), note=note)]
    paged, answer = service.paged, time_text(service.duration_s)
    held = say(
        "mem.formula.held",
        prompt=grouped(load.prompt_len),
        half=grouped(load.mean_held_len - load.prompt_len),
        held=grouped(load.mean_held_len),
    )
    little = say(
        "mem.formula.little",
        num=grouped(paged.sequences),
        answer=answer,
        think=time_text(load.think_s),
        users=grouped(paged.users),
        copies=copies,
    )
    middle = {name: time_text(estimate.middle(t)) for name, t in _both(service).items()}
    return [
        Number(
            label=say("mem.card.users"),
            help=say("mem.card.users_help"),
            tag=say("mem.predicted"),
            value=grouped(paged.users * copies),
            note=say("mem.users_note", rate=three(paged.requests_per_s * copies), copies=copies),
            formula="\n".join(
                (held, say("mem.formula.room", num=grouped(paged.sequences)), little)
            ),
        ),
        Number(
            label=say("mem.card.reserved"),
            help=say("mem.card.reserved_help"),
            tag=say("mem.predicted"),
            value=grouped(service.reserved.users * copies),
            note=say(
                "mem.users_note",
                rate=three(service.reserved.requests_per_s * copies),
                copies=copies,
            ),
            formula=say("mem.formula.room", num=grouped(service.reserved.sequences)),
        ),
        Number(
            label=say("mem.card.duration"),
            help=say("mem.card.duration_help"),
            tag=say("mem.predicted"),
            value=answer,
            note=say("mem.duration_note", **middle),
            formula=say(
                "mem.formula.duration",
                tokens=grouped(max(load.output_len - 1, 0)),
                total=answer,
                **middle,
            ),
        ),
        _flight_card(found, service, rate, say),
    ]


def _flight_card(found: Estimate, service: Service, rate: float, say: Say) -> Number:
    """Requests in flight at `rate`, each as slow as those beside it make it."""
    copies, load = found.choice.num_replicas, found.choice.load
    room = service.paged.sequences * copies
    shown = {"label": say("mem.card.flight"), "help": say("mem.card.flight_help")}
    shown["tag"] = say("mem.predicted")
    steady = estimate.in_flight(found, service, rate)
    if steady is None:
        most = three(service.paged.requests_per_s * copies)
        note = say("mem.flight_over", room=grouped(room), rate=f"{rate:g}", most=most)
        return Number(value="-", tone="bad", note=note, **shown)
    beside, duration = steady
    flight, answer = capacity.in_flight(rate, duration), time_text(duration)
    step = estimate.itl(found.choice, load.mean_held_len, beside)
    lines = (
        say("mem.formula.flight_load", num=grouped(beside)),
        say(
            "mem.formula.duration",
            tokens=grouped(max(load.output_len - 1, 0)),
            total=answer,
            ttft=time_text(estimate.middle(service.ttft)),
            itl=time_text(estimate.middle(step)),
        ),
        say("mem.formula.flight", rate=f"{rate:g}", answer=answer, flight=three(flight)),
    )
    return Number(
        value=three(flight),
        tone="good",
        note=say("mem.flight_note", room=grouped(room), answer=answer),
        formula="\n".join(lines),
        **shown,
    )


def _both(service: Service) -> dict[str, StepTime]:
    return {"ttft": service.ttft, "itl": service.itl}


def precision_picture(say: Say) -> str:
    """One weight snapped to the grids of 16 and 256 steps from -1 to 1."""
    snapped = {
        name: round(round((0.237 + 1) / 2 * (steps - 1)) / (steps - 1) * 2 - 1, 4)
        for name, steps in (("four", 16), ("eight", 256))
    }
    return say("mem.precision_picture", **{k: f"{v:g}" for k, v in snapped.items()})
