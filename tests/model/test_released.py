"""What the files beside a config.json state of the weights counts before what the config comes to.

The oracles: vLLM's reading of hf_quant_config.json, the sizes that files state of themselves, and
safetensors' own writer.
"""

import argparse
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from viz_engine.cli import size as command
from viz_engine.memory import devices, estimate, lengths, plan
from viz_engine.memory.capacity import Workload
from viz_engine.memory.deployment import Settings
from viz_engine.model import config, hub_config, released
from viz_engine.text import UserError

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 320,
    "tie_word_embeddings": False,
}
CONFIG = json.dumps(LLAMA).encode()
UNKNOWN = json.dumps(LLAMA | {"model_type": "never_heard_of"}).encode()
INDEX = "model.safetensors.index.json"


def index(num_bytes: object) -> bytes:
    return json.dumps({"metadata": {"total_size": num_bytes}, "weight_map": {}}).encode()


def weight_bytes(model: config.ModelConfig, **asked: object) -> int:
    return plan.plan(model, Settings(context_len=1, **asked)).part("weights").num_bytes


def notes(model: config.ModelConfig) -> list[str]:
    return [w.key for w in model.warnings]


def test_hf_quant_config_beside_a_config_is_read_as_vllm_does() -> None:
    model = config.read_files(hub_config.read_folder(CONFIGS / "llama-70b-fp8"))
    assert round(weight_bytes(model, engine="vllm") / 2**30, 1) == 67.7
    assert model.derivation("weight_format").source == "hf_quant_config.json"
    alone = config.read((CONFIGS / "llama-70b-fp8" / "config.json").read_bytes())
    assert round(weight_bytes(alone, engine="vllm") / 2**30, 2) == 131.45


@pytest.mark.parametrize("path", ["llama-70b-fp8", "llama-70b-fp8/config.json"])
def test_the_command_line_takes_a_folder_or_the_config_in_it(path: str, capsys) -> None:
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers())
    asked = parser.parse_args(["size", "--config", str(CONFIGS / path), "--engine", "vllm"])
    assert command.run(asked) == 0
    assert "67.70 GiB" in capsys.readouterr().out


def test_what_config_json_says_itself_comes_first() -> None:
    said = json.dumps(LLAMA | {"quantization_config": {"quant_method": "fp8"}}).encode()
    beside = {released.QUANTIZATION: b'{"quantization": {"quant_algo": "NVFP4"}}'}
    assert config.read_files({"config.json": said} | beside).stored.method == "fp8"
    assert config.read_files({"config.json": CONFIG} | beside).stored.bits == 4.5


def test_a_mix_of_types_is_said_not_guessed() -> None:
    beside = {released.QUANTIZATION: b'{"quantization": {"quant_algo": "MIXED_PRECISION"}}'}
    model = config.read_files({"config.json": CONFIG} | beside)
    assert model.stored is None and "size.warn_quantization" in notes(model)


def test_a_stated_size_counts_and_a_difference_is_said() -> None:
    counted = weight_bytes(config.read(CONFIG))
    same = config.read_files({"config.json": CONFIG, INDEX: index(counted)})
    assert weight_bytes(same) == counted and notes(same) == []
    other = config.read_files({"config.json": CONFIG, INDEX: index(2 * counted)})
    assert weight_bytes(other) == 2 * counted and notes(other) == ["size.warn_files"]
    assert weight_bytes(other, tp=2) == 2 * weight_bytes(same, tp=2)
    assert weight_bytes(other, weight_format="fp8") == counted // 2
    assert other.derivation("weight_bytes").source == INDEX


def test_a_type_that_is_not_described_takes_the_bytes_of_its_files() -> None:
    model = config.read_files({"config.json": UNKNOWN, INDEX: index(1_000_000)})
    assert weight_bytes(model) == 1_000_000 and weight_bytes(model, tp=4) == 250_000
    assert model.num_parameters == 500_000  # in 16 bits
    assert "size.warn_weights" not in notes(model)
    fp8 = {released.QUANTIZATION: b'{"quantization": {"quant_algo": "FP8"}}'}
    mixed = config.read_files({"config.json": UNKNOWN, INDEX: index(1_000_000)} | fp8)
    assert weight_bytes(mixed) == 1_000_000 and mixed.num_parameters is None
    assert mixed.knows_weights("auto") and not mixed.knows_weights("bf16")
    assert notes(mixed) == []


def test_the_header_of_a_safetensors_file_states_its_bytes(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(30, 7), "b": torch.zeros(5, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes(UNKNOWN)
    files = hub_config.read_folder(tmp_path)
    assert len(files["model.safetensors"]) < (tmp_path / "model.safetensors").stat().st_size
    assert config.read_files(files).file_bytes == 30 * 7 * 4 + 5 * 2
    (tmp_path / INDEX).write_bytes(index(77))  # an index speaks of all files
    assert config.read_files(hub_config.read_folder(tmp_path)).file_bytes == 77


@pytest.mark.parametrize(
    "files",
    [
        {released.QUANTIZATION: b"{"},
        {released.QUANTIZATION: b'{"quantization": 7}'},
        {INDEX: b"[]"},
        {INDEX: b"{"},
        {INDEX: b'{"metadata": 7}'},
        {INDEX: index("much")},
        {INDEX: index(-1)},
        {"a.safetensors": b""},
        {"a.safetensors": b"\xff" * 100},
        {"a.safetensors": (3).to_bytes(8, "little") + b"[7]"},
        {"a.safetensors": (2).to_bytes(8, "little") + b"{}"},
        {"a.safetensors": (900).to_bytes(8, "little") + b'{"a": '},
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused_in_words(files: dict) -> None:
    with pytest.raises(UserError) as refused:
        config.read_files({"config.json": CONFIG} | files)
    assert "no text for" not in str(refused.value)


def test_without_a_config_the_files_are_named() -> None:
    with pytest.raises(UserError, match="hf_quant_config.json"):
        config.read_files({released.QUANTIZATION: b"{}"})
    assert config.read_files({"llama.json": CONFIG}).num_layers == 4


def test_only_the_released_precision_is_offered_where_only_files_tell_the_weights() -> None:
    fp8 = {released.QUANTIZATION: b'{"quantization": {"quant_algo": "FP8"}}'}
    model = config.read_files({"config.json": UNKNOWN, INDEX: index(1_000_000)} | fp8)
    choice = estimate.Choice(
        model=model,
        settings=Settings(context_len=64),
        device=devices.devices()[0],
        num_devices=1,
        load=Workload(lengths=lengths.averages(8, 8)),
    )
    assert choice.knows_weights and estimate.model_weight_bytes(choice) == 1_000_000
    assert [name for name, _, _ in estimate.precisions(choice, ("auto", "bf16"))] == ["auto"]


def test_the_hub_is_asked_for_the_small_files_only(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / INDEX).write_bytes(index(123))
    asked = []

    def beside(model: str, name: str) -> str | None:
        asked.append((model, name))
        return str(tmp_path / name) if name == INDEX else None

    monkeypatch.setattr(hub_config, "_fetch", lambda name: str(tmp_path / "config.json"))
    monkeypatch.setattr(hub_config, "_fetch_beside", beside)
    assert config.read_files(hub_config.read_files("owner/name")).file_bytes == 123
    assert asked == [("owner/name", name) for name in hub_config.BESIDE]


def test_what_the_hub_could_not_be_asked_for_is_said(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "config.json").write_bytes(CONFIG)

    def beside(model: str, name: str) -> str | None:
        raise ConnectionError(name)

    monkeypatch.setattr(hub_config, "_fetch", lambda name: str(tmp_path / "config.json"))
    monkeypatch.setattr(hub_config, "_fetch_beside", beside)
    found = config.read_files(hub_config.read_files("owner/name"))
    said = next(str(one) for one in found.warnings if one.key == "size.warn_unasked")
    assert all(name in said for name in hub_config.BESIDE) and found.file_bytes is None
