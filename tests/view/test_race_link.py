"""A link carries a race's settings, and says so where they cannot be read."""

import base64
import json

import pytest

from viz_engine.run.events import RunSettings
from viz_engine.run.race import RaceSettings
from viz_engine.text import UserError
from viz_engine.view.race import link


def settings(prompt: str) -> RaceSettings:
    return RaceSettings(run=RunSettings(model="some/model", prompts=(prompt,)), repeats=3)


SETTINGS = settings("Käse 🧀")


def test_a_link_brings_the_settings_back() -> None:
    made = link.encoded(SETTINGS)
    assert made is not None and made.isascii() and not set(made) & set("+/=&?")
    assert link.decoded(made) == SETTINGS


def test_settings_too_long_for_a_link_are_left_out_of_it() -> None:
    assert link.encoded(settings("x" * link.MAX_CHARS)) is None


@pytest.mark.parametrize(
    "data",
    [
        "",
        "[]",
        "{}",
        "[" * 4000,
        '{"run": {"prompts": []}}',
        '{"run": {"prompts": ["x"], "new_tokens": -1}}',
    ],
)
def test_settings_that_cannot_be_are_one_sentence(data: str) -> None:
    with pytest.raises(UserError) as raised:
        link.decoded(base64.urlsafe_b64encode(data.encode()).decode())
    assert raised.value.message.key == "race.link_broken"


@pytest.mark.parametrize("text", ["%", "x", "é" * 9, link.encoded(SETTINGS)[:-8]])
def test_a_link_that_was_cut_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        link.decoded(text)


def test_a_link_without_a_prompt_is_broken() -> None:
    held = json.loads(base64.urlsafe_b64decode(link.encoded(SETTINGS) + "=="))
    held["run"]["prompts"] = []
    text = base64.urlsafe_b64encode(json.dumps(held).encode()).decode()
    with pytest.raises(UserError):
        link.decoded(text)
