"""The charts of the race hold the numbers that they are given, in both themes."""

import math

import pytest

from viz_engine.analysis.growth import Growth
from viz_engine.analysis.race import AttentionRows, Spread
from viz_engine.view.race import charts as race_charts


def say(key: str, **params: object) -> str:
    """The end of a key as its text: `none`, `total`."""
    return key.rpartition(".")[2]


def work(*points: tuple[int, int, int]) -> list[Growth]:
    """(tokens, linear layers, attention) each."""
    return [Growth(num_tokens=n, linear=a, attention=b) for n, a, b in points]


def spread(low: float, median: float, high: float) -> Spread:
    return Spread(low=low, median=median, high=high, num=3)


def traces(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_growth_draws_both_parts_their_crossing_and_the_times(theme: str) -> None:
    lanes = {"none": work((64, 10, 1), (128, 40, 8)), "full": work((64, 5, 1), (128, 10, 4))}
    crossings, times = {"none": 100.0, "full": 9e9}, {"none": [(8, 0.5)]}
    figure = race_charts.growth_chart(lanes, crossings, times, say, theme)
    found = traces(figure)
    assert list(found["none: total"].y) == [11, 48]
    assert list(found["none: linear"].y) == [10, 40]
    assert list(found["full: attention"].y) == [1, 4]
    timed = found["none: time_measured"]
    assert list(timed.x) == [8] and timed.yaxis == "y2"
    assert len(figure.layout.shapes) == 1, "a crossing beyond the lengths is not drawn"


def test_gaps_of_zero_stand_at_the_foot_with_their_true_value() -> None:
    figure = race_charts.gap_chart([0.0, 1e-5], [2.0, 0.5], 1, say, "dark")
    gap, zero = figure.data[1:]
    assert list(gap.y) == [None, 1e-5] and zero.y[1] is None and 0 < zero.y[0] < 1e-5
    assert list(zero.customdata) == [0.0, 1e-5]
    assert figure.layout.shapes[0].x0 == 2 and figure.layout.annotations[0].text == "differs"
    same = race_charts.gap_chart([1e-5], [2.0], None, say, "dark")
    assert len(same.data) == 2 and not same.layout.shapes


def test_the_ratio_has_its_spread_and_the_ratio_of_work_above() -> None:
    ratios = [spread(0.9, 1.0, 1.1), spread(1.8, 2.0, 2.2)]
    figure = race_charts.gain_chart(ratios, [1.0, 3.0], 1.1, 2, say, "dark")
    assert list(figure.data[0].y) == [1.1, 2.2, 1.8, 0.9] and figure.data[0].fill == "toself"
    assert list(figure.data[1].y) == [1.0, 2.0] and list(figure.data[2].y) == [1.0, 3.0]
    band, start = figure.layout.shapes
    assert (band.y0, band.y1, start.x0) == (0.8, 1.1, 2)
    (words,) = figure.layout.annotations
    assert words.text == "no_gain" and words.y == math.log10(1.1)
    bare = race_charts.gain_chart(ratios, [None, None], 1.1, None, say, "dark")
    assert len(bare.data) == 2 and len(bare.layout.shapes) == 1


def test_bars_of_the_first_token_carry_their_spread_in_seconds() -> None:
    lanes = {"none": spread(1e9, 2e9, 4e9), "full": spread(2e9, 2e9, 2e9)}
    bar = race_charts.ttft_chart(lanes, say, "dark").data[0]
    assert (bar.x[0], bar.error_x.array[0], bar.error_x.arrayminus[0]) == (2.0, 2.0, 1.0)


def test_attention_shows_every_weight_and_leaves_out_what_was_not_computed() -> None:
    rows = [[1.0], [0.25, 0.75]]
    shown = AttentionRows(
        layer=0,
        query_head=0,
        first_query=1,
        panels=(rows, rows, [[None, None], [0.25, 0.75]], rows),
        num_queries=2,
        num_keys=2,
        texts=("x", "y", "<b>"),
    )
    figure = race_charts.attention_chart(shown, say, "dark")
    assert len(figure.data) == 4
    assert figure.data[0].y == ("1 “y”", "2 “&lt;b&gt;”"), "a token is never markup"
    assert list(figure.data[0].z[1]) == [0.5, math.sqrt(0.75)]
    assert list(figure.data[2].z[0]) == [None, None]
    assert list(figure.data[0].customdata[1]) == [0.25, 0.75]


def test_a_key_that_did_not_move_has_no_colour() -> None:
    figure = race_charts.prefix_chart([[0.5, 0.1], [0.0, 1.0]], ["x", "y"], say, "dark")
    assert figure.data[0].z[1][0] is None and figure.data[0].z[1][1] == 0
