"""The ASGI entry: the pages, the routes of the live view, and the engine process beside them.

`streamlit run app.py` finds `app` here. The engine process starts and ends with the server.

Try it: `streamlit run app.py`
"""

import contextlib
import importlib
import inspect
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from streamlit.file_util import get_static_dir

from viz_engine.model import files, tokenizer
from viz_engine.server import origins, pieces, recorded, registry, routes, static_files, visitors
from viz_engine.text import UserError
from viz_engine.view import components
from viz_engine.view.live import mount

NICENESS = 10
PAGES = ("race", "latency", "memory")  # by their addresses; the first has none
# What the first page is made of, by the names of Streamlit's scripts.
ELEMENTS = ("BidiComponent", "Button", "ButtonGroup", "Html", "Slider", "TextArea")
# Streamlit and the first page would import these while the first visitor waits.
STREAMLITS = ("pandas", "pyarrow", "PIL.ImageFile", "streamlit.emojis")
OURS = tuple(f"viz_engine.view.{name}" for name in ("ask", "live.words", "frame", "paste"))
for name in STREAMLITS + OURS:
    importlib.import_module(name)


def get_ready(runs: registry.Registry) -> None:
    """Read ahead what the first page shows: otherwise the first visitor waits for it."""
    inspect.stack()  # Streamlit's first element does this; it reads about every module, once
    components.source(mount.MODULES)
    for name in recorded.names("runs")[:1]:
        recorded.run(runs, name)
    with contextlib.suppress(UserError):  # the page says what is wrong with it
        if folder := files.locate(files.DEFAULT_MODEL):
            tokenizer.tokenizer_of(folder).encode_prompt("Hi", chat=True, context_len=64)


def give_way() -> Callable[[], None]:
    """What lowers the priority of this thread and of those that it starts later, so that a busy
    page does not slow the model: done at the first run, since until then the page comes first.
    The engine's own thread, and the process that it starts, keep theirs."""
    if sys.platform != "linux":  # elsewhere niceness is not a thread's own
        return lambda: None
    thread = threading.get_native_id()
    niceness = min(os.getpriority(os.PRIO_PROCESS, thread) + NICENESS, 19)
    return lambda: os.setpriority(os.PRIO_PROCESS, thread, niceness)


def say_where() -> None:
    """Where to look. Streamlit's own line asks a server on the internet for our address first."""
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    port, base = st.get_option("server.port"), routes.base_of(base_path)
    print(f"\n  Second Token: {scheme}://localhost:{port}{base}\n", flush=True)


@contextlib.asynccontextmanager
async def lifespan(app: st.App) -> AsyncIterator[dict[str, object]]:
    """The engine process lives as long as the server."""
    runs = registry.registry()
    runs.on_submit = give_way()
    runs.start()
    get_ready(runs)
    say_where()
    try:
        yield {}
    finally:
        runs.stop()


base_path = st.get_option("server.baseUrlPath") or ""
allowed = st.get_option("server.corsAllowedOrigins")
middleware = [
    Middleware(pieces.InPieces),
    Middleware(origins.OwnOrigin, allowed=allowed),
    Middleware(visitors.BrowserCookie),
    Middleware(
        static_files.StaticFiles,
        folder=Path(get_static_dir()),
        base_path=base_path,
        elements=ELEMENTS,
        pages=PAGES,
    ),
]
app = st.App(
    Path(__file__).resolve().parent / "pages" / "shell.py",
    routes=routes.routes(base_path),
    middleware=middleware,
    lifespan=lifespan,
)
