"""The charts of the race hold the numbers that they are given, in both themes."""

import collections
import math

import pytest

from viz_engine.view import charts
from viz_engine.view.race import charts as race_charts

WORDS = collections.defaultdict(lambda: "word", none="no cache", full="cache")
COLOURS = charts.palette("dark")


def traces(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_growth_draws_both_parts_their_crossing_and_the_times(theme: str) -> None:
    lanes = {"none": [(64, 10, 1), (128, 40, 8)], "full": [(64, 5, 1), (128, 10, 4)]}
    words = WORDS | {"total": "all", "linear": "linear", "attention": "attention", "time": "time"}
    figure = race_charts.race_growth(
        lanes, {"none": 100.0, "full": 9e9}, {"none": [(8, 0.5)]}, words, charts.palette(theme)
    )
    found = traces(figure)
    assert list(found["no cache: all"].y) == [11, 48]
    assert list(found["no cache: linear"].y) == [10, 40]
    assert list(found["cache: attention"].y) == [1, 4]
    assert list(found["no cache: time"].x) == [8] and found["no cache: time"].yaxis == "y2"
    assert len(figure.layout.shapes) == 1, "a crossing beyond the lengths is not drawn"


def test_gaps_of_zero_stand_at_the_foot_with_their_true_value() -> None:
    figure = race_charts.race_gap([0.0, 1e-5], [2.0, 0.5], 1, WORDS, COLOURS)
    gap, zero = figure.data[1:]
    assert list(gap.y) == [None, 1e-5] and zero.y[1] is None and 0 < zero.y[0] < 1e-5
    assert list(zero.customdata) == [0.0, 1e-5]
    assert len(race_charts.race_gap([1e-5], [2.0], None, WORDS, COLOURS).data) == 2
    assert figure.layout.shapes[0].x0 == 2


def test_the_ratio_has_its_spread_and_the_ratio_of_work_above() -> None:
    ratios = [(0.9, 1.0, 1.1), (1.8, 2.0, 2.2)]
    figure = race_charts.race_gain(ratios, [1.0, 3.0], 1.1, 2, WORDS, COLOURS)
    assert list(figure.data[0].y) == [1.1, 2.2, 1.8, 0.9]
    assert list(figure.data[1].y) == [1.0, 2.0] and list(figure.data[2].y) == [1.0, 3.0]
    assert len(race_charts.race_gain(ratios, [None, None], 1.1, None, WORDS, COLOURS).data) == 2


def test_bars_of_the_first_token_carry_their_spread() -> None:
    figure = race_charts.race_ttft(
        {"none": (1.0, 2.0, 4.0), "full": (2.0, 2.0, 2.0)}, WORDS, COLOURS
    )
    bar = figure.data[0]
    assert (bar.x[0], bar.error_x.array[0], bar.error_x.arrayminus[0]) == (2.0, 2.0, 1.0)


def test_attention_shows_every_weight_and_leaves_out_what_was_not_computed() -> None:
    rows = [[1.0], [0.25, 0.75]]
    panels = [
        ("a", 1, rows),
        ("b", 1, rows),
        ("c", 1, [[None, None], [0.25, 0.75]]),
        ("d", 1, rows),
    ]
    figure = race_charts.race_attention(panels, ["x", "y", "<b>"], WORDS, COLOURS)
    assert len(figure.data) == 4
    assert figure.data[0].y == ("1 “y”", "2 “&lt;b&gt;”"), "a token is never markup"
    assert list(figure.data[0].z[1]) == [0.5, math.sqrt(0.75)]
    assert list(figure.data[2].z[0]) == [None, None]
    assert list(figure.data[0].customdata[1]) == [0.25, 0.75]


def test_a_key_that_did_not_move_has_no_colour() -> None:
    figure = race_charts.race_prefix([[0.5, 0.1], [0.0, 1.0]], ["x", "y"], WORDS, COLOURS)
    assert figure.data[0].z[1][0] is None and figure.data[0].z[1][1] == 0
