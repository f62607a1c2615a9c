"""The memory page's numbers: parts that add up, links that come back, accidents that are found."""

import csv
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.deployments import NAMES, choose
from viz_engine.memory import deployment, devices, estimate, link, service
from viz_engine.memory import plan as memory_plan
from viz_engine.memory.deployment import Settings
from viz_engine.model import config, formats
from viz_engine.run import cost
from viz_engine.text import LANGUAGES, UserError, t
from viz_engine.view.memory import frames, tables, users, words

OFFERED = {
    "model": NAMES,
    "gpu": [device.name for device in devices.devices()],
    "n": estimate.GPU_COUNTS,
    "ctx": estimate.CONTEXT_LENS,
    "seq": estimate.SEQUENCES,
    "kv": ("auto", *formats.CACHES_LISTED),
    "v": formats.CACHES_LISTED,
    "w": ("auto", *formats.WEIGHTS),
    "tp": (1, 2, 4, 8),
    "pp": (1, 2),
    "engine": deployment.ENGINES,
}


def english(key: str, /, **params: object) -> str:
    return t(key, "en", **params)


@pytest.mark.parametrize("engine", deployment.ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_bar_add_up_to_the_plan(name: str, engine: str) -> None:
    found = estimate.make(choose(name, engine=engine, context_len=4096, num_sequences=3))
    assert sum(found.parts.values()) == found.plan.total_bytes
    assert set(found.parts) <= set(frames.PARTS) and min(found.parts.values()) > 0


def test_k_and_v_are_apart_by_their_formats() -> None:
    found = estimate.make(choose(engine="llama.cpp", kv_format="q8_0", v_format="q4_0"))
    assert found.parts["k"] / found.parts["v"] == pytest.approx(34 / 18)
    even = estimate.make(choose())
    assert even.parts["k"] == even.parts["v"] == 16 * 8192 * 32 * 8 * 128 * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_step_reads_all_weights_and_all_rows_once(name: str) -> None:
    found = choose(name, context_len=4096, num_sequences=2)
    step = estimate.itl(found, 4096, 2)
    read = step.work.num_bytes
    plan = memory_plan.plan(found.model, replace(found.settings, engine="exact"))
    most = plan.part("weights").num_bytes + plan.kv_bytes
    assert plan.kv_bytes < read <= most + 1


def test_a_server_loads_a_32_bit_model_in_16_everywhere_on_the_page() -> None:
    assert config.preset("mamba-2.8b").dtype == "f32"
    served, plain = (choose("mamba-2.8b", engine=name) for name in ("vllm", "exact"))
    assert 2 * estimate.model_weight_bytes(served) == estimate.model_weight_bytes(plain)
    once, twice = (estimate.itl(one, 4096, 1).work.num_bytes for one in (served, plain))
    assert 1.9 < twice / once < 2.1


def test_llama_reads_about_two_flops_a_weight() -> None:
    # transformers' own class has 8 030 261 248 parameters, 525 336 576 in each of the two tables.
    llama = config.preset("llama-3.1-8b")
    every, logits = cost.matmul_weights(llama), cost.head_weights(llama)
    assert every == 8_030_261_248 - 2 * 525_336_576 - 65 * 4096 and logits == 525_336_576


def test_a_mixture_reads_fewer_bytes_at_best_than_at_worst() -> None:
    step = estimate.itl(choose("qwen3-30b-a3b"), 8192, 1)
    dense = estimate.itl(choose(), 8192, 1)
    assert step.slow_s / step.bound_s > 2 * dense.slow_s / dense.bound_s


def test_raising_the_length_is_an_accident_where_it_no_longer_fits() -> None:
    kinds = {a.kind: a for a in estimate.accidents(estimate.make(choose(engine="vllm")))}
    assert kinds["longer"].bad and not kinds["weights_only"].bad and not kinds["more"].bad
    assert kinds["longer"].after_bytes == 8 * kinds["longer"].before_bytes
    assert not kinds["longer"].fits and kinds["more"].fits
    full = estimate.make(choose(num_sequences=80, engine="vllm"))
    kinds = {a.kind: a for a in estimate.accidents(full)}
    assert kinds["weights_only"].bad and not full.fits


def test_claim_19_fourteen_requests_of_32k_outweigh_a_72b() -> None:
    text = {"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}
    text |= {"num_key_value_heads": 8, "vocab_size": 152064, "intermediate_size": 29568}
    model = config.read(text | {"model_type": "qwen2", "dtype": "float16"}, name="72B")
    found = replace(choose(context_len=32768), model=model)
    assert estimate.crossing(estimate.make(found)) == 14


def card(found: estimate.Estimate, number: int):
    return words.cards(found, english, "en")[number]


def test_a_request_is_plain_rows_and_says_what_the_engine_reserves_where_that_is_more() -> None:
    windowed = estimate.make(choose("gpt-oss-20b", engine="vllm"))
    row = 2 * 8 * 64 * 2
    assert windowed.request_bytes == 12 * row * (8192 + 128)
    blocks = 512 + 513  # of 12 layers each
    assert windowed.reserved_bytes == blocks * 16 * 12 * row
    assert windowed.plan.kv_bytes == 16 * windowed.reserved_bytes
    assert card(windowed, 1).note == "cache rows only; vLLM reserves 384 MiB per GPU"
    assert "reserves" not in card(estimate.make(choose(engine="vllm")), 1).note
    texts = [text for _, _, text in tables.accident_notices(windowed, english)]
    assert all(text.startswith("The cache that vLLM reserves") for text in texts[1:])


def test_plain_rows_are_in_the_format_that_the_engine_takes() -> None:
    found = estimate.make(choose("gpt2", engine="vllm", context_len=1024))
    assert found.choice.model.dtype == "f32"
    assert found.request_bytes == found.reserved_bytes == 12 * 2 * 768 * 2 * 1024


def test_heads_that_several_gpus_hold_count_for_each() -> None:
    alone, shared = (estimate.make(choose(tp=tp, engine="vllm")) for tp in (1, 16))
    assert alone.request_bytes == 2**30 and shared.request_bytes == 2 * 2**30
    assert shared.growth_bytes == 2 * alone.growth_bytes == 2 * 131072
    held = shared.rank_request.part("weights").num_bytes
    assert (
        estimate.crossing(alone) == 15
        and estimate.crossing(shared) == held // (128 * 2**20) + 1 < 10
    )
    assert "16 GPUs hold 128.0 MiB each" in card(shared, 1).formula
    assert "GPUs hold" not in card(alone, 1).formula


def test_without_the_number_of_weights_no_total_is_shown_as_an_answer() -> None:
    text = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
    model = config.read(text | {"num_attention_heads": 4})
    found = estimate.make(replace(choose(engine="vllm"), model=model))
    total, _, longest, most = words.cards(found, english, "en")[:4]
    assert total.value == longest.value == most.value == "-" and "not known" in total.note
    assert not total.tone and not tables.accident_notices(found, english)
    (row,) = csv.DictReader(io.StringIO(link.to_csv([("x", found)])))
    told = ("weights_bytes", "total_bytes", "fits", "longest_context", "most_sequences")
    assert not any(row[name] for name in told) and int(row["k_bytes"]) > 0
    given = replace(found.choice, settings=replace(found.choice.settings, num_parameters=10**8))
    assert words.cards(estimate.make(given), english, "en")[0].value != "-"


def test_copies_of_the_model_stand_beside_the_total() -> None:
    found = estimate.make(replace(choose(tp=2), num_devices=8))
    assert "copies of the model: 4" in card(found, 0).note


def test_a_cache_that_does_not_grow_is_not_said_to_grow() -> None:
    found = estimate.make(choose("mamba-2.8b"))
    (_, _, text) = tables.accident_notices(found, english)[1]
    assert "does not grow" in text and "from" not in text


def test_users_on_demand_are_never_fewer_than_with_the_longest_reserved() -> None:
    for length in (4096, 8192, 131072):
        served = service.of(estimate.make(choose(context_len=length)))
        assert served.paged.sequences >= served.reserved.sequences
        assert served.paged.users >= served.reserved.users
    assert served.paged.users > 2 * served.reserved.users


def test_where_nothing_fits_nobody_is_served_and_the_reason_is_said() -> None:
    full = estimate.make(choose("llama-3.3-70b", engine="vllm"))
    (card,) = users.service_cards(full, service.of(full), 1.0, english, "en")
    assert card.value == "-" and "fits" in card.note


def test_without_a_bandwidth_there_is_no_time_and_no_user() -> None:
    found = estimate.make(replace(choose(), device=devices.this_machine()))
    assert found.ttft is None and found.itl is None and service.of(found).paged is None
    (card,) = users.service_cards(found, service.of(found), 1.0, english, "en")
    assert card.value == "-" and "bandwidth" in card.note


@pytest.mark.parametrize("device", ["Apple M4 Max 128 GB", "NVIDIA DGX Spark (GB10)"])
def test_without_a_rate_reading_a_prompt_has_no_time_and_a_step_that_reads_bytes_has(
    device,
) -> None:
    found = estimate.make(choose(device=device, context_len=131072, num_sequences=1))
    assert found.ttft is None and found.itl.rate is None
    assert found.itl.bound_s == pytest.approx(
        (cost.read_weight_bytes(found.choice.model, 16) + 16 * 2**30) / found.itl.bandwidth.plain
    )
    first, step = words.cards(found, english, "en")[4:6]
    assert first.value == "-" and "no FLOP rate" in first.note and "%" not in first.formula
    assert "rate are" not in step.formula and "%" in step.formula
    (card,) = users.service_cards(found, service.of(found), 1.0, english, "en")
    assert card.value == "-" and "no FLOP rate" in card.note


def test_a_model_whose_matrices_are_unknown_has_no_time() -> None:
    text = {"model_type": "bart", "decoder_layers": 4, "d_model": 256, "is_encoder_decoder": True}
    model = config.read(text | {"decoder_attention_heads": 8, "vocab_size": 1000})
    asked = replace(choose().settings, num_parameters=10**9, cross_len=64)
    found = estimate.make(replace(choose(), model=model, settings=asked))
    assert found.ttft is None and found.itl is None
    assert "FLOPs are not known" in words.cards(found, english, "en")[4].note


def test_requests_in_flight_take_as_long_as_that_many_do() -> None:
    found = estimate.make(choose(engine="vllm"))
    served = service.of(found)
    turns, overlap = service.in_flight(found, served, 1.0)
    held = service.held_len(found.choice)
    for (num, duration), rest in ((overlap, 1.0), (turns, 1 - served.ttft_s)):
        step = estimate.middle(estimate.itl(found.choice, held, num))
        assert duration == pytest.approx(served.ttft_s + 511 * step / rest)
        assert num - 1 < duration <= num < served.room
    assert turns[0] >= overlap[0]
    assert service.in_flight(found, served, 1.01 / served.ttft_s) == [None, None]
    over = users.service_cards(found, served, 100.0, english, "en")[4]
    assert over.value == "-" and over.tone == "bad" and "more arrive than leave" in over.note


@given(
    st.sampled_from(NAMES),
    st.sampled_from(estimate.CONTEXT_LENS),
    st.sampled_from(estimate.SEQUENCES),
    st.sampled_from(("auto", *formats.CACHES_LISTED)),
    st.none() | st.sampled_from(formats.CACHES_LISTED),
    st.sampled_from(("auto", *formats.WEIGHTS)),
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from(deployment.ENGINES),
)
@settings(deadline=None, max_examples=40)
def test_a_link_brings_back_what_it_was_made_of(name, ctx, seq, k, v, w, tp, engine) -> None:
    asked = Settings(
        context_len=ctx,
        num_sequences=seq,
        kv_format=k,
        v_format=v,
        weight_format=w,
        tp=tp,
        engine=engine,
    )
    query = link.to_query(name, "NVIDIA H200 SXM", replace(choose(), settings=asked))
    found, wrong = link.from_query(query, OFFERED)
    taken = {link.LINK[key]: value for key, value in found.items() if key in link.LINK}
    assert Settings(**taken) == asked and not wrong
    assert (found["model"], found["gpu"], found["n"]) == (name, "NVIDIA H200 SXM", 1)
    assert link.address(query).isascii()


@pytest.mark.parametrize("text", ["", "x", "-1", "1e9", "0", "١٢", "<b>"])
def test_a_number_in_a_link_that_is_none_is_named(text: str) -> None:
    found, wrong = link.from_query({"ctx": text, "seq": "2", "other": "x"}, OFFERED)
    assert found == {"seq": 2} and wrong == ["ctx"]


def test_a_number_between_two_stops_is_taken_as_it_is_and_none_is_rounded_in_silence() -> None:
    asked = {"ctx": "100000", "seq": "9" * 40, "tp": "3", "util": "0.95", "block": "0", "kvu": "1"}
    found, wrong = link.from_query(asked, OFFERED)
    assert found == {"ctx": 100_000, "util": 0.95, "kvu": True}
    assert sorted(wrong) == ["block", "seq", "tp"]


def test_a_link_keeps_the_options_of_an_engine() -> None:
    asked = Settings(
        context_len=12_500,
        num_sequences=7,
        engine="vllm",
        block_len=32,
        batched_tokens=4096,
        utilization=0.93,
        num_draft_tokens=2,
        state_blocks=2,
    )
    query = link.to_query("llama-3.1-8b", "NVIDIA H200 SXM", replace(choose(), settings=asked))
    found, wrong = link.from_query(query, OFFERED)
    taken = {link.LINK[key]: value for key, value in found.items() if key in link.LINK}
    assert not wrong and replace(Settings(**taken), state_blocks=2) == asked
    assert found["prefix"] is True and "kvu" not in found


def test_the_table_to_download_holds_every_choice_with_its_units() -> None:
    bills = [(name, estimate.make(choose(name))) for name in ("llama-3.1-8b", "deepseek-v3")]
    rows = list(csv.DictReader(io.StringIO(link.to_csv(bills))))
    assert [row["model"] for row in rows] == ["llama-3.1-8b", "deepseek-v3"]
    assert int(rows[0]["total_bytes"]) == bills[0][1].plan.total_bytes
    assert {row["provenance"] for row in rows} == {"predicted"}
    parts = [int(rows[1][f"{part}_bytes"]) for part in frames.PARTS]
    assert sum(parts) == int(rows[1]["total_bytes"])


def test_fewer_devices_than_ranks_are_refused_in_words() -> None:
    with pytest.raises(UserError, match="2 GPUs cannot hold one copy that is shared by 8"):
        estimate.check(replace(choose(tp=8), num_devices=2))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_its_words_in_both_languages(name: str, language: str) -> None:
    def say(key: str, /, **params: object) -> str:
        return t(key, language, **params)

    found = estimate.make(choose(name, context_len=131072, engine="vllm"))
    numbers = words.cards(found, say, language)
    assert len(numbers) == 8 and all(n.label and n.value and n.tag for n in numbers)
    assert all(n.formula for n in numbers if n.value != "-")
    made = [tables.layer_table(found, say, language)]
    made.append(tables.precision_table(found, say, language))
    made.append(tables.options_table(estimate.options(found), found, say, language))
    made.append(tables.device_table(found, devices.devices(), say))
    made.append(tables.compare_table([(name, found)], say))
    assert all(table.count("<tr") > 1 for table in made)
    assert words.model_line(config.preset(name), say)
    assert len(tables.accident_notices(found, say)) == 3
    assert users.service_cards(found, service.of(found), 1.0, say, language)


def test_sliders_stop_at_ten_million_and_double_on_the_way() -> None:
    assert estimate.CONTEXT_LENS[-1] == 10_000_000 and 131072 in estimate.CONTEXT_LENS
    assert list(estimate.CONTEXT_LENS) == sorted(set(estimate.CONTEXT_LENS))
    assert list(estimate.SEQUENCES) == sorted(set(estimate.SEQUENCES))
    json.dumps(estimate.CONTEXT_LENS)


def test_products_of_fp8_weights_are_computed_in_fp8() -> None:
    assert estimate.compute_format(choose("deepseek-v3")) == "fp8"
    assert estimate.compute_format(choose("deepseek-v3", weight_format="bf16")) == "bf16"
    assert estimate.compute_format(choose("llama-3.1-8b")) == "bf16"
