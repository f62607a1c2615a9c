"""`python -m viz_engine size` and the function for notebooks: every number with unit and source."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from viz_engine.__main__ import main
from viz_engine.bench import memory
from viz_engine.cli.size import size
from viz_engine.model import config
from viz_engine.paths import ROOT
from viz_engine.text import UserError

GIB = 1024**3
CONFIG = config.preset_table()["qwen3-8b"]["config"]


def printed(capsys: pytest.CaptureFixture, *args: str) -> str:
    assert main(["size", *args]) == 0
    return capsys.readouterr().out


def test_json_says_value_unit_and_provenance_of_every_quantity(
    capsys: pytest.CaptureFixture,
) -> None:
    answer = json.loads(
        printed(
            capsys,
            *("--model", "llama-3.1-8b", "--context", "131072", "--engine", "vllm"),
            *("--memory-gib", "80", "--json"),
        )
    )
    assert answer["kv_bytes"]["value"] == 16 * GIB
    quantities = [v for v in answer.values() if isinstance(v, dict) and "value" in v]
    assert len(quantities) >= 10
    for found in quantities:
        assert found["unit"] and found["how"] and found["source"]
    assert answer["from"]["num_layers"] == {
        "value": 32,
        "how": "read",
        "source": "num_hidden_layers",
    }
    assert answer["longest_context"]["value"] > 131072


def test_lines_and_file_and_options(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    text = printed(
        capsys,
        *("--config", str(path), "--context", "32768", "--sequences", "4", "--tp", "2"),
        *("--kv-dtype", "q8_0/q4_0", "--weight-dtype", "q4_k_m", "--memory-gib", "4"),
    )
    assert "fits" in text and "no" in text and "Weights" not in text.splitlines()[0]
    assert "36 layers × 32,768 rows" in text


def test_a_log_is_compared(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("# GPU blocks: 100, # CPU blocks: 2048\n", encoding="utf-8")
    rows = json.loads(printed(capsys, "--model", "llama-3.1-8b", "--log", str(path), "--json"))
    found = {row["number"]: row["verdict"] for row in rows["numbers"]}
    assert found == {"gpu_blocks": "unknown", "cpu_blocks": "equal"}


@pytest.mark.parametrize(
    "args",
    [
        ("--model", "no-such-model"),
        ("--config", "/no/such/file"),
        ("--model", "gpt2", "--gpu", "Abacus 3000"),
        ("--model", "gpt2", "--memory-gib", "-1"),
        ("--model", "gpt2", "--context", "0"),
        ("--model", "gpt2", "--kv-dtype", "q99"),
        ("--model", "gpt2", "--block-size", "0"),
        ("--model", "gpt2", "--batched-tokens", "0"),
        ("--model", "gpt2", "--parameters", "0"),
        ("--model", "llama-3.1-8b", "--dcp", "7"),
        ("--model", "llama-3.1-8b", "--dcp", "4", "--tp", "2"),
        ("--model", "gpt2", "--kv-dtype", "q8_0/q4_0", "--engine", "vllm"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_code_2(
    args: tuple[str, ...], capsys: pytest.CaptureFixture
) -> None:
    assert main(["size", *args]) == 2
    told = capsys.readouterr().err.strip()
    assert told and "\n" not in told and "no text for" not in told


def test_the_function_takes_a_preset_a_text_a_mapping_and_a_model() -> None:
    answers = [
        size(model, context_len=1000)["kv_bytes"]["value"]
        for model in ("qwen3-8b", json.dumps(CONFIG), CONFIG, config.read(CONFIG))
    ]
    assert answers == [1000 * 147456] * 4
    with pytest.raises(UserError):
        size("{", context_len=1)


def test_a_gpu_of_the_table_is_cited() -> None:
    found = size("qwen3-8b", context_len=1000, gpu="NVIDIA H200 SXM")
    assert found["memory_bytes"]["how"] == "cited"
    assert found["memory_bytes"]["source"].count("http") == 1
    assert found["fits"]


@pytest.mark.process
def test_it_works_without_torch() -> None:
    code = (
        "import sys; from viz_engine.cli.size import size; size('gpt2', context_len=9); "
        "assert not {'torch', 'transformers', 'streamlit'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_bench_times_four_models(capsys: pytest.CaptureFixture) -> None:
    assert len(memory.recompute_ms(2)) == 2
    main(["bench", "--memory", "--json", "--chromium", ""])  # the calculator alone
    told = json.loads(capsys.readouterr().out)
    assert told["target_ms"] == 20 and len(told["models"]) == 4
    assert told["met"] == (told["median_ms"] < 20)


def test_a_cache_type_that_an_engine_lacks_is_named_and_one_that_it_has_is_not() -> None:
    told = {
        (name, engine): "cannot keep its cache" in str(found["warnings"])
        for name, engine in (("int2", "vllm"), ("fp8", "vllm"), ("q8_0", "llama.cpp"))
        for found in [size("qwen3-8b", context_len=100, kv_format=name, engine=engine)]
    }
    assert list(told.values()) == [True, False, False]


def test_context_parallel_divides_the_rows_and_their_growth_alike() -> None:
    one, two = (size("qwen3-8b", context_len=8192, tp=8, dcp=dcp) for dcp in (1, 2))
    for name in ("kv_bytes", "growth_bytes"):
        assert one[name]["value"] == 2 * two[name]["value"]


def test_a_number_of_parameters_that_was_given_is_the_one_that_is_shown() -> None:
    found = size("llama-3.1-8b", context_len=1, num_parameters=5)
    assert found["num_parameters"]["value"] == 5 and found["num_parameters"]["how"] == "given"
    assert found["weights_bytes"]["value"] == 10 and "num_active_parameters" not in found


@pytest.mark.parametrize("name", ["h200", "NVIDIA H200 SX", "NVIDIA H200 SMX"])
def test_a_device_that_is_nearly_named_is_offered(name: str) -> None:
    with pytest.raises(UserError) as caught:
        size("qwen3-8b", context_len=1, gpu=name)
    assert "NVIDIA H200 SXM" in str(caught.value) and str(caught.value).count("GeForce") == 0


def test_without_the_number_of_weights_there_is_no_total_and_no_verdict() -> None:
    text = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
    found = size(text | {"num_attention_heads": 4}, context_len=512, gpu="NVIDIA H200 SXM")
    assert found["total_bytes"]["value"] is None and found["weights_bytes"]["value"] is None
    with pytest.raises(UserError):
        size(text | {"num_attention_heads": 4}, context_len=512, gpu="Abacus 3000")
    assert "fits" not in found and found["kv_bytes"]["value"] == 2 * 2 * 64 * 2 * 512


@pytest.mark.parametrize(("painted", "code"), [([], 1), ([20.0] * 12, 0), ([200.0] * 12, 1)])
def test_a_slider_that_paints_nothing_or_late_misses_its_target(
    painted: list[float], code: int, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(memory, "recompute_ms", lambda: [1.0] * 60)
    monkeypatch.setattr(memory, "slider_ms", lambda args: painted)
    assert memory.run(argparse.Namespace(json=False)) == code
    assert f"{len(painted)} of 12 presses" in capsys.readouterr().out


CASES = ROOT / "tests" / "data" / "configs"


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("tinyllama", "tensorrt-llm", "--block-size=64"), "trt_block_bytes", 1_441_792),
        (("gemma-4-26b-a4b", "llama.cpp", *"--context 12500 --sequences 8 --kv-dtype q8_0".split(),
          "--batched-tokens=2048", "--unified"), "kv_bytes", round(2101.1 * 2**20)),
    ],
)  # fmt: skip
def test_the_command_asks_what_an_engine_is_told(
    words: tuple[str, ...], name: str, value: int, capsys: pytest.CaptureFixture
) -> None:
    model, engine, *options = words
    asked = ("--config", str(CASES / f"{model}.json"), "--engine", engine, *options, "--json")
    assert json.loads(printed(capsys, *asked))[name]["value"] == pytest.approx(value, rel=1e-4)


def test_prefix_caching_and_drafts_take_more_state_blocks_of_vllm(
    capsys: pytest.CaptureFixture,
) -> None:
    """One a state group; with prefixes kept two, and one for each drafted token."""
    asked = ("--model", "qwen3-next-80b-a3b", "--engine", "vllm", "--json")
    told = [json.loads(printed(capsys, *asked, *more)) for more in ((), ("--prefix-caching",))]
    blocks = [one["vllm_request_bytes"]["value"] / one["vllm_block_bytes"]["value"] for one in told]
    assert blocks[1] - blocks[0] == 3  # three state groups


@pytest.mark.parametrize("option", ["--unified", "--prefix-caching"])
def test_what_another_engine_is_told_is_refused_not_passed_over(
    option: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["size", "--model", "gpt2", "--engine", "sglang", option]) == 2
    assert "only" in capsys.readouterr().err


H100 = ("--gpu", "NVIDIA H100 80 GB SXM", "--engine", "vllm", "--model", "llama-3.1-8b")


def test_who_is_served_is_a_range_under_the_bound_for_reading(
    capsys: pytest.CaptureFixture,
) -> None:
    args = ("--prompt", "8192", "--answer", "128", "--think", "30", "--price", "2.5", "--json")
    found = json.loads(printed(capsys, *H100, *args))
    low, high = found["requests_per_s"]["value"]
    assert low < high <= found["prompts_per_s_bound"]["value"]
    assert found["users"]["value"][0] == int(found["requests_at_once"]["value"] + 30 * low)
    cost = found["cost_million_written"]["value"]
    assert cost[1] == pytest.approx(2.5 / 3600 / (high * 128) * 1e6)


def test_lengths_come_from_a_file_and_a_bad_one_is_said(capsys, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_tokens,new_tokens\n8192,128\n100,30\n")
    out = printed(capsys, *H100, "--lengths", str(path))
    assert "users" in out and "requests/s" in out
    path.write_text("8192,128\n100\n")
    assert main(["size", *H100, "--lengths", str(path)]) == 2
    assert "Line 2" in capsys.readouterr().err
    for wrong in (("--prompt", "0"), ("--prompt", "9", "--think", "-1"), ("--lengths", "/nowhere")):
        assert main(["size", *H100, *wrong]) == 2
        assert "Traceback" not in capsys.readouterr().err
