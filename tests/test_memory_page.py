"""The memory page's script, without a browser: every section, both languages, bad input."""

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ("curves", "layers", "precision", "change", "users", "measured", "log", "devices")
SECTIONS += ("share",)
UNKNOWN = {  # an encoder-decoder of a type whose matrices are not described
    "model_type": "bart",
    "decoder_layers": 4,
    "d_model": 256,
    "decoder_attention_heads": 8,
    "vocab_size": 1000,
    "is_encoder_decoder": True,
}


def page(**query: str) -> AppTest:
    test = AppTest.from_file(str(ROOT / "pages" / "shell.py"), default_timeout=120)
    for key, value in query.items():
        test.query_params[key] = value
    test.run()
    return sound(test.switch_page(str(ROOT / "pages" / "memory.py")).run())


def sound(test: AppTest) -> AppTest:
    assert not test.exception
    return test


def numbers(test: AppTest) -> str:
    """The HTML of the eight numbers."""
    return next(block.value for block in test.get("html") if 'class="numbers' in block.value)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_section_is_drawn_in_both_languages(language: str) -> None:
    test = page(lang=language)
    for section in SECTIONS:
        test.session_state["mem_section"] = section
        sound(test.run())
        assert not test.warning


def test_a_refused_config_leaves_every_number_as_it_was() -> None:
    test = page(lang="en")
    before = numbers(test)
    for text, words in (
        ("{", "not JSON"),
        ("[]", "not the object"),
        ('{"peft_type": 1}', "adapter"),
    ):
        test.text_area(key="mem_paste").set_value(text)
        sound(test.button(key="mem_read").click().run())
        told = test.warning[0].value
        assert words in told and "those of Llama" in told and numbers(test) == before


def test_settings_that_cannot_be_leave_the_last_numbers_and_say_why() -> None:
    test = page(lang="en")
    before = numbers(test)
    test.session_state["mem_tp"] = 8
    sound(test.run())
    told = test.warning[0].value.replace("\\\\", "")
    assert "cannot hold one copy" in told and numbers(test) == before
    assert "last choice that works" in told and "TP 1" in told
    test.session_state["mem_count"] = 8
    sound(test.run())
    assert not test.warning and numbers(test) != before


def test_a_config_that_lacks_sizes_asks_for_them() -> None:
    test = page(lang="en")
    test.text_area(key="mem_paste").set_value(json.dumps(UNKNOWN))
    sound(test.button(key="mem_read").click().run())
    assert {box.key for box in test.number_input} == {"mem_parameters", "mem_cross"}
    assert not test.warning


def test_a_link_is_taken_and_the_address_follows() -> None:
    test = page(lang="en", model="deepseek-v3", ctx="131072", tp="8", n="8", engine="sglang")
    assert test.session_state["mem_context"] == 131072 and not test.warning
    assert "8.58 GiB" in numbers(test)
    test.session_state["mem_context"] = 65536
    sound(test.run())
    assert test.query_params["ctx"] == "65536" and test.query_params["tp"] == "8"


def test_no_more_than_four_choices_are_compared() -> None:
    test = page(lang="en")
    for num in range(1, 5):
        sound(test.button(key="mem_pin").click().run())
        assert len(test.session_state["mem_pinned"]) == min(num, 3)
    assert "Four choices" in test.warning[0].value
    sound(test.button(key="mem_unpin").click().run())
    assert test.session_state["mem_pinned"] == [] and not test.warning
