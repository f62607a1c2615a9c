"""What the browser tests share: a server on a free port, and a visitor with a page open."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
from fake_engine import until
from test_web_process import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
WAIT_MS = 120_000  # the machine may be busy: no test asserts a time


class Server:
    """`streamlit run app.py` (or another program on a port) with its engine process."""

    def __init__(self, *command: str, **env: str) -> None:
        port = str(free_port())
        self.url = f"http://127.0.0.1:{port}"
        command = command or (sys.executable, "-m", "streamlit", "run", "app.py", "--server.port")
        path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        self._popen = subprocess.Popen(
            [*command, port],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path} | env,
            stdout=subprocess.DEVNULL,
        )
        self.web = psutil.Process(self._popen.pid)
        until(self._answers, 60)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/ping").json() == {"ok": True}
        except (httpx.HTTPError, ValueError):
            return False

    def engine(self) -> psutil.Process:
        until(self.web.children, 60)
        return self.web.children()[0]

    def stop(self) -> None:
        self._popen.terminate()
        try:
            self._popen.wait(30)
        finally:
            self._popen.kill()


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
        self.page.locator(".kv").wait_for()

    def ask(self, prompt: str, *, new_tokens: int = 8, context: str = "as it is") -> None:
        """Fill the boxes and press Generate."""
        box = self.page.get_by_role("textbox", name="Prompt")
        box.fill(prompt)
        box.press("Tab")
        self.slide("Context to read", context)
        self.slide("New tokens", str(new_tokens))
        self.generate()

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

    def generate(self) -> None:
        before = self.page.url
        self.page.get_by_role("button", name="Generate").click()
        self.page.wait_for_function("before => location.href !== before", arg=before)
        self.wait(lambda: self.data("run") == self.run_id)  # what is read next is the new run's

    def upload(self, folder: Path, content: bytes) -> None:
        """Give a file of that content to the page's uploader, in place of the one before."""
        path = folder / f"{len(list(folder.iterdir()))}.jsonl"
        path.write_bytes(content)
        self.page.locator('input[type="file"]').set_input_files(path)

    @property
    def run_id(self) -> str:
        return self.page.url.partition("run=")[2].partition("&")[0]

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
        self.wait(lambda: self.snapshot_state() == "finished")
        self.wait(lambda: self.data("ended") == "1")
        self.page.get_by_role("button", name="Generate").wait_for()

    def snapshot(self, run_id: str | None = None) -> list[str]:
        """The lines of the run's frame, the header first."""
        answer = httpx.get(f"{self.server.url}/api/runs/{run_id or self.run_id}/snapshot")
        return answer.raise_for_status().text.split("\n")

    def snapshot_state(self) -> str:
        return httpx.Response(200, text=self.snapshot()[0]).json()["status"]["state"]

    def text(self, selector: str) -> str:
        return self.page.locator(f".kv {selector}").first.inner_text()

    def close(self) -> None:
        self.context.close()
