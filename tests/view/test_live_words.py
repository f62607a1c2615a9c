"""What a run will take, in words: the sums that are checked before it runs."""

import pytest

from tests.support.specs import spec
from viz_engine.numbers import mib
from viz_engine.run import checks
from viz_engine.run.events import RunSettings
from viz_engine.text import LANGUAGES, t
from viz_engine.view.live import words


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("cache", ["full", "none"])
def test_the_line_says_the_bytes_that_are_checked(language: str, cache: str) -> None:
    settings = RunSettings(
        model="m", prompts=("x",), dtype="bfloat16", cache=cache, batch=2, new_tokens=8
    )
    need = checks.footprint(
        spec(), "bfloat16", batch=2, prompt_len=2000, new_tokens=8, cached=cache == "full"
    )
    line, formula = words.cost(
        spec(), settings, 2000, lambda key, **params: t(key, language, **params)
    )
    assert "2\u202f000" in line and mib(need.weight_bytes) in line
    assert (mib(need.kv_reserved_bytes) in line) is (cache == "full")
    assert t("ask.predicted", language) in line and mib(need.weight_bytes) in formula
