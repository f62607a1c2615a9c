"""The ASGI entry: the pages, the routes of the live view, and the engine process beside them.

`streamlit run app.py` finds `app` here. The engine process is started before the web process lowers
its own priority, so that a busy page does not slow the model, and it ends with the web process.

Try it: `streamlit run app.py`
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st

from viz_engine import live, routes

NICENESS = 10


@asynccontextmanager
async def lifespan(app: st.App) -> AsyncIterator[dict[str, object]]:
    """The engine process lives as long as the server."""
    runs = live.registry()
    runs.start()
    if sys.platform == "linux":  # niceness is a thread's own there: the engine's thread keeps its
        os.nice(NICENESS)
    try:
        yield {}
    finally:
        runs.stop()


app = st.App(
    Path(__file__).resolve().parent / "pages" / "shell.py",
    routes=routes.routes(st.get_option("server.baseUrlPath") or ""),
    lifespan=lifespan,
)
