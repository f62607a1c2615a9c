"""Oracle: in float32 the tokens and the logits are those of transformers' own `generate`.

On the packaged model, with the cache and without, against its DynamicCache and sdpa attention.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from viz_engine.engine import generate, load
from viz_engine.engine.convert import convert_default
from viz_engine.engine.load import Loaded
from viz_engine.model import files
from viz_engine.run.events import RunSettings
from viz_engine.run.log import RunLog

TOLERANCE = 1e-4  # of the tiny models' logits
# Of the default model's largest logit, about 35: transformers' own are 2e-6 of it away from those
# in float64, by rounding alone; where a processor sums up otherwise, the same order again.
SHARE = 1e-5
WINDOW = 300  # of the copy whose window a prompt fills to the last position


@dataclass(frozen=True)
class Case:
    """Prompts and what is asked for, with and without a cache."""

    prompts: tuple[str, ...]
    new_tokens: int = 8
    chat: bool = True
    context_len: int | None = None
    filler: str = "en"
    new_tokens_without: int = 4
    window: int | None = None


CASES = {
    "one token": Case(("Hello",), chat=False),
    "chat": Case(("What is a library? Answer in one sentence.",)),
    "Chinese": Case(("图书馆是什么？请用一句话回答。",)),
    "code": Case(("def fibonacci(n):\n    if n < 2:\n        return",), chat=False),
    "emoji": Case(("👩‍🚀🚀 means",), chat=False),
    "digits and spaces": Case(("  12 345.60\t+\n\n7 = ",), chat=False),
    "a thousand tokens": Case(
        ("Who reads?",), context_len=1000, new_tokens=6, new_tokens_without=2
    ),
    "ends on the window's last position": Case(
        ("Why?",), context_len=WINDOW, new_tokens=1, new_tokens_without=1, window=WINDOW
    ),
    "batch of four lengths": Case(
        (
            "Hi",
            "Name three rivers in Europe and the cities on them.",
            "写一首短诗。",
            "def add(a, b):",
        )
    ),
}


answers: dict[str, tuple[torch.Tensor, tuple[torch.Tensor, ...]]] = {}


@pytest.fixture(scope="module")
def narrow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged model's own weights with a window of WINDOW positions."""
    folder = tmp_path_factory.mktemp("narrow")
    source = convert_default()
    for path in source.iterdir():
        if path.name != "config.json":
            os.symlink(path, folder / path.name)
    config = files.read_config(source / "config.json")
    config["max_position_embeddings"] = WINDOW
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def narrow(narrow_folder: Path) -> Loaded:
    return load.load(str(narrow_folder), "cpu", "float32")


@pytest.fixture(scope="module")
def theirs() -> PreTrainedModel:
    """The same weights with everything of transformers' own."""
    folder = convert_default()
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()


def their_tokens_and_logits(
    model: PreTrainedModel, prompts: list[list[int]], new_tokens: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Greedy `generate` of the left-padded batch: new tokens `[B, n]`, logits n x `[B, vocab]`."""
    longest = max(map(len, prompts))
    pad = model.generation_config.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[:, longest:], out.logits


@pytest.mark.parametrize("cache", ["full", "none"])
@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_and_logits_agree_with_transformers(
    default_model: Callable[[str], Loaded],
    narrow: Loaded,
    theirs: PreTrainedModel,
    record_property: Callable[[str, float], None],
    name: str,
    cache: str,
) -> None:
    case = CASES[name]
    loaded = narrow if case.window else default_model("float32")
    new_tokens = case.new_tokens if cache == "full" else case.new_tokens_without
    settings = RunSettings(
        model="default",
        prompts=case.prompts,
        batch=len(case.prompts),
        chat=case.chat,
        context_len=case.context_len,
        filler=case.filler,
        new_tokens=new_tokens,
        cache=cache,
        warm_up=False,
    )
    ours: list[torch.Tensor] = []
    options = generate.Options(on_logits=lambda step, logits: ours.append(logits.clone()))
    events = generate.generate(loaded, settings, run_id="r", options=options)
    log = RunLog.of(events)
    assert log.finished.finish_reason in ("length", "stop"), log.finished.error
    prompts = [list(ids) for ids in log.started.prompt_token_ids]
    assert name != "one token" or prompts == [[19556]]
    if case.context_len:
        assert len(prompts[0]) == case.context_len
    if name not in answers:  # once for both: without a cache fewer tokens are asked for
        answers[name] = their_tokens_and_logits(theirs, prompts, case.new_tokens)
    tokens, logits = answers[name]
    gap = 0.0
    written = [step for step in log.steps if any(step.token_ids)]
    assert len(written) == min(len(logits), new_tokens)
    for n, step in enumerate(written):
        for b, ids in enumerate(step.token_ids):
            if ids:  # an ended sequence gives nothing more
                assert ids == (int(tokens[b, n]),), (name, n, b)
                gap = max(gap, float((ours[n][b] - logits[n][b]).abs().max()))
    record_property("logit_gap", gap)
    largest = max(float(step.abs().max()) for step in logits)
    assert gap < SHARE * largest


def test_prompt_ids_are_those_of_transformers_chat_template(
    default_model: Callable[[str], Loaded],
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(convert_default())
    loaded = default_model("float32")
    for text in (
        "Hi",
        "图书馆",
        "  two  spaces\n",
        "<|im_end|> inside",
        "👩‍🚀",
        "a\0b",
        "\u202eabc",
    ):
        ours = loaded.tokenizer.encode_prompt(text, chat=True)
        message = [{"role": "user", "content": text}]
        assert ours == tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_dict=False
        )
        assert loaded.tokenizer.encode_prompt(text, chat=False) == tokenizer.encode(text)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("cache", ["full", "none"])
def test_each_family_equals_transformers_in_a_padded_batch(
    tiny: Callable[..., Loaded],
    tiny_folder: Callable[..., Path],
    record_property: Callable[[str, float], None],
    family: str,
    cache: str,
) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(
        tiny_folder(family), dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    settings = RunSettings(
        model="tiny",
        prompts=("a longer prompt " * 6, "x", "some words"),
        batch=3,
        chat=False,
        new_tokens=20,
        chunk_len=33,
        cache=cache,
        stop_token_ids=(),
    )
    ours: list[torch.Tensor] = []
    options = generate.Options(on_logits=lambda step, logits: ours.append(logits))
    events = generate.generate(tiny(family), settings, run_id="r", options=options)
    log = RunLog.of(events)
    prompts = [list(ids) for ids in log.started.prompt_token_ids]
    theirs.generation_config.eos_token_id = None
    tokens, logits = their_tokens_and_logits(theirs, prompts, 20)
    mine = [[s.token_ids[b][0] for s in log.steps if s.token_ids[b]] for b in range(3)]
    assert mine == tokens.tolist()
    assert len({token for row in mine for token in row}) > 10  # not a stuck model
    gap = max(float((a - b).abs().max()) for a, b in zip(ours, logits, strict=True))
    record_property("logit_gap", gap)
    assert gap < TOLERANCE
