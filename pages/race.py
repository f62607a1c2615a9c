"""The race: the same run without a cache against one with it. The lanes are drawn by race_view."""

import dataclasses

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from viz_engine.analysis import growth, race
from viz_engine.model import files
from viz_engine.model.spec import ModelSpec
from viz_engine.run import checks
from viz_engine.run.experiment import ExperimentLog, LogitsCompared, PrefixChanged
from viz_engine.run.race import MAX_REPEATS, RaceSettings
from viz_engine.server import recorded
from viz_engine.text import plain
from viz_engine.view import ask as view_ask
from viz_engine.view import charts
from viz_engine.view.ask import KEEP, Ask
from viz_engine.view.page import Page
from viz_engine.view.race import charts as race_charts
from viz_engine.view.race import link as race_link
from viz_engine.view.race import mount, words

PRESETS = {
    "document": {"context_len": 256, "new_tokens": 48, "chat": True},
    "chat": {"context_len": 0, "new_tokens": 48, "chat": True},
    "one_token": {"context_len": 0, "new_tokens": 128, "chat": False},
}
CONTEXT_LENS = (0, 64, 128, 256, 512, 1024, 2000, 4096)
NEW_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256)
PANELS = ("gain", "proof", "growth", "attention", "prefix")
FIRST = {
    **view_ask.MODEL,
    "repeats": 2,
    "layer": 10,
    "head": 4,
    "panel": "gain",
    "image": "png",
}
ONE_TOKEN = "2-one-token"  # the recorded race whose times stand beside the growth

page = Page(prefix="race_")
say = page.say
ask = Ask(
    page=page,
    kind=view_ask.RACE,
    texts="race",
    presets=PRESETS,
    preset_key=lambda name: f"race.preset.{name}",
    sizes={"context_len": CONTEXT_LENS, "new_tokens": NEW_TOKENS},
    new_tokens_help="race.new_tokens_help",
    first=FIRST,
    kept=(*view_ask.MODEL, "chat"),
)
state = st.session_state


# ---- what is asked -------------------------------------------------------------------------------


def take_link() -> None:
    """Fill the boxes with the settings that a link carries."""
    panel = st.query_params.get("panel")
    if panel in PANELS:
        state.race_panel = panel
    if not (asked := st.query_params.get("ask")):
        return
    with page.noticing():
        settings = race_link.decoded(asked)
        ask.take(settings.run)
        state.race_repeats = min(max(settings.repeats, 1), MAX_REPEATS)
        state.race_layer, state.race_head = settings.layer or 0, settings.query_head


def chosen() -> RaceSettings:
    return RaceSettings(
        run=ask.chosen(),
        repeats=state.race_repeats,
        layer=int(state.race_layer),
        query_head=int(state.race_head),
    )


def keep_link() -> None:
    """The page's address holds the race, its settings and the view."""
    params = {}
    if run is not None:
        params["race"] = run.id
        settings = run.settings or (run.log.head and run.log.settings)
        if settings and (made := race_link.encoded(settings)):
            params["ask"] = made
    params["mode"] = mode
    params["panel"] = state.race_panel
    for key in ("race", "ask", "mode", "panel"):
        if st.query_params.get(key) != params.get(key):
            if key in params:
                st.query_params[key] = params[key]
            else:
                del st.query_params[key]


# ---- the band at the top -------------------------------------------------------------------------


def cost_line(shown: ExperimentLog | None) -> None:
    """What this race will take, before it runs; or the sentence why it cannot run."""
    settings = chosen()
    with page.refusing():
        page.registry.limits.check(settings)
        folder = files.locate(settings.run.model)
        spec = files.spec_of(settings.run.model) if folder is not None else None
        if spec is None:
            st.caption(say("race.cost_unknown"))
            return
        run = settings.run
        prompt_len = view_ask.num_prompt_tokens(folder, run.prompts[0], run.chat, run.context_len)
        auto = page.registry.engine.info().dtype or "bfloat16"
        dtype = auto if run.dtype == "auto" else run.dtype
        run = dataclasses.replace(run, dtype=dtype, cache="none")
        checks.check(spec, run, [prompt_len])
        checks.check_race(settings, spec.num_layers, spec.num_query_heads)
        new_tokens = run.new_tokens
        flops = {c: growth.lane_flops(spec, dtype, prompt_len, new_tokens, c) for c in race.CACHES}
        one = shown and race.seconds_at(shown, spec, flops)
        seconds = one and one * settings.repeats
        line = words.cost(prompt_len, new_tokens, flops, seconds, say)
        st.caption(line, help=say("race.cost_help"))


def repeats_slider(place: DeltaGenerator) -> None:
    place.select_slider(
        say("race.repeats"),
        range(1, MAX_REPEATS + 1),
        key="race_repeats",
        help=say("race.repeats_help"),
        **KEEP,
    )


def settings_box() -> None:
    """Model, device, and whose attention is looked at."""
    one, two = view_ask.model(page)
    one.number_input(
        say("race.layer"),
        0,
        999,
        step=1,
        key="race_layer",
        help=say("race.layer_help"),
        **KEEP,
    )
    two.number_input(
        say("race.head"), 0, 999, step=1, key="race_head", help=say("race.head_help"), **KEEP
    )
    st.toggle(say("ask.chat"), key="race_chat", help=say("ask.chat_help"), **KEEP)


def races_box() -> None:
    """Recorded races, open, download, link."""
    ask.files_box(lambda name: say(f"race.recorded.{name}"))
    if run is None or not run.finished:
        return
    ask.download(run)
    st.caption(say("race.link"), help=say("race.link_help"))
    link = "&".join(f"{key}={value}" for key, value in st.query_params.items())
    st.code(f"{page.address}?{link}", language=None, wrap_lines=True)
    if run.log.head is not None and run.log.head.command:
        st.code(run.log.head.command[:2000], language="bash", wrap_lines=True)


# ---- the panels under the lanes ------------------------------------------------------------------


def show(figure: charts.Figure, name: str, alt: str) -> None:
    charts.show(figure, name, alt, image=page.image)


def panels(log: ExperimentLog) -> None:
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        view_ask.segments(
            page,
            "panel",
            say("race.panel"),
            PANELS,
            lambda name: say(f"race.panel.{name}"),
            label_visibility="collapsed",
        )
        view_ask.segments(
            page,
            "image",
            say("race.image"),
            view_ask.IMAGES,
            str.upper,
            help=say("race.image_help"),
            label_visibility="collapsed",
        )
        view_ask.csv_button(
            say("race.csv"), lambda: race.csv_text(log), "race", help=say("race.csv_help")
        )
    shown = {
        "gain": gain_panel,
        "proof": proof_panel,
        "growth": growth_panel,
        "attention": attention_panel,
        "prefix": prefix_panel,
    }
    shown[state.race_panel](log)


def gain_panel(log: ExperimentLog) -> None:
    """From which token on the cache pays, and that it does nothing for the first."""
    ratios = race.ratios(log)
    if not ratios or None in ratios:
        st.info(say("race.needs_both"))
        return
    flops, start = race.flop_ratios(log), race.gain_from(log)
    st.markdown(words.gain(ratios, start, say))
    left, right = st.columns([3, 2], gap="medium")
    with left:
        show(
            race_charts.gain_chart(ratios, flops, race.NO_GAIN, start, say, page.theme),
            "gain",
            say("race.panel.gain"),
        )
        tiny = recorded_one_token(log.started.spec)
        st.caption(words.gain_note(log, tiny, say))
    with right:
        times = {cache: race.times_ns(log, cache, 1) for cache in race.CACHES}
        show(race_charts.ttft_chart(times, say, page.theme), "ttft", say("race.figure.ttft"))
        st.caption(words.ttft_note(log, times, say))


def proof_panel(log: ExperimentLog) -> None:
    """Both lanes write the same: the largest logit gap of each token."""
    compared = log.finding(LogitsCompared)
    if compared is None or not compared.gaps:
        st.info(say("race.needs_both"))
        return
    dtype, at = log.started.settings.dtype, compared.first_difference
    if at is None:
        st.markdown(words.proof(compared, dtype, say))
    else:
        st.warning(words.proof(compared, dtype, say), icon=":material/alt_route:")
    show(
        race_charts.gap_chart(compared.gaps, compared.margins, at, say, page.theme),
        "proof",
        say("race.panel.proof"),
    )
    st.caption(say("race.proof.float32" if dtype == "float32" else "race.proof.half"))


def growth_panel(log: ExperimentLog) -> None:
    """How the work grows with the length, predicted; measured times of a one-token race beside."""
    started = log.started
    spec = started.spec
    if spec is None:
        st.info(say("race.growth.no_formula", model_type=plain(started.settings.model)))
        return
    lengths = growth.lengths(spec.max_context_len)
    try:
        lanes = {c: growth.grown(spec, lengths, cached=c == "full") for c in race.CACHES}
        laws = {c: growth.law(spec, cached=c == "full") for c in race.CACHES}
    except (ValueError, KeyError):
        st.info(say("race.growth.no_formula", model_type=spec.model_type))
        return
    from_one = log if started.prompt_columns == 1 else recorded_one_token(spec)
    timed = {c: from_one and race.shown(from_one, c) for c in race.CACHES}
    measured = {c: race.times_at(run) for c, run in timed.items() if run}
    crossings = {c: law.crossing for c, law in laws.items()}
    st.markdown(words.work(lanes, laws, say))
    show(
        race_charts.growth_chart(lanes, crossings, measured, say, page.theme),
        "growth",
        say("race.panel.growth"),
    )
    st.caption(say("race.growth.help"), help=say("race.growth.formula"))
    if measured:
        st.caption(words.work_source(timed["full"], say, recorded=from_one is not log))


def recorded_one_token(spec: ModelSpec) -> ExperimentLog | None:
    """The shipped race from one token, where it is of this model; its type may be another."""
    if ONE_TOKEN not in recorded.names("races"):
        return None
    log = recorded.race(page.registry, ONE_TOKEN).log
    return log if log.started.spec == spec else None


def attention_panel(log: ExperimentLog) -> None:
    """Why only K and V are kept: the rows of one head's attention at step n and n + 1."""
    rows = race.attention_rows(log)
    if rows is None:
        st.info(say("race.attention.none"))
        return
    st.markdown(words.attention(rows, say))
    figure = race_charts.attention_chart(rows, say, page.theme)
    show(figure, "attention", say("race.panel.attention"))
    st.caption(say("race.attention.note", kept=rows.num_queries))


def prefix_panel(log: ExperimentLog) -> None:
    """Which rows of K move when the prompt's first token is another one."""
    if (changed := log.finding(PrefixChanged)) is None:
        st.info(say("race.prefix.none"))
        return
    moved = race.moved(changed)
    st.markdown(words.prefix(changed, moved, say))
    texts = log.started.prompt_texts[0]
    figure = race_charts.prefix_chart(moved, texts, say, page.theme)
    show(figure, "prefix", say("race.panel.prefix"))
    st.caption(say("race.prefix.note"))


# ---- the page ------------------------------------------------------------------------------------

ask.first_values(take_link)
run = ask.current("race.unknown_settings" if st.query_params.get("ask") else "race.unknown")
over, running = ask.progress(run)
mode = mount.mode()
keep_link()
with st.container(key="ask"):
    ask.band(
        running,
        height=80,
        third=repeats_slider,
        cost=lambda: cost_line(run.log if run is not None and run.finished else None),
        boxes=(
            ("ask.settings", ":material/tune:", settings_box),
            ("race.races", ":material/folder_open:", races_box),
        ),
        start=("race_start", "race.start", ":material/flag:"),
        stop="race_stop",
        chosen=chosen,
    )
with st.container():  # there without a notice too: the view below keeps its place in the page
    page.show_notice()
lacks = ()
if run is not None and over and run.log.head is not None:
    lacks = tuple(message.text(page.language) for message in race.missing(run.log))
mount.show(
    run,
    over=over,
    language=page.language,
    autoplay=run is not None and run.settings is None,  # a file plays from its start
    mode=mode,
    missing=lacks,
)
if run is not None and over and run.log.runs():
    with st.container(key="race_panels"):
        panels(run.log)
