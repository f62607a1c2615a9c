"""The boxes that pages share: what becomes of an opened file."""

import types

from viz_engine.run.log import MAX_FILE_BYTES
from viz_engine.text import Message, UserError
from viz_engine.view import ask


def upload(data: bytes, size: int | None = None) -> types.SimpleNamespace:
    """A file as Streamlit hands it over."""
    return types.SimpleNamespace(size=len(data) if size is None else size, getvalue=lambda: data)


def refuse(data: bytes) -> None:
    raise UserError("error.file_empty")


def test_an_opened_file_is_handed_on() -> None:
    assert ask.opened(upload(b"abc"), bytes.upper, "runs.broken") == (b"ABC", None)


def test_a_refusal_is_its_own_sentence() -> None:
    told = ask.opened(upload(b"abc"), refuse, "runs.broken")
    assert told == (None, Message(key="error.file_empty"))


def test_whatever_goes_wrong_with_a_file_is_a_sentence() -> None:
    told = ask.opened(upload(b"abc"), lambda data: 1 // 0, "runs.broken")
    assert told == (None, Message(key="runs.broken"))


def test_a_file_beyond_the_limit_is_not_read() -> None:
    read, told = ask.opened(upload(b"", MAX_FILE_BYTES + 1), bytes.upper, "runs.broken")
    assert read is None and told.key == "error.file_size"
