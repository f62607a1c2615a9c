"""The decode step without Python: recorded once for a batch size, played back with other rows.

`torch.jit.trace` of the unchanged model. The rows, the new one's place included, are inputs, so one
trace serves every context length. It is used only where its logits, its rows and its counts equal
those of the step in Python, to the bit. It knows nothing of runs.

All of it can be dropped by itself: this file, `Decoder.tracing`, `Loaded.traces`, `Slab.shorter`,
`KVCache.next_row`.

Try it: tests/engine/test_decode.py
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from transformers import AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from viz_engine.engine.cache.cache import KVCache
from viz_engine.engine.cache.slab import Slab, Tensors
from viz_engine.engine.compatibility import call, first_line
from viz_engine.engine.kernels.attention import ATTENTION, Rows, register
from viz_engine.engine.kernels.backend import Backend
from viz_engine.engine.trial import Step, Trial
from viz_engine.run.events import EnginePart
from viz_engine.text import Message

MAX_TRACES = 4  # kept; one takes some 40 MB on the default model


class Tracing:
    """The recorded step of one kind of run, where there is one, and why or why not."""

    def __init__(
        self,
        network: torch.nn.Module,
        arguments: frozenset[str],
        backend: Backend,
        *,
        key: tuple[str, int, bool],
        traces: dict[tuple[str, int, bool], tuple["Traced | None", Message]],
        why_not: str | None,
    ) -> None:
        """`key`: cache policy, batch size, with a mask. `traces`: those of the model, by key.
        `why_not`: the sentence that says why no trace is even tried."""
        self.network = network
        self.arguments = arguments
        self.backend = backend
        self.key = key
        self.traces = traces
        self.why_not = why_not

    @property
    def is_ready(self) -> bool:
        """Whether `make_ready` has nothing to do."""
        return self.why_not is not None or self.key in self.traces

    def make_ready(
        self, new_trials: Callable[[], Sequence[Trial]], eager: Step, clock: Callable[[], int]
    ) -> None:
        """Record the step, and hold it against `eager`, the step in Python."""
        while len(self.traces) >= MAX_TRACES:
            del self.traces[next(iter(self.traces))]
        self.traces[self.key] = self._record(new_trials, eager, clock)

    def step(self) -> Step | None:
        """The recorded step; None where Python makes it."""
        traced, _ = self.traces.get(self.key, (None, None))
        return None if traced is None or self.why_not else self._with_kernels(traced)

    def part(self) -> EnginePart:
        """For RunStarted."""
        key = self.why_not or ("part.trace_cold" if self.key not in self.traces else None)
        traced, reason = (None, Message(key=key)) if key else self.traces[self.key]
        return EnginePart(name="traced_step", on=traced is not None, reason=reason)

    def _record(
        self, new_trials: Callable[[], Sequence[Trial]], eager: Step, clock: Callable[[], int]
    ) -> tuple["Traced | None", Message]:
        """A trace that was found equal, or None, and why."""
        record = lambda *step: trace(self.network, self.arguments, *step)  # noqa: E731
        try:
            trials = new_trials()
            traced = trials[0].make(self._with_kernels(record))
            step = self._with_kernels(traced)
            if not all(trial.is_equal(eager, step) for trial in trials):
                return None, Message(key="part.trace_differs")
            eager_ms, traced_ms = trials[0].timed_ms((eager, step), clock)
        except Exception as error:  # the tracer and a model can raise anything; Python goes on
            return None, Message(key="part.trace_failed", params={"reason": first_line(error)})
        params = {"eager_ms": f"{eager_ms:.1f}", "traced_ms": f"{traced_ms:.1f}"}
        return traced, Message(key="part.trace_on", params=params)

    def _with_kernels(self, step: Callable[..., object]) -> Callable[..., object]:
        """The step with the kernels that a step in Python has."""

        def made(*given: object) -> object:
            with self.backend.decode(self.key[1]):
                return step(*given)

        return made


class Slot(CacheLayerMixin):
    """One layer as the trace sees it: the rows it was handed, the last of them to be written."""

    is_sliding = False

    def __init__(self, store: type[Slab], rows: Tensors) -> None:
        super().__init__()
        self.store = store
        self.rows = rows
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the rows are handed in."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[Rows, Rows]:
        self.store.store(self.store.newest(self.rows, 1), key_states, value_states)
        return self.store.read(self.rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.store.num_rows(self.rows), 0

    def get_seq_length(self) -> int:
        return self.store.num_rows(self.rows) - 1

    def get_max_length(self) -> int:
        return -1


class Recordable(torch.nn.Module):
    """A decode step as a function of tensors only."""

    def __init__(
        self,
        network: torch.nn.Module,
        arguments: frozenset[str],
        stores: Sequence[tuple[type[Slab], int]],
        masked: bool,
    ) -> None:
        """`stores`: of each layer, and how many tensors it is handed."""
        super().__init__()
        self.network = network
        self.arguments = arguments
        self.stores = stores
        self.masked = masked

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, *tensors: torch.Tensor
    ) -> torch.Tensor:
        """Logits `[B, vocab]`. `tensors`: the rows of each layer, the mask `[B, 1, 1, S]` where
        there is one."""
        rest = iter(tensors)
        slots = Cache(layers=[Slot(store, tuple(islice(rest, num))) for store, num in self.stores])
        mask = next(rest) if self.masked else None
        given = {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": mask,
            "cache": slots,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        return call(self.network, self.arguments, given)[:, -1]


class Traced:
    """The recorded step of one batch size, with or without a mask."""

    def __init__(self, network: torch.nn.Module, step: Callable[..., torch.Tensor]) -> None:
        self.step = step
        self.weights = _weights(network)

    def __call__(
        self,
        ids: torch.Tensor,  # [B, 1]
        positions: torch.Tensor,  # [B, 1]
        mask: torch.Tensor | None,  # [B, S]
        cache: KVCache,
    ) -> torch.Tensor:
        """Logits `[B, vocab]`. The reads are counted by the cache, as its rows are handed in."""
        tensors = [t for _, rows in cache.next_row() for t in rows]
        if mask is not None:
            tensors.append(_wide(mask))
        with torch.inference_mode(), torch.jit.optimized_execution(False):
            return self.step(*self.weights, ids, positions, *tensors)


def trace(
    network: torch.nn.Module,
    arguments: frozenset[str],
    ids: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor | None,
    cache: KVCache,
) -> Traced:
    """Record the step that adds one row to `cache`. `arguments`: those that the model's forward
    knows. Raises whatever the tracer raises."""
    handed = cache.next_row()
    stores = [(store, len(rows)) for store, rows in handed]
    step = Recordable(network, arguments, stores, mask is not None).eval()
    weights = _weights(network)
    tensors = [t for _, rows in handed for t in rows]
    fewer = [t for store, rows in handed for t in store.shorter(rows)]
    if mask is not None:
        tensors.append(_wide(mask))
        fewer.append(_wide(mask[:, 1:]))

    def with_weights(*given: torch.Tensor) -> torch.Tensor:
        with _held(network, dict(zip(map(id, weights), given, strict=False))):
            return step(*given[len(weights) :])

    given = (*weights, ids, positions, *tensors)
    shorter = (*weights, ids, positions, *fewer)
    with torch.inference_mode(), warnings.catch_warnings(), _no_mask_made():
        # Numbers that Python reads are frozen: whether that matters is seen in the logits.
        warnings.simplefilter("ignore")
        recorded = torch.jit.trace(with_weights, given, check_trace=False, strict=False)
        with torch.jit.optimized_execution(False):
            recorded = _without_sizes(recorded.graph, given, shorter)
    return Traced(network, recorded)


def _without_sizes(
    graph: torch.Graph, given: tuple[torch.Tensor, ...], shorter: tuple[torch.Tensor, ...]
) -> torch.ScriptFunction:
    """The graph with sizes of tensors put in as numbers where they are the same with a row less,
    as nearly all are: a third of its operations goes. Both inputs are run once."""
    asking = graph.copy()
    sizes = asking.create("prim::ListConstruct", [n.output() for n in _sizes(asking)])
    sizes.output().setType(torch._C.ListType(torch._C.IntType.get()))
    asking.appendNode(sizes)
    asking.eraseOutput(0)
    asking.registerOutput(sizes.output())
    ask = torch._C._create_function_from_graph("sizes", asking)
    graph = graph.copy()
    for node, size, other in zip(_sizes(graph), ask(*given), ask(*shorter), strict=True):
        if size == other:
            number = graph.insertConstant(size)
            number.node().moveBefore(node)
            node.output().replaceAllUsesWith(number)
    torch._C._jit_pass_constant_propagation(graph)
    torch._C._jit_pass_dce(graph)
    return torch._C._create_function_from_graph("step", graph)


def _sizes(graph: torch.Graph) -> list[torch.Node]:
    return [node for node in graph.nodes() if node.kind() == "aten::size"]


@contextmanager
def _no_mask_made() -> Iterator[None]:
    """One new row sees all rows that it is handed, so without pads it needs no mask. Transformers
    knows that too, but not while it is traced. With pads the mask is handed in."""
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        register()


def _weights(network: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers, a tied one once. They are handed in with every step: one graph
    without calls or attributes runs faster (a step of the default model in 34 ms instead of 38),
    and what it held as constants it would keep for as long as the process lives."""
    return list({id(held[name]): held[name] for held, name in _places(network)}.values())


def _places(network: torch.nn.Module) -> list[tuple[dict[str, torch.Tensor], str]]:
    """Where a network keeps its parameters and buffers."""
    kept = [held for m in network.modules() for held in (m._parameters, m._buffers)]
    return [(held, name) for held in kept for name, tensor in held.items() if tensor is not None]


@contextmanager
def _held(network: torch.nn.Module, others: dict[int, torch.Tensor]) -> Iterator[None]:
    """The network with `others` in place of what it holds, by the id of what each stands for."""
    own = [(held, name, held[name]) for held, name in _places(network)]
    try:
        for held, name, tensor in own:
            held[name] = others[id(tensor)]
        yield
    finally:
        for held, name, tensor in own:
            held[name] = tensor


def _wide(mask: torch.Tensor) -> torch.Tensor:
    """bool `[B, 1, 1, S]` of `[B, S]`."""
    return mask[:, None, None, :].bool()
