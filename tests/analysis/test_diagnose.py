"""Verdicts on runs of known cause: a machine that is played (tests/support/machine.py), its compute
and memory overlapping in half of the cases, and the real engine with a fault put in."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from tests.support.machine import CEILINGS, RATE, Machine, made_ceilings
from viz_engine.analysis import diagnose, fits
from viz_engine.run import cost
from viz_engine.run.ceilings import Ceilings
from viz_engine.run.events import RunSettings, StepFinished, Telemetry
from viz_engine.run.log import RunLog

# ---- cases of one known cause --------------------------------------------------------------------

Case = tuple[str, str, set[str], Callable[[], list[RunLog]], Ceilings]
FAST_MEMORY = made_ceilings(4e11, {"float32": RATE})


def cases() -> Iterator[Case]:
    """(name, phase, its causes, the runs, the ceilings): 60 generated ones."""
    for seed, overlap in itertools.product(range(3), (False, True)):
        base = Machine(overlap=overlap, noise=0.02 + 0.02 * seed)
        change = dataclasses.replace
        tag = f"{seed}{'o' if overlap else 's'}"

        def sweep(machine: Machine, kind: str, seed: int = seed) -> Callable[[], list[RunLog]]:
            return lambda: getattr(machine, f"{kind}_sweep")(seed)

        fast = change(base, rate=0.6 + 0.15 * seed)
        yield f"compute-prefill-{tag}", "prefill", {"compute"}, sweep(fast, "length"), CEILINGS
        wide = change(base, ceilings=FAST_MEMORY)
        runs = sweep(wide, "crossed")
        yield f"compute-decode-{tag}", "decode", {"compute"}, runs, FAST_MEMORY
        near = 0.8 + 0.08 * seed
        bound = change(base, weight_rate=near, kv_rate=near, rate=1.0)
        runs = sweep(bound, "context")
        yield f"bandwidth-decode-{tag}", "decode", {"bandwidth"}, runs, CEILINGS
        slow = change(base, overhead_s=0.1 * (seed + 1))
        yield f"overhead-decode-{tag}", "decode", {"overhead"}, sweep(slow, "context"), CEILINGS
        slow = change(base, overhead_s=5.0 * (seed + 1))
        yield f"overhead-prefill-{tag}", "prefill", {"overhead"}, sweep(slow, "length"), CEILINGS
        stall = change(base, setup_s=8.0 * (seed + 1))
        runs = sweep(stall, "length")
        yield f"allocation-prefill-{tag}", "prefill", {"allocation"}, runs, CEILINGS
        stall = change(base, growth_s=4.0 * (seed + 1))
        runs = sweep(stall, "context")
        yield f"allocation-decode-{tag}", "decode", {"allocation"}, runs, CEILINGS
        poor = change(base, rate=0.1 + 0.05 * seed)
        runs = sweep(poor, "length")
        yield f"inefficient-prefill-{tag}", "prefill", {"inefficiency"}, runs, CEILINGS
        both = change(base, overhead_s=0.025)
        runs = sweep(both, "context")
        yield f"mixed-decode-{tag}", "decode", {"bandwidth", "overhead"}, runs, CEILINGS
        both = change(base, setup_s=1.8)
        runs = sweep(both, "length")
        yield f"mixed-prefill-{tag}", "prefill", {"compute", "allocation"}, runs, CEILINGS


def thin() -> Iterator[Case]:
    """The same causes, with too little to tell them by."""
    machine = Machine()
    slow = Machine(overhead_s=0.2)
    for name, one in (("plain", machine), ("slow", slow)):
        for phase in ("prefill", "decode"):

            def runs(num: int, one: Machine = one, **given: int) -> list[RunLog]:
                shape = {"batch": 1, "length": 512, "new_tokens": 24} | given
                return [one.run(**shape, seed=i) for i in range(num)]

            tag = f"{name}-{phase}"
            yield f"no-runs-{tag}", phase, set(), list, CEILINGS
            yield f"one-run-{tag}", phase, set(), lambda runs=runs: runs(1), CEILINGS
            yield f"three-runs-{tag}", phase, set(), lambda runs=runs: runs(3), CEILINGS
            one_length = lambda runs=runs: runs(9, length=256)  # noqa: E731
            yield f"one-length-{tag}", phase, set(), one_length, CEILINGS
            yield f"no-ceilings-{tag}", phase, set(), one.context_sweep, None
            cut = lambda one=one: [_cancelled(log) for log in one.context_sweep()]  # noqa: E731
            yield f"cancelled-{tag}", phase, set(), cut, CEILINGS


def _cancelled(log: RunLog) -> RunLog:
    last = log.finished
    ended = dataclasses.replace(last, finish_reason="cancelled", sequence_reasons=("cancelled",))
    return RunLog.of([*log.events[:-1], ended])


KNOWN, THIN = list(cases()), list(thin())
abstained: list[str] = []


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case[0])
def test_a_known_cause_is_named_or_the_verdict_abstains(case: Case) -> None:
    name, phase, causes, runs, ceilings = case
    verdict = diagnose.phase_verdict(runs(), phase, ceilings)
    if not verdict.causes:
        abstained.append(name)
        assert verdict.why is not None
    else:
        assert set(verdict.causes) == causes, verdict.shares
        assert verdict.confidence >= diagnose.CONFIDENT
    for message in (*verdict.evidence, verdict.next, diagnose.headline(verdict)):
        for language in ("en", "zh"):
            assert "diagnose." not in message.text(language)


def test_at_most_a_quarter_of_the_known_causes_is_left_open() -> None:
    assert len(KNOWN) >= 40
    assert len(abstained) <= len(KNOWN) / 4, abstained


@pytest.mark.parametrize("case", THIN, ids=lambda case: case[0])
def test_too_little_data_is_no_verdict(case: Case) -> None:
    name, phase, _, runs, ceilings = case
    made = [log for log in runs() if log.finished]
    found = diagnose.diagnose(made, ceilings)
    verdict = getattr(found, phase)
    assert verdict.causes == () and verdict.why is not None
    assert "diagnose." not in verdict.why.text("zh") + verdict.next.text("zh")


def test_decode_is_held_against_the_rate_of_its_own_number_format() -> None:
    """Where nothing is widened: far below float32's ceiling, and at its own."""
    ceilings = made_ceilings(4e11, {"float32": 1e12, "bfloat16": 1e11})
    machine = Machine(rate=0.8, ceilings=ceilings)
    verdict = diagnose.phase_verdict(machine.crossed_sweep(), "decode", ceilings)
    assert verdict.causes == ("compute",)


def test_a_slope_beyond_the_ceiling_is_said_and_not_called_a_share_of_it() -> None:
    ceilings = made_ceilings(4e11, {"float32": 1e11})
    fast = Machine(rate=2.0, ceilings=ceilings, noise=0.01)
    verdict = diagnose.phase_verdict(fast.length_sweep(), "prefill", ceilings)
    keys = {message.key for message in verdict.evidence}
    assert "diagnose.rate_beyond" in keys and "diagnose.rate" not in keys


def test_a_batch_and_context_that_rise_together_cannot_be_told_apart() -> None:
    runs = [Machine().run(batch, 512, 24, batch) for batch in (1, 2, 4, 8, 16)]
    verdict = diagnose.phase_verdict(runs, "decode", CEILINGS)
    assert verdict.causes == () and verdict.why.key == "diagnose.alike_decode"


# ---- concurrency and memory ----------------------------------------------------------------------


def batch_runs(machine: Machine) -> list[RunLog]:
    return [
        machine.run(batch, 512, 12, 10 * batch + repeat)
        for batch in (1, 2, 4, 8, 16)
        for repeat in range(2)
    ]


def test_a_step_is_fitted_as_a_fixed_part_and_a_share_of_the_bandwidth() -> None:
    machine = Machine(weight_rate=1, kv_rate=0.5, overhead_s=0.004, rate=1e6, noise=0)
    found = diagnose.phase_verdict(machine.context_sweep(), "decode", CEILINGS).split
    assert found.fixed_s == pytest.approx(0.004, rel=0.1)
    assert found.kv_rate == pytest.approx(0.5 * CEILINGS.bandwidth.per_s, rel=0.05)
    assert found.fit.error < 0.02


def test_the_batch_finding_is_that_of_the_sweep_whose_chart_is_shown() -> None:
    """Runs of another sweep at the same length must not move it."""
    batch = batch_runs(Machine(noise=0))
    slower = 2 * batch_runs(Machine(noise=0, overhead_s=3.0))[:2]
    alone = diagnose.batch_finding(batch)
    assert diagnose.diagnose([*slower, *batch], CEILINGS, batch).batch == alone
    assert diagnose.diagnose([*slower, *batch], CEILINGS).batch != alone


def test_the_safe_batch_is_the_last_before_itl_climbs() -> None:
    level = diagnose.batch_finding(batch_runs(Machine(overhead_s=2.0, noise=0.01)))
    assert (level.safe_batch, level.knee_batch) == (16, None)
    climbing = diagnose.batch_finding(batch_runs(Machine(noise=0.01)))
    assert climbing.safe_batch == 2 and climbing.knee_batch == 4
    assert climbing.prefill_growth > climbing.decode_growth > 1
    assert climbing.prefill_growth == pytest.approx(2, rel=0.1)


def test_only_a_verdict_has_a_confidence_in_words() -> None:
    sure = diagnose.phase_verdict(Machine().length_sweep(), "prefill", CEILINGS)
    assert f"{sure.confidence:.0%}" in str(diagnose.confidence(sure))
    open_ = dataclasses.replace(sure, causes=())
    assert diagnose.confidence(open_) is None
    found = diagnose.diagnose(Machine().length_sweep(), CEILINGS)
    assert str(diagnose.confidence(found.prefill)) in diagnose.words(found)


def test_two_batches_show_no_knee() -> None:
    runs = [Machine().run(batch, 512, 12, batch) for batch in (1, 8)]
    assert diagnose.batch_finding(runs).safe_batch is None
    assert diagnose.batch_finding([]).safe_batch is None


def watched(used: Callable[[int], int]) -> list[RunLog]:
    """Runs of rising batch with a sensor reading after each step."""
    logs = []
    for batch in (1, 2, 4, 8):
        log = RunLog()
        for event in Machine().run(batch, 512, 4, batch):
            log.append(event)
            if isinstance(event, StepFinished):
                bytes_ = used(event.kv_reserved_bytes)
                reading = dict.fromkeys(("utilisation", "memory_bus_utilisation", "power_w"))
                log.append(Telemetry(t_ns=event.end_ns, memory_used_bytes=bytes_, **reading))
        logs.append(log)
    return logs


@pytest.mark.parametrize(
    "used, cause",
    [
        (lambda rows: 10**9 + rows, "cache"),
        (lambda rows: 10**9 + rows // 20, "flat"),  # a pool that was reserved at the start
    ],
)
def test_memory_that_grows_with_the_rows_is_the_cache(used: Callable, cause: str) -> None:
    finding = diagnose.memory_finding(watched(used))
    assert finding.cause == cause


def test_memory_that_grows_much_more_than_the_rows_is_something_else() -> None:
    """Working memory that rises with the batch too: twenty bytes for each byte of rows."""
    finding = diagnose.memory_finding(watched(lambda rows: 10**9 + 20 * rows))
    assert finding.cause == "other" and finding.cache_share == pytest.approx(1 / 20, rel=0.01)


@pytest.mark.parametrize("times", [1, 20])
def test_the_numbers_of_the_memory_sentences_agree_with_each_other(times: int) -> None:
    finding = diagnose.memory_finding(watched(lambda rows: 10**9 + times * rows))
    span, fitted = (message.params for message in finding.evidence)
    assert span == fitted

    def size(text: str) -> float:
        number, unit = text.split()
        return float(number) * {"MiB": 1, "GiB": 1024}[unit]

    assert size(span["span"]) == pytest.approx(times * size(span["rows"]), rel=0.01)
    assert size(span["cache"]) <= size(span["rows"])
    assert span["share"] == f"{size(span['cache']) / size(span['span']):.0%}"


def test_memory_that_grows_without_the_rows_is_something_else() -> None:
    dice = random.Random(1)
    finding = diagnose.memory_finding(watched(lambda rows: 10**9 + dice.randrange(10**9)))
    assert finding.cause != "cache"
    assert diagnose.memory_finding([]).cause is None


# ---- the fit -------------------------------------------------------------------------------------


def test_a_fit_finds_its_parts_and_none_is_negative() -> None:
    dice = random.Random(3)
    x = [dice.uniform(1, 100) for _ in range(60)]
    z = [dice.uniform(1, 100) for _ in range(60)]
    y = [5 + 2 * a + 0.5 * b for a, b in zip(x, z, strict=True)]
    y[7] *= 20  # one wild point
    line = fits.fit({"x": x, "z": z}, y)
    assert (line.fixed, line.slopes["x"], line.slopes["z"]) == pytest.approx((5, 2, 0.5), rel=0.02)
    falling = fits.fit({"x": [1, 2, 3, 4]}, [8, 6, 4, 2])
    assert falling.slopes["x"] == 0 and falling.fixed > 0
    assert fits.fit({"x": [1]}, [1]) is None


# ---- the real engine on a played clock, with a fault put in --------------------------------------


class Played:
    """The real engine's clock: each forward takes what a machine without overhead needs for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from viz_engine.engine import generate

        self.now = 0
        self.step_s = 0.0  # the fault: of each forward
        self.machine, self.dice = Machine(overhead_s=0), random.Random(5)
        self.real = generate.forward
        monkeypatch.setattr(generate, "forward", self.forward)
        step = lambda decoder, *fed: self.forward(decoder.loaded, *fed)  # noqa: E731
        monkeypatch.setattr(generate.Decoder, "step", step)

    def pass_time(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def forward(self, loaded, ids, positions, mask, rows):
        columns = int(positions.max()) + 1  # no prompt has pads
        here = cost.step(
            loaded.spec,
            "float32",
            batch=len(ids),
            num_new=ids.shape[1],
            num_columns=columns,
            prompt_columns=columns,
            cached=True,
        )
        self.pass_time(self.step_s + self.machine.seconds(here, self.dice))
        return self.real(loaded, ids, positions, mask, rows)

    def diagnosis(
        self, loaded: object, lengths: tuple[int, ...], batches: tuple[int, ...] = (1,)
    ) -> diagnose.Diagnosis:
        from viz_engine.engine import generate

        made = []
        for _ in range(2):
            for length, batch in itertools.product(lengths, batches):
                settings = RunSettings(
                    model="tiny",
                    prompts=("x",),
                    context_len=length,
                    batch=batch,
                    new_tokens=11,
                    stop_token_ids=(),
                )
                given = {"run_id": "r", "clock": lambda: self.now}
                options = generate.Options(samples="none")
                events = generate.generate(loaded, settings, options=options, **given)
                made.append(RunLog.of(events))
        return diagnose.diagnose(made, self.machine.ceilings)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


SEVERAL = (60, 250, 700)


def test_without_a_fault_none_is_named(tiny, played: Played) -> None:
    found = played.diagnosis(tiny(), SEVERAL)
    assert not {"overhead", "allocation"} & {*found.prefill.causes, *found.decode.causes}


def test_a_pause_in_every_step_is_named_overhead(tiny, played: Played) -> None:
    played.step_s = 0.08
    found = played.diagnosis(tiny(), SEVERAL)
    assert found.decode.causes == found.prefill.causes == ("overhead",)


def test_a_reallocation_in_every_request_is_named_allocation(
    tiny, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    from viz_engine.engine import generate

    real = generate.new_cache
    monkeypatch.setattr(generate, "new_cache", lambda *a: (played.pass_time(1.5), real(*a))[1])
    assert played.diagnosis(tiny(), SEVERAL).prefill.causes == ("allocation",)


def test_a_growing_batch_is_named_with_its_safe_line(tiny, played: Played) -> None:
    found = played.diagnosis(tiny(), (250,), (1, 4, 16))
    assert found.batch.knee_batch in (4, 16) and found.batch.safe_batch < found.batch.knee_batch
    assert found.batch.decode_growth > 1
