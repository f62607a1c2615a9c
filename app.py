"""The ASGI entry: the pages, the routes of the live view, and the engine process beside them.

`streamlit run app.py` finds `app` here. The engine process starts and ends with the server.

Try it: `streamlit run app.py`
"""

import importlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st

from viz_engine import live, routes

NICENESS = 10
for name in ("pandas", "pyarrow"):  # Streamlit would import them while the first visitor waits
    importlib.import_module(name)


def give_way() -> Callable[[], None]:
    """What lowers the priority of this thread and of those that it starts later, so that a busy
    page does not slow the model: done at the first run, since until then the page comes first.
    The engine's own thread, and the process that it starts, keep theirs."""
    if sys.platform != "linux":  # elsewhere niceness is not a thread's own
        return lambda: None
    thread = threading.get_native_id()
    niceness = min(os.getpriority(os.PRIO_PROCESS, thread) + NICENESS, 19)
    return lambda: os.setpriority(os.PRIO_PROCESS, thread, niceness)


@asynccontextmanager
async def lifespan(app: st.App) -> AsyncIterator[dict[str, object]]:
    """The engine process lives as long as the server."""
    runs = live.registry()
    runs.on_submit = give_way()
    runs.start()
    try:
        yield {}
    finally:
        runs.stop()


app = st.App(
    Path(__file__).resolve().parent / "pages" / "shell.py",
    routes=routes.routes(st.get_option("server.baseUrlPath") or ""),
    lifespan=lifespan,
)
