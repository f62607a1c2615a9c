"""A sweep's order, budget, points and file, without an engine; its command line on a tiny model."""

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

from tests.support.experiments import begun
from tests.support.producer import MS
from tests.support.producer import log as produced
from viz_engine import __main__
from viz_engine.analysis import points
from viz_engine.analysis.points import points_of
from viz_engine.cli import sweep as cli_sweep
from viz_engine.run import sweep
from viz_engine.run.events import Event, KVSample, RunFinished, RunSettings
from viz_engine.run.experiment import ExperimentLog, MemberEvent, MemberRefused, MemberStarted
from viz_engine.run.log import RunLog
from viz_engine.run.sweep import SweepSettings
from viz_engine.text import Message, UserError

RUN = RunSettings(model="m", prompts=("a",), new_tokens=4)


def settings(**changes: object) -> SweepSettings:
    values = {"what": "ttft", "run": RUN, "values": (64, 128, 256), "repeats": 3, "budget_s": 100.0}
    return SweepSettings(**(values | changes))


def sweep_of(asked: SweepSettings) -> ExperimentLog:
    """A sweep that has no run yet."""
    sweep.check_sweep(asked)
    return begun(asked)


def begin(log: ExperimentLog) -> RunSettings | None:
    """Begin the member that is due."""
    planned = log.standing.due()
    if planned is not None:
        member = len(log.members)
        log.append(MemberStarted(member=member, label=planned.label, repeat=planned.repeat))
    return planned and planned.run


def took(log: ExperimentLog, run: RunLog) -> None:
    """The records of the member that was begun."""
    for event in filter(None, map(sweep.lean, run)):
        log.append(MemberEvent(len(log.members) - 1, event))


def play(log: ExperimentLog, seconds: Callable[[RunSettings], float]) -> list[int]:
    """Make the sweep with runs that take what `seconds` says; the values in their order."""
    made = []
    while (run := begin(log)) is not None:
        made.append(log.members[-1].label[log.settings.varied])
        took(log, run_of(run, seconds(run)))
    reason, error = log.standing.outcome()
    for event in log.closing(reason, error):
        log.append(event)
    return made


def run_of(run: RunSettings, seconds: float) -> RunLog:
    lens = ((run.context_len or 8),) * run.batch
    whole = produced(lens, run.new_tokens, piece_ms=100, step_ms=10)
    first = dataclasses.replace(
        whole.started,
        settings=dataclasses.replace(whole.started.settings, context_len=run.context_len),
    )
    end = first.accepted_ns + round(seconds * 1e9)
    last = dataclasses.replace(whole.finished, end_ns=max(end, whole.steps[-1].end_ns))
    return RunLog.of([first, *whole.events[1:-1], last])


def values_in_order(**changes: object) -> list[int]:
    return [planned.label["context_len"] for planned in settings(**changes).order()]


def test_each_value_once_in_every_round_in_shuffled_order() -> None:
    order = values_in_order(values=tuple(range(1, 9)), repeats=4)
    rounds = [order[i : i + 8] for i in range(0, 32, 8)]
    assert all(sorted(values) == list(range(1, 9)) for values in rounds)
    assert len({tuple(values) for values in rounds}) > 1
    assert order == values_in_order(values=tuple(range(1, 9)), repeats=4)  # it can be repeated
    assert order != values_in_order(values=tuple(range(1, 9)), repeats=4, seed=1)


def test_a_sweep_makes_every_run() -> None:
    under_way = sweep_of(settings())
    assert len(play(under_way, lambda run: 1.0)) == 9
    assert under_way.ended == "done" and len(under_way.runs()) == 9
    assert under_way.progress().num_done == under_way.progress().num_total == 9


@pytest.mark.parametrize("budget", [1.5, 3.0, 5.0, 8.0])
def test_the_budget_bounds_what_the_runs_take(budget: float) -> None:
    """A run takes as long as its prompt; only the very first cannot be estimated."""
    under_way = sweep_of(settings(budget_s=budget))
    spent = []
    play(under_way, lambda run: spent.append(run.context_len / 128) or spent[-1])
    assert sum(spent) <= budget * 1.3 + max(spent[:2])
    assert under_way.ended == "budget" and under_way.runs()


def test_what_does_not_fit_is_left_out_and_shorter_ones_are_made() -> None:
    under_way = sweep_of(settings(values=(64, 4096), budget_s=10.0, repeats=3))
    made = play(under_way, lambda run: 0.5 if run.context_len == 64 else 8.0)
    assert made.count(64) == 3 and made.count(4096) <= 1


def test_progress_estimates_what_is_left_from_what_was() -> None:
    under_way = sweep_of(settings(values=(64, 128), repeats=2, budget_s=1000.0))
    assert under_way.progress().left_s is None
    run = begin(under_way)
    took(under_way, run_of(run, run.context_len / 64))
    progress = under_way.progress()
    assert progress.num_done == 1 and progress.num_total == 4
    assert progress.left_s == pytest.approx(6 - run.context_len / 64, rel=0.5)


def test_a_sweep_that_is_stopped_keeps_its_runs() -> None:
    under_way = sweep_of(settings())
    for _ in range(4):
        took(under_way, run_of(begin(under_way), 1.0))
    whole = run_of(begin(under_way), 1.0)
    took(under_way, RunLog.of([*whole.events[:-1], *whole.closing("cancelled", None)]))
    for event in under_way.closing("cancelled", None):
        under_way.append(event)
    assert under_way.ended == "cancelled" and len(under_way.runs()) == 4
    assert len(under_way.members) == 5 and not under_way.members[-1].done


def test_a_value_that_is_refused_is_not_tried_again() -> None:
    under_way = sweep_of(settings())
    made = []
    while (run := begin(under_way)) is not None:
        made.append(run.context_len)
        if run.context_len == 256:
            why = Message(key="error.out_of_memory")
            under_way.append(MemberRefused(member=len(under_way.members) - 1, error=why))
        else:
            took(under_way, run_of(run, 1.0))
    assert made.count(256) == 1 and made.count(64) == 3
    reason, error = under_way.standing.outcome()
    assert error.key == "error.out_of_memory"
    assert reason == ("error" if made[0] == 256 else "done")


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"what": "colour"}, "sweep.bad_kind"),
        ({"values": ()}, "sweep.bad_values"),
        ({"values": (64, 128, 64)}, "sweep.twice"),
        ({"values": (0,)}, "sweep.bad_values"),
        ({"values": tuple(range(1, 99))}, "sweep.bad_values"),
        ({"what": "batch", "values": (65,)}, "sweep.bad_values"),
        ({"repeats": 0}, "sweep.bad_repeats"),
        ({"budget_s": 1e9}, "sweep.bad_budget"),
        ({"run": dataclasses.replace(RUN, new_tokens=0)}, "error.new_tokens_zero"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_it_starts(changes: dict, key: str) -> None:
    with pytest.raises(UserError) as refused:
        sweep.check_sweep(settings(**changes))
    assert refused.value.message.key == key
    assert "sweep." not in refused.value.message.text("zh")


def test_a_run_of_a_sweep_never_stops_early() -> None:
    assert settings().run_at(64).stop_token_ids == () and settings().run_at(64).context_len == 64
    batch = sweep.default_settings("batch", RUN)
    assert batch.run_at(4).batch == 4 and batch.run_at(4).context_len == sweep.BATCH_CONTEXT


def test_points_are_medians_with_all_values() -> None:
    under_way = sweep_of(settings(values=(64, 300), repeats=3, run=RUN))
    play(under_way, lambda run: 1.0)
    short, long = points_of(under_way)
    assert (short.value, long.value) == (64, 300) and short.num_runs == 3
    assert short.ttft_s.median == pytest.approx(0.103, abs=0.002)  # 3 ms, then a piece of 100 ms
    assert long.ttft_s.median == pytest.approx(0.203, abs=0.002)
    assert len(short.itl_s.values) == 9 and short.itl_s.median == pytest.approx(0.0102, abs=0.001)
    assert short.decode_s.median == pytest.approx(0.010, abs=0.001)


def test_spread_is_numpys_and_nothing_is_none() -> None:
    dice = random.Random(2)
    values = [dice.random() for _ in range(17)]
    found = points.spread(values, 17)
    expected = numpy.percentile(values, [10, 50, 90])
    assert (found.p10, found.median, found.p90) == pytest.approx(tuple(expected))
    assert points.spread([], 3) is None


def test_fewer_than_three_runs_have_no_percentiles_however_many_gaps() -> None:
    for repeats, known in ((2, False), (3, True)):
        under_way = sweep_of(settings(values=(64, 128), repeats=repeats))
        play(under_way, lambda run: 1.0)
        for point in points_of(under_way):
            for one in (point.ttft_s, point.prefill_s, point.itl_s, point.decode_s):
                assert (one.p10 is not None, one.p90 is not None) == (known, known)
        assert points.thin(under_way) == ([] if known else [64, 128])


def test_the_table_says_that_one_run_is_no_spread() -> None:
    under_way = sweep_of(settings(values=(64,), repeats=1))
    play(under_way, lambda run: 1.0)
    row, note = cli_sweep.table(under_way).splitlines()[1:]
    value, runs, ttft, ttft_ends, _, itl_ends = row.split()
    assert (value, runs, ttft) == ("64", "1", "103.0") and ttft_ends == itl_ends == "(-)"
    assert "fewer than 3 runs" in note


def test_a_file_gives_the_sweep_back() -> None:
    under_way = sweep_of(settings(values=(64, 300), repeats=1))
    play(under_way, lambda run: 1.0)
    text = under_way.to_jsonl()
    again = ExperimentLog.read(text.encode(), "sweep")
    assert again.settings == under_way.settings and again.ended == "done"
    assert again.events == under_way.events
    assert not any(isinstance(event, KVSample) for log in again.runs() for event in log)
    cut = ExperimentLog.read(text.encode()[: text.rindex('{"kind":"run_finished"') + 40], "sweep")
    assert len(cut.members) == 2 and cut.members[1].open and cut.finished is None
    assert isinstance(again.runs()[0].finished, RunFinished) and MS


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"kind": "sweep"}', b'{"kind": "sweep", "schema": 1}', b"\xff"]
)
def test_a_file_that_is_no_sweep_is_refused_with_a_sentence(data: bytes) -> None:
    with pytest.raises(UserError) as refused:
        ExperimentLog.read(data, "sweep")
    assert refused.value.message.key == "sweep.bad_file"


def test_a_line_that_is_wrong_is_named() -> None:
    under_way = sweep_of(settings(values=(64,), repeats=1))
    play(under_way, lambda run: 1.0)
    lines = under_way.to_jsonl().splitlines()
    with pytest.raises(UserError, match="Line 3"):
        ExperimentLog.read("\n".join([*lines[:2], "{}", *lines[2:]]).encode(), "sweep")


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a", "2 048", "2\u202f048", "64 128", "-1", "1.5", "1,,x"])
def test_values_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="whole numbers"):
        sweep.values_of(text)


def test_a_value_that_is_given_twice_is_named() -> None:
    with pytest.raises(UserError, match="64 is given twice"):
        sweep.check_sweep(settings(values=sweep.values_of("64, 128, 64")))


def test_values_are_read_with_commas_and_semicolons_of_either_script() -> None:
    assert sweep.values_of("64;128；256、512,,1024") == (64, 128, 256, 512, 1024)
    assert sweep.values_of("64, 128，256,") == (64, 128, 256)


def test_sweep_and_diagnose_from_the_command_line(
    tiny_folder: Callable, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch
) -> None:
    from viz_engine.engine import ceilings

    quick = ceilings.measure
    fast = lambda *a: quick(*a, buffer_bytes=2**22, sizes=(64,), most_s=0.01)  # noqa: E731
    monkeypatch.setattr(ceilings, "measure", fast)
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path))
    out = tmp_path / "s.jsonl"
    model = ["--model", str(tiny_folder()), "--dtype", "float32", "--device", "cpu"]
    words = ["sweep", "--what", "ttft", "--values", "300,64", "--repeats", "2", *model]
    assert __main__.main([*words, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [point["value"] for point in found["points"]] == [64, 300]
    assert found["ended"] == "done" and found["points"][0]["num_runs"] == 2
    assert found["ceilings"]["flops"]["float32"]["per_s"] > 0
    assert ExperimentLog.read(out.read_bytes(), "sweep").ceilings is not None
    assert __main__.main(["diagnose", str(out), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["num_runs"] == 4 and verdict["prefill"]["next"]
    assert __main__.main(["diagnose", str(out)]) == 0
    assert (
        __main__.main(["sweep", "--what", "batch", "--values", "2,1", "--repeats", "1", *model])
        == 0
    )
    assert "TTFT" in capsys.readouterr().out


@pytest.mark.model
def test_two_sweeps_by_turns_are_made_run_by_run_and_each_in_its_own_order(monkeypatch) -> None:
    from viz_engine.engine import experiment
    from viz_engine.engine import generate as engine_generate

    made: list[int] = []

    def generate(loaded: object, run: RunSettings, **rest: object) -> Iterator[Event]:
        made.append(run.context_len)
        yield from run_of(run, 1.0)

    monkeypatch.setattr(engine_generate, "generate", generate)
    both = [settings(seed=0), settings(seed=1, repeats=1)]
    results = experiment.measure_by_turns(None, both)
    first, second = ([p.label["context_len"] for p in one.order()] for one in both)
    assert made[:6] == [value for pair in zip(first, second, strict=False) for value in pair]
    assert made[6:] == first[3:]
    assert [len(result.runs()) for result in results] == [9, 3]


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, capsys) -> None:
    assert __main__.main(["diagnose", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert __main__.main(["sweep", "--values", "x"]) == 2
    assert "whole numbers" in capsys.readouterr().err
