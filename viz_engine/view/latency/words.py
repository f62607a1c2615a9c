"""The latency page's lines and cards: from sweeps to markup, in words that `say` gives.

Times of the visitor's own sweep are tagged measured, those of a sweep from a file recorded; the
ceilings are measured, least times predicted. It knows no Streamlit.

Try it: tests/view/test_latency_words.py
"""

import dataclasses
from collections.abc import Sequence

from viz_engine.analysis import definitions, diagnose, fits, latency, roofline
from viz_engine.analysis.diagnose import Verdict
from viz_engine.analysis.latency import Growth, PrefillParts, TokenCosts, Turn
from viz_engine.analysis.points import Point, Spread, points_of
from viz_engine.memory import devices
from viz_engine.numbers import NONE, amount, giga, grouped, ms, share
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.events import RunStarted
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.members import Progress
from viz_engine.server.runs import Run
from viz_engine.text import Say
from viz_engine.view.markup import Number

# ---- lines -------------------------------------------------------------------------------------


def where(result: ExperimentLog, tag: str, say: Say, *others: ExperimentLog) -> str:
    """Whose numbers these are; `others` are of the same machine."""
    started = result.started
    text = say(
        "lat.where",
        tag=say(f"lat.tag.{tag}"),
        machine=started.hardware.name,
        device=started.hardware.device,
        threads=started.hardware.num_threads or NONE,
        model=started.spec.name if started.spec else started.settings.model,
        dtype=started.settings.dtype,
        runs=sum(len(one.runs()) for one in (result, *others)),
        when=started.started_at[:10],
    )
    return text if result.ended == "done" else f"{text} · {say(f'lat.ended.{result.ended}')}"


def progress(run: Run, standing: Progress, say: Say, language: str) -> str:
    """How far a sweep is, or what it waits for."""
    if run.message is not None and run.state != "running":
        text = run.message.text(language)
        return text if run.fraction is None else f"{text} {run.fraction:.0%}"
    newest, left = standing.newest, standing.left_s
    value = newest.label[run.settings.varied] if newest and newest.open else NONE
    text = say("lat.progress", done=standing.num_done, total=standing.num_total, value=value)
    return text if left is None else f"{text} · {say('lat.left', seconds=round(left))}"


def ends(result: ExperimentLog, figure: str) -> dict[str, object]:
    """The medians of a figure at both ends of a sweep, for who cannot see its chart."""
    points = points_of(result)
    first, last = (getattr(point, figure) for point in (points[0], points[-1]))
    return {
        "first": points[0].value,
        "last": points[-1].value,
        "low": ms(first.median if first else None),
        "high": ms(last.median if last else None),
    }


def price_ratio(
    found: TokenCosts, price_in: float | None, price_out: float | None, say: Say
) -> str:
    """The ratio of a provider's prices beside those of the costs."""
    known = price_in and price_out is not None
    return say(
        "lat.price_ratio",
        prices=f"{price_out / price_in:.1f}" if known else NONE,
        one=f"{found.ratios[1]:.1f}",
        best=f"{found.ratios[found.best_batch]:.1f}",
        batch=found.best_batch,
    )


def turns_note(turns: Sequence[Turn], unit: str, say: Say, *, priced: bool) -> str:
    """What the last turn of a conversation costs, and all of them."""
    last = turns[-1]
    return say(
        "lat.turns_note" if priced else "lat.turns_tokens",
        turns=len(turns),
        tokens=grouped(last.read_tokens),
        price=amount(last.price, unit),
        total=amount(sum(turn.price for turn in turns), unit),
        cached=amount(sum(turn.cached_price for turn in turns), unit),
    )


# ---- cards -------------------------------------------------------------------------------------


def _card(say: Say, name: str, value: str, tag: str, unit: str = "", /, **params: object) -> Number:
    """A number whose label, note, formula and help are `lat.card.NAME.*`."""
    return Number(
        label=say(f"lat.card.{name}"),
        value=value,
        unit=unit,
        tag=say(f"lat.tag.{tag}"),
        note=say(f"lat.card.{name}.note", **params),
        formula=say(f"lat.card.{name}.formula", **params),
        help=say(f"lat.card.{name}.help"),
    )


def ttft_cards(result: ExperimentLog, tag: str, say: Say) -> list[Number]:
    """What the TTFT sweep says in six numbers."""
    points, parts = points_of(result), latency.prefill_parts(result)
    last = points[-1]
    measured = last.ttft_s.median if last.ttft_s else None
    least, work = None, latency.prefill_work(result.started, last.columns)
    if result.ceilings is not None:
        least = latency.predicted_ttft_s(result.started, result.ceilings, last.columns)
    rest = None if measured is None or least is None else measured - least
    prefill = last.prefill_s.median if last.prefill_s else None
    flops = parts.linear_flops + parts.attention_flops if parts else None
    rate = flops / prefill if flops and prefill else None
    top = roofline.rate_of(result.ceilings, result.started) if result.ceilings else None
    shown = {"columns": grouped(last.columns)}
    return [
        _card(
            say, "ttft", ms(measured), tag, "ms", num=last.num_runs, **shown, **_ends(last.ttft_s)
        ),
        _slope_card(points, parts, tag, say),
        _card(say, "least_ttft", ms(least), "predicted", "ms", rate=giga(top),
              flops=giga(work.flops if work else None),
              moved=giga(work.num_bytes if work else None),
              share=share(least / measured if least and measured else None), **shown),
        _card(say, "rest_ttft", ms(rest), tag, "ms", measured=ms(measured), least=ms(least),
              share=share(rest / measured if rest is not None else None)),
        _card(say, "mfu", share(rate / top if rate and top else None), tag, "", rate=giga(rate),
              top=giga(top), flops=giga(flops), ms=ms(prefill), **shown),
        _cross_card(last.columns, parts, say),
    ]  # fmt: skip


def _slope_card(points: Sequence[Point], parts: PrefillParts | None, tag: str, say: Say) -> Number:
    """What a token more takes, of the line that is fitted through the medians."""
    n, fit = points[-1].columns, parts.fit if parts else None
    card = _card(
        say,
        "slope",
        ms(fit.slopes["tokens"] if fit else None),
        tag,
        "ms/token",
        fixed=ms(fit.fixed if fit else None),
        slope=ms(fit.slopes["tokens"] if fit else None),
        square=f"{fit.slopes['square'] * 1e9:.2f}" if fit else NONE,
        linear_ms=ms(fit.slopes["tokens"] * n if fit else None),
        square_ms=ms(fit.slopes["square"] * n * n if fit else None),
        whole=ms(fit.at(tokens=n, square=n * n) if fit else None),
        error=f"{fit.error:.1%}" if fit else NONE,
        runs=sum(p.num_runs for p in points),
        columns=grouped(n),
    )
    return card if fit else _unfitted(card, 3, say)


def _cross_card(n: int, parts: PrefillParts | None, say: Say) -> Number:
    """From which length on attention is the larger part, by FLOPs and by the fitted line."""
    fit = parts.fit if parts else None
    linear_s = fit.slopes["tokens"] * n if fit else None
    square_s = fit.slopes["square"] * n * n if fit else None
    flops = parts.linear_flops + parts.attention_flops if parts else None
    card = _card(
        say,
        "cross",
        grouped(parts.cross_columns) if parts and parts.cross_columns else NONE,
        "predicted",
        say("lat.tokens"),
        share=share(parts.attention_flops / flops if parts else None),
        fit=grouped(parts.cross_fit) if parts and parts.cross_fit else NONE,
        linear=giga(parts.linear_flops if parts else None),
        attention=giga(parts.attention_flops if parts else None),
        linear_rate=giga(parts.linear_flops / linear_s if linear_s else None),
        attention_rate=giga(parts.attention_flops / square_s if square_s else None),
        columns=grouped(n),
    )
    if parts is not None and parts.cross_fit is not None:
        return card
    return dataclasses.replace(card, note=say("lat.by_flops"))


def _unfitted(card: Number, num: int, say: Say) -> Number:
    """A dash with its reason: so many lengths a fit takes."""
    return dataclasses.replace(card, note=say("lat.needs_lengths", num=num))


def ttft_note(result: ExperimentLog, say: Say) -> str:
    """What the chart shows, in the numbers of these runs."""
    said = [say("lat.note.ttft")]
    grown = latency.doubling(points_of(result))
    if grown is not None:
        said.append(say(f"lat.note.ttft_{grown.pace}", **_grown(grown)))
    if result.ceilings is not None:
        said.append(say("lat.note.ttft_least"))
    return say("lat.gap").join(said)


def _grown(one: Growth) -> dict[str, str]:
    return {
        "low": grouped(one.low),
        "high": grouped(one.high),
        "length": f"{one.length:.3g}",
        "times": f"{one.times:.2f}",
    }


def _ends(one: Spread | None) -> dict[str, str]:
    if one is None:
        return dict.fromkeys(("p10", "p90", "p50", "p95"), NONE)
    p95 = None if one.p90 is None else definitions.stats(one.values).p95
    found = {"p10": one.p10, "p50": one.median, "p90": one.p90, "p95": p95}
    return {name: ms(value) for name, value in found.items()}


def itl_cards(result: ExperimentLog, verdict: Verdict, tag: str, say: Say) -> list[Number]:
    """What the ITL sweep says in six numbers; the fit of a step is that of the `verdict`."""
    points, splits = points_of(result), latency.decode_splits(result)
    first, last = points[0], points[-1]
    short = first.itl_s.median if first.itl_s else None
    long = last.itl_s.median if last.itl_s else None
    line = fits.fit(
        {"columns": [p.columns for p in points if p.itl_s]},
        [p.itl_s.median for p in points if p.itl_s],
    )
    slope = line.slopes["columns"] if line else None
    end = splits[-1] if splits else None
    start = splits[0] if splits else None
    found = verdict.split
    kv_share = None
    if found is not None and found.kv_rate is not None:
        kv_share = found.kv_rate / result.ceilings.bandwidth.per_s
    over = latency.overtake(result, kv_share)
    mbu = (start.weights_s + start.kv_s) / start.measured_s if start else None
    cards = [
        _card(say, "itl", ms(short), tag, "ms", value=grouped(first.value),
              num=len(first.itl_s.values) if first.itl_s else 0, long=ms(long),
              last=grouped(last.value), **_ends(first.itl_s)),
        _card(say, "itl_slope", f"{slope * 1e6:.2f}" if slope is not None else NONE, tag,
              "ms / 1000", fixed=ms(line.fixed if line else None),
              error=f"{line.error:.1%}" if line else NONE, num=len(points)),
        _card(say, "split", ms(end.rest_s if end else None), tag, "ms",
              weights=ms(end.weights_s if end else None), kv=ms(end.kv_s if end else None),
              measured=ms(end.measured_s if end else None), last=grouped(last.value)),
        _card(say, "residual", ms(found.fixed_s if found else None), tag, "ms",
              rate=giga(found.kv_rate if found else None), share=share(kv_share),
              weights=ms(found.weights_s if found else None),
              error=f"{found.fit.error:.1%}" if found else NONE,
              num=found.fit.num if found else 0),
        _card(say, "mbu", share(mbu), tag, "", weights=ms(start.weights_s if start else None),
              kv=ms(start.kv_s if start else None),
              measured=ms(start.measured_s if start else None),
              value=grouped(first.value)),
        _card(say, "overtake", grouped(over.by_bytes) if over else NONE, "predicted",
              say("lat.tokens"),
              time=grouped(over.by_time) if over and over.by_time else NONE,
              share=share(kv_share)),
    ]  # fmt: skip
    if line is None:
        cards[1] = _unfitted(cards[1], 2, say)
    if found is None and splits:
        cards[3] = dataclasses.replace(cards[3], note=say("lat.card.residual.none"), formula="")
    return cards


def itl_note(result: ExperimentLog, verdict: Verdict, say: Say, language: str) -> str:
    """How long a step's bytes take at the bandwidth, the verdict on all runs, and how ITL grows."""
    said, points = [say("lat.note.itl")], points_of(result)
    splits = latency.decode_splits(result)
    if splits:
        first = splits[0]
        parts = {"weights": first.weights_s, "kv": first.kv_s, "rest": first.rest_s}
        shares = {name: share(part / first.measured_s) for name, part in parts.items()}
        said.append(say("lat.note.itl_parts", first=grouped(first.value), **shares))
        verdict_said = diagnose.headline(verdict).text(language)
        said.append(say("lat.note.itl_verdict", verdict=verdict_said))
    itl, ttft = (latency.growth(points, figure) for figure in ("itl_s", "ttft_s"))
    if itl is not None and ttft is not None:
        said.append(say("lat.note.itl_growth", ttft=f"{ttft.times:.3g}", **_grown(itl)))
    if splits:
        late = latency.exceeds(result.ceilings, splits)
        key = "lat.note.exceeds" if late else "lat.note.itl_least"
        said.append(say(key, values=", ".join(map(grouped, late))))
    return say("lat.gap").join(said)


def ceiling_cards(ceilings: Ceilings, roof: str | None, tag: str, say: Say) -> list[Number]:
    """The ceilings, and the maker's numbers beside them. `roof`: the number format whose rate the
    runs stand under."""
    sheet = devices.called(ceilings.machine)
    one = ceilings.bandwidth
    kernels = ", ".join(f"{name} {giga(value)}" for name, value in sorted(ceilings.kernels.items()))
    found = [
        _card(say, "bandwidth", giga(one.per_s), tag, "GB/s", kernel=one.kernel, num=one.num,
              spread=share(one.spread), kernels=kernels,
              buffer=f"{ceilings.buffer_bytes / 2**20:.0f}",
              sheet=giga(sheet.bandwidth.plain) if sheet else NONE)
    ]  # fmt: skip
    for name, rate in ceilings.flops.items():
        promised = sheet.promised(name) if sheet else None
        card = _card(
            say,
            "rate",
            giga(rate.per_s),
            tag,
            "GFLOP/s",
            dtype=name,
            kernel=rate.kernel,
            num=rate.num,
            spread=share(rate.spread),
            sheet=giga(promised.plain) if promised else NONE,
        )
        found.append(card)
    top = ceilings.flops[roof].per_s if roof else None
    ridge = top / one.per_s if top else None
    found.append(
        _card(
            say,
            "ridge",
            f"{ridge:.1f}" if ridge else NONE,
            tag,
            "FLOP/B",
            rate=giga(top),
            bandwidth=giga(one.per_s),
        )
    )
    return found


def roof_note(started: RunStarted, roof: str, say: Say) -> str:
    """Which flat line the points stand under, and why."""
    own = started.settings.dtype
    key = "lat.note.roof_own" if roof == own else "lat.note.roof_widened"
    return say(key, dtype=own, roof=roof)


def price_cards(found: TokenCosts, tag: str, say: Say) -> list[Number]:
    """A token of prefill against one of decode."""
    pair = [("prefill", found.prefill), ("decode", found.decode), ("best", found.best)]
    cards = [
        _card(say, f"token_{name}", ms(one.seconds), tag, "ms", batch=found.best_batch,
              columns=grouped(found.prefill_columns),
              bytes=NONE if one.num_bytes is None else f"{one.num_bytes / 1e6:.2f}",
              flops=NONE if one.flops is None else f"{one.flops / 1e6:.0f}")
        for name, one in pair
    ]  # fmt: skip
    first, best = found.ratios[1], found.ratios[found.best_batch]
    five, four = found.price_batch
    listed = ", ".join(f"{batch}: {ratio:.1f}" for batch, ratio in found.ratios.items())
    cards.append(_card(say, "ratio", f"{first:.1f}", tag, "×", ratio=f"{first:.1f}",
                       best=f"{best:.1f}", batch=found.best_batch, listed=listed))  # fmt: skip
    between = NONE if five is None and four is None else " … ".join(
        NONE if value is None else f"{value:.1f}" for value in (five, four)
    )  # fmt: skip
    cards.append(_card(say, "price_batch", between, tag, "", listed=listed,
                       least=f"{min(found.ratios.values()):.1f}"))  # fmt: skip
    return cards
