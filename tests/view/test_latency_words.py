"""The latency page's figures, cards and tables, in both languages, on a machine that is played."""

import html
from functools import partial
from types import SimpleNamespace

import pytest

from tests.support.machine import CEILINGS, Machine, made_ceilings, result
from viz_engine.analysis import diagnose, fits, latency
from viz_engine.analysis.points import points_of
from viz_engine.numbers import ms, share
from viz_engine.run.experiment import ExperimentLog
from viz_engine.text import Message, t
from viz_engine.view import markup
from viz_engine.view.latency import charts, tables
from viz_engine.view.latency import words as latency_words
from viz_engine.view.latency.roofline import roofline_chart


@pytest.fixture(params=["en", "zh"])
def say(request: pytest.FixtureRequest):
    return lambda key, **params: t(key, request.param, **params)


TTFT, ITL = Machine().length_sweep(), Machine().context_sweep()


def decode_of(runs: list):
    return diagnose.phase_verdict(runs, "decode", CEILINGS)


BATCH = [Machine().run(batch, 256, 16, batch) for batch in (1, 2, 4, 8)]


@pytest.mark.parametrize("theme", ["dark", "light", None])
def test_every_figure_is_drawn(say, theme) -> None:
    ttft, itl, batch = result(TTFT), result(ITL, "itl"), result(BATCH, "batch")
    found = diagnose.diagnose(BATCH, CEILINGS)
    figures = [
        charts.ttft_chart(ttft, say, theme),
        charts.itl_chart(itl, say, theme),
        charts.split_chart(itl, say, theme),
        charts.batch_chart(batch, found, say, theme),
        roofline_chart([ttft, itl, batch], CEILINGS, "float32", say, theme),
    ]
    for figure in figures:
        assert len(figure.data) >= 2 and figure.layout.xaxis.title.text
    raw, medians, predicted, fitted = figures[0].data
    assert len(raw.x) == 18 and len(medians.x) == 6
    p90s = [high + y for high, y in zip(medians.error_y.array, medians.y, strict=True)]
    points = points_of(ttft)
    assert p90s == pytest.approx([point.ttft_s.p90 * 1e3 for point in points])
    assert predicted.line.dash == "dash" and fitted.line.dash == "dot"
    assert all(a < b for a, b in zip(predicted.y, predicted.y[1:], strict=False))
    prefill = charts.prefill_chart(ttft, say, theme)
    at_longest = sum(layer.y[-1] for layer in prefill.data[:3])
    assert at_longest == pytest.approx(prefill.data[3].y[-1], rel=0.1)
    assert charts.prefill_chart(result(TTFT[:1]), say, theme) is None
    whole = sum(layer.y[0] for layer in figures[2].data[:3])
    assert whole == pytest.approx(figures[2].data[3].y[0])


def test_every_number_opens_to_its_formula(say) -> None:
    ttft, itl, batch = result(TTFT), result(ITL, "itl"), result(BATCH, "batch")
    cards = [
        *latency_words.ttft_cards(ttft, "measured", say),
        *latency_words.itl_cards(itl, decode_of(ITL), "recorded", say),
        *latency_words.ceiling_cards(CEILINGS, "float32", "measured", say),
        *latency_words.price_cards(latency.token_costs(batch), "measured", say),
    ]
    assert len(cards) >= 20
    for card in cards:
        assert card.tag and card.formula and card.help and card.value
        assert "{" not in card.formula + card.note


def test_without_ceilings_what_has_no_basis_is_a_dash(say) -> None:
    ttft = result(TTFT)
    ttft.findings.clear()
    by_label = {card.label: card for card in latency_words.ttft_cards(ttft, "measured", say)}
    assert by_label[say("lat.card.least_ttft")].value == "-"
    assert by_label[say("lat.card.mfu")].value == "-"
    assert by_label[say("lat.card.ttft")].value != "-"
    assert len(charts.ttft_chart(ttft, say, "dark").data) == 3
    itl = result(ITL, "itl")
    itl.findings.clear()
    assert latency.decode_splits(itl) == []
    unknown = diagnose.phase_verdict(ITL, "decode", None)
    assert latency_words.itl_cards(itl, unknown, "measured", say)[2].value == "-"


def test_one_run_is_enough_to_draw(say) -> None:
    one = result(TTFT[:1])
    assert charts.ttft_chart(one, say, None).data
    assert latency_words.ttft_cards(one, "measured", say)[1].value == "-"
    assert latency_words.itl_cards(one, decode_of(TTFT[:1]), "measured", say)


def test_a_fit_that_takes_more_lengths_says_so(say) -> None:
    ttft = latency_words.ttft_cards(result(TTFT[:1]), "measured", say)
    itl = latency_words.itl_cards(result(ITL[:1], "itl"), decode_of(ITL[:1]), "measured", say)
    for card, num in ((ttft[1], 3), (itl[1], 2)):
        assert (card.value, card.note) == ("-", say("lat.needs_lengths", num=num))
    assert (itl[3].value, itl[3].note) == ("-", say("lat.card.residual.none"))
    assert ttft[5].note == say("lat.by_flops")


def test_the_note_on_ttft_says_the_growth_that_the_chart_shows(say) -> None:
    plain, waits = Machine(noise=0), Machine(noise=0, setup_s=90.0)
    for machine in (plain, waits):
        found = result(machine.length_sweep())
        grown = latency.doubling(points_of(found))
        note = latency_words.ttft_note(found, say)
        assert f"{grown.times:.2f}" in note and "lat." not in note
        numbers = {"low": "1\u202f024", "high": "2\u202f048", "length": "2"}
        words = say(f"lat.note.ttft_{grown.pace}", times=f"{grown.times:.2f}", **numbers)
        assert words in note
    assert grown.pace == "less"
    assert latency_words.ttft_note(result(TTFT[:1]), say).count(say("lat.note.ttft_least")) == 1


def test_the_note_on_itl_gives_the_verdict_of_three_tests(say, request) -> None:
    language = request.node.callspec.params["say"]
    weights = Machine(noise=0, overhead_s=0, weight_rate=1, rate=1e6)
    slow = Machine(noise=0, overhead_s=0.5)
    for machine in (weights, slow):
        runs = machine.context_sweep()
        verdict = decode_of(runs)
        note = latency_words.itl_note(result(runs, "itl"), verdict, say, language)
        assert diagnose.headline(verdict).text(language) in note
    assert verdict.causes == ("overhead",)
    found = result(ITL, "itl")
    grown = latency.growth(points_of(found), "itl_s")
    assert f"{grown.times:.2f}" in latency_words.itl_note(found, decode_of(ITL), say, language)
    found.findings.clear()
    unknown = diagnose.phase_verdict(ITL, "decode", None)
    bare = latency_words.itl_note(found, unknown, say, language)
    assert diagnose.headline(unknown).text(language) not in bare


def test_the_parts_of_ttft_on_its_card_add_up_to_the_fit(say) -> None:
    found = result(TTFT)
    fit = latency.prefill_parts(found).fit
    card = latency_words.ttft_cards(found, "measured", say)[1]
    whole = ms(fit.at(tokens=2048, square=2048**2))
    square = ms(fit.slopes["square"] * 2048**2)
    assert f"= {whole} ms" in card.formula and square in card.note and square in card.formula


def test_of_one_run_no_percentile_is_shown_or_drawn(say) -> None:
    one = result(TTFT[:1])
    _, medians, *_ = charts.ttft_chart(one, say, None).data
    assert medians.error_y.array == (0,) and medians.error_y.arrayminus == (0,)
    assert medians.text == (say("lat.hover.few", value=64, ms=medians_ms(one), runs=1),)
    formula = latency_words.ttft_cards(one, "measured", say)[0].formula
    assert "p10 -" in formula and "p90 -" in formula and "p95 -" in formula
    row = latency.to_csv([one]).splitlines()[1].split(",")
    assert row[7:] == ["", "", "1"]


def medians_ms(found: ExperimentLog) -> str:
    return ms(points_of(found)[0].ttft_s.median)


def test_the_table_of_definitions_shows_every_tool_and_dashes(say) -> None:
    table = tables.definition_table([Machine().run(1, 64, 1, 0)], say)
    for tool in tables.TOOLS.values():
        assert tool in table
    assert ">-<" in table  # one token: no ITL
    assert "llmperf" in tables.formula_table(say)


def test_a_chat_is_drawn_with_the_visitors_unit(say) -> None:
    made = latency.turns(
        num=5, user_tokens=1, answer_tokens=1, system_tokens=0, price_in=1, price_out=4
    )
    figure = charts.turns_chart(made, "<b>", say, "dark")
    assert len(figure.data) == 2 and len(figure.data[0].x) == 5


def test_ttft_beyond_the_longest_run_is_drawn_apart_and_called_so(say) -> None:
    line = fits.Fit(fixed=1.0, slopes={"tokens": 0.001, "square": 0.0}, r2=None, error=0, num=3)
    made = latency.turns(
        num=5, user_tokens=500, answer_tokens=500, system_tokens=0, price_in=1, price_out=4,
        line=line,
    )  # fmt: skip
    drawn = partial(charts.turns_chart, made, "$", say, None)
    known, beyond = drawn(longest=2600).data[2:]  # turns read 500, 1500, 2500, 3500, 4500
    assert (known.x, beyond.x) == ((1, 2, 3), (3, 4, 5))
    assert beyond.name == say("lat.turn_ttft_beyond", longest="2\u202f600")
    assert (known.line.dash, beyond.line.dash) == ("solid", "dot")
    assert [trace.name for trace in drawn(longest=9999).data[2:]] == [say("lat.turn_ttft")]
    assert [trace.x for trace in drawn(longest=1).data[2:]] == [(1, 2, 3, 4, 5)]


def test_verdicts_are_notices(say) -> None:
    found = diagnose.diagnose(TTFT, CEILINGS)
    notice = partial(tables.verdict_notice, language="en", say=say)
    made = markup.notices([notice(found.prefill), notice(found.decode)])
    assert "computing" in made and made.count("notice ") >= 2
    table = tables.shares_table(found, say)
    assert say("lat.unexplained") in table
    rest = diagnose.unexplained(found.prefill)
    assert sum(found.prefill.shares.values()) + rest == pytest.approx(1)
    assert f">{html.escape(share(rest))}<" in table


def test_the_roof_that_holds_is_the_solid_line_and_the_others_are_dashed(say) -> None:
    ceilings = made_ceilings(2e10, {"float32": 1e11, "bfloat16": 1e10})
    for roof, other in (("float32", "bfloat16"), ("bfloat16", "float32")):
        figure = roofline_chart([result(TTFT)], ceilings, roof, say, None)
        lines = {trace.name.partition(":")[0].partition("：")[0]: trace for trace in figure.data}
        assert (lines[roof].line.dash, lines[other].line.dash) == ("solid", "dash")
        (ridge,) = figure.layout.shapes
        assert ridge.x0 == ceilings.flops[roof].per_s / 2e10


def test_a_ratio_of_prices_stands_beside_that_of_costs_and_is_a_dash_without_them(say) -> None:
    costs = latency.token_costs(result(BATCH, "batch"))
    assert "4.0" in latency_words.price_ratio(costs, 2.0, 8.0, say)
    for price_in, price_out in ((None, 8.0), (2.0, None), (0.0, 8.0)):
        told = latency_words.price_ratio(costs, price_in, price_out, say)
        assert "4.0" not in told and "-" in told and f"{costs.ratios[1]:.1f}" in told


def test_the_turns_of_a_conversation_are_added_up(say) -> None:
    turns = latency.turns(
        num=3,
        user_tokens=100,
        answer_tokens=300,
        system_tokens=500,
        price_in=1e6,
        price_out=0.0,
        line=None,
    )
    told = latency_words.turns_note(turns, "token", say, priced=False)
    assert turns[-1].read_tokens == 1400 and "1\u202f400" in told
    assert f"{sum(turn.read_tokens for turn in turns):,}".replace(",", "\u202f") in told


def test_whose_numbers_these_are_says_how_a_sweep_ended(say) -> None:
    done = result(TTFT)
    told = latency_words.where(done, "measured", say, result(ITL, "itl"))
    assert done.started.hardware.name in told and str(len(TTFT) + len(ITL)) in told
    assert say("lat.tag.measured") in told and say("lat.ended.cancelled") not in told


class Waits:
    """A sweep in the queue, then on at its second value."""

    state, message, fraction = "loading", Message(key="progress.warm_up"), 0.5
    settings = SimpleNamespace(varied="batch")


def test_a_sweep_says_what_it_waits_for_and_then_how_far_it_is(say) -> None:
    newest = SimpleNamespace(label={"batch": 4}, open=True)
    standing = SimpleNamespace(newest=newest, num_done=3, num_total=9, left_s=42.4)
    assert latency_words.progress(Waits, standing, say, "en").endswith(" 50%")
    on = SimpleNamespace(state="running", message=Waits.message, settings=Waits.settings)
    assert latency_words.progress(on, standing, say, "en") == (
        say("lat.progress", done=3, total=9, value=4) + " · " + say("lat.left", seconds=42)
    )
    standing.left_s, newest.open = None, False
    assert latency_words.progress(on, standing, say, "en") == say(
        "lat.progress", done=3, total=9, value="-"
    )
