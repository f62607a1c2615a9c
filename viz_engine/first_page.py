"""Streamlit's own files, sooner: what a first visitor's browser needs is announced with the page.

Streamlit's page names the scripts of its frame only. Those of the boxes and of our view are asked
for when the first elements have come, one generation after the other, and until they are there
React holds the elements back. Here they are named in the page's headers; and small files are sent
from memory, which takes half of the time. Nothing here knows what is on a page.

Try it: `curl -sI localhost:8501 | grep -i ^link`
"""

import importlib.util
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

STREAMLIT = Path(importlib.util.find_spec("streamlit").origin).parent / "static"
# Streamlit's names of the elements that every page shows at first.
ELEMENTS = ("BidiComponent", "Button", "ButtonGroup", "Html", "Slider", "TextArea")
MOST_BYTES = 2**20  # a larger file is Streamlit's to send, in pieces
TYPES = {".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}
KEPT = b"public, immutable, max-age=31536000"  # a file's name changes with its content
_IMPORT = re.compile(r"""(?:from|import)\s*["'`]\./([\w.-]+\.js)["'`]""")

Messages = Callable[[dict[str, object]], Awaitable[None]]


def scripts(root: Path = STREAMLIT) -> list[str]:
    """The addresses, relative to the page, of the scripts of ELEMENTS and of what they import,
    without those that the page names itself."""
    named = set(re.findall(r"static/js/([\w.-]+\.js)", (root / "index.html").read_text("utf-8")))
    found: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in named and name not in found:
            found[name] = None
            for other in _IMPORT.findall((root / "static/js" / name).read_text("utf-8")):
                add(other)

    for element in ELEMENTS:
        for path in sorted((root / "static/js").glob(f"{element}.*.js")):
            add(path.name)
    return [f"./static/js/{name}" for name in found]


class FirstPage:
    """ASGI middleware around the whole app."""

    def __init__(self, app: Callable[..., Awaitable[None]], base_path: str = "") -> None:
        """`base_path`: `server.baseUrlPath`."""
        self.app = app
        base = f"/{base_path.strip('/')}" if base_path.strip("/") else ""
        self.paths = {f"{base}{address}": path for address, path in _small_files()}
        self.contents: dict[str, bytes] = {}  # as they are asked for
        links = (f"<{address}>; rel=modulepreload; crossorigin" for address in scripts())
        self.link = (b"link", ", ".join(links).encode())

    async def __call__(self, scope: dict[str, object], receive: object, send: Messages) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
        elif (path := scope["path"]) in self.paths:
            await self._send_file(path, send)
        else:
            await self.app(scope, receive, self._announcing(send))

    async def _send_file(self, path: str, send: Messages) -> None:
        if path not in self.contents:
            self.contents[path] = self.paths[path].read_bytes()
        content = self.contents[path]
        suffix = self.paths[path].suffix  # of scripts a system's own table may say anything
        kind = TYPES.get(suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(content)).encode()),
            (b"cache-control", KEPT),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _announcing(self, send: Messages) -> Messages:
        """`send`, with the scripts named in the head of a page."""

        async def announce(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                headers = list(message["headers"])
                if any(n == b"content-type" and v.startswith(b"text/html") for n, v in headers):
                    message = message | {"headers": [*headers, self.link]}
            await send(message)

        return announce


def _small_files() -> Iterator[tuple[str, Path]]:
    """Address and path of each small file whose name holds a digest of its content."""
    for path in (STREAMLIT / "static").rglob("*"):
        if path.is_file() and path.stat().st_size <= MOST_BYTES:
            yield f"/static/{path.relative_to(STREAMLIT / 'static').as_posix()}", path
