"""Names and folders that a visitor may type: a sentence for each, never an exception."""

import json
import os
from pathlib import Path

import pytest

from viz_engine.model import files, hub_config
from viz_engine.run import checks
from viz_engine.run.events import RunSettings
from viz_engine.text import UserError

NAMES = ("~nouser/x", "../../no/such", "a\0b", " ", "x" * 5000, "a/b/c", "https://x/y", "<b>", "‮x")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_model_is_refused_in_words(name: str) -> None:
    with pytest.raises(UserError):
        files.locate(name)


def test_a_hub_id_that_is_not_here_is_no_error() -> None:
    assert files.locate("nobody/no-such-model") is None
    assert not files.is_ready("nobody/no-such-model")


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_broken_index_of_weights_is_refused_in_words(tmp_path: Path, index: str) -> None:
    config = files.DEFAULT_CONFIG
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError):
        files.spec_of(str(tmp_path))


@pytest.mark.parametrize("value", [10**9, 0, -1, 1.5, True, "30", None])
def test_a_number_of_layers_that_cannot_be_is_refused_by_name(value: object) -> None:
    config = files.DEFAULT_CONFIG | {"num_hidden_layers": value}
    with pytest.raises(UserError, match="num_hidden_layers"):
        files.described(config, "toy")


@pytest.mark.parametrize("numbers", [{"seed": 10**23}, {"seed": -1}, {"stop_token_ids": (2**60,)}])
def test_numbers_that_no_file_could_hold_are_refused(numbers: dict) -> None:
    with pytest.raises(UserError):
        checks.check_settings(RunSettings(model="m", prompts=("a",), **numbers))


def test_a_fifo_or_a_device_in_a_models_folder_keeps_nobody_waiting(tmp_path: Path) -> None:
    for number, name in enumerate(("config.json", "model.safetensors.index.json")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(files.DEFAULT_CONFIG))
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        with pytest.raises(UserError):
            files.check_folder(folder)
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(UserError):
        files.check_folder(tmp_path)
    with pytest.raises(UserError):
        hub_config.read_text(str(tmp_path))
    os.mkfifo(tmp_path / "a.safetensors")
    assert files.weight_files(tmp_path) == []


def test_a_huge_config_is_not_read_into_memory(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no room
    with pytest.raises(UserError):
        files.check_folder(tmp_path)
    with pytest.raises(UserError, match="config.json only"):
        hub_config.read_text(str(tmp_path))
