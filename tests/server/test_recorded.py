"""The runs that ship: each is whole, says what made it, and can be made again.

A short greedy run in float32 is made again with the same tokens and bytes. A bfloat16 run may
write another text on another processor: its prompt ids are compared, and with its tokens forced,
its rows and bytes.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.commands import parsed
from viz_engine.paths import ASSETS
from viz_engine.run import cost
from viz_engine.run.codec import to_line
from viz_engine.run.events import EnginePart, RunSettings
from viz_engine.run.log import RunLog
from viz_engine.server import recorded
from viz_engine.text import LANGUAGES, Message

if TYPE_CHECKING:
    from viz_engine.engine.load import Loaded

RUNS = sorted((ASSETS / "recorded" / "runs").glob("*.jsonl"))
SHORT_COLUMNS = 300  # of all sequences together; longer ones take too long here
BYTES = ("kv_live_bytes", "kv_reserved_bytes", "weight_bytes_read")
BYTES += ("kv_bytes_read", "kv_bytes_written")
ROWS = ("phase", "num_new_tokens", "context_len", "appended", "token_ids", "token_texts")


def read(path: Path) -> RunLog:
    return RunLog.read(path.read_bytes())


def is_short(path: Path) -> bool:
    """Whether the run is made again here; of longer ones the prompt and the bytes are checked."""
    log = read(path)
    settings = log.started.settings
    factor = 1 if settings.cache == "full" else len(log.steps)
    return log.num_columns * settings.batch * factor <= SHORT_COLUMNS


def asked(log: RunLog) -> RunSettings:
    """What the run's command asks for, its stop tokens filled in as the engine does."""
    settings = parsed(log.started.command)
    if settings.stop_token_ids is None:
        settings = dataclasses.replace(settings, stop_token_ids=log.started.settings.stop_token_ids)
    return settings


def assert_same(log: RunLog, remade: RunLog) -> None:
    assert remade.started.prompt_token_ids == log.started.prompt_token_ids
    assert len(remade.steps) == len(log.steps)
    for ours, theirs in zip(remade.steps, log.steps, strict=True):
        for name in (*ROWS, *BYTES):
            assert getattr(ours, name) == getattr(theirs, name), (theirs.step, name)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_recorded_run_is_whole_and_labelled(path: Path) -> None:
    log = read(path)
    assert log.finished is not None and log.finished.error is None
    assert log.started.source == "engine" and log.started.hardware.name
    assert log.started.started_at.startswith("20")
    assert asked(log) == log.started.settings


@pytest.mark.parametrize("language", LANGUAGES)
def test_parts_that_are_no_more_keep_their_sentence(language: str) -> None:
    """Files of 2026-11-29 say that the engine packed weights."""
    started = read(RUNS[0]).started
    params = {"native_ms": "4.41", "packed_ms": "3.47", "onednn_ms": "5.68", "size": "257 MiB"}
    reason = Message(key="part.packed_on", params=params)
    packed = EnginePart(name="packed_weights", on=True, reason=reason)
    line = to_line(dataclasses.replace(started, parts=(*started.parts, packed)))
    parts = RunLog.read(f"{line}\n".encode()).started.parts
    assert parts[-1] == packed
    said = [part.reason.text(language) for part in parts]
    assert "3.47" in said[-1] and not any("part." in text for text in said)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_recorded_runs_bytes_are_those_of_the_formula(path: Path) -> None:
    log = read(path)
    for step, predicted in log.with_costs():
        assert all(getattr(step, name) == getattr(predicted, name) for name in BYTES)
    row = cost.row_bytes(log.started.spec, log.started.settings.dtype)
    if log.started.settings.cache == "full":
        columns = log.started.settings.batch * log.num_columns
        assert log.steps[-1].kv_live_bytes == columns * row


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_recorded_runs_prompt_ids_come_out_again(
    path: Path, default_model: Callable[[str], "Loaded"]
) -> None:
    from viz_engine.engine import generate

    log = read(path)
    ids = generate.encode(default_model("bfloat16"), log.started.settings)
    assert tuple(map(tuple, ids)) == log.started.prompt_token_ids
    texts = tuple(default_model("bfloat16").tokenizer.texts(i) for i in ids)
    assert texts == log.started.prompt_texts


@pytest.mark.parametrize(
    "path", [path for path in RUNS if is_short(path)], ids=lambda path: path.stem
)
def test_a_short_recorded_run_is_made_again(
    path: Path, default_model: Callable[[str], "Loaded"]
) -> None:
    from viz_engine.engine import generate

    log = read(path)
    settings = asked(log)
    greedy_float32 = settings.dtype == "float32" and settings.temperature == 0
    forced = None
    if not greedy_float32:
        forced = [
            [id for step in log.steps for id in step.token_ids[b]] for b in range(settings.batch)
        ]
    options = generate.Options(forced_tokens=forced)
    events = generate.generate(default_model(settings.dtype), settings, run_id="r", options=options)
    assert_same(log, RunLog.of(events))


def test_a_float32_recording_is_made_again_with_the_same_tokens_and_bytes(
    default_model: Callable[[str], "Loaded"],
) -> None:
    from viz_engine.engine import generate

    settings = RunSettings(
        model="SmolLM2-135M-Instruct", prompts=("Say hello.",), dtype="float32", new_tokens=6
    )
    log = RunLog.of(generate.generate(default_model("float32"), settings, run_id="a"))
    log = RunLog.read(log.to_jsonl().encode())
    again = generate.generate(default_model("float32"), asked(log), run_id="b")
    assert_same(log, RunLog.of(again))


def test_a_bfloat16_recording_keeps_rows_and_bytes_with_its_tokens_forced(
    default_model: Callable[[str], "Loaded"],
) -> None:
    from viz_engine.engine import generate

    settings = RunSettings(
        model="SmolLM2-135M-Instruct", prompts=("Say hello.", "Hi"), batch=2, new_tokens=6
    )
    loaded = default_model("bfloat16")
    log = RunLog.of(generate.generate(loaded, settings, run_id="a"))
    tokens = [[id for s in log.steps for id in s.token_ids[b]] for b in range(2)]
    options = generate.Options(forced_tokens=tokens)
    again = generate.generate(loaded, asked(log), run_id="b", options=options)
    assert_same(log, RunLog.of(again))


def test_a_chinese_page_shows_a_chinese_recording_first() -> None:
    english, chinese = (recorded.names("runs", language) for language in ("en", "zh"))
    assert sorted(chinese) == english and english[0] == "1-document"
    assert "chinese" in chinese[0]
    path = next(path for path in RUNS if path.stem == chinese[0])
    assert read(path).started.settings.prompts[0][0] > "\u2e80"
