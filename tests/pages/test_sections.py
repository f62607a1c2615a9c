"""Every section of a page draws what only it shows, of what ships."""

import json

import pytest

from tests.support.page import captions, charts, html, notices, opened, sound, view

LATENCY = {  # its name -> what only it shows
    "ttft": lambda test: len(charts(test)) == 2 and "recorded on" in captions(test),
    "itl": lambda test: charts(test),
    "batch": lambda test: charts(test),
    "roofline": lambda test: charts(test),
    "definitions": lambda test: "GuideLLM" in html(test),
    "price": lambda test: charts(test),
    "diagnosis": lambda test: charts(test),
    "share": lambda test: any("sweep=recorded-" in code.value for code in test.code),
}


def test_every_section_of_the_latency_page_shows_its_own() -> None:
    test = opened("latency", lang="en")
    for section, shows in LATENCY.items():
        test.session_state["lat_section"] = section
        sound(test.run())
        assert shows(test), section
        assert test.query_params["section"] in (section, [section]) and not notices(test)


def test_every_panel_of_the_recorded_race_shows_its_charts() -> None:
    test = opened("race", lang="en")
    drawn = []
    for panel in ("gain", "proof", "growth", "attention", "prefix"):
        test.session_state["race_panel"] = panel
        sound(test.run())
        assert charts(test) and charts(test) not in drawn, panel
        drawn.append(charts(test))
        assert test.query_params["panel"] in (panel, [panel])


MEMORY = {
    "layers": "full attention",
    "precision": "q4_k_m",
    "change": "Weights in int8",
    "users": "People served",
    "devices": "NVIDIA H200 SXM",
    "curves": "sequences at",
}


def test_every_section_of_the_memory_page_shows_its_own() -> None:
    test = opened("memory", lang="en")
    for section, words in MEMORY.items():
        test.session_state["mem_section"] = section
        sound(test.run())
        said = html(test) + captions(test) + str(charts(test))
        assert words in said + "".join(str(text.value) for text in test.markdown), section


def test_a_recorded_run_stands_beside_its_prediction() -> None:
    test = opened("memory", lang="en")
    test.session_state["mem_section"] = "measured"
    sound(test.run())
    assert "The process grew by" in html(test) + str(charts(test))
    cards = [part for part in html(test).split("<details")[1:] if "counted:" in part]
    assert len(cards) == 2 and all("equal" in card for card in cards)


def test_a_number_has_its_formula_with_the_numbers_filled_in() -> None:
    cards = view(opened("memory", lang="en"))["frame"]["cards"]
    (card,) = (card for card in cards if card["label"] == "Cache of one request")
    text = " ".join(card["formula"]).replace("\u202f", "")
    assert "32 layers × (8 heads × 128 in bf16 + 8 × 128 in bf16) = 131072 bytes" in text
    assert len(cards) == 8


@pytest.mark.parametrize(("page", "key"), [("live", "live_view"), ("race", "race_view")])
def test_a_view_that_the_routes_do_not_reach_is_fed_by_its_page(page: str, key: str) -> None:
    test = opened(page, lang="en")
    assert view(test)["transport"] == "auto" and "frames" not in view(test)
    test.session_state[key] = {"transport": "poll"}
    fed = view(sound(test.run()))
    (frame,) = fed["frames"]
    head, *lines = frame.split("\n")
    assert fed["transport"] == "poll" and json.loads(head)["count"] == len(lines) > 0
