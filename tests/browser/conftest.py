"""A real Chromium against a real server. Without Chromium the tests are skipped, unless
REQUIRE_BROWSER=1 (as in CI): then they fail."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.visit import Visit
from viz_engine.paths import ROOT

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="package")
def chromium() -> Iterator[object]:
    """The browser, once for all tests."""
    if not CHROMIUM.exists() and os.environ.get("REQUIRE_BROWSER") != "1":
        pytest.skip(f"no Chromium at {CHROMIUM}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """The app as it ships, with the default model."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app where neither torch nor transformers is installed."""
    folder = tmp_path_factory.mktemp("no_torch")
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text(f'raise ModuleNotFoundError(name="{name}")\n')
    server = Server(PYTHONPATH=os.pathsep.join((str(folder), str(ROOT))))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def guest(chromium: object, server: Server) -> Iterator[Visit]:
    """A visitor who stays for those tests of a file that start nothing: to load the page takes
    longer than what they ask of it."""
    guest = Visit(chromium, server)
    yield guest
    guest.close()
    assert not guest.faults


@pytest.fixture
def visit(chromium: object, server: Server) -> Iterator[Visit]:
    """A fresh visitor; a script that failed in their browser fails the test."""
    visit = Visit(chromium, server)
    yield visit
    visit.close()
    assert not visit.faults
