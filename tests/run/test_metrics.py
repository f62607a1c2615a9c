"""TTFT, ITL and their percentiles, against numpy and by hand."""

import numpy
import pytest

from tests.support.records import finished, started, step
from viz_engine.run import metrics
from viz_engine.run.log import RunLog


def log_of(ends: list[int]) -> RunLog:
    """A run whose prefill ends at `ends[0]` and whose tokens follow."""
    events = [started(queued_ns=0, accepted_ns=0), step(0, 0, 2, start_ns=0, end_ns=ends[0])]
    for i, (a, b) in enumerate(zip(ends, ends[1:], strict=False), start=1):
        events.append(step(i, 1 + i, 2 + i, start_ns=a, end_ns=b))
    return RunLog.of(events)


def test_ttft_counts_from_accepted_to_the_first_token() -> None:
    assert metrics.ttft_ns(log_of([900])) == 900


def test_a_piece_of_prefill_that_gives_no_token_is_not_the_first_token() -> None:
    log = RunLog.of(
        [
            started(),
            step(0, 0, 1, token_ids=((),), token_texts=((),)),
            step(1, 1, 2, phase="prefill", end_ns=80),
        ]
    )
    assert metrics.ttft_ns(log) == 75


def test_itl_is_the_gap_between_ends_and_percentiles_are_numpys() -> None:
    log = log_of([100, 120, 150, 155, 300, 310])
    gaps = metrics.itl_ns(log)
    assert gaps == [20, 30, 5, 145, 10]
    summary = metrics.summary(log)
    assert summary.itl_median_ns == pytest.approx(numpy.percentile(gaps, 50))
    assert summary.itl_p95_ns == pytest.approx(numpy.percentile(gaps, 95))
    assert summary.num_gaps == 5 and summary.num_tokens == 6
    assert summary.tpot_ns == pytest.approx((310 - 100) / 5)
    assert summary.tokens_per_s == pytest.approx(5e9 / 210)


def test_several_tokens_in_a_step_are_several_in_tpot_and_one_gap() -> None:
    several = {"token_ids": ((7, 8, 9),), "token_texts": (("a", "b", "c"),)}
    log = log_of([100, 120])
    log.append(step(2, 3, 6, start_ns=120, end_ns=420, **several))
    summary = metrics.summary(log)
    assert summary.num_tokens == 5 and metrics.itl_ns(log) == [20, 300]
    assert summary.tpot_ns == (420 - 100) / 4 and summary.tokens_per_s == pytest.approx(4e9 / 320)


def test_one_token_has_no_itl_and_none_is_not_zero() -> None:
    summary = metrics.summary(log_of([100]))
    assert summary.itl_median_ns is None and summary.tpot_ns is None
    assert summary.tokens_per_s is None and summary.num_tokens == 1


def test_a_run_that_never_gave_a_token_has_no_ttft() -> None:
    assert metrics.summary(RunLog.of([started(), finished()])).ttft_ns is None


def test_predicted_without_a_cache_is_the_whole_context_again() -> None:
    log = log_of([100, 120])
    here, without = log.step_cost(1), log.step_cost(1, cached=False)
    assert here.kv_live_bytes == 3 * log.started.spec.row_elements * 4
    assert without.kv_live_bytes == 0 and without.flops > 2 * here.flops / 3 * 1.2
