"""The live page in words: what a run will take.

It knows no Streamlit.

Try it: tests/view/test_live_words.py
"""

from viz_engine.model.formats import element_bytes
from viz_engine.model.spec import ModelSpec
from viz_engine.numbers import grouped, mib
from viz_engine.run import checks, machine
from viz_engine.run import cost as run_cost
from viz_engine.run.events import RunSettings
from viz_engine.text import Say


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
