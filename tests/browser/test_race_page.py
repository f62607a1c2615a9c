"""The race as a visitor uses it: a real browser, a real server, the default model."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.visit import Visit
from viz_engine.analysis import race
from viz_engine.run.experiment import ExperimentLog

SPANS = {"token": "token", "soFar": "so_far"}


def log_of(visit: Visit) -> ExperimentLog:
    """The race on the page, as the server holds it."""
    return ExperimentLog.read("\n".join(visit.frame()[1]).encode() + b"\n", "race")


def start(visit: Visit, prompt: str, *, new_tokens: int, repeats: int = 1) -> None:
    """Fill the boxes and press Race."""
    box = visit.page.get_by_role("textbox", name="Prompt")
    box.fill(prompt)
    box.press("Tab")
    visit.slide("Length of the prompt", "your prompt only")
    visit.slide("New tokens", str(new_tokens))
    visit.slide("Repeats", str(repeats))
    visit.start("Race")


def finish(visit: Visit) -> None:
    """Wait until the race on the page is over and drawn, and its button has come back."""
    visit.wait(lambda: visit.state == "finished")
    visit.wait(lambda: visit.data("events") == str(visit.header()["first"]))
    visit.page.get_by_role("button", name="Race", exact=True).wait_for()


def cell(visit: Visit, name: str) -> float | None:
    value = visit.page.locator(f'[data-cell="{name}"]').get_attribute("data-value")
    return float(value) if value else None


def to_token(visit: Visit, token: int) -> None:
    """Step to a token by keys, token by token."""
    visit.page.get_by_role("button", name="same token").click()
    visit.wait(lambda: visit.data("mode") == "token")
    visit.page.keyboard.press("Home")
    visit.wait(lambda: visit.data("token") == "0")
    for k in range(1, token + 1):
        visit.page.keyboard.press("ArrowRight")
        visit.wait(lambda k=k: visit.data("token") == str(k))


def test_a_recorded_race_plays_before_anybody_presses_a_button(visit: Visit) -> None:
    visit.open("/race")
    visit.wait(lambda: int(visit.data("full-tokens") or 0) > 0)
    visit.wait(lambda: "recorded" in visit.text(".info"))
    visit.page.locator(".js-plotly-plot").first.wait_for()


def test_both_lanes_run_and_stand_at_prompt_plus_k_minus_1_rows(visit: Visit) -> None:
    visit.open("/race")
    start(visit, "Name three birds.", new_tokens=4)
    finish(visit)
    log = log_of(visit)
    prompt = log.started.prompt_columns
    assert [len(log.runs({"cache": cache})) for cache in ("none", "full")] == [1, 1]
    for token in (1, 2, 4):
        to_token(visit, token)
        rows = visit.data("none-rows"), visit.data("full-rows")
        assert rows == (str(prompt + token - 1),) * 2
        assert visit.data("none-tokens") == visit.data("full-tokens") == str(token)
        for row in race.table(log, token):
            for shown, span in SPANS.items():
                cells = [cell(visit, f"{row['name']}.{shown}.{part}") for part in race.PARTS]
                assert cells == [value and pytest.approx(value) for value in row[span]], row
    text = log.runs({"cache": "none"})[0].texts(0)
    for lane in ("none", "full"):
        shown = visit.page.locator(f'[data-lane="{lane}"] .lane-text').text_content()
        assert shown.strip() == text.replace("\n", "⏎").strip()


def test_numbers_open_to_their_formula_and_rows_choose_the_chart(guest: Visit) -> None:
    guest.stay("/race")
    guest.wait(lambda: int(guest.data("events") or 0) > 0)
    guest.page.keyboard.press("End")
    guest.page.locator('[data-cell="ns.soFar.ratio"]').click()
    pop = guest.page.locator(".kv .pop")
    pop.get_by_text("This race").wait_for()
    assert "ratio" in pop.inner_text() and "over" in pop.inner_text()
    guest.page.keyboard.press("Escape")
    guest.page.locator('[data-quantity="flops"]').click()
    guest.page.locator(".kv .chart").get_by_text("Work so far").wait_for()


def test_the_link_brings_the_race_and_its_settings_elsewhere(
    visit: Visit, chromium: object
) -> None:
    visit.open("/race")
    start(visit, "Say hello.", new_tokens=2)
    finish(visit)
    seen = visit.data("events")
    visit.wait(lambda: "ask=" in visit.page.url)
    other = Visit(chromium, visit.server)
    other.open(visit.page.url.removeprefix(visit.server.url))
    other.wait(lambda: other.data("events") == seen)
    box = other.page.get_by_role("textbox", name="Prompt")
    other.wait(lambda: box.input_value() == "Say hello.")
    assert not other.faults
    other.close()


def test_the_table_is_downloaded_as_csv(guest: Visit, tmp_path: Path) -> None:
    guest.stay("/race")
    guest.wait(lambda: int(guest.data("events") or 0) > 0)
    with guest.page.expect_download() as download:
        guest.page.get_by_role("button", name="Table (CSV)").click()
    path = tmp_path / "table.csv"
    download.value.save_as(path)
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert rows and rows[0]["token"] == "1" and float(rows[-1]["ns.so_far.ratio"]) > 0


def test_a_cancelled_race_keeps_the_finished_lane_and_says_what_is_missing(visit: Visit) -> None:
    visit.open("/race")
    start(visit, "Write a long story.", new_tokens=256, repeats=1)
    visit.wait(lambda: "Without a cache, run 1 of 1" in visit.text(".say"))
    visit.page.locator(".st-key-race_stop button").click()
    finish(visit)
    log = log_of(visit)
    assert log.finished.finish_reason == "cancelled"
    assert [len(log.runs({"cache": cache})) for cache in ("none", "full")] == [0, 1]
    visit.wait(lambda: "0 of 1" in visit.text(".say"))
    visit.page.keyboard.press("End")
    visit.wait(lambda: int(visit.data("full-tokens")) > 0)
    assert cell(visit, "ns.soFar.full") > 0 and cell(visit, "ns.soFar.none") is None


def test_without_torch_the_recorded_race_plays_and_race_says_why(
    chromium: object, without_torch: Server
) -> None:
    visit = Visit(chromium, without_torch)
    visit.open("/race")
    visit.wait(lambda: int(visit.data("full-tokens") or 0) > 0)
    visit.page.get_by_role("button", name="Race", exact=True).click()
    visit.page.get_by_text(re.compile("torch|transformers")).first.wait_for()
    assert not visit.faults
    visit.close()
