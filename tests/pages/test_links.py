"""Links: what an address brings back, and what it says of what is not there."""

import pytest

from tests.support.page import charts, notices, opened, sound, view


def test_an_unknown_run_is_said_and_something_still_plays() -> None:
    test = opened("live", lang="en", run="no-such-run")
    assert "does not hold the run" in notices(test)[0]
    assert view(test)["run_id"].startswith("recorded") and view(test)["autoplay"]
    assert "run" not in test.query_params


def test_an_unknown_race_is_said_and_its_settings_are_taken() -> None:
    shown = opened("race", lang="en")
    asked = shown.query_params["ask"]
    ask = asked if isinstance(asked, str) else asked[0]
    settings = shown.text_area(key="race_prompt").value
    test = opened("race", lang="en", race="gone", ask=ask)
    assert "does not hold the race" in notices(test)[0]
    assert test.text_area(key="race_prompt").value == settings
    assert view(test)["run_id"].startswith("recorded")


@pytest.mark.parametrize("ask", ["!!!", "e30", "eyJydW4iOnt9fQ", "W10"])
def test_a_broken_link_is_said_in_words(ask: str) -> None:
    test = opened("race", lang="en", ask=ask)
    assert "settings in this link cannot be read" in notices(test)[0]


def test_an_unknown_sweep_is_said_and_the_recorded_sweeps_are_shown() -> None:
    test = opened("latency", lang="en", sweep="nothing")
    assert "does not hold the sweep" in notices(test)[0] and charts(test)


def test_a_link_with_unknown_values_is_said_and_the_rest_is_taken() -> None:
    test = opened("memory", lang="en", model="no-such-model", ctx="x", seq="4", gpu="<b>")
    assert "model, gpu, ctx" in notices(test)[0]
    assert view(test)["sliders"][1]["stops"][view(test)["at"][1]] == "4"


def test_the_memory_pages_link_opens_the_same_choice_elsewhere() -> None:
    test = opened("memory", lang="en")
    test.session_state["mem_context"] = 32768
    test.session_state["mem_section"] = "share"
    sound(test.run())
    (link,) = (code.value for code in test.code if "model=" in code.value)
    query = dict(part.split("=") for part in link.partition("?")[2].split("&"))
    assert query["ctx"] == "32768"
    other = opened("memory", lang="en", **query)
    assert view(other)["frame"] == view(test)["frame"]


@pytest.mark.parametrize("name", ["deepseek-v3", "mamba-2.8b", "gemma-3-12b", "gpt2"])
def test_a_model_of_the_list_can_be_chosen_by_link(name: str) -> None:
    test = opened("memory", lang="en", model=name)
    assert test.session_state["mem_model"] == name and not notices(test)
    assert all(card["value"] not in ("", "-") for card in view(test)["frame"]["cards"][:1])


def test_a_link_keeps_the_lengths_and_the_pause() -> None:
    test = opened("memory", lang="en", prompt="8192", new="128", think="12.5")
    state = test.session_state
    assert (state.mem_prompt_len, state.mem_output_len, state.mem_think) == (8192, 128, 12.5)
    assert not notices(test)
