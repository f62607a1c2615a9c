"""Both languages: a page is made in the one that is chosen, its view's words too."""

import pytest

from tests.support.page import captions, opened, sound, view
from viz_engine.text import t

START = {"live": ("generate", "ask.generate"), "race": ("race_start", "race.start")}


@pytest.mark.parametrize("page", START)
def test_a_run_s_page_and_its_view_speak_chinese_and_the_address_remembers(page: str) -> None:
    button, text = START[page]
    test = opened(page, lang="en")
    assert test.button(key=button).label == t(text, "en")
    sound(test.button_group(key="language").set_value("zh").run())
    assert test.query_params["lang"] in ("zh", ["zh"])
    again = opened(page, lang="zh")
    for shown in (test, again):
        assert shown.button(key=button).label == t(text, "zh") != t(text, "en")
        data = view(shown)
        assert data["language"] == "zh"
        assert data["strings"] == {key: t(key, "zh") for key in data["strings"]}, (
            "the view's words are Chinese"
        )


@pytest.mark.parametrize("page", ["latency", "memory"])
def test_a_page_of_numbers_speaks_chinese(page: str) -> None:
    test = opened(page, lang="en")
    english = captions(test)
    sound(test.button_group(key="language").set_value("zh").run())
    assert any("一" <= char <= "鿿" for char in captions(test))
    assert test.query_params["lang"] in ("zh", ["zh"]) and captions(test) != english
    if page == "memory":
        labels = [card["label"] for card in view(test)["frame"]["cards"]]
        assert "单个请求的缓存" in labels
