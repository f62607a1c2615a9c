"""Start-up logs that were once read wrongly, and the kinds they stand for, each with its right
numbers: from public threads, named beside each.
"""

import re

import pytest

from viz_engine.cli import size
from viz_engine.memory import server_log
from viz_engine.memory.deployment import Settings
from viz_engine.memory.log_comparison import Comparison, chosen, compare
from viz_engine.model import config
from viz_engine.paths import ROOT

DATA = ROOT / "tests" / "data"


def compared(text: str, model: object, **choices: object) -> list[Comparison]:
    made = config.preset(model) if isinstance(model, str) else config.read(model)
    return list(compare(server_log.read(text), made, choices))


def told(lines: list[Comparison], kind: str) -> list[str]:
    return [line.verdict for line in lines if line.finding.kind == kind]


def case(log: str, model: str) -> list[Comparison]:
    text = (DATA / "logs" / f"{log}.log").read_text(encoding="utf-8")
    made = config.read((DATA / "configs" / f"{model}.json").read_bytes())
    return list(compare(server_log.read(text), made))


def test_each_start_is_judged_by_its_own_lines() -> None:
    """vllm#25350: a start, and one with a longer limit that was refused."""
    lines = case("two-starts", "qwen3-30b-a3b")
    assert [line.start for line in lines] == [0, 0, 0, 1, 1, 1]
    (tokens,) = [line for line in lines if line.finding.kind == "kv_tokens"]
    assert (tokens.verdict, tokens.ours_range) == ("within", (230_352, 230_576))
    assert told(lines, "concurrency") == ["equal"]
    need = [line for line in lines if line.finding.kind in ("need", "longest")]
    # The second does not say fp8; the first does.
    assert {line.cause.key for line in need} == {"log.cause.earlier"}


def test_two_pools_are_each_judged_for_themselves() -> None:
    """sglang#15464: 39 window layers and 9 full ones have a pool each."""
    lines = case("mimo", "mimo-v2-flash")
    assert [line.verdict for line in lines] == ["equal"] * 5
    ours = [round(line.ours / 2**30, 2) for line in lines]
    assert ours == [41.76, 27.84, 4.82, 3.21, 77.63]


def test_a_block_of_latent_rows_beside_states_is_a_multiple_of_64() -> None:
    """vllm#28228."""
    lines = case("kimi-linear", "kimi-linear-48b")
    assert told(lines, "block_len") == told(lines, "kv_tokens") == ["equal"]
    assert told(lines, "concurrency") == ["within"]


def test_prefix_caching_takes_two_blocks_a_group_of_states() -> None:
    """club-3090#652: 300 blocks / (63 + 3 x 2) = 4.348."""
    lines = case("prefix-caching", "qwen3.5-35b-a3b")
    assert told(lines, "kv_tokens") == told(lines, "concurrency") == ["equal"]


@pytest.mark.parametrize("form", ["enable_prefix_caching=False", "--no-enable-prefix-caching"])
def test_what_a_log_does_not_say_is_taken_from_the_choices_and_said(form: str) -> None:
    text = (DATA / "logs" / "prefix-caching.log").read_text(encoding="utf-8")
    model = config.read((DATA / "configs" / "qwen3.5-35b-a3b.json").read_bytes())
    silent = server_log.read(text.replace(", enable_prefix_caching=True", ""))
    assert told(list(compare(silent, model)), "kv_tokens") == ["differs"]
    asked = list(compare(silent, model, {"prefix_caching": True, "tp": 4}))
    assert told(asked, "kv_tokens") == ["equal"]  # tp is in the log: the choice does not hold
    assert asked[0].assumed == (("prefix_caching", True),)
    off = server_log.read(text.replace("enable_prefix_caching=True", form))
    assert off.starts[0].settings["prefix_caching"] is False
    assert told(list(compare(off, model, {"prefix_caching": True})), "kv_tokens") == ["differs"]


def test_the_concurrency_follows_from_the_tokens_where_the_free_memory_is_not_printed() -> None:
    """vllm#40691: 290 864 / 784 = 371 = blocks // 4."""
    lines = case("tokens-only", "qwen3.5-27b")
    (line,) = [line for line in lines if line.finding.kind == "concurrency"]
    assert line.verdict == "within"
    assert [round(end, 2) for end in line.ours_range] == [32.98, 33.04]


V1 = """\
Available KV cache memory: 24.83 GiB
GPU KV cache size: 464,848 tokens
Maximum concurrency for 32,768 tokens per request: 14.19x
"""


@pytest.mark.parametrize(
    "args",
    [
        "config: model='m', max_seq_len=32768, tensor_parallel_size=2, kv_cache_dtype=fp8_e4m3,",
        "non-default args: {'max_model_len': 32768, 'tensor_parallel_size': 2, "
        "'kv_cache_dtype': 'fp8_e4m3'}",
        "vllm serve m --max-model-len 32768 --tensor-parallel-size 2 --kv-cache-dtype fp8_e4m3",
        "vllm serve m --max_model_len 32768 --tensor_parallel 2 --kv_cache_dtype fp8_e4m3",
        "vllm serve m --max-model-len=32768 -tp 2 --kv-cache-dtype=fp8_e4m3",
    ],
)
def test_settings_are_read_in_every_form(args: str) -> None:
    said = server_log.read(f"{args}\nAvailable KV cache memory: 1.00 GiB").starts[0].settings
    assert said == {"max_model_len": 32768, "tp": 2, "kv_format": "fp8_e4m3"}


@pytest.mark.parametrize("num", [2, 3])
def test_drafted_tokens_widen_the_states_and_take_a_block_each(num: int) -> None:
    """club-3090#642: two RTX 3090, MTP with prefix caching; the numbers stand before the
    arguments. With another number of drafts they do not come out."""
    text = (DATA / "logs" / "draft-tokens.log").read_text(encoding="utf-8")
    model = config.read((DATA / "configs" / "qwen3.5-27b.json").read_bytes())
    log = server_log.read(
        text.replace("'num_speculative_tokens': 3", f"'num_speculative_tokens': {num}")
    )
    lines = list(compare(log, model))
    right = num == 3
    assert told(lines, "kv_tokens") == ["within" if right else "differs"]
    assert told(lines, "concurrency") == ["equal" if right else "differs"]
    # club-3090#487: the same with less memory.
    other = text.replace("11.05", "10.85").replace("623,873", "612,157").replace("2.38", "2.34")
    assert told(list(compare(server_log.read(other), model)), "kv_tokens") == ["equal"]


def test_settings_behind_the_numbers_are_theirs_unless_another_start_follows() -> None:
    args = "non-default args: {'max_model_len': 32768, 'kv_cache_dtype': 'fp8'}\n"
    (start,) = server_log.read(V1 + args).starts
    assert start.settings["kv_format"] == "fp8"
    one = "config: tensor_parallel_size=1 Initializing a V1 LLM engine\n"
    begun = server_log.read(one + V1 + args).starts  # the second was stopped before its pool
    assert [start.settings.get("kv_format") for start in begun] == [None]
    two = server_log.read(V1 + args + V1).starts
    assert [start.settings.get("kv_format") for start in two] == [None, "fp8"]


def test_drafts_and_their_method_are_read_in_both_forms() -> None:
    for args in (
        "speculative_config=SpeculativeConfig(method='qwen3_next_mtp', num_spec_tokens=2)",
        "'speculative_config': {'method': 'qwen3_next_mtp', 'num_speculative_tokens': 2}",
    ):
        said = server_log.read(f"{args}\nAvailable KV cache memory: 1.00 GiB").starts[0].settings
        assert said == {"draft_method": "qwen3_next_mtp", "draft_tokens": 2}


@pytest.mark.parametrize("method", ["eagle3", "draft_model", "ngram"])
def test_layers_of_another_model_that_drafts_leave_the_verdict_open(method: str) -> None:
    text = f"speculative_config=SpeculativeConfig(method='{method}', num_spec_tokens=2)\n" + V1
    lines = compared(text, "qwen2.5-7b")
    if method == "ngram":  # drafts from the text itself
        assert told(lines, "kv_tokens") == ["within"]
        return
    assert told(lines, "kv_tokens") == told(lines, "concurrency") == ["unknown"]
    (cause,) = [line.cause for line in lines if line.finding.kind == "kv_tokens"]
    assert cause.key == "log.none.drafts"


def test_what_a_start_lacks_is_named() -> None:
    tokens = V1.splitlines(keepends=True)[1]
    (line,) = compared(tokens, "qwen2.5-7b")
    assert (line.verdict, line.cause.key) == ("unknown", "log.none.free")


REFUSED = """\
{args}
ValueError: To serve at least one request with the models's max seq len ({longest}), ({need} KV \
cache is needed, which is larger than the available KV cache memory ({free}). Based on the \
available memory, the estimated maximum model length is {fits}.
"""


def test_a_request_is_checked_against_all_layers_whatever_the_stages() -> None:
    """vllm#34076: two stages, and 24 GiB are those of all 48 layers."""
    text = REFUSED.format(
        args="vllm serve m --pipeline-parallel-size 2",
        longest=262144,
        need="24.0 GiB",
        free="3.18 GiB",
        fits=34736,
    )
    lines = compared(text, "qwen3-30b-a3b")
    assert told(lines, "need") == ["equal"] and told(lines, "longest") == ["within"]


def test_the_first_form_of_a_refusal_is_read() -> None:
    """vLLM 0.7: no blank between two words, all digits of a number. vllm#15457 says 2.00 GB for
    64 layers of 8 heads of 128 on four devices (of Qwen2.5-32B)."""
    text = (
        "vllm serve m --tensor-parallel-size 4\nTo serve at least one request with the models's "
        "max seq len (32768), (2.0 GB KV cache isneeded, which is larger than the available KV "
        "Cache memory (0.7812345678901234 GB)."
    )
    lines = compared(text, "qwen2.5-32b")
    assert told(lines, "need") == ["equal"]
    assert [line.finding.value for line in lines][1] == pytest.approx(0.78123 * 2**30, rel=1e-4)


def test_the_smallest_rank_decides() -> None:
    ranks = "".join(
        f"(Worker_TP{rank} pid={rank}) Available KV cache memory: {free} GiB\n"
        for rank, free in enumerate(("24.90", "24.83", "25.10"))
    )
    lines = compared(ranks + V1.partition("\n")[2], "qwen2.5-7b")
    assert told(lines, "kv_tokens") == ["within"] and told(lines, "concurrency") == ["equal"]
    assert len({line.finding.rank for line in lines}) == 4


def test_engines_of_data_parallelism_have_a_pool_each() -> None:
    """Each number follows from the free memory of its own engine, in whatever order they come."""
    block = 28 * 2 * 4 * 128 * 2 * 16  # qwen2.5-7b in bf16
    free = {0: 24.83, 1: 20.12}
    text = "".join(
        f"(Worker_DP{dp}_TP{tp} pid={dp}{tp}) Available KV cache memory: {gib + tp / 10} GiB\n"
        for dp, gib in free.items()
        for tp in (0, 1)
    )
    for dp in (1, 0):
        tokens = int(free[dp] * 2**30) // (block // 2) * 16
        text += f"(EngineCore_DP{dp} pid={dp}) GPU KV cache size: {tokens:,} tokens\n"
    lines = compared("tensor_parallel_size=2\n" + text, "qwen2.5-7b")
    assert len({line.start for line in lines}) == 1
    assert told(lines, "kv_tokens") == ["equal"] * 2


def test_a_worker_that_counts_its_memory_again_starts_again() -> None:
    start = (
        "(Worker_TP0 pid=1) Available KV cache memory: 24.83 GiB\n"
        "(EngineCore pid=2) GPU KV cache size: 464,848 tokens\n"
    )
    log = server_log.read(start + start)
    assert [len(one.findings) for one in log.starts] == [2, 2]


def test_a_second_start_without_a_mark_begins_where_memory_is_measured_again() -> None:
    log = server_log.read(V1 + V1.replace("24.83", "20.00").replace("464,848", "374,464"))
    assert [len(start.findings) for start in log.starts] == [3, 3]


def test_a_length_that_is_missing_leaves_the_verdict_open() -> None:
    text = "".join(V1.splitlines(keepends=True)[:2])
    assert told(compared(text, "qwen2.5-7b"), "kv_tokens") == ["within"]  # one group: not needed
    unsaid = (DATA / "logs" / "prefix-caching.log").read_text().replace("max_seq_len=131072, ", "")
    lines = [line for line in unsaid.splitlines() if "Maximum" not in line]
    model = config.read((DATA / "configs" / "qwen3.5-35b-a3b.json").read_bytes())
    assert told(list(compare(server_log.read("\n".join(lines)), model)), "kv_tokens") == ["unknown"]


OPT = {  # facebook/opt-125m
    "model_type": "opt",
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "ffn_dim": 3072,
    "vocab_size": 50272,
    "torch_dtype": "float16",
}
# A start of vLLM's V0 on ROCm, 2025-06-05.
ROCM = """\
the rest of the memory reserved for KV Cache is 20.33GiB.
INFO 06-05 13:03:17 [executor_base.py:112] # rocm blocks: 37011, # CPU blocks: 7281
INFO 06-05 13:03:17 [executor_base.py:117] Maximum concurrency for 2048 tokens per request: 289.15x
"""


def test_blocks_of_rocm_and_the_concurrency_of_v0() -> None:
    lines = compared(ROCM, OPT)
    assert told(lines, "gpu_blocks") == ["within"] and told(lines, "concurrency") == ["equal"]
    profiled = ROCM.replace(
        "the rest of the memory reserved for KV Cache is 20.33GiB.",
        "Memory profiling results: duration=2.36 seconds, total_gpu_memory=24.00GiB, "
        "non_torch_memory=0.53GiB, kv_cache_size=20.33GiB, gpu_memory_utilization=0.90.",
    )
    assert told(compared(profiled, OPT), "gpu_blocks") == ["within"]


# github.com/vllm-project/vllm/issues/10517, vLLM 0.6 on an RTX 3090: two starts, "# " lost once.
V06 = """\
Loading model weights took 14.9888 GB
Memory profiling results: total_gpu_memory=23.58GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB
GPU blocks: 1952, # CPU blocks: 2048
Maximum concurrency for 20000 tokens per request: 1.56x
Loading model weights took 14.9888 GB
Memory profiling results: total_gpu_memory=23.58GiB non_torch_memory=0.35GiB kv_cache_size=2.89GiB
# GPU blocks: 1478, # CPU blocks: 2048
Maximum concurrency for 29000 tokens per request: 0.82x
The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in \
KV cache (23648).
"""


def test_two_starts_of_an_early_version_are_each_right() -> None:
    lines = compared(V06, "llama-3.1-8b")
    assert {line.start for line in lines} == {0, 1}
    assert told(lines, "gpu_blocks") == ["within"] * 2
    assert told(lines, "concurrency") == told(lines, "cpu_blocks") == ["equal"] * 2
    assert told(lines, "kv_tokens") == ["equal"]
    assert [line.finding.value for line in lines if line.finding.kind == "kv_tokens"] == [23648]


def test_a_server_on_a_cpu_and_one_whose_blocks_are_given() -> None:
    """Two starts of vLLM 0.32.0 on a CPU, both numbers on one line."""
    text = (DATA / "logs" / "cpu.log").read_text(encoding="utf-8")
    lines = compared(text, "smollm2-135m")
    assert told(lines, "kv_tokens") == ["within", "equal"]
    assert told(lines, "concurrency") == ["equal", "equal"]


def test_v0_keeps_states_beside_its_blocks() -> None:
    """Its blocks hold the attention layers alone (MambaCacheManager keeps the rest)."""
    made = config.preset("qwen3-next-80b-a3b")
    rows = 12 * 2 * 2 * 256 * 2 * 16  # 12 of 48 layers, K and V, 2 heads of 256, 16 bits, 16 tokens
    text = f"KV Cache is 20.00GiB\n# GPU blocks: {20 * 2**30 // rows}, # CPU blocks: 1"
    (line,) = [x for x in compare(server_log.read(text), made) if x.finding.kind == "gpu_blocks"]
    assert line.verdict == "within"


# A start of Qwen3.8-27B with two drafted tokens: a state and two snapshots of it (llama.cpp).
SNAPSHOTS = """\
llama_context: n_ctx         = 8192
llama_kv_cache: size =  512.00 MiB (  8192 cells,  16 layers,  1/1 seqs), K (f16):  256.00 MiB, \
V (f16):  256.00 MiB
llama_memory_recurrent: size =  448.88 MiB (     1 cells,  64 layers,  1 seqs  2 rs_seq), \
R (f32):   16.88 MiB, S (f32):  432.00 MiB
llama_kv_cache: size =   32.00 MiB (  8192 cells,   1 layers,  1/1 seqs), K (f16):   16.00 MiB, \
V (f16):   16.00 MiB
"""


def test_snapshots_of_states_are_counted_and_a_draft_s_own_cache_is_not_judged() -> None:
    lines = compared(SNAPSHOTS, "qwen3.8-27b")
    assert told(lines, "kv_part") == ["equal", "unknown"]
    assert told(lines, "state_size") == ["equal"]


QUANTISED = """\
llama_kv_cache_init: kv_size = 4096, offload = 1, type_k = 'q8_0', type_v = 'q4_0', n_layer = 32
llama_kv_cache_init:      CUDA0 KV buffer size =   {size:.2f} MiB
"""


@pytest.mark.parametrize("said", ["types", "flags", "choice"])
def test_formats_of_llama_cpp_come_from_the_line_the_start_or_the_choice(said: str) -> None:
    rows = 32 * 8 * 128 // 32  # blocks of 32 numbers: 34 bytes in q8_0, 18 in q4_0
    text = QUANTISED.format(size=4096 * rows * (34 + 18) / 2**20)
    first, rest = text.split("\n", 1)
    if said == "flags":
        first = "llama-server -c 4096 -ctk q8_0 --cache-type-v q4_0"
    elif said == "choice":
        first = ""
    head = "llama_context: n_ctx = 4096\n" if said != "flags" else ""
    asked = Settings(context_len=1, kv_format="q8_0", v_format="q4_0", engine="llama.cpp")
    choices = chosen(asked, "llama.cpp") if said == "choice" else {}
    lines = compared(f"{head}{first}\n{rest}", "llama-3.1-8b", **choices)
    assert told(lines, "kv_size") == ["equal"]


def test_of_choices_for_another_engine_only_the_devices_hold() -> None:
    asked = dict(context_len=1, tp=2, num_sequences=4, kv_format="fp8", num_draft_tokens=3)
    for engine in ("exact", "vllm"):
        found = chosen(Settings(**asked, engine=engine), "vllm")
        assert found == {"tp": 2, "kv_format": "fp8", "draft_tokens": 3}
    assert chosen(Settings(**asked, engine="sglang"), "vllm") == {"tp": 2}
    assert chosen(Settings(**asked, engine="vllm"), "llama.cpp") == {}
    own = chosen(Settings(**{**asked, "kv_format": "q8_0"}, unified=True), "llama.cpp")
    assert own == {"kv_format": "q8_0", "n_seq": 4, "unified": True}


def test_slots_have_a_cache_each_where_the_start_says_so() -> None:
    """`kv_unified = false`: each of 3 slots gets a third of the cells, rounded up."""
    text = (
        "llama_context: n_seq_max     = 3\nllama_context: n_ctx         = 4000\n"
        "llama_context: kv_unified    = {}\nCUDA0 KV buffer size = 500.00 MiB\n"
    )
    ours = []
    for unified in ("true", "false"):
        (line,) = compared(text.format(unified), "llama-3.1-8b")
        ours.append(line.ours / (32 * 2 * 8 * 128 * 2))
    assert ours == [4000, 3 * 1344]  # 1333 is rounded up to a multiple of 32


def test_one_cache_for_all_and_one_for_each_sequence() -> None:
    """llama.cpp#21874 on Gemma 4: 8 sequences in one cache, and in eight."""
    model = config.read((DATA / "configs" / "gemma-4-26b-a4b.json").read_bytes())
    windowed = sum(n for x, n in model.layer_counts.items() if x.window)
    full = model.num_layers - windowed
    both = {}
    for streams in (1, 8):
        cells = 100_096 // streams
        text = "llama_context: n_ctx = 100096\nllama_context: n_ubatch = 2048\n"
        for layers in (full, windowed):
            text += (
                f"llama_kv_cache: size = 1.00 MiB ( {cells} cells, {layers} layers, "
                f"8/{streams} seqs), K (q8_0): 1 MiB, V (q8_0): 1 MiB\n"
            )
        both[streams] = [line.ours / 2**20 for line in compare(server_log.read(text), model)]
    assert both[1][0] == pytest.approx(1038.6, rel=1e-3)
    assert both[1][1] == pytest.approx(1062.5, rel=1e-3)  # 10 240 cells
    assert both[8][1] > both[1][1] and both[8][0] == pytest.approx(both[1][0], rel=0.02)


@pytest.mark.parametrize("comma", [False, True])
def test_ik_llama_and_a_decimal_comma(comma: bool) -> None:
    """ik_llama.cpp on DeepSeek-R1: 61 layers x 576 x 2 bytes x 65 536."""
    text = (
        "llama_new_context_with_model: n_ctx      = 65536\n"
        "llama_new_context_with_model: KV self size  = 4392.00 MiB, c^KV (f16): 4392.00 MiB, "
        "kv^T: not used\n"
    )
    quantised = (
        "llama_new_context_with_model: n_ctx      = 16896\n"
        "llama_new_context_with_model: KV self size  =  601.54 MiB, c^KV (q8_0):  601.54 MiB, "
        "kv^T: not used\n"
    )
    for one in (text, quantised):
        shown = re.sub(r"(\d)\.(\d\d) MiB", r"\1,\2 MiB", one) if comma else one
        assert told(compared(shown, "deepseek-v3"), "kv_size") == ["equal"]


def test_with_attention_in_parallel_by_data_fewer_ranks_share_the_heads() -> None:
    """SGLang's `attn_tp_size = tp_size // dp_size`."""
    size = 36 * 8 // 2 * 128 * 2 * (100_000 + 1) / 2**30  # qwen3-8b: 8 heads over 2 ranks
    text = (
        "server_args=ServerArgs(tp_size=8, dp_size=4, enable_dp_attention={}, page_size=1)\n"
        f"KV Cache is allocated. #tokens: 100000, K size: {size:.2f} GB, V size: {size:.2f} GB\n"
    )
    assert told(compared(text.format("True"), "qwen3-8b"), "k_size") == ["equal"]
    assert told(compared(text.format("False"), "qwen3-8b"), "k_size") == ["differs"]


def test_a_pool_behind_the_model_s_own_is_of_the_model_that_drafts() -> None:
    own = "KV Cache is allocated. #tokens: 274934, KV size: 17.99 GB\n"
    drafts = own.replace("17.99", "0.29")
    args = "server_args=ServerArgs(tp_size=16, speculative_algorithm={}, page_size=1)\n"
    lines = compared(args.format("'EAGLE'") + own + drafts, "deepseek-v3")
    assert told(lines, "kv_size") == ["equal", "unknown"]
    assert lines[1].cause.key == "log.none.drafts"
    lines = compared(args.format("None") + own + drafts, "deepseek-v3")
    assert told(lines, "kv_size") == ["equal", "differs"]


def test_shares_of_several_devices_are_not_taken_for_the_whole() -> None:
    text = "".join(f"CUDA{i} KV buffer size =   {n}.00 MiB\n" for i, n in enumerate((100, 120)))
    assert told(compared(text, "llama-3.1-8b"), "kv_size") == ["unknown"] * 2


def test_blocks_of_both_memories_are_one_proof_not_two() -> None:
    """Both are bytes divided by those of a block: what changes one changes the other."""
    text = "KV Cache is 20.33GiB\n# GPU blocks: 18505, # CPU blocks: 3640\n"
    causes = [line.cause for line in compared(text, OPT, block_len=8) if line.cause]
    assert {cause.key for cause in causes} <= {"log.cause.perhaps", "log.cause.several"}
    assert len(causes) == 2


def test_a_cause_that_one_number_suggests_is_no_more_than_that() -> None:
    text = "config: max_seq_len=32768, tensor_parallel_size=1, kv_cache_dtype=auto\n"
    wrong = text + V1.replace("464,848", "929,696").replace("14.19", "28.37")
    causes = [line.cause for line in compared(wrong, "qwen2.5-7b") if line.cause]
    cause = causes[0]
    assert cause.key == "log.cause.several"  # fp8, int8 and two devices would all explain it
    for language in ("en", "zh"):
        assert "fp8" in cause.text(language)


def test_the_command_says_the_start_and_what_was_assumed(capsys, tmp_path) -> None:
    from viz_engine.__main__ import main

    path = tmp_path / "server.log"
    path.write_text(V1 + V1.replace("24.83", "20.00").replace("464,848", "374,464"))
    assert size and main(["size", "--model", "qwen2.5-7b", "--log", str(path), "--tp", "1"]) == 0
    out = capsys.readouterr().out
    assert "start 1: vllm" in out and "start 2: vllm" in out and "silent" not in out
    main(["size", "--model", "qwen2.5-7b", "--log", str(path), "--kv-dtype", "fp8"])
    assert "your options hold: kv_format = fp8" in capsys.readouterr().out
