"""The memory page as a visitor uses it: sliders, bars, downloads, in a real browser."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.support.visit import Visit

OURS = re.compile(r"(https?|wss?)://127\.0\.0\.1|data:|blob:")


# What goes out over the WebSocket is kept, until it is let go.
HOLD = """() => {
  const send = WebSocket.prototype.send;
  window.kept = [];
  WebSocket.prototype.send = function (data) { window.kept.push(() => send.call(this, data)); };
  window.letOne = () => window.kept.shift()();
  window.letAll = () => {
    WebSocket.prototype.send = send;
    window.kept.splice(0).forEach((go) => go());
  };
}"""
AHEAD = "globalThis[Symbol.for('second-token.frames')]?.size === 2"


class Page(Visit):
    """A visitor of the memory page."""

    def open(self, query: str = "") -> None:
        self.page.goto(f"{self.server.url}/memory?lang=en{query}")
        self.ready()

    def ready(self) -> None:
        self.page.locator(".numbers").first.wait_for()
        self.page.locator(".js-plotly-plot").first.wait_for()

    def number(self, label: str) -> str:
        """The value of the card with that label."""
        card = self.page.locator(".number", has=self.page.get_by_text(label, exact=True))
        return card.locator(".value").first.inner_text().replace("\u202f", "")

    def shown(self) -> list[str]:
        """All numbers with their notes and formulas, the bar with its texts, the notices."""
        parts = (".bill .numbers", ".bill svg.bars", ".bill .notices", ".bill .sliders")
        return [self.page.locator(part).text_content() for part in parts]

    def told(self) -> int:
        """Messages to the server that are kept back."""
        return self.page.evaluate("window.kept.length")

    def until(self, label: str, value: str) -> None:
        self.wait(lambda: self.number(label) == value)

    def section(self, name: str) -> None:
        self.page.get_by_role("radio", name=name).or_(
            self.page.get_by_role("button", name=name, exact=True)
        ).first.click()


@pytest.fixture
def visit(chromium: object, server: object) -> Page:
    visit = Page(chromium, server)
    yield visit
    visit.close()
    assert not visit.faults


def test_the_page_opens_with_an_example_and_asks_no_other_server(visit: Page) -> None:
    visit.open()
    assert visit.number("Cache of one request") == "1 GiB"  # 128 KiB x 8192, Llama-3.1-8B
    assert visit.page.locator(".number .tag").count() == 8
    assert all(OURS.match(url) for url in visit.requests), "a request left this machine"


def test_a_slider_moves_every_number_and_the_chart(visit: Page) -> None:
    visit.open()
    visit.slide("Context", "16384")
    visit.until("Cache of one request", "2 GiB")
    visit.slide("Context", "10000000")
    visit.wait(lambda: visit.number("Cache of one request").startswith("1.19"))
    for chart in (".bill svg.bars", ".js-plotly-plot"):
        visit.wait(lambda chart=chart: "TiB" in visit.page.locator(chart).first.text_content())
    visit.page.get_by_text("beyond the 131\u202f072").wait_for()
    assert visit.page.get_by_text("beyond the 131\u202f072").count() == 1  # warned, and computed


def test_a_slider_paints_what_the_server_says_later_before_it_is_asked(visit: Page) -> None:
    visit.open()
    visit.page.wait_for_function(AHEAD)
    visit.page.evaluate(HOLD)
    slider = visit.page.get_by_role("slider", name="Context")
    slider.focus()
    for length, size in ((12288, "1.5 GiB"), (16384, "2 GiB"), (24576, "3 GiB"), (32768, "4 GiB")):
        slider.press("ArrowRight")
        assert slider.get_attribute("aria-valuetext") == f"{length:,}".replace(",", "\u202f")
        visit.until("Cache of one request", size)
    painted = visit.shown()
    assert "ctx=32768" not in visit.page.url, "the server has not heard of it"
    visit.page.evaluate("window.letAll()")
    visit.wait(lambda: "ctx=32768" in visit.page.url)
    visit.wait(lambda: visit.page.locator(".bill").get_attribute("data-answered") == "4")
    assert visit.shown() == painted
    visit.page.reload()
    visit.ready()
    visit.wait(lambda: visit.shown() == painted)


def test_an_answer_to_an_older_move_does_not_take_the_slider_back(visit: Page) -> None:
    visit.open()
    visit.page.wait_for_function(AHEAD)
    visit.page.evaluate(HOLD)
    slider = visit.page.get_by_role("slider", name="Sequences")
    slider.focus()
    slider.press("ArrowRight")
    visit.wait(lambda: visit.told() == 1)
    slider.press("ArrowRight")
    visit.wait(lambda: visit.told() == 2)
    painted = visit.shown()
    assert slider.get_attribute("aria-valuetext") == "32"
    visit.page.evaluate("window.letOne()")
    visit.wait(lambda: visit.page.locator(".bill").get_attribute("data-answered") == "1")
    visit.wait(lambda: "seq=24" in visit.page.url)
    assert slider.get_attribute("aria-valuetext") == "32" and visit.shown() == painted
    visit.page.evaluate("window.letAll()")
    visit.wait(lambda: visit.page.locator(".bill").get_attribute("data-answered") == "2")
    visit.wait(lambda: "seq=32" in visit.page.url)
    assert slider.get_attribute("aria-valuetext") == "32" and visit.shown() == painted


def test_before_frames_have_come_a_slider_asks_the_server(visit: Page) -> None:
    visit.open()
    visit.page.wait_for_function(AHEAD)
    visit.page.evaluate("globalThis[Symbol.for('second-token.frames')].clear()")
    slider = visit.page.get_by_role("slider", name="Context")
    slider.focus()
    slider.press("ArrowRight")
    visit.until("Cache of one request", "1.5 GiB")
    assert "12\u202f288" in visit.page.locator(".bill .slider output").first.text_content()


def test_a_slider_paints_no_frame_of_a_choice_that_does_not_hold(visit: Page) -> None:
    visit.open("&model=llama-3.1-8b&ctx=8192&seq=16")
    visit.page.wait_for_function(AHEAD)
    visit.page.get_by_role("combobox", name="TP").click()
    visit.page.get_by_role("option", name="8", exact=True).click()
    visit.page.get_by_role("alert").filter(has_text="cannot hold one copy").wait_for()
    slider = visit.page.get_by_role("slider", name="Context")
    slider.focus()
    slider.press("ArrowRight")
    visit.wait(lambda: visit.page.locator(".bill").get_attribute("data-answered") == "1")
    assert slider.get_attribute("aria-valuetext") == "12\u202f288"
    assert visit.number("Cache of one request") == "1 GiB"
    assert visit.page.get_by_role("alert").filter(has_text="last choice that works").count() == 1


def test_a_number_that_is_open_stays_open_while_a_slider_moves(visit: Page) -> None:
    visit.open()
    visit.page.wait_for_function(AHEAD)
    visit.page.get_by_text("Cache of one request").click()
    formula = visit.page.locator(".number[open] .formula")
    formula.wait_for()
    slider = visit.page.get_by_role("slider", name="Context")
    slider.focus()
    slider.press("ArrowRight")
    visit.wait(lambda: "12\u202f288 tokens" in formula.inner_text())
    visit.wait(lambda: visit.page.locator(".bill").get_attribute("data-answered") == "1")
    assert "12\u202f288 tokens" in formula.inner_text()


def test_every_part_of_the_bar_says_what_it_is(visit: Page) -> None:
    visit.open()
    parts = visit.page.locator(".bill .part")
    names = [part.get_attribute("aria-label") for part in parts.all()]
    assert "Weights: 15 GiB" in names and "K cache: 8 GiB" in names
    parts.first.focus()
    visit.page.get_by_role("tooltip").filter(has_text=names[0]).wait_for()
    alt = visit.page.locator(".bill svg.bars").get_attribute("aria-label")
    assert "Llama" in alt and "GiB of" in alt


def test_bars_beside_stay_while_a_slider_moves_the_present_one(visit: Page) -> None:
    visit.open()
    visit.page.get_by_role("button", name="Add to comparison").click()
    visit.wait(lambda: visit.page.locator(".bill .spread").count() == 2)
    sizes = visit.page.locator(".bill svg.bars text", has_text="× 16")
    slider = visit.page.get_by_role("slider", name="Context")
    slider.focus()
    slider.press("ArrowRight")
    visit.wait(lambda: sizes.all_text_contents() == ["12K × 16", "8K × 16"])
    row = visit.page.locator(".figures tbody tr", has_text="12K × 16")
    row.wait_for()


def test_the_table_and_the_pictures_can_be_saved(visit: Page, tmp_path: Path) -> None:
    visit.open()
    visit.section("Link and files")
    with visit.page.expect_download() as download:
        visit.page.get_by_role("button", name="Numbers as CSV").click()
    download.value.save_as(tmp_path / "numbers.csv")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "numbers.csv").read_text()))
    assert int(row["k_bytes"]) == 16 * 8192 * 65536 and row["provenance"] == "predicted"
    for kind, title, start in (
        ("PNG", "Download plot as a PNG", b"\x89PNG"),
        ("SVG", "Download plot", b"<svg"),
    ):
        visit.section("Link and files")
        visit.section(kind)
        with visit.page.expect_download() as download:
            visit.page.get_by_role("button", name=f"Save the picture as {kind}").click()
        assert download.value.suggested_filename == f"second-token-memory.{kind.lower()}"
        download.value.save_as(tmp_path / f"bars {kind}")
        assert (tmp_path / f"bars {kind}").read_bytes().startswith(start)
        visit.section("Curves")
        visit.page.locator(".js-plotly-plot").first.hover()
        button = visit.page.locator(f'.modebar-btn[data-title="{title}"]').first
        with visit.page.expect_download() as download:
            button.click()
        download.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)
