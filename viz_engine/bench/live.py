"""`bench --live`: how soon an event is on the screen, how smooth, how heavy.

A test producer feeds the real page over the real routes at a steady rate while the engine is idle;
Chromium draws it headless. Times are taken in the page (`kvProbe` of the live view) and compared
with the moment at which the event was given to the run; a first page tells its time itself, in a
tab that no driver watches: to be told of ninety requests costs a tenth of it. It needs playwright
and a Chromium, and runs from a clone (the producer is tests/support/producer.py). Nothing here
knows the model.

Try it: `python -m viz_engine bench --live --seconds 5`
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from viz_engine.paths import ROOT
from viz_engine.run import metrics
from viz_engine.run.codec import to_line
from viz_engine.server import registry
from viz_engine.server.runs import Run
from viz_engine.text import UserError

TARGETS = {  # name -> (limit, whether less is better)
    "event_to_pixel_p95_ms": (50.0, True),
    "fps": (55.0, False),
    "snapshot_drawn_ms": (500.0, True),
    "page_interactive_ms": (2000.0, True),
    "web_process_mib": (350.0, True),
}
VIEW = """(() => {
  for (const host of document.querySelectorAll('[data-testid=stBidiComponentIsolated]')) {
    const kv = host.shadowRoot?.querySelector('.kv');
    if (kv) return kv;
  }
  return null; })()"""


# The view is there, and the button that starts a run.
INTERACTIVE = f"{VIEW} !== null && document.querySelector('.st-key-generate button') !== null"
# Streamlit's own share of a first page: a script of one line.
EMPTY_PAGE = "import streamlit as st\nst.write('empty')\n"
EMPTY_THERE = "document.querySelector('[data-testid=stMarkdown]') !== null"
THERE = {"plain": INTERACTIVE, "empty": EMPTY_THERE}
FIRST_PAGES = 5
WINDOW = {"width": 1440, "height": 900}
# A tab that asks for the first page when it, the browser and the server have come to rest.
TAB = """<script>setTimeout(() => location.replace("../"), 1500);</script>"""
# Put into the first page's head: tells the server when the page is there, in ms since its request.
WATCH = """<script>(() => { const look = () => { const ms = performance.now();
  if (%s) fetch("./bench/there?ms=" + ms, { method: "POST" }); else setTimeout(look, 20); };
  look(); })();</script>"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=24_000, help="rows present before the first")
    parser.add_argument("--snapshot-rows", type=int, default=32_000)
    parser.add_argument("--rate", type=int, default=50, help="steps a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--chromium", default=os.environ.get("CHROMIUM") or _chromium())
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Exit code 0 where every target is met, else 1."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise UserError("view.bench.playwright") from None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=args.chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        result = {"machine": f"{platform.machine()}, {os.cpu_count()} CPUs"}
        result |= _first_page(browser, args)
        result |= _stream(browser, args)
        browser.close()
    _print(result, as_json=args.json)
    return 0 if all(_met(name, result[name]) for name in TARGETS) else 1


def _met(name: str, value: float) -> bool:
    limit, less = TARGETS[name]
    return value <= limit if less else value >= limit


def _print(result: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        shown = f"{value:,.1f}" if isinstance(value, float) else str(value)
        note = ""
        if name in TARGETS:
            limit, less = TARGETS[name]
            verdict = "ok" if _met(name, value) else "MISSED"
            note = f"{'at most' if less else 'at least'} {limit:g}  {verdict}"
        print(f"{name:26} {shown:>12}  {note}")


# ---- what is measured --------------------------------------------------------------------------


def _first_page(browser: object, args: argparse.Namespace) -> dict[str, float]:
    """From the request of the page to its view and its button being there, as the first visitor
    of a fresh server, and the web process's memory then; by turns with an empty Streamlit page,
    below which no page of ours can be. Medians. The browser and the server are at rest before
    the request, as a visitor's are: to start both is another matter, and takes both cores."""
    import psutil

    tabs = browser.new_browser_cdp_session()
    times: dict[str, list[float]] = {"plain": [], "empty": []}
    resident = []
    for what in ("empty", "plain") * FIRST_PAGES:
        with server(args, what) as (address, pid):
            visitor = tabs.send("Target.createBrowserContext")  # nothing cached, no driver
            tabs.send("Target.createTarget", {"url": f"{address}bench/tab", **visitor, **WINDOW})
            times[what].append(_told(f"{address}bench/there"))
            time.sleep(0.5)
            if what == "plain":
                resident.append(psutil.Process(pid).memory_info().rss / 2**20)
            tabs.send("Target.disposeBrowserContext", visitor)
    return {
        "page_interactive_ms": metrics.percentile(times["plain"], 0.5),
        "empty_page_ms": metrics.percentile(times["empty"], 0.5),
        "web_process_mib": max(resident),
    }


def _told(address: str) -> float:
    """The first number that the page has told, in ms."""
    deadline = time.monotonic() + 60
    while not (told := json.loads(_get(address))):
        if time.monotonic() > deadline:
            raise RuntimeError("the page did not come")
        time.sleep(0.1)
    return told[0]


def _stream(browser: object, args: argparse.Namespace) -> dict[str, float]:
    with server(args, "runs") as (address, _):
        page = _probed(browser, f"{address}?run=bench-grow")
        ended = f"Number({VIEW}?.dataset.ended ?? 0) === 1"
        page.wait_for_function(ended, timeout=180_000, polling=250)  # not in each frame
        page.wait_for_timeout(300)
        marks = page.evaluate("globalThis.kvProbe")
        frames = page.evaluate("globalThis.kvFrames")
        page.close()
        stamps = json.loads(_get(f"{address}bench/stamps"))
        result = _delays(marks, frames, stamps)
        page = _probed(browser, f"{address}?run=bench-snapshot")
        page.wait_for_function(
            f"Number({VIEW}?.dataset.rows ?? 0) >= {args.snapshot_rows - 1}", timeout=60_000
        )
        page.wait_for_timeout(300)
        result["snapshot_drawn_ms"] = page.evaluate(
            """() => { const entry = performance.getEntriesByType('resource')
                 .find((e) => e.name.includes('/snapshot'));
               const most = Math.max(...kvProbe.map((m) => m[1]));
               const drawn = kvProbe.find((m) => m[0] === 'drawn' && m[1] === most);
               return drawn[2] - performance.timeOrigin - entry.startTime; }"""
        )
        result["snapshot_mib"] = page.evaluate(
            """() => performance.getEntriesByType('resource')
                 .find((e) => e.name.includes('/snapshot')).decodedBodySize / 2 ** 20"""
        )
        page.close()
    return result


def _probed(browser: object, address: str) -> object:
    page = browser.new_page(viewport=WINDOW)
    page.add_init_script(
        """globalThis.kvProbe = []; globalThis.kvFrames = [];
        const beat = (at) => { kvFrames.push(performance.timeOrigin + at);
          requestAnimationFrame(beat); }; requestAnimationFrame(beat);"""
    )
    page.goto(address, wait_until="commit")
    return page


def _delays(marks: list, frames: list[float], stamps: dict[str, float]) -> dict[str, float]:
    """From the moment an event was given to the run to the first frame that shows it. `marks` are
    ["drawn", events shown, epoch ms]; `stamps` event index -> epoch ms."""
    drawn = [(shown, at) for kind, shown, at in marks if kind == "drawn"]
    delays, place = [], 0
    for index, given in sorted((int(i), at) for i, at in stamps.items()):
        while place < len(drawn) and drawn[place][0] <= index:
            place += 1
        if place == len(drawn):
            break
        delays.append(drawn[place][1] - given)
    first, last = min(stamps.values()), max(stamps.values())
    beats = [at for at in frames if first <= at <= last]
    shown = [at for _, at in drawn if first <= at <= last]
    return {
        "events": len(delays),
        "events_missing": len(stamps) - len(delays),
        "event_to_pixel_p50_ms": metrics.percentile(delays, 0.5),
        "event_to_pixel_p95_ms": metrics.percentile(delays, 0.95),
        "fps": (len(beats) - 1) * 1e3 / (last - first),
        "drawn_per_s": len(shown) * 1e3 / (last - first),
    }


# ---- the server --------------------------------------------------------------------------------


@contextlib.contextmanager
def server(args: argparse.Namespace, what: str) -> Iterator[tuple[str, int]]:
    """The app in a process of its own; yields its address and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sizes = f"{args.rows},{args.snapshot_rows},{args.rate},{args.seconds}"
    command = [sys.executable, "-m", "viz_engine.bench.live", what, str(port), sizes]
    env = os.environ | {"STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}/"
        try:
            deadline = time.monotonic() + 120
            while not _answers(f"{address}api/ping"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the server did not start")
                time.sleep(0.05)
            yield address, process.pid
        finally:
            process.terminate()


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read()


def _answers(address: str) -> bool:
    try:
        return bool(_get(address))
    except OSError:
        return False


def _serve(what: str, port: int, sizes: str) -> None:
    """The app with an idle engine and, for "runs", a finished run and one that grows; for "empty",
    a page of one line in its place."""
    import uvicorn

    from viz_engine.server import routes, static_files

    runs = registry.Registry()
    runs.engine.start = lambda: None
    registry.install(runs)
    stamps: dict[int, float] = {}
    if what == "runs":
        rows, snapshot_rows, rate, seconds = sizes.split(",")
        _add_runs(runs, int(rows), int(snapshot_rows), int(rate), float(seconds), stamps)
    real, index = routes.routes, static_files.index
    routes.routes = lambda base="": [*_own_routes(stamps), *real(base)]
    if what in THERE:
        watch = WATCH % THERE[what]
        static_files.index = lambda *of: index(*of).replace("<head>", f"<head>{watch}", 1)
    sys.path.insert(0, str(ROOT))
    import app

    served = app.app
    if what == "empty":
        script = Path(tempfile.mkdtemp()) / "empty.py"
        script.write_text(EMPTY_PAGE, encoding="utf-8")
        served = type(app.app)(script, routes=routes.routes(), middleware=app.middleware)
    uvicorn.run(served, port=port, log_level="error", ws_per_message_deflate=False)


def _own_routes(stamps: dict[int, float]) -> list:
    """When each event was given to the run; a tab at rest; what a first page has told."""
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse
    from starlette.routing import Route

    told: list[float] = []

    def there(request: Request) -> JSONResponse:
        if request.method == "POST":
            told.append(float(request.query_params["ms"]))
        return JSONResponse(told)

    return [
        Route("/bench/stamps", lambda request: JSONResponse(stamps)),
        Route("/bench/tab", lambda request: HTMLResponse(TAB)),
        Route("/bench/there", there, methods=["GET", "POST"]),
    ]


def _producer() -> object:
    path = ROOT / "tests" / "support" / "producer.py"
    if not path.exists():
        raise UserError("view.bench.producer")
    described = importlib.util.spec_from_file_location("producer", path)
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def _add_runs(
    runs: registry.Registry, rows: int, snapshot_rows: int, rate: int, seconds: float, stamps: dict
) -> None:
    producer = _producer()
    runs.add_log(producer.log((snapshot_rows - 500,), 501), run_id="bench-snapshot")
    records = list(producer.events((rows,), int(rate * seconds), step_ms=1000 // rate))
    grow = Run("bench-grow", None, None)
    runs._runs[grow.id] = grow
    lines = [to_line(event) for event in records]
    begun = next(i for i, event in enumerate(records) if getattr(event, "phase", "") == "decode")
    for event, line in zip(records[:begun], lines[:begun], strict=True):
        grow.append_event(event, line)

    def feed() -> None:
        while not grow.num_subscribers:
            time.sleep(0.05)
        time.sleep(2.0)  # the page has drawn what was there
        due = time.perf_counter()
        for at in range(begun, len(records)):
            if getattr(records[at], "phase", "") == "decode":
                due += 1 / rate
                time.sleep(max(0.0, due - time.perf_counter()))
            stamps[at] = time.time() * 1e3
            grow.append_event(records[at], lines[at])

    threading.Thread(target=feed, daemon=True).start()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
