"""The race in words: what each panel says, in the visitor's language.

Functions of a race (or of what `analysis.race` makes of it) and `say`, which looks up a text. What
they give is Markdown. It knows no Streamlit.

Try it: tests/view/test_race_words.py
"""

from collections.abc import Mapping, Sequence

from viz_engine.analysis import growth, race
from viz_engine.analysis.growth import Growth, Law
from viz_engine.analysis.race import AttentionRows, Spread
from viz_engine.numbers import flops_text, grouped, scientific
from viz_engine.run.experiment import ExperimentLog, LogitsCompared, PrefixChanged
from viz_engine.run.log import RunLog
from viz_engine.text import Say, plain


def cost(
    prompt_len: int, new_tokens: int, flops: Mapping[str, int], seconds: float | None, say: Say
) -> str:
    """What a race will take: predicted FLOPs by cache, and about how long at the speed of the race
    on the page, where that one can tell."""
    text = say(
        "race.cost",
        tokens=grouped(prompt_len),
        new_tokens=new_tokens,
        none=flops_text(flops["none"]),
        full=flops_text(flops["full"]),
        ratio=f"{flops['none'] / flops['full']:.1f}",
    )
    if seconds:
        key = "race.cost_time" if seconds >= 10 else "race.cost_short"
        text += " · " + say(key, seconds=f"{seconds:.0f}")
    return f"{text} · :gray-badge[{say('ask.predicted')}]"


# ---- where the cache pays ------------------------------------------------------------------------


def gain(ratios: Sequence[Spread], start: int | None, say: Say) -> str:
    """From which token on the cache pays."""
    last = ratios[-1]
    params = {"n": start, "most": len(ratios), "ratio": f"{last.median:.1f}", "num": last.num}
    key = "race.gain.from" if last.num > 1 else "race.gain.from_once"
    return say(key if start else "race.gain.never", **params)


def gain_note(log: ExperimentLog, tiny: ExperimentLog | None, say: Say) -> str:
    """What the chart shows; and, of another prompt, where the gain begins with `tiny`'s one
    token."""
    note, started = say("race.gain.note"), log.started
    if tiny is None or tiny is log or started.prompt_columns == 1:
        return note + " "
    found, one = race.ratios(tiny), tiny.started
    if not found or None in found:
        return note + " "
    params = {f"r{k}": f"{found[k - 1].median:.1f}" for k in (1, 2, 8) if k <= len(found)}
    params |= {"n": race.gain_from(tiny), "most": len(found), "last": f"{found[-1].median:.1f}"}
    params |= {"dtype": one.settings.dtype, "machine": plain(one.hardware.name)}
    return note + " " + say("race.gain.tiny", date=one.started_at[:10], **params)


def ttft_note(log: ExperimentLog, times: Mapping[str, Spread], say: Say) -> str:
    """That the cache does nothing for the first token, or that more than chance lies between."""
    none, full = times["none"], times["full"]
    apart = none.low > full.high or full.low > none.high
    key = "race.gain.ttft_apart" if apart else "race.gain.ttft_same"
    prompt = grouped(log.started.prompt_columns)
    return say(key, prompt=prompt, num=none.num)


# ---- the other panels ----------------------------------------------------------------------------


def proof(compared: LogitsCompared, dtype: str, say: Say) -> str:
    """Whether both lanes write the same, and the largest gap of their logits."""
    at = compared.first_difference
    params = {
        "n": len(compared.gaps),
        "gap": f"{max(compared.gaps):.2g}",
        "largest": f"{compared.largest_logit:.3g}",
        "dtype": dtype,
    }
    if at is None:
        return say("race.proof.same", **params)
    margin, gap = f"{compared.margins[at]:.2g}", f"{compared.gaps[at]:.2g}"
    return say("race.proof.differs", **params, at=at + 1, margin=margin, here=gap)


def work(lanes: Mapping[str, Sequence[Growth]], laws: Mapping[str, Law], say: Say) -> str:
    """The leading terms of the work of each lane, and the exponents of the linear layers' part."""

    def exponent(points: Sequence[Growth]) -> str:
        found = growth.exponent([p.num_tokens for p in points], [p.linear for p in points])
        return f"{found:.2f}"

    return say(
        "race.growth.text",
        a=scientific(laws["none"].a),
        b=scientific(laws["none"].b),
        c=scientific(laws["full"].a),
        d=scientific(laws["full"].b),
        cross_none=grouped(laws["none"].crossing),
        cross_full=grouped(laws["full"].crossing),
        p=exponent(lanes["none"]),
        q=exponent(lanes["full"]),
    )


def work_source(run: RunLog, say: Say, *, recorded: bool) -> str:
    """Whose times stand beside the growth."""
    started = run.started
    return say(
        "race.growth.recorded" if recorded else "race.growth.measured",
        date=started.started_at[:10],
        machine=plain(started.hardware.name),
        dtype=started.settings.dtype,
    )


def attention(shown: AttentionRows, say: Say) -> str:
    """Which head's attention is shown, and how many keys its last query sees."""
    return say("race.attention.text", layer=shown.layer, head=shown.query_head, n=shown.num_keys)


def prefix(changed: PrefixChanged, moved: Sequence[Sequence[float]], say: Say) -> str:
    """How many keys moved with the prompt's first token, but for its own and those of the first
    layer."""
    later = moved[1:]
    above = [value for row in later for value in row[1:]]
    share = sum(value > 0 for value in above) / len(above) if above else 0
    return say(
        "race.prefix.text",
        before=plain(changed.before),
        after=plain(changed.after),
        same=sum(row[0] == 0 for row in later),
        rows=max(0, changed.num_rows - 1),
        moved=f"{share:.0%}",
    )
