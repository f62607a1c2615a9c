"""A visitor with a page open, in a real browser."""

import json
import re
from collections.abc import Callable

import httpx

from tests.support.server import Server

WAIT_MS = 300_000  # the machine may be busy: no test asserts a time


class Visit:
    """One visitor: a browser context of their own, so that sessions do not mix."""

    def __init__(self, chromium: object, server: Server) -> None:
        self.server = server
        self.context = chromium.new_context(
            viewport={"width": 1280, "height": 800}, accept_downloads=True, locale="en-GB"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.faults: list[str] = []  # scripts that failed
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: str = "/") -> None:
        self.page.goto(self.server.url + path)
        self.page.locator(".kv[data-run]").wait_for()

    def stay(self, path: str = "/") -> None:
        """Open a page, unless it is open."""
        if not self.page.url.startswith(self.server.url + path):
            self.open(path)

    def ask(
        self,
        prompt: str,
        *,
        new_tokens: int = 8,
        context: str = "your prompt only",
        cache: bool = True,
    ) -> None:
        """Fill the boxes and press Generate."""
        box = self.page.get_by_role("textbox", name="Prompt")
        box.fill(prompt)
        box.press("Tab")
        self.slide("Length of the prompt", context)
        self.slide("New tokens", str(new_tokens))
        if not cache:
            self.page.get_by_role("button", name="Model and settings").click()
            self.page.locator(".st-key-cache").get_by_role("radio", name="off").click()
            self.page.keyboard.press("Escape")
        self.start("Generate")

    def slide(self, name: str, value: str) -> None:
        """Move a slider by its keys until it says `value`."""
        slider = self.page.get_by_role("slider", name=name)
        slider.focus()
        slider.press("Home")
        for _ in range(40):
            if (slider.get_attribute("aria-valuetext") or "").replace("\u202f", "") == value:
                return
            slider.press("ArrowRight")
        raise AssertionError(f"{name} has no {value}")

    def start(self, button: str) -> None:
        """Press it; what is read next is of the run (or the race) that it has started."""
        before = self.data("run")
        self.page.get_by_role("button", name=button, exact=True).click()
        self.wait(lambda: self.data("run") != before)
        self.wait(lambda: self.data("run") == self.run_id)

    def settle(self) -> None:
        """Wait until the page's script has come to its end, after something of its run was seen."""
        self.page.locator("[data-test-script-state=notRunning]").wait_for()

    @property
    def run_id(self) -> str:
        """Of the run or the race that the address names."""
        named = re.search("[?&](?:run|race)=([^&]+)", self.page.url)
        return named.group(1) if named else ""

    def data(self, name: str) -> str:
        return self.page.locator(".kv").get_attribute(f"data-{name}") or ""

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while the page goes on."""
        for _ in range(WAIT_MS // 50):
            if condition():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"it did not come about: {self.text('.say')!r}, {self.page.url}")

    def finish(self) -> None:
        """Wait until the run on the page has ended and its buttons have come back."""
        self.wait(lambda: self.state == "finished")
        self.wait(lambda: self.data("ended") == "1")
        self.page.get_by_role("button", name="Generate").wait_for()

    def frame(self, first: int = 0) -> tuple[dict, list[str]]:
        """The header and the lines of the run's frame, as the server holds it."""
        url = f"{self.server.url}/api/runs/{self.run_id}/snapshot?from={first}"
        head, *lines = httpx.get(url, timeout=WAIT_MS / 1000).raise_for_status().text.split("\n")
        return json.loads(head), lines

    def header(self) -> dict:
        """A header without lines: `first` is the number of events, `status` the run's."""
        return self.frame(10**9)[0]

    @property
    def state(self) -> str:
        return self.header()["status"]["state"]

    def text(self, selector: str) -> str:
        return self.page.locator(f".kv {selector}").first.inner_text()

    def close(self) -> None:
        self.context.close()
