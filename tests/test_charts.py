"""Figures: the theme is the page's own, axes of bytes are exact, every figure is plain data."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from plotly.graph_objects import Figure

from viz_engine import charts, memory_charts

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


# ---- memory --------------------------------------------------------------------------------------

GIB = 2**30
WORDS = {part: f"<{part}>" for part in memory_charts.PARTS} | {"ceiling": "usable"}


def checked(figure: Figure) -> Figure:
    """The figure as Plotly reads it, with the checks that are left out while a slider moves."""
    return Figure(figure.to_dict())


def checked_bars(*args: object, **named: object) -> Figure:
    return checked(memory_charts.memory_bars(*args, **named))


def bar(**changes: object) -> memory_charts.Bar:
    plain = {"label": "A", "parts": {"weights": 15 * GIB, "k": 8 * GIB, "v": 8 * GIB}}
    return memory_charts.Bar(**(plain | {"ceiling_bytes": 72 * GIB} | changes))


def test_a_bar_is_its_parts_and_its_total_stands_at_its_end() -> None:
    figure = checked_bars([bar(), bar(parts={"latent": GIB})], WORDS, theme="dark")
    parts = {trace.name: list(trace.x) for trace in figure.data if trace.type == "bar"}
    assert parts == {
        "<weights>": [15 * GIB, 0],
        "<k>": [8 * GIB, 0],
        "<v>": [8 * GIB, 0],
        "<latent>": [0, GIB],
    }
    texts = next(trace.text for trace in figure.data if trace.type == "scatter" and trace.text)
    assert "31 GiB" in texts[0] and "1 GiB" in texts[1]
    assert len(set(figure.data[0].y)) == 2  # equal labels are rows of their own


def test_no_part_of_a_bar_stands_out_by_its_colour_alone() -> None:
    every = {part: GIB for part in memory_charts.PARTS}
    figure = checked_bars([bar(parts=every)], WORDS, theme="light")
    marks = [(t.marker.color, t.marker.pattern.shape) for t in figure.data if t.type == "bar"]
    assert len(set(marks)) == len(memory_charts.PARTS)
    shapes = [shape for colour, shape in marks]
    assert len(set(shapes)) >= len(memory_charts.PARTS) - 1  # weights and K are plain and lie apart


@pytest.mark.parametrize(("ceiling", "colour"), [(72 * GIB, "new"), (20 * GIB, "bad")])
def test_the_ceiling_is_a_line_that_says_whether_it_fits(ceiling: int, colour: str) -> None:
    figure = checked_bars([bar(ceiling_bytes=ceiling)], WORDS, theme="dark")
    (line,) = figure.layout.shapes
    assert line.x0 == line.x1 == ceiling
    assert line.line.color == getattr(charts.palette("dark"), colour)
    assert figure.layout.xaxis.range[1] > max(ceiling, 31 * GIB)
    assert not checked_bars([bar(ceiling_bytes=None)], WORDS, theme="dark").layout.shapes


def test_the_spread_of_the_estimates_is_an_error_bar() -> None:
    figure = checked_bars([bar(spread_bytes=(GIB, 3 * GIB))], WORDS, theme="dark")
    ends = next(trace for trace in figure.data if trace.type == "scatter")
    assert (ends.x[0], ends.error_x.arrayminus[0], ends.error_x.array[0]) == (
        31 * GIB,
        GIB,
        3 * GIB,
    )


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


@pytest.mark.parametrize("power", range(0, 62))
def test_no_tick_of_bytes_has_an_exponent(power: int) -> None:
    for number in (2**power, 1.02 * 2**power, 999.7 * 2**power):
        assert "e" not in charts.bytes_text(number)
    assert charts.bytes_text(1023 * GIB) == "1\u202f023 GiB"


def test_no_ceiling_crosses_out_a_total_and_no_spread_a_label() -> None:
    figure = checked_bars([bar(ceiling_bytes=33 * GIB), bar()], WORDS, theme="dark")
    text, spread = figure.data[-1], figure.data[-2]
    assert text.x[0] == 33 * GIB and text.x[1] < 33 * GIB
    assert spread.yaxis == "y2" and all(y - i > 0.25 for i, y in enumerate(spread.y))


def test_the_ceiling_of_curves_says_whether_the_choice_fits() -> None:
    curve = memory_charts.Curve(name="cache", x=[1, 1024], y=[1024, 2**30], colour="k")
    for fits, colour in ((True, "new"), (False, "bad")):
        made = memory_charts.byte_curves(
            [curve], x_title="", ceiling=("usable", GIB, fits), here=("chosen", 1), theme="dark"
        )
        assert made.layout.shapes[0].line.color == getattr(charts.palette("dark"), colour)
        assert made.layout.annotations[1].yanchor == "top"


def test_a_total_that_lacks_a_part_is_more_than_what_is_shown() -> None:
    told, partial = (
        checked_bars([bar(is_partial=part)], WORDS, theme="dark").data[-1].text[0]
        for part in (False, True)
    )
    assert "&gt;" not in told and "&gt; 30" in partial.replace("31", "30")
