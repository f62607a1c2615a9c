"""The latency page: sweeps of TTFT, ITL and batch on this machine, under its own roofline.

It opens with the sweeps that ship; a visitor's own take their place. Sweeps run in the engine
process, one run at a time among everybody's.
"""

import streamlit as st

from viz_engine.analysis import latency, points, roofline
from viz_engine.analysis.latency import TokenCosts
from viz_engine.numbers import grouped
from viz_engine.run.experiment import ExperimentLog
from viz_engine.text import plain
from viz_engine.view import ask, charts, markup
from viz_engine.view.ask import KEEP
from viz_engine.view.latency import charts as latency_charts
from viz_engine.view.latency import tables, words
from viz_engine.view.latency.ask import SweepAsk
from viz_engine.view.latency.roofline import roofline_chart
from viz_engine.view.latency.shown import Shown, diagnosis_of
from viz_engine.view.page import Page

SECTIONS = ("ttft", "itl", "batch", "roofline", "definitions", "price", "diagnosis", "share")
FIRST = {
    **ask.MODEL,
    "what": "ttft",
    "section": "ttft",
    "repeats": 3,
    "budget": 60,
    "image": "png",
    "of": "sweep",
    "in": None,
    "out": None,
    "unit": "$",
    "user": 100,
    "answer": 300,
    "system": 500,
    "jobs": {},
}
TURNS = 20

page = Page(prefix="lat_")
say, state = page.say, st.session_state
sweeps = Shown(page=page)
boxes = SweepAsk(page=page, shown=sweeps, sections=SECTIONS, first=FIRST)


def picture(figure: charts.Figure, name: str, alt: str) -> None:
    charts.show(figure, name, alt, image=page.image)


def found(what: str) -> tuple[ExperimentLog, str] | None:
    """The sweep of a kind and how its times are tagged, or a sentence where there is none."""
    result, tag = sweeps.of(what)
    if result is None or not result.runs():
        st.caption(say("lat.none"))
        return None
    where(result, tag)
    if few := points.thin(result):
        st.caption(say("lat.thin", values=", ".join(map(grouped, few)), least=points.SPREAD_RUNS))
    return result, tag


def where(result: ExperimentLog, tag: str, *others: ExperimentLog) -> None:
    st.caption(plain(words.where(result, tag, say, *others)))


# ---- sections ------------------------------------------------------------------------------------


def ttft() -> None:
    if (one := found("ttft")) is None:
        return
    result, tag = one
    left, right = st.columns(2, gap="medium")
    with left:
        figure = latency_charts.ttft_chart(result, say, page.theme)
        picture(figure, "ttft", say("lat.alt.ttft", **words.ends(result, "ttft_s")))
    with right:
        figure = latency_charts.prefill_chart(result, say, page.theme)
        if figure is not None:
            picture(figure, "prefill", say("lat.alt.prefill"))
        else:
            st.caption(say("lat.no_parts"))
    st.html(markup.cards(words.ttft_cards(result, tag, say)))
    st.caption(words.ttft_note(result, say))


def itl() -> None:
    if (one := found("itl")) is None:
        return
    result, tag = one
    left, right = st.columns(2, gap="medium")
    with left:
        figure = latency_charts.itl_chart(result, say, page.theme)
        picture(figure, "itl", say("lat.alt.itl", **words.ends(result, "itl_s")))
    with right:
        split(result, "split")
    verdict = diagnosis_of(sweeps.beside(result)).decode
    st.html(markup.cards(words.itl_cards(result, verdict, tag, say)))
    st.caption(words.itl_note(result, verdict, say, page.language))


def split(result: ExperimentLog, name: str) -> None:
    """What a step spends its time on, where the machine's ceilings are known."""
    if latency.decode_splits(result):
        figure = latency_charts.split_chart(result, say, page.theme)
        picture(figure, name, say("lat.alt.split"))
    else:
        st.caption(say("lat.no_ceilings"))


def batch() -> None:
    if (one := found("batch")) is None:
        return
    result, _ = one
    findings = diagnosis_of(sweeps.beside(result))
    left, right = st.columns(2, gap="medium")
    with left:
        figure = latency_charts.batch_chart(result, findings, say, page.theme)
        picture(figure, "batch", say("lat.alt.batch"))
    with right:
        split(result, "batch-split")
    for message in (*findings.batch.evidence, findings.batch.next):
        st.caption(page.text(message))


def roof() -> None:
    results = sweeps.alike(sweeps.every())
    ceilings = next((one.ceilings for one in results if one.ceilings), None)
    if ceilings is None or roofline.roof_of(ceilings, results[0].started) is None:
        st.caption(say("lat.no_ceilings"))
        return
    where(results[0], sweeps.tag(results), *results[1:])
    started, tag = results[0].started, sweeps.of(results[0].settings.what)[1]
    top = roofline.roof_of(ceilings, started)
    left, right = st.columns([5, 3], gap="medium")
    with left:
        figure = roofline_chart(results, ceilings, top, say, page.theme)
        picture(figure, "roofline", say("lat.alt.roofline"))
    with right:
        st.html(markup.cards(words.ceiling_cards(ceilings, top, tag, say), two=True))
        st.caption(words.roof_note(started, top, say))
        st.caption(say("lat.note.roofline"))


def timings() -> None:
    """Timing lines that the visitor has pasted."""
    if not state.get("lat_timings"):
        return
    with st.container(border=True):
        st.markdown(f"**{say('timing.title')}**")
        st.html(tables.timing_table(state.lat_timings, say))
        st.caption(say("timing.note"))
        st.button(say("timing.close"), key="lat_timings_close", on_click=drop_timings)


def drop_timings() -> None:
    state.lat_timings = None


def definitions() -> None:
    timings()
    if (one := found("itl")) is None:
        return
    logs = one[0].runs()
    live_run = page.registry.get(state.get("run_id") or "")
    if live_run is not None and live_run.what == "run" and live_run.log.steps:
        of = st.segmented_control(
            say("lat.of"),
            ("sweep", "live"),
            required=True,
            key="lat_of",
            format_func=lambda name: say(f"lat.of.{name}"),
            help=say("lat.of_help"),
        )
        logs = [live_run.log] if of == "live" else logs
    st.html(tables.definition_table(logs, say))
    st.caption(say("lat.note.definitions"))
    st.html(tables.formula_table(say))


def price() -> None:
    if (one := found("batch")) is None:
        return
    result, tag = one
    costs = latency.token_costs(result)
    if costs is None:
        st.caption(say("lat.no_batch_one"))
        return
    st.html(markup.cards(words.price_cards(costs, tag, say)))
    st.caption(say("lat.note.price"))
    left, right = st.columns([3, 5], gap="medium")
    with left:
        prices(costs)
    with right:
        turns()


def prices(costs: TokenCosts) -> None:
    """What a provider takes, and how long the turns of a conversation are."""
    one, two, three = st.columns([4, 4, 3], gap="small", vertical_alignment="bottom")
    for place, name in ((one, "in"), (two, "out")):
        place.number_input(
            say(f"lat.price_{name}"),
            0.0,
            1e6,
            key=f"lat_{name}",
            step=0.1,
            help=say("lat.price_help"),
            **KEEP,
        )
    three.text_input(say("lat.unit"), key="lat_unit", max_chars=8, **KEEP)
    for name, least in (("system", 0), ("user", 1), ("answer", 1)):
        st.number_input(
            say(f"lat.{name}"),
            least,
            1_000_000,
            key=f"lat_{name}",
            step=50,
            help=say(f"lat.{name}_help"),
            **KEEP,
        )
    st.caption(words.price_ratio(costs, state.lat_in, state.lat_out, say))


def turns() -> None:
    """What each turn of a conversation costs: the whole of it is read again."""
    priced = state.lat_in is not None and state.lat_out is not None
    sweep, _ = sweeps.of("ttft")
    parts = latency.prefill_parts(sweep) if sweep else None
    made = latency.turns(
        num=TURNS,
        user_tokens=state.lat_user,
        answer_tokens=state.lat_answer,
        system_tokens=state.lat_system,
        price_in=state.lat_in if priced else 1e6,  # without prices: tokens
        price_out=state.lat_out if priced else 0.0,
        line=parts.fit if parts else None,
    )
    unit = state.lat_unit if priced else say("lat.tokens")
    longest = parts.columns if parts else 0
    figure = latency_charts.turns_chart(made, unit, say, page.theme, longest=longest, priced=priced)
    picture(figure, "turns", say("lat.alt.turns"))
    st.caption(plain(words.turns_note(made, unit, say, priced=priced)))
    if made[-1].seconds is not None and made[-1].read_tokens > longest:
        st.caption(say("lat.turns_beyond", longest=grouped(longest)))


def diagnosis() -> None:
    results = sweeps.alike(sweeps.every())
    if not results:
        st.caption(say("lat.none"))
        return
    where(results[0], sweeps.tag(results), *results[1:])
    findings = diagnosis_of(results)
    verdicts = (findings.prefill, findings.decode)
    st.html(markup.notices([tables.verdict_notice(v, page.language, say) for v in verdicts]))
    st.html(tables.shares_table(findings, say))
    for box, verdict in zip(st.columns(2, gap="medium"), verdicts, strict=True):
        with box.container(border=True):
            st.markdown(f"**{say(f'lat.phase.{verdict.phase}')}**")
            for message in (*verdict.evidence, *verdict.unknown, verdict.next):
                st.caption(page.text(message))
    left, right = st.columns([5, 4], gap="medium")
    with left:
        logs = [log for result in results for log in result.runs()]
        figure = latency_charts.memory_chart(logs, say, page.theme)
        if figure is not None:
            picture(figure, "memory-watch", say("lat.alt.memory"))
    with right:
        for part in (findings.batch, findings.memory):
            for message in (*part.evidence, part.next):
                st.caption(page.text(message))
    st.caption(say("lat.note.diagnosis"))


def share() -> None:
    """The link, the numbers, the files, and what the charts' buttons save."""
    what = state.lat_what
    result, _ = sweeps.of(what)
    own = state.lat_jobs.get(what, "")
    name = own if page.registry.get(own) else f"recorded-{what}"
    link = f"{page.address}?sweep={name}&section={what}&lang={page.language}"
    st.caption(say("lat.link"), help=say("lat.link_help"))
    st.code(link, language=None)
    one, two, three = st.columns(3)
    with one:
        ask.csv_button(
            say("lat.csv"), lambda: latency.to_csv(sweeps.every()), "latency", width="stretch"
        )
    if result is not None:
        with two:
            text = say("lat.download", what=say(f"lat.what.{what}"))
            ask.jsonl_button(text, result.to_jsonl, f"second-token-{what}")
    with three:
        ask.segments(
            page, "image", say("lat.image"), ask.IMAGES, str.upper, help=say("lat.image_help")
        )
    st.caption(say("lat.command"))
    st.code(boxes.command(), language="bash")


SHOW = {
    "ttft": ttft,
    "itl": itl,
    "batch": batch,
    "roofline": roof,
    "definitions": definitions,
    "price": price,
    "diagnosis": diagnosis,
    "share": share,
}

boxes.first_values()
with st.container(key="ask"):
    boxes.band()
page.show_notice()
section = ask.segments(
    page,
    "section",
    say("lat.section"),
    SECTIONS,
    lambda name: say(f"lat.section.{name}"),
    label_visibility="collapsed",
    on_change=boxes.follow_section,
)
if st.query_params.get("section") != section:
    st.query_params["section"] = section
SHOW[section]()
