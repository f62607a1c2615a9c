"""The latency page as a visitor uses it: recorded sweeps, a sweep of one's own, its link."""

import re

from tests.support.visit import Visit

SECTIONS = {  # what only it shows
    "TTFT against length": ".st-key-chart-ttft-png .main-svg",
    "ITL against context": ".st-key-chart-itl-png .main-svg",
    "Batch": ".st-key-chart-batch-png .main-svg",
    "Roofline": ".st-key-chart-roofline-png .main-svg",
    "One trace, five definitions": ".figures >> text=GuideLLM",
    "What a token costs": ".st-key-chart-turns-png .main-svg",
    "Three tests": ".st-key-chart-memory-watch-png .main-svg",
    "Share": "code >> text=sweep=recorded-",
}
# every place, in pixels from the top, that the sections below the boxes have had in some frame
WATCH_PLACES = """() => {
  const places = [];
  const look = () => {
    const top = document.querySelector(".st-key-lat_section").getBoundingClientRect().top;
    if (!places.includes(top)) places.push(top);
    requestAnimationFrame(look);
  };
  look();
  return places;
}"""


def opened(visit: Visit, query: str = "lang=en") -> Visit:
    visit.page.goto(f"{visit.server.url}/latency?{query}")
    visit.page.get_by_role("button", name="Measure here").wait_for()
    return visit


def looking(guest: Visit) -> None:
    """The guest at the first section."""
    if "/latency" not in guest.page.url:
        opened(guest)
    choose(guest, next(iter(SECTIONS)))
    guest.page.locator(SECTIONS["TTFT against length"]).first.wait_for()
    guest.settle()


def choose(visit: Visit, section: str) -> None:
    group = visit.page.locator(".st-key-lat_section")
    group.get_by_role("radio", name=section, exact=True).click()


def test_it_opens_with_recorded_sweeps_and_every_part_shows_something(guest: Visit) -> None:
    looking(guest)
    guest.page.get_by_text("recorded on").first.wait_for()
    for section, part in SECTIONS.items():
        choose(guest, section)
        guest.page.locator(part).first.wait_for()
        guest.settle()
        assert guest.page.get_by_test_id("stException").count() == 0, section


def test_a_number_opens_to_its_formula(guest: Visit) -> None:
    looking(guest)
    card = guest.page.locator(".numbers details").first
    card.locator("summary").click()
    card.locator(".formula").filter(has_text="first token").wait_for()


def test_a_sweep_of_ones_own_takes_the_recorded_ones_place_and_has_a_link(visit: Visit) -> None:
    opened(visit)
    box = visit.page.get_by_role("textbox", name="Prompt lengths, in tokens")
    box.fill("64, 128")
    box.press("Tab")
    visit.page.get_by_text("values × repeats: 2 × 3").wait_for()
    visit.settle()
    visit.page.evaluate("document.fonts.ready.then(() => true)")
    places = visit.page.evaluate_handle(WATCH_PLACES)
    visit.page.get_by_role("button", name="Measure here").click()
    visit.page.wait_for_url(re.compile("sweep="))
    visit.page.get_by_text("measured on").first.wait_for()
    assert len(places.json_value()) == 1  # what is below was moved in no frame
    visit.page.get_by_role("button", name="Measure here").wait_for()  # it is over
    link = visit.page.url
    visit.page.goto("about:blank")
    visit.page.goto(link)
    visit.page.get_by_text("recorded on").or_(
        visit.page.get_by_text("measured on")
    ).first.wait_for()
    assert visit.page.get_by_text("does not hold the sweep").count() == 0


def test_values_that_cannot_be_swept_get_a_sentence(guest: Visit) -> None:
    looking(guest)
    box = guest.page.get_by_role("textbox", name="Prompt lengths, in tokens")
    refused = {
        "abc": "“abc” is not a list",
        "0": "different whole numbers",
        "64 128": "“64 128” is not a list",
        "64, 64": "64 is given twice",
    }
    for text, words in refused.items():
        box.fill(text)
        box.press("Tab")
        guest.page.get_by_role("button", name="Measure here").click()
        guest.page.get_by_text(words).first.wait_for()
        guest.page.locator(".js-plotly-plot").first.wait_for()  # what was there stays


def test_an_unknown_link_says_so_and_shows_the_recorded_sweeps(visit: Visit) -> None:
    opened(visit, "lang=en&sweep=nothing")
    visit.page.get_by_text("does not hold the sweep").wait_for()
    visit.page.locator(".js-plotly-plot").first.wait_for()
