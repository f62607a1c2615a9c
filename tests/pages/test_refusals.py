"""Bad input: every page refuses it in words, and what was there stays."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.support.page import captions, charts, html, notices, opened, sound, view

PROMPTS = {  # what is asked -> words of the sentence
    "word " * 200_000: "200000",
    "word " * 9000: "8192",
    "   ": "prompt is empty",
}


@pytest.mark.parametrize(("page", "box"), [("live", "prompt"), ("race", "race_prompt")])
def test_a_prompt_that_cannot_be_is_refused_with_the_numbers(page: str, box: str) -> None:
    test = opened(page, lang="en")
    shown = view(test)["run_id"]
    for prompt, words in PROMPTS.items():
        sound(test.text_area(key=box).set_value(prompt).run())
        assert words in captions(test)
        assert view(test)["run_id"] == shown


NO_RUNS = (  # what is in the file, words of the sentence (never those before it)
    (b"hello\n", "JSON"),
    (b'{"kind":"run_started"}\n', "run_id"),
    (b"\x89PNG\r\n\x1a\n" + bytes(50), "JSON"),
    (b'{"kind":"<b>dream</b>"}\n', "<b>dream</b>"),
    (b"", "no run"),
)
NO_RACES = (
    (b"hello\n", "JSON"),
    (b'{"kind":"race_started"}\n', "race_id"),
    (b'{"kind":"<b>dream</b>"}\n', "<b>dream</b>"),
    (b"", "no race"),
)


@pytest.mark.parametrize(
    ("page", "box", "files"), [("live", "upload", NO_RUNS), ("race", "race_upload", NO_RACES)]
)
def test_a_file_that_holds_no_run_is_refused_in_words(page: str, box: str, files: tuple) -> None:
    test = opened(page, lang="en")
    shown = view(test)["run_id"]
    for content, words in files:
        test.file_uploader(key=box).set_value(("a.jsonl", content, "application/x-ndjson"))
        sound(test.run())
        (told,) = notices(test)
        assert words in told and view(test)["run_id"] == shown
        assert "<b>" not in test.warning[0].value  # as text: Markdown reads no markup in it


def test_values_that_cannot_be_swept_get_a_sentence_and_what_was_there_stays() -> None:
    test = opened("latency", lang="en")
    drawn = charts(test)
    refused = {
        "abc": "“abc” is not a list",
        "0": "different whole numbers",
        "64 128": "“64 128” is not a list",
        "64, 64": "64 is given twice",
    }
    for text, words in refused.items():
        test.text_input(key="lat_values").set_value(text)
        sound(test.button(key="lat_start").click().run())
        assert words in notices(test)[0] and charts(test) == drawn


TINY = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}
CONFIGS = {  # what is pasted -> words of the sentence
    "{": "This is not JSON",
    "[1, 2]": "not the object",
    '{"model_type": "clip_vision_model", "image_size": 224, "patch_size": 16}': "encoder",
    '{"_class_name": "UNet2DConditionModel"}': "diffusion",
    '{"peft_type": "LORA", "base_model_name_or_path": "x"}': "adapter",
    json.dumps(TINY | {"num_hidden_layers": 0}): "num_hidden_layers",
    json.dumps(TINY | {"num_key_value_heads": 3}): "multiple",
    json.dumps(TINY | {"hidden_size": "256"}): "whole number",
    json.dumps(TINY).replace("256", "NaN"): "no number",
    '{"a":' * 5000 + "1" + "}" * 5000: "nested",
    json.dumps({"model_type": "<b>x</b>", "num_hidden_layers": "<i>9</i>"}): "<i>9</i>",
}


def test_what_is_no_config_is_refused_in_words_and_the_numbers_stay() -> None:
    test = opened("memory", lang="en")
    frame = view(test)["frame"]
    for text, words in CONFIGS.items():
        test.text_area(key="mem_paste").set_value(text)
        sound(test.button(key="mem_read").click().run())
        (told,) = notices(test)
        assert words in told and "those of Llama" in told and view(test)["frame"] == frame
        assert "<i>" not in test.warning[0].value  # as text: Markdown reads no markup in it


def test_a_folder_that_is_not_there_is_said_in_words() -> None:
    test = opened("memory", lang="en")
    frame = view(test)["frame"]
    sound(test.text_input(key="mem_where").set_value("/no/such/folder").run())
    assert "/no/such/folder" in notices(test)[0] and view(test)["frame"] == frame


def cache_of_one_request(test: AppTest) -> str:
    (card,) = (c for c in view(test)["frame"]["cards"] if c["label"] == "Cache of one request")
    return card["value"].replace("\u202f", "")


def paste(test: AppTest, text: str) -> None:
    test.text_area(key="mem_paste").set_value(text)
    test.button(key="mem_read").click().run()


def upload(test: AppTest, text: str) -> None:
    file = ("config.json", text.encode(), "application/json")
    test.file_uploader(key="mem_upload").set_value([file])
    test.run()


def name_its_folder(test: AppTest, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(text)
        test.text_input(key="mem_where").set_value(folder).run()


@pytest.mark.parametrize("give", [paste, upload, name_its_folder])
def test_a_config_of_ones_own_becomes_the_model(give: Callable[[AppTest, str], None]) -> None:
    test = opened("memory", lang="en")
    assert cache_of_one_request(test) == "1 GiB"  # 128 KiB x 8192, Llama-3.1-8B
    give(test, json.dumps(TINY))
    # 4 layers x 2 x 2 heads x 32 x 2 bytes x 8192 tokens
    assert cache_of_one_request(sound(test)) == "8 MiB" and not notices(test)


LOG = """INFO worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.13GiB;
INFO executor_base.py:111] # cuda blocks: 27443, # CPU blocks: 2048
INFO executor_base.py:116] Maximum concurrency for 131072 tokens per request: 3.35x
"""


def test_a_pasted_log_is_recognised_and_compared_and_another_text_refused() -> None:
    test = opened("memory", lang="en")
    test.session_state["mem_section"] = "log"
    sound(test.run())
    sound(test.text_area(key="mem_log").set_value(LOG).run())
    assert "27443" in html(test) and "equal, as printed" in html(test)
    sound(test.text_area(key="mem_log").set_value("hello").run())
    assert notices(test)
