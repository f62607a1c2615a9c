"""Every named type of model: the tokens and logits of `generate`, and bytes as observers see them.

The observers share nothing with the engine: what enters a product with K or V as torch sees it,
the tensors of transformers' own cache, the storages behind the rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, PreTrainedModel

from tests.support import architectures
from tests.support.architectures import CHUNK, NAMED, NUM_STEPS, TOLERANCE
from viz_engine.engine import compatibility, generate
from viz_engine.engine.cache import cache, slab
from viz_engine.engine.compatibility import Compatibility
from viz_engine.engine.load import Loaded
from viz_engine.model.spec import ModelSpec
from viz_engine.run import checks, cost
from viz_engine.run.events import KVSample, StepFinished
from viz_engine.run.log import RunLog
from viz_engine.text import UserError

WRITTEN_OUT = ("gemma2", "gpt_oss")  # capped scores, sinks
NUM_TOKENS = 20  # where bytes are observed
LATENT = ("deepseek_v2", "deepseek_v3")
EXPECTED_LAYERS = {
    "llama": ["full"] * 4,
    "mistral": ["sliding"] * 4,
    "gemma2": ["sliding", "full"] * 2,
    "gemma3n_text": ["sliding", "full", "shared", "shared"],
    "deepseek_v3": ["latent"] * 4,
    "llama4_text": ["chunked", "chunked", "chunked", "full"],
    "qwen3_next": ["state", "state", "state", "full"],
    "jamba": ["state", "full"] * 2,
    "falcon_h1": ["full"] * 4,
    "mamba2": ["state"] * 4,
}


class Products(TorchFunctionMode):
    """Bytes of the keys and values that enter attention, as torch sees it: its own function or the
    engine's, or with `written_out` the two products."""

    def __init__(self, *, written_out: bool) -> None:
        super().__init__()
        self.written_out = written_out
        self.num_bytes = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention or func is torch.ops.second_token.attend:
            self.num_bytes += sum(t.numel() * t.element_size() for t in args[1:3])
        elif (
            self.written_out
            and func in (torch.Tensor.matmul, torch.Tensor.__matmul__)
            and args[1].dim() == 4
        ):
            self.num_bytes += args[1].numel() * args[1].element_size()
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[PreTrainedModel, Loaded]]:
    """type -> the model as transformers builds it, and as the engine loads it; made once."""
    known: dict[str, tuple[PreTrainedModel, Loaded]] = {}

    def make(model_type: str) -> tuple[PreTrainedModel, Loaded]:
        if model_type not in known:
            network = architectures.build(model_type)
            folder = tmp_path_factory.mktemp(model_type)
            known[model_type] = network, architectures.load(network, folder)
        return known[model_type]

    return make


@pytest.mark.parametrize("model_type", NAMED)
def test_tokens_and_logits_are_those_of_generate(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]],
    record_property: Callable[[str, float], None],
    model_type: str,
) -> None:
    network, loaded = made(model_type)
    gap, reason = architectures.difference(network, loaded)
    assert not reason
    record_property("logit_gap", gap)
    assert gap < TOLERANCE
    log = run(loaded, batch=3, chunk_len=0)
    assert len(log.steps) == NUM_STEPS + 1
    assert len({ids for step in log.steps for ids in step.token_ids}) > 10  # not a stuck model


@pytest.mark.parametrize("model_type", EXPECTED_LAYERS)
def test_each_layer_is_known_for_what_it_is(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]], model_type: str
) -> None:
    _, loaded = made(model_type)
    assert [layer.kind for layer in loaded.spec.layers] == EXPECTED_LAYERS[model_type]
    for layer in loaded.spec.layers:
        assert (layer.window == architectures.WINDOW) == (layer.kind in ("sliding", "chunked"))
        assert bool(layer.num_kv_heads) == (layer.kind not in ("state", "shared", "none"))


def test_a_shared_layer_names_the_layer_whose_rows_it_reads(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]],
) -> None:
    _, loaded = made("gemma3n_text")
    assert [layer.shares for layer in loaded.spec.layers] == [None, None, 0, 1]


def test_parts_say_what_is_ours_and_why(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]],
) -> None:
    for model_type in NAMED:
        _, loaded = made(model_type)
        assert loaded.compatibility.cached
        assert loaded.compatibility.own_attention == (model_type != "falcon"), model_type
        assert loaded.compatibility.chunks == (model_type != "jamba"), model_type
    _, falcon = made("falcon")
    assert "attention of its own" in str(falcon.parts[0].reason)
    _, jamba = made("jamba")
    log = run(jamba, batch=1, chunk_len=CHUNK)
    assert log.started.settings.chunk_len == 0 and len(log.steps) == NUM_STEPS + 1
    pieces = next(part for part in log.started.parts if part.name == "pieces")
    assert not pieces.on and "logits differ" in str(pieces.reason)


def run(loaded: Loaded, *, batch: int, chunk_len: int) -> RunLog:
    settings = architectures.settings_of(batch, chunk_len=chunk_len)
    log = RunLog.of(generate.generate(loaded, settings, run_id="r"))
    assert log.finished.error is None
    return log


def observed(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, batch: int
) -> Iterator[tuple[StepFinished, int, int]]:
    """Each step, the bytes that entered attention in it, and the storages behind its rows."""
    seen: list[cache.KVCache] = []

    class Watched(cache.KVCache):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            seen.append(self)

    monkeypatch.setattr(generate, "KVCache", Watched)
    chunk_len = CHUNK if loaded.compatibility.chunks else 0
    settings = architectures.settings_of(batch, chunk_len=chunk_len, new_tokens=NUM_TOKENS)
    with Products(written_out=loaded.spec.model_type in WRITTEN_OUT) as products:
        for event in generate.generate(loaded, settings, run_id="r"):
            if isinstance(event, StepFinished):
                yield event, products.num_bytes, storage_bytes(seen[0])
            products.num_bytes = 0


def tensors_of(layer: object) -> list[torch.Tensor]:
    """K, V and states of any cache layer, by their names."""
    if isinstance(layer, cache.LayerCache):
        return list(layer.slab.tensors)
    found = [getattr(layer, name, None) for name in ("keys", "values")]
    for name in ("conv_states", "recurrent_states"):
        found += getattr(layer, name, {}).values()
    return [t for t in found if t is not None]


def storage_bytes(made: cache.KVCache) -> int:
    tensors = [t for layer in made.layers for t in tensors_of(layer)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def state_bytes(theirs: DynamicCache) -> int:
    return sum(
        t.numel() * t.element_size()
        for layer in theirs.layers
        for t in tensors_of(layer)
        if t is not getattr(layer, "keys", None) and t is not getattr(layer, "values", None)
    )


@pytest.mark.parametrize(
    ("model_type", "batch"),
    [(name, 3) for name in NAMED] + [(n, 1) for n in ("gemma3n_text", "deepseek_v3", "jamba")],
)
def test_bytes_are_what_independent_observers_see(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]],
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    batch: int,
) -> None:
    network, loaded = made(model_type)
    theirs = DynamicCache(config=network.config)
    prompts = generate.encode(loaded, architectures.settings_of(batch, chunk_len=0))
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    arguments = loaded.compatibility.arguments
    first = 0
    for step, attended, storage in observed(loaded, monkeypatch, batch):
        stop = ids.shape[1] if step.phase == "decode" else min(first + CHUNK, ids.shape[1])
        stop = stop if loaded.compatibility.chunks else ids.shape[1]
        states_before = state_bytes(theirs)
        given = {
            "input_ids": ids[:, first:stop],
            "attention_mask": mask[:, :stop],
            "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)[:, first:stop],
            "cache": theirs,
            "use_cache": True,
        }
        compatibility.call(network, arguments, given)
        held = sum(
            t.numel() * t.element_size() for layer in theirs.layers for t in tensors_of(layer)
        )
        assert step.kv_live_bytes == held, step.step
        assert step.kv_reserved_bytes == storage >= held, step.step
        read = step.kv_bytes_read - states_before
        if model_type == "falcon_h1":  # its rows are in transformers' class, which copies them
            read -= batch * first * loaded.spec.row_elements * 4
        assert read == attended, step.step
        first = stop
        if stop == longest or step.phase == "decode":
            new = torch.tensor([list(tokens) for tokens in step.token_ids])
            ids = torch.cat([ids, new], dim=1)
            mask = torch.cat([mask, torch.ones_like(new)], dim=1)
    assert step.phase == "decode"
    if model_type in LATENT:  # what is held is the latent, what attention reads is expanded
        columns = longest + NUM_TOKENS - 1
        config = network.config
        latent = (config.kv_lora_rank + config.qk_rope_head_dim) * 4
        head = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
        expanded = config.num_attention_heads * head * 4
        assert step.kv_live_bytes == 4 * batch * columns * latent
        assert step.kv_bytes_read == 4 * batch * columns * expanded


@pytest.mark.parametrize("model_type", ["gemma2", "deepseek_v3", "lfm2"])
def test_what_is_reserved_at_the_end_was_foretold(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]], model_type: str
) -> None:
    _, loaded = made(model_type)
    log = run(loaded, batch=3, chunk_len=CHUNK)
    need = checks.footprint(
        loaded.spec,
        "float32",
        batch=3,
        prompt_len=log.started.prompt_columns,
        new_tokens=NUM_STEPS + 1,
    )
    assert log.steps[-1].kv_reserved_bytes == need.kv_reserved_bytes
    held = sum(p.numel() * 4 for p in loaded.model.parameters())
    assert need.weight_bytes == held


def test_weights_of_experts_are_not_guessed(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]],
) -> None:
    assert made("mixtral")[1].weight_bytes_once is None
    assert made("gpt2")[1].weight_bytes_once is not None
    log = run(made("mixtral")[1], batch=1, chunk_len=0)
    assert log.steps[-1].weight_bytes_read is None


@pytest.mark.parametrize(
    ("model_type", "why"), [("falcon", "weights"), ("qwen3_next", "layers"), ("jamba", "layers")]
)
def test_what_no_formula_stands_for_says_why(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]], model_type: str, why: str
) -> None:
    log = run(made(model_type)[1], batch=1, chunk_len=0)
    with pytest.raises(ValueError, match="no formula"):
        cost.linear_flops(log.started.spec, num_tokens=1, num_logit_rows=1)
    assert log.step_cost(-1) is None
    formula = next(part for part in log.started.parts if part.name == "formula")
    assert not formula.on and formula.reason.key == f"part.formula.{why}"
    assert "no text for" not in formula.reason.text("zh")
    assert RunLog.read(log.to_jsonl().encode()).events == log.events


def test_a_formula_stands_only_for_the_model_that_was_loaded(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]],
) -> None:
    network, loaded = made("llama")
    read = (loaded.weight_bytes_once, loaded.lookup_row_bytes)

    def problem(
        spec: ModelSpec, found: Compatibility = loaded.compatibility, read=read
    ) -> str | None:
        part = compatibility.check_formula(spec, network, found, read)
        return None if part.on else part.reason.key.removeprefix("part.formula.")

    assert problem(loaded.spec) is None
    assert problem(None) == "weights"
    assert problem(replace(loaded.spec, weights=loaded.spec.weights[:-1])) == "held"
    assert problem(loaded.spec, read=(read[0] - 4, read[1])) == "held"
    assert problem(replace(loaded.spec, layers=loaded.spec.layers[:-1])) == "layers"
    assert problem(loaded.spec, replace(loaded.compatibility, own_attention=False)) == "layers"
    assert problem(loaded.spec, replace(loaded.compatibility, arguments=frozenset())) == "logits"


def test_a_type_without_a_cache_runs_without_one_only(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]],
) -> None:
    _, loaded = made("openai-gpt")
    assert not loaded.compatibility.cached
    settings = architectures.settings_of(1, chunk_len=0)
    with pytest.raises(UserError, match="Switch the KV cache off"):
        next(generate.generate(loaded, settings, run_id="r"))
    settings = architectures.settings_of(3, chunk_len=0, cache="none", new_tokens=4)
    log = RunLog.of(generate.generate(loaded, settings, run_id="r"))
    assert log.finished.finish_reason == "length" and log.num_rows == [0, 0, 0]
    cache_part = next(part for part in log.started.parts if part.name == "cache")
    assert not cache_part.on and "takes no cache" in str(cache_part.reason)


def test_what_cannot_be_served_is_refused_before_it_loads() -> None:
    for model_type in compatibility.UNSERVED:
        with pytest.raises(UserError) as refused:
            compatibility.check_served({"model_type": model_type})
        for language in ("en", "zh"):
            assert model_type in refused.value.message.text(language)


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "llama4_text"])
def test_windows_slide_and_results_stay(
    made: Callable[[str], tuple[PreTrainedModel, Loaded]],
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
) -> None:
    network, loaded = made(model_type)
    before = run(loaded, batch=3, chunk_len=CHUNK)
    monkeypatch.setattr(slab, "BLOCK_LEN", 8)
    small = lambda num: -(-num // 8) * 8  # noqa: E731
    monkeypatch.setattr(slab, "block_columns", small)
    monkeypatch.setattr(slab, "slab_columns", lambda layer, num: small(min(num, 24)))
    after = run(loaded, batch=3, chunk_len=CHUNK)
    assert [s.token_ids for s in after.steps] == [s.token_ids for s in before.steps]
    assert [s.kv_live_bytes for s in after.steps] == [s.kv_live_bytes for s in before.steps]
    samples = [[e for e in log if isinstance(e, KVSample)] for log in (before, after)]
    assert samples[0] == samples[1]
    pairs = list(zip(after.steps, before.steps, strict=True))
    moved = [a.kv_bytes_written - b.kv_bytes_written for a, b in pairs]
    assert sum(n > 0 for n in moved) > 3
    read = [a.kv_bytes_read - b.kv_bytes_read for a, b in pairs]
    assert read == moved
