"""Little's law, against sums made by hand or by brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viz_engine.memory import capacity


@given(st.floats(0.01, 50), st.integers(1, 500))
def test_requests_in_flight_are_as_slow_as_they_make_one_another(rate: float, room: int) -> None:
    def duration_s(num: int) -> float:
        return 1 + 0.02 * num

    found = capacity.steady(rate, room, duration_s)
    held = [n for n in range(1, room + 1) if rate * duration_s(n) <= n]
    assert found == ((held[0], duration_s(held[0])) if held else None)


def turn_about(num: int, ttft: float, itl: float, tokens: int, seconds: float) -> float:
    """Requests a second of a server that either reads one prompt or makes one step of all that are
    in flight; whoever is done is followed by the next at once."""
    left, clock, done = [0] * num, 0.0, 0  # tokens still to write; 0: to be read
    while clock < seconds:
        waiting = next((i for i, n in enumerate(left) if n == 0), None)
        if waiting is not None:
            clock += ttft
            left[waiting] = tokens - 1
            done += tokens == 1
        else:
            clock += itl
            left = [n - 1 for n in left]
            done += left.count(0)
    return done / clock


@pytest.mark.parametrize(("num", "tokens"), [(1, 1), (1, 40), (8, 20), (32, 100)])
def test_without_overlap_reading_and_writing_take_turns(num: int, tokens: int) -> None:
    found = capacity.served(num, ttft_s=0.3, itl_s=0.02, output_len=tokens)
    measured = turn_about(num, 0.3, 0.02, tokens, 20_000)
    assert found.requests_per_s[0] == pytest.approx(measured, rel=0.01)
    assert found.requests_per_s[1] <= 1 / 0.3 + 1e-9


def test_no_range_passes_what_reading_the_prompts_allows() -> None:
    found = capacity.served(400, ttft_s=0.3, itl_s=0.02, output_len=128)
    assert found.requests_per_s[1] == pytest.approx(1 / 0.3)  # 400 at once could write faster
    few = capacity.served(2, ttft_s=0.3, itl_s=0.02, output_len=128)
    assert few.requests_per_s[1] == pytest.approx(2 / (127 * 0.02))


@given(st.integers(0, 10**5), st.floats(0.001, 100), st.floats(1e-4, 1), st.integers(1, 10**4))
def test_more_room_or_longer_pauses_never_serve_fewer(n, ttft, itl, tokens) -> None:
    def served(num: int, think: float = 1.0):
        return capacity.served(num, ttft_s=ttft, itl_s=itl, output_len=tokens, think_s=think)

    found, more = served(n), served(n + 1)
    assert found.users[0] <= found.users[1] and found.users[0] >= n
    assert all(b >= a for a, b in zip(found.users, more.users, strict=True))
    assert all(b >= a for a, b in zip(found.users, served(n, 2.0).users, strict=True))


def test_those_who_wait_and_those_who_think_are_all_the_people() -> None:
    found = capacity.served(12, ttft_s=1.0, itl_s=0.01, output_len=100, think_s=40.0)
    for people, rate, answer in zip(
        found.users, found.requests_per_s, found.duration_s, strict=True
    ):
        assert people == int(rate * (answer + 40.0) + 1e-9)
        assert capacity.in_flight(rate, answer) == pytest.approx(12)


def test_beside_prompts_that_are_read_in_turn_an_answer_takes_longer() -> None:
    how = {"ttft_s": 0.5, "itl_s": 0.02, "output_len": 201}
    assert capacity.duration(1.0, overlap=True, **how) == pytest.approx(4.5)
    assert capacity.duration(1.0, overlap=False, **how) == pytest.approx(0.5 + 4.0 / 0.5)
    assert capacity.duration(2.0, overlap=False, **how) == float("inf")
