"""The command line: `record` writes a run, and the run's command makes it again."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import parsed
from viz_engine import __main__ as main
from viz_engine.paths import ROOT
from viz_engine.run import command
from viz_engine.run.events import RunSettings
from viz_engine.run.log import RunLog


def record(*words: str) -> int:
    return main.main(["record", *words])


SETTINGS = [
    RunSettings(model=command.DEFAULT_MODEL, prompts=("Hi",)),
    RunSettings(model="a folder/with space", prompts=("-starts with a dash", "--out"), batch=2),
    RunSettings(model="owner/name", prompts=('it\'s "quoted" $HOME `x` \\ \n new line',)),
    RunSettings(model="m", prompts=("nul \0 bell \x07 \r",), stop_token_ids=()),
    RunSettings(model="m", prompts=("書 👩‍🚀 \u202e",), stop_token_ids=(3, 5), chat=False),
    RunSettings(
        model="m",
        prompts=("x",),
        device="cpu",
        dtype="float32",
        cache="none",
        batch=5,
        context_len=600,
        filler="zh",
        new_tokens=9,
        temperature=0.7,
        top_p=0.9,
        seed=-4,
        chunk_len=0,
        warm_up=False,
    ),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_a_command_parses_back_to_its_settings(settings: RunSettings) -> None:
    assert parsed(command.record_command(settings)) == settings


@pytest.mark.process
def test_a_posix_shell_hands_the_prompt_over_unchanged() -> None:
    prompt = SETTINGS[2].prompts[0]
    line = command.record_command(SETTINGS[2])
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    line = line.replace("python -m viz_engine", f"{sys.executable} -c {shlex.quote(show)}", 1)
    said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert f"--prompt={prompt}" in json.loads(said.stdout)


def test_record_writes_a_run_that_its_own_command_makes_again(
    tiny_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    options = ["--prompt", "one", "--prompt", "the second", "--new-tokens", "5", "--raw"]
    options += ["--temperature", "1.5", "--seed", "3", "--dtype", "float32", "--chunk-len", "4"]
    assert record(*options, "--model", str(tiny_folder()), "--out", str(first)) == 0
    said = capsys.readouterr()
    assert said.out == "" and "decode" in said.err
    log = RunLog.read(first.read_bytes())
    assert log.finished.finish_reason in ("length", "stop")
    assert first.read_bytes().isascii()
    again = shlex.split(log.started.command)[4:]
    assert record(*again, "--out", str(second)) == 0
    remade = RunLog.read(second.read_bytes())
    assert remade.started.settings == log.started.settings
    for a, b in zip(log.steps, remade.steps, strict=True):
        assert (a.token_ids, a.kv_bytes_read, a.appended) == (
            b.token_ids,
            b.kv_bytes_read,
            b.appended,
        )


def test_a_length_alone_makes_a_prompt_of_the_shipped_text(
    tiny_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--prompt-tokens", "300", "--new-tokens", "2", "--filler", "zh", "--out", "-"]
    assert record(*options, "--model", str(tiny_folder())) == 0
    log = RunLog.read(capsys.readouterr().out.encode())
    assert len(log.started.prompt_token_ids[0]) == 300
    assert command.QUESTIONS["zh"] in "".join(log.started.prompt_texts[0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "--prompt-tokens"),
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "x" * 2000], "at most 1024"),
        (["--prompt", "x", "--new-tokens", "0"], "0 new tokens"),
        (["--prompt", "x", "--batch", "0"], "batch of 0"),
        (["--prompt", "x", "--device", "cuda:9"], "no device"),
        (["--prompt", "x", "--dtype", "int3"], "int3"),
        (["--prompt", "x", "--model", "/no/such"], "neither a folder"),
        (["--prompt-json", "{not json"], "JSON string"),
        (["--prompt", "x", "--out", "/no/such/folder/run.jsonl"], "cannot be written"),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_2(
    tiny_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = [] if "--model" in options else ["--model", str(tiny_folder())]
    assert record(*options, *model) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence in last
    assert list(tmp_path.iterdir()) == []  # a refusal leaves no file


def test_a_run_that_fails_is_written_and_exits_with_1(
    tiny_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from viz_engine.engine import generate

    def failing(*args: object) -> None:
        raise ValueError("no luck")

    monkeypatch.setattr(generate, "forward", failing)
    out = tmp_path / "run.jsonl"
    options = ["--prompt", "x", "--no-warm-up", "--model", str(tiny_folder()), "--out", str(out)]
    assert record(*options) == 1
    assert "no luck" in capsys.readouterr().err
    assert RunLog.read(out.read_bytes()).finished.finish_reason == "error"


@pytest.mark.process
def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom viz_engine import __main__ as m\n"
        "try:\n    m.main(['record', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--prompt-tokens" in said.stdout
