"""Models: what is loaded, what is refused and why, conversion, download from a hub on loopback."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from viz_engine.engine import load
from viz_engine.engine.load import Loaded
from viz_engine.model import files as model_files
from viz_engine.model.spec import ModelSpec
from viz_engine.text import Message, UserError


def edited(folder: Path, target: Path, **changes: object) -> Path:
    """A copy of a model's folder (links) with an edited config.json; None takes a key out,
    "null" is JSON's."""
    target.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name != "config.json":
            os.symlink(path, target / path.name)
    config = json.loads((folder / "config.json").read_bytes()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    config = {key: None if value == "null" else value for key, value in config.items()}
    (target / "config.json").write_text(json.dumps(config))
    return target


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "program code of its author"),
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"architectures": None}, "writes text token by token"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"model_type": "nonsense"}, "kind “nonsense”"),
        ({"model_type": "bloom"}, "not in the model's files"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers"),
        ({"num_hidden_layers": 4}, "not in the model's files"),
        ({"hidden_size": 64}, "not in the model's files"),
    ],
)
def test_an_unfit_folder_is_refused_with_the_reason(
    tiny_folder: Callable[..., Path], tmp_path: Path, changes: dict, sentence: str
) -> None:
    folder = edited(tiny_folder(), tmp_path / "model", **changes)
    with pytest.raises(UserError) as refused:
        load.load(str(folder), "cpu", "float32")
    assert sentence in str(refused.value)
    assert refused.value.message.text("zh") != str(refused.value)


def test_files_that_hold_other_weights_than_their_config_describes_have_no_formula(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    changes = {"attention_bias": True, "model_type": "mistral", "sliding_window": "null"}
    folder = edited(tiny_folder(), tmp_path / "model", **changes)  # transformers makes no bias
    loaded = load.load(str(folder), "cpu", "float32")
    formula = next(part for part in loaded.parts if part.name == "formula")
    assert not formula.on and formula.reason.key == "part.formula.held"
    assert loaded.spec.weights is None
    assert loaded.spec.num_parameters == sum(p.numel() for p in loaded.model.parameters())


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no config.json"):
        load.load(str(tmp_path))
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(UserError, match="cannot be read"):
        load.load(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (("pytorch_model.bin",), "pickle"),
        ((), "no complete set"),
        (("model.safetensors.index.json",), "no complete set"),
    ],
)
def test_weights_must_be_safetensors(
    tiny_folder: Callable[..., Path], tmp_path: Path, files: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder() / "config.json").read_bytes())
    for name in files:
        (tmp_path / name).write_text('{"weight_map": {"a": "model-1-of-2.safetensors"}}')
    with pytest.raises(UserError, match=sentence):
        load.load(str(tmp_path))


def test_a_truncated_weight_file_is_refused(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = edited(tiny_folder(), tmp_path / "model")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be loaded"):
        load.load(str(folder))


@pytest.mark.parametrize(
    "name", ["", "a/b/c", "../x", "/no/such/folder", "no such", "x\0y", "x" * 2000]
)
def test_a_name_that_is_neither_folder_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="neither a folder"):
        model_files.locate(name)


def test_weights_that_do_not_fit_are_refused_before_loading(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "free_bytes", lambda device: 0)
    monkeypatch.setattr(load.machine, "process_bytes", lambda: 2**20)
    with pytest.raises(UserError, match="1.0 MiB are available"):
        load.load(str(tiny_folder()))


# --- the packaged default --------------------------------------------------------------------


def test_the_default_is_ready_and_says_that_it_was_dequantised(
    default_model: Callable[[str], Loaded],
) -> None:
    loaded = default_model("float32")
    assert any("4 bits" in str(reason) for reason in loaded.reasons)
    assert loaded.spec == model_files.spec_of(model_files.DEFAULT_MODEL)
    assert (loaded.spec.num_layers, loaded.spec.num_columns) == (30, 90)
    assert loaded.stop_token_ids == (2,)


def test_the_default_has_a_spec_before_it_is_converted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path / "empty"))
    assert not model_files.is_ready(model_files.DEFAULT_MODEL)
    assert model_files.spec_of(model_files.DEFAULT_MODEL).num_parameters == 134_515_008


def test_a_folder_on_disk_comes_before_the_hub(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    os.symlink(tiny_folder("qwen3"), tmp_path / "owner" / "mine")
    assert model_files.locate("owner/mine") == Path("owner/mine")
    spec = model_files.spec_of("owner/mine")
    assert isinstance(spec, ModelSpec) and spec.model_type == "qwen3"


def test_progress_of_loading_has_a_text(tiny_folder: Callable[..., Path]) -> None:
    said: list[Message] = []
    load.load(str(tiny_folder()), "cpu", "float32", lambda message, share: said.append(message))
    assert said and all("no text for" not in m.text(lang) for m in said for lang in ("en", "zh"))
