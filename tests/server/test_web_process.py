"""The web process: no torch in it, the routes inside Streamlit's own app, the engine beside it."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from websockets.sync.client import connect

from tests.support.fake_engine import until
from tests.support.server import ENV, free_port, is_engine, served
from viz_engine.paths import ROOT

pytestmark = pytest.mark.process

PAGES = sorted(path.name for path in (ROOT / "pages").glob("*.py") if path.name != "shell.py")
MIB = 2**20

# app.py on a registry whose engine is fake, with one run in it.
FAKE_APP = """
import sys, uvicorn
from tests.support import fake_engine
from viz_engine.server import registry, supervisor
from viz_engine.run.log import RunLog
runs = registry.Registry(supervisor.Supervisor(fake_engine.spawn()))
registry.install(runs)
events = fake_engine.generate(None, fake_engine.settings(steps=40), run_id="x", queued_ns=0,
                              cancelled=lambda: False)
runs.add_log(RunLog.of(events), run_id="example")
import app
uvicorn.run(app.app, port=int(sys.argv[1]), log_level="error")
"""

# A page that submits a long run for its own session and writes down the run's id.
TAB_APP = """
import sys, uvicorn, app
from tests.support import fake_engine
import streamlit as st
from viz_engine.server import registry, routes, supervisor
registry.GRACE_S = 0.5
registry.install(registry.Registry(supervisor.Supervisor(fake_engine.spawn())))
page = st.App(sys.argv[2], routes=routes.routes(), lifespan=app.lifespan)
uvicorn.run(page, port=int(sys.argv[1]), log_level="error")
"""
TAB_PAGE = """
import pathlib
from tests.support import fake_engine
from streamlit.runtime.scriptrunner import get_script_run_ctx
from viz_engine.server import registry
settings = fake_engine.settings(steps=100_000, delay_s=0.01)
run = registry.registry().submit(settings, get_script_run_ctx().session_id)
pathlib.Path(__file__).with_suffix(".id").write_text(run.id + "\\n")
"""

# Every page, as its visitor's script run sees it.
EVERY_PAGE = """
import json, sys
from streamlit.testing.v1 import AppTest
test = AppTest.from_file(sys.argv[1] + "/pages/shell.py", default_timeout=300).run()
said = {}
for page in sys.argv[2:]:
    test.switch_page(sys.argv[1] + "/pages/" + page).run()
    heavy = [name for name in ("torch", "transformers", "gguf") if name in sys.modules]
    said[page] = [heavy, [error.value for error in test.exception]]
print(json.dumps(said))
"""

# The first page in a process that has only started the server.
AFTER_START = """
import json, sys, app
from viz_engine.server import registry
runs = registry.Registry()
app.get_ready(runs)
before = set(sys.modules)
from streamlit.testing.v1 import AppTest
test = AppTest.from_file(sys.argv[1] + "/pages/shell.py", default_timeout=300)
before |= set(sys.modules)
test.run()
late = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([sorted(late & {"viz_engine", "pandas", "pyarrow", "PIL", "tokenizers", "jinja2"}),
                  [run.id for run in runs._runs.values()]]))
"""


def test_no_page_imports_torch() -> None:
    command = [sys.executable, "-c", EVERY_PAGE, str(ROOT), *PAGES]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(PAGES, [[], []])


def test_the_web_process_is_small_and_its_engine_ends_with_it() -> None:
    port = free_port()
    run = (sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless", "true")
    options = ("--server.port", str(port), "--server.baseUrlPath", "sub")
    with served(*run, *options, ping=f"http://127.0.0.1:{port}/sub/api/ping") as web:
        until(lambda: [child for child in web.children() if is_engine(child)])
        (engine,) = web.children()
        assert web.memory_info().rss < 350 * MIB
        if sys.platform == "linux":
            maps = Path(f"/proc/{web.pid}/maps").read_text()
            assert "libtorch" not in maps
            assert web.nice() == engine.nice()  # the first page comes first
    until(lambda: not engine.is_running())


def test_the_routes_work_inside_streamlit() -> None:
    port = free_port()
    program = (sys.executable, "-c", FAKE_APP, str(port))
    base = f"127.0.0.1:{port}/api"
    with served(*program, ping=f"http://{base}/ping"):
        gzip = {"Accept-Encoding": "gzip"}
        answer = httpx.get(f"http://{base}/runs/example/snapshot", headers=gzip)
        assert answer.headers["content-encoding"] == "identity"
        assert len(answer.text.splitlines()) == 43
        with connect(f"ws://{base}/runs/example/ws?from=2", compression=None) as client:
            (frame,) = list(client)
            assert frame.split("\n")[1:] == answer.text.split("\n")[3:]
        assert httpx.get(f"http://{base}/runs/nope/snapshot").status_code == 404


def test_closing_the_tab_stops_its_run(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(TAB_PAGE)
    port = free_port()
    program = (sys.executable, "-c", TAB_APP, str(port), str(tmp_path / "page.py"))
    with served(*program, ping=f"http://127.0.0.1:{port}/api/ping") as web:
        url = f"ws://127.0.0.1:{port}/_stcore/stream"
        note = tmp_path / "page.id"
        # No pings: a tab that reads nothing would miss the answers, and close by itself.
        options = {"compression": None, "ping_interval": None}
        with connect(url, subprotocols=["streamlit"], **options) as tab:
            tab.send(BackMsg(rerun_script=ClientState()).SerializeToString())
            until(lambda: note.exists() and note.read_text().endswith("\n"))
            snapshot = f"http://127.0.0.1:{port}/api/runs/{note.read_text().strip()}/snapshot"
            # Three times the grace, and nobody subscribes: the open tab alone keeps it going.
            until(lambda: httpx.get(snapshot).text.count("step_finished") > 150)
            assert "run_finished" not in httpx.get(snapshot).text
            if sys.platform == "linux":  # from the first run on the page gives way to the model
                assert web.nice() == min(web.children()[0].nice() + 10, 19)
        until(lambda: "run_finished" in httpx.get(snapshot).text)
        head, *_, last = httpx.get(snapshot).text.split("\n")
        assert json.loads(last)["finish_reason"] == "cancelled"
        assert "page was closed" in json.loads(head)["status"]["text"]


def test_the_first_visitor_does_not_wait_for_imports() -> None:
    command = [sys.executable, "-c", AFTER_START, str(ROOT)]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    late, ready = json.loads(done.stdout.splitlines()[-1])
    assert late == []
    assert ready == ["recorded-1-document"]
