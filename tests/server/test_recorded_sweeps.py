"""The sweeps that ship: whole, of the default model, and under their machine's ceilings."""

import pytest

from viz_engine.analysis import diagnose, latency, roofline
from viz_engine.analysis.points import points_of
from viz_engine.model.files import DEFAULT_MODEL
from viz_engine.paths import ASSETS
from viz_engine.run.events import KVSample
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.sweep import KINDS

FOLDER = ASSETS / "recorded" / "sweeps"


def read(what: str) -> ExperimentLog:
    return ExperimentLog.read((FOLDER / f"{what}.jsonl").read_bytes(), "sweep")


@pytest.fixture(scope="module", params=KINDS)
def result(request: pytest.FixtureRequest) -> ExperimentLog:
    return read(request.param)


def test_a_recorded_sweep_is_whole_and_small(result: ExperimentLog) -> None:
    assert result.started.settings.model == DEFAULT_MODEL and result.ceilings is not None
    assert result.ended in ("done", "budget")
    assert len(points_of(result)) == len(result.settings.values)
    for log in result.runs():
        assert log.finished.finish_reason == "length"
        assert not any(isinstance(event, KVSample) for event in log)
    assert (FOLDER / f"{result.settings.what}.jsonl").stat().st_size < 2**20


def test_no_prediction_is_longer_than_what_was_measured(result: ExperimentLog) -> None:
    """By no more than the ceiling's own spread."""
    assert latency.exceeds(result.ceilings, latency.decode_splits(result)) == []
    for point in points_of(result):
        least = latency.predicted_ttft_s(
            result.started, result.ceilings, point.columns, point.batch
        )
        assert least < point.ttft_s.median * (1 + result.ceilings.bandwidth.spread)


def test_no_step_is_above_the_roof_that_is_drawn_for_it(result: ExperimentLog) -> None:
    rate = roofline.rate_of(result.ceilings, result.started)
    assert all(dot.flops_per_s < rate for dot in latency.dots(result))


def test_all_of_them_are_of_one_machine_and_can_be_diagnosed() -> None:
    results = [read(what) for what in KINDS]
    machines = {(r.started.hardware.name, r.started.settings.dtype) for r in results}
    assert len(machines) == 1
    found = diagnose.diagnose([log for r in results for log in r.runs()], results[0].ceilings)
    assert found.prefill.confidence is not None and found.decode.confidence is not None
    assert found.batch.safe_batch is not None


def test_the_order_of_the_files_does_not_change_what_is_found() -> None:
    results = [read(what) for what in KINDS]
    ceilings = results[0].ceilings
    found = [
        diagnose.diagnose([log for one in order for log in one.runs()], ceilings)
        for order in (results, results[::-1])
    ]
    assert diagnose.words(found[0]) == diagnose.words(found[1])
