"""Figures: the theme is the page's own, axes of bytes are exact, every figure is plain data."""

import re
from dataclasses import fields

import pytest
from plotly.graph_objects import Figure

from viz_engine.paths import ASSETS
from viz_engine.view import charts
from viz_engine.view.memory import charts as memory_charts
from viz_engine.view.theme import palette

CSS = (ASSETS / "css" / "live_view.css").read_text("utf-8")
NAMES = {"k": "k", "v": "v", "new": "new", "decode": "dec", "read": "read", "prefill": "pre"}


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_charts_have_the_colours_of_the_live_view(theme: str) -> None:
    block = CSS.partition(f'.kv[data-theme="{theme}"] {{')[2].partition("}")[0]
    named = dict(re.findall(r"--(\w+): (#[0-9a-f]+);", block))
    colours = palette(theme)
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
    colours = palette(theme)
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
    in_one_unit = charts.byte_axis(0, 1.6 * 2**40, log=False)["ticktext"]
    assert in_one_unit == ["0 B", "0.5 TiB", "1 TiB", "1.5 TiB"]


def test_a_change_of_layout_keeps_the_rest() -> None:
    colours = palette("dark")
    made = charts.layout(colours, height=200, xaxis={"title": {"text": "tokens"}}, barmode="stack")
    assert made["xaxis"]["title"]["text"] == "tokens"
    assert made["xaxis"]["title"]["font"]["color"] == colours.muted
    assert made["xaxis"]["gridcolor"] == colours.line and made["barmode"] == "stack"


def test_the_saved_picture_is_png_or_svg_under_its_name() -> None:
    assert charts.config("memory")["toImageButtonOptions"]["format"] == "png"
    saved = charts.config("memory", image="svg")["toImageButtonOptions"]
    assert (saved["format"], saved["filename"]) == ("svg", "memory")


# ---- memory --------------------------------------------------------------------------------------

GIB = 2**30


def checked(figure: Figure) -> Figure:
    """The figure as Plotly reads it, with the checks that are left out while a slider moves."""
    return Figure(figure.to_dict())


def test_curves_are_logarithmic_on_both_axes_and_carry_their_ceiling() -> None:
    counts = [512, 1024, 2048]
    curve = memory_charts.Curve(name="KV", x=counts, y=[n * 131072 for n in counts], colour="k")
    figure = checked(
        memory_charts.byte_curves(
            [curve],
            x_title="tokens",
            ceiling=("usable", GIB, True),
            here=("chosen", 1024),
            theme="light",
        )
    )
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    ceiling, here = figure.layout.shapes
    assert ceiling.y0 == GIB and here.x0 == 1024
    assert 10 ** figure.layout.yaxis.range[1] > GIB


def test_bytes_over_time_hold_until_the_next_point() -> None:
    lines = [
        memory_charts.Curve(name="rows", x=[0, 1], y=[0, 9], colour="k"),
        memory_charts.Curve(name="read", x=[0, 1], y=[0, 9], colour="v", style="dot"),
    ]
    figure = checked(memory_charts.bytes_over_time(lines, x_title="s", y_title="", theme="dark"))
    assert [trace.line.shape for trace in figure.data] == ["hv", "linear"]
    assert figure.data[1].mode == "lines+markers"


def test_the_ceiling_of_curves_says_whether_the_choice_fits() -> None:
    curve = memory_charts.Curve(name="cache", x=[1, 1024], y=[1024, 2**30], colour="k")
    for fits, colour in ((True, "new"), (False, "bad")):
        made = memory_charts.byte_curves(
            [curve], x_title="", ceiling=("usable", GIB, fits), here=("chosen", 1), theme="dark"
        )
        assert made.layout.shapes[0].line.color == getattr(palette("dark"), colour)
        assert made.layout.annotations[1].yanchor == "top"
