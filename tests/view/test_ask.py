"""The boxes that pages share: what they hold, and what becomes of an opened file."""

import types
from dataclasses import replace

import pytest

from viz_engine.run.events import RunSettings
from viz_engine.run.files import MAX_FILE_BYTES
from viz_engine.server.runs import Run
from viz_engine.text import Message, UserError
from viz_engine.view import ask
from viz_engine.view import page as view_page
from viz_engine.view.page import Page


def upload(data: bytes, size: int | None = None) -> types.SimpleNamespace:
    """A file as Streamlit hands it over."""
    return types.SimpleNamespace(size=len(data) if size is None else size, getvalue=lambda: data)


def refuse(data: bytes) -> None:
    raise UserError("error.file_empty")


def test_an_opened_file_is_handed_on() -> None:
    assert ask.opened(upload(b"abc"), ask.bytes_of, "runs.broken") == (b"abc", None)


def test_a_refusal_is_its_own_sentence() -> None:
    told = ask.opened(upload(b"abc"), refuse, "runs.broken")
    assert told == (None, Message(key="error.file_empty"))


def test_whatever_goes_wrong_with_a_file_is_a_sentence() -> None:
    told = ask.opened(upload(b"abc"), lambda data: 1 // 0, "runs.broken")
    assert told == (None, Message(key="runs.broken"))


def test_a_file_beyond_the_limit_is_not_read() -> None:
    read, told = ask.opened(upload(b"", MAX_FILE_BYTES + 1), ask.bytes_of, "runs.broken")
    assert read is None and told.key == "error.file_size"


# ---- what the boxes hold -------------------------------------------------------------------------

SETTINGS = RunSettings(
    model="some/model",
    prompts=("Hello",),
    device="cpu",
    dtype="float32",
    context_len=256,
    new_tokens=8,
    chat=False,
)


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> ask.Ask:
    """The boxes of a page in a session of its own."""
    monkeypatch.setattr(view_page, "st", types.SimpleNamespace(session_state={}))
    page = Page(prefix="x_", language="zh", registry=None, session_id="s")
    page.put(new_tokens=4, context_len=0)
    return ask.Ask(
        page=page,
        kind=ask.RUN,
        texts="runs",
        presets={"chat": {"context_len": 0}},
        preset_key=lambda name: f"preset.{name}",
        sizes={"context_len": (0, 256), "new_tokens": (4, 8)},
        first=ask.MODEL,
        kept=(*ask.MODEL, "chat"),
        new_tokens_help="ask.new_tokens_help",
    )


def test_what_is_taken_from_a_run_is_what_the_boxes_then_ask_for(boxes: ask.Ask) -> None:
    boxes.take(SETTINGS)
    assert boxes.chosen() == replace(SETTINGS, filler="zh")
    assert boxes.page.get("preset") is None


def test_a_size_or_type_that_no_box_offers_is_not_taken(boxes: ask.Ask) -> None:
    boxes.take(replace(SETTINGS, context_len=300, new_tokens=9, dtype="float64"))
    made = boxes.chosen()
    assert (made.context_len, made.new_tokens, made.dtype) == (None, 4, "auto")


def test_no_name_of_a_model_is_the_default(boxes: ask.Ask) -> None:
    boxes.take(replace(SETTINGS, model="  "))
    assert boxes.chosen().model == ask.MODEL["model"]


@pytest.mark.parametrize(
    ("started_by", "opened_by", "gone", "may_stop"),
    [
        ("mine", "mine", True, True),  # reloaded
        ("mine", "mine", False, False),  # a second tab
        ("mine", "other", True, False),  # whoever has the link
        ("mine", None, True, False),
        (None, None, True, False),
    ],
)
def test_a_run_in_progress_is_stopped_by_the_browser_that_started_it(
    started_by: str | None,
    opened_by: str | None,
    gone: bool,
    may_stop: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ask.server_registry, "session_alive", lambda session_id: not gone)
    run = Run("run", RunSettings(model="m", prompts=("a",)), "first", browser=started_by)
    page = types.SimpleNamespace(browser=opened_by, session_id="second")
    shown = types.SimpleNamespace(page=page)
    assert ask.Ask.progress(shown, run) == (False, may_stop)
    assert run.session_id == ("second" if may_stop else "first")
