"""The live view: many modules made one, and the same run in Python and in JavaScript."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import producer
from viz_engine.paths import ROOT
from viz_engine.run import cost, metrics
from viz_engine.run.codec import to_line
from viz_engine.run.events import KVSample, RunFinished, StepFinished
from viz_engine.run.log import RunLog
from viz_engine.server.runs import Run
from viz_engine.view import components, frame
from viz_engine.view.live import mount as live_mount
from viz_engine.view.memory import mount
from viz_engine.view.race import mount as race_mount

SCRIPTS = ROOT / "assets" / "js"
NODE = shutil.which("node")
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")
RUNS = {
    "chat": {"prompt_lens": (12,), "new_tokens": 9},
    "long": {"prompt_lens": (700,), "new_tokens": 80},
    "block": {"prompt_lens": (250,), "new_tokens": 20},
    "batch": {"prompt_lens": (30, 18, 300, 7), "new_tokens": 24, "ended_at": {1: 5, 3: 11}},
    "none": {"prompt_lens": (40,), "new_tokens": 6, "cache": "none"},
    "one": {"prompt_lens": (1,), "new_tokens": 1},
    "cut": {"prompt_lens": (20,), "new_tokens": 5, "finish": None},
}


def run_of(name: str) -> Run:
    run = Run(name, None, None)
    for event in producer.events(**RUNS[name]):
        run.append_event(event, to_line(event))
    return run


def frames_of(run: Run) -> list[str]:
    """A frame for each event, as a slow run sends them, each repeating the three before it."""
    frames = []
    growing = Run(run.id, None, None)
    for at, event in enumerate(run.log):
        growing.append_event(event, run.lines[at])
        frames.append(growing.read(max(0, at - 3), "en").text)
    return frames


def checksum(data: bytes) -> int:
    total = 0
    for byte in data:
        total = (total * 31 + byte) % 1000003
    return total


def apart(log: RunLog) -> tuple[int, int]:
    """Bytes of pads, and of sequences that have ended, from the definition."""
    if not log.steps or log.started.settings.cache == "none":
        return 0, 0
    row = cost.row_bytes(log.started.spec, log.started.settings.dtype)
    step, pads, ended = log.steps[-1], 0, 0
    for b, ids in enumerate(log.started.prompt_token_ids):
        pad = min(log.num_columns, log.started.prompt_columns - len(ids))
        pads += pad * row
        if step.phase == "decode" and not step.num_new_tokens[b]:
            ended += (log.num_columns - pad) * row
    return pads, ended


def python_report(log: RunLog, samples: list[KVSample], predicted: list[dict]) -> dict:
    """What the view must show of a prefix."""
    batch = log.started.settings.batch
    step = log.steps[-1] if log.steps else None
    summary = metrics.summary(log)
    rows = list(log.num_rows) if log.started.settings.cache != "none" else [0] * batch
    pieces = [[t for s in log.steps for t in s.token_texts[b]] for b in range(batch)]
    every = [[*log.started.prompt_texts[b], *pieces[b]] for b in range(batch)]
    kept = [[s for s in samples if s.sequence == b] for b in range(batch)]
    pads, ended = apart(log)
    seen = predicted[len(log.steps) - 1] if step else None
    held, read = ("kv_live_bytes", "kv_reserved_bytes"), ("kv_bytes_read", "weight_bytes_read")
    return {
        "k": len(log.steps),
        "rows": rows,
        "columns": log.num_columns,
        "live": step.kv_live_bytes if step else None,
        "reserved": step.kv_reserved_bytes if step else None,
        "agrees": bool(step) and all(getattr(step, name) == seen[name] for name in held),
        "readAgrees": bool(step) and all(getattr(step, name) == seen[name] for name in read),
        "moved": sum(s.weight_bytes_read + s.kv_bytes_read + s.kv_bytes_written for s in log.steps),
        "pads": pads,
        "ended": ended,
        "texts": ["".join(texts) for texts in pieces],
        "last": [every[b][rows[b] - 1] if rows[b] else None for b in range(batch)],
        "tokens": [len(texts) for texts in pieces],
        "ttft": summary.ttft_ns,
        "num_tokens": summary.num_tokens,
        "num_gaps": summary.num_gaps,
        "median": summary.itl_median_ns,
        "p95": summary.itl_p95_ns,
        "tpot": summary.tpot_ns,
        "rate": summary.tokens_per_s,
        "sampled": [max((s.stop for s in kept[b]), default=0) for b in range(batch)],
        "bytes": [
            [checksum(b"".join(s.k for s in kept[b])), checksum(b"".join(s.v for s in kept[b]))]
            for b in range(batch)
        ],
        "over": log.finished is not None,
    }


def javascript_reports(run: Run) -> dict:
    """What the .mjs makes of the same frames, at every prefix."""
    question = {
        "frames": frames_of(run),
        "prefixes": list(range(len(run.log.steps) + 1)),
    }
    done = subprocess.run(
        [NODE, str(ROOT / "tests" / "js" / "facts.mjs")],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


@needs_node
@pytest.mark.parametrize("name", RUNS)
def test_python_and_javascript_see_the_same_run_at_every_prefix(name: str) -> None:
    run = run_of(name)
    answer = javascript_reports(run)
    log, samples, scrubbed = RunLog(), [], []
    for at, event in enumerate(run.log):
        log.append(event)
        if isinstance(event, KVSample):
            samples.append(event)
        expected = python_report(log, samples, run.predicted)
        assert answer["grown"][at] == expected, f"event {at}"
        if isinstance(event, StepFinished) or not log.steps:
            keep = {key: expected[key] for key in ("k", "rows", "moved", "median")}
            scrubbed[len(log.steps) :] = [keep]
    assert answer["scrubbed"] == scrubbed


@needs_node
def test_the_view_s_own_tests_pass() -> None:
    files = sorted(str(path) for path in (ROOT / "tests" / "js").glob("*.test.mjs"))
    done = subprocess.run([NODE, "--test", *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-4000:]


JOINED = {
    "live": live_mount.MODULES,
    "race": race_mount.MODULES,
    "bill": mount.MODULES,
    "ahead": mount.AHEAD_MODULES,
    "frame": frame.MODULES,
}
VIEWS = pytest.mark.parametrize("modules", JOINED.values(), ids=JOINED)


@needs_node
@VIEWS
def test_the_joined_module_is_valid(tmp_path: Path, modules: tuple[str, ...]) -> None:
    joined = tmp_path / "joined.mjs"
    joined.write_text(components.source(modules), encoding="utf-8")
    subprocess.run([NODE, "--check", str(joined)], check=True, timeout=60)


@VIEWS
def test_the_joined_module_imports_nothing_and_has_one_export(modules: tuple[str, ...]) -> None:
    source = components.source(modules)
    assert "\n" in source, "a path, to Streamlit, if it were one line"
    assert not re.findall(r"^\s*import\b", source, re.MULTILINE)
    assert re.findall(r"^export (\w+)", source, re.MULTILINE) == ["default"]


@VIEWS
def test_no_two_modules_use_one_name(modules: tuple[str, ...]) -> None:
    names: list[str] = []
    pattern = r"^(?:export )?(?:default )?(?:async )?(?:function|const|let|class) (\w+)"
    for name in modules:
        text = (SCRIPTS / f"{name}.mjs").read_text(encoding="utf-8")
        names += re.findall(pattern, text, re.MULTILINE)
    assert sorted(names) == sorted(set(names))


@VIEWS
def test_every_module_imports_only_from_those_joined_before_it(modules: tuple[str, ...]) -> None:
    for at, name in enumerate(modules):
        text = (SCRIPTS / f"{name}.mjs").read_text(encoding="utf-8")
        imported = re.findall(r'from "\./(\w+)\.mjs"', text)
        assert set(imported) <= set(modules[:at]), name


def test_every_module_is_joined_into_a_view() -> None:
    joined = {name for modules in JOINED.values() for name in modules}
    assert {path.stem for path in SCRIPTS.glob("*.mjs")} == joined


def test_model_text_never_becomes_markup() -> None:
    for path in SCRIPTS.glob("*.mjs"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), path


def test_every_string_that_the_view_asks_for_exists() -> None:
    known = components.words("en")
    for path in SCRIPTS.glob("*.mjs"):
        text = path.read_text(encoding="utf-8")
        for key in re.findall(r"""\bt\("([\w.]+)\"""", text):
            assert f"view.{key}" in known, f"{path.name}: {key}"


def test_a_fed_frame_repeats_the_last_second_and_resumes_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state: dict = {}
    now = [100.0]
    monkeypatch.setattr(components.st, "session_state", state)
    monkeypatch.setattr(components.time, "monotonic", lambda: now[0])
    run = Run("fed", None, None)
    records = list(producer.events(**RUNS["chat"]))

    def first_of_next() -> int:
        return json.loads(components._next_frame(run, "view", "en").split("\n", 1)[0])["first"]

    for event in records[:4]:
        run.append_event(event, to_line(event))
    assert first_of_next() == 0
    run.append_event(records[4], to_line(records[4]))
    now[0] += 0.1
    assert first_of_next() == 0, "what is younger than a second once more"
    now[0] += 0.95
    assert first_of_next() == 4
    now[0] += 5.0
    assert first_of_next() == 5
    state["view"] = {"resume": 2}
    assert first_of_next() == 2
    assert first_of_next() == 5, "once, not for ever"
    for event in records[5:]:
        run.append_event(event, to_line(event))
    assert isinstance(records[-1], RunFinished)
    assert first_of_next() == 0, "the last frame completes whatever the browser has"


# The module as Streamlit calls it, in a page without Streamlit: rerun(run_id, frames), then what
# the view says once it has nothing more to draw: no frame and no timer of its is outstanding.
PAGE = """<!doctype html><meta charset="utf-8"><style>%(style)s</style><body>
<div id="view"></div><pre id="said"></pre>
<script>
const nextFrame = requestAnimationFrame.bind(window);
const pending = new Set();
for (const [ask, forget] of [
  ["requestAnimationFrame", "cancelAnimationFrame"],
  ["setTimeout", "clearTimeout"],
]) {
  const [real, realForget] = [window[ask], window[forget]];
  window[ask] = (call, ...rest) => {
    const id = real((...given) => (pending.delete(ask + id), call(...given)), ...rest);
    pending.add(ask + id);
    return id;
  };
  window[forget] = (id) => (pending.delete(ask + id), realForget(id));
}
async function allDrawn() {
  do {
    await new Promise(nextFrame);
    await new Promise(nextFrame); // what the layout of the frame before asked for
  } while (pending.size);
}
</script>
<script type="module">
%(source)s
const strings = %(strings)s;
const said = [];
async function rerun(runId, frames) {
  const data = { run_id: runId, language: "en", strings, transport: "poll", over: false, frames };
  try {
    render({ parentElement: view, data, setStateValue() {}, setTriggerValue() {} });
  } catch (error) {
    said.push(`thrown: ${error}`);
  }
  await allDrawn();
  const root = view.querySelector(".kv");
  said.push([root.dataset.events, root.querySelector(".say").textContent].join(" "));
}
for (const [runId, frames] of %(reruns)s) await rerun(runId, frames);
document.getElementById("said").textContent = JSON.stringify(said);
</script>"""


# In a process of its own: two of Playwright's loops cannot be in one.
DRIVER = """
import sys
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    browser = playwright.chromium.launch(executable_path=sys.argv[1], args=flags)
    page = browser.new_page()
    page.goto(sys.argv[2])
    page.set_default_timeout(120_000)
    said = page.locator("#said:not(:empty)")  # not by a function: its frames would be waited for
    said.wait_for()
    print(said.text_content())
    browser.close()
"""


def said_in_a_page(tmp_path: Path, reruns: list[tuple[str, list[str]]]) -> list[str]:
    """What the view says after each rerun of the page."""
    if not CHROMIUM.exists() and os.environ.get("REQUIRE_BROWSER") != "1":
        pytest.skip(f"no Chromium at {CHROMIUM}")
    parts = {"strings": components.words("en"), "reruns": reruns}
    shown = {name: json.dumps(part).replace("</", "<\\/") for name, part in parts.items()}
    shown["source"] = components.source(live_mount.MODULES)
    shown["style"] = components.style("live_view.css")
    path = tmp_path / "page.html"
    path.write_text(PAGE % shown, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(CHROMIUM), path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


@pytest.mark.browser
def test_a_run_that_cannot_be_shown_is_a_sentence_and_the_next_one_is_shown(tmp_path: Path) -> None:
    good = run_of("chat").read(0, "en").text
    events = len(run_of("chat").log)
    broken = {
        "not a frame": "<html>",
        "cut": good[:-30],
        "event": good.replace('"appended":[[0,12]]', '"appended":null'),
        "number": good.replace('"queued_ns":900000000', '"queued_ns":NaN'),
    }
    sentence = f"0 {components.words('en')['view.say.broken']}"
    reruns = []
    for name, text in broken.items():
        assert text != good, name
        reruns += [(name, [text]), (name, [good]), (f"after {name}", [good])]
    said = said_in_a_page(tmp_path, reruns)
    for at, name in enumerate(broken):
        assert said[3 * at : 3 * at + 2] == [sentence] * 2, name
        assert said[3 * at + 2].startswith(f"{events} The first token took"), name


@pytest.mark.browser
def test_a_frame_that_only_says_where_the_run_stands_changes_the_sentence(tmp_path: Path) -> None:
    run = Run("queued", None, None)
    frames = []
    for position in (2, 1):
        run.set_status("queued", position=position)
        frames.append(run.read(0, "en").text)
    run.set_status("loading", fraction=0.4)
    frames.append(run.read(0, "en").text)
    said = said_in_a_page(tmp_path, [("queued", [frame]) for frame in frames])
    assert ["place 2" in said[0], "place 1" in said[1], "40 %" in said[2]] == [True] * 3
