"""What belongs to every page, in a real browser: keys, the box for anything, a narrow screen."""

import base64

import pytest

from tests.support.server import Server
from tests.support.visit import WAIT_MS, Visit
from viz_engine.paths import ASSETS

PAGES = ("live", "race", "latency", "memory")
# A file of text, dropped on the middle of the page as a browser hands it to a script.
DROP = """([name, data]) => {
  const files = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  files.items.add(new File([bytes], name));
  const target = document.querySelector('[data-testid="stMain"]');
  for (const kind of ["dragover", "drop"]) {
    target.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: files }));
  }
}"""  # noqa: E501
QUESTIONS = {
    "live": "Why is the second token faster than the first?",
    "race": "What does the cache save?",
    "latency": "Where does the time go?",
    "memory": "What does the cache cost, and what fits?",
}


def arrive(visit: Visit, path: str) -> None:
    visit.page.goto(visit.server.url + path)
    visit.page.locator(".frame p").filter(has_text="?").wait_for(state="attached")


def on(visit: Visit, name: str) -> bool:
    return visit.page.locator(".frame p").text_content() == QUESTIONS[name]


@pytest.fixture
def visit(chromium: object, server: Server):
    visit = Visit(chromium, server)
    yield visit
    assert visit.faults == []
    visit.context.close()


def test_a_page_opened_at_its_address_asks_for_nothing_that_is_not_there(visit: Visit) -> None:
    missing = []
    visit.page.on("response", lambda one: one.status >= 400 and missing.append(one.url))
    for name in PAGES[1:]:
        arrive(visit, f"/{name}?lang=en")
        visit.wait(lambda name=name: on(visit, name))
    assert missing == []


def test_keys_go_to_every_page_and_large_type_stays(visit: Visit) -> None:
    arrive(visit, "/?lang=en")
    projected = "document.documentElement.classList.contains('st-projection')"
    for number, name in reversed(list(enumerate(PAGES, 1))):
        visit.page.keyboard.press(str(number))
        visit.wait(lambda name=name: on(visit, name))
        visit.settle()
    visit.page.keyboard.press("4")
    visit.wait(lambda: on(visit, "memory"))
    visit.page.locator(".numbers").first.wait_for()
    visit.page.keyboard.press("f")
    assert visit.page.evaluate(projected)
    assert not visit.page.locator(".st-key-ask").is_visible()
    visit.page.keyboard.press("3")
    visit.wait(lambda: on(visit, "latency"))
    assert visit.page.evaluate(projected)
    visit.page.keyboard.press("f")
    assert visit.page.locator(".st-key-ask").is_visible()


def test_a_number_opens_within_ten_presses_of_tab(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1280, "height": 720})
    for name in PAGES:
        arrive(visit, f"/{name.removeprefix('live')}?lang=en")
        visit.wait(lambda name=name: on(visit, name))
        if name in ("live", "race"):
            visit.page.locator(".kv[data-run]").wait_for()
        else:
            visit.page.locator(".numbers").first.wait_for()
        skip = visit.page.locator(".frame .skip")
        presses = 0
        while not skip.evaluate("(node) => node === document.activeElement"):
            visit.page.keyboard.press("Tab")
            presses += 1
            assert presses < 10
        visit.page.keyboard.press("Enter")
        deepest = """() => {
          let node = document.activeElement;
          while (node?.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
          return node.tagName === "SUMMARY" || node.getAttribute("aria-haspopup") === "dialog";
        }"""
        assert visit.page.evaluate(deepest), name


def test_what_is_dropped_anywhere_opens_on_its_page(visit: Visit) -> None:
    arrive(visit, "/memory?lang=en")
    visit.page.locator(".numbers").first.wait_for()
    data = (ASSETS / "recorded" / "runs" / "2-chat.jsonl").read_bytes()
    visit.page.evaluate(DROP, ["a run.jsonl", base64.b64encode(data).decode()])
    visit.wait(lambda: on(visit, "live"))
    visit.page.locator(".kv[data-run]").wait_for()
    assert "run=" in visit.page.url and "recorded" not in visit.page.url


def test_what_is_pasted_and_cannot_be_read_is_said_as_text(visit: Visit) -> None:
    arrive(visit, "/race?lang=en")
    visit.page.keyboard.press("o")
    box = visit.page.get_by_label("Paste anything")
    box.wait_for()
    visit.wait(lambda: box.evaluate("(node) => node === document.activeElement"))
    box.fill("<img src=x onerror=alert(1)> :material/home:")
    visit.page.get_by_role("button", name="Open it").click()
    told = visit.page.get_by_text("It begins with")
    told.wait_for()
    assert "<img src=x" in told.inner_text() and visit.page.locator("img[src=x]").count() == 0
    assert on(visit, "race")


def test_a_phone_reaches_every_page_and_sees_the_player_before_the_boxes(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 740})
    arrive(visit, "/?lang=en")
    for name, title in zip(PAGES[1:], ("Race", "Latency", "Memory"), strict=True):
        visit.page.get_by_test_id("stExpandSidebarButton").click(timeout=WAIT_MS)
        visit.page.get_by_test_id("stSidebarNavLink").filter(has_text=title).click()
        visit.wait(lambda name=name: on(visit, name))
        visit.settle()
        close = visit.page.get_by_test_id("stSidebarCollapseButton").locator("button")
        if close.is_visible():
            close.click()
    for path in ("/", "/race"):
        visit.open(f"{path}?lang=en")
        top = visit.page.locator(".kv .say").bounding_box()["y"]
        assert top < visit.page.locator(".st-key-ask").bounding_box()["y"]
        wide = "document.documentElement.scrollWidth"
        assert visit.page.evaluate(wide) <= 360
