"""The race: the same run without a cache against one with it. The lanes are drawn by race_view."""

import base64
import dataclasses
import json

import numpy as np
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from viz_engine.analysis import race
from viz_engine.model import files
from viz_engine.model.spec import ModelSpec
from viz_engine.numbers import flops_text, grouped, scientific
from viz_engine.run import checks, cost, metrics
from viz_engine.run.codec import settings_from_dict, settings_to_dict
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import ExperimentLog, LogitsCompared, PrefixChanged
from viz_engine.run.log import RunLog
from viz_engine.run.race import MAX_REPEATS, RaceSettings
from viz_engine.server import recorded
from viz_engine.server import registry as server_registry
from viz_engine.server.runs import Run
from viz_engine.text import Message, UserError, plain, t
from viz_engine.view import ask as view_ask
from viz_engine.view import charts, components
from viz_engine.view.ask import KEEP
from viz_engine.view.race import charts as race_charts

# name -> (context to fill up to or None, new tokens, chat format)
PRESETS = {"document": (256, 48, True), "chat": (None, 48, True), "one_token": (None, 128, False)}
CONTEXT_LENS = (0, 64, 128, 256, 512, 1024, 2000, 4096)
NEW_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256)
PANELS = ("gain", "proof", "growth", "attention", "prefix")
IMAGES = ("png", "svg")
FIRST = {
    **{f"race_{name}": value for name, value in view_ask.MODEL.items()},
    "race_repeats": 2,
    "race_layer": 10,
    "race_head": 4,
    "race_panel": "gain",
    "race_image": "png",
}
MAX_LINK_CHARS = 6000  # of the settings in a link: browsers and proxies cut longer ones
ONE_TOKEN = "2-one-token"  # the recorded race whose times stand beside the growth

language = st.session_state.language
registry = server_registry.registry()
session_id = get_script_run_ctx().session_id
colours = charts.palette(st.context.theme.type)


def say(key: str, **params: object) -> str:
    return t(key, language, **params)


# ---- what is asked -------------------------------------------------------------------------------


def choose_preset() -> None:
    """Put a preset's text and sizes into the boxes."""
    name = st.session_state.race_preset
    if name is None:
        return
    state = st.session_state
    state.race_context_len, state.race_new_tokens, state.race_chat = PRESETS[name]
    state.race_context_len = state.race_context_len or 0
    state.race_prompt = say(f"race.preset.{name}.prompt")


def first_values() -> None:
    """The boxes of a new session: the link's settings, or the first preset's."""
    state = st.session_state
    for key, value in FIRST.items():
        state.setdefault(key, value)
    if "race_prompt" not in state:
        state.race_preset = "document"
        choose_preset()
        take_link()
    elif state.get("race_preset") and state.get("race_language") != language:
        choose_preset()
    state.race_language = language


def take_link() -> None:
    """Fill the boxes with the settings that a link carries."""
    state = st.session_state
    panel = st.query_params.get("panel")
    if panel in PANELS:
        state.race_panel = panel
    packed = st.query_params.get("ask")
    if not packed:
        return
    try:
        data = json.loads(base64.urlsafe_b64decode(packed[:MAX_LINK_CHARS].encode() + b"=="))
        settings = settings_from_dict(data, RaceSettings)
        checks.check_settings(settings.run)
        prompt = settings.run.prompts[0]
    except (UserError, ValueError, TypeError, AttributeError, IndexError):
        state.race_notice = Message(key="race.link_broken")
        return
    state.race_preset = None
    state.race_prompt = prompt
    known = (("race_context_len", settings.run.context_len or 0, CONTEXT_LENS),)
    known += (("race_new_tokens", settings.run.new_tokens, NEW_TOKENS),)
    for key, value, choices in known:
        if value in choices:
            state[key] = value
    state.race_chat, state.race_model = settings.run.chat, settings.run.model
    state.race_device = settings.run.device
    state.race_dtype = settings.run.dtype if settings.run.dtype in view_ask.DTYPES else "auto"
    state.race_repeats = min(max(settings.repeats, 1), MAX_REPEATS)
    state.race_layer, state.race_head = settings.layer or 0, settings.query_head


def packed(settings: RaceSettings) -> str | None:
    """Settings for a link; None where they are too long for one."""
    text = json.dumps(settings_to_dict(settings), separators=(",", ":"))
    made = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return made if len(made) <= MAX_LINK_CHARS else None


def settings_chosen() -> RaceSettings:
    state = st.session_state
    run = RunSettings(
        **view_ask.model_chosen("race_"),
        prompts=(state.race_prompt,),
        context_len=state.race_context_len or None,
        filler=language,
        chat=state.race_chat,
        new_tokens=state.race_new_tokens,
    )
    return RaceSettings(
        run=run,
        repeats=state.race_repeats,
        layer=int(state.race_layer),
        query_head=int(state.race_head),
    )


def submit() -> None:
    """Start a race with what the boxes hold. A refusal is a sentence; what was there stays."""
    try:
        run = registry.submit(settings_chosen(), session_id)
    except UserError as error:
        st.session_state.race_notice = error.message
        return
    st.session_state.race_notice = None
    show(run.id)


def stop() -> None:
    registry.cancel(st.session_state.race_id)


def show(race_id: str) -> None:
    st.session_state.race_id = race_id


def open_file() -> None:
    """Take a race from an uploaded file, or say what is wrong with it."""
    upload = st.session_state.race_upload
    if upload is None:
        return
    run, st.session_state.race_notice = view_ask.opened(
        upload, lambda data: registry.add_log(ExperimentLog.read(data, "race")), "race.broken"
    )
    if run is not None:
        show(run.id)


def current_race() -> tuple[Run | None, bool]:
    """The race to show (this session's, the link's, or a recorded one) and whether it plays."""
    state = st.session_state
    race_id = state.get("race_id") or st.query_params.get("race")
    names = recorded.names("races")
    if race_id and race_id.removeprefix(recorded.RACE) in names:
        show(race_id)
        return recorded.race(registry, race_id.removeprefix(recorded.RACE)), True
    run = registry.get(race_id) if race_id else None
    if run is not None and run.what == "race":
        show(race_id)
        return run, run.settings is None  # a file plays from its start
    if race_id:
        asked = "race.unknown_settings" if st.query_params.get("ask") else "race.unknown"
        state.race_notice = Message(key=asked)
        state.race_id = None
    return (recorded.race(registry, names[0]), True) if names else (None, False)


def keep_link(run: Run | None) -> None:
    """The page's address holds the race, its settings and the view."""
    state, params = st.session_state, {}
    if run is not None:
        params["race"] = run.id
        settings = run.settings or (run.log.head and run.log.settings)
        if settings and (ask := packed(settings)):
            params["ask"] = ask
    params["mode"] = state.get("race_mode", "clock")
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
    settings = settings_chosen()
    try:
        registry.limits.check(settings)
        folder = files.locate(settings.run.model)
        spec = files.spec_of(settings.run.model) if folder is not None else None
        if spec is None:
            st.caption(say("race.cost_unknown"))
            return
        run = settings.run
        prompt_len = view_ask.num_prompt_tokens(folder, run.prompts[0], run.chat, run.context_len)
        dtype = registry.engine.info().dtype or "bfloat16" if run.dtype == "auto" else run.dtype
        run = dataclasses.replace(run, dtype=dtype, cache="none")
        checks.check(spec, run, [prompt_len])
        checks.check_race(settings, spec.num_layers, spec.num_query_heads)
        flops = {c: lane_flops(spec, dtype, prompt_len, run.new_tokens, c) for c in race.CACHES}
        text = say(
            "race.cost",
            tokens=grouped(prompt_len),
            new_tokens=run.new_tokens,
            none=flops_text(flops["none"]),
            full=flops_text(flops["full"]),
            ratio=f"{flops['none'] / flops['full']:.1f}",
        )
        st.caption(
            f"{text}{about_s(shown, spec, flops, settings.repeats)} "
            f"· :gray-badge[{say('ask.predicted')}]",
            help=say("race.cost_help"),
        )
    except UserError as error:
        st.caption(f":orange[{plain(error.message.text(language))}]")


def about_s(
    shown: ExperimentLog | None, spec: ModelSpec, flops: dict[str, int], repeats: int
) -> str:
    """About how long it takes at the speed of the race on the page, which may be another
    machine's; nothing where that one is too short to tell."""
    seconds = shown and race.seconds_at(shown, spec, flops)
    if not seconds:
        return ""
    seconds *= repeats
    key = "race.cost_time" if seconds >= 10 else "race.cost_short"
    return " · " + say(key, seconds=f"{seconds:.0f}")


def lane_flops(spec: ModelSpec, dtype: str, prompt_len: int, new_tokens: int, cache: str) -> int:
    """FLOPs of a lane: the prompt, then a step a token."""
    cached = cache != "none"
    total = 0
    for columns in range(prompt_len, prompt_len + new_tokens):
        num_new = 1 if cached and columns > prompt_len else columns
        total += cost.step(
            spec,
            dtype,
            batch=1,
            num_new=num_new,
            num_columns=columns,
            prompt_columns=prompt_len,
            cached=cached,
            chunk_len=0,
        ).flops
    return total


def ask_band(run: Run | None, running: bool) -> None:
    """Prompt and presets left; sizes, cost and the one button right."""
    left, right = st.columns([5, 6], gap="medium")
    with left:
        view_ask.prompt(
            say, "race_", list(PRESETS), lambda name: say(f"race.preset.{name}"), choose_preset, 80
        )
    with right:
        third = view_ask.sizes(say, "race_", CONTEXT_LENS, NEW_TOKENS, "race.new_tokens_help")
        third.select_slider(
            say("race.repeats"),
            range(1, MAX_REPEATS + 1),
            key="race_repeats",
            help=say("race.repeats_help"),
            **KEEP,
        )
        cost_line(run.log if run is not None and run.finished else None)
        with st.container(horizontal=True, horizontal_alignment="right", gap="small"):
            with st.popover(say("ask.settings"), icon=":material/tune:"):
                settings_box()
            with st.popover(say("race.races"), icon=":material/folder_open:"):
                races_box(run)
            button = {"type": "primary"}
            if running:
                label, icon = say("ask.stop"), ":material/stop:"
                st.button(label, key="race_stop", icon=icon, on_click=stop, **button)
            else:
                label, icon = say("race.start"), ":material/flag:"
                st.button(label, key="race_start", icon=icon, on_click=submit, **button)


def settings_box() -> None:
    """Model, device, and whose attention is looked at."""
    one, two = view_ask.model(registry, say, "race_")
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


def races_box(run: Run | None) -> None:
    """Recorded races, open, download, link."""
    names = recorded.names("races")
    if names:
        st.caption(say("race.recorded"), help=say("race.recorded_help"))
    view_ask.recorded(names, lambda name: say(f"race.recorded.{name}"), recorded.RACE, show)
    st.file_uploader(
        say("race.open"),
        type=["jsonl"],
        key="race_upload",
        on_change=open_file,
        help=say("race.open_help"),
    )
    if run is None or not run.finished:
        return
    view_ask.download(say, "race.download", run)
    st.caption(say("race.link"), help=say("race.link_help"))
    link = "&".join(f"{key}={value}" for key, value in st.query_params.items())
    st.code(f"{(st.context.url or '').partition('?')[0]}?{link}", language=None, wrap_lines=True)
    if run.log.head is not None and run.log.head.command:
        st.code(run.log.head.command[:2000], language="bash", wrap_lines=True)


# ---- the panels under the lanes ------------------------------------------------------------------


def figure(made: object, name: str) -> None:
    """A chart with the button that saves it in the format chosen."""
    config = charts.config(f"second-token-{name}", image=st.session_state.race_image)
    st.plotly_chart(made, key=f"race-{name}", theme=None, config=config)


def words(*keys: str) -> dict[str, str]:
    """Strings of the charts: `race.chart.<key>` by key, and the lanes' names."""
    lanes = {"none": say("race.lane.none"), "full": say("race.lane.full")}
    return lanes | {key: say(f"race.figure.{key}") for key in keys}


def panels(log: ExperimentLog) -> None:
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        st.segmented_control(
            say("race.panel"),
            PANELS,
            required=True,
            format_func=lambda name: say(f"race.panel.{name}"),
            key="race_panel",
            label_visibility="collapsed",
            **KEEP,
        )
        st.segmented_control(
            say("race.image"),
            IMAGES,
            required=True,
            format_func=str.upper,
            key="race_image",
            help=say("race.image_help"),
            label_visibility="collapsed",
            **KEEP,
        )
        st.download_button(
            say("race.csv"),
            data=lambda: race.csv_text(log),
            file_name="second-token-race.csv",
            mime="text/csv",
            icon=":material/download:",
            on_click="ignore",
            help=say("race.csv_help"),
        )
    chosen = {
        "gain": gain_panel,
        "proof": proof_panel,
        "growth": growth_panel,
        "attention": attention_panel,
        "prefix": prefix_panel,
    }
    chosen[st.session_state.race_panel](log)


def gain_panel(log: ExperimentLog) -> None:
    """From which token on the cache pays, and that it does nothing for the first."""
    found = race.ratios(log)
    if not found or None in found:
        st.info(say("race.needs_both"))
        return
    costs = {cache: race.token_costs(race.shown(log, cache)) for cache in race.CACHES}
    flops = [
        race.ratio(*(race.so_far(costs[cache], k).flops for cache in race.CACHES))
        for k in range(1, len(found) + 1)
    ]
    start, last = race.gain_from(log), found[-1]
    params = {"n": start, "most": len(found), "ratio": f"{last.median:.1f}", "num": last.num}
    key = "race.gain.from" if last.num > 1 else "race.gain.from_once"
    st.markdown(say(key if start else "race.gain.never", **params))
    left, right = st.columns([3, 2], gap="medium")
    with left:
        ratios = [(spread.low, spread.median, spread.high) for spread in found]
        keys = ("spread", "time", "flops", "no_gain")
        made = race_charts.race_gain(
            ratios,
            flops,
            race.NO_GAIN,
            start,
            words(*keys) | {"x": say("race.figure.written"), "y": say("race.figure.ratio")},
            colours,
        )
        figure(made, "gain")
        st.caption(say("race.gain.note") + " " + tiny_text(log))
    with right:
        times = {cache: race.times_ns(log, cache, 1) for cache in race.CACHES}
        bars = {c: (s.low / 1e9, s.median / 1e9, s.high / 1e9) for c, s in times.items()}
        x = {"x": say("race.figure.ttft")}
        figure(race_charts.race_ttft(bars, words() | x, colours), "ttft")
        apart = times["none"].low > times["full"].high or times["full"].low > times["none"].high
        key = "race.gain.ttft_apart" if apart else "race.gain.ttft_same"
        st.caption(say(key, prompt=prompt_len(log), num=times["none"].num))


def tiny_text(log: ExperimentLog) -> str:
    """Where the gain begins with a prompt of one token, from the shipped race."""
    started = log.started
    tiny = recorded_one_token(started.spec)
    if tiny is None or tiny is log or started.prompt_columns == 1:
        return ""
    found, one = race.ratios(tiny), tiny.started
    if not found or None in found:
        return ""
    params = {f"r{k}": f"{found[k - 1].median:.1f}" for k in (1, 2, 8) if k <= len(found)}
    params |= {"n": race.gain_from(tiny), "most": len(found), "last": f"{found[-1].median:.1f}"}
    params |= {"dtype": one.settings.dtype, "machine": plain(one.hardware.name)}
    return say("race.gain.tiny", date=one.started_at[:10], **params)


def prompt_len(log: ExperimentLog) -> str:
    return grouped(log.started.prompt_columns)


def proof_panel(log: ExperimentLog) -> None:
    """Both lanes write the same: the largest logit gap of each token."""
    compared = log.finding(LogitsCompared)
    if compared is None or not compared.gaps:
        st.info(say("race.needs_both"))
        return
    dtype = log.started.settings.dtype
    at = compared.first_difference
    params = {
        "n": len(compared.gaps),
        "gap": f"{max(compared.gaps):.2g}",
        "largest": f"{compared.largest_logit:.3g}",
        "dtype": dtype,
    }
    if at is None:
        st.markdown(say("race.proof.same", **params))
    else:
        margin = f"{compared.margins[at]:.2g}"
        gap = f"{compared.gaps[at]:.2g}"
        text = say("race.proof.differs", **params | {"at": at + 1, "margin": margin, "here": gap})
        st.warning(text, icon=":material/alt_route:")
    keys = ("gap", "zero", "margin", "differs")
    axes = {"x": say("race.figure.token"), "y": say("race.figure.logits")}
    made = race_charts.race_gap(compared.gaps, compared.margins, at, words(*keys) | axes, colours)
    figure(made, "proof")
    st.caption(say("race.proof.float32" if dtype == "float32" else "race.proof.half"))


def growth_of(spec: ModelSpec, cached: bool) -> list[tuple[int, int, int]]:
    lengths = race.lengths(spec.max_context_len)
    found = race.growth(spec, lengths, cached=cached)
    return [(one.num_tokens, one.linear, one.attention) for one in found]


def growth_panel(log: ExperimentLog) -> None:
    """How the work grows with the length, predicted; measured times of a one-token race beside."""
    started = log.started
    spec = started.spec
    if spec is None:
        st.info(say("race.growth.no_formula", model_type=plain(started.settings.model)))
        return
    try:
        lanes = {cache: growth_of(spec, cache == "full") for cache in race.CACHES}
        laws = {cache: race.growth_law(spec, cached=cache == "full") for cache in race.CACHES}
    except (ValueError, KeyError):
        st.info(say("race.growth.no_formula", model_type=spec.model_type))
        return
    from_one = log if started.prompt_columns == 1 else recorded_one_token(spec)
    measured = {}
    for cache in race.CACHES:
        run = from_one and race.shown(from_one, cache)
        if run:
            measured[cache] = measured_times(run)
    params = {
        "a": scientific(laws["none"].a),
        "b": scientific(laws["none"].b),
        "c": scientific(laws["full"].a),
        "d": scientific(laws["full"].b),
        "cross_none": grouped(laws["none"].crossing),
        "cross_full": grouped(laws["full"].crossing),
        "p": exponent_text(lanes["none"]),
        "q": exponent_text(lanes["full"]),
    }
    st.markdown(say("race.growth.text", **params))
    keys = ("total", "linear", "attention", "time_measured", "tokens", "crossing")
    text = words(*keys)
    text |= {"time": text["time_measured"], "x": say("race.figure.written")}
    text |= {"y": say("race.figure.flops_axis"), "y2": say("race.figure.seconds")}
    crossings = {cache: law.crossing for cache, law in laws.items()}
    figure(race_charts.race_growth(lanes, crossings, measured, text, colours), "growth")
    st.caption(say("race.growth.help"), help=say("race.growth.formula"))
    if measured:
        machine = race.shown(from_one, "full").started
        source = "race.growth.recorded" if from_one is not log else "race.growth.measured"
        day = machine.started_at[:10]
        named = {"machine": plain(machine.hardware.name), "dtype": machine.settings.dtype}
        st.caption(say(source, date=day, **named))


def exponent_text(points: list[tuple[int, int, int]]) -> str:
    return f"{race.exponent([n for n, _, _ in points], [a for _, a, _ in points]):.2f}"


def measured_times(run: RunLog) -> list[tuple[int, float]]:
    """(tokens, seconds to the last of them) of a one-token race: about eight points."""
    steps = metrics.token_steps(run)
    wanted = sorted({max(1, round(len(steps) / 2**i)) for i in range(8)})
    start = run.started.accepted_ns
    return [(n, (steps[n - 1].end_ns - start) / 1e9) for n in wanted]


def recorded_one_token(spec: ModelSpec | None) -> ExperimentLog | None:
    """The shipped race from one token, where it is of this model; its type may be another."""
    if ONE_TOKEN not in recorded.names("races"):
        return None
    log = recorded.race(registry, ONE_TOKEN).log
    return log if log.started.spec == spec else None


def attention_panel(log: ExperimentLog) -> None:
    """Why only K and V are kept: the rows of one head's attention at step n and n + 1."""
    looks = {cache: log.runs({"cache": cache}, "look") for cache in race.CACHES}
    samples = {
        cache: [e for e in runs[0] if e.kind == "attention_sample"] if runs else []
        for cache, runs in looks.items()
    }
    if any(len(found) < 2 for found in samples.values()):
        st.info(say("race.attention.none"))
        return
    started = looks["none"][0].started
    written = [text for step in looks["none"][0].steps for text in step.token_texts[0]]
    texts = [*started.prompt_texts[0], *written]
    squares, rows = samples["none"], [sample.weights[0] for sample in samples["full"]]
    first = squares[0].first_query
    height = len(squares[1].weights) + squares[1].first_query - first
    empty = [[None] * len(rows[1])] * (height - 2)
    older = [[None] * len(rows[1])]
    titles = [say(f"race.attention.title.{i}") for i in range(4)]
    panels_shown = [
        (titles[0], first, padded(squares[0].weights, 0, height)),
        (titles[1], first, padded(squares[1].weights, squares[1].first_query - first, height)),
        (titles[2], first, [*empty, list(rows[0]), *older]),
        (titles[3], first, [*empty, *older, list(rows[1])]),
    ]
    params = {"layer": squares[0].layer, "head": squares[0].query_head, "n": len(rows[0])}
    st.markdown(say("race.attention.text", **params))
    text = words("query", "key")
    figure(race_charts.race_attention(panels_shown, texts, text, colours), "attention")
    st.caption(say("race.attention.note", kept=len(squares[0].weights)))


def padded(rows: object, above: int, height: int) -> list[list[float | None]]:
    """Rows with empty ones above and below, so that the same row of two pictures is level."""
    made = [[None]] * above + [list(row) for row in rows]
    return made + [[None]] * (height - len(made))


def prefix_panel(log: ExperimentLog) -> None:
    """Which rows of K move when the prompt's first token is another one."""
    changed = log.finding(PrefixChanged)
    if changed is None:
        st.info(say("race.prefix.none"))
        return
    levels = np.frombuffer(changed.changes, np.uint8).reshape(changed.num_rows, changed.num_layers)
    moved = np.where(levels > 0, 2.0 ** ((levels.astype(float) - 128) / 12), 0.0)
    above = moved[1:, 1:]
    params = {
        "before": plain(changed.before),
        "after": plain(changed.after),
        "same": int((moved[1:, 0] == 0).sum()),
        "rows": max(0, changed.num_rows - 1),
        "moved": f"{float((above > 0).mean()) if above.size else 0:.0%}",
    }
    st.markdown(say("race.prefix.text", **params))
    texts = log.started.prompt_texts[0]
    figure(
        race_charts.race_prefix(moved.tolist(), texts, words("moved", "row", "layer"), colours),
        "prefix",
    )
    st.caption(say("race.prefix.note"))


first_values()
run, plays = current_race()
if run is not None and not run.finished and not server_registry.session_alive(run.session_id):
    run.session_id = session_id  # reloaded in mid-race: the new tab may stop it
over = run is None or run.finished  # asked once: it may finish while the page is made
running = not over and run.session_id == session_id
mode = (st.session_state.get("race_view") or {}).get("mode") or st.query_params.get("mode")
st.session_state.race_mode = mode if mode in ("clock", "token") else "clock"
keep_link(run)
with st.container(key="ask"):
    ask_band(run, running)
with st.container():  # there without a notice too: the view below keeps its place in the page
    if notice := st.session_state.get("race_notice"):
        st.warning(plain(notice.text(language)), icon=":material/info:")
lacks = ()
if run is not None and over and run.log.head is not None:
    lacks = tuple(message.text(language) for message in race.missing(run.log))
components.race_view(
    run,
    over=over,
    language=language,
    autoplay=plays,
    mode=st.session_state.race_mode,
    missing=lacks,
)
if run is not None and over and run.log.runs():
    with st.container(key="race_panels"):
        panels(run.log)
