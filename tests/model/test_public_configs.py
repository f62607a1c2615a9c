"""86 public configs: each keeps what transformers' own cache keeps for its layers and heads, or
what was counted by hand; or it says what it does not understand, or is refused by name.

tests/data/public_configs.json holds the keys that matter and the numbers, its source within;
support/model_configs.py made it. What an oracle says is asked anew here for the quick ones.
"""

import json
from collections import Counter

import pytest

from tests.support.model_configs import DATA, seen_rows
from viz_engine.model import config
from viz_engine.run import cost
from viz_engine.text import UserError

TABLE = json.loads(DATA.read_text(encoding="utf-8"))
ROWS = {row["name"]: row for row in TABLE["rows"]}
COUNTS = {"transformers": 65, "hand": 13, "warned": 2, "refused": 6}
QUICK = (
    "MiniMaxAI--MiniMax-M2.5",
    "Qwen--Qwen3-0.6B",
    "Qwen--Qwen3-30B-A3B",
    "openai--gpt-oss-20b",
)
QUICK += ("meta-llama--Meta-Llama-3.1-8B", "mistralai--Mixtral-8x7B-v0.1")
QUICK += ("meta-llama--Llama-4-Scout-17B-16E-Instruct", "nvidia--Gemma-4-31B-IT-NVFP4")
QUICK += ("Qwen--Qwen3.5-35B-A3B",)


def named(how: str) -> list[str]:
    return [name for name, row in ROWS.items() if row["how"] == how]


def test_every_config_has_an_answer() -> None:
    assert Counter(row["how"] for row in ROWS.values()) == COUNTS
    assert "aiconfigurator" in TABLE["source"]


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row["how"] != "refused"])
def test_a_public_config_keeps_what_was_counted(name: str) -> None:
    row = ROWS[name]
    model = config.read(row["config"])
    rows = [(x, cost.layer_rows(x, "bf16", "bf16").total) for x in model.layers]
    assert sum(size for x, size in rows if x.window is None) == row["growing"]
    assert sum(size for x, size in rows if x.window is not None) == row["window"]
    states = (cost.layer_state(x, "bf16", model.recurrent_format).total for x in model.layers)
    assert sum(states) == row["state"]
    unread = "size.warn_layer_list" in [w.key for w in model.warnings]
    assert unread == (row["how"] == "warned")


@pytest.mark.parametrize("name", named("refused"))
def test_a_cache_that_cannot_be_counted_is_refused_by_the_name_of_its_key(name: str) -> None:
    with pytest.raises(UserError, match="compress_ratios"):
        config.read(ROWS[name]["config"])


@pytest.mark.parametrize("name", QUICK)
def test_the_quick_ones_equal_transformers_cache_today(name: str) -> None:
    seen = seen_rows(ROWS[name]["config"])
    ours = [
        (x.row_elements, x.window, x.keeps_state) for x in config.read(ROWS[name]["config"]).layers
    ]
    assert ours == seen
