"""Streamlit's own files, read and answered in one go, and named ahead in the first page's head.

Streamlit hands each of them through threads in pieces, and a first page asks for ninety. Their
names carry a hash of what is in them, so a browser keeps them for good. A third of them are the
scripts of the elements, which a browser otherwise learns of only when the page's elements come.
Nothing here knows what is in them but for the names that scripts import.

Try it: `streamlit run app.py`, then look at the network panel of a private window
"""

import mimetypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from viz_engine.server.routes import base_of

FOR_GOOD = "public, immutable, max-age=31536000"
_HERE = """<script>{
  const here = location.pathname.match(/^(.*\\/)(?:%s)\\/?$/);
  if (here) window.__streamlit = { BACKEND_BASE_URL: location.origin + here[1] };
}</script>"""
_IMPORT = re.compile(r'(?:from|import)"\./([\w.-]+\.js)"')


class StaticFiles:
    """The ASGI middleware that answers a GET of a whole file of `folder`'s static/ as
    `/static/...`, and of the first page, under `server.baseUrlPath`; all else is Streamlit's.
    `elements` are the kinds of elements of the first page, by their script's name; `pages` what
    stands behind the first page's address in those of the others.

    Only names that are there when the server starts are known: a path of a request is never made
    into one of the disk."""

    def __init__(
        self,
        app: ASGIApp,
        folder: Path,
        base_path: str = "",
        elements: Iterable[str] = (),
        pages: Sequence[str] = (),
    ) -> None:
        self.app = app
        base = base_of(base_path)
        self.files = {
            f"{base}/{path.relative_to(folder).as_posix()}": path
            for path in (folder / "static").rglob("*")
            if path.is_file()
        }
        self.pages = {f"{base}/{name}" for name in ("", *pages)}
        self.index = index(folder, elements, pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(scope["path"]) if _wants_whole(scope) else None
        await (answer or self.app)(scope, receive, send)

    def _answer(self, path: str) -> Response | None:
        if path in self.pages:
            headers = {"Cache-Control": "no-cache"}
            return Response(self.index, media_type="text/html", headers=headers)
        if path not in self.files:
            return None
        body = self.files[path].read_bytes()  # 5 MB at most, and in memory after the first time
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
        return Response(body, media_type=kind, headers={"Cache-Control": FOR_GOOD})


def _wants_whole(scope: Scope) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and all(name != b"range" for name, _ in scope["headers"])
    )


def index(folder: Path, elements: Iterable[str], pages: Sequence[str] = ()) -> str:
    """Streamlit's page, with the scripts that `elements` need named in its head. Opened at the
    address of one of `pages`, it would look for the server below that address first, and be
    answered with two 404s."""
    page = (folder / "index.html").read_text(encoding="utf-8")
    links = [
        f'<link rel="modulepreload" crossorigin href="./static/js/{name}">'
        for name in scripts(folder / "static" / "js", elements)
        if name not in page
    ]
    if pages:
        links.insert(0, _HERE % "|".join(map(re.escape, pages)))
    return page.replace("</head>", "\n".join([*links, "</head>"]), 1)


def scripts(folder: Path, elements: Iterable[str]) -> list[str]:
    """The names of the scripts of `elements` and of all that those import, each once."""
    wanted = [path.name for kind in elements for path in sorted(folder.glob(f"{kind}.*.js"))]
    found: dict[str, None] = {}
    while wanted:
        name = wanted.pop()
        if name not in found and (folder / name).is_file():
            found[name] = None
            wanted += _IMPORT.findall((folder / name).read_text(encoding="utf-8"))
    return sorted(found)
