"""Lengths of requests, against sums made by hand."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viz_engine.memory import lengths
from viz_engine.text import UserError

pairs = st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 900)), min_size=1, max_size=40)


@given(pairs)
def test_a_request_holds_its_prompt_and_what_it_has_written_so_far(made) -> None:
    found = lengths.of_pairs(made)
    steps = [prompt + i + 0.5 for prompt, written in made for i in range(written)]
    assert found.held_mean == pytest.approx(sum(steps) / len(steps))
    assert found.prompt_mean == pytest.approx(sum(p for p, _ in made) / len(made))
    assert found.longest == max(p + n for p, n in made)
    assert set(found.prompts) <= {p for p, _ in made}


def test_two_averages_are_one_pair() -> None:
    found = lengths.averages(2048, 512)
    assert (found.num, found.held_mean, found.prompts) == (1, 2048 + 256, (2048,))


@pytest.mark.parametrize("mean", [100, 2048, 50_000])
def test_a_spread_keeps_its_averages_and_its_width(mean: int) -> None:
    found = lengths.spread(mean, 512, 4.0)
    assert found.prompt_mean == pytest.approx(mean, rel=0.01)
    assert found.output_mean == pytest.approx(512, rel=0.01)
    p50, p90, _ = found.prompt_quantiles
    assert p90 / p50 == pytest.approx(4.0, rel=0.1)


def test_the_lengths_of_a_made_pair_have_nothing_to_do_with_one_another() -> None:
    """Independent lengths: a request in flight has the prompt of any other."""
    found = lengths.spread(2000, 500, 4.0)
    alone = lengths.spread(1, 500, 4.0)  # prompts of one or two tokens
    assert found.held_mean - alone.held_mean == pytest.approx(2000, rel=0.02)


def test_a_csv_is_read_with_and_without_names() -> None:
    plain = lengths.read(b"100,10\r\n300,30\n\n")
    named = lengths.read("\ufeffid,new_tokens,prompt_tokens\na,10,100\nb,30,300\n".encode())
    assert plain == named and plain.prompt_mean == 200 and plain.output_quantiles[2] == 30


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("", "lengths.empty", None),
        ("a,b\n", "lengths.empty", None),
        ("a,b,c\n1,2,3\n", "lengths.columns", None),
        ("1,2\n3\n", "lengths.line", 2),
        ("1,2\nx,3\n", "lengths.line", 2),
        ("1,2\n3,-4\n", "lengths.range", 2),
        ("1,0\n", "lengths.range", 1),
        ("1,99999999999999999999\n", "lengths.range", 1),
        ("１,2\n3,4\n", "lengths.line", 1),
        ("<b>1</b>,2\n1,1", "lengths.line", 1),
        ("1,2\n" + "9" * 200_000 + ",3\n", "lengths.line", 2),
    ],
)
def test_a_line_that_is_no_pair_is_refused_by_its_number(text: str, key: str, line) -> None:
    with pytest.raises(UserError) as refused:
        lengths.read(text.encode())
    assert refused.value.message.key in (key, "lengths.empty", "lengths.columns")
    if refused.value.message.key == key and line is not None:
        assert refused.value.message.params["line"] == line


def test_too_much_is_refused_before_it_is_worked_out() -> None:
    with pytest.raises(UserError, match="2 MB"):
        lengths.read(b"1,1\n" * 600_000)
    with pytest.raises(UserError, match="lines"):
        lengths.read(b"1,1\n" * (lengths.MAX_PAIRS + 1))
    start = time.process_time()
    lengths.read(b"123456,1234\n" * lengths.MAX_PAIRS)
    assert time.process_time() - start < 2
