"""A number reads the same wherever it stands: its unit, its digits, no exponent."""

from collections.abc import Callable

import pytest

from viz_engine import numbers


def test_sizes_are_in_binary_units() -> None:
    assert numbers.mib(23040) == "23\u202f040 B"
    assert numbers.mib(13.4 * 2**20) == "13.4 MiB"
    assert numbers.mib(5 * 2**30) == "5.00 GiB"
    assert numbers.mib(122070312.5 * 2**30) == "116 PiB" and numbers.mib(2.5 * 2**40) == "2.50 TiB"


@pytest.mark.parametrize("power", range(0, 70))
def test_no_size_has_an_exponent(power: int) -> None:
    for number in (2**power, 1.02 * 2**power, 999.7 * 2**power, 2**power - 1):
        assert "e+" not in numbers.mib(number) + numbers.three(number)


@pytest.mark.parametrize(
    ("number", "text"),
    [(512, "512"), (4096, "4K"), (131072, "128K"), (2**20, "1M"), (100_000, "100\u202f000")],
)
def test_only_whole_binary_thousands_are_shortened(number: int, text: str) -> None:
    assert numbers.short_count(number) == text


@pytest.mark.parametrize("power", range(0, 62))
def test_no_tick_of_bytes_has_an_exponent(power: int) -> None:
    for number in (2**power, 1.02 * 2**power, 999.7 * 2**power):
        assert "e" not in numbers.bytes_text(number)
    assert numbers.bytes_text(1023 * 2**30) == "1\u202f023 GiB"


@pytest.mark.parametrize(
    "seconds, text", [(None, "-"), (0.00123, "1.23"), (0.0123, "12.3"), (1.234, "1\u202f234")]
)
def test_milliseconds_have_three_digits(seconds, text) -> None:
    assert numbers.ms(seconds) == text


@pytest.mark.parametrize("value, text", [(None, "-"), (0, "0%"), (0.002, "<1%"), (0.25, "25%")])
def test_a_small_share_is_not_none(value, text) -> None:
    assert numbers.share(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4.2 ms"), (0.9999, "1 s"), (999.0, "999 s"), (999.7, "16.7 min")]
    + [(7200, "2 h"), (33_959 * 60, "23.6 d"), (1e9, "11\u202f574 d")],
)
def test_a_duration_stands_in_the_unit_that_keeps_it_short(seconds: float, text: str) -> None:
    assert numbers.time_text(seconds) == text


def test_amounts_are_in_their_unit() -> None:
    assert numbers.in_unit(2**30, "bytes") == "1.00 GiB"
    assert numbers.in_unit(3.352, "times") == "3.35 ×"
    assert numbers.in_unit(27443, "blocks") == "27\u202f443"


@pytest.mark.parametrize(
    ("flops", "text"), [(999_000, "0.999 MFLOP"), (2.5e9, "2.5 GFLOP"), (1.234e13, "12.3 TFLOP")]
)
def test_work_stands_in_the_unit_that_keeps_it_short(flops: float, text: str) -> None:
    assert numbers.flops_text(flops) == text


def test_a_rate_has_a_digit_after_the_point_until_it_is_large() -> None:
    assert numbers.giga(18.04e9) == "18.0" and numbers.giga(1.5e12) == "1500"


def test_parameters_are_in_billions_or_millions() -> None:
    assert numbers.billions(8_030_261_248) == "8.03 B"
    assert numbers.billions(134_515_008) == "135 M"


def test_a_power_of_ten_is_written_as_one() -> None:
    assert numbers.scientific(1.06e8) == "1.06·10⁸" and numbers.scientific(2.5e10) == "2.50·10¹⁰"


def test_an_amount_is_grouped_from_a_thousand_on() -> None:
    assert numbers.amount(0.012345, "$") == "0.01235 $"
    assert numbers.amount(12345, "tokens") == "12\u202f345 tokens"


@pytest.mark.parametrize("text", [numbers.mib, numbers.ms, numbers.giga, numbers.share])
def test_what_is_not_known_is_a_dash(text: Callable[[None], str]) -> None:
    assert text(None) == numbers.NONE
