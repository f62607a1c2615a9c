"""Only our own pages get an answer, and nobody elsewhere is asked who we are."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.server import ENV, free_port, served
from viz_engine.server.origins import OwnOrigin, same_origin

# What a program asks of the resolver and connects to, a line each, before anything else loads.
WATCH = """
import os, socket
def told(what, asked):
    def wrapper(*args, **kwargs):
        with open(os.environ["WATCHED"], "a") as file:
            print(what, *map(repr, args), file=file)
        return asked(*args, **kwargs)
    return wrapper
socket.getaddrinfo = told("resolve", socket.getaddrinfo)
class Socket(socket.socket):
    def connect(self, address):
        told("connect", super().connect)(address)
    def connect_ex(self, address):
        return told("connect", super().connect_ex)(address)
socket.socket = Socket
"""
FOREIGN = ("http://evil.example", "null", "file://here", "https://here:x", "javascript:0", "")


@pytest.mark.parametrize(
    "origin, host, forwarded, allowed",
    [
        ("https://site.example", "site.example", None, True),
        ("https://site.example", "site.example:443", None, True),
        ("https://SITE.example", "site.example", None, True),
        ("https://site.example", "10.0.0.1:8501", "site.example", True),
        ("http://localhost:3000", "localhost:8501", None, False),
        ("https://site.example:x", "site.example", None, False),
        ("file://site.example", "site.example", None, False),
        (None, "site.example", None, True),
    ],
)
def test_the_origin_must_be_the_host_that_is_asked(origin, host, forwarded, allowed) -> None:
    given = {"origin": origin, "host": host, "x-forwarded-host": forwarded}
    headers = [(name.encode(), value.encode()) for name, value in given.items() if value]
    assert same_origin(HTTPConnection({"type": "http", "headers": headers})) is allowed


def answer(app: Callable[..., Awaitable[None]], **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get("/race", headers=headers)

    return asyncio.run(ask())


async def streamlits(scope: dict, receive: Callable, send: Callable) -> None:
    """Says which Origin it was told."""
    told = dict(scope["headers"]).get(b"origin", b"none").decode()
    await PlainTextResponse(told)(scope, receive, send)


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_foreign_origin_is_refused_before_streamlit_sees_it(origin: str) -> None:
    refused = answer(OwnOrigin(streamlits), Origin=origin)
    assert refused.status_code == 403 and "another site" in refused.json()["error"]


def test_our_own_origin_is_taken_off_so_that_there_is_nothing_to_ask() -> None:
    for headers in (
        {"Origin": "http://here"},
        {},
        {"Origin": "https://a", "X-Forwarded-Host": "a"},
    ):
        assert answer(OwnOrigin(streamlits), **headers).text == "none"


def test_listed_origins_may_ask_too() -> None:
    over = OwnOrigin(streamlits, ["https://school.example"])
    assert answer(over, Origin="https://school.example").text == "none"
    assert answer(over, Origin="http://school.example").status_code == 403


def test_two_origins_are_one_too_many() -> None:
    scope = {
        "type": "http",
        "query_string": b"",
        "headers": [(b"host", b"here"), (b"origin", b"http://here"), (b"origin", b"http://evil")],
    }
    sent = []

    async def send(message: dict) -> None:
        sent.append(message)

    asyncio.run(OwnOrigin(streamlits)(scope, None, send))
    assert sent[0]["status"] == 403


@pytest.mark.process
def test_the_server_asks_nobody_from_its_start_to_a_hundred_foreign_origins(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    watched = tmp_path / "watched"
    watched.touch()
    env = ENV | {"PYTHONPATH": os.pathsep.join((str(tmp_path), ENV["PYTHONPATH"]))}
    env |= {"WATCHED": str(watched), "SECOND_TOKEN_HOSTED": "1"}
    port = free_port()
    run = (sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port))
    base = f"127.0.0.1:{port}"
    with served(*run, ping=f"http://{base}/api/ping", env=env):
        with httpx.Client(base_url=f"http://{base}") as client:
            for number in range(100):
                headers = {"Origin": f"https://evil{number}.example"}
                for path in ("/", "/_stcore/health", "/_stcore/host-config", "/race"):
                    assert client.get(path, headers=headers).status_code == 403, path
        stream = {"subprotocols": ["streamlit"], "compression": None}
        for number in range(10):
            with pytest.raises(InvalidStatus, match="403"):
                url, origin = f"ws://{base}/_stcore/stream", f"https://evil{number}.example"
                connect(url, origin=origin, **stream).close()
        with connect(f"ws://{base}/_stcore/stream", origin=f"http://{base}", **stream):
            assert httpx.get(f"http://{base}/", headers={"Origin": f"http://{base}"}).is_success
    lines = watched.read_text().splitlines()
    foreign = [line for line in lines if "127.0.0.1" not in line and "0.0.0.0" not in line]
    assert not foreign, foreign


@pytest.mark.process
def test_the_watch_sees_what_it_is_there_for(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    env = os.environ | {"PYTHONPATH": str(tmp_path), "WATCHED": str(tmp_path / "watched")}
    code = "import httpx\ntry: httpx.get('http://nowhere.invalid')\nexcept httpx.HTTPError: pass"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert "nowhere.invalid" in json.dumps((tmp_path / "watched").read_text())
