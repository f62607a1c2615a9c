"""The live page: ask, press one button, watch. What follows the run is drawn by the live view."""

import dataclasses

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from viz_engine.model import files
from viz_engine.numbers import grouped
from viz_engine.run import checks
from viz_engine.run import machine as run_machine
from viz_engine.run.events import RunStarted
from viz_engine.text import plain
from viz_engine.view import ask as view_ask
from viz_engine.view.ask import KEEP, Ask
from viz_engine.view.live import mount, words
from viz_engine.view.page import Page

PRESETS = {  # a context of 0: the prompt as it is
    "document": {"context_len": 2000, "new_tokens": 64},
    "chat": {"context_len": 0, "new_tokens": 96},
    "chinese": {"context_len": 0, "new_tokens": 64},
    "code": {"context_len": 0, "new_tokens": 96},
}
CONTEXT_LENS = (0, 128, 256, 512, 1024, 1536, 2000, 3000, 4096, 6000, 8000)
NEW_TOKENS = (1, 2, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CHUNK_LENS = (256, 64, 512, 1024, 0)
TINY = 10**9  # weights below which a model is called so (words.mjs)
FIRST = {
    **view_ask.MODEL,
    "cache": "full",
    "batch": 1,
    "chat": True,
    "temperature": 0.0,
    "top_p": 1.0,
    "seed": 0,
    "chunk_len": 256,
}

page = Page()
say = page.say
ask = Ask(
    page=page,
    kind=view_ask.RUN,
    texts="runs",
    presets=PRESETS,
    preset_key=lambda name: f"preset.{name}",
    sizes={"context_len": CONTEXT_LENS, "new_tokens": NEW_TOKENS},
    new_tokens_help="ask.new_tokens_help",
    first=FIRST,
    kept=tuple(FIRST),
)


def take_link() -> None:
    """Whoever comes by a link finds that run's prompt and sizes in the boxes."""
    run = page.registry.get(st.query_params.get("run", ""))
    if run is not None and run.settings is not None:
        ask.take(run.settings)


# ---- what a run will take ----------------------------------------------------------------------


def cost_line() -> None:
    """What this choice will take in memory, before it runs; or the sentence why it cannot run."""
    settings, info = ask.chosen(), page.registry.engine.info()
    if settings.dtype == "auto":
        settings = dataclasses.replace(settings, dtype=info.dtype or "bfloat16")
    device = info.device if settings.device == "auto" else settings.device
    on_gpu = (device or "cpu") != "cpu"  # whose memory only the engine can ask
    with page.refusing():
        page.registry.limits.check(settings)
        folder = files.locate(settings.model)
        if folder is None:
            not_here(settings.model)
            return
        spec = files.spec_of(settings.model)
        prompt, context_len = settings.prompts[0], settings.context_len
        tokens = view_ask.num_prompt_tokens(folder, prompt, settings.chat, context_len)
        if spec is None:
            num_weights = grouped(files.num_weights(folder))
            st.caption(say("ask.cost_observed", tokens=grouped(tokens), weights=num_weights))
            return
        line, formula = words.cost(spec, settings, tokens, say)
        st.caption(line, help=formula)
        checks.check(
            spec,
            settings,
            [tokens] * settings.batch,
            None if on_gpu else run_machine.available_bytes(),
        )


@st.fragment(run_every=1.0)
def not_here(model: str) -> None:
    """How far the default model is, until it is here; of another, that it will be fetched."""
    if model != files.DEFAULT_MODEL:
        st.caption(say("ask.cost_unknown"))
        return
    info = page.registry.engine.info()
    if files.is_ready(model):
        st.rerun()
    message = info.problem or info.progress
    share = f" {info.fraction:.0%}" if info.fraction is not None and not info.problem else ""
    st.caption(page.text(message) + share if message else say("ask.preparing"))


# ---- the boxes ---------------------------------------------------------------------------------


def batch_slider(place: DeltaGenerator) -> None:
    place.slider(
        say("ask.batch"),
        1,
        max(page.registry.limits.batch, 2),
        key="batch",
        help=say("ask.batch_help"),
        **KEEP,
    )


def settings_box() -> None:
    """Model, device and how to draw the tokens."""
    _, _, three = view_ask.model(page, num_columns=3)
    three.segmented_control(
        say("ask.cache"),
        ["full", "none"],
        required=True,
        format_func=lambda name: say(f"ask.cache.{name}"),
        key="cache",
        help=say("ask.cache_help"),
        **KEEP,
    )
    one, two, three = st.columns(3)
    one.slider(
        say("ask.temperature"),
        0.0,
        2.0,
        step=0.1,
        key="temperature",
        help=say("ask.temperature_help"),
        **KEEP,
    )
    two.slider(
        say("ask.top_p"),
        0.05,
        1.0,
        step=0.05,
        key="top_p",
        help=say("ask.top_p_help"),
        **KEEP,
    )
    three.number_input(
        say("ask.seed"), 0, 2**31 - 1, step=1, key="seed", help=say("ask.seed_help"), **KEEP
    )
    one, two = st.columns([1, 2])
    one.selectbox(say("ask.chunk"), CHUNK_LENS, key="chunk_len", help=say("ask.chunk_help"), **KEEP)
    two.toggle(say("ask.chat"), key="chat", help=say("ask.chat_help"), **KEEP)


def runs_box() -> None:
    """Recorded runs, open, download, link."""
    ask.files_box(lambda name: say(f"runs.recorded.{name}"))
    if run is None:
        return
    ask.download(run)
    if run.log.started is not None:
        with st.expander(say("runs.about")):
            about(run.log.started)
    st.caption(say("runs.link"), help=say("runs.link_help"))
    st.code(f"{page.address}?run={run.id}", language=None)


def about(started: RunStarted) -> None:
    """Where a run was made, why on this device in this type, which parts were on, and how to make
    it again."""
    machine = started.hardware
    st.caption(plain(f"{machine.name} · {machine.device} · {started.started_at}"))
    for reason in started.reasons:
        st.caption(page.text(reason))
    for text in dict.fromkeys(part.reason.text(page.language) for part in started.parts):
        st.caption(plain(text))
    st.caption(plain(" · ".join(f"{name} {number}" for name, number in started.versions.items())))
    if started.command:
        st.code(started.command[:2000], language="bash", wrap_lines=True)


# ---- the page ----------------------------------------------------------------------------------

ask.first_values(take_link)
run = ask.current("runs.unknown")
over, running = ask.progress(run)
with st.container(key="ask"):
    ask.band(
        running,
        height=92,
        third=batch_slider,
        cost=cost_line,
        boxes=(
            ("ask.settings", ":material/tune:", settings_box),
            ("runs.label", ":material/folder_open:", runs_box),
        ),
        start=("generate", "ask.generate", ":material/play_arrow:"),
        stop="stop",
        chosen=ask.chosen,
    )
with st.container():  # there without a notice too: the view below keeps its place in the page
    page.show_notice()
plays = run is not None and run.id.startswith(view_ask.RUN.id_prefix)
mount.show(run, over=over, language=page.language, autoplay=plays)
if run is not None and over and run.log.started is not None:
    phases = words.phase_table(run.log, say, recorded=run.settings is None)
    if phases is not None:
        with st.container(border=True, key="phases"):
            st.markdown(f"**{say('phases.title')}**")
            none = run.log.started.settings.cache == "none"
            st.caption(say("phases.none" if none else "phases.text"))
            spec = run.log.started.spec
            if spec is not None and (spec.num_parameters or TINY) < TINY:
                st.caption(say("phases.tiny", n=round(spec.num_parameters / 1e6)))
            st.html(phases)
