"""The race: the same run without a cache against one with it. The lanes are drawn by race_view."""

import dataclasses

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from viz_engine.analysis import race
from viz_engine.model import files
from viz_engine.model.spec import ModelSpec
from viz_engine.numbers import flops_text, grouped, scientific
from viz_engine.run import checks, cost, metrics
from viz_engine.run.experiment import ExperimentLog, LogitsCompared, PrefixChanged
from viz_engine.run.log import RunLog
from viz_engine.run.race import MAX_REPEATS, RaceSettings
from viz_engine.server import recorded
from viz_engine.text import plain
from viz_engine.view import ask as view_ask
from viz_engine.view import charts, components
from viz_engine.view.ask import KEEP, Ask
from viz_engine.view.page import Page
from viz_engine.view.race import charts as race_charts
from viz_engine.view.race import link as race_link

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
colours = charts.palette(page.theme)


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


def figure(made: charts.Figure, name: str, alt: str) -> None:
    charts.show(made, name, alt, image=page.image)


def words(*keys: str) -> dict[str, str]:
    """Strings of the charts: `race.chart.<key>` by key, and the lanes' names."""
    lanes = {"none": say("race.lane.none"), "full": say("race.lane.full")}
    return lanes | {key: say(f"race.figure.{key}") for key in keys}


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
        figure(made, "gain", say("race.panel.gain"))
        st.caption(say("race.gain.note") + " " + tiny_text(log))
    with right:
        times = {cache: race.times_ns(log, cache, 1) for cache in race.CACHES}
        bars = {c: (s.low / 1e9, s.median / 1e9, s.high / 1e9) for c, s in times.items()}
        x = {"x": say("race.figure.ttft")}
        figure(race_charts.race_ttft(bars, words() | x, colours), "ttft", x["x"])
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
    figure(made, "proof", say("race.panel.proof"))
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
    figure(
        race_charts.race_growth(lanes, crossings, measured, text, colours),
        "growth",
        say("race.panel.growth"),
    )
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
    log = recorded.race(page.registry, ONE_TOKEN).log
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
    figure(
        race_charts.race_attention(panels_shown, texts, text, colours),
        "attention",
        say("race.panel.attention"),
    )
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
        say("race.panel.prefix"),
    )
    st.caption(say("race.prefix.note"))


# ---- the page ------------------------------------------------------------------------------------

ask.first_values(take_link)
run = ask.current("race.unknown_settings" if st.query_params.get("ask") else "race.unknown")
over, running = ask.progress(run)
mode = (state.get("race_view") or {}).get("mode") or st.query_params.get("mode")
state.race_mode = mode if mode in ("clock", "token") else "clock"
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
components.race_view(
    run,
    over=over,
    language=page.language,
    autoplay=run is not None and run.settings is None,  # a file plays from its start
    mode=state.race_mode,
    missing=lacks,
)
if run is not None and over and run.log.runs():
    with st.container(key="race_panels"):
        panels(run.log)
