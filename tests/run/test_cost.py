"""FLOPs: cost.py = torch's own counter on the same steps."""

from collections.abc import Callable
from functools import cache

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.support import architectures
from tests.support.flops import UNKNOWN
from viz_engine.engine import generate
from viz_engine.engine.load import Loaded
from viz_engine.run import checks, cost
from viz_engine.run.events import RunSettings, StepFinished
from viz_engine.run.log import RunLog


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """type -> a tiny model of it, loaded; made once."""

    @cache
    def make(model_type: str) -> Loaded:
        folder = tmp_path_factory.mktemp(model_type)
        return architectures.load(architectures.build(model_type), folder)

    return make


def flops_of_steps(loaded: Loaded, settings: RunSettings) -> list[tuple[int, int]]:
    """(counted by torch, predicted) for each step. The math kernel shows its products."""
    log, pairs = RunLog(), []
    counter = FlopCounterMode(display=False, custom_mapping=UNKNOWN)
    with counter, sdpa_kernel(SDPBackend.MATH):
        before = 0
        for event in generate.generate(loaded, settings, run_id="r"):
            log.append(event)
            if isinstance(event, StepFinished):
                pairs.append((counter.get_total_flops() - before, log.step_cost(-1).flops))
            before = counter.get_total_flops()
    assert log.finished.error is None
    return pairs


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("cache", ["full", "none"])
def test_flops_equal_torchs_counter_at_every_step(
    tiny: Callable[..., Loaded], family: str, cache: str
) -> None:
    settings = RunSettings(
        model="tiny",
        prompts=("a prompt of some length", "another"),
        batch=2,
        chat=False,
        new_tokens=4,
        chunk_len=10,
        cache=cache,
        warm_up=False,
    )
    pairs = flops_of_steps(tiny(family), settings)
    assert [counted for counted, _ in pairs] == [predicted for _, predicted in pairs]


@pytest.mark.parametrize(
    "model_type",
    ["gpt2", "phi3", "gemma2", "cohere2", "minicpm3", "deepseek_v3", "qwen2_moe", "gpt_oss"],
)
@pytest.mark.parametrize("cache", ["full", "none"])
def test_flops_equal_torchs_counter_for_types_that_a_config_describes(
    described: Callable[[str], Loaded], model_type: str, cache: str
) -> None:
    settings = architectures.settings_of(2, chunk_len=10, cache=cache, new_tokens=4)
    pairs = flops_of_steps(described(model_type), settings)
    assert [counted for counted, _ in pairs] == [predicted for _, predicted in pairs]


def test_flops_of_the_default_model_equal_torchs_counter(
    default_model: Callable[[str], Loaded],
) -> None:
    settings = RunSettings(model="default", prompts=("Hello",), new_tokens=3, warm_up=False)
    pairs = flops_of_steps(default_model("bfloat16"), settings)
    assert all(counted == predicted for counted, predicted in pairs)


def test_the_spec_counts_the_parameters_that_the_model_holds(
    tiny: Callable[..., Loaded], default_model: Callable[[str], Loaded]
) -> None:
    for loaded in (tiny("llama"), tiny("qwen2"), tiny("qwen3"), default_model("bfloat16")):
        held = sum(p.numel() * p.element_size() for p in loaded.model.parameters())
        assert held == cost.weight_bytes(loaded.spec, loaded.dtype)


def test_the_footprint_is_what_a_run_holds_at_its_end(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny()
    settings = RunSettings(
        model="tiny", prompts=("x" * 250,), batch=3, chat=False, new_tokens=20, stop_token_ids=()
    )
    log = RunLog.of(generate.generate(loaded, settings, run_id="r"))
    need = checks.footprint(loaded.spec, "float32", batch=3, prompt_len=250, new_tokens=20)
    assert log.steps[-1].kv_reserved_bytes == need.kv_reserved_bytes
    assert log.num_rows == [need.num_rows] * 3
