"""The arithmetic of the latency page, by hand and on a machine that is played."""

import dataclasses

import pytest

from tests.support.machine import CEILINGS, RATE, Machine, result
from tests.support.specs import spec
from viz_engine.analysis import fits, latency
from viz_engine.analysis.latency import DecodeSplit, Growth
from viz_engine.analysis.points import points_of
from viz_engine.memory import devices, estimate
from viz_engine.memory.capacity import Workload
from viz_engine.memory.deployment import Settings
from viz_engine.memory.estimate import Choice
from viz_engine.memory.lengths import averages
from viz_engine.model import config, files
from viz_engine.run import cost
from viz_engine.run.log import RunLog

SPEC = spec()
# Of the default model: q, k, v and the output, then gate, up and down; two norms a layer and one.
MATMUL = 30 * (576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536)
NORMS = 61 * 576
HEAD = 49152 * 576


def test_pieces_cover_the_prompt() -> None:
    assert latency.prefill_pieces(600, 256) == [(256, 256), (256, 512), (88, 600)]
    assert latency.prefill_pieces(256, 256) == [(256, 256)]
    assert latency.prefill_pieces(600, 0) == [(600, 600)]


def test_the_least_ttft_is_that_of_the_whole_prompt_with_half_of_its_square() -> None:
    log = Machine().run(1, 600, 4, 0)
    found = latency.predicted_ttft_s(log.started, CEILINGS, 600)
    flops = 2 * (MATMUL * 600 + HEAD) + 4 * 30 * 576 * (600 * 601 // 2)
    moved = 2 * (MATMUL + NORMS + HEAD) + 600 * cost.row_bytes(SPEC, "bfloat16")
    by_hand = max(flops / RATE, moved / CEILINGS.bandwidth.per_s)
    assert found == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("columns", [1, 64, 600, 4096])
@pytest.mark.parametrize("changes", [{}, {"model_type": "mistral", "sliding_window": 512}])
def test_the_memory_page_predicts_the_same_ttft(columns: int, changes: dict) -> None:
    model = config.read(files.DEFAULT_CONFIG | changes)
    started = dataclasses.replace(Machine().run(1, 64, 4, 0).started, spec=model.spec())
    choice = Choice(
        model=model,
        settings=Settings(context_len=columns, engine="transformers"),
        device=devices.this_machine(CEILINGS),
        num_devices=1,
        load=Workload(lengths=averages(columns, 1)),
    )
    found = estimate.ttft(choice, columns)
    assert found.bound_s == pytest.approx(latency.predicted_ttft_s(started, CEILINGS, columns))


def test_on_a_machine_at_its_ceilings_prediction_and_measurement_agree() -> None:
    ideal = Machine(
        rate=1, kv_rate=1, weight_rate=1, overhead_s=0, setup_s=0, overlap=True, noise=0
    )
    found = result(ideal.context_sweep(), "itl")
    for split in latency.decode_splits(found):
        assert split.predicted_s == pytest.approx(split.measured_s, rel=0.02)
    assert latency.exceeds(CEILINGS, latency.decode_splits(found)) == []
    point = points_of(found)[1]
    # the machine computes the whole square of a piece, of which the least counts what the mask
    # lets through, and logits once a piece
    pieces = latency.prefill_pieces(point.columns, found.started.settings.chunk_len)
    masked = 4 * 30 * 576 * sum(new * (new - 1) // 2 for new, _ in pieces) / RATE
    masked += 2 * HEAD * (len(pieces) - 1) / RATE
    least = latency.predicted_ttft_s(found.started, CEILINGS, point.columns)
    assert least + masked == pytest.approx(point.prefill_s.median, rel=1e-3)


def test_a_step_that_beats_the_ceilings_is_said() -> None:
    split = DecodeSplit(
        value=64, columns=64, batch=1, weights_s=0.1, kv_s=0, measured_s=0.05, predicted_s=0.1
    )
    assert latency.exceeds(CEILINGS, [split]) == [64]
    near = dataclasses.replace(split, measured_s=0.097)  # within the ceiling's spread of 5 %
    assert latency.exceeds(CEILINGS, [near]) == []


def test_the_parts_of_a_step_add_up() -> None:
    for split in latency.decode_splits(result(Machine().context_sweep(), "itl")):
        parts = split.weights_s + split.kv_s + split.rest_s
        assert parts == pytest.approx(split.measured_s)


def test_kv_overtake_the_weights_where_their_bytes_are_equal() -> None:
    found = latency.overtake(result(Machine(kv_rate=0.5, rate=1e6).context_sweep(), "itl"), 0.5)
    weights = cost.step(
        SPEC, "bfloat16", batch=1, num_new=1, num_columns=1, prompt_columns=1, cached=True
    ).weight_bytes_read
    assert found.by_bytes * cost.row_bytes(SPEC, "bfloat16") == pytest.approx(weights)
    assert 11_000 < found.by_bytes < 12_500  # the default model's, beyond its window
    assert found.by_time == pytest.approx(found.by_bytes / 2, rel=0.1)


def test_attention_of_windows_alone_never_overtakes_and_the_search_ends() -> None:
    windowed = dataclasses.replace(
        SPEC,
        layers=tuple(
            dataclasses.replace(layer, kind="sliding", window=128) for layer in SPEC.layers
        ),
    )
    assert latency.cross_columns(windowed, 256) is None


def test_attention_overtakes_the_linear_layers_where_their_flops_are_equal() -> None:
    whole = latency.cross_columns(SPEC, 0)
    # 2 x weights x n = 4 x layers x query width x n^2
    by_hand = MATMUL / (2 * 30 * 576)
    assert whole == pytest.approx(by_hand, rel=0.02)
    pieces = latency.cross_columns(SPEC, 256)
    assert pieces == pytest.approx(2 * whole, rel=0.1)  # half of each square is spared


def test_the_fit_of_prefill_finds_the_machines_slope() -> None:
    machine = Machine(rate=0.5, noise=0, setup_s=0, overhead_s=0.001)
    parts = latency.prefill_parts(result(machine.length_sweep()))
    per_token = 2 * MATMUL / (0.5 * RATE)
    assert parts.fit.slopes["tokens"] == pytest.approx(per_token, rel=0.15)
    assert parts.fit.slopes["square"] > 0 and parts.cross_fit > 1000
    assert latency.prefill_parts(result([])) is None


@pytest.mark.parametrize(
    "times, pace", [(2.45, "more"), (2.0, "even"), (1.9, "even"), (1.5, "less"), (0.9, "less")]
)
def test_growth_is_held_against_proportion(times: float, pace: str) -> None:
    assert Growth(low=1024, high=2048, times=times).pace == pace


def test_the_last_doubling_is_that_of_the_longest_prompt() -> None:
    points = points_of(result(Machine(noise=0).length_sweep()))
    found = latency.doubling(points)
    assert (found.low, found.high) == (1024, 2048)
    assert found.times == pytest.approx(points[-1].ttft_s.median / points[-2].ttft_s.median)
    assert latency.doubling(points[:1]) is None and latency.growth(points[:1], "itl_s") is None


def test_a_decode_token_costs_more_than_a_prefill_token_until_the_batch_shares_the_weights() -> (
    None
):
    machine = Machine(noise=0, overhead_s=0.002)
    runs = [machine.run(batch, 256, 16, batch) for batch in (1, 2, 4, 8, 16)]
    found = latency.token_costs(result(runs, "batch"))
    assert found.ratios[1] > 5 and found.best_batch == 16
    assert list(found.ratios.values()) == sorted(found.ratios.values(), reverse=True)
    assert found.decode.seconds / found.prefill.seconds == pytest.approx(found.ratios[1])
    five, four = found.price_batch
    assert five is None or 1 <= five <= 16
    assert found.prefill.num_bytes < found.decode.num_bytes
    assert latency.token_costs(result(runs[1:], "batch")) is None


@pytest.mark.parametrize("ratio, batch", [(8, 1.0), (4, 2.0), (2, 4.0), (3, None), (9, None)])
def test_the_batch_of_a_ratio_lies_between_those_that_were_measured(ratio, batch) -> None:
    found = latency._batch_at({1: 8.0, 2: 4.0, 4: 2.0}, ratio)
    if ratio == 9:
        assert found is None
    elif batch is None:
        assert 2 < found < 4
    else:
        assert found == pytest.approx(batch)


def test_turn_k_reads_everything_before_it() -> None:
    made = latency.turns(
        num=3, user_tokens=100, answer_tokens=300, system_tokens=500, price_in=1e6, price_out=4e6
    )
    assert [turn.read_tokens for turn in made] == [600, 1000, 1400]
    assert [turn.price for turn in made] == [600 + 1200, 1000 + 1200, 1400 + 1200]
    assert [turn.cached_price for turn in made] == [600 + 1200, 400 + 1200, 400 + 1200]
    assert made[0].seconds is None
    line = fits.Fit(fixed=1.0, slopes={"tokens": 0.001, "square": 0.0}, r2=None, error=0, num=3)
    timed = latency.turns(
        num=1, user_tokens=100, answer_tokens=1, system_tokens=0, price_in=0, price_out=0, line=line
    )
    assert timed[0].seconds == pytest.approx(1.1)


def test_a_dot_is_under_the_roof_and_moves_with_the_batch() -> None:
    runs = [Machine(noise=0).run(batch, 256, 16, batch) for batch in (1, 8)]
    found = [dot for dot in latency.dots(result(runs, "batch")) if dot.phase == "decode"]
    one, eight = found
    assert eight.intensity > 5 * one.intensity
    for dot in latency.dots(result(runs, "batch")):
        roof = min(RATE, dot.intensity * CEILINGS.bandwidth.per_s)
        assert dot.flops_per_s < roof
        assert dot.mfu < 1 and dot.mbu < 1
        assert dot.flops_per_s / dot.bytes_per_s == pytest.approx(dot.intensity)


def test_a_csv_has_a_row_a_figure() -> None:
    text = latency.to_csv([result(Machine().length_sweep())])
    lines = text.splitlines()
    assert lines[0].startswith("sweep,value") and len(lines) == 1 + 6 * 4
    assert all(line.count(",") == lines[0].count(",") for line in lines)


def test_a_model_that_nobody_knows_is_measured_and_nothing_is_predicted() -> None:
    def unknown(log: RunLog) -> RunLog:
        rows = (event for event in list(log)[1:] if event.kind != "kv_sample")
        return RunLog.of([dataclasses.replace(log.started, spec=None), *rows])

    found = result([unknown(log) for log in Machine().context_sweep()], "itl")
    assert points_of(found)[0].itl_s.median > 0
    assert latency.predicted_ttft_s(found.started, CEILINGS, 64) is None
    assert latency.prefill_parts(found) is None and latency.overtake(found, None) is None
    assert latency.decode_splits(found) == []
    assert latency.dots(found) == []
    batches = [unknown(Machine().run(batch, 64, 24, seed)) for batch in (1, 4) for seed in (1, 2)]
    costs = latency.token_costs(result(batches, "batch"))
    assert costs.decode.seconds > 0 and costs.decode.flops is None and costs.prefill.flops is None
