"""Linear layers: whichever way is chosen, the product is the plain one's, rounded once; and for no
number of tokens a slow way is chosen, on a busy machine too."""

import random
from collections.abc import Mapping
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from viz_engine.engine.kernels import attention, build, context, linear
from viz_engine.text import Message

SIZES = ((1024, 2048), (2048, 1024), (4096, 1024))
NOTHING = 1e9  # ms: never the fastest
EVERY = range(1, 2 * linear.CHUNK)


def network() -> torch.nn.Sequential:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(i, o, bias=o == 2048) for i, o in SIZES]
    return torch.nn.Sequential(*layers).bfloat16().requires_grad_(False)


def by_size(*times: float) -> dict[int, float]:
    return dict(zip(linear.SIZES, times, strict=True))


def choose(
    monkeypatch: pytest.MonkeyPatch,
    net: torch.nn.Sequential | None = None,
    native: float = NOTHING,
    **times: dict[int, float] | float,
) -> tuple[torch.nn.Sequential, linear.Chosen]:
    """A network, and what is chosen where these times (ms) are measured: of each way, by number of
    tokens or for all; of `native` at one token."""

    def measured(work: Mapping[tuple[int, str], object], **given: object) -> dict:
        took = times | {"native": native}
        of = lambda num, way: took[way][num] if isinstance(took[way], dict) else took[way]  # noqa: E731
        return {(num, way): of(num, way) for num, way in work}

    monkeypatch.setattr(build, "fastest_ms", measured)
    net = network() if net is None else net
    return net, linear.choose(net, "cpu", net[0].weight.dtype)


def way_of(layer: torch.nn.Linear, num_tokens: int) -> str:
    """The way that the layer goes for so many tokens."""
    forward = vars(layer).get("forward")
    way = F.linear if forward is None else forward.ways[min(num_tokens, forward.most)]
    return {build.linear: "own", F.linear: "torch", linear._upcast: "upcast"}[way]


def ways_of(net: torch.nn.Sequential) -> list[str]:
    """The way of all layers for 1, 2, 3 ... tokens."""
    (ways,) = {tuple(way_of(layer, num) for num in EVERY) for layer in net}
    return list(ways)


@pytest.fixture
def compiled() -> None:
    assert build.load() is None


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    why = Message(key="part.compiled_no_compiler")
    monkeypatch.setattr(build, "_state", {"why": why})


# --- the products ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [1, 7, 63, 64, 300])
@pytest.mark.parametrize("way", ["own", "torch", "upcast"])
def test_products_are_those_of_float32_rounded_once(
    compiled: None, monkeypatch: pytest.MonkeyPatch, way: str, num_tokens: int
) -> None:
    net, _ = choose(monkeypatch, **({"own": 9.0, "torch": 9.0, "upcast": 9.0} | {way: 1.0}))
    assert set(ways_of(net)) == {way}
    with torch.inference_mode():
        for layer in net:
            x = torch.randn(1, num_tokens, layer.in_features).bfloat16()
            bias = None if layer.bias is None else layer.bias.float()
            exact = F.linear(x.float(), layer.weight.float(), bias)
            got = layer(x)
            assert got.dtype == torch.bfloat16 and got.shape == exact.shape
            assert ((got.float() - exact).abs() <= exact.abs() * 2**-8 + 1e-4).all()
            assert layer(x[:, :0]).shape == (1, 0, layer.out_features)


# --- what is chosen -------------------------------------------------------------------------


def test_the_custom_kernel_takes_every_number_of_tokens_where_it_wins(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As measured on a processor with AVX2."""
    net, chosen = choose(
        monkeypatch,
        own=by_size(3.8, 3.9, 6.0, 9.5, 13.0, 16.8, 125.0),
        torch=by_size(9.0, 11.0, 18.0, 35.2, 68.8, 103.5, 900.0),
        upcast=by_size(11.9, 14.7, 18.0, 22.4, 24.6, 30.3, 150.0),
        native=5.1,
    )
    assert set(ways_of(net)) == {"own"}
    own, switch, upcast = chosen.parts
    assert own.on and own.reason.key == "part.compiled_linear_any"
    assert "3.80" in str(own.reason) and "5.10" in own.reason.text("zh")
    assert not switch.on and switch.reason.key == "part.onednn_unused"
    assert upcast.on and upcast.reason.key == "part.widened_own" and "125.00" in str(upcast.reason)
    assert not chosen.onednn_off_for_one_token and chosen.prefill_in_float32


def test_the_custom_kernel_leaves_off_between_the_sizes_where_it_wins_and_where_it_loses(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As measured on a processor with AVX-512 for bfloat16."""
    net, chosen = choose(
        monkeypatch,
        own=by_size(4.2, 4.7, 7.1, 1.14, 1.61, 1.97, 17.5),
        torch=by_size(10.0, 9.5, 10.7, 1.14, 1.27, 1.47, 8.8),
        upcast=by_size(19.3, 31.6, 26.8, 1.42, 1.96, 2.51, 18.5),
        native=5.4,
    )
    ways = ways_of(net)
    assert ways == ["own"] * (num := ways.count("own")) + ["torch"] * (len(ways) - num)
    assert 8 <= num < 16
    own, switch, upcast = chosen.parts
    assert own.on and own.reason.params["tokens"] == f"1\u2013{num}"
    assert not switch.on and not upcast.on and upcast.reason.key == "part.widened_off"
    assert not chosen.prefill_in_float32


def test_a_tie_changes_nothing(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    net, chosen = choose(monkeypatch, own=9.7, torch=10.0, upcast=9.8, native=9.6)
    assert set(ways_of(net)) == {"torch"} and not any(part.on for part in chosen.parts)
    assert all("forward" not in vars(layer) for layer in net)
    near = by_size(9.7, 9.7, 9.7, 5.0, 9.7, 10.3, 10.3)
    net, chosen = choose(monkeypatch, own=near, torch=10.0, upcast=NOTHING)
    assert chosen.parts[0].reason.params["tokens"] == "5+", "once taken it stays"


def test_a_wide_lead_of_another_in_the_middle_is_taken(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = by_size(9.0, 9.0, 1.0, 1.0, 9.0, 9.0, 9.0)
    net, chosen = choose(monkeypatch, own=middle, torch=3.0, upcast=NOTHING)
    assert [way_of(net[0], num) for num in (1, 2, 3, 4, 6, 8, 16)] == (
        ["torch", "torch", "own", "own", "own", "own", "torch"]
    )
    assert "3\u201311" in str(chosen.parts[0].reason)


def test_float32_has_the_custom_kernel_and_torch_to_choose_from(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = by_size(4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 9.0)
    net, chosen = choose(monkeypatch, network().float(), own=own, torch=6.0)
    assert [part.name for part in chosen.parts] == ["compiled_linear"] and chosen.parts[0].on
    assert not chosen.prefill_in_float32 and set(ways_of(net)) == {"own", "torch"}
    with torch.inference_mode():
        for layer in net:
            for num_tokens in (2, 300):
                x = torch.randn(num_tokens, layer.in_features)
                exact = F.linear(x, layer.weight, layer.bias)
                assert torch.allclose(layer(x), exact, atol=1e-4)


def test_a_layer_that_the_custom_kernel_cannot_take_goes_the_next_best_way(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network()
    net.append(torch.nn.Linear(1000, 8).bfloat16().requires_grad_(False))
    choose(monkeypatch, net, own=1.0, torch=9.0, upcast=3.0)
    assert [way_of(layer, 4) for layer in net] == ["own"] * 3 + ["upcast"]


# --- without a compiler -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "upcast", "off", "first"),
    [
        (5.0, 20.0, True, "torch"),
        (5.0, 4.0, False, "upcast"),
        (9.8, 20.0, False, "torch"),  # nearly a tie: as it is
        (5.0, 7.0, True, "torch"),
    ],
)
def test_onednn_is_off_for_one_token_where_nothing_else_is_faster(
    no_compiler: None,
    monkeypatch: pytest.MonkeyPatch,
    native: float,
    upcast: float,
    off: bool,
    first: str,
) -> None:
    wide = by_size(upcast, *[20.0] * 6)
    net, chosen = choose(monkeypatch, torch=10.0, upcast=wide, native=native)
    assert chosen.onednn_off_for_one_token is chosen.parts[1].on is off
    assert [way_of(layer, 1) for layer in net] == [first] * 3
    assert way_of(net[0], 4) == "torch"
    assert not chosen.parts[0].on and chosen.parts[0].reason.key == "part.compiled_no_compiler"


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (by_size(10.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0), "For 5 tokens or more"),
        (by_size(10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 5.0), "In prefill"),
        (5.0, "For 1 tokens or more"),
    ],
)
def test_weights_are_upcast_from_where_that_was_measured_to_win(
    no_compiler: None, monkeypatch: pytest.MonkeyPatch, times: object, words: str
) -> None:
    net, chosen = choose(monkeypatch, torch=10.0, upcast=times)
    part = chosen.parts[2]
    assert part.on and str(part.reason).startswith(words) and chosen.prefill_in_float32
    first = part.reason.params["rows"]
    expected = ["torch"] * (first - 1) + ["upcast"] * (len(EVERY) - first + 1)
    assert ways_of(net) == expected


# --- no hole ----------------------------------------------------------------------------------

WAYS = ("own", "torch", "upcast")
MS = st.floats(0.1, 20)


@given(st.fixed_dictionaries(dict.fromkeys(WAYS, st.tuples(*[MS] * len(linear.SIZES)))))
@settings(max_examples=60, deadline=None)
def test_every_number_of_tokens_goes_as_the_sizes_beside_it(measured: dict) -> None:
    times = {num: {w: measured[w][i] for w in WAYS} for i, num in enumerate(linear.SIZES)}
    names = linear.fastest_names(times)
    assert len(names) == linear.CHUNK + 1 and names[0] == names[1]
    for num in linear.SIZES:
        assert times[num][names[num]] * linear.GAIN <= min(times[num].values())
    for low, high in zip(linear.SIZES, linear.SIZES[1:], strict=False):
        for num in range(low, high + 1):
            worst = [times[n][names[num]] / min(times[n].values()) for n in (low, high)]
            assert min(worst) * linear.GAIN <= 1 or len(set(names[low : high + 1])) > 2
        for way in WAYS:
            if all(times[n][way] < linear.GAIN * min(_others(times[n], way)) for n in (low, high)):
                assert set(names[low : high + 1]) == {way}, "no hole between two sizes that it wins"


def _others(times: Mapping[str, float], way: str) -> list[float]:
    return [ms for name, ms in times.items() if name != way]


class Busy:
    """A machine whose calls take their true time, or for some calls on end a multiple of it."""

    def __init__(self, seed: int, share: float, most: float, longest: int) -> None:
        self.dice = random.Random(seed)
        self.share, self.most, self.longest = share, most, longest
        self.now, self.left, self.times = 0, 0, 1.0

    def call(self, ms: float) -> None:
        if not self.left:
            noisy = self.dice.random() < self.share
            self.left = self.dice.randint(1, self.longest)
            self.times = self.dice.uniform(1, self.most) if noisy else 1.0
        self.left -= 1
        self.now += int(ms * 1e6 * self.times * self.dice.uniform(1, 1.03))


COST = st.tuples(st.floats(1, 20), st.floats(0.02, 1.5))  # ms of a call, and of each token


@given(
    st.fixed_dictionaries(dict.fromkeys(WAYS, COST)),
    st.integers(0, 2**32),
    st.floats(0, 0.4),
    st.sampled_from([1, 10, 100, 1000]),
)
@settings(max_examples=60, deadline=None)
def test_on_a_busy_machine_no_number_of_tokens_goes_a_slow_way(
    costs: dict, seed: int, share: float, longest: int
) -> None:
    machine = Busy(seed, share, 10.0, longest)
    true = lambda way, num: costs[way][0] + costs[way][1] * num  # noqa: E731
    sizes = [(num, way) for way in WAYS for num in linear.SIZES]
    calls = {(num, way): [partial(machine.call, true(way, num))] * 8 for num, way in sizes}
    names = linear.fastest_names(linear.fastest_times(calls, clock=lambda: machine.now))
    for num in range(1, linear.CHUNK + 1):
        assert true(names[num], num) < 1.5 * min(true(way, num) for way in WAYS)


# --- around it --------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"dtype": torch.float16}, {"device": "cuda:0"}])
def test_other_types_and_devices_are_left_alone(given: dict[str, object]) -> None:
    net = network()
    chosen = linear.choose(net, **({"device": "cpu", "dtype": torch.bfloat16} | given))
    assert [part.on for part in chosen.parts] == [False]
    assert all("forward" not in vars(layer) for layer in net)


def test_the_ways_are_measured_on_the_models_own_matrices() -> None:
    before = torch.get_num_threads()
    chosen = linear.choose(network(), "cpu", torch.bfloat16)
    assert [part.name for part in chosen.parts] == [
        "compiled_linear",
        "onednn_off_for_one_token",
        "prefill_in_float32",
    ]
    assert all(str(part.reason) and part.reason.text("zh") for part in chosen.parts)
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
    reads = context.RowReads()
    with context.Forward(reads=reads, upcast=True).entered():
        got, _ = attention.row_attention(None, query, key, value, mask)
    exact, _ = attention.row_attention(None, query.float(), key.float(), value.float(), mask)
    assert got.dtype == torch.bfloat16 and torch.equal(got, exact.bfloat16())
    assert reads.num_bytes == key.nbytes + value.nbytes, "the rows are read as they are kept"
    plain, _ = attention.row_attention(None, query, key, value, mask)
    assert ((plain - got).abs() <= 2**-5).all(), "outside it is as before"
