"""The memory page's sliders, bars, cards and notices: one component that paints frames.

The page gives it the frame of the present choice at every rerun; frames of every other stop follow
at the end, through a second mount that shows nothing and hands them over in the browser. So a
slider paints at once while it is dragged, and the page follows when it rests. The drawing is in
assets/js/memory_view.mjs.

Try it: `streamlit run app.py`, the page Memory
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import streamlit as st

from viz_engine.memory.estimate import Choice
from viz_engine.numbers import grouped
from viz_engine.text import Say
from viz_engine.view import components
from viz_engine.view.memory import frames as memory_frames
from viz_engine.view.memory.frames import AXES, Bar, Frame
from viz_engine.view.theme import FONT, palette

# Each file imports only from those before it.
MODULES = ("elements", "frames", "bars", "memory_view")
AHEAD_MODULES = ("frames", "ahead")
MAX_KEPT = 8  # messages a session keeps, each of some 10 KiB


@cache
def _component() -> Callable[..., object]:
    # Not apart: cards and notices look as those of other pages do, by page.css.
    css = components.style("memory_view.css")
    return st.components.v2.component(
        "second_token_bill", js=components.source(MODULES), css=css, isolate_styles=False
    )


@cache
def _ahead_component() -> Callable[..., object]:
    return st.components.v2.component(
        "second_token_bill_ahead", js=components.source(AHEAD_MODULES), isolate_styles=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Along:
    """What the frames along one slider depend on."""

    axis: str
    name: str
    choice: Choice
    language: str
    at_least: int  # bytes that the axis of the bars goes to, for those beside

    def packed(self, key: str, say: Say) -> bytes:
        frames = memory_frames.along(
            self.axis, self.name, self.choice, say, self.language, at_least=self.at_least
        )
        return memory_frames.packed(self.axis, key, frames)


def along(axis: str, name: str, choice: Choice, language: str, at_least: int) -> Along:
    """That of a choice: where this slider itself is makes no difference."""
    choice = memory_frames.without(axis, choice)
    return Along(axis=axis, name=name, choice=choice, language=language, at_least=at_least)


class Ahead:
    """The frames ahead of a session: the last few messages, so that what is the same keeps its key
    and its bytes, and Streamlit sends no more than their hash."""

    def __init__(self) -> None:
        self._kept: list[tuple[Along, str]] = []
        self._messages: dict[str, bytes] = {}

    def key(self, of: Along) -> str:
        """The name under which the browser finds these frames."""
        keys = [key for kept, key in self._kept if kept == of]
        key = keys[0] if keys else secrets.token_hex(8)  # a page may outlive its session
        kept = [*(entry for entry in self._kept if entry[1] != key), (of, key)]
        self._kept = kept[-MAX_KEPT:]
        return key

    def message(self, of: Along, say: Say) -> bytes:
        """The frames, made where they are not kept."""
        key = self.key(of)
        if key not in self._messages:
            self._messages[key] = of.packed(key, say)
            known = {key for _, key in self._kept}
            self._messages = {k: v for k, v in self._messages.items() if k in known}
        return self._messages[key]


def show(
    shown: Frame | None,
    pinned: Sequence[Bar],
    keys: dict[str, str] | None,
    *,
    at: tuple[int, int],
    moves: int,
    image: str,
    theme: str,
    say: Say,
    on_move: Callable[[], None],
    key: str,
) -> None:
    """Mount the view. `keys` name the frames ahead of this one; None where there are none, because
    `shown` is not of what is chosen. `at` is the number of each slider, `moves` the last move of
    the browser that this answers; the state `place` says the next one to `on_move`."""
    data = {
        "frame": shown,
        "pinned": list(pinned),
        "keys": keys,
        "at": [
            stops.index(memory_frames.nearest(axis, value))
            for (axis, (_, stops)), value in zip(AXES.items(), at, strict=True)
        ],
        "shown": [grouped(value) for value in at],
        "moves": moves,
        "sliders": [
            {
                "name": name,
                "label": say(f"mem.{name}"),
                "help": say(f"mem.{name}_help"),
                "stops": [grouped(stop) for stop in stops],
            }
            for name, (_, stops) in AXES.items()
        ],
        "title": say("mem.bar"),
        "help": say("mem.bar_help"),
        "save": say("mem.save", kind=image.upper()),
        "image": image,
        **_look(theme, say),
    }
    _component()(key=key, data=data, on_place_change=on_move)


def _look(theme: str, say: Say) -> dict[str, object]:
    """The names and marks of the bar's parts, and the colours of everything."""
    colours = palette(theme)
    return {
        "parts": {
            part: [say(f"mem.part.{part}"), getattr(colours, colour), mark]
            for part, (colour, mark) in memory_frames.PARTS.items()
        },
        "colours": {
            "page": colours.background,
            "text": colours.text,
            "muted": colours.muted,
            "line": colours.line,
            "fits": colours.new,
            "over": colours.bad,
        },
        "font": FONT,
    }


def hand_over(message: bytes, *, key: str) -> None:
    """Mount what brings frames ahead into the browser; it shows nothing."""
    _ahead_component()(key=key, data=message)
