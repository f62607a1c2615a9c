"""What stands around every page: its question, keys, ways past the header, files dropped anywhere.

Drawn by assets/js/page_frame.mjs: 1 to 4 go to a page, O opens the box for anything, F is large
type.

Try it: `streamlit run app.py`
"""

from collections.abc import Callable
from functools import cache

import streamlit as st

from viz_engine.text import Say
from viz_engine.view import components

MODULES = ("elements", "page_frame")


@cache
def _component() -> Callable[..., object]:
    return st.components.v2.component(
        "second_token_frame", js=components.source(MODULES), isolate_styles=False
    )


def show(name: str, say: Say) -> None:
    """The frame of the page `name`."""
    words = {"question": say(f"frame.question.{name}")}
    words |= {button: say(f"frame.{button}") for button in ("skip", "jump")}
    _component()(key="frame", data=words)
