"""The memory page's script, without a browser: every section, both languages, bad input."""

import json
import zlib

import pytest
from streamlit.testing.v1 import AppTest

from viz_engine.memory import estimate
from viz_engine.paths import ROOT
from viz_engine.view.memory import mount

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


@pytest.fixture(autouse=True)
def mounted(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the page's own view was given last, by key: without a browser it is not drawn."""
    given: dict[str, object] = {}

    def component(*, key: str, data: object, **_: object) -> None:
        given[key] = data

    for name in ("_component", "_ahead_component"):
        monkeypatch.setattr(mount, name, lambda: component)
    return given


def page(**query: str) -> AppTest:
    test = AppTest.from_file(str(ROOT / "pages" / "shell.py"), default_timeout=120)
    for key, value in query.items():
        test.query_params[key] = value
    test.run()
    return sound(test.switch_page(str(ROOT / "pages" / "memory.py")).run())


def sound(test: AppTest) -> AppTest:
    assert not test.exception
    return test


def numbers(mounted: dict[str, object]) -> str:
    """All that the view shows of a choice."""
    return json.dumps(mounted["mem_view"]["frame"], ensure_ascii=False)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_section_is_drawn_in_both_languages(language: str) -> None:
    test = page(lang=language)
    for section in SECTIONS:
        test.session_state["mem_section"] = section
        sound(test.run())
        assert not test.warning


def test_a_refused_config_leaves_every_number_as_it_was(mounted: dict) -> None:
    test = page(lang="en")
    before = numbers(mounted)
    for text, words in (
        ("{", "not JSON"),
        ("[]", "not the object"),
        ('{"peft_type": 1}', "adapter"),
    ):
        test.text_area(key="mem_paste").set_value(text)
        sound(test.button(key="mem_read").click().run())
        told = test.warning[0].value
        assert words in told and "those of Llama" in told and numbers(mounted) == before


def test_settings_that_cannot_be_leave_the_last_numbers_and_say_why(mounted: dict) -> None:
    test = page(lang="en")
    before = numbers(mounted)
    test.session_state["mem_tp"] = 8
    sound(test.run())
    told = test.warning[0].value.replace("\\\\", "")
    assert "cannot hold one copy" in told and numbers(mounted) == before
    assert "last choice that works" in told and "TP 1" in told
    assert mounted["mem_view"]["keys"] is None, "no frame ahead is of what is chosen"
    test.session_state["mem_count"] = 8
    sound(test.run())
    assert not test.warning and numbers(mounted) != before


def test_a_config_that_lacks_sizes_asks_for_them() -> None:
    test = page(lang="en")
    test.text_area(key="mem_paste").set_value(json.dumps(UNKNOWN))
    sound(test.button(key="mem_read").click().run())
    assert {"mem_parameters", "mem_cross"} <= {box.key for box in test.number_input}
    assert not test.warning


def test_a_link_is_taken_and_the_address_follows(mounted: dict) -> None:
    test = page(lang="en", model="deepseek-v3", ctx="131072", tp="8", n="8", engine="sglang")
    assert test.session_state["mem_context"] == 131072 and not test.warning
    assert "8.58 GiB" in numbers(mounted)
    test.session_state["mem_context"] = 65536
    sound(test.run())
    assert test.query_params["ctx"] == "65536" and test.query_params["tp"] == "8"


def test_no_more_than_four_choices_are_compared(mounted: dict) -> None:
    test = page(lang="en")
    for num in range(1, 5):
        sound(test.button(key="mem_pin").click().run())
        assert len(test.session_state["mem_pinned"]) == min(num, 3)
        assert len(mounted["mem_view"]["pinned"]) == min(num, 3)
    assert "Four choices" in test.warning[0].value
    sound(test.button(key="mem_unpin").click().run())
    assert test.session_state["mem_pinned"] == [] and not test.warning


def ahead(mounted: dict, axis: str) -> dict:
    return json.loads(zlib.decompress(mounted[f"mem_ahead_{axis}"]))


def test_the_frames_ahead_go_out_under_the_keys_that_the_view_is_told(mounted: dict) -> None:
    test = page(lang="en")
    for moved in (False, True):
        if moved:
            test.session_state["mem_context"] = 65536
            sound(test.run())
        view = mounted["mem_view"]
        for axis, name in enumerate(("context", "sequences")):
            message = ahead(mounted, name)
            assert (message["axis"], message["key"]) == (name, view["keys"][name])
            assert len(message["frames"]) == len(view["sliders"][axis]["stops"])
            here = message["frames"][str(view["at"][axis])]
            assert here == json.loads(json.dumps(view["frame"]))


def test_a_slider_that_moves_leaves_the_frames_along_it_as_they_were(mounted: dict) -> None:
    test = page(lang="en")
    before = dict(mounted)
    test.session_state["mem_context"] = 65536
    sound(test.run())
    assert mounted["mem_ahead_context"] == before["mem_ahead_context"]
    assert mounted["mem_ahead_sequences"] != before["mem_ahead_sequences"]


def test_a_choice_that_never_worked_still_has_its_sliders(mounted: dict) -> None:
    test = page(lang="en", model="llama-3.1-8b", tp="8", n="1", ctx="32768")
    view = mounted["mem_view"]
    assert "cannot hold one copy" in test.warning[0].value.replace("\\", "")
    assert view["frame"] is None and view["keys"] is None and "mem_ahead_context" not in mounted
    assert estimate.CONTEXT_LENS[view["at"][0]] == 32768


@pytest.mark.parametrize(
    "query",
    [
        {"engine": "vllm", "prefix": "1", "drafts": "3", "util": "0.85", "batch": "3000"},
        {"engine": "llama.cpp", "kvu": "1", "ctx": "100001", "seq": "9"},
        {"engine": "vllm", "ctx": str(2**32), "seq": str(2**23)},
    ],
)
def test_an_engine_s_options_and_any_number_open_without_a_warning(query: dict) -> None:
    test = page(lang="en", model="llama-3.1-8b", **query)
    kept = {k: v if isinstance(v, str) else v[0] for k, v in test.query_params.items()}
    assert query.items() <= kept.items() and not test.warning


def test_one_sequence_stays_in_the_address(mounted: dict) -> None:
    test = page(lang="en", model="llama-3.1-8b", ctx="4096", seq="1")
    assert test.query_params["seq"] in ("1", ["1"]) and test.session_state["mem_sequences"] == 1


def test_a_link_that_names_no_model_is_taken_too(mounted: dict) -> None:
    assert page(lang="en", seq="7").session_state["mem_sequences"] == 7
    assert "ctx" in page(lang="en", ctx="abc").warning[0].value


def test_the_warnings_of_a_choice_are_part_of_its_frame(mounted: dict) -> None:
    page(lang="en", model="llama-3.1-8b", ctx="196608")
    assert "beyond the 131" in mounted["mem_view"]["frame"]["warnings"][0]
    frames = ahead(mounted, "context")["frames"]
    assert frames["0"]["warnings"] == [] and len(frames[str(len(frames) - 1)]["warnings"]) == 1


def test_bars_beside_make_frames_that_reach_as_far(mounted: dict) -> None:
    test = page(lang="en", seq="512")
    far = mounted["mem_view"]["frame"]["axis"]["most"]
    sound(test.button(key="mem_pin").click().run())
    test.session_state["mem_sequences"] = 1
    sound(test.run())
    assert mounted["mem_view"]["frame"]["axis"]["most"] == far
    frames = ahead(mounted, "context")["frames"].values()
    assert min(frame["axis"]["most"] for frame in frames) == far
