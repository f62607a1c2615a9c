"""What every page begins with: refusals are sentences, and what a visitor has put there stays."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from viz_engine.text import Message, UserError
from viz_engine.view import page as view_page
from viz_engine.view.page import Page


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is drawn, in a session of its own."""
    said: list[str] = []
    drawn = {"caption": said.append, "warning": lambda text, **_: said.append(text)}
    monkeypatch.setattr(view_page, "st", SimpleNamespace(session_state={}, **drawn))
    yield said


def page(prefix: str = "x_") -> Page:
    return Page(prefix=prefix, language="en", registry=None, session_id="s")


def test_first_values_leave_what_the_visitor_has_put_there(said: list[str]) -> None:
    here = page()
    here.put(size=8)
    here.begin({"size": 1, "unit": "$"})
    assert (here.get("size"), here.get("unit"), page("y_").get("size")) == (8, "$", None)


def test_a_refusal_becomes_the_notice_and_nothing_is_said_in_its_place(said: list[str]) -> None:
    here = page()
    with here.noticing():
        raise UserError("mem.error_link", names="<b>")
    assert not said
    here.show_notice()
    assert "\\<b\\>" in said[0], "a sentence is text where Markdown is read"


def test_what_is_allowed_leaves_the_notice_as_it_is(said: list[str]) -> None:
    here = page()
    here.show_notice()
    here.put(notice=Message(key="runs.unknown"))
    with here.noticing():
        pass
    assert here.get("notice") == Message(key="runs.unknown") and not said


def test_a_refusal_can_stand_in_the_place_of_what_was_refused(said: list[str]) -> None:
    here = page()
    with here.refusing():
        raise UserError("runs.unknown")
    assert said[0].startswith(":orange[") and here.get("notice") is None


def test_other_faults_are_not_taken_for_refusals(said: list[str]) -> None:
    for taken in (page().noticing, page().refusing):
        with pytest.raises(ZeroDivisionError), taken():
            raise ZeroDivisionError
