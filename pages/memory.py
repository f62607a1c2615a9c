"""The memory page: what a model's weights and cache take, what fits, how many it serves.

Everything under the title is one fragment: a box draws it again and leaves the rest alone. The two
main sliders are in `memory_view.mjs`, which paints what they move before Python hears of it.
"""

import streamlit as st

from viz_engine.analysis import memory_account
from viz_engine.memory import devices, estimate, log_comparison, server_log
from viz_engine.memory import link as memory_link
from viz_engine.memory import service as memory_service
from viz_engine.memory.estimate import Estimate
from viz_engine.memory.lengths import MAX_TOKENS
from viz_engine.numbers import grouped
from viz_engine.server import recorded
from viz_engine.server.runs import Run
from viz_engine.text import UserError, plain
from viz_engine.view import ask, charts, markup
from viz_engine.view.ask import KEEP
from viz_engine.view.memory import evidence, figures, frames, mount, tables, users, words
from viz_engine.view.memory.ask import LENGTHS, OWN, DeploymentAsk
from viz_engine.view.page import Page, warn

page = Page(prefix="mem_")
say, state = page.say, st.session_state
boxes = DeploymentAsk(page=page)


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
        on_move=boxes.moved,
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
    st.html(tables.layer_table(found, say, page.language))
    st.caption(say("mem.layers_note"))


def precision(found: Estimate) -> None:
    if not found.choice.knows_weights:
        st.caption(say("mem.weights_missing"))
        return
    st.html(tables.precision_table(found, say, page.language))
    st.caption(f"{say('mem.precision_note')} {plain(tables.precision_picture(say))}")
    settings = found.choice.settings
    if settings.engine == "vllm" or settings.tp * settings.pp > 1:
        st.caption(say("mem.precision_each"))


def change(found: Estimate) -> None:
    if not found.choice.knows_weights:
        st.caption(say("mem.weights_missing"))
        return
    options = estimate.options(found)
    st.caption(say("mem.change_fits" if found.fits else "mem.change_no"))
    st.html(tables.options_table(options, found, say, page.language))
    st.caption(say("mem.change_advice"))


def users_section(found: Estimate) -> None:
    load_boxes()
    service = memory_service.of(found)
    shown = users.service_cards(found, service, state.mem_rate, say, page.language)
    if state.mem_price:
        unit = plain(state.mem_price_unit)
        shown += users.cost_cards(found, service, state.mem_price, unit, say)
    st.html(markup.cards(shown))
    lengths = found.choice.load.lengths
    left, right = st.columns([5, 4], gap="medium")
    with left:
        drawn = users.speed_chart(found, service, say, page.theme)
        if drawn is not None:
            picture("speed", drawn)
    with right:
        if lengths.num > 1:
            held = grouped(memory_service.held_len(found.choice))
            st.html(users.lengths_table(lengths, say))
            st.caption(say("mem.lengths.note", num=grouped(lengths.num), held=held))
        st.caption(say("mem.users_note_long"))


def load_boxes() -> None:
    """What people ask, how long their requests are, what a GPU costs."""
    one, two, three, four = st.columns(4, gap="medium")
    averages = state.mem_lengths != "own"
    for box, name in ((one, "prompt_len"), (two, "output_len")):
        box.number_input(
            say(f"mem.{name}"),
            1,
            MAX_TOKENS,
            step=1,
            key=f"mem_{name}",
            help=say(f"mem.{name}_help"),
            disabled=not averages,
            **KEEP,
        )
    for box, name, least, most in ((three, "think", 0.0, 1e6), (four, "rate", 0.001, 1e6)):
        box.number_input(
            say(f"mem.{name}"), least, most, key=f"mem_{name}", help=say(f"mem.{name}_help"), **KEEP
        )
    one, two, three = st.columns([4, 2, 2], gap="medium")
    with one:
        ask.segments(
            page,
            "lengths",
            say("mem.lengths"),
            LENGTHS,
            lambda name: say(f"mem.lengths.{name}"),
            help=say("mem.lengths_help"),
        )
        if state.mem_lengths == "own":
            st.file_uploader(
                say("mem.lengths.upload"),
                type=["csv", "txt"],
                key="mem_pairs_file",
                on_change=boxes.read_pairs,
                help=say("mem.lengths.upload_help"),
                max_upload_size=2,
            )
            if state.get("mem_pairs") is None:
                st.caption(say("mem.lengths.none"))
    two.number_input(
        say("mem.price"), 0.0, 1e6, step=0.1, key="mem_price", help=say("mem.price_help"), **KEEP
    )
    three.text_input(say("mem.price_unit"), key="mem_price_unit", max_chars=8, **KEEP)


def device_table(found: Estimate) -> None:
    st.html(tables.device_table(found, devices.devices(), say))
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
        table = memory_link.to_csv([(boxes.model()[0], found), *state.mem_pinned])
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
    st.caption(plain(evidence.where(run.log.started, say)))
    try:
        found = memory_account.account(run.log)
    except ValueError:
        st.caption(say("mem.run_unknown"))
        return
    st.html(markup.cards(evidence.account_cards(found, say, recorded=shipped)))
    picture("measured", figures.run_memory(run.log, found, say, page.theme))
    st.caption(say("mem.rest_text"))


def log(shown: Estimate) -> None:
    """A server's start-up log: each capacity number recognised and set beside ours."""
    text = st.text_area(say("mem.log"), key="mem_log", height=140, help=say("mem.log_help"), **KEEP)
    if not text.strip():
        return
    name, model = boxes.model()
    try:
        found = server_log.read(text)
        choices = log_comparison.chosen(shown.choice.settings, found.engine)
        lines = log_comparison.compare(found, model, choices)
    except UserError as error:
        warn(page.text(error.message))
        return
    for number, start in enumerate(found.starts):
        own = [line for line in lines if line.start == number]
        if len(found.starts) > 1:
            st.markdown(f"**{say('mem.log_start', number=number + 1, of=len(found.starts))}**")
        st.caption(plain(evidence.log_line(found, start, own, name, say)))
        st.html(evidence.log_table(own, say, page.language))
    st.caption(say("mem.log_note"))


SHOW = {
    "curves": curves,
    "layers": layers,
    "precision": precision,
    "change": change,
    "users": users_section,
    "measured": measured,
    "log": log,
    "devices": device_table,
    "share": share,
}


@st.fragment
def everything() -> None:
    with st.container(key="ask"):
        boxes.band()
    page.show_notice()
    holds = True
    try:
        state.mem_last = (boxes.model()[0], estimate.make(boxes.choice()))
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
        st.html(tables.compare_table([(name, found), *state.mem_pinned], say))
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


boxes.first_values()
page.begin({"ahead": mount.Ahead()})
everything()
