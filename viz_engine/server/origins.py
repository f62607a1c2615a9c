"""Whose page a request comes from: only our own pages get an answer, and Streamlit asks nobody.

Streamlit checks no Origin on routes that are not its own, and on its own it asks a server on the
internet for this machine's address, once for each request with an Origin that it does not know,
while the event loop waits. Here a foreign Origin is refused before Streamlit sees it, and our own
is taken off the request, so that there is nothing to ask about.

Try it: `streamlit run app.py`, then `curl -H 'Origin: http://elsewhere' localhost:8501/`
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from viz_engine.text import t

_HOST_HEADERS = ("host", "x-forwarded-host")
PORTS = {"http": 80, "https": 443}
Host = tuple[str | None, int | None]


class OwnOrigin:
    """The ASGI middleware. `allowed` are further origins whose pages may ask: those that
    Streamlit's `server.corsAllowedOrigins` lists."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self.app = app
        self.allowed = {_origin(text) for text in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif self._may_ask(HTTPConnection(scope)):
            headers = [(name, value) for name, value in scope["headers"] if name != b"origin"]
            await self.app(scope | {"headers": headers}, receive, send)
        elif scope["type"] == "http":
            language = HTTPConnection(scope).query_params.get("lang", "en")
            error = {"error": t("service.foreign_origin", language)}
            await JSONResponse(error, status_code=403)(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403

    def _may_ask(self, connection: HTTPConnection) -> bool:
        origins = connection.headers.getlist("origin")
        if not origins:
            return True  # a browser leaves it out only where no foreign page asks
        if len(origins) > 1:
            return False
        return same_origin(connection) or _origin(origins[0]) in self.allowed - {None}


def same_origin(connection: HTTPConnection) -> bool:
    """Whether a request comes from our own pages: its Origin names the host that it asks, as seen
    here or before a proxy. Browsers let no foreign page leave Origin out of a POST or a socket, or
    set X-Forwarded-Host on either; other programs send no Origin."""
    origin = _origin(connection.headers.get("origin", ""))
    if origin is None:
        return "origin" not in connection.headers
    scheme, host = origin
    return host in {_host(connection.headers.get(name), scheme) for name in _HOST_HEADERS}


def _origin(text: str) -> tuple[str, Host] | None:
    """Scheme and host of an origin, None for what is none (`null`, a path, another scheme)."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    host = _host(parts.netloc, parts.scheme)
    return (parts.scheme, host) if parts.scheme in PORTS and host is not None else None


def _host(netloc: str | None, scheme: str) -> Host | None:
    try:
        parts = urlsplit(f"//{(netloc or '').split(',')[0].strip()}")
        return (parts.hostname, parts.port or PORTS.get(scheme)) if parts.hostname else None
    except ValueError:
        return None
