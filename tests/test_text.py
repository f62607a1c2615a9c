"""Every visible string exists in English and in Chinese, with the same places to fill."""

import json
import re
import string
from pathlib import Path

import pytest

from viz_engine.paths import ROOT
from viz_engine.text import JOINER, LOCALES, Message, UserError, plain, strings, t

SOURCES = [
    *(ROOT / "viz_engine").rglob("*.py"),
    *(ROOT / "pages").glob("*.py"),
    *(ROOT / "assets" / "js").glob("*.mjs"),
    ROOT / "app.py",
]
# What only files of older versions still say.
BEFORE = json.loads((LOCALES / "en" / "before.json").read_text(encoding="utf-8"))
PREFIXES = sorted({key.split(".")[0] for key in strings("en")})


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_both_languages_have_the_same_keys_and_places() -> None:
    english, chinese = strings("en"), strings("zh")
    assert english.keys() == chinese.keys()
    for key in english:
        assert places(english[key]) == places(chinese[key]), key


def test_no_key_stands_in_two_files() -> None:
    for language in ("en", "zh"):
        counted = [
            key
            for path in (LOCALES / language).glob("*.json")
            for key in json.loads(path.read_text(encoding="utf-8"))
        ]
        assert len(counted) == len(set(counted))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_key_in_the_source_has_a_text(path: Path) -> None:
    named = re.findall(rf'"((?:{"|".join(PREFIXES)})\.[a-z0-9_.]+)"', path.read_text("utf-8"))
    others = ("_ns", ".py", ".css", ".jsonl")  # fields and files
    missing = {key for key in named if key not in strings("en") and not key.endswith(others)}
    assert not missing


def test_every_text_is_used() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    built = re.findall(r'f"((?:[a-z]+\.)+)\{', source) + re.findall(r"`((?:[a-z]+\.)+)\$\{", source)
    unused = {
        key
        for key in strings("en")
        if key not in BEFORE
        and f'"{key}"' not in source
        and f'"{key.partition(".")[2]}"' not in source
        and not any(key.startswith(prefix) for prefix in built)
    }
    assert not unused


def test_chinese_is_chinese() -> None:
    for key, text in strings("zh").items():
        if re.search(
            r"[a-z]{3} [a-z]{3} [a-z]{3} [a-z]{3}", re.sub(r"`[^`]*`|\{[^}]*\}", "", text)
        ):
            raise AssertionError(f"{key} reads as English: {text}")


def test_a_message_of_another_version_gives_a_sentence() -> None:
    assert "nothing.here" in Message(key="nothing.here").text("en")
    assert Message(key="error.file_kind").text("zh")  # a place is not filled
    with pytest.raises(KeyError):
        t("nothing.here", "en")


def test_an_unknown_language_reads_as_english() -> None:
    assert strings("xx") == strings("en")


def test_a_user_error_is_its_sentence() -> None:
    assert "12" in str(UserError("error.file_at_line", line=12, reason="x"))


@pytest.mark.parametrize("live", [":material/x:", ":smile:", "https://x.example", "www.x.example"])
def test_plain_text_holds_nothing_that_streamlit_makes_an_icon_or_a_link_of(live: str) -> None:
    read = re.sub(r"\\(.)", r"\1", plain(f"a {live} b"))
    assert live not in read and read.replace(JOINER, "") == f"a {live} b"
    assert JOINER not in plain("at 3 @ 4, 5: six")
