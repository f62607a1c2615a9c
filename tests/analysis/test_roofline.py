"""The roofline's arithmetic by hand; ceilings as they are kept."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.support.machine import made_ceilings as made
from tests.support.producer import log as produced
from viz_engine.analysis import roofline
from viz_engine.run import ceilings
from viz_engine.run.events import EnginePart, RunStarted
from viz_engine.run.log import RunLog
from viz_engine.text import Message


def test_a_step_takes_at_least_the_longer_of_its_two_times() -> None:
    found = roofline.predict(made(), 1e11, flops=1e11, num_bytes=10e9)
    assert (found.compute_s, found.memory_s, found.seconds) == (1.0, 0.5, 1.0)
    assert roofline.predict(made(), 1e11, flops=1e10, num_bytes=10e9).seconds == 0.5


def test_the_ridge_is_where_both_times_are_equal() -> None:
    at_ridge = roofline.predict(made(), 1e11, flops=1e11 / 20e9 * 1e9, num_bytes=1e9)
    assert at_ridge.compute_s == pytest.approx(at_ridge.memory_s)


def test_utilisation_is_the_share_of_a_ceiling() -> None:
    assert roofline.mfu(1e11, 5e10, 1.0) == 0.5
    assert roofline.mbu(made(), 5e9, 1.0) == 0.25
    assert roofline.mbu(made(), None, 1.0) is None
    assert roofline.mfu(1e11, None, 1.0) is None


def test_no_basis_no_prediction() -> None:
    assert roofline.predict(made(), 1e11, flops=None, num_bytes=1) is None
    assert roofline.predict(made(), None, flops=1, num_bytes=1) is None
    assert made(rates={"float64": 1.0}).roof("bfloat16", widened=True) is None


def run_in_bfloat16(*, widened: bool) -> RunStarted:
    part = EnginePart(name="prefill_in_float32", on=widened, reason=Message(key="x"))
    return dataclasses.replace(produced((8,), 1).started, parts=(part,))


@pytest.mark.parametrize(
    "float32, bfloat16, widened, roof",
    [
        (1e11, 1e9, True, "float32"),
        (1e11, 4e11, True, "bfloat16"),
        (1e11, 1e9, False, "bfloat16"),
        (1e11, 4e11, False, "bfloat16"),
    ],
)
def test_a_run_stands_under_the_best_rate_of_the_formats_it_multiplies_in(
    float32: float, bfloat16: float, widened: bool, roof: str
) -> None:
    ceilings_ = made(rates={"float32": float32, "bfloat16": bfloat16})
    started = run_in_bfloat16(widened=widened)
    assert roofline.roof_of(ceilings_, started) == roof
    assert roofline.rate_of(ceilings_, started) == ceilings_.flops[roof].per_s


def test_a_format_that_was_not_measured_stands_under_float32() -> None:
    assert made().roof("float16", widened=False) == "float32"


def test_kept_ceilings_come_back_by_machine_and_device(tmp_path: Path) -> None:
    assert ceilings.load("toy", "cpu", tmp_path) is None
    ceilings.save(made(1e9), tmp_path)
    ceilings.save(made(2e9), tmp_path)  # measured again
    assert ceilings.load("toy", "cpu", tmp_path) == made(2e9)
    assert ceilings.load("toy", "cuda:0", tmp_path) is None
    assert ceilings.load("other", "cpu", tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "ceilings": {"a": {"b": 1}}}'])
def test_a_broken_file_is_no_ceilings_and_is_mended(tmp_path: Path, text: str) -> None:
    (tmp_path / ceilings.FILE).write_text(text)
    assert ceilings.load("toy", "cpu", tmp_path) is None
    ceilings.save(made(), tmp_path)
    assert ceilings.load("toy", "cpu", tmp_path) == made()


def test_a_ceiling_that_is_no_positive_number_is_refused() -> None:
    data = json.loads(json.dumps(ceilings.to_dict(made())))
    assert ceilings.from_dict(data) == made()
    data["bandwidth"]["per_s"] = 0
    with pytest.raises(ValueError, match="positive"):
        ceilings.from_dict(data)


def test_a_model_that_nobody_knows_has_points_without_flops() -> None:
    log = produced((40,), 3, sampled=False)
    unknown = RunLog.of([dataclasses.replace(log.started, spec=None), *list(log)[1:]])
    for point, same in zip(roofline.step_points(unknown), roofline.step_points(log), strict=True):
        assert point.flops is None and point.intensity is None
        assert (point.num_new, point.columns) == (same.num_new, same.columns)


def test_step_points_add_up_to_the_run() -> None:
    log = produced((600,), 4)
    points = roofline.step_points(log)
    assert len(points) == len(log.steps)
    assert sum(p.num_new for p in points) == 600 + 3  # the last token never gets a row
    assert points[-1].columns == 603
    for point, step in zip(points, log.steps, strict=True):
        assert point.num_bytes == (
            step.weight_bytes_read + step.kv_bytes_read + step.kv_bytes_written
        )
        assert point.seconds * 1e9 == pytest.approx(step.duration_ns)
    span = log.steps[-1].end_ns - log.started.accepted_ns
    assert sum(p.seconds + p.gap_s for p in points) * 1e9 == pytest.approx(span)
    assert points[0].grew and not points[-1].grew
