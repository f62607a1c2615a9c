"""The live view and the race: each one component that draws everything that follows a run.

A page mounts it once under a fixed key; it subscribes to the routes of `live` by itself, so that
no rerun is needed while a run goes on. Where the routes do not reach the browser it asks for
frames, and a fragment feeds them. The drawing is in assets/js; here they are joined into the one
inline module that Streamlit wants. Nothing here knows what a frame says.

Try it: `python -c "from viz_engine.view import components; print(len(components.source()))"`
"""

import re
import time
from collections.abc import Callable
from functools import cache

import streamlit as st

from viz_engine.paths import ASSETS
from viz_engine.server.runs import Run, frame
from viz_engine.text import strings

# Each file imports only from those before it.
MODULES = (
    "rows",
    "run",
    "player",
    "layout",
    "words",
    "feed",
    "matrix",
    "gone",
    "minimap",
    "ribbon",
    "chart",
    "stage",
    "theme",
    "figures",
    "elements",
    "controls",
    "shell",
    "dom",
    "live_motion",
    "live_matrix",
    "live_time",
    "live_words",
    "live_view",
)
RACE_MODULES = (
    "rows",
    "run",
    "player",
    "race",
    "layout",
    "words",
    "feed",
    "matrix",
    "gone",
    "minimap",
    "stage",
    "theme",
    "elements",
    "controls",
    "shell",
    "race_lanes",
    "race_table",
    "race_chart",
    "race_view",
)
POLL_S = 0.1
OVERLAP_S = (
    1.0  # a fed frame repeats what is younger than this: the browser may lose data under load
)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.mjs";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
_COMMENT = re.compile(r"^\s*(//.*|/\*\*.*?\*/)\n", re.MULTILINE | re.DOTALL)


@cache
def source(modules: tuple[str, ...] = MODULES) -> str:
    """All modules as one: imports and `export` taken out, whole-line comments too."""
    parts = []
    for name in modules:
        text = (ASSETS / "js" / f"{name}.mjs").read_text(encoding="utf-8")
        parts.append(_EXPORT.sub("", _IMPORT.sub("", text)))
    return re.sub(r"^[ \t]*//.*\n", "", "\n".join(parts), flags=re.MULTILINE)


@cache
def words(language: str) -> dict[str, str]:
    """The strings that the browser needs, by key."""
    return {key: text for key, text in strings(language).items() if key.startswith("view.")}


@cache
def _live_component() -> Callable[..., object]:
    return st.components.v2.component(
        "second_token_live_view", js=source(), css=style("live_view.css")
    )


@cache
def _race_component() -> Callable[..., object]:
    css = style("live_view.css") + style("race.css")
    return st.components.v2.component("second_token_race", js=source(RACE_MODULES), css=css)


def style(name: str) -> str:
    return (ASSETS / "css" / name).read_text(encoding="utf-8")


def live_view(
    run: Run | None,
    *,
    over: bool,
    language: str,
    key: str = "live_view",
    autoplay: bool = False,
    projection: bool | None = None,
    transport: str | None = None,
    on_finished: Callable[[], None] | None = None,
) -> object:
    """Draw `run`, or the empty view. Call it in the same place at every rerun, under the same key.

    `over` is what the rest of the page was made for: whether the run had finished. A run that has
    finished since tells the page so, like one that finishes later.
    `autoplay` plays a finished run from its start when it is opened. `transport="poll"` feeds
    frames through the page from the start; None leaves it to the browser to find that it must.
    The result's `finished` is the run's id in the rerun that follows the end of a live run;
    `projection` is what the visitor chose with the key F.
    """
    data = {} if projection is None else {"projection": projection}
    states = {"on_finished_change": on_finished or _nothing, "on_projection_change": _nothing}
    data["autoplay"] = autoplay
    return _mount(_live_component(), run, over, language, key, transport == "poll", data, states)


def race_view(
    run: Run | None,
    *,
    over: bool,
    language: str,
    key: str = "race_view",
    autoplay: bool = False,
    mode: str | None = None,
    missing: tuple[str, ...] = (),
) -> object:
    """Draw the race `run`, or the empty lanes. `mode` (clock, token) is how the lanes are aligned
    at first; the result's `mode` is what the visitor chose. `missing` says what the race lacks,
    `over` as in `live_view`."""
    data = {"autoplay": autoplay, "mode": mode, "missing": list(missing)}
    states = {"on_finished_change": _nothing, "on_mode_change": _nothing}
    return _mount(_race_component(), run, over, language, key, False, data, states)


def _mount(
    component: Callable[..., object],
    run: Run | None,
    over: bool,
    language: str,
    key: str,
    poll: bool,
    data: dict[str, object],
    states: dict[str, Callable[[], None]],
) -> object:
    """Mount a component on a run; where the routes do not reach it, feed it."""
    asked = st.session_state.get(key) or {}
    poll = poll or asked.get("transport") == "poll"
    data |= {
        "run_id": run.id if run else None,
        "language": language,
        "strings": words(language),
        "over": over,
        "recorded": run is not None and run.settings is None,
        "transport": "poll" if poll else "auto",
    }

    def mount() -> object:
        if poll and run is not None:
            data["frames"] = [_next_frame(run, key, language)]
        states_of_feed = {"on_transport_change": _nothing, "on_resume_change": _nothing}
        return component(key=key, data=data, **states, **states_of_feed)

    if not poll or run is None or over:
        with st.container():  # as deep in the page as in a fragment, or the view would start anew
            return mount()

    @st.fragment(run_every=POLL_S)
    def fed() -> None:
        mount()
        if run.finished:
            st.rerun(scope="app")

    fed()
    return None


def _nothing() -> None:
    """A state of the component that only it and its page read."""


def _next_frame(run: Run, key: str, language: str) -> str:
    """The frame to feed: all that is new, and what was fed within the last second once more. A
    browser that has missed something says from where to resume."""
    sent = st.session_state.setdefault(f"{key}.fed", {})
    resume = (st.session_state.get(key) or {}).get("resume")
    now = time.monotonic()
    if sent.get("run") != run.id:
        sent.clear()
        sent.update(run=run.id, stop=0, recent=[], resume=resume)
    sent["recent"] = [(at, when) for at, when in sent["recent"] if now - when <= OVERLAP_S]
    first = sent["recent"][0][0] if sent["recent"] else sent["stop"]
    if run.finished:
        first = 0  # fed at every rerun from now on: it completes whatever the browser has
    elif resume is not None and resume != sent["resume"]:
        first, sent["resume"] = min(first, int(resume)), resume
    sent["recent"].append((sent["stop"], now))
    sent["stop"] = len(run.lines)
    return frame(run, first, language)
