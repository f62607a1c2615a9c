"""The live view: one component that draws all that follows a run, by assets/js/live_view.mjs.

Try it: `streamlit run app.py`
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


@cache
def _component() -> Callable[..., object]:
    return st.components.v2.component(
        "second_token_live_view",
        js=components.source(MODULES),
        css=components.style("live_view.css"),
    )


def show(run: Run | None, *, over: bool, language: str, autoplay: bool) -> object:
    """Draw `run`, or the empty view. `autoplay` plays a finished run from its start when it is
    opened. The result's `projection` is what the visitor chose with the key F."""
    return components.follow(
        _component(),
        run,
        over=over,
        language=language,
        key="live_view",
        data={"autoplay": autoplay},
        states=("projection",),
    )
