"""What was measured, in words: a run's memory, a server's start-up log, each beside ours.

Functions of data and `say`, which looks up a text in the visitor's language. It knows nothing of
Streamlit.

Try it: `python -c "from viz_engine.view.memory import evidence; \
print(evidence.TONES)"`
"""

from collections.abc import Sequence

from viz_engine.analysis.memory_account import Account
from viz_engine.memory.log_comparison import Comparison
from viz_engine.memory.server_log import Log, Start
from viz_engine.numbers import NONE, grouped, in_unit, mib
from viz_engine.run.events import RunStarted
from viz_engine.text import Say
from viz_engine.view import markup
from viz_engine.view.markup import Cell, Number
from viz_engine.view.memory import words

TONES = {"equal": "good", "within": "good", "differs": "bad", "unknown": "weak"}
SIGNS = {"equal": "=", "within": "≈", "differs": "≠", "unknown": "–"}


def where(started: RunStarted, say: Say) -> str:
    """Which run it is, and where it was made."""
    return say(
        "mem.run_where",
        model=started.settings.model,
        dtype=started.settings.dtype,
        device=started.hardware.device,
        machine=started.hardware.name,
        when=started.started_at,
    )


def account_cards(found: Account, say: Say, *, recorded: bool) -> list[Number]:
    """A run's memory: predicted beside counted and measured."""
    read = say("mem.recorded" if recorded else "mem.measured")
    return [
        _pair("live", found.predicted_live_bytes, found.live_bytes, say),
        _pair("held", found.predicted_reserved_bytes, found.reserved_bytes, say),
        Number(
            label=say("mem.card.grown"),
            help=say("mem.card.grown_help"),
            value=mib(found.grown_bytes),
            tag=read,
            note=say("mem.grown_note", rows=mib(found.grown_live_bytes)),
            formula=""
            if found.grown_bytes is None
            else say(
                "mem.formula.grown",
                last=mib(found.points[-1].used_bytes),
                first=mib(found.points[0].used_bytes),
                seconds=f"{found.points[-1].seconds - found.points[0].seconds:.1f}",
            ),
        ),
        Number(
            label=say("mem.card.rest"),
            help=say("mem.card.rest_help"),
            value=mib(found.rest_bytes),
            tag=read,
            note=say("mem.rest_note", used=mib(found.used_bytes)),
            formula=""
            if found.rest_bytes is None
            else say(
                "mem.formula.rest",
                used=mib(found.used_bytes),
                weights=mib(found.weight_bytes),
                live=mib(found.points[-1].live_bytes),
                rest=mib(found.rest_bytes),
            ),
        ),
    ]


def _pair(name: str, predicted: int | None, counted: int | None, say: Say) -> Number:
    note, tone = "", ""
    if predicted is not None and counted is not None:
        equal = predicted == counted
        tone = "good" if equal else "bad"
        diff = {} if equal else {"diff": mib(abs(predicted - counted))}
        note = say("mem.equal" if equal else "mem.unequal", counted=mib(counted), **diff)
    formula = say("mem.formula.live" if name == "live" else "mem.formula.reserved")
    return Number(
        label=say(f"mem.card.{name}"),
        help=say(f"mem.card.{name}_help"),
        value=mib(predicted),
        tag=say("mem.predicted"),
        tone=tone,
        note=note,
        formula=formula,
    )


def log_line(found: Log, start: Start, lines: Sequence[Comparison], model: str, say: Say) -> str:
    """Whose log it is, how many numbers of a start are compared with `model`, its settings, and
    what was taken from the visitor's choices."""
    said = ", ".join(f"{key} = {value}" for key, value in start.settings.items())
    text = say(
        "mem.log_found",
        engine=words.engine_name(found.engine, say),
        num=len(lines),
        settings=said[:400] or say("mem.log_nothing_else"),
        model=model,
    )
    assumed = lines[0].assumed if lines else ()
    if assumed:
        chosen = ", ".join(f"{key} = {value}" for key, value in assumed)
        text += say("mem.log_assumed", settings=chosen[:400])
    return text


def log_table(lines: Sequence[Comparison], say: Say, language: str) -> str:
    """Each number of a log: its line, what it is, its value, ours, and why they differ."""
    head = [say(f"mem.col.{name}") for name in ("meaning", "line", "log", "ours", "verdict")]
    rows = []
    for line in lines:
        found = line.finding
        verdict = f"{SIGNS[line.verdict]} {say(f'mem.verdict.{line.verdict}')}"
        if line.cause is not None:
            verdict += f": {line.cause.text(language)}"
        rows.append(
            [
                found.meaning.text(language),
                Cell(text=grouped(found.line_number), help=found.line),
                in_unit(found.value, found.unit),
                _ours(line),
                Cell(text=verdict, tone=TONES[line.verdict]),
            ]
        )
    return markup.table(head, rows)


def _ours(line: Comparison) -> str:
    """Our number of a line, as a range where it follows from rounded numbers of the log."""
    unit = line.finding.unit
    if line.ours is None:
        return NONE
    if line.ours_range is None:
        return in_unit(line.ours, unit)
    return " … ".join(in_unit(end, unit) for end in line.ours_range)
