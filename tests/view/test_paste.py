"""The box in the header: what a text is taken for, and where it opens."""

import json
import time

import pytest

from tests.support.page import captions, html, notices, opened, read, sound
from viz_engine.paths import ASSETS
from viz_engine.text import UserError
from viz_engine.view import paste

CONFIG = json.dumps(
    {
        "model_type": "llama",
        "num_hidden_layers": 7,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "torch_dtype": "bfloat16",
    }
)
VLLM = "INFO 11-29 12:00:00 [kv_cache_utils.py:849] GPU KV cache size: 443,584 tokens\n"
TIMINGS = """\
prompt eval time =     393.25 ms /    13 tokens (   30.25 ms per token,    33.06 tokens per second)
       eval time =    9840.04 ms /   200 tokens (   49.20 ms per token,    20.33 tokens per second)
"""
RECORDED = {
    "run": ASSETS / "recorded" / "runs" / "2-chat.jsonl",
    "race": sorted((ASSETS / "recorded" / "races").glob("*.jsonl"))[0],
    "sweep": ASSETS / "recorded" / "sweeps" / "itl.jsonl",
}


@pytest.mark.parametrize("what", RECORDED)
def test_a_file_of_this_app_is_known_by_its_first_line(what: str) -> None:
    assert paste.recognise(RECORDED[what].read_bytes()) == what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (CONFIG, "config"),
        ("\ufeff  " + CONFIG, "config"),
        ("{broken", "config"),  # its reader says what is wrong with it
        (VLLM, "log"),
        (VLLM + TIMINGS, "log"),
        (TIMINGS, "timings"),
        ("Qwen/Qwen3-8B", "name"),
        ("  https://huggingface.co/Qwen/Qwen3-8B/tree/main ", "name"),
        ("llama-3.1-8b", "name"),
    ],
)
def test_a_text_is_known_by_what_stands_in_it(text: str, what: str) -> None:
    assert paste.recognise(text.encode()) == what


@pytest.mark.parametrize(
    "text", ["", "   \n", "hello there", "../../etc/passwd", "/etc", "a/b/c/d"]
)
def test_what_is_nothing_of_these_is_said(text: str) -> None:
    with pytest.raises(UserError) as refused:
        paste.recognise(text.encode())
    assert refused.value.message.key == ("paste.unknown" if text.strip() else "paste.empty")


def test_a_log_that_is_too_long_is_said_to_be() -> None:
    with pytest.raises(UserError) as refused:
        paste.recognise((VLLM * 100_000).encode())
    assert refused.value.message.key == "error.log_too_large"


def test_the_time_to_know_a_text_is_in_proportion_to_it() -> None:
    for line in ("9" * 4000, "eval time = " * 300, "KV cache " * 400, "a/" * 2000):
        text = ((line + "\n") * (5_000_000 // len(line))).encode()
        start = time.process_time()
        with pytest.raises(UserError):
            paste.recognise(text)
        assert time.process_time() - start < 2


def pasted(page: str, text: str, **query: str):
    """A visitor on `page` puts a text into the box and presses its button."""
    test = opened(page, lang="en", **query)
    test.text_area("paste_text_0").set_value(text)
    test.button("paste_open_0").click()
    return sound(test.run())


def box(test) -> list[str]:
    return [note for note in notices(test)]


def test_a_config_opens_on_the_memory_page() -> None:
    test = pasted("live", CONFIG)
    assert test.session_state.mem_own[1].num_layers == 7
    assert test.selectbox("mem_model").value == "\0own" and not test.text_area("paste_text_1").value


def test_a_model_that_ships_needs_nobody_to_be_asked() -> None:
    for name in ("Qwen/Qwen3-8B", "qwen3-8b", "https://huggingface.co/Qwen/Qwen3-8B"):
        test = pasted("race", name)
        assert test.selectbox("mem_model").value == "qwen3-8b"


def test_a_log_opens_beside_the_calculator() -> None:
    test = pasted("latency", VLLM + TIMINGS)
    assert "443584" in html(test)
    assert any("timing lines of llama.cpp" in note for note in notices(test))


def test_timing_lines_open_on_the_latency_page() -> None:
    test = pasted("memory", TIMINGS)
    assert "49.4 ms" in html(test)  # 9 840.04 ms over 199 gaps
    assert "one gap fewer" in captions(test)
    test.button("lat_timings_close").click()
    assert "49.4 ms" not in html(sound(test.run()))


@pytest.mark.parametrize("what", RECORDED)
def test_a_file_of_this_app_opens_on_its_page(what: str) -> None:
    test = pasted("memory", RECORDED[what].read_text())
    if what == "sweep":
        assert test.session_state.lat_jobs["itl"] and test.session_state.lat_section == "itl"
        return
    name = test.session_state[f"{what}_id"]
    assert not name.startswith("recorded") and name in (
        test.query_params[what],
        *test.query_params[what],
    )


def test_what_cannot_be_read_is_said_in_the_box_and_the_page_stays() -> None:
    test = pasted("memory", "hello <b>there</b>")
    (note,) = notices(test)
    assert "begins with: hello <b>there</b>" in note
    assert test.selectbox("mem_model").value == "llama-3.1-8b"
    test.text_area("paste_text_0").set_value('{"model_type": "llama"')
    test.button("paste_open_0").click()
    (note,) = notices(sound(test.run()))
    assert "JSON" in note and test.selectbox("mem_model").value == "llama-3.1-8b"


def test_a_hosted_server_opens_by_name_only_what_it_offers(monkeypatch) -> None:
    from viz_engine.model import files, hub_config
    from viz_engine.server import limits, registry

    looked_for = []
    locate = files.locate
    monkeypatch.setattr(files, "locate", lambda name: (looked_for.append(name), locate(name))[1])
    monkeypatch.setattr(hub_config, "read_files", looked_for.append)
    test = opened("live", lang="en")
    hosted = limits.Limits(models=("SmolLM2-135M-Instruct",))
    monkeypatch.setattr(registry.registry(), "limits", hosted)
    test.text_area("paste_text_0").set_value("some/private-model")
    test.button("paste_open_0").click()
    (note,) = notices(sound(test.run()))
    assert "opens only SmolLM2-135M-Instruct" in read(note)
    assert "some/private-model" not in looked_for
