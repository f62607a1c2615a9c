"""A run's memory and a server's log in words, from real ones."""

import pytest

from viz_engine.analysis import memory_account
from viz_engine.memory import log_comparison, server_log
from viz_engine.model import config
from viz_engine.numbers import mib
from viz_engine.paths import ASSETS
from viz_engine.run.log import RunLog
from viz_engine.server.runs import Run
from viz_engine.text import LANGUAGES, t
from viz_engine.view.memory import evidence

RUNS = ASSETS / "recorded" / "runs"
LOG = """model weights take 14.99GiB; non_torch_memory takes 0.13GiB
# cuda blocks: 27443, # CPU blocks: 2048
<b>GPU KV cache size: 439,088 tokens</b>"""


@pytest.fixture(params=LANGUAGES)
def say(request):
    return lambda key, /, **params: t(key, request.param, **params)


def test_a_recorded_run_says_that_predicted_and_counted_are_equal(say) -> None:
    run = Run("x", None, None)
    for event in RunLog.read((RUNS / "1-document.jsonl").read_bytes()):
        run.append_event(event, "")
    found = memory_account.account(run.log)
    numbers = evidence.account_cards(found, say, recorded=True)
    measured = [mib(found.grown_bytes), mib(found.rest_bytes)]
    assert [n.value for n in numbers] == ["45.3 MiB", "50.6 MiB", *measured]
    assert [n.tone for n in numbers[:2]] == ["good", "good"] and all(n.formula for n in numbers)
    assert {n.tag for n in numbers[2:]} == {say("mem.recorded")}


def test_a_run_without_readings_shows_a_dash_and_no_formula(say) -> None:
    run = Run("x", None, None)
    for event in RunLog.read((RUNS / "2-chat.jsonl").read_bytes()):
        if event.__class__.__name__ != "Telemetry":
            run.append_event(event, "")
    found = memory_account.account(run.log)
    grown, rest = evidence.account_cards(found, say, recorded=False)[2:]
    assert (grown.value, grown.formula, rest.value, rest.formula) == ("-", "", "-", "")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_log_is_a_table_with_a_verdict_a_line_and_its_text_is_text(say, language: str) -> None:
    lines = log_comparison.compare(server_log.read(LOG), config.preset("llama-3.1-8b"))
    table = evidence.log_table(lines, say, language)
    assert table.count("<tr") == len(lines) + 1
    assert "27\u202f443" in table and "439\u202f088" in table
    assert "<b>" not in table and "&lt;b&gt;" in table
