"""The latency page as a visitor uses it: a sweep of one's own and its link."""

import re

from tests.support.visit import Visit

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


def test_a_sweep_of_ones_own_takes_the_recorded_ones_place_and_has_a_link(visit: Visit) -> None:
    opened(visit)
    box = visit.page.get_by_role("textbox", name="Prompt lengths, in tokens")
    box.fill("64, 128")
    box.press("Tab")
    visit.page.get_by_text("2 values × 3 repeats").wait_for()
    visit.settle()
    visit.page.evaluate("document.fonts.ready.then(() => true)")
    places = visit.page.evaluate_handle(WATCH_PLACES)
    visit.page.get_by_role("button", name="Measure here").click()
    visit.page.wait_for_url(re.compile("sweep="))
    visit.page.get_by_text("measured on").first.wait_for()
    visit.page.locator(".js-plotly-plot").first.wait_for()
    assert len(places.json_value()) == 1  # what is below was moved in no frame
    visit.page.get_by_role("button", name="Measure here").wait_for()  # it is over
    link = visit.page.url
    visit.page.goto("about:blank")
    visit.page.goto(link)
    visit.page.get_by_text("recorded on").or_(
        visit.page.get_by_text("measured on")
    ).first.wait_for()
    assert visit.page.get_by_text("does not hold the sweep").count() == 0
