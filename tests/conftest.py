"""Models for the tests: the packaged default, and tiny random ones of each family."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from viz_engine.run import machine

# Before any test imports torch. One thread: with two, a product is summed in an order that depends
# on how busy the machine is, and no test could ask for logits equal to the bit.
os.environ.setdefault("OMP_NUM_THREADS", "1")
machine.share_cores()
# The same examples every time, and as long for each as the machine needs.
hypothesis.settings.load_profile("ci")

TINY = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
}
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


# Files of minutes, first: a process that is given one at last keeps the others waiting.
LONG = ("web_process", "architectures", "worker", "oracle", "diagnose", "generate", "config_oracle")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which `--dist loadfile` hands out the files."""
    place = {f"test_{name}": at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The largest gap of the oracle's cases (their property `logit_gap`)."""
    gaps = {
        report.nodeid.partition("::")[2]: value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "logit_gap" and report.when == "call"
    }
    if gaps:
        worst = max(gaps, key=gaps.get)
        terminalreporter.write_line(
            f"largest logit gap to transformers in float32: {gaps[worst]:.1e} ({worst}), "
            f"{len(gaps)} cases"
        )


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: a token a byte, and two control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_tiny(folder: Path, family: str, **changes: object) -> Path:
    """A random model of a family, as a folder of config.json, safetensors and tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **(TINY | FAMILIES[family] | changes))
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """family, changes of its config -> folder; made once."""
    made: dict[str, Path] = {}

    def make(family: str = "llama", **changes: object) -> Path:
        key = json.dumps([family, changes], sort_keys=True)
        if key not in made:
            made[key] = write_tiny(tmp_path_factory.mktemp(family), family, **changes)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny(tiny_folder: Callable[..., Path]) -> Callable[..., object]:
    """family, dtype, changes -> Loaded; made once."""
    made: dict[str, object] = {}

    def load(family: str = "llama", dtype: str = "float32", **changes: object) -> object:
        from viz_engine.engine import load as engine_load

        key = json.dumps([family, dtype, changes], sort_keys=True)
        if key not in made:
            made[key] = engine_load.load(str(tiny_folder(family, **changes)), "cpu", dtype)
        return made[key]

    return load


@pytest.fixture(scope="session")
def default_model() -> Callable[[str], object]:
    """dtype -> the packaged model, loaded once (and converted, where it never was)."""
    made: dict[str, object] = {}

    def load(dtype: str = "float32") -> object:
        from viz_engine.engine import load as engine_load

        if dtype not in made:
            made[dtype] = engine_load.load(device="cpu", dtype=dtype)
        return made[dtype]

    return load
