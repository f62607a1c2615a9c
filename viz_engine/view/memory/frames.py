"""All that the memory page's two main sliders move, as data that a browser paints: frames.

A frame is what stands on the page for one context and one number of sequences: the bar's parts with
their texts, the cards with their formulas, the notices, the warnings. Frames for every stop of a
slider are made ahead, so that the browser works nothing out and need not wait while a slider is
dragged. It knows nothing of Streamlit.

Try it: `python -c "from viz_engine.view.memory import frames; print(frames.AXES)"`
"""

import json
import zlib
from dataclasses import asdict, replace

from viz_engine.memory import estimate
from viz_engine.memory.estimate import Choice, Estimate
from viz_engine.numbers import bytes_text, grouped, short_count
from viz_engine.text import Say, UserError
from viz_engine.view import charts
from viz_engine.view.markup import Number
from viz_engine.view.memory import tables, words

Frame = dict[str, object]
Bar = dict[str, object]

# Of each slider: the field of Settings that it moves, and where it stops.
AXES = {
    "context": ("context_len", estimate.CONTEXT_LENS),
    "sequences": ("num_sequences", estimate.SEQUENCES),
}
# Of each part of a bar: the palette's colour and a pattern, so that no colour stands alone.
PARTS = {
    "weights": ("muted", ""),
    "activations": ("prefill", "/"),
    "k": ("k", ""),
    "v": ("v", "\\"),
    "latent": ("k", "-"),
    "state": ("read", "x"),
    "overhead": ("muted", "."),
}
ROOM = 1.14  # of an axis: what is left free behind the longest bar for its total


def bar(name: str, found: Estimate, say: Say) -> Bar:
    """A choice as a bar: its parts in the order in which they are stacked, the total at its end,
    the range of the estimates, what the engine may use. Bytes are of one device."""
    settings, plan = found.choice.settings, found.plan
    known, budget = found.choice.knows_weights, found.choice.budget_bytes
    total = bytes_text(plan.total_bytes)
    return {
        "label": name,
        "size": f"{short_count(settings.context_len)} × {grouped(settings.num_sequences)}",
        "parts": [
            [part, found.parts[part], bytes_text(found.parts[part])]
            for part in PARTS
            if part in found.parts
        ],
        "total": plan.total_bytes,
        "total_text": total if known else f"> {total}",  # a part is not known: there is more
        "spread": [plan.low_bytes, plan.high_bytes],
        "ceiling": budget,
        "ceiling_text": f"{say('mem.ceiling')} {bytes_text(budget)}",
        "over": plan.total_bytes > budget,
        "alt": say(
            "mem.bar.alt",
            label=name,
            total=total if known else "-",
            ceiling=bytes_text(budget),
        ),
    }


def reach(shown: Bar) -> int:
    """How far a bar goes, with its range and its ceiling."""
    return max(shown["spread"][1], shown["total"], shown["ceiling"], 1)


def frame(name: str, found: Estimate, say: Say, language: str, *, at_least: int = 0) -> Frame:
    """What stands on the page for a choice. The axis goes `at_least` so far: as far as the bars
    that stand beside this one."""
    shown = bar(name, found, say)
    most = ROOM * max(reach(shown), at_least)
    axis = charts.byte_axis(0, most, log=False)
    return {
        "bar": shown,
        "axis": {"most": most, "ticks": list(zip(axis["tickvals"], axis["ticktext"], strict=True))},
        "cards": [card(number) for number in words.cards(found, say, language)],
        "notices": tables.accident_notices(found, say),
        "warnings": [say("mem.warn", text=w.text(language)) for w in found.plan.warnings],
    }


def card(number: Number) -> dict[str, object]:
    """A number with its formula as lines."""
    return asdict(number) | {"formula": [line for line in number.formula.split("\n") if line]}


def along(
    axis: str, name: str, choice: Choice, say: Say, language: str, *, at_least: int = 0
) -> dict[int, Frame]:
    """The frame at every stop of one slider, the other one left where it is. A stop that cannot be
    worked out is left out."""
    field, stops = AXES[axis]
    made = {}
    for i, stop in enumerate(stops):
        try:
            found = estimate.make(
                replace(choice, settings=replace(choice.settings, **{field: stop}))
            )
            made[i] = frame(name, found, say, language, at_least=at_least)
        except UserError:
            continue
    return made


def without(axis: str, choice: Choice) -> Choice:
    """A choice but for what one slider says: the frames along it are the same wherever it is."""
    return replace(choice, settings=replace(choice.settings, **{AXES[axis][0]: 1}))


def packed(axis: str, key: str, frames: dict[int, Frame]) -> bytes:
    """Frames as one message: JSON, deflated (they repeat one another: a tenth is left)."""
    said = {"axis": axis, "key": key, "frames": frames}
    return zlib.compress(json.dumps(said, ensure_ascii=False).encode())


def nearest(axis: str, value: int) -> int:
    """The stop at which a slider stands for a number."""
    return min(AXES[axis][1], key=lambda stop: abs(stop - value))


def place_of(value: object) -> tuple[int, int, int] | None:
    """What a browser says of its sliders, checked: the chosen stops, and how many moves were made.
    None where it is not what our own view says."""
    if not isinstance(value, dict) or not isinstance(value.get("at"), list):
        return None
    at, moves = value["at"], value.get("moves")
    stops = [stops for _, stops in AXES.values()]
    numbers = [*at, moves]
    if len(at) != len(stops) or any(type(n) is not int or n < 0 for n in numbers):
        return None
    if any(i >= len(values) for i, values in zip(at, stops, strict=True)) or moves >= 2**53:
        return None
    return stops[0][at[0]], stops[1][at[1]], moves
