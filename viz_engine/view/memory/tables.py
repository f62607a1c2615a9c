"""The memory page's tables and notices, in the visitor's language.

Functions of an `Estimate` (or of what is beside it) and `say`, which looks up a text. It knows
nothing of Streamlit.

Try it: `python -c "from viz_engine.view.memory import tables; print(tables.PRECISIONS)"`
"""

from collections.abc import Sequence

from viz_engine.memory import deployment, estimate
from viz_engine.memory.devices import Device, Figure
from viz_engine.memory.estimate import Estimate
from viz_engine.memory.plan import Option
from viz_engine.numbers import bytes_text, grouped, short_count, time_text
from viz_engine.text import Say
from viz_engine.view import markup
from viz_engine.view.markup import Cell
from viz_engine.view.memory import words

PRECISIONS = ("f32", "bf16", "fp8", "int8", "q6_k", "q5_k_m", "q4_k_m", "int4", "q3_k_m", "int2")
CHECKED = {"page": "✓", "copies": "≈", "here": "✓"}


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
    return say("mem.cache_reserved", engine=words.engine_name(engine, say))


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
                    help=words.sum_line(found.plan, say),
                ),
                bytes_text(found.plan.kv_bytes),
                words.limit_of(found, found.longest, deployment.MAX_CONTEXT, say)["value"],
                words.limit_of(found, found.most, deployment.MAX_SEQUENCES, say)["value"],
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
                words.limit_text(most, say),
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
        needs = Cell(text=bytes_text(plan.total_bytes), help=words.sum_line(plan, say))
        rows.append([change, needs, bytes_text(plan.kv_bytes), fits])
    return markup.table(head, rows)


def device_table(found: Estimate, devices: Sequence[Device], say: Say) -> str:
    """Every device with its figures and sources, and whether this choice fits it."""
    names = ("device", "sold", "shown", "seen", "gib", "bandwidth", "rate16", "rate8", "rate4")
    names += ("need",)
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
                _figure(device.seen),
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


def precision_picture(say: Say) -> str:
    """One weight snapped to the grids of 16 and 256 steps from -1 to 1."""
    snapped = {
        name: round(round((0.237 + 1) / 2 * (steps - 1)) / (steps - 1) * 2 - 1, 4)
        for name, steps in (("four", 16), ("eight", 256))
    }
    return say("mem.precision_picture", **{k: f"{v:g}" for k, v in snapped.items()})
