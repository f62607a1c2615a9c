"""The account of a run's memory, on the recorded runs: real readings of a real engine."""

from dataclasses import replace

import pytest

from viz_engine.analysis import memory_account
from viz_engine.paths import ASSETS
from viz_engine.run.events import Telemetry
from viz_engine.run.log import RunLog

RUNS = ASSETS / "recorded" / "runs"
NAMES = sorted(path.stem for path in RUNS.glob("*.jsonl"))
MIB = 2**20


def read(name: str) -> tuple[RunLog, memory_account.Account]:
    log = RunLog.read((RUNS / f"{name}.jsonl").read_bytes())
    return log, memory_account.account(log)


@pytest.mark.parametrize("name", NAMES)
def test_predicted_and_counted_bytes_of_the_cache_are_equal(name: str) -> None:
    log, found = read(name)
    assert found.live_bytes == found.predicted_live_bytes > 0
    assert found.reserved_bytes == found.predicted_reserved_bytes >= found.live_bytes
    assert found.live_bytes == log.steps[-1].kv_live_bytes


def test_the_process_grows_by_what_the_cache_grows() -> None:
    _, found = read("1-document")  # 2 000 tokens: 39.7 MiB of rows between first and last reading
    assert found.grown_live_bytes > 30 * MIB
    assert abs(found.grown_bytes - found.grown_live_bytes) < 2 * MIB


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_over_is_that_of_a_program_not_of_a_model(name: str) -> None:
    _, found = read(name)
    parts = found.weight_bytes + found.points[-1].live_bytes
    assert parts + found.rest_bytes == found.used_bytes
    assert 400 * MIB < found.rest_bytes < 700 * MIB


def test_a_run_without_readings_has_no_rest() -> None:
    log, _ = read("2-chat")
    bare = RunLog.of(event for event in log if not isinstance(event, Telemetry))
    found = memory_account.account(bare)
    assert found.rest_bytes is None and found.grown_bytes is None
    assert found.live_bytes and found.weight_bytes


def test_where_no_formula_stands_nothing_is_predicted() -> None:
    log, _ = read("2-chat")
    spec = replace(log.started.spec, weights=None, counted_parameters=10**8)
    counted = RunLog.of([replace(log.started, spec=spec), *list(log)[1:]])
    found = memory_account.account(counted)
    assert found.predicted_live_bytes is None and found.predicted_reserved_bytes is None
    assert found.live_bytes and found.weight_bytes == 2 * 10**8
    rows = [event for event in log if event.kind != "kv_sample"]
    found = memory_account.account(RunLog.of([replace(log.started, spec=None), *rows[1:]]))
    assert found.live_bytes and found.used_bytes
    assert found.weight_bytes is None and found.rest_bytes is None


def test_readings_of_a_gpu_come_before_those_of_the_process() -> None:
    log, _ = read("2-chat")
    on_gpu = RunLog.of(
        replace(event, device_memory_bytes=10**9 + event.step) if hasattr(event, "step") else event
        for event in log
        if not isinstance(event, Telemetry) and event.__class__.__name__ != "KVSample"
    )
    found = memory_account.account(on_gpu)
    assert len(found.points) == len(on_gpu.steps) and found.grown_bytes == len(on_gpu.steps) - 1
