"""`bench`: its arithmetic on numbers that are known, and the whole of it on a tiny model.

Whether targets are met is for whoever runs it: no time is asserted here.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from viz_engine.bench import contenders, race, report
from viz_engine.bench import engine as bench_engine
from viz_engine.bench.report import BARE, CHUNKS, LLAMA, OURS, WHOLE
from viz_engine.engine import generate
from viz_engine.engine.load import Loaded

TINY = bench_engine.Plan(
    cells=((8, 1), (8, 3)),
    prefills=(300,),
    slope=(8, 100, 300),
    steps_at=100,
    num_turns=2,
    num_steps=2,
    num_prefills=1,
    num_instrumented=10,
    run=(300, 8),
    num_compared=5,
    memory_at=None,
    quick=True,
)


def row(contender: str, context: int, median: float, batch: int = 1) -> dict[str, object]:
    ms = {"median": median, "p10": median - 1, "p90": median + 1, "num": 3}
    return {"contender": contender, "context": context, "batch": batch, "ms": ms, "load": 0.5}


def document(**changes: object) -> dict[str, object]:
    decode = [row(OURS, 32, 20.0), row(LLAMA, 32, 16.0)]
    decode += [row("transformers float32", 32, 40.0), row("transformers bfloat16", 32, 30.0)]
    prefill = [row(f"{OURS} {CHUNKS}", 512, 110.0), row(f"{OURS} {WHOLE}", 512, 101.0)]
    prefill += [row("transformers float32", 512, 100.0), row(LLAMA, 512, 200.0)]
    return {
        "decode": decode,
        "prefill": prefill,
        "mbu": 0.6,
        "slope": {"r2": 0.9},
        "steps": {"steps": [{"tokens": 1, "ratio": 1.0}, {"tokens": 8, "ratio": 3.5}]},
        "instrumentation": {"share": 0.01},
        "memory": {"peak_bytes": 2_000e6, "weight_bytes": 500e6, "reserved_bytes": 1_000e6},
    } | changes


def test_spread_is_median_and_tenths() -> None:
    assert report.spread(range(11)) == {"median": 5, "p10": 1, "p90": 9, "num": 11}


def test_a_line_is_found_again_and_noise_lowers_r2() -> None:
    slope, start, r2 = report.line([0, 1, 2, 3], [5, 7, 9, 11])
    assert (slope, start, r2) == (2.0, 5.0, 1.0)
    assert report.line([0, 1, 2, 3], [5, 9, 5, 9])[2] < 0.3


def test_the_share_leaves_out_the_pairs_that_differ_most() -> None:
    on, off = [103.0] * 10, [100.0] * 10
    assert report.trimmed_share(on, off) == pytest.approx(0.03)
    on[4] = 9_000.0  # another program had the core
    assert report.trimmed_share(on, off) == pytest.approx(0.03)


def test_targets_compare_with_the_best_of_transformers() -> None:
    found = {t["name"]: t for t in report.targets(document())}
    decode = found["decode at 32: times transformers' best"]
    assert decode["value"] == 1.5 and decode["met"]
    assert found["decode at 32: of llama.cpp's time"]["value"] == 1.25
    assert found["prefill of 512 in chunks: of transformers' best"]["value"] == 1.1
    whole = found["prefill of 512 in one chunk: of transformers' best"]
    assert whole["value"] == 100 / 101 and whole["met"], "within the spread"
    assert not found["prefill of 512: times llama.cpp's rate"]["met"]
    assert not found["R² of time against context"]["met"]
    assert not found["step of 8 tokens: times a step of one"]["met"]
    assert found["memory at 8 000 beyond weights and rows, MB"]["value"] == 500
    assert not any("2048" in name or "batch 8" in name for name in found), "not measured, not said"


def test_without_llama_and_memory_the_others_are_still_judged() -> None:
    rest = document(
        decode=[row(OURS, 32, 20.0), row("transformers float32", 32, 40.0)],
        prefill=[],
        memory=None,
        steps=None,
    )
    names = [t["name"] for t in report.targets(rest)]
    assert len(names) == 4 and not any("llama" in name for name in names)


def test_everything_is_measured_and_printed_on_a_tiny_model(
    tiny_folder: Callable[..., Path],
) -> None:
    said = []
    found = bench_engine.measure(TINY, model=str(tiny_folder()), say=said.append)
    assert json.loads(json.dumps(found)) == found
    names = {OURS, *(f"transformers {dtype}" for dtype in bench_engine.HF_DTYPES)}
    cells = {(r["contender"], r["context"], r["batch"]) for r in found["decode"]}
    expected = {(name, context, batch) for name in names for context, batch in TINY.cells}
    assert cells == expected | {(BARE, 8, 1)}, "the floor is taken by turns too, once a context"
    on = found["instrumentation"]
    assert on["run"] == [300, 8] and on["num"] == 10 and on["share"] < 1 and on["of_steps"] < 5
    assert all(r["ms"]["num"] == 4 and r["ms"]["median"] > 0 for r in found["decode"])
    assert {r["contender"] for r in found["prefill"]} == {f"{OURS} {CHUNKS}", f"{OURS} {WHOLE}"} | (
        names - {OURS}
    )
    assert set(found["weights"]) == names and len(found["slope"]["points"]) == 3
    assert {r["contender"] for r in found["divergence"]} == names - {"transformers float32"}
    assert all(0 < r["gap"] < 1 and r["num"] == 5 for r in found["divergence"])
    text = report.table(found)
    assert [s["tokens"] for s in found["steps"]["steps"]] == list(bench_engine.STEP_SIZES)
    assert found["steps"]["steps"][0]["ratio"] == 1 and found["steps"]["context"] == 100
    assert "Step of several tokens behind 100" in text and text.count("load ") > len(
        found["decode"]
    )
    assert "QUICK" in text and "traced_step" in text and "Targets" in text and said


def test_who_is_four_times_behind_in_a_prefill_is_not_waited_for_again() -> None:
    assert bench_engine._slow({OURS: [9.0], "a": [3.0], "b": [11.9], "c": [12.1]}) == {"c"}


def raced(prompt: int, decode: float, uncached: float = 100.0) -> dict[str, object]:
    spread = lambda value: {"median": value, "p10": value, "p90": value, "num": 2}  # noqa: E731
    ms = {OURS: spread(uncached), "transformers": spread(100.0)}
    ratios = {"decode": spread(decode), "total": spread(decode / 2)}
    flops = {"decode_flops": 20.0, "total_flops": 10.0}
    return {"prompt": prompt, "dtype": "float32", "uncached_ms": ms, **ratios, **flops}


def test_the_race_is_judged_at_the_longer_prompt_and_by_its_flops() -> None:
    found = {t["name"]: t for t in race.targets([raced(256, 8.0), raced(1024, 25.0, 120.0)])}
    assert found["race at 1024: decode ratio"]["met"] and "race at 256: decode ratio" not in found
    assert found["race at 256: decode ratio, of the FLOP ratio"]["value"] == 0.4
    assert not found["race at 1024: total ratio, of the FLOP ratio"]["met"], "faster than its work"
    assert found["race at 256: a step without a cache, of transformers'"]["met"]
    assert not found["race at 1024: a step without a cache, of transformers'"]["met"]


def test_races_are_measured_and_printed_on_a_tiny_model(
    tiny: Callable[..., Loaded], tiny_folder: Callable[..., Path]
) -> None:
    theirs = contenders.Transformers(tiny_folder(), "float32")
    plan = race.Plan(prompts=(60, 120), new_tokens=4, repeats=2, num_turns=1)
    said: list[str] = []
    found = race.measure(plan, tiny(), theirs, list(range(30, 150)), said.append)
    assert [r["prompt"] for r in found] == [60, 120] and len(said) == 4
    for r in found:
        assert r["same_tokens"] and r["new_tokens"] == 4 and r["decode"]["num"] == 2
        assert r["decode_flops"] > r["total_flops"] > 1
        assert all(ms["num"] == 1 and ms["median"] > 0 for ms in r["uncached_ms"].values())
    assert "FLOPs" in "\n".join(race.table(found))


def test_a_step_without_a_cache_is_the_same_for_both_contenders(
    tiny: Callable[..., Loaded], tiny_folder: Callable[..., Path]
) -> None:
    theirs = contenders.Transformers(tiny_folder(), "float32")
    ids = torch.arange(20)[None] + 30
    ours = generate.forward(tiny(), ids, torch.arange(20)[None], None, None)
    assert torch.allclose(theirs.uncached(ids), ours, atol=1e-4)


def test_contenders_hold_the_same_rows_and_leave_them_as_they_were(
    tiny: Callable[..., Loaded], tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    ours, theirs = contenders.Ours(tiny()), contenders.Transformers(tiny_folder(), "float32")
    path = str(tmp_path / "rows.safetensors")
    ours.keep(list(range(30, 50)), path)
    ours.hold(path, 2, 12)
    theirs.hold(path, 2, 12)
    before = [t.clone() for layer in theirs.cache.layers for t in (layer.keys, layer.values)]
    assert len(ours.decode([1, 2, 3])) == len(theirs.decode([1, 2, 3])) == 3
    assert ours.cache.get_seq_length() == theirs.cache.get_seq_length() == 12
    after = [t for layer in theirs.cache.layers for t in (layer.keys, layer.values)]
    own = [t for both in ours.cache.peek(0, 12) for t in both]
    for one, two, three in zip(before, after, own, strict=True):
        assert torch.equal(one, two) and torch.equal(one, three)
    ours.hold(path, 1, 12)
    assert len(ours.forward([1, 2, 3, 4], 3)) == 3 and ours.cache.get_seq_length() == 12
    own = [t for both in ours.cache.peek(0, 12) for t in both]
    assert all(torch.equal(one[:1], two) for one, two in zip(before, own, strict=True))


def test_logits_are_compared_with_those_kept(
    tiny: Callable[..., Loaded], tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    ours, theirs = contenders.Ours(tiny()), contenders.Transformers(tiny_folder(), "float32")
    ids, path = list(range(30, 50)), str(tmp_path / "logits.safetensors")
    tokens = theirs.keep_logits(ids, 4, path)
    assert theirs.difference(ids, tokens, path) == {"first": None, "num": 4, "gap": 0.0}
    assert 0 < ours.difference(ids, tokens, path)["gap"] < 1e-3
    other = ours.difference(ids, [token + 1 for token in tokens], path)
    assert other["gap"] > 1e-3, "other tokens were forced"


class FakeLlama:
    """What of xllamacpp is used: each answer says the times that llama.cpp measured."""

    asked: list[dict[str, object]] = []

    class CommonParams:
        def __init__(self) -> None:
            self.model, self.cpuparams = SimpleNamespace(), SimpleNamespace()
            self.cpuparams_batch = SimpleNamespace()

    class Server:
        def __init__(self, params: object) -> None:
            self.params = params

        def handle_completions(self, asked: dict[str, object]) -> dict[str, object]:
            FakeLlama.asked.append(asked)
            return {"timings": {"prompt_ms": 12.5, "predicted_per_token_ms": 3.25}}


def test_llama_cpp_is_asked_for_its_own_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", FakeLlama)
    monkeypatch.setattr(FakeLlama, "asked", [])
    monkeypatch.setattr(contenders, "write_gguf", lambda path: path.write_bytes(b"x" * 99))
    llama = contenders.LlamaCpp(str(tmp_path), 600, 2)
    params = llama.server.params
    assert llama.about() == {"weight_bytes": 99} and params.n_ctx == 600 and params.n_parallel == 1
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 2
    assert llama.prefill_ns([1, 2, 3]) == 12_500_000
    llama.hold([4, 5])
    assert llama.decode(8) == [3_250_000]
    prefill, decode = FakeLlama.asked
    assert prefill["prompt"] == [1, 2, 3] and not prefill["cache_prompt"]
    assert decode["prompt"] == [4, 5] and decode["n_predict"] == 9 and decode["cache_prompt"]


class FakeContender:
    """A contender without a process: steps of so many ms, the first of each turn a slow one."""

    def __init__(self, ms: float) -> None:
        self.ms = ms
        self.calls: list[str] = []

    def ask(self, call: str, /, num: int = 0, tokens: list[int] = (), **_: object) -> object:
        self.calls.append(call)
        if call == "prefill_ns":
            return int(100 * self.ms * 1e6)
        steps = [self.ms * (len(tokens) if call == "forward" else 1)] * (num or len(tokens))
        return [int(ms * 1e6) for ms in (99.0, *steps[1:])]


def test_llama_cpp_takes_part_where_it_is_installed_and_has_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = {"folder": "somewhere", "num_threads": 2}
    asked = lambda packaged: bench_engine._others(TINY, about, tmp_path, packaged=packaged)  # noqa: E731
    theirs = {f"transformers {dtype}" for dtype in bench_engine.HF_DTYPES}
    for installed in (False, True):
        monkeypatch.setattr(
            bench_engine.importlib.util, "find_spec", lambda name, found=installed: found or None
        )
        assert set(asked(False)) == theirs and set(asked(True)) == theirs | set([LLAMA] * installed)
    kind, made_by = asked(True)[LLAMA]
    assert kind in contenders.KINDS and made_by["most_columns"] > TINY.most_columns


def test_turns_alternate_and_drop_their_first_step(tmp_path: Path) -> None:
    names = {OURS: 2.0, "transformers float32": 4.0, LLAMA: 3.0}
    children = {name: FakeContender(ms) for name, ms in names.items()}
    read = FakeContender(1.0)
    plan = replace(TINY, cells=((8, 1), (8, 3)), num_steps=3)
    rounds = bench_engine.Rounds(plan, children, read, list(range(400)), tmp_path, lambda _: None)
    rows = {(r["contender"], r["batch"]): r for r in rounds.decode()}
    assert (BARE, 3) not in rows and (LLAMA, 3) not in rows, "llama.cpp has one sequence"
    assert rows[OURS, 1]["ms"] == {"median": 2.0, "p10": 2.0, "p90": 2.0, "num": 6}
    assert rows["transformers float32", 3]["ms"]["median"] == 4.0
    assert rows[BARE, 1]["ms"]["median"] == 1.0 and all(r["load"] >= 0 for r in rows.values())
    assert children["transformers float32"].calls.count("drop") == 2
    steps = rounds.steps()
    assert [s["ratio"] for s in steps["steps"]] == [float(n) for n in bench_engine.STEP_SIZES]
    prefill = {r["contender"]: r for r in rounds.prefill()}
    assert set(prefill) == {f"{OURS} {CHUNKS}", f"{OURS} {WHOLE}", "transformers float32", LLAMA}
    assert prefill[LLAMA]["ms"]["median"] == 300.0 and "load" in prefill[LLAMA]
