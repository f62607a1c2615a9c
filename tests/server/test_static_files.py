"""Streamlit's own files as we answer them: the same bytes, and nothing else of the disk."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from streamlit.file_util import get_static_dir

import app
from viz_engine.server.static_files import StaticFiles, scripts

STREAMLIT = Path(get_static_dir())
HEADS = re.compile(r'(?:src|href)="\./(static/[^"]+)"')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A frontend of four scripts, as Streamlit's is laid out, with a secret beside it."""
    scripts = tmp_path / "frontend" / "static" / "js"
    scripts.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "frontend" / "index.html").write_text(
        '<head><script src="./static/js/index.a1.js"></script></head><body></body>'
    )
    (scripts / "index.a1.js").write_text("let index")
    imported = 'import{a}from"./index.a1.js";import"./moment.c3.js";import"./gone.e5.js"'
    (scripts / "Slider.b2.js").write_text(imported)
    (scripts / "moment.c3.js").write_text('import"./Slider.b2.js"')
    (scripts / "Table.d4.js").write_text("")
    return tmp_path / "frontend"


def asked(app: Callable[..., Awaitable[None]], path: str, **how: object) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(how.pop("method", "GET"), path, **how)

    return asyncio.run(ask())


def over(folder: Path, **how: object) -> StaticFiles:
    return StaticFiles(PlainTextResponse("Streamlit's"), folder, **how)


def test_a_file_is_answered_whole_and_for_good(folder: Path) -> None:
    answer = asked(over(folder), "/static/js/index.a1.js")
    assert answer.content == b"let index"
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    "path",
    ["/static/js/none.js", "/static/../../secret", "/static/%2e%2e/%2e%2e/secret", "/secret",
     "/static", "/static/js/", "//static/js/index.a1.js", "/api/ping", "/race"],
)  # fmt: skip
def test_all_else_is_left_to_streamlit(folder: Path, path: str) -> None:
    assert asked(over(folder), path).text == "Streamlit's"


def test_a_part_of_a_file_and_a_post_are_left_to_streamlit(folder: Path) -> None:
    path = "/static/js/index.a1.js"
    assert asked(over(folder), path, headers={"Range": "bytes=0-1"}).text == "Streamlit's"
    assert asked(over(folder), path, method="POST").text == "Streamlit's"


def test_a_base_path_stands_before_everything(folder: Path) -> None:
    served = over(folder, base_path="/demo/", elements=["Slider"])
    assert asked(served, "/demo/static/js/index.a1.js").text == "let index"
    assert "moment.c3.js" in asked(served, "/demo/").text
    assert asked(served, "/static/js/index.a1.js").text == "Streamlit's"
    assert asked(served, "/").text == "Streamlit's"


def test_the_first_page_names_what_its_elements_need_once(folder: Path) -> None:
    answer = asked(over(folder, elements=["Slider", "Unknown"]), "/")
    assert answer.headers["cache-control"] == "no-cache"
    assert sorted(HEADS.findall(answer.text)) == [
        "static/js/Slider.b2.js", "static/js/index.a1.js", "static/js/moment.c3.js",
    ]  # fmt: skip


def test_streamlits_scripts_of_every_element_of_the_first_page_are_found() -> None:
    for kind in app.ELEMENTS:
        assert len(scripts(STREAMLIT / "static" / "js", [kind])) > 1, kind


def test_the_first_page_of_the_app_is_streamlits_and_its_files_are_too() -> None:
    served = StaticFiles(PlainTextResponse("Streamlit's"), STREAMLIT, elements=app.ELEMENTS)
    page = asked(served, "/").text
    theirs = (STREAMLIT / "index.html").read_text(encoding="utf-8")
    start, end = theirs.split("</head>")
    assert page.startswith(start) and page.endswith(end)
    added = page.removeprefix(start).removesuffix(end)
    assert re.fullmatch(r'(<link rel="modulepreload" crossorigin href="[^"]+">\n)+</head>', added)
    assert len(HEADS.findall(page)) == len(set(HEADS.findall(page)))  # each is named once
    for name in HEADS.findall(page):
        assert asked(served, f"/{name}").content == (STREAMLIT / name).read_bytes()


def test_every_page_is_the_first_one_and_says_where_the_server_is(folder: Path) -> None:
    """Opened at a page's address, Streamlit's script would look below it for the server first."""
    served = over(folder, base_path="/demo/", pages=["race"])
    page = asked(served, "/demo/race").text
    assert page == asked(served, "/demo/").text and "(?:race)" in page
    assert page.index("BACKEND_BASE_URL") < page.index("</head>")
    assert asked(served, "/demo/other").text == "Streamlit's"
