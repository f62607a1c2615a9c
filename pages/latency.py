"""The latency page: sweeps of TTFT, ITL and batch on this machine, under its own roofline.

It opens with the sweeps that ship; a visitor's own take their place. Sweeps run in the engine
process, one run at a time among everybody's.
"""

import shlex

import streamlit as st

from viz_engine.analysis import diagnose, latency, points, roofline
from viz_engine.analysis.diagnose import Diagnosis
from viz_engine.analysis.points import points_of
from viz_engine.model import files
from viz_engine.model.tokenizer import tokenizer_of
from viz_engine.numbers import amount, grouped, ms
from viz_engine.run import sweep
from viz_engine.run.command import QUESTIONS
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.sweep import KINDS, SweepSettings, values_of
from viz_engine.server import recorded
from viz_engine.server.runs import Run
from viz_engine.text import Message, UserError, plain
from viz_engine.view import ask, charts, markup
from viz_engine.view.ask import KEEP
from viz_engine.view.latency import charts as latency_charts
from viz_engine.view.latency import words
from viz_engine.view.latency.roofline import roofline_chart
from viz_engine.view.page import Page

SECTIONS = ("ttft", "itl", "batch", "roofline", "definitions", "price", "diagnosis", "share")
BUDGETS = (15, 30, 60, 120, 300, 600)
REPEATS = (1, 2, 3, 5, 8)
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


# ---- what is chosen ----------------------------------------------------------------------------


def first_values() -> None:
    """A new session begins with what its link names."""
    fresh = "lat_what" not in state
    page.begin(FIRST)
    if "lat_values" not in state:
        fill_values()
    if not fresh:
        return
    query = st.query_params
    if query.get("section") in SECTIONS:
        state.lat_section = query["section"]
        follow_section()
    asked = query.get("sweep", "")
    run = sweep_of(asked)
    if run is not None:
        take(run)
    elif asked and asked.removeprefix("recorded-") in KINDS:
        state.lat_what = asked.removeprefix("recorded-")
        fill_values()
    elif asked:
        state.lat_notice = Message(key="lat.unknown_sweep")


def fill_values() -> None:
    """The usual values of what is measured."""
    state.lat_values = ", ".join(map(str, sweep.VALUES[state.lat_what]))


def follow_what() -> None:
    """Whoever is to measure ITL sees ITL, if a sweep is what they look at."""
    fill_values()
    if state.lat_section in KINDS:
        state.lat_section = state.lat_what


def follow_section() -> None:
    """Whoever looks at ITL will measure ITL next."""
    if state.lat_section in KINDS and state.lat_section != state.lat_what:
        state.lat_what = state.lat_section
        fill_values()


def sweep_of(run_id: str) -> Run | None:
    """The sweep of that id, of one of the kinds that this page shows."""
    run = page.registry.get(run_id)
    shown = run is not None and run.what == "sweep" and run.log.head is not None
    return run if shown and run.log.settings.what in KINDS else None


def take(run: Run) -> None:
    """Show this sweep in place of the recorded one of its kind."""
    what = run.log.settings.what
    state.lat_jobs = {**state.lat_jobs, what: run.id}
    state.lat_what = what
    fill_values()


def settings_chosen() -> SweepSettings:
    """What the boxes hold. Raises UserError."""
    chosen = ask.model_chosen(page)
    folder = files.locate(chosen["model"])
    chat = folder is None or tokenizer_of(folder).has_chat_template
    run = RunSettings(
        **chosen, prompts=(QUESTIONS[page.language],), filler=page.language, chat=chat
    )
    made = sweep.default_settings(state.lat_what, run)
    return SweepSettings(
        what=made.what,
        run=made.run,
        values=values_of(state.lat_values),
        repeats=state.lat_repeats,
        budget_s=float(state.lat_budget),
    )


def submit() -> None:
    """Start a sweep with what the boxes hold. A refusal is a sentence; what was there stays."""
    with page.noticing():
        run = page.registry.submit(settings_chosen(), page.session_id)
        state.lat_notice = None
        state.lat_job = run.id
        state.lat_section = run.settings.what


def measure() -> None:
    """Measure the ceilings of the device that `auto` takes here."""
    state.lat_measuring = page.registry.measure(page.registry.engine.info().device or "cpu").id


def stop() -> None:
    page.registry.cancel(state.get("lat_job") or "")


def open_file() -> None:
    """Take a sweep from an uploaded file, or say what is wrong with it."""
    upload = state.lat_upload
    if upload is None:
        return
    run, state.lat_notice = ask.opened(upload, added, "sweep.bad_file")
    if run is not None:
        take(run)
        state.lat_section = run.log.settings.what


def added(data: bytes) -> Run:
    """The sweep in a file, so that it has a link. Raises UserError."""
    log = ExperimentLog.read(data, "sweep")
    if log.settings.what not in KINDS or not any(run.steps for run in log.runs()):
        raise UserError("sweep.bad_file")
    return page.registry.add_log(log)


def use_recorded() -> None:
    """Forget the visitor's own sweeps on this page."""
    state.lat_jobs = {}


def result_of(what: str) -> tuple[ExperimentLog | None, str]:
    """The sweep to show of a kind, and how its times are tagged."""
    run = sweep_of(state.lat_jobs.get(what, ""))
    if run is not None and run.log.runs():
        return run.log, "measured" if run.session_id == page.session_id else "recorded"
    return recorded.sweep(what), "recorded"


def shown_results() -> list[ExperimentLog]:
    return [found for what in KINDS if (found := result_of(what)[0]) is not None]


@st.cache_data(max_entries=32, show_spinner=False)
def diagnosis(_logs: list, _ceilings: object, key: str) -> Diagnosis:
    return diagnose.diagnose(_logs, _ceilings)


def diagnosis_of(results: list[ExperimentLog]) -> Diagnosis:
    """The findings on all runs of the same machine as the first sweep's."""
    logs = [log for result in results for log in result.runs()]
    ceilings = next((one.ceilings for one in results if one.ceilings), None)
    key = "|".join(log.started.run_id for log in logs) + repr(ceilings)
    return diagnosis(logs, ceilings, key)


def same_machine(results: list[ExperimentLog]) -> list[ExperimentLog]:
    """Those of the machine and dtype of the first: others stand under another roof."""

    def machine(result: ExperimentLog) -> tuple[str, ...]:
        started = result.started
        return started.hardware.name, started.hardware.device, started.settings.dtype

    if not results:
        return []
    own = [what for what in KINDS if result_of(what)[1] == "measured"]
    first = result_of(own[0])[0] if own else results[0]
    return [result for result in results if machine(result) == machine(first)]


# ---- the band of boxes ---------------------------------------------------------------------------


def ask_band() -> None:
    """What to measure, left; budget and the one button, right."""
    run = sweep_of(state.get("lat_job") or "")
    running = run is not None and not run.finished
    if run is not None and run.finished and state.get("lat_ended") != run.id:
        take_ended(run)
    left, right = st.columns([2, 3], gap="small", vertical_alignment="bottom")
    with left:
        boxes = st.columns([1, 1], gap="small", vertical_alignment="bottom")
        with boxes[0]:
            ask.segments(
                page,
                "what",
                say("lat.what"),
                KINDS,
                lambda what: say(f"lat.what.{what}"),
                on_change=follow_what,
                help=say("lat.what_help"),
            )
        boxes[1].text_input(
            say(f"lat.values.{state.lat_what}"),
            key="lat_values",
            max_chars=200,
            help=say("lat.values_help"),
            **KEEP,
        )
    with right:
        boxes = st.columns([1, 1, 4], gap="small", vertical_alignment="bottom")
        boxes[0].selectbox(
            say("lat.repeats"), REPEATS, key="lat_repeats", help=say("lat.repeats_help"),
            **KEEP,
        )  # fmt: skip
        budgets = [one for one in BUDGETS if one <= page.registry.limits.sweep_s] or [15]
        boxes[1].selectbox(
            say("lat.budget"),
            budgets,
            key="lat_budget",
            format_func=lambda seconds: say("lat.seconds", seconds=seconds),
            help=say("lat.budget_help"),
            **KEEP,
        )
        with boxes[2].container(horizontal=True, horizontal_alignment="right", gap="small"):
            with st.popover(say("ask.settings"), icon=":material/tune:"):
                ask.model(page)
            with st.popover(say("lat.more"), icon=":material/folder_open:"):
                files_box()
            if running:
                st.button(
                    say("lat.stop"), key="lat_stop", icon=":material/stop:", type="primary",
                    on_click=stop,
                )  # fmt: skip
            else:
                st.button(
                    say("lat.start"), key="lat_start", icon=":material/play_arrow:",
                    type="primary", on_click=submit,
                )  # fmt: skip
    with st.container(key="lat_row"):  # of one height: nothing moves when a sweep begins or ends
        if running:
            under_way()
        elif state.get("lat_measuring"):
            measuring()
        else:
            planned()


def planned() -> None:
    """What the button would do, or why it would not."""
    with page.refusing():
        num = len(values_of(state.lat_values))
        repeats, seconds = state.lat_repeats, state.lat_budget
        runs = num * repeats
        st.caption(say("lat.planned", runs=runs, num=num, repeats=repeats, seconds=seconds))


def files_box() -> None:
    """Open, go back, measure the ceilings."""
    st.file_uploader(
        say("lat.open"), type=["jsonl"], key="lat_upload", on_change=open_file,
        help=say("lat.open_help"),
    )  # fmt: skip
    st.button(
        say("lat.recorded"), key="lat_recorded", on_click=use_recorded, width="stretch",
        disabled=not state.lat_jobs,
    )  # fmt: skip
    st.button(
        say("lat.measure"), key="lat_measure", on_click=measure, width="stretch",
        help=say("lat.measure_help"), disabled=page.registry.measuring is not None,
    )  # fmt: skip


@st.fragment(run_every=1.0)
def under_way() -> None:
    """How far the sweep is; the page is drawn again when a run is over."""
    run = sweep_of(state.get("lat_job") or "")
    if run is None:
        return
    page.registry.seen(run)
    progress, message, fraction = run.log.progress(), run.message, run.fraction
    done = progress.num_done
    if run.finished or done != state.get("lat_done", 0):
        state.lat_done = done
        if done:
            take_silently(run)
        st.rerun()
    total, left = progress.num_total, progress.left_s
    if message is not None and run.state != "running":
        text = message.text(page.language)
        text += "" if fraction is None else f" {fraction:.0%}"
    else:
        newest = progress.newest
        value = newest.label[run.settings.varied] if newest and newest.open else "-"
        text = say("lat.progress", done=done, total=total, value=value)
        text += "" if left is None else " · " + say("lat.left", seconds=round(left))
    st.progress(min(done / max(total, 1), 1.0), text=plain(text))


def take_ended(run: Run) -> None:
    """Show what a sweep that is over has, and say why it ended, however the page learned of it."""
    state.lat_ended, state.lat_done = run.id, 0
    ended = run.log
    if ended.runs():
        take_silently(run)
    state.lat_notice = ended.error or (
        Message(key=f"lat.ended.{ended.ended}") if ended.ended != "done" else None
    )


def take_silently(run: Run) -> None:
    what = run.log.settings.what
    state.lat_jobs = {**state.lat_jobs, what: run.id}
    st.query_params["sweep"] = run.id


@st.fragment(run_every=1.0)
def measuring() -> None:
    """Until the ceilings are there."""
    run = page.registry.get(state.lat_measuring)
    if run is not None and not run.finished:
        st.caption(say("lat.measuring"))
        return
    state.lat_measuring = None
    state.lat_notice = (run.error if run else None) or Message(key="lat.measured_now")
    st.rerun()


# ---- sections ------------------------------------------------------------------------------------


def picture(figure: charts.Figure, name: str, alt: str) -> None:
    charts.show(figure, name, alt, image=page.image)


def where(result: ExperimentLog, tag: str, *others: ExperimentLog) -> None:
    """Whose numbers these are; `others` are of the same machine."""
    started = result.started
    text = say(
        "lat.where",
        tag=say(f"lat.tag.{tag}"),
        machine=started.hardware.name,
        device=started.hardware.device,
        threads=started.hardware.num_threads or "-",
        model=started.spec.name if started.spec else started.settings.model,
        dtype=started.settings.dtype,
        runs=sum(len(one.runs()) for one in (result, *others)),
        when=started.started_at[:10],
    )
    if result.ended != "done":
        text += " · " + say(f"lat.ended.{result.ended}")
    st.caption(plain(text))


def tag_of(results: list[ExperimentLog]) -> str:
    """How the times of several sweeps are tagged: some may ship, others be made here."""
    tags = {result_of(result.settings.what)[1] for result in results}
    return tags.pop() if len(tags) == 1 else "both"


def shown(what: str) -> tuple[ExperimentLog, str] | None:
    """The sweep of a kind, or a sentence where there is none."""
    result, tag = result_of(what)
    if result is None or not result.runs():
        st.caption(say("lat.none"))
        return None
    where(result, tag)
    if few := points.thin(result):
        st.caption(say("lat.thin", values=", ".join(map(grouped, few)), least=points.SPREAD_RUNS))
    return result, tag


def ttft() -> None:
    if (found := shown("ttft")) is None:
        return
    result, tag = found
    left, right = st.columns(2, gap="medium")
    with left:
        figure = latency_charts.ttft_chart(result, say, page.theme)
        picture(figure, "ttft", say("lat.alt.ttft", **ends(result, "ttft_s")))
    with right:
        figure = latency_charts.prefill_chart(result, say, page.theme)
        if figure is not None:
            picture(figure, "prefill", say("lat.alt.prefill"))
        else:
            st.caption(say("lat.no_parts"))
    st.html(markup.cards(words.ttft_cards(result, tag, say)))
    st.caption(words.ttft_note(result, say))


def itl() -> None:
    if (found := shown("itl")) is None:
        return
    result, tag = found
    left, right = st.columns(2, gap="medium")
    with left:
        figure = latency_charts.itl_chart(result, say, page.theme)
        picture(figure, "itl", say("lat.alt.itl", **ends(result, "itl_s")))
    with right:
        if latency.decode_splits(result):
            figure = latency_charts.split_chart(result, say, page.theme)
            picture(figure, "split", say("lat.alt.split"))
        else:
            st.caption(say("lat.no_ceilings"))
    st.html(markup.cards(words.itl_cards(result, tag, say)))
    st.caption(words.itl_note(result, say))


def ends(result: ExperimentLog, figure: str) -> dict[str, object]:
    points = points_of(result)
    first, last = (getattr(point, figure) for point in (points[0], points[-1]))
    return {
        "first": points[0].value,
        "last": points[-1].value,
        "low": ms(first.median if first else None),
        "high": ms(last.median if last else None),
    }


def batch() -> None:
    if (found := shown("batch")) is None:
        return
    result, _ = found
    findings = diagnosis_of([result])
    left, right = st.columns(2, gap="medium")
    with left:
        figure = latency_charts.batch_chart(result, findings, say, page.theme)
        picture(figure, "batch", say("lat.alt.batch"))
    with right:
        if latency.decode_splits(result):
            figure = latency_charts.split_chart(result, say, page.theme)
            picture(figure, "batch-split", say("lat.alt.split"))
        else:
            st.caption(say("lat.no_ceilings"))
    for message in (*findings.batch.evidence, findings.batch.next):
        st.caption(page.text(message))


def roof() -> None:
    results = same_machine(shown_results())
    ceilings = next((one.ceilings for one in results if one.ceilings), None)
    if ceilings is None or roofline.roof_of(ceilings, results[0].started) is None:
        st.caption(say("lat.no_ceilings"))
        return
    where(results[0], tag_of(results), *results[1:])
    started, tag = results[0].started, result_of(results[0].settings.what)[1]
    top = roofline.roof_of(ceilings, started)
    left, right = st.columns([5, 3], gap="medium")
    with left:
        figure = roofline_chart(results, ceilings, top, say, page.theme)
        picture(figure, "roofline", say("lat.alt.roofline"))
    with right:
        st.html(markup.cards(words.ceiling_cards(ceilings, top, tag, say), two=True))
        st.caption(words.roof_note(started, top, say))
        st.caption(say("lat.note.roofline"))


def definitions_of() -> None:
    if (found := shown("itl")) is None:
        return
    logs = found[0].runs()
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
    st.html(words.definition_table(logs, say))
    st.caption(say("lat.note.definitions"))
    st.html(words.formula_table(say))


def price() -> None:
    if (found := shown("batch")) is None:
        return
    result, tag = found
    costs = latency.token_costs(result)
    if costs is None:
        st.caption(say("lat.no_batch_one"))
        return
    st.html(markup.cards(words.price_cards(costs, tag, say)))
    st.caption(say("lat.note.price"))
    left, right = st.columns([3, 5], gap="medium")
    with left:
        one, two, three = st.columns([4, 4, 3], gap="small", vertical_alignment="bottom")
        one.number_input(
            say("lat.price_in"), 0.0, 1e6, key="lat_in", step=0.1,
            help=say("lat.price_help"), **KEEP,
        )  # fmt: skip
        two.number_input(
            say("lat.price_out"), 0.0, 1e6, key="lat_out", step=0.1,
            help=say("lat.price_help"), **KEEP,
        )  # fmt: skip
        three.text_input(say("lat.unit"), key="lat_unit", max_chars=8, **KEEP)
        for key in ("system", "user", "answer"):
            st.number_input(
                say(f"lat.{key}"), 0 if key == "system" else 1, 1_000_000, key=f"lat_{key}",
                step=50, help=say(f"lat.{key}_help"), **KEEP,
            )  # fmt: skip
        priced = state.lat_in is not None and state.lat_out is not None
        ratio = state.lat_out / state.lat_in if priced and state.lat_in else None
        st.caption(
            say(
                "lat.price_ratio",
                prices="-" if ratio is None else f"{ratio:.1f}",
                one=f"{costs.ratios[1]:.1f}",
                best=f"{costs.ratios[costs.best_batch]:.1f}",
                batch=costs.best_batch,
            )
        )
    parts = latency.prefill_parts(result_of("ttft")[0]) if result_of("ttft")[0] else None
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
    with right:
        longest = parts.columns if parts else 0
        figure = latency_charts.turns_chart(
            made, unit, say, page.theme, longest=longest, priced=priced
        )
        picture(figure, "turns", say("lat.alt.turns"))
        last, total = made[-1], sum(turn.price for turn in made)
        st.caption(
            plain(
                say(
                    "lat.turns_note" if priced else "lat.turns_tokens",
                    turns=TURNS,
                    tokens=grouped(last.read_tokens),
                    price=amount(last.price, unit),
                    total=amount(total, unit),
                    cached=amount(sum(turn.cached_price for turn in made), unit),
                )
            )
        )
        if last.seconds is not None and last.read_tokens > longest:
            st.caption(say("lat.turns_beyond", longest=grouped(longest)))


def diagnosis_section() -> None:
    results = same_machine(shown_results())
    if not results:
        st.caption(say("lat.none"))
        return
    where(results[0], tag_of(results), *results[1:])
    found = diagnosis_of(results)
    verdicts = (found.prefill, found.decode)
    st.html(markup.notices([words.verdict_notice(v, page.language, say) for v in verdicts]))
    st.html(words.shares_table(found, say))
    left, right = st.columns(2, gap="medium")
    for box, verdict in zip((left, right), verdicts, strict=True):
        with box.container(border=True):
            st.markdown(f"**{say(f'lat.phase.{verdict.phase}')}**")
            for message in (*verdict.evidence, *verdict.unknown, verdict.next):
                st.caption(page.text(message))
    left, right = st.columns([5, 4], gap="medium")
    logs = [log for result in results for log in result.runs()]
    with left:
        figure = latency_charts.memory_chart(logs, say, page.theme)
        if figure is not None:
            picture(figure, "memory-watch", say("lat.alt.memory"))
    with right:
        for part in (found.batch, found.memory):
            for message in (*part.evidence, part.next):
                st.caption(page.text(message))
    st.caption(say("lat.note.diagnosis"))


def share() -> None:
    """The link, the numbers, the files, and what the charts' buttons save."""
    result, _ = result_of(state.lat_what)
    job_id = state.lat_jobs.get(state.lat_what, "")
    name = job_id if page.registry.get(job_id) else f"recorded-{state.lat_what}"
    st.caption(say("lat.link"), help=say("lat.link_help"))
    st.code(
        f"{page.address}?sweep={name}&section={state.lat_what}&lang={page.language}", language=None
    )
    one, two, three = st.columns(3)
    with one:
        ask.csv_button(
            say("lat.csv"), lambda: latency.to_csv(shown_results()), "latency", width="stretch"
        )
    if result is not None:
        two.download_button(
            say("lat.download", what=say(f"lat.what.{state.lat_what}")),
            data=lambda: result.to_jsonl(),
            file_name=f"second-token-{state.lat_what}.jsonl",
            mime="application/x-ndjson",
            icon=":material/download:",
            on_click="ignore",
            width="stretch",
        )
    with three:
        ask.segments(
            page, "image", say("lat.image"), ask.IMAGES, str.upper, help=say("lat.image_help")
        )
    st.caption(say("lat.command"))
    named = "".join(
        f" --{name} {shlex.quote(value)}"
        for name, value in ask.model_chosen(page).items()
        if value != ask.MODEL[name]
    )
    try:
        values = f" --values {','.join(map(str, values_of(state.lat_values)))}"
    except UserError:
        values = ""
    st.code(
        f"python -m viz_engine sweep --what {state.lat_what}{values}{named}"
        f" --repeats {state.lat_repeats} --budget {state.lat_budget} --json",
        language="bash",
    )


SHOW = {
    "ttft": ttft,
    "itl": itl,
    "batch": batch,
    "roofline": roof,
    "definitions": definitions_of,
    "price": price,
    "diagnosis": diagnosis_section,
    "share": share,
}

first_values()
with st.container(key="ask"):
    ask_band()
page.show_notice()
section = ask.segments(
    page,
    "section",
    say("lat.section"),
    SECTIONS,
    lambda name: say(f"lat.section.{name}"),
    label_visibility="collapsed",
    on_change=follow_section,
)
if st.query_params.get("section") != state.lat_section:
    st.query_params["section"] = state.lat_section
SHOW[state.lat_section]()
