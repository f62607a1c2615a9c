"""The race: one component that draws both lanes, by assets/js/race_view.mjs.

Try it: `streamlit run app.py`, the page Race
"""

from collections.abc import Callable
from functools import cache

import streamlit as st

from viz_engine.server.runs import Run
from viz_engine.view import components

# Each file imports only from those before it.
MODULES = (
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
KEY = "race_view"


@cache
def _component() -> Callable[..., object]:
    css = components.style("live_view.css") + components.style("race.css")
    return st.components.v2.component("second_token_race", js=components.source(MODULES), css=css)


def mode() -> str:
    """How the lanes are aligned, by the clock or by token: what the visitor chose, or the link."""
    chosen = (st.session_state.get(KEY) or {}).get("mode") or st.query_params.get("mode")
    return chosen if chosen in ("clock", "token") else "clock"


def show(
    run: Run | None,
    *,
    over: bool,
    language: str,
    autoplay: bool,
    mode: str,
    missing: tuple[str, ...],
) -> object:
    """Draw the race `run`, or the empty lanes. `mode` is how they are aligned at first; the
    result's `mode` is what the visitor chose. `missing` says what the race lacks."""
    return components.follow(
        _component(),
        run,
        over=over,
        language=language,
        key=KEY,
        data={"autoplay": autoplay, "mode": mode, "missing": list(missing)},
        states=("mode",),
    )
