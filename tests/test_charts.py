"""Figures: the theme is the page's own, axes of bytes are exact, every figure is plain data."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from viz_engine import charts

CSS = (Path(__file__).resolve().parent.parent / "assets" / "live_view.css").read_text("utf-8")
NAMES = {"k": "k", "v": "v", "new": "new", "decode": "dec", "read": "read", "prefill": "pre"}


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_charts_have_the_colours_of_the_live_view(theme: str) -> None:
    block = CSS.partition(f'.kv[data-theme="{theme}"] {{')[2].partition("}")[0]
    named = dict(re.findall(r"--(\w+): (#[0-9a-f]+);", block))
    colours = charts.palette(theme)
    assert {name: getattr(colours, name) for name in (*NAMES, "bad")} == {
        **{name: named[css] for name, css in NAMES.items()},
        "bad": named["bad"],
    }


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_colour_stands_out_from_the_background(theme: str) -> None:
    colours = charts.palette(theme)
    behind = luminance(colours.background)
    for field in fields(colours):
        if field.name in ("background", "card", "line", "track", "decode"):
            continue  # areas and lines that carry no meaning alone
        one, two = sorted((behind, luminance(getattr(colours, field.name))))
        needed = 4.5 if field.name in ("text", "muted") else 3
        assert (two + 0.05) / (one + 0.05) >= needed, field.name


def test_ticks_of_bytes_are_binary_and_say_so() -> None:
    axis = charts.byte_axis(1024, 2**40)
    assert axis["ticktext"][0] == "1 KiB" and axis["ticktext"][-1] == "1 TiB"
    assert all(value == 2.0 ** round(value).bit_length() / 2 for value in axis["tickvals"])
    linear = charts.byte_axis(0, 141 * 2**30, log=False)
    assert linear["ticktext"][:3] == ["0 B", "50 GiB", "100 GiB"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(512, "512"), (4096, "4K"), (131072, "128K"), (2**20, "1M"), (100_000, "100\u202f000")],
)
def test_only_whole_binary_thousands_are_shortened(number: int, text: str) -> None:
    assert charts.short_count(number) == text


def test_a_change_of_layout_keeps_the_rest() -> None:
    colours = charts.palette("dark")
    made = charts.layout(colours, height=200, xaxis={"title": {"text": "tokens"}}, barmode="stack")
    assert made["xaxis"]["title"]["text"] == "tokens"
    assert made["xaxis"]["title"]["font"]["color"] == colours.muted
    assert made["xaxis"]["gridcolor"] == colours.line and made["barmode"] == "stack"


def test_the_saved_picture_is_png_or_svg_under_its_name() -> None:
    assert charts.config("memory")["toImageButtonOptions"]["format"] == "png"
    saved = charts.config("memory", image="svg")["toImageButtonOptions"]
    assert (saved["format"], saved["filename"]) == ("svg", "memory")
