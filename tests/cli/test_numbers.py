"""Every number of every command, at its extremes: done, or refused in a sentence; no traceback."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from viz_engine.__main__ import main, parser

EXTREMES = ("0", "-1", "99999999999", "9" * 30, "9" * 400, "nan", "inf", "-inf", "1e400", "x", "")
SHORT = ("--new-tokens=2", "--ignore-stop", "--dtype=float32", "--device=cpu")
BASES = {
    "record": ("--prompt=abc", "--out=-", *SHORT),
    "race": ("--prompt=abc", "--out=-", "--repeats=1", *SHORT),
    "size": ("--model=llama-3.1-8b",),
    "sweep": ("--values=8", "--repeats=1", "--new-tokens=2", "--dtype=float32", "--device=cpu"),
    "ceilings": (),
    "diagnose": ("none.jsonl",),
}


def commands() -> dict[str, argparse.ArgumentParser]:
    actions = parser()._actions
    return next(a for a in actions if isinstance(a, argparse._SubParsersAction)).choices


def numbers() -> list[tuple[str, str]]:
    return [
        (name, action.option_strings[0])
        for name, command in commands().items()
        if name != "bench"  # takes no number from a stranger
        for action in command._actions
        if action.type in (int, float)
    ]


def test_every_command_is_tried() -> None:
    assert set(BASES) == set(commands()) - {"bench"}
    assert {name for name, _ in numbers()} == {"record", "race", "size", "sweep"}


@pytest.mark.parametrize(("command", "option"), numbers())
def test_no_number_ends_in_a_traceback(
    command: str,
    option: str,
    tiny_folder: Callable[..., Path],
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from viz_engine.engine import ceilings, load

    loaded = load.load(str(tiny_folder()), "cpu", "float32")
    monkeypatch.setattr(load, "load", lambda *asked, **more: loaded)  # loading is not the question
    measured = ceilings.measure
    quick = {"buffer_bytes": 2**16, "sizes": (8,), "most_s": 0.001}
    monkeypatch.setattr(ceilings, "measure", lambda *asked: measured(*asked, **quick))
    for value in EXTREMES:
        words = [command, *BASES[command], f"{option}={value}"]
        try:
            code = main(words)
        except SystemExit as usage:  # argparse says it
            code = usage.code
        said = capsys.readouterr()
        assert code in (0, 1, 2), words
        assert "Traceback" not in said.err
        assert code == 0 or said.err.strip(), words
        for wrong in ("error.engine", "has no len", "OverflowError", "MemoryError"):
            assert wrong not in said.err, words
