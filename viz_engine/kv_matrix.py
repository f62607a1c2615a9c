"""The live view: one component that draws everything that follows a run.

The page mounts it once under a fixed key; it subscribes to the routes of `live` by itself, so that
no rerun is needed while a run goes on. Where the routes do not reach the browser it asks for
frames, and a fragment feeds them. The drawing is in assets/*.mjs; here they are joined into the one
inline module that Streamlit wants. Nothing here knows what a frame says.

Try it: `python -c "from viz_engine import kv_matrix; print(len(kv_matrix.source()))"`
"""

import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import streamlit as st

from viz_engine import live
from viz_engine.text import strings

ASSETS = Path(__file__).resolve().parent.parent / "assets"
# Each file imports only from those before it.
MODULES = (
    "run",
    "player",
    "layout",
    "words",
    "feed",
    "matrix",
    "ribbon",
    "chart",
    "stage",
    "figures",
    "dom",
    "live_view",
)
POLL_S = 0.1
OVERLAP_S = (
    1.0  # a fed frame repeats what is younger than this: the browser may lose data under load
)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.mjs";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
_COMMENT = re.compile(r"^\s*(//.*|/\*\*.*?\*/)\n", re.MULTILINE | re.DOTALL)


@cache
def source() -> str:
    """All modules as one: imports and `export` taken out, whole-line comments too."""
    parts = []
    for name in MODULES:
        text = (ASSETS / f"{name}.mjs").read_text(encoding="utf-8")
        parts.append(_EXPORT.sub("", _IMPORT.sub("", text)))
    return re.sub(r"^[ \t]*//.*\n", "", "\n".join(parts), flags=re.MULTILINE)


@cache
def words(language: str) -> dict[str, str]:
    """The strings that the browser needs, by key."""
    return {key: text for key, text in strings(language).items() if key.startswith("view.")}


@cache
def _component() -> Callable[..., object]:
    css = (ASSETS / "live_view.css").read_text(encoding="utf-8")
    return st.components.v2.component("second_token_live_view", js=source(), css=css)


def live_view(
    run: live.Run | None,
    *,
    language: str,
    key: str = "live_view",
    autoplay: bool = False,
    projection: bool | None = None,
    transport: str | None = None,
    on_finished: Callable[[], None] | None = None,
) -> object:
    """Draw `run`, or the empty view. Call it in the same place at every rerun, under the same key.

    `autoplay` plays a finished run from its start when it is opened. `transport="poll"` feeds
    frames through the page from the start; None leaves it to the browser to find that it must.
    The result's `finished` is the run's id in the rerun that follows the end of a live run;
    `projection` is what the visitor chose with the key F.
    """
    asked = st.session_state.get(key) or {}
    poll = transport == "poll" or asked.get("transport") == "poll"
    data = {
        "run_id": run.id if run else None,
        "language": language,
        "strings": words(language),
        "autoplay": autoplay,
        "over": run is not None and run.finished,
        "recorded": run is not None and run.settings is None,
        "transport": "poll" if poll else "auto",
    }
    if projection is not None:
        data["projection"] = projection

    def mount() -> object:
        if poll and run is not None:
            data["frames"] = [_next_frame(run, key, language)]
        return _component()(
            key=key,
            data=data,
            on_finished_change=on_finished or _nothing,
            on_transport_change=_nothing,
            on_resume_change=_nothing,
            on_projection_change=_nothing,
        )

    if not poll or run is None or run.finished:
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
    """A state of the component that only it and `live_view` read."""


def _next_frame(run: live.Run, key: str, language: str) -> str:
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
    return live.frame(run, first, language)
