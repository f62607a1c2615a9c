"""The live page: ask, press one button, watch. What follows the run is drawn by the live view."""

import dataclasses

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from viz_engine.model import files
from viz_engine.model.formats import element_bytes
from viz_engine.model.spec import ModelSpec
from viz_engine.numbers import grouped, mib
from viz_engine.run import checks, cost
from viz_engine.run import machine as run_machine
from viz_engine.run.events import RunSettings, RunStarted
from viz_engine.run.log import RunLog
from viz_engine.server import recorded
from viz_engine.server import registry as server_registry
from viz_engine.server.runs import Run
from viz_engine.text import Message, UserError, plain, t
from viz_engine.view import ask, components
from viz_engine.view.ask import KEEP

# name -> (context to fill up to or None, new tokens)
PRESETS = {"document": (2000, 64), "chat": (None, 96), "chinese": (None, 64), "code": (None, 96)}
CONTEXT_LENS = (0, 128, 256, 512, 1024, 1536, 2000, 3000, 4096, 6000, 8000)
FIRST = {
    **ask.MODEL,
    "cache": "full",
    "batch": 1,
    "chat": True,
    "temperature": 0.0,
    "top_p": 1.0,
    "seed": 0,
    "chunk_len": 256,
}
CHUNK_LENS = (256, 64, 512, 1024, 0)
NEW_TOKENS = (1, 2, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)

language = st.session_state.language
registry = server_registry.registry()
session_id = get_script_run_ctx().session_id


def say(key: str, **params: object) -> str:
    return t(key, language, **params)


def choose_preset() -> None:
    """Put a preset's text and sizes into the boxes."""
    name = st.session_state.preset
    if name is None:
        return
    context_len, new_tokens = PRESETS[name]
    st.session_state.prompt = say(f"preset.{name}.prompt")
    st.session_state.context_len = context_len or 0
    st.session_state.new_tokens = new_tokens


def first_values() -> None:
    """The boxes of a new session hold the first preset, in its language."""
    state = st.session_state
    for key, value in FIRST.items():
        state.setdefault(key, value)
    if "prompt" not in state:
        state.preset = "document"
        choose_preset()
        take_settings(registry.get(st.query_params.get("run", "")))
    elif state.get("preset") and (before := state.preset_language) != language:
        # Its text in the language that was chosen; what the visitor has put there stays.
        if state.prompt == t(f"preset.{state.preset}.prompt", before):
            state.prompt = say(f"preset.{state.preset}.prompt")
    state.preset_language = language


def take_settings(run: Run | None) -> None:
    """Whoever comes by a link finds that run's prompt and sizes in the boxes."""
    if run is None or run.settings is None:
        return
    state, settings = st.session_state, run.settings
    state.preset = None
    state.prompt = settings.prompts[0]
    for name, known in (("context_len", CONTEXT_LENS), ("new_tokens", NEW_TOKENS)):
        value = getattr(settings, name) or 0
        if value in known:
            state[name] = value
    for name in FIRST:
        state[name] = getattr(settings, name)


def settings_chosen() -> RunSettings:
    state = st.session_state
    return RunSettings(
        **ask.model_chosen(""),
        prompts=(state.prompt,),
        cache=state.cache,
        batch=state.batch,
        context_len=state.context_len or None,
        filler=language,
        chat=state.chat,
        new_tokens=state.new_tokens,
        temperature=state.temperature,
        top_p=state.top_p,
        seed=state.seed,
        chunk_len=state.chunk_len,
    )


def submit() -> None:
    """Start a run with what the boxes hold. A refusal is a sentence; what was there stays."""
    try:
        run = registry.submit(settings_chosen(), session_id)
    except UserError as error:
        st.session_state.notice = error.message
        return
    st.session_state.notice = None
    show(run.id)


def stop() -> None:
    registry.cancel(st.session_state.run_id)


def show(run_id: str) -> None:
    """Make a run the one on the page, and its link the page's."""
    st.session_state.run_id = run_id
    st.query_params["run"] = run_id


def open_file() -> None:
    """Take a run from an uploaded file, or say what is wrong with it."""
    upload = st.session_state.upload
    if upload is None:
        return
    run, st.session_state.notice = ask.opened(
        upload, lambda data: registry.add_log(RunLog.read(data)), "runs.broken"
    )
    if run is not None:
        show(run.id)


def current_run() -> tuple[Run | None, bool]:
    """The run to show (the link's, this session's, or a recorded one) and whether it plays."""
    run_id = st.query_params.get("run") or st.session_state.get("run_id")
    names = recorded.names("runs")
    if run_id and run_id.removeprefix(recorded.RUN) in names:
        return recorded.run(registry, run_id.removeprefix(recorded.RUN)), True
    run = registry.get(run_id) if run_id else None
    if run is not None and run.what == "run":
        if st.query_params.get("run") != run.id or st.session_state.get("run_id") != run.id:
            show(run.id)
        return run, False
    if run_id:
        st.session_state.notice = Message(key="runs.unknown")
        st.session_state.run_id = None
        del st.query_params["run"]
    return (recorded.run(registry, names[0]), True) if names else (None, False)


# ---- what the page shows -----------------------------------------------------------------------


def cost_line() -> None:
    """What this choice will take in memory, before it runs; or the sentence why it cannot run."""
    settings, info = settings_chosen(), registry.engine.info()
    if settings.dtype == "auto":
        settings = dataclasses.replace(settings, dtype=info.dtype or "bfloat16")
    device = info.device if settings.device == "auto" else settings.device
    on_gpu = (device or "cpu") != "cpu"  # whose memory only the engine can ask
    try:
        registry.limits.check(settings)
        folder = files.locate(settings.model)
        if folder is None:
            not_here(settings.model)
            return
        spec = files.spec_of(settings.model)
        prompt, context_len = settings.prompts[0], settings.context_len
        tokens = ask.num_prompt_tokens(folder, prompt, settings.chat, context_len)
        if spec is None:
            num_weights = grouped(files.num_weights(folder))
            st.caption(say("ask.cost_observed", tokens=grouped(tokens), weights=num_weights))
            return
        line, formula = predicted_cost(spec, settings, tokens)
        st.caption(line, help=formula)
        checks.check(
            spec,
            settings,
            [tokens] * settings.batch,
            None if on_gpu else run_machine.available_bytes(),
        )
    except UserError as error:
        st.caption(f":orange[{plain(error.message.text(language))}]")


def predicted_cost(spec: ModelSpec, settings: RunSettings, tokens: int) -> tuple[str, str]:
    """The line under the sliders, and its formula with the numbers put in."""
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
        block=cost.BLOCK_LEN,
        row_bytes=grouped(cost.row_bytes(spec, dtype)),
        batch=settings.batch,
        parameters=grouped(spec.num_parameters),
        element_size=element_bytes(dtype),
        available=mib(run_machine.available_bytes()),
        **numbers,
    )
    return f"{line} · :gray-badge[{say('ask.predicted')}]", formula


@st.fragment(run_every=1.0)
def not_here(model: str) -> None:
    """How far the default model is, until it is here; of another, that it will be fetched."""
    if model != files.DEFAULT_MODEL:
        st.caption(say("ask.cost_unknown"))
        return
    info = registry.engine.info()
    if files.is_ready(model):
        st.rerun()
    message = info.problem or info.progress
    share = f" {info.fraction:.0%}" if info.fraction is not None and not info.problem else ""
    st.caption(plain(message.text(language)) + share if message else say("ask.preparing"))


def ask_band(run: Run | None, running: bool) -> None:
    """Prompt and presets left; sizes, cost and the one button right."""
    left, right = st.columns([5, 6], gap="medium")
    with left:
        ask.prompt(say, "", list(PRESETS), lambda name: say(f"preset.{name}"), choose_preset, 92)
    with right:
        third = ask.sizes(say, "", CONTEXT_LENS, NEW_TOKENS, "ask.new_tokens_help")
        third.slider(
            say("ask.batch"),
            1,
            max(registry.limits.batch, 2),
            key="batch",
            help=say("ask.batch_help"),
            **KEEP,
        )
        cost_line()
        with st.container(horizontal=True, horizontal_alignment="right", gap="small"):
            with st.popover(say("ask.settings"), icon=":material/tune:"):
                settings_box()
            with st.popover(say("runs.label"), icon=":material/folder_open:"):
                runs_box(run)
            if running:
                st.button(
                    say("ask.stop"),
                    key="stop",
                    icon=":material/stop:",
                    type="primary",
                    on_click=stop,
                )
            else:
                st.button(
                    say("ask.generate"),
                    key="generate",
                    icon=":material/play_arrow:",
                    type="primary",
                    on_click=submit,
                )


def settings_box() -> None:
    """Model, device and how to draw the tokens."""
    _, _, three = ask.model(registry, say, "", num_columns=3)
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


def runs_box(run: Run | None) -> None:
    """Recorded runs, open, download, link."""
    names = recorded.names("runs")
    if names:
        st.caption(say("runs.recorded"), help=say("runs.recorded_help"))
    ask.recorded(names, lambda name: say(f"runs.recorded.{name}"), recorded.RUN, show)
    st.file_uploader(
        say("runs.open"),
        type=["jsonl"],
        key="upload",
        on_change=open_file,
        help=say("runs.open_help"),
    )
    if run is None:
        return
    ask.download(say, "runs.download", run)
    if run.log.started is not None:
        with st.expander(say("runs.about")):
            about(run.log.started)
    st.caption(say("runs.link"), help=say("runs.link_help"))
    st.code(f"{(st.context.url or '').partition('?')[0]}?run={run.id}", language=None)


def about(started: RunStarted) -> None:
    """Where a run was made, why on this device in this type, which parts were on, and how to make
    it again."""
    machine = started.hardware
    st.caption(plain(f"{machine.name} · {machine.device} · {started.started_at}"))
    for reason in started.reasons:
        st.caption(plain(reason.text(language)))
    for text in dict.fromkeys(part.reason.text(language) for part in started.parts):
        st.caption(plain(text))
    st.caption(plain(" · ".join(f"{name} {number}" for name, number in started.versions.items())))
    if started.command:
        st.code(started.command[:2000], language="bash", wrap_lines=True)


first_values()
run, plays = current_run()
if run is not None and not run.finished and not server_registry.session_alive(run.session_id):
    run.session_id = session_id  # reloaded in mid-run: the new tab may stop it
over = run is None or run.finished  # asked once: it may finish while the page is made
running = not over and run.session_id == session_id
with st.container(key="ask"):
    ask_band(run, running)
with st.container():  # there without a notice too: the view below keeps its place in the page
    if notice := st.session_state.get("notice"):
        st.warning(plain(notice.text(language)), icon=":material/info:")
components.live_view(run, over=over, language=language, autoplay=plays)
