"""The boxes for which model, on which device, in which type: alike on every page that runs one.

Try it: `streamlit run app.py`, then Settings on any page.
"""

from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from viz_engine import live, model_files

DTYPES = ("auto", "bfloat16", "float16", "float32")
NAMES = ("model", "device", "dtype")
FIRST = {"model": model_files.DEFAULT_MODEL, "device": "auto", "dtype": "auto"}


def show(
    registry: live.Registry, say: Callable[[str], str], prefix: str, *, num_columns: int = 2
) -> list[DeltaGenerator]:
    """The model's box, under it the other two in the first of `num_columns` columns; returns those
    columns. What is chosen is kept for the session as `model`, `device` and `dtype`, each after
    `prefix`."""
    keep = {"persist_state": "session"}
    offered = registry.limits.models
    given = {"key": f"{prefix}model", "help": say("ask.model_help"), **keep}
    if offered is None:
        st.text_input(say("ask.model"), **given)
    else:
        st.selectbox(say("ask.model"), offered, **given)
    devices = ["auto", *registry.engine.info().devices]
    if st.session_state[f"{prefix}device"] not in devices:
        devices.append(st.session_state[f"{prefix}device"])
    columns = st.columns(num_columns)
    columns[0].selectbox(say("ask.device"), devices, key=f"{prefix}device", **keep)
    columns[1].selectbox(
        say("ask.dtype"), DTYPES, key=f"{prefix}dtype", help=say("ask.dtype_help"), **keep
    )
    return columns


def chosen(prefix: str) -> dict[str, str]:
    """What the boxes hold: `model`, `device` and `dtype` of the run's settings."""
    held = {name: st.session_state[f"{prefix}{name}"] for name in NAMES}
    return held | {"model": held["model"].strip() or model_files.DEFAULT_MODEL}
