"""What a page announces, and the files that are sent from memory."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from viz_engine import first_page
from viz_engine.first_page import STREAMLIT, FirstPage, scripts

JS = STREAMLIT / "static" / "js"


async def page(scope: dict, receive: object, send: Callable) -> None:
    """The app within: HTML at any address, but JSON under /api."""
    kind = b"application/json" if scope["path"].startswith("/api") else b"text/html; charset=utf-8"
    status = 404 if scope["path"] == "/api/nothing" else 200
    start = {"status": status, "headers": [(b"content-type", kind)]}
    await send({"type": "http.response.start"} | start)
    await send({"type": "http.response.body", "body": b"within"})


def ask(path: str, method: str = "GET", base_path: str = "") -> httpx.Response:
    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(FirstPage(page, base_path))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path)

    return asyncio.run(answer())


def test_every_element_has_a_script_and_all_that_it_imports_is_named_once() -> None:
    names = [address.removeprefix("./static/js/") for address in scripts()]
    assert len(names) == len(set(names))
    for element in first_page.ELEMENTS:
        assert any(name.split(".")[0] == element for name in names), element
    index = (STREAMLIT / "index.html").read_text("utf-8")
    for name in names:
        assert (JS / name).is_file() and name not in index
        for other in first_page._IMPORT.findall((JS / name).read_text("utf-8")):
            assert other in names or other in index, (name, other)


@pytest.mark.parametrize("path", ["/", "/race?run=1"])
def test_a_page_announces_its_scripts(path: str) -> None:
    links = ask(path).headers["link"].split(", ")
    assert links == [f"<{address}>; rel=modulepreload; crossorigin" for address in scripts()]
    assert len(ask(path).headers["link"]) < 3000  # proxies refuse long headers


def test_nothing_else_announces() -> None:
    for path, method in (("/api/ping", "GET"), ("/api/nothing", "GET"), ("/", "HEAD")):
        answer = ask(path, method)
        assert "link" not in answer.headers and (answer.content == b"within" or method == "HEAD")


def test_a_file_is_what_lies_in_streamlits_folder_and_may_be_kept() -> None:
    name = scripts()[0].removeprefix("./static/js/")
    answer = ask(f"/static/js/{name}")
    assert answer.content == (JS / name).read_bytes()
    assert answer.headers["content-type"] == "text/javascript"
    assert "immutable" in answer.headers["cache-control"]
    below = ask(f"/demo/static/js/{name}", base_path="/demo/")
    assert below.content == answer.content


@pytest.mark.parametrize(
    "path", ["/static/../index.html", "/static/js/%2e%2e/%2e%2e/index.html", "/static/js/none.js"]
)
def test_what_is_no_such_file_goes_to_the_app(path: str) -> None:
    assert ask(path).content == b"within"


def test_a_large_file_and_another_method_go_to_the_app() -> None:
    large = max(JS.glob("PlotlyChart.*.js"), key=lambda path: path.stat().st_size)
    assert large.stat().st_size > first_page.MOST_BYTES
    assert ask(f"/static/js/{large.name}").content == b"within"
    assert ask(scripts()[0].removeprefix("."), "POST").content == b"within"
