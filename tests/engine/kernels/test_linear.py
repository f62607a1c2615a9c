"""Linear layers: whichever kernel is chosen, the product is the plain one's, rounded once."""

import pytest
import torch
import torch.nn.functional as F

from viz_engine.engine.kernels import attention, linear
from viz_engine.engine.kernels import build as own_kernels
from viz_engine.text import Message

SIZES = ((1024, 2048), (2048, 1024), (4096, 1024))


def network() -> torch.nn.Sequential:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(i, o, bias=o == 2048) for i, o in SIZES]
    return torch.nn.Sequential(*layers).bfloat16().requires_grad_(False)


def choose(
    monkeypatch: pytest.MonkeyPatch,
    few: dict,
    many: dict,
    free: int = 2**40,
    some: dict | None = None,
    **given,
):
    """A network and what was chosen where these times (ms) are measured: of one row, of a piece,
    and of the numbers of rows between."""
    few = few if linear.can_pack() else {k: few[k] for k in few if k != "packed"}
    turns = iter((few, *[some or many] * 4, many))
    monkeypatch.setattr(linear, "fastest_ms", lambda work: next(turns))
    net = network()
    return net, linear.choose(
        net, **({"device": "cpu", "dtype": torch.bfloat16} | given), free_bytes=free
    )


FEW = {"onednn": 10.0, "native": 10.0, "packed": 5.0}
MANY = {"plain": 10.0, "float32": 5.0}
OWN = FEW | {"own": 3.0}
OWN_MANY = MANY | {"own": 4.0}


@pytest.mark.parametrize("num_rows", [1, 7, 63, 64, 300])
def test_products_are_those_of_float32_rounded_once(
    monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    net, kernels = choose(monkeypatch, FEW, MANY)
    assert [part.on for part in kernels.parts] == [False, linear.can_pack(), False, True]
    with torch.inference_mode():
        for layer in net:
            x = torch.randn(1, num_rows, layer.in_features).bfloat16()
            bias = None if layer.bias is None else layer.bias.float()
            exact = F.linear(x.float(), layer.weight.float(), bias)
            got = layer(x)
            assert got.dtype == torch.bfloat16 and got.shape == exact.shape
            assert ((got.float() - exact).abs() <= exact.abs() * 2**-8 + 1e-4).all()


@pytest.mark.parametrize(("some", "rows"), [({"plain": 9.0}, 24), ({"plain": 5.0}, 96)])
def test_rows_are_widened_from_where_it_was_measured_to_win(
    monkeypatch: pytest.MonkeyPatch, some: dict[str, float], rows: int
) -> None:
    net, kernels = choose(monkeypatch, FEW, MANY, some=some | {"float32": 5.0})
    assert {layer.forward.many_rows for layer in net} == {rows}
    assert ("24 rows" in kernels.parts[3].reason.text("en")) is (rows == 24)


@pytest.mark.parametrize("num_rows", [1, 25, 300])
def test_the_own_kernel_takes_every_number_of_rows_where_it_wins_at_a_piece_too(
    monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    assert own_kernels.load() is None
    net, chosen = choose(monkeypatch, OWN, OWN_MANY, some=OWN_MANY)
    assert {layer.forward.own_rows for layer in net} == {linear.ANY}
    own, _, _, widened = chosen.parts
    assert own.on and own.reason.key == "part.compiled_linear_any"
    assert widened.on and widened.reason.key == "part.widened_own" and "4.00" in str(widened.reason)
    calls = []
    monkeypatch.setattr(own_kernels, "linear", lambda *given: calls.append(1) or F.linear(*given))
    with torch.inference_mode():
        for layer in net:
            layer(torch.randn(1, num_rows, layer.in_features).bfloat16())
    assert len(calls) == len(SIZES)


@pytest.mark.parametrize("num_rows", [1, 5, 24, 25, 300])
def test_the_own_kernel_takes_few_rows_and_leaves_many_to_others(
    monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    assert own_kernels.load() is None
    some = {"plain": 9.0, "float32": 5.0, "own": 4.9}  # no gain at 96 as at 24: see `turns`
    net, chosen = choose(monkeypatch, OWN, MANY, some=some | {"own": 4.0})
    assert {layer.forward.own_rows for layer in net} == {96}
    turns = iter((OWN, *[some | {"own": 4.0}] * 3, some, MANY))
    monkeypatch.setattr(linear, "fastest_ms", lambda work: next(turns))
    chosen = linear.choose(net := network(), "cpu", torch.bfloat16, 2**40)
    assert {layer.forward.own_rows for layer in net} == {24}
    assert {layer.forward.many_rows for layer in net} == {25}
    own, packed, switch, widened = chosen.parts
    assert own.on and "24 rows" in str(own.reason) and "3.00" in own.reason.text("zh")
    assert not packed.on and packed.reason.key == "part.packed_needless"
    assert not switch.on and switch.reason.key == "part.onednn_unused"
    assert chosen.packed_bytes == 0 and widened.on and "25 rows" in str(widened.reason)
    calls = []
    monkeypatch.setattr(own_kernels, "linear", lambda *given: calls.append(1) or F.linear(*given))
    with torch.inference_mode():
        for layer in net:
            layer(torch.randn(1, num_rows, layer.in_features).bfloat16())
    assert len(calls) == (len(SIZES) if num_rows <= 24 else 0)


@pytest.mark.parametrize(
    ("few", "some", "rows"),
    [
        (FEW | {"own": 9.5, "packed": 12.0}, OWN_MANY, 0),  # no gain at one row: nowhere
        (OWN, MANY | {"own": 4.9}, 1),  # only there
        (OWN, OWN_MANY, 96),
    ],
)
def test_the_own_kernel_is_taken_as_far_as_it_wins(
    monkeypatch: pytest.MonkeyPatch, few: dict, some: dict, rows: int
) -> None:
    assert own_kernels.load() is None
    net, chosen = choose(monkeypatch, few, MANY, some=some)
    assert {layer.forward.own_rows for layer in net} == {rows}
    assert chosen.parts[0].on is (rows > 0)


def test_a_batch_has_the_own_kernel_where_a_prompt_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Near 24 rows the ways are as fast: what is measured there says nothing of a batch."""
    assert own_kernels.load() is None
    near = MANY | {"own": 4.9}
    turns = iter((OWN, OWN_MANY, OWN_MANY, near, near, MANY))
    monkeypatch.setattr(linear, "fastest_ms", lambda work: next(turns))
    chosen = linear.choose(net := network(), "cpu", torch.bfloat16, 2**40)
    assert {layer.forward.own_rows for layer in net} == {16}
    assert {layer.forward.many_rows for layer in net} == {24}
    assert "16 rows" in str(chosen.parts[0].reason)


def test_float32_has_the_own_kernel_and_nothing_else_to_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert own_kernels.load() is None
    wins, loses = {"plain": 9.0, "own": 4.0}, {"plain": 1.0, "own": 4.0}
    turns = iter(({"onednn": 10.0, "own": 3.0}, *[wins] * 3, loses, loses))
    monkeypatch.setattr(linear, "fastest_ms", lambda work: next(turns))
    net = network().float()
    chosen = linear.choose(net, "cpu", torch.float32, 2**40)
    assert [part.name for part in chosen.parts] == ["compiled_linear"] and chosen.parts[0].on
    assert not chosen.prefill_in_float32 and {layer.forward.own_rows for layer in net} == {24}
    with torch.inference_mode():
        for layer in net:
            for num_rows in (2, 30):
                x = torch.randn(num_rows, layer.in_features)
                exact = F.linear(x, layer.weight, layer.bias)
                assert torch.allclose(layer(x), exact, atol=1e-4)


@pytest.mark.parametrize(
    ("few", "on"),
    [
        (FEW, [True, False]),
        (FEW | {"packed": 9.5}, [False, False]),
        (FEW | {"packed": 9.5, "native": 5.0}, [False, True]),
        (FEW | {"native": 9.9, "packed": 9.9}, [False, False]),  # nearly a tie: as it is
        (FEW | {"native": 4.0}, [False, True]),
    ],
)
def test_the_faster_kernel_for_few_rows_is_taken(
    monkeypatch: pytest.MonkeyPatch, few: dict[str, float], on: list[bool]
) -> None:
    net, kernels = choose(monkeypatch, few, MANY)
    on = [on[0] and linear.can_pack(), on[1]]  # not every processor packs
    assert [part.on for part in kernels.parts[1:3]] == on
    assert kernels.onednn_off_for_one_row is on[1]
    assert len(linear.packed_layers(net)) == (len(SIZES) if on[0] else 0)
    assert kernels.packed_bytes == (sum(layer.weight.nbytes for layer in net) if on[0] else 0)


def test_no_second_copy_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    net, kernels = choose(monkeypatch, FEW, MANY, free=2**20)
    why = "part.packed_memory" if linear.can_pack() else "part.packed_absent"
    assert kernels.parts[1].reason.key == why and not kernels.parts[1].on
    assert kernels.packed_bytes == 0 and linear.packed_layers(net) == []
    assert kernels.parts[3].on, "the other parts are chosen by themselves"


def test_a_processor_that_cannot_pack_measures_the_other_kernels_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("bf16 path needs the cpu support avx_ne_convert or avx512bw")

    monkeypatch.setattr(linear, "can_pack", lambda: False)
    monkeypatch.setattr(linear, "_pack", refuse)
    monkeypatch.setattr(own_kernels, "_state", {"why": Message(key="part.compiled_no_compiler")})
    net = network()
    kernels = linear.choose(net, "cpu", torch.bfloat16, 2**40)
    assert kernels.parts[1].reason.key == "part.packed_absent" and not kernels.parts[1].on
    assert kernels.packed_bytes == 0 and linear.packed_layers(net) == []


def test_packing_is_offered_exactly_where_onednn_does_it() -> None:
    try:
        linear._pack(network()[0])
    except RuntimeError:
        assert not linear.can_pack()
    else:
        assert linear.can_pack()


@pytest.mark.parametrize("given", [{"dtype": torch.float16}, {"device": "cuda:0"}])
def test_other_types_and_devices_are_left_alone(given: dict[str, object]) -> None:
    net = network()
    kernels = linear.choose(
        net, **({"device": "cpu", "dtype": torch.bfloat16} | given), free_bytes=2**40
    )
    assert [part.on for part in kernels.parts] == [False]
    assert all("forward" not in vars(layer) for layer in net)


def test_kernels_are_measured_on_the_models_own_matrices() -> None:
    before = torch.get_num_threads()
    kernels = linear.choose(network(), "cpu", torch.bfloat16, 2**40)
    assert [part.name for part in kernels.parts] == [
        "compiled_linear",
        "packed_weights",
        "onednn_off_for_one_row",
        "prefill_in_float32",
    ]
    assert all(str(part.reason) and part.reason.text("zh") for part in kernels.parts)
    assert torch.get_num_threads() == before


def test_the_onednn_switch_is_put_back_also_after_an_error() -> None:
    before = torch._C._get_mkldnn_enabled()
    with pytest.raises(ValueError), linear.onednn(not before):
        assert torch._C._get_mkldnn_enabled() is not before
        raise ValueError
    assert torch._C._get_mkldnn_enabled() is before


@pytest.mark.parametrize("masked", [False, True])
def test_attention_in_float32_reads_the_same_rows_and_rounds_once(masked: bool) -> None:
    torch.manual_seed(5)
    query = torch.randn(1, 4, 6, 16).bfloat16()
    key, value = (torch.randn(1, 2, 9, 16).bfloat16() for _ in range(2))
    mask = torch.ones(6, 9, dtype=torch.bool).tril(3)[None, None] if masked else None
    if not masked:
        key, value = key[:, :, :6], value[:, :, :6]
    reads = attention.RowReads()
    with attention.in_float32(True), reads.counting():
        got, _ = attention.row_attention(None, query, key, value, mask)
    exact, _ = attention.row_attention(None, query.float(), key.float(), value.float(), mask)
    assert got.dtype == torch.bfloat16 and torch.equal(got, exact.bfloat16())
    assert reads.num_bytes == key.nbytes + value.nbytes, "the rows are read as they are kept"
    plain, _ = attention.row_attention(None, query, key, value, mask)
    assert ((plain - got).abs() <= 2**-5).all(), "outside it is as before"
