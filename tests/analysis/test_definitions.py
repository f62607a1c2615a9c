"""Every tool's definition, against numpy and traces made by hand."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import finished, started, step
from viz_engine.analysis import definitions
from viz_engine.analysis.definitions import Chunk, Request
from viz_engine.run.log import RunLog


def log_of(
    ends: list[int], texts: list[str] | None = None, reason: str = "length", end_ns: int = 0
) -> RunLog:
    """A run accepted at 0 whose first token comes at `ends[0]`, the others as they follow."""
    texts = texts or ["a"] * len(ends)
    events = [
        started(queued_ns=0, accepted_ns=0),
        step(0, 0, 2, start_ns=0, end_ns=ends[0], token_texts=((texts[0],),)),
    ]
    for i, (a, b) in enumerate(zip(ends, ends[1:], strict=False), start=1):
        events.append(step(i, 1 + i, 2 + i, start_ns=a, end_ns=b, token_texts=((texts[i],),)))
    last = end_ns or ends[-1]
    events.append(finished(end_ns=last, finish_reason=reason, sequence_reasons=(reason,)))
    return RunLog.of(events)


def reports(*logs: RunLog) -> dict[str, definitions.Report]:
    return {one.tool: one for one in definitions.report(*logs)}


def test_five_tools_five_answers_from_one_trace() -> None:
    # Sent at 0; tokens at 100, 120, 150, 190; the third completes no character; closed at 200.
    by = reports(log_of([100, 120, 150, 190], ["a", "b", "", "c"], end_ns=200))
    assert {tool: one.ttft.median for tool, one in by.items()} == dict.fromkeys(by, 100)
    assert by["vllm"].itl.mean == pytest.approx((20 + 30 + 40) / 3) and by["vllm"].itl.num == 3
    assert by["sglang"].itl.mean == pytest.approx((20 + 70) / 2) and by["sglang"].itl.num == 2
    assert by["guidellm"].itl.mean == pytest.approx(90 / 3) and by["guidellm"].itl.most == 30
    assert by["aiperf"].itl.mean == 30 and by["aiperf"].itl.num == 1
    assert by["llmperf"].itl.mean == 190 / 4  # the wait for the first token is in it
    assert by["vllm"].tpot.mean == 30
    assert by["sglang"].tpot.mean == pytest.approx((200 - 100) / 3)  # the tail is in it
    assert by["guidellm"].tpot.mean == 190 / 4  # prefill is in it
    assert by["llmperf"].tpot.mean is None


def test_sglang_waits_for_the_first_text() -> None:
    by = reports(log_of([100, 120, 150], ["", "b", "c"]))
    assert by["sglang"].ttft.median == 120 and by["vllm"].ttft.median == 100


def test_one_token_has_no_itl_and_no_tpot() -> None:
    by = reports(log_of([100]))
    for tool in ("vllm", "sglang", "guidellm", "aiperf"):
        assert by[tool].itl.median is None and by[tool].itl.num == 0
        assert by[tool].ttft.median == 100
    assert by["vllm"].tpot.median is None and by["sglang"].tpot.median is None
    assert by["guidellm"].tpot.median == 100  # by its own formula: latency / 1


@pytest.mark.parametrize("reason", ["cancelled", "error"])
def test_a_run_that_did_not_end_by_itself_enters_no_figure(reason: str) -> None:
    whole, broken = log_of([100, 120, 140]), log_of([900, 999], reason=reason)
    by = reports(whole, broken)
    assert by["vllm"].ttft.most == 100 and by["vllm"].num_left_out == 1
    alone = reports(broken)["vllm"]
    assert alone.ttft.median is None and alone.num_requests == 0


def test_a_log_without_an_end_is_left_out() -> None:
    log = log_of([100, 120])
    cut = RunLog.of(log.events[:-1])
    assert reports(cut)["vllm"].num_left_out == 1
    assert reports(RunLog())["vllm"].num_left_out == 0


def test_vllm_weighs_itl_by_token_and_tpot_by_request() -> None:
    short, long = log_of([100, 200]), log_of([100, 110, 120, 130, 140])
    vllm = reports(short, long)["vllm"]
    assert vllm.itl.mean == pytest.approx((100 + 4 * 10) / 5)
    assert vllm.tpot.mean == pytest.approx((100 + 10) / 2)
    assert reports(short, long)["guidellm"].itl.mean == pytest.approx((100 + 4 * 10) / 5)


def test_several_tokens_in_one_chunk_are_one_gap_and_many_tokens() -> None:
    request = Request(
        sent_ns=0,
        chunks=tuple(
            Chunk(t_ns=t, num_tokens=n, has_text=True) for t, n in ((50, 1), (80, 3), (90, 1))
        ),
        closed_ns=95,
        complete=True,
    )
    vllm, _, guidellm, aiperf, llmperf = definitions.DEFINITIONS
    assert list(vllm.itl(request)) == [30, 10]
    assert list(vllm.tpot(request)) == [40 / 4]
    assert list(aiperf.itl(request)) == [40 / 4]
    assert list(guidellm.tpot(request)) == [90 / 5] == list(llmperf.itl(request))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_statistics_are_numpys(values: list[int]) -> None:
    found = definitions.stats(values)
    expected = numpy.percentile(values, [50, 90, 95, 99], method="linear")
    assert [found.median, found.p90, found.p95, found.p99] == pytest.approx(list(expected))
    assert found.mean == pytest.approx(numpy.mean(values)) and found.most == max(values)


def test_statistics_of_nothing_are_none() -> None:
    found = definitions.stats([])
    assert found.num == 0
    assert {found.mean, found.median, found.p90, found.p95, found.p99, found.most} == {None}
