"""Who asks, as far as a server can tell: a browser by a cookie of its own, a client by its address.

A run's id is in its link, which is there to be shared, so that it cannot say who may stop the run:
the cookie can, which no page shows and no link carries. The address says whose turn it is and how
many sockets are whose; where that tells nothing, a browser counts as a client.

Try it: `streamlit run app.py`, then `curl -si localhost:8501/ | grep -i cookie`
"""

import ipaddress
import re
import secrets
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "second_token"
_SECRET = re.compile(r"[\w-]{22,64}", re.ASCII)


class BrowserCookie:
    """The ASGI middleware that gives a browser its cookie with the first page: only with pages,
    since caches on the way may keep what is not one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or browser_of(HTTPConnection(scope).cookies) is not None:
            await self.app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_page(Headers(scope=message)):
                MutableHeaders(scope=message).append("Set-Cookie", _cookie(scope["scheme"]))
            await send(message)

        await self.app(scope, receive, send_with_cookie)


def _is_page(headers: Headers) -> bool:
    return headers.get("content-type", "").startswith("text/html")


def _cookie(scheme: str) -> str:
    secure = "; Secure" if scheme == "https" else ""
    return f"{COOKIE}={secrets.token_urlsafe(16)}; Path=/; HttpOnly; SameSite=Lax{secure}"


def browser_of(cookies: Mapping[str, object]) -> str | None:
    """The secret of a browser, None where it has none that is ours."""
    value = cookies.get(COOKIE)
    return value if isinstance(value, str) and _SECRET.fullmatch(value) else None


def client_of(address: str | None) -> str | None:
    """Whom an address stands for: itself, of IPv6 the 64 bits that one household or machine is
    given. None for one that is not on the internet: this machine's, a network's behind a router, a
    proxy's that stands for everybody."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return None
    if found.version == 6:
        found = found.ipv4_mapped or found
    if not found.is_global:
        return None
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, 64), strict=False))
