"""Start-up logs: the capacity numbers are found, explained, compared, and a difference is named.

The lines are in the engines' own formats, with numbers that real servers printed (the same sources
as data/engine_facts.json, named beside each).
"""

import contextlib
import time

import pytest

from viz_engine.memory import server_log
from viz_engine.memory.log_comparison import compare
from viz_engine.model import config
from viz_engine.text import UserError

LLAMA_8B = "llama-3.1-8b"
GEMMA_3_4B = {  # of data/engine_facts.json, ll-032
    "model_type": "gemma3",
    "text_config": {
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
}
# github.com/vllm-project/vllm/issues/10517 and 10511
VLLM_V0 = """
INFO 11-21 config.py:1028] tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto
INFO 11-21 model_runner.py:1077] Loading model weights took 14.9888 GB
INFO 11-21 worker.py:232] model weights take 14.99GiB; non_torch_memory takes 0.14GiB; PyTorch \
activation peak memory takes 1.19GiB; the rest of the memory reserved for KV Cache is 3.81GiB.
INFO 11-21 gpu_executor.py:122] # GPU blocks: 1952, # CPU blocks: 2048
"""
# github.com/dennislee22/vLLM-benchmarking, log of Qwen2-7B on half an A100
VLLM_V1 = """
INFO core.py:58] config: model='Qwen/Qwen2-7B-Instruct', max_seq_len=32768, tensor_parallel_size=1
INFO gpu_model_runner.py:1329] Model loading took 14.2487 GiB and 3.16 seconds
INFO gpu_worker.py:227] Available KV cache memory: 24.83 GiB
INFO kv_cache_utils.py:634] GPU KV cache size: 464,848 tokens
INFO kv_cache_utils.py:637] Maximum concurrency for 32,768 tokens per request: 14.19x
"""
# The form is that of vLLM's kv_cache_utils.py, the need that of data/engine_facts.json, v-048, the
# memory that of v-030.
VLLM_TOO_LONG = """
ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV \
cache is needed, which is larger than the available KV cache memory (3.81 GiB). Based on the \
available memory, the estimated maximum model length is 31232. Try increasing it.
"""
# github.com/ggml-org/llama.cpp/issues/14469
LLAMA_CPP = """
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 4096
llama_context: n_ubatch      = 512
llama_kv_cache_unified: size =   80.00 MiB (  4096 cells,   5 layers,  1 seqs), K (f16):   40.00 \
MiB, V (f16):   40.00 MiB
llama_kv_cache_unified: size =  174.00 MiB (  1536 cells,  29 layers,  1 seqs), K (f16):   87.00 \
MiB, V (f16):   87.00 MiB
"""
# github.com/ggml-org/llama.cpp/issues/12351: before the cache knew windows
LLAMA_CPP_OLD = """
llama_new_context_with_model: n_ctx         = 4096
llama_new_context_with_model: KV self size  =  544.00 MiB, K (f16):  272.00 MiB, V (f16):  272.00 \
MiB
"""
# github.com/sgl-project/sglang/issues/6027
SGLANG = """
[TP0] server_args=ServerArgs(tp_size=16, kv_cache_dtype='auto', page_size=1)
[TP0] KV Cache is allocated. #tokens: 274934, KV size: 17.99 GB
"""
# github.com/NVIDIA/TensorRT-LLM/issues/4275
TRT = """
[TRT-LLM] [I] Memory usage when calculating max tokens in paged kv cache: total: 79.11 GiB, \
available: 17.83 GiB
[TRT-LLM] [I] Number of blocks in KV cache primary pool: 8219
[TRT-LLM] [I] Number of tokens per block: 32.
[TRT-LLM] [I] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008).
"""


def verdicts(text: str, model: object) -> dict[str, str]:
    found = config.preset(model) if isinstance(model, str) else config.read(model)
    return {line.finding.kind: line.verdict for line in compare(server_log.read(text), found)}


def causes(text: str, model: object) -> dict[str, str]:
    found = config.preset(model) if isinstance(model, str) else config.read(model)
    compared = compare(server_log.read(text), found)
    return {line.finding.kind: line.cause.key for line in compared if line.cause}


@pytest.mark.parametrize(
    ("text", "engine", "kinds"),
    [
        (
            VLLM_V0,
            "vllm",
            ["weights"] * 2 + ["activations", "non_torch", "available", "gpu_blocks", "cpu_blocks"],
        ),
        (VLLM_V1, "vllm", ["weights", "available", "kv_tokens", "concurrency"]),
        (LLAMA_CPP, "llama.cpp", ["kv_part", "kv_part"]),
        (LLAMA_CPP_OLD, "llama.cpp", ["kv_size"]),
        (SGLANG, "sglang", ["kv_size"]),
        (TRT, "tensorrt-llm", ["gpu_blocks", "kv_size"]),
    ],
)
def test_every_capacity_number_is_found(text: str, engine: str, kinds: list[str]) -> None:
    log = server_log.read(text)
    assert log.engine == engine
    assert sorted(finding.kind for finding in log.findings) == sorted(kinds)
    for finding in log.findings:
        assert finding.line_number and finding.line in text.replace("\n", " ") + finding.line
        assert finding.meaning.text("en") != finding.meaning.text("zh")


def test_numbers_that_agree_are_equal() -> None:
    assert set(verdicts(LLAMA_CPP, GEMMA_3_4B).values()) == {"equal"}
    assert set(verdicts(SGLANG, "deepseek-v3").values()) == {"equal"}
    found = verdicts(VLLM_V0, LLAMA_8B)
    assert found["gpu_blocks"] == "within" and found["cpu_blocks"] == "equal"
    assert set(verdicts(VLLM_V1, "qwen2.5-7b").values()) == {"equal", "within", "unknown"}


def test_the_need_and_the_longest_request_are_compared() -> None:
    found = verdicts(VLLM_TOO_LONG, LLAMA_8B)
    assert found == {"need": "equal", "available": "unknown", "longest": "within"}


def test_what_follows_from_a_rounded_number_is_a_range_that_holds_the_logged_one() -> None:
    compared = compare(server_log.read(VLLM_V0), config.preset(LLAMA_8B))
    (blocks,) = [line for line in compared if line.finding.kind == "gpu_blocks"]
    low, high = blocks.ours_range  # 3.805 and 3.815 GiB of blocks of 2 MiB
    assert (low, high) == (1948, 1953) and low <= blocks.finding.value <= high
    exact = [line for line in compared if line.verdict == "equal"]
    assert exact and all(line.ours_range is None for line in exact)


def test_buffers_of_llama_cpp_and_what_sglang_loaded_are_explained() -> None:
    # The forms are those of llama.cpp's llama-model.cpp and SGLang's model_runner.py.
    text = "CUDA0 model buffer size = 4403.49 MiB\nCUDA0 compute buffer size = 560.00 MiB"
    text += "\nfile size = 4.58 GiB (4.89 BPW)"
    found = verdicts(text, LLAMA_8B)
    assert found == {"model_buffer": "unknown", "compute_buffer": "unknown", "model_size": "within"}
    loaded = "Load weight end. type=LlamaForCausalLM, avail mem=63.50 GB, mem usage=15.08 GB."
    assert verdicts(loaded, LLAMA_8B) == {"loaded": "unknown"}


def test_a_measurement_is_explained_and_not_judged() -> None:
    found = verdicts(VLLM_V0, LLAMA_8B)
    assert found["activations"] == found["non_torch"] == "unknown"


def test_windows_that_a_build_ignores_are_named() -> None:
    counted_full = LLAMA_CPP.replace("174.00 MiB (  1536 cells", "464.00 MiB (  4096 cells")
    assert causes(counted_full, GEMMA_3_4B) == {"kv_part": "log.cause.window"}
    assert set(verdicts(LLAMA_CPP_OLD, GEMMA_3_4B).values()) == {"equal"}


def test_a_number_type_is_named_where_nothing_else_explains_the_numbers() -> None:
    """Half the bytes may be fp8, int8 or two devices: only where the log rules out the others is
    the type named."""
    found = causes(TRT, LLAMA_8B)
    assert found == {"gpu_blocks": "log.cause.several", "kv_size": "log.cause.several"}
    told = TRT.replace("[TRT-LLM] [I] Memory", "kv_cache_dtype='fp8' Memory")
    assert causes(told, LLAMA_8B) == {}


def test_another_number_of_devices_is_named() -> None:
    unsaid = VLLM_V0.replace("tensor_parallel_size=1", "tensor_parallel_size=2")
    assert causes(unsaid, LLAMA_8B)["cpu_blocks"] == "log.cause.ranks"


def test_another_model_has_no_usual_cause() -> None:
    assert causes(VLLM_V1, "qwen3-8b")["kv_tokens"] == "log.cause.unknown"


def test_text_without_numbers_and_too_much_text_are_refused() -> None:
    for text in ("", "hello", "x" * (server_log.MAX_CHARS + 1)):
        with pytest.raises(UserError):
            server_log.read(text)


def test_hostile_text_is_data() -> None:
    line = "GPU KV cache size: 999999999999999999999999999999 tokens <script>" + "9" * 50_000
    found = server_log.read(line + "\nmax_model_len=" + "9" * 5000)
    assert len(found.findings[0].line) <= server_log.LINE_CHARS
    assert compare(found, config.preset(LLAMA_8B))


# Lines made to keep a reader busy: each is repeated up to the size that is read.
WORST = {
    "digits": "1",
    "digits and commas": "1,",
    "numbers": "1 ",
    "no text at all": "\n",
    "spaces": "KV self size =" + " " * 400,
    "recurrent": "recurrent",
    "cache names": "kv_cache",
    "a format without its end": "K (f16)",
    "brackets": "(",
    "concurrency": "Maximum concurrency for 1 tokens",
    "settings": "tp_size=1 max_seq_len=1 ",
    "a need": "(1.0 GiB KV cache is neede",
    "flags": "--tensor-parallel-size --enable-prefix-caching ",
    "dictionaries": "'method': 'tensor_parallel_size' = ",
    "letters of a method": "method=" + "a" * 400,
    "cells": "( 1 cells, 1 layers, 1/1 seqs  1 rs_seq ",
    "ranks": "DP0 TP rank=1 pid=",
    "beginnings": "Initializing a V1 LLM engine ",
    "latent rows": "c^KV (f16",
    "a cache on a CPU": "Explicitly set (1/1",
    "blocks": "GPU blocks: CPU KV cache size: 1 token",
    "short flags": "-c -np --parallel -ub -ctk -ctv -tp -pp -kvu ",
    "a flag of a flag": "--speculative-config.num_speculative_tokens --spec-spec-",
    "types of a cache": "type_k = 'type_v = '" + "f" * 40,
    "ways to draft": "method=ngram speculative_algorithm=Non ",
    "decimals": "1." + "0" * 19 + " GB",
    "flags with either mark": "--enable_prefix_--no-enable-prefix--tensor_parallel_",
    "devices": "device_config=" + "c" * 40,
}


def seconds(text: str) -> float:
    """CPU time of reading `text`, the least of two."""
    took = []
    for _ in range(2):
        start = time.process_time()
        with contextlib.suppress(UserError):
            server_log.read(text)
        took.append(time.process_time() - start)
    return min(took)


@pytest.mark.parametrize("worst", WORST.values(), ids=list(WORST))
def test_the_quadratic_log_line_takes_time_in_proportion(worst: str) -> None:
    size = 1_240_000
    line = (worst * (4000 // len(worst)))[:3999] + "\n" if worst != "\n" else worst
    small, large = (seconds(line * (num // len(line))) for num in (size, 4 * size))
    assert large < 8 * max(small, 0.01), (small, large)  # 16 times where each digit is a start
    assert large < 2.0  # all that is read; it takes 0.3 to 0.7 s


def test_more_numbers_than_a_start_has_are_refused() -> None:
    line = "mem usage=1.00 GB\n"
    assert len(server_log.read(line * server_log.MAX_FINDINGS).findings) == server_log.MAX_FINDINGS
    with pytest.raises(UserError, match="more than 400 lines"):
        server_log.read(line * (server_log.MAX_FINDINGS + 1))
