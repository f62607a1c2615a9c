"""The live page in words: what a run will take, and what its two phases took.

It knows no Streamlit.

Try it: tests/view/test_live_words.py
"""

from collections.abc import Callable
from statistics import median

from viz_engine.analysis.roofline import StepPoint, step_points
from viz_engine.model.formats import element_bytes
from viz_engine.model.spec import ModelSpec
from viz_engine.numbers import NONE, bytes_text, flops_text, grouped, mib, three, time_text
from viz_engine.run import checks, machine
from viz_engine.run import cost as run_cost
from viz_engine.run.events import RunSettings
from viz_engine.run.log import RunLog
from viz_engine.text import Say
from viz_engine.view import markup
from viz_engine.view.markup import Cell


def cost(spec: ModelSpec, settings: RunSettings, tokens: int, say: Say) -> tuple[str, str]:
    """What a run of a prompt of `tokens` will take in memory, as Markdown: the line, and its
    formula with the numbers put in."""
    dtype, cached = settings.dtype, settings.cache != "none"
    need = checks.footprint(
        spec,
        dtype,
        batch=settings.batch,
        prompt_len=tokens,
        new_tokens=settings.new_tokens,
        cached=cached,
    )
    numbers = {
        "rows": grouped(need.num_rows),
        "cache": mib(need.kv_reserved_bytes),
        "weights": mib(need.weight_bytes),
    }
    line = say(
        "ask.cost" if cached else "ask.cost_none",
        tokens=grouped(tokens),
        new_tokens=grouped(settings.new_tokens),
        **numbers,
    )
    formula = say(
        "ask.cost_help",
        block=run_cost.BLOCK_LEN,
        row_bytes=grouped(run_cost.row_bytes(spec, dtype)),
        batch=settings.batch,
        parameters=grouped(spec.num_parameters),
        element_size=element_bytes(dtype),
        available=mib(machine.available_bytes()),
        **numbers,
    )
    return f"{line} · :gray-badge[{say('ask.predicted')}]", formula


def phase_table(log: RunLog, say: Say, *, recorded: bool) -> str | None:
    """Prefill against decode in the numbers of a run; None while it has not both."""
    points = step_points(log)
    phases = [[p for p in points if p.phase == phase] for phase in ("prefill", "decode")]
    if not all(phases):
        return None
    clock = "recorded" if recorded else "measured"
    rows = [
        ("passes", "counted", lambda steps: grouped(len(steps))),
        ("tokens", "counted", lambda steps: grouped(median(map(_tokens, steps)))),
        ("pass", clock, lambda steps: time_text(median(p.seconds for p in steps))),
        ("token", clock, lambda steps: time_text(_a_token(steps, "seconds"))),
        ("bytes", "counted", lambda steps: _known(_a_token(steps, "num_bytes"), bytes_text)),
        ("flops", "predicted", lambda steps: _known(_a_token(steps, "flops"), flops_text)),
        ("intensity", "predicted", lambda steps: _known(_intensity(steps), three)),
    ]
    head = [say(f"phases.col.{name}") for name in ("what", "prefill", "decode", "tag")]
    return markup.table(
        head,
        [
            [
                Cell(text=say(f"phases.row.{name}"), help=say(f"phases.formula.{name}")),
                *map(show, phases),
                Cell(text=say(f"phases.tag.{tag}"), tone="weak"),
            ]
            for name, tag, show in rows
        ],
    )


def _tokens(step: StepPoint) -> int:
    return step.num_new * step.batch


def _sum(steps: list[StepPoint], name: str) -> float | None:
    values = [getattr(step, name) for step in steps]
    return None if None in values else sum(values)


def _a_token(steps: list[StepPoint], name: str) -> float | None:
    total = _sum(steps, name)
    return None if total is None else total / sum(map(_tokens, steps))


def _intensity(steps: list[StepPoint]) -> float | None:
    flops, num_bytes = _sum(steps, "flops"), _sum(steps, "num_bytes")
    return None if flops is None or not num_bytes else flops / num_bytes


def _known(value: float | None, show: Callable[[float], str]) -> str:
    return NONE if value is None else show(value)
