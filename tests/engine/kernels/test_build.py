"""The compiled products: what torch computes in float64, rounded once; compiled once, and never
from a place that others can write to; without a compiler torch's products do the same.

The oracle is torch. Each test of a product fails, not skips, where no compiler is.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from viz_engine import paths
from viz_engine.engine.kernels import attention, build, context, linear

HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.fixture
def loaded() -> None:
    why = build.load()
    assert why is None, f"{why} (the tests need a C++ compiler)"


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As a process that has tried nothing yet, with a cache folder of its own."""
    monkeypatch.setattr(build, "_state", {})
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def numbers(*shape: int, dtype: torch.dtype = SINGLE, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rounded_once(got: torch.Tensor, exact: torch.Tensor, size: torch.Tensor) -> None:
    """`got` is `exact` (float64) up to the sum's error in float32, which is of `size`, and one
    rounding to its type."""
    assert got.dtype in build.DTYPES and got.shape == exact.shape
    rounding = exact.abs() * (2**-8 if got.dtype == HALF else 2**-23)
    assert ((got.double() - exact).abs() <= rounding + size * 1e-6).all()


@pytest.mark.parametrize("dtype", build.DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 24, 265, 530])
@pytest.mark.parametrize(("num_out", "width"), [(1, 32), (7, 64), (64, 352), (193, 672)])
def test_tokens_times_a_matrix_are_rounded_once(
    loaded: None, dtype: torch.dtype, num_tokens: int, num_out: int, width: int
) -> None:
    x, weight = (
        numbers(num_tokens, width, dtype=dtype),
        numbers(num_out, width, dtype=dtype, seed=2),
    )
    for bias in (None, numbers(num_out, dtype=dtype, seed=3)):
        got = build.linear(x, weight, bias)
        wide = None if bias is None else bias.double()
        size = x.double().abs() @ weight.double().abs().T
        assert_rounded_once(got, F.linear(x.double(), weight.double(), wide), size)


def test_the_shape_before_the_width_stays(loaded: None) -> None:
    weight = numbers(5, 32)
    for shape in ((32,), (1, 32), (2, 3, 32), (2, 0, 32)):
        assert build.linear(numbers(*shape), weight, None).shape == (*shape[:-1], 5)
    turned = numbers(32, 4).T  # rows that do not lie one after the other
    assert torch.allclose(build.linear(turned, weight, None), F.linear(turned, weight), atol=1e-5)


@pytest.mark.parametrize("dtype", build.DTYPES)
@pytest.mark.parametrize("num_columns", [1, 7, 8, 255, 256, 257, 700])
@pytest.mark.parametrize(("num_queries", "num_heads"), [(2, 2), (6, 2), (5, 1), (14, 2)])
def test_one_query_reads_the_rows_as_softmax_says(
    loaded: None, dtype: torch.dtype, num_columns: int, num_queries: int, num_heads: int
) -> None:
    slab = numbers(2, num_heads, num_columns + 9, 48, dtype=dtype)
    key = slab[:, :, 3 : 3 + num_columns, :32]  # views of a slab, as the cache hands them out
    value = slab[:, :, 5 : 5 + num_columns, 16:]
    query = numbers(2, num_queries, 1, 32, dtype=dtype, seed=5)
    mask = torch.rand(2, 1, 1, num_columns, generator=torch.Generator().manual_seed(6)) > 0.4
    mask[..., -1] = True
    group = num_queries // num_heads
    for seen, scaling in ((None, None), (mask, 0.3)):
        got = build.attend(query, key, value, seen, scaling)
        wide = [t.double().repeat_interleave(group, dim=1) for t in (key, value)]
        exact = F.scaled_dot_product_attention(
            query.double(), *wide, attn_mask=seen, scale=scaling
        ).transpose(1, 2)
        size = wide[1].abs().amax() * torch.ones_like(exact)
        assert_rounded_once(got, exact, size)


@pytest.mark.parametrize("dtype", build.DTYPES)
@pytest.mark.parametrize("num_columns", [9, 320, 321, 700])
@pytest.mark.parametrize("num_new", [2, 7, 70])
@pytest.mark.parametrize(("num_queries", "num_heads"), [(2, 2), (5, 1), (14, 2)])
@pytest.mark.parametrize("kind", ["causal", "window", "pads", "any"])
def test_several_queries_read_the_rows_as_softmax_says(
    loaded: None,
    dtype: torch.dtype,
    num_columns: int,
    num_new: int,
    num_queries: int,
    num_heads: int,
    kind: str,
) -> None:
    num_columns = max(num_columns, num_new)
    slab = numbers(2, num_heads, num_columns + 9, 48, dtype=dtype)
    key = slab[:, :, 3 : 3 + num_columns, :32]
    value = slab[:, :, 5 : 5 + num_columns, 16:]
    query = numbers(2, num_new, num_queries, 32, dtype=dtype, seed=5).transpose(1, 2)
    causal = torch.ones(num_new, num_columns, dtype=torch.bool).tril(num_columns - num_new)
    mask = causal.expand(2, 1, -1, -1).clone()
    if kind == "window":
        mask &= ~causal.tril(num_columns - num_new - 5)
    elif kind == "pads":
        mask[1, ..., : num_columns - num_new] = False
    elif kind == "any":
        mask &= torch.rand(mask.shape, generator=torch.Generator().manual_seed(6)) > 0.4
        mask |= torch.eye(num_columns, dtype=torch.bool)[-num_new:]  # its own row
    got = build.attend(query, key, value, None if kind == "causal" else mask, 0.3)
    wide = [t.double().repeat_interleave(num_queries // num_heads, dim=1) for t in (key, value)]
    exact = F.scaled_dot_product_attention(query.double(), *wide, attn_mask=mask, scale=0.3)
    size = wide[1].abs().amax() * torch.ones_like(exact)
    assert_rounded_once(got, exact.transpose(1, 2), size.transpose(1, 2))


def test_a_query_that_sees_nothing_gives_a_number_and_spoils_no_other(loaded: None) -> None:
    """A pad's own: what it gives is read by nobody, but must not be no number."""
    query, rows = numbers(1, 2, 9, 16), numbers(1, 1, 400, 16)
    mask = torch.ones(9, 400, dtype=torch.bool).tril(391)[None, None].clone()
    whole = build.attend(query, rows, rows, mask, None)
    mask[0, 0, 3] = False
    got = build.attend(query, rows, rows, mask, None)
    assert torch.isfinite(got).all()
    others = torch.arange(9) != 3
    assert torch.equal(got[:, others], whole[:, others])


def test_scores_far_apart_neither_overflow_nor_vanish(loaded: None) -> None:
    key, value = torch.zeros(1, 1, 600, 16), numbers(1, 1, 600, 16)
    key[0, 0, 500] = 1e4
    for num_new in (1, 3):
        query = torch.ones(1, 1, num_new, 16)
        assert torch.equal(build.attend(query, key, value, None, 1.0)[0, 0, 0], value[0, 0, 500])
        assert torch.isfinite(build.attend(-query, key, value, None, 1.0)).all()
        assert torch.isfinite(build.attend(query * 1e30, key, value, None, 1.0)).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_hidden(loaded: None, wrong: float) -> None:
    """A model that overflows must be seen to, as with torch."""
    key, value = numbers(1, 1, 300, 16), numbers(1, 1, 300, 16)
    key[0, 0, 270, 3] = wrong
    for num_new in (1, 4):
        query = torch.ones(1, 1, num_new, 16)
        theirs = F.scaled_dot_product_attention(query, key, value)
        assert theirs.isnan().all() and build.attend(query, key, value, None, None).isnan().all()
    many = build.linear(torch.full((30, 32), wrong), numbers(5, 32), None)
    assert not many.isfinite().any()


@pytest.mark.parametrize("dtype", build.DTYPES)
def test_products_do_not_depend_on_the_number_of_threads(loaded: None, dtype: torch.dtype) -> None:
    x, weight = numbers(40, 576, dtype=dtype), numbers(4098, 576, dtype=dtype, seed=2)
    query, rows = numbers(2, 6, 90, 64, dtype=dtype), numbers(2, 2, 900, 64, dtype=dtype, seed=4)
    before = torch.get_num_threads()
    seen = []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            some = (x[:1], x[:2], x[:3], x[:7], x)  # rows of weights are paired or not
            seen.append([build.linear(few, weight, None) for few in some])
            asked = (query[:, :, :1], query)
            seen[-1] += [build.attend(some, rows, rows, None, None) for some in asked]
    finally:
        torch.set_num_threads(before)
    for made in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(made, seen[0], strict=True))


def test_what_the_products_cannot_take_is_told_apart(loaded: None) -> None:
    assert build.takes_weight(numbers(5, 64))
    assert not build.takes_weight(numbers(5, 48)), "a width that is no whole number of blocks"
    assert not build.takes_weight(numbers(64, 5).T), "a matrix that lies the other way"
    assert not build.takes_weight(numbers(5, 64, dtype=torch.float16))
    rows = numbers(2, 1, 9, 32)
    assert build.takes_rows(rows, rows, None)
    assert build.takes_rows(rows, rows, torch.ones(2, 1, 1, 9, dtype=torch.bool))
    several = torch.ones(2, 1, 3, 9, dtype=torch.bool)
    assert build.takes_rows(rows, rows, several, 3) and not build.takes_rows(rows, rows, several)
    assert not build.takes_rows(numbers(1, 1, 2, 336), rows, None), "a key wider than a tile"
    assert not build.takes_rows(rows[..., :24], rows, None)
    assert not build.takes_rows(rows.transpose(2, 3), rows, None)
    assert not build.takes_rows(rows.half(), rows.half(), None)


@pytest.mark.parametrize(
    "call",
    [
        lambda: build.linear(numbers(1, 48), numbers(3, 48), None),
        lambda: build.linear(numbers(1, 64), numbers(3, 32), None),
        lambda: build.linear(numbers(1, 32).half(), numbers(3, 32), None),
        lambda: build.linear(numbers(1, 32), numbers(3, 32), numbers(2)),
        lambda: build.attend(numbers(1, 1, 6, 16), *[numbers(1, 1, 5, 16)] * 2, None, None),
        lambda: build.attend(numbers(1, 1, 2, 336), *[numbers(1, 1, 5, 336)] * 2, None, None),
        lambda: build.attend(
            numbers(1, 1, 2, 16),
            *[numbers(1, 1, 5, 16)] * 2,
            torch.ones(1, 1, 3, 5, dtype=torch.bool),
            None,
        ),
        lambda: build.attend(numbers(1, 3, 1, 16), *[numbers(1, 2, 5, 16)] * 2, None, None),
        lambda: build.attend(numbers(1, 1, 1, 16), *[numbers(1, 1, 0, 16)] * 2, None, None),
        lambda: build.attend(
            numbers(1, 1, 1, 16), numbers(1, 1, 5, 16), numbers(1, 1, 4, 16), None, None
        ),
        lambda: build.attend(
            numbers(1, 1, 1, 16), *[numbers(1, 1, 5, 16)] * 2, torch.ones(1, 1, 1, 5), None
        ),
        lambda: build.levels(*[numbers(1, 1, 1, 5, 16)] * 2, 3, 6),
        lambda: build.levels(*[numbers(1, 1, 1, 5, 16)] * 2, -1, 2),
    ],
)
def test_wrong_shapes_are_an_error_never_a_read_beyond(loaded: None, call: object) -> None:
    with pytest.raises(RuntimeError):
        call()


# --- compiling ------------------------------------------------------------------------------


def test_it_is_compiled_once_for_a_processor_and_kept(
    unloaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def compile_(path: Path) -> None:
        calls.append(path)
        path.write_bytes(b"")

    monkeypatch.setattr(build, "_compile", compile_)
    said = []
    files = {build.compiled(lambda message, _: said.append(message.key)) for _ in range(3)}
    assert len(calls) == 1 and files == set(calls) and said == ["progress.compiling"]
    assert unloaded.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(build.machine, "cpu_flags", lambda: ["another"])
    assert build.compiled() not in files, "another processor, another file"


def test_a_few_files_are_kept_the_newest(
    unloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; echo so > "$2"\n')
    compiler.chmod(0o700)
    monkeypatch.setattr(build.shutil, "which", lambda name: str(compiler))
    unloaded.mkdir(mode=0o700)
    for i in range(6):
        old = unloaded / f"{i}.so"
        old.write_text("so")
        os.utime(old, (1_000 + i, 1_000 + i))
    path = build.compiled()
    assert {p.name for p in unloaded.glob("*.so")} == {path.name, "3.so", "4.so", "5.so"}


def test_without_a_compiler_torch_is_used_and_the_page_says_what_to_install(
    unloaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    why = build.load()
    assert why.key == "part.compiled_no_compiler" and "g++" in str(why) and "g++" in why.text("zh")
    assert not build.is_loaded() and not build.takes_weight(numbers(5, 64))
    layer = torch.nn.Linear(2048, 4096).bfloat16().requires_grad_(False)
    chosen = linear.choose(torch.nn.Sequential(layer), "cpu", HALF)
    assert [p.reason.key for p in chosen.parts if p.name == "compiled_linear"] == [why.key]
    for part in attention.choose(4, (2, 32, 32), "cpu", HALF, True, True):
        assert not part.on and part.reason == why
    monkeypatch.undo()
    assert build.load() is None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'kernels.cpp:9: error: no such thing' >&2; exit 1", "no such thing"),
        ("kill -9 $$", "-9"),
        ("exit 0", "No such file"),
        ("echo 'error: /home/somebody/secret' >&2; exit 1", "SubprocessError"),
    ],
)
def test_a_compiler_that_fails_is_told_and_leaves_nothing_behind(
    unloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o700)
    monkeypatch.setattr(build.shutil, "which", lambda name: str(compiler))
    why = build.load()
    assert why.key == "part.compiled_failed" and said in str(why)
    assert "/" not in str(why), "a path of the machine"
    assert [path.name for path in unloaded.iterdir()] == [".lock"]


def test_a_file_that_is_no_library_is_told(unloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_compile", lambda path: path.write_bytes(b"no library"))
    why = build.load()
    assert why.key == "part.compiled_failed" and "OSError" in str(why) and "/" not in str(why)


def test_what_gives_other_numbers_is_not_used(
    loaded: None, unloaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "compiled", lambda progress: None)
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(build, "linear", lambda x, w, b: F.linear(x, w, b) * 1.1)
    assert build.load().key == "part.compiled_differs" and not build.is_loaded()


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_library_that_others_could_have_put_there_is_not_loaded(
    unloaded: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(build, "_compile", lambda path: path.write_bytes(b""))
    monkeypatch.setattr(torch.ops, "load_library", lambda path: pytest.fail("was loaded"))
    path = build.compiled()
    for place in (path, unloaded):
        before = place.stat().st_mode
        place.chmod(mode)
        build._state.clear()
        why = build.load()
        assert why.key == "part.compiled_failed" and "others can write" in str(why)
        place.chmod(before)


def test_of_what_is_timed_the_far_behind_is_not_waited_for_again() -> None:
    now, calls = 0, []

    def takes(name: str, *times: int) -> Callable[[], None]:
        left = iter(times)

        def call() -> None:
            nonlocal now
            calls.append(name)
            now += next(left)

        return call

    fast = takes("fast", 90_000, *[1_000] * 9)  # the first call is a warm-up
    near = takes("near", 0, 90_000, *[2_000] * 9)  # and the second met a busy moment
    far = takes("far", 0, *[3_001] * 9)
    other = takes("other", 0, *[9_000] * 9)
    work = {"fast": [fast], "near": [near], "far": [far, far], "other": [other]}
    took = build.fastest_ms(work, contest=lambda name: name == "other", clock=lambda: now)
    assert took == {"fast": 0.001, "near": 0.002, "far": 0.006002, "other": 0.009}
    assert [calls.count(name) for name in work] == [5, 5, 8, 5], "a fifth turn for who was not sure"


def test_the_module_compiles_by_itself_and_says_what_came_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "viz_engine.engine.kernels.build"],
        cwd=paths.ROOT,
        env=os.environ | {"SECOND_TOKEN_CACHE": str(paths.cache_folder())},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1].startswith("loaded ")


# --- what is chosen -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "torch_ms", "on"), [(0.1, 0.3, True), (0.28, 0.3, False), (0.4, 0.3, False)]
)
def test_attention_reads_with_what_was_measured_to_be_faster(
    loaded: None, monkeypatch: pytest.MonkeyPatch, own: float, torch_ms: float, on: bool
) -> None:
    other = {"own": 1.0, "torch": 9.0 if not on else 0.5}  # of the other phase: the other way round
    for phase in (0, 1):
        took = [other, {"own": own, "torch": torch_ms}][:: -1 if phase == 0 else 1]
        turns = iter(took)
        monkeypatch.setattr(build, "fastest_ms", lambda work, turns=turns: next(turns))
        parts = attention.choose(6, (2, 64, 32), "cpu", HALF, True, True)
        assert [part.on for part in parts] == [on, not on][:: 1 if phase == 0 else -1]
        part = parts[phase]
        assert f"{own:.3f}" in str(part.reason)
        assert f"{torch_ms:.3f}" in str(part.reason.text("zh"))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ((6, (2, 64, 64), "cuda:0", HALF, True), "part.compiled_not_ours"),
        ((6, (2, 64, 64), "cpu", HALF, False), "part.compiled_not_ours"),
        ((None, (2, 64, 64), "cpu", HALF, True), "part.compiled_not_ours"),
        ((6, (0, 0, 0), "cpu", HALF, True), "part.compiled_not_ours"),
        ((6, (2, 24, 64), "cpu", HALF, True), "part.compiled_widths"),
        ((6, (2, 64, 64), "cpu", torch.float16, True), "part.compiled_widths"),
        ((7, (2, 64, 64), "cpu", HALF, True), "part.compiled_widths"),
    ],
)
def test_where_it_is_not_for_it_says_why(loaded: None, given: tuple, key: str) -> None:
    for part in attention.choose(*given, False):
        assert not part.on and part.reason.key == key


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_new", [1, 40])
def test_attention_counts_the_same_rows_whoever_reads_them(
    loaded: None, masked: bool, num_new: int
) -> None:
    query, key = numbers(2, 6, num_new, 32), numbers(2, 2, 40, 32)
    value = numbers(2, 2, 40, 16, seed=3)
    mask = torch.ones(2, 1, num_new, 40, dtype=torch.bool).tril(40 - num_new) if masked else None
    if masked:
        mask[1, ..., :9] = False
        mask[1, ..., 0] = True
    both = []
    for wanted in (False, True):
        reads = context.RowReads()
        with context.Forward(reads=reads, compiled=wanted).entered():
            out, _ = attention.row_attention(None, query, key, value, mask)
        both.append((out, reads.num_bytes))
    assert torch.allclose(both[0][0], both[1][0], atol=1e-6)
    assert both[0][1] == both[1][1] == key.nbytes + value.nbytes
