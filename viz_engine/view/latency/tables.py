"""The latency page's tables and notices: definitions of tools, verdicts, where time goes.

It knows no Streamlit.

Try it: tests/view/test_latency_words.py
"""

from collections.abc import Callable, Sequence

from viz_engine.analysis import definitions, diagnose
from viz_engine.analysis.diagnose import Diagnosis, Verdict
from viz_engine.analysis.timing_lines import Timing
from viz_engine.numbers import NONE, grouped, ms, share, three
from viz_engine.run.log import RunLog
from viz_engine.text import Say
from viz_engine.view import markup
from viz_engine.view.markup import Cell

TOOLS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "guidellm": "GuideLLM",
    "aiperf": "AIPerf",
    "llmperf": "llmperf",
}


def definition_table(logs: Sequence[RunLog], say: Say) -> str:
    """Each tool's TTFT, ITL and TPOT from the same runs, with their formulas."""
    head = [say("lat.def.tool")]
    head += [say(f"lat.def.{name}") for name in ("ttft", "itl", "itl_p95", "itl_p99", "tpot")]
    head += [say("lat.def.samples")]
    rows: list[list[str | Cell]] = []
    for one in definitions.report(*logs):
        figures = (one.ttft.median, one.itl.median, one.itl.p95, one.itl.p99, one.tpot.median)
        shown = [ms(None if value is None else value / 1e9) for value in figures]
        kinds = ("ttft", "itl", "itl", "itl", "tpot")
        cells = [
            Cell(text=text, help=say(f"lat.formula.{one.tool}.{kind}"))
            for text, kind in zip(shown, kinds, strict=True)
        ]
        counts = f"{one.ttft.num} / {one.itl.num} / {one.tpot.num}"
        rows.append([TOOLS[one.tool], *cells, counts])
    return markup.table(head, rows)


def formula_table(say: Say) -> str:
    """The formulas behind the table, a tool a row."""
    head = [say("lat.def.tool"), "TTFT", "ITL", "TPOT"]
    rows = [
        [TOOLS[tool], *(say(f"lat.formula.{tool}.{kind}") for kind in ("ttft", "itl", "tpot"))]
        for tool in TOOLS
    ]
    return markup.table(head, rows)


def timing_table(found: Sequence[Timing], say: Say) -> str:
    """The requests of pasted timing lines: what was printed, and what follows from it."""
    names = ("line", "prompt", "prefill", "prefill_rate", "written", "itl", "rate", "ratio")
    drafted = any(one.drafts_made is not None for one in found)
    head = [say(f"timing.{name}") for name in (*names, *(["drafts"] if drafted else ()))]
    rows = []
    for one in found:
        row = [
            grouped(one.line_number),
            _known(one.prompt_tokens, grouped),
            _known(one.prompt_s, lambda s: f"{ms(s)} ms"),
            _known(one.prefill_per_s, three),
            _known(one.new_tokens, grouped),
            _known(one.itl_s, lambda s: f"{ms(s)} ms"),
            _known(one.itl_s, lambda s: three(1 / s)),
            _known(one.ratio, lambda times: f"{times:.3g} ×"),
        ]
        if drafted:
            made = one.drafts_made
            row.append(NONE if made is None else f"{one.drafts_accepted} / {made}")
        rows.append(row)
    return markup.table(head, rows)


def _known(value: float | None, show: Callable[[float], str]) -> str:
    return NONE if value is None else show(value)


def verdict_notice(verdict: Verdict, language: str, say: Say) -> tuple[str, str, str]:
    """A verdict as one of `markup.notices`: tone, heading, text."""
    text = verdict.why.text(language) if verdict.why else ""
    if (sure := diagnose.confidence(verdict)) is not None:
        text += sure.text(language)
    tone = "good" if verdict.causes else ""
    return tone, diagnose.headline(verdict).text(language), text.strip()


def shares_table(found: Diagnosis, say: Say) -> str:
    """Where each phase's time goes, as far as the fit can say, and what it leaves."""
    head = [say("lat.phase"), *(say(f"diagnose.cause.{cause}") for cause in diagnose.CAUSES)]
    head.append(say("lat.unexplained"))
    rows = []
    for verdict in (found.prefill, found.decode):
        cells: list[str | Cell] = [share(verdict.shares.get(cause)) for cause in diagnose.CAUSES]
        rest = share(diagnose.unexplained(verdict))
        cells.append(Cell(text=rest, help=say("lat.unexplained_help")))
        rows.append([say(f"lat.phase.{verdict.phase}"), *cells])
    return markup.table(head, rows)
