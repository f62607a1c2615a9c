"""Frames: what a browser paints for a stop of a slider is what the page would show there."""

import json
import zlib
from dataclasses import replace

import pytest

from tests.support.deployments import NAMES, choose
from viz_engine.memory import estimate
from viz_engine.model import config
from viz_engine.numbers import bytes_text
from viz_engine.text import LANGUAGES, UserError, t
from viz_engine.view import markup
from viz_engine.view.memory import frames as memory_frames
from viz_engine.view.memory import mount, tables, words
from viz_engine.view.theme import palette

GIB = 2**30


def say_in(language: str):
    def say(key: str, /, **params: object) -> str:
        return t(key, language, **params)

    return say


english = say_in("en")


def message(axis: str, name: str, language: str = "en", **changes: object) -> dict:
    """What a browser reads of the frames along a slider."""
    along = mount.along(axis, name, choose(name, **changes), language, 0)
    return json.loads(zlib.decompress(along.packed("key", say_in(language))))


def alone(name: str, language: str = "en", **changes: object) -> dict:
    """The frame of one choice, as JSON has it."""
    found = estimate.make(choose(name, **changes))
    return json.loads(json.dumps(memory_frames.frame(name, found, say_in(language), language)))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "deepseek-v3", "gemma-3-12b", "qwen3-next-80b-a3b", "mamba-2.8b"]
)
def test_every_frame_ahead_is_the_frame_of_that_choice_made_by_itself(
    name: str, language: str
) -> None:
    frames = message("context", name, language, num_sequences=3, engine="vllm")["frames"]
    assert list(frames) == [str(i) for i in range(len(estimate.CONTEXT_LENS))]
    for i, stop in enumerate(estimate.CONTEXT_LENS):
        one = alone(name, language, num_sequences=3, engine="vllm", context_len=stop)
        assert frames[str(i)] == one
    frames = message("sequences", name, language, context_len=4096, engine="sglang")["frames"]
    assert list(frames) == [str(i) for i in range(len(estimate.SEQUENCES))]
    for i, stop in enumerate(estimate.SEQUENCES):
        one = alone(name, language, context_len=4096, engine="sglang", num_sequences=stop)
        assert frames[str(i)] == one


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_holds_what_the_cards_and_notices_say(name: str) -> None:
    found = estimate.make(choose(name, engine="vllm"))
    frame = memory_frames.frame(name, found, english, "en")
    cards = words.cards(found, english, "en")
    html = markup.cards(cards, two=True)
    for card, number in zip(frame["cards"], cards, strict=True):
        assert (card["label"], card["value"], card["note"]) == (
            number.label,
            number.value,
            number.note,
        )
        assert html.count("<p>") == sum(len(card["formula"]) for card in frame["cards"])
    assert frame["notices"] == tables.accident_notices(found, english)


@pytest.mark.parametrize("name", NAMES)
def test_a_bar_is_its_parts_in_their_order_and_its_total_stands_at_its_end(name: str) -> None:
    found = estimate.make(choose(name, engine="vllm"))
    shown = memory_frames.bar(name, found, english)
    names = [part for part, _, _ in shown["parts"]]
    assert names == [part for part in memory_frames.PARTS if part in found.parts]
    assert sum(size for _, size, _ in shown["parts"]) == shown["total"] == found.plan.total_bytes
    assert all(text == bytes_text(size) for _, size, text in shown["parts"])
    assert shown["total_text"] == bytes_text(shown["total"])
    low, high = shown["spread"]
    assert (low, high) == (found.plan.low_bytes, found.plan.high_bytes)
    assert low <= shown["total"] <= high
    assert shown["alt"].startswith(f"{name}: {shown['total_text']} of ")


def test_the_ceiling_says_whether_the_choice_fits_and_is_within_the_axis() -> None:
    for num, over in ((16, False), (80, True)):
        found = estimate.make(choose(num_sequences=num, engine="vllm"))
        frame = memory_frames.frame("A", found, english, "en")
        shown, axis = frame["bar"], frame["axis"]
        assert shown["over"] is over is not found.fits
        assert shown["ceiling"] == found.choice.budget_bytes
        assert axis["most"] > max(shown["ceiling"], *shown["spread"])
        assert all(0 <= value <= axis["most"] for value, _ in axis["ticks"])
        assert [text for _, text in axis["ticks"]] == [
            bytes_text(value) for value, _ in axis["ticks"]
        ]


def test_an_axis_goes_as_far_as_the_bars_beside() -> None:
    longer = memory_frames.bar("B", estimate.make(choose(num_sequences=512)), english)
    reach = memory_frames.reach(longer)
    assert reach >= longer["spread"][1] > longer["ceiling"]
    frame = memory_frames.frame("A", estimate.make(choose()), english, "en", at_least=reach)
    assert frame["axis"]["most"] == memory_frames.ROOM * reach


def test_a_total_that_lacks_a_part_is_more_than_what_is_shown() -> None:
    text = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
    model = config.read(text | {"num_attention_heads": 4})
    shown = memory_frames.bar("A", estimate.make(replace(choose(), model=model)), english)
    assert shown["total_text"].startswith("> ") and "-" in shown["alt"]
    assert "weights" not in [part for part, _, _ in shown["parts"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_part_of_a_bar_stands_out_by_its_colour_alone(theme: str) -> None:
    colours = palette(theme)
    marks = [(getattr(colours, colour), mark) for colour, mark in memory_frames.PARTS.values()]
    assert len(set(marks)) == len(memory_frames.PARTS)
    shapes = {mark for _, mark in marks}
    assert len(shapes) >= len(memory_frames.PARTS) - 1  # weights and K are plain and lie apart


def test_a_stop_that_cannot_be_worked_out_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    make, refused = estimate.make, estimate.CONTEXT_LENS[3]

    def refusing(choice: estimate.Choice) -> estimate.Estimate:
        if choice.settings.context_len == refused:
            raise UserError("mem.error_devices", devices=1, ranks=2)
        return make(choice)

    monkeypatch.setattr(estimate, "make", refusing)
    frames = message("context", "llama-3.1-8b")["frames"]
    assert set(map(int, frames)) == set(range(len(estimate.CONTEXT_LENS))) - {3}


def test_what_a_slider_itself_says_changes_neither_key_nor_bytes_of_its_frames() -> None:
    ahead = mount.Ahead()

    def sent(axis: str, **changes: object) -> tuple[str, bytes]:
        along = mount.along(axis, "A", choose(**changes), "en", 0)
        return ahead.key(along), ahead.message(along, english)

    first = sent("context", context_len=4096), sent("sequences", context_len=4096)
    moved = sent("context", context_len=8192), sent("sequences", context_len=8192)
    assert first[0] == moved[0] and first[1] != moved[1]
    back = sent("sequences", context_len=4096)
    assert back == first[1], "what was there a moment ago is still kept"
    assert sent("context", engine="sglang") != first[0]


def test_a_session_keeps_no_more_than_a_few_messages() -> None:
    ahead = mount.Ahead()
    for stop in estimate.CONTEXT_LENS[:12]:
        along = mount.along("sequences", "A", choose(context_len=stop), "en", 0)
        ahead._messages[ahead.key(along)] = b""
    assert len(ahead._kept) == mount.MAX_KEPT
    along = mount.along("sequences", "A", choose(context_len=4), "en", 0)
    ahead.message(along, english)
    assert len(ahead._messages) == mount.MAX_KEPT == len(ahead._kept)


def test_where_the_browser_says_its_sliders_are_is_taken() -> None:
    place = memory_frames.place_of({"at": [0, 2], "moves": 5})
    assert place == (estimate.CONTEXT_LENS[0], estimate.SEQUENCES[2], 5)


@pytest.mark.parametrize(
    "value",
    [None, 3, [], {}, {"at": [0, 0]}, {"at": 0, "moves": 1}, {"at": [0], "moves": 1}]
    + [{"at": [0, 0, 0], "moves": 1}, {"at": [0, -1], "moves": 1}, {"at": [99, 0], "moves": 1}]
    + [{"at": [0, 99], "moves": 1}, {"at": [1.0, 0], "moves": 1}, {"at": [True, 0], "moves": 1}]
    + [{"at": ["0", 0], "moves": 1}, {"at": [0, 0], "moves": -1}, {"at": [0, 0], "moves": 2**60}]
    + [{"at": [0, None], "moves": 1}, {"at": [0, 0], "moves": "1"}, {"at": {}, "moves": 1}],
)
def test_what_is_no_stop_of_a_slider_is_ignored(value: object) -> None:
    assert memory_frames.place_of(value) is None
