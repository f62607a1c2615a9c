"""Little's law, against sums made by hand or by brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viz_engine.memory import capacity
from viz_engine.memory.capacity import Workload


@given(st.floats(0.01, 50), st.integers(1, 500))
def test_requests_in_flight_are_as_slow_as_they_make_one_another(rate: float, room: int) -> None:
    def duration_s(num: int) -> float:
        return 1 + 0.02 * num

    found = capacity.steady(rate, room, duration_s)
    held = [n for n in range(1, room + 1) if rate * duration_s(n) <= n]
    assert found == ((held[0], duration_s(held[0])) if held else None)


def simulate(num_users: int, answer_s: float, think_s: float, hours: float) -> float:
    """Requests a second of that many users who ask, wait, pause and ask again."""
    seconds = hours * 3600
    return num_users * int(seconds / (answer_s + think_s)) / seconds


def test_users_that_pause_keep_as_many_requests_in_flight_as_little_says() -> None:
    found = capacity.served(12, 20.0, think_s=40.0)
    assert found.users == 36 and found.requests_per_s == 0.6
    assert simulate(found.users, 20.0, 40.0, hours=10) == pytest.approx(found.requests_per_s)
    assert capacity.in_flight(found.requests_per_s, 20.0) == 12


@given(st.integers(0, 10**6), st.floats(0.01, 1e5), st.floats(0, 1e5))
def test_more_room_or_longer_pauses_never_serve_fewer(n: int, answer: float, think: float) -> None:
    found = capacity.served(n, answer, think_s=think)
    assert found.users >= n
    assert capacity.served(n + 1, answer, think_s=think).users >= found.users
    assert capacity.served(n, answer, think_s=think + 1).users >= found.users


def test_an_answer_holds_half_of_itself_on_average() -> None:
    load = Workload(prompt_len=1000, output_len=200)
    held = [load.prompt_len + n for n in range(load.output_len + 1)]
    assert load.mean_held_len == sum(held) / len(held) and load.peak_len == held[-1]
    assert load.duration_s(0.5, 0.02) == pytest.approx(0.5 + 199 * 0.02)
    assert Workload(prompt_len=1, output_len=1).duration_s(0.5, 9.0) == 0.5
