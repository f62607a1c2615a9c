"""BENCHMARKS.md keeps what was printed last under each command, and the words around it."""

from pathlib import Path

import pytest

from viz_engine.bench import benchmarks

TEXT = "# Benchmarks\n\nWords.\n\n## `bench --b`\n\nMore words.\n"


def keep(path: Path, command: str, printed: str) -> str:
    with benchmarks.written(command, path):
        print(printed)
    return path.read_text("utf-8")


def test_a_section_is_replaced_and_the_others_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "B.md"
    path.write_text(TEXT, "utf-8")
    keep(path, "bench --b", "first b")
    keep(path, "bench --a", "first a")
    text = keep(path, "bench --b", "second b")
    assert "second b" in text and "first b" not in text and "first a" in text
    assert text.startswith("# Benchmarks\n\nWords.\n\n## `bench --b`\n\nMore words.\n\n20")
    assert text.count("## `") == 2 and text.count("```") == 4
    assert "load average before" in text
    assert capsys.readouterr().out == "first b\nfirst a\nsecond b\n", "printed all the same"
    again = keep(path, "bench --b", "second b")
    assert again.count("\n") == text.count("\n"), "nothing piles up"


def test_what_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "B.md"
    path.write_text(TEXT, "utf-8")
    with pytest.raises(ValueError), benchmarks.written("bench --b", path):
        print("half")
        raise ValueError
    assert path.read_text("utf-8") == TEXT


def test_what_was_measured_may_hold_any_text(tmp_path: Path) -> None:
    path = tmp_path / "B.md"
    path.write_text(TEXT, "utf-8")
    odd = r"\1 \g<0> | ## not a heading"
    assert odd in keep(path, "bench --b", odd) and odd in keep(path, "bench --c", odd)
