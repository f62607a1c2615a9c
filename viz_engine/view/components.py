"""What the views are mounted with: modules of assets/js joined into the one that Streamlit wants,
and a run that a view follows.

A page mounts its view once under a fixed key; it subscribes to the server's routes by itself, so
that no rerun is needed while a run goes on. Where the routes do not reach the browser it asks for
frames, and a fragment feeds them. Nothing here knows what a frame says.

Try it: `python -c "from viz_engine.view import components; \
print(len(components.source(('run', 'player'))))"`
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import streamlit as st

from viz_engine.paths import ASSETS
from viz_engine.server.runs import Run
from viz_engine.text import strings

POLL_S = 0.1
# A fed frame repeats what is younger than this: the browser may lose data under load.
OVERLAP_S = 1.0
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.mjs";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)


@cache
def source(modules: tuple[str, ...]) -> str:
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


def style(name: str) -> str:
    return (ASSETS / "css" / name).read_text(encoding="utf-8")


def follow(
    component: Callable[..., object],
    run: Run | None,
    *,
    over: bool,
    language: str,
    key: str,
    data: Mapping[str, object],
    states: Sequence[str],
) -> object:
    """Mount a component on a run, or on none. Call it in the same place at every rerun, under the
    same key.

    `over` is what the rest of the page was made for: whether the run had finished. A run that has
    finished since tells the page so, like one that finishes later. `states` are what the browser
    may set besides. The result's `finished` is the run's id in the rerun that follows the end of a
    live run.
    """
    asked = st.session_state.get(key) or {}
    poll = asked.get("transport") == "poll"
    given = {
        **data,
        "run_id": run.id if run else None,
        "language": language,
        "strings": words(language),
        "over": over,
        "recorded": run is not None and run.settings is None,
        "transport": "poll" if poll else "auto",
    }
    every = ("finished", "transport", "resume", *states)
    changes = {f"on_{name}_change": _nothing for name in every}

    def mount() -> object:
        if poll and run is not None:
            given["frames"] = [_next_frame(run, key, language)]
        return component(key=key, data=given, **changes)

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
    return run.read(first, language).text
