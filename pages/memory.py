"""The memory page: what a model's weights and cache take, what fits, how many it serves.

Everything under the title is one fragment: a box draws it again and leaves the rest alone. The two
main sliders are in `memory_view.mjs`, which paints what they move before Python hears of it.
"""

from pathlib import Path

import streamlit as st

from viz_engine.analysis import memory_account
from viz_engine.memory import deployment, devices, estimate, server_log
from viz_engine.memory import link as memory_link
from viz_engine.memory.capacity import Workload
from viz_engine.memory.deployment import Settings
from viz_engine.memory.estimate import Choice, Estimate
from viz_engine.model import config, formats, hub_config
from viz_engine.model.config import ModelConfig
from viz_engine.numbers import grouped
from viz_engine.run import ceilings, machine
from viz_engine.server import recorded
from viz_engine.server.runs import Run
from viz_engine.text import Message, UserError, plain
from viz_engine.view import ask, charts, markup
from viz_engine.view.ask import KEEP
from viz_engine.view.memory import evidence, figures, frames, mount, words
from viz_engine.view.page import Page, warn

SAME = "same"  # V in the format of K
OWN = "\0own"  # the model of the visitor's own config.json, in the list of names
MAX_PINNED = 3
MAX_UPLOAD_MB = 2  # what config_keys.MAX_CHARS lets through
FIRST_MODEL = "llama-3.1-8b"
FIRST = {
    "model": FIRST_MODEL,
    "context": 8192,
    "sequences": 16,
    "weights": "auto",
    "k": "auto",
    "v": SAME,
    "engine": "vllm",
    "tp": 1,
    "pp": 1,
    "gpu": "NVIDIA H100 80 GB SXM",
    "count": 1,
    "parameters": None,
    "cross": None,
    "section": "curves",
    "image": "png",
    "prompt_len": 2048,
    "output_len": 512,
    "think": 30,
    "rate": 1.0,
}
FIELDS = {  # of Settings -> key in the session
    "context_len": "mem_context",
    "num_sequences": "mem_sequences",
    "kv_format": "mem_k",
    "v_format": "mem_v",
    "weight_format": "mem_weights",
    "tp": "mem_tp",
    "pp": "mem_pp",
    "engine": "mem_engine",
}
OPTIONS = {
    "mem_context": estimate.CONTEXT_LENS,
    "mem_sequences": estimate.SEQUENCES,
    "mem_k": ("auto", *formats.CACHES_LISTED),
    "mem_v": (SAME, *formats.CACHES_LISTED),
    "mem_weights": ("auto", *formats.WEIGHTS),
    "mem_tp": (1, 2, 4, 8, 16, 32),
    "mem_pp": (1, 2, 4, 8, 16),
    "mem_engine": deployment.ENGINES,
    "mem_count": estimate.GPU_COUNTS,
}
LOAD_LENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
PAUSES = (0, 5, 10, 20, 30, 60, 120, 300, 600)
RATES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

page = Page(prefix="mem_")
say, state = page.say, st.session_state


# ---- what is chosen ----------------------------------------------------------------------------


def first_values() -> None:
    """A new session begins with an example, or with what its link names."""
    fresh = "mem_model" not in state
    page.begin(FIRST | {"pinned": [], "moves": 0, "ahead": mount.Ahead()})
    if fresh and any(name in st.query_params for name in memory_link.NAMES):
        take_link()


def take_link() -> None:
    """Take what a link names; say what it names that is not known."""
    keys = {key: FIELDS[name] for key, name in memory_link.LINK.items()}
    keys |= {"model": "mem_model", "gpu": "mem_gpu", "n": "mem_count"}
    offered = {key: OPTIONS[name] for key, name in keys.items() if name in OPTIONS}
    offered |= {"model": tuple(config.preset_table()), "gpu": device_names()}
    found, wrong = memory_link.from_query(dict(st.query_params), offered)
    for key, value in found.items():
        state[keys[key]] = value
    if wrong:
        state.mem_notice = Message(key="mem.error_link", params={"names": ", ".join(wrong)})


def device_names() -> tuple[str, ...]:
    return ("", *(device.name for device in devices.devices()))


def model_chosen() -> tuple[str, ModelConfig]:
    """The chosen model and its name. Raises UserError."""
    if state.mem_model == OWN:
        return state.mem_own
    model = config.preset(state.mem_model)
    return model.name, model


def choice() -> Choice:
    """What the boxes hold. Raises UserError."""
    fields = {name: state[key] for name, key in FIELDS.items()}
    if fields["v_format"] == SAME or state.mem_engine not in deployment.APART:
        fields["v_format"] = None
    _, model = model_chosen()
    if model.num_parameters is None and state.mem_parameters:
        fields["num_parameters"] = int(state.mem_parameters * 1e9)
    if lacks_cross_len(model):
        fields["cross_len"] = state.mem_cross
    found = Choice(
        model=model,
        settings=Settings(**fields),
        device=devices.device(state.mem_gpu) if state.mem_gpu else here(),
        num_devices=state.mem_count,
        load=Workload(
            prompt_len=state.mem_prompt_len,
            output_len=state.mem_output_len,
            think_s=float(state.mem_think),
        ),
    )
    estimate.check(found)
    return found


def here() -> devices.Device:
    """This machine, with what was measured of it for the latency page."""
    return devices.this_machine(ceilings.load(machine.cpu_name(), "cpu"))


def lacks_cross_len(model: ModelConfig) -> bool:
    """Whether layers look at an image or encoder whose length the config does not say."""
    every = (*model.layers, *model.cross_layers)
    return any(layer.kind == "cross" and layer.fixed_len is None for layer in every)


def take_own(text: str | bytes, name: str) -> None:
    """Make a config.json of the visitor's the chosen model. A refusal is a sentence; what was there
    stays."""
    try:
        model = config.read(text, name=name)
    except UserError as error:
        params = {"why": error.message, "model": model_name(state.mem_model)}
        state.mem_notice = Message(key="mem.refused", params=params)
        return
    state.mem_own = (model.name, model)
    state.mem_model = OWN
    state.mem_notice = None
    state.mem_num_read = state.get("mem_num_read", 0) + 1


def read_pasted() -> None:
    take_own(state.mem_paste, "")


def read_upload() -> None:
    if state.mem_upload is not None:
        take_own(state.mem_upload.getvalue(), state.mem_upload.name[:80])


def read_named() -> None:
    with page.noticing():
        if page.registry.limits.models is not None:
            raise UserError("mem.error_hosted")
        text = hub_config.read_text(state.mem_where)
        take_own(text, Path(state.mem_where.strip()).name[:80])


def moved() -> None:
    """A slider rests at another stop. What is no stop of ours is ignored."""
    found = frames.place_of((state.get("mem_view") or {}).get("place"))
    if found is not None:
        state.mem_context, state.mem_sequences, state.mem_moves = found


def pin() -> None:
    """Keep this choice beside the next ones: that at which a slider stands which has just moved."""
    moved()
    if len(state.mem_pinned) >= MAX_PINNED:
        state.mem_notice = Message(key="mem.error_four")
        return
    with page.noticing():
        state.mem_pinned = [*state.mem_pinned, (model_chosen()[0], estimate.make(choice()))]


def unpin() -> None:
    state.mem_pinned = []
    state.mem_notice = None


# ---- the band of boxes -------------------------------------------------------------------------


def ask_band() -> None:
    """The model and its devices; below them how it is kept and served, and what is kept beside."""
    top = st.columns([3.6, 1.9, 3.4, 1.1, 1.1, 1.1], gap="small", vertical_alignment="bottom")
    names = [*config.preset_table(), *([OWN] if "mem_own" in state else [])]
    with top[0]:
        choose("mem_model", "model", options=names, format_func=model_name)
    closed = f"mem-other-{state.get('mem_num_read', 0)}"  # a new one is closed: once a file is read
    with top[1].popover(
        say("mem.other"), icon=":material/upload_file:", width="stretch", key=closed
    ):
        other_model()
    with top[2]:
        choose("mem_gpu", "gpu", options=device_names(), format_func=lambda n: n or say("mem.here"))
    for box, name in zip(top[3:], ("count", "tp", "pp"), strict=True):
        with box:
            choose(f"mem_{name}", name)
    model_caption()
    pinned = bool(state.mem_pinned)
    boxes = st.columns(
        [1.9, 1.6, 1.5, 1.6, 1.5, *([1.3] if pinned else [])],
        gap="small",
        vertical_alignment="bottom",
    )
    with boxes[0]:
        choose("mem_engine", "engine", format_func=engine_name)
    with boxes[1]:
        choose("mem_weights", "weights")
    with boxes[2]:
        choose("mem_k", "k")
    with boxes[3]:
        same = say("mem.same")
        choose(
            "mem_v",
            "v",
            format_func=lambda v: same if v == SAME else v,
            disabled=state.mem_engine not in deployment.APART,
        )
    boxes[4].button(
        say("mem.pin"), key="mem_pin", on_click=pin, help=say("mem.pin_help"), width="stretch"
    )
    if pinned:
        boxes[5].button(say("mem.unpin"), key="mem_unpin", on_click=unpin, width="stretch")


def choose(key: str, name: str, *, options=None, format_func=str, disabled: bool = False) -> None:
    st.selectbox(
        say(f"mem.{name}"),
        OPTIONS[key] if options is None else options,
        key=key,
        format_func=format_func,
        help=say(f"mem.{name}_help"),
        disabled=disabled,
        **KEEP,
    )


def engine_name(name: str) -> str:
    return words.engine_name(name, say)


def model_name(name: str) -> str:
    return say("mem.own", name=state.mem_own[0]) if name == OWN else config.preset(name).name


def other_model() -> None:
    """A config.json of the visitor's own: pasted, opened, named."""
    st.text_area(
        say("mem.paste"),
        key="mem_paste",
        height=120,
        max_chars=None,
        help=say("mem.paste_help"),
        placeholder='{"model_type": "llama", "num_hidden_layers": 32, …}',
    )
    st.button(say("mem.read"), key="mem_read", on_click=read_pasted)
    st.file_uploader(
        say("mem.upload"),
        type=["json"],
        key="mem_upload",
        on_change=read_upload,
        max_upload_size=MAX_UPLOAD_MB,
    )
    if page.registry.limits.models is None:
        st.text_input(
            say("mem.where"), key="mem_where", on_change=read_named, help=say("mem.where_help")
        )


def model_caption() -> None:
    """What the chosen model is, and where each of its sizes comes from."""
    with page.refusing():
        _, model = model_chosen()
        if model.num_parameters is None or lacks_cross_len(model):
            missing_sizes(model)
        shipped = config.preset_table().get(state.mem_model, {})
        text, sources = words.model_caption(model, shipped, say)
        st.caption(text, help=sources)


def missing_sizes(model: ModelConfig) -> None:
    """Boxes for what the config does not say."""
    left, right = st.columns(2)
    if model.num_parameters is None:
        left.number_input(
            say("mem.parameters"),
            0.001,
            1e5,
            step=0.1,
            key="mem_parameters",
            help=say("mem.parameters_help"),
            **KEEP,
        )
    if lacks_cross_len(model):
        right.number_input(
            say("mem.cross"),
            1,
            10**7,
            step=1,
            key="mem_cross",
            help=say("mem.cross_help"),
            **KEEP,
        )


# ---- what the page shows -----------------------------------------------------------------------


def picture(name: str, drawn: figures.Picture) -> None:
    """A chart with its export button and a text for who cannot see it."""
    figure, text = drawn
    charts.show(figure, name, text, image=page.image)


def view(*, holds: bool) -> None:
    """The sliders, and of the last choice that works the bars, the eight numbers, the accidents.
    `holds` says that it is what is chosen now: only then may the sliders paint frames of it."""
    pinned = pinned_bars()
    shown = None
    if "mem_last" in state:
        at_least = reach_of(pinned)
        shown = frames.frame(*state.mem_last, say, page.language, at_least=at_least)
    mount.show(
        shown,
        pinned,
        {axis: state.mem_ahead.key(of) for axis, of in ahead_of().items()} if holds else None,
        at=(state.mem_context, state.mem_sequences),
        moves=state.mem_moves,
        image=state.mem_image,
        theme=page.theme,
        say=say,
        on_move=moved,
        key="mem_view",
    )


def pinned_bars() -> list[frames.Bar]:
    return [frames.bar(name, found, say) for name, found in state.mem_pinned]


def reach_of(bars: list[frames.Bar]) -> int:
    return max(map(frames.reach, bars), default=0)


def ahead_of() -> dict[str, mount.Along]:
    """What the frames along each slider are of."""
    name, found = state.mem_last
    at_least = reach_of(pinned_bars())
    return {
        axis: mount.along(axis, name, found.choice, page.language, at_least) for axis in frames.AXES
    }


def hand_ahead() -> None:
    """The frames of every other stop: after all else, so that nothing waits for them."""
    with st.container(key="mem_ahead"):
        for axis, of in ahead_of().items():
            message = state.mem_ahead.message(of, say)
            mount.hand_over(message, key=f"mem_ahead_{axis}")


def curves(found: Estimate) -> None:
    """The cache against the context and against the sequences, the ceiling as a line."""
    for column, name in zip(st.columns(2), ("context", "sequences"), strict=True):
        with column:
            picture(f"cache-{name}", figures.curves(found, name, say, page.theme))
    st.caption(say("mem.curve.note"))


def layers(found: Estimate) -> None:
    st.html(words.layer_table(found, say, page.language))
    st.caption(say("mem.layers_note"))


def precision(found: Estimate) -> None:
    if not found.choice.knows_weights:
        st.caption(say("mem.weights_missing"))
        return
    st.html(words.precision_table(found, say, page.language))
    st.caption(f"{say('mem.precision_note')} {plain(words.precision_picture(say))}")


def change(found: Estimate) -> None:
    if not found.choice.knows_weights:
        st.caption(say("mem.weights_missing"))
        return
    options = estimate.options(found)
    st.caption(say("mem.change_fits" if found.fits else "mem.change_no"))
    st.html(words.options_table(options, found, say, page.language))
    st.caption(say("mem.change_advice"))


def users(found: Estimate) -> None:
    boxes = st.columns(4, gap="medium")
    for box, key, name, values, show in (
        (boxes[0], "mem_prompt_len", "prompt_len", LOAD_LENS, grouped),
        (boxes[1], "mem_output_len", "output_len", LOAD_LENS, grouped),
        (boxes[2], "mem_think", "think", PAUSES, lambda n: say("mem.seconds", n=n)),
        (boxes[3], "mem_rate", "rate", RATES, lambda n: f"{n:g}"),
    ):
        box.select_slider(
            say(f"mem.{name}"),
            values,
            key=key,
            format_func=show,
            help=say(f"mem.{name}_help"),
            **KEEP,
        )
    shown = words.service_cards(found, estimate.service(found), state.mem_rate, say, page.language)
    st.html(markup.cards(shown))
    st.caption(say("mem.users_note_long"))


def device_table(found: Estimate) -> None:
    st.html(words.device_table(found, devices.devices(), say))
    st.caption(say("mem.devices_note"))


def link_of(found: Estimate) -> dict[str, str]:
    """The parameters of the page's address: a config.json of the visitor's own is not in it."""
    query = memory_link.to_query(state.mem_model, state.mem_gpu, found.choice)
    return {key: value for key, value in query.items() if value != OWN}


def keep_address(found: Estimate) -> None:
    """Make the page's address that of the choice, so that a reload brings it back."""
    asked = st.query_params.to_dict()
    others = {key: value for key, value in asked.items() if key not in memory_link.NAMES}
    if asked != (query := others | link_of(found)):
        st.query_params.from_dict(query)  # all at once: each change is a step of the browser's Back


def share(found: Estimate) -> None:
    """The link, the numbers as a table, and what the charts' buttons save."""
    st.caption(say("mem.link"), help=say("mem.link_help"))
    if state.mem_model == OWN:
        st.caption(f":orange[{say('mem.link_own')}]")
    st.code(f"{page.address}?{memory_link.address(link_of(found))}", language=None)
    one, two = st.columns(2)
    with one:
        table = memory_link.to_csv([(model_chosen()[0], found), *state.mem_pinned])
        ask.csv_button(say("mem.csv"), table, "memory")
    with two:
        ask.segments(
            page, "image", say("mem.image"), ask.IMAGES, str.upper, help=say("mem.image_help")
        )


# ---- predicted and measured --------------------------------------------------------------------


def runs_here() -> dict[str, tuple[Run, bool]]:
    """Runs to look at, by their label: those of this tab, and those that ship."""
    found = {}
    for run in page.registry.runs_of(page.session_id, state.get("run_id")):
        settings = run.log.started.settings
        tokens = grouped(max(run.log.num_rows or [0]))
        label = say("mem.run_yours", tokens=tokens, dtype=settings.dtype)
        found[f"{label} · {run.id[:4]}"] = (run, False)
    for name in recorded.names("runs"):
        found[say(f"runs.recorded.{name}")] = (recorded.run(page.registry, name), True)
    return found


def measured(_: Estimate) -> None:
    """A real run's bytes beside the prediction, and its process as it really grew."""
    runs = runs_here()
    if not runs:
        st.caption(say("mem.run_none"))
        return
    name = st.selectbox(say("mem.run"), list(runs), help=say("mem.run_help"), key="mem_run")
    run, shipped = runs[name]
    started = run.log.started
    st.caption(
        plain(
            say(
                "mem.run_where",
                model=started.settings.model,
                dtype=started.settings.dtype,
                device=started.hardware.device,
                machine=started.hardware.name,
                when=started.started_at,
            )
        )
    )
    try:
        found = memory_account.account(run.log)
    except ValueError:
        st.caption(say("mem.run_unknown"))
        return
    st.html(markup.cards(evidence.account_cards(found, say, recorded=shipped)))
    picture("measured", figures.run_memory(run.log, found, say, page.theme))
    st.caption(say("mem.rest_text"))


def log(_: Estimate) -> None:
    """A server's start-up log: each capacity number recognised and set beside ours."""
    text = st.text_area(say("mem.log"), key="mem_log", height=140, help=say("mem.log_help"), **KEEP)
    if not text.strip():
        return
    name, model = model_chosen()
    try:
        found = server_log.read(text)
        lines = server_log.compare(found, model)
    except UserError as error:
        warn(page.text(error.message))
        return
    said = ", ".join(f"{key} = {value}" for key, value in found.settings.items())
    st.caption(
        plain(
            say(
                "mem.log_found",
                engine=engine_name(found.engine),
                num=len(lines),
                settings=said[:400] or say("mem.log_nothing_else"),
                model=name,
            )
        )
    )
    st.html(evidence.log_table(lines, say, page.language))
    st.caption(say("mem.log_note"))


SHOW = {
    "curves": curves,
    "layers": layers,
    "precision": precision,
    "change": change,
    "users": users,
    "measured": measured,
    "log": log,
    "devices": device_table,
    "share": share,
}


@st.fragment
def everything() -> None:
    with st.container(key="ask"):
        ask_band()
    page.show_notice()
    holds = True
    try:
        state.mem_last = (model_chosen()[0], estimate.make(choice()))
    except UserError as error:  # what was there stays, and says so
        holds = False
        told = error.message.text(page.language)
        if "mem_last" in state:
            last = words.choice_line(*state.mem_last, say)
            told = f"{told} {say('mem.last_choice', choice=last)}"
        warn(plain(told))
    view(holds=holds)
    if "mem_last" not in state:
        return
    name, found = state.mem_last
    keep_address(found)
    if state.mem_pinned:
        st.html(words.compare_table([(name, found), *state.mem_pinned], say))
    section = ask.segments(
        page,
        "section",
        say("mem.section"),
        list(SHOW),
        lambda name: say(f"mem.section.{name}"),
        label_visibility="collapsed",
    )
    SHOW[section](found)
    if holds:
        hand_ahead()


first_values()
everything()
