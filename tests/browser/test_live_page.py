"""The live page as a visitor uses it: a real browser, a real server, the default model."""

import json
import re
from pathlib import Path

from tests.support.server import Server
from tests.support.visit import Visit
from viz_engine.run.log import RunLog
from viz_engine.server.recorded import FOLDER

OURS = re.compile(r"(https?|wss?)://127\.0\.0\.1|data:|blob:")


def log_of(visit: Visit) -> RunLog:
    """The run on the page, as the server holds it."""
    return RunLog.read("\n".join(visit.frame()[1]).encode() + b"\n")


# the steps that were on screen in some frame, from the first one on; the view is in a shadow tree
WATCH_STEPS = """
window.steps = [];
const roots = [];
const attach = Element.prototype.attachShadow;
Element.prototype.attachShadow = function (options) {
  roots.push(attach.call(this, options));
  return roots.at(-1);
};
const look = () => {
  const k = roots.map((root) => root.querySelector(".kv")?.dataset.k).find(Boolean) ?? "0";
  if (k !== "0" && !steps.includes(k)) steps.push(k);
  requestAnimationFrame(look);
};
look();
"""


def test_a_recorded_run_plays_before_anybody_presses_a_button(visit: Visit) -> None:
    visit.page.add_init_script(WATCH_STEPS)
    visit.open()
    visit.wait(lambda: len(visit.page.evaluate("steps")) > 1)
    visit.wait(lambda: "recorded" in visit.text(".info"))
    assert all(OURS.match(url) for url in visit.requests), "a request left this machine"


def test_a_run_on_the_default_model_is_shown_to_its_last_token(visit: Visit) -> None:
    visit.open()
    visit.ask("Why is the sky blue?", new_tokens=8)
    visit.finish()
    log = log_of(visit)
    assert log.finished.finish_reason in ("length", "stop")
    assert int(visit.data("rows")) == log.num_rows[0]
    assert int(visit.data("k")) == len(log.steps)
    assert log.texts(0).strip() in visit.text(".words")
    assert "The first token took" in visit.text(".say")


def test_reload_and_the_link_elsewhere_restore_the_run(visit: Visit, chromium: object) -> None:
    visit.open()
    visit.ask("Name three birds.", new_tokens=8)
    visit.finish()
    seen = visit.data("rows"), visit.data("events"), visit.text(".words")
    visit.page.reload()
    visit.wait(lambda: visit.data("ended") == "1")
    assert (visit.data("rows"), visit.data("events"), visit.text(".words")) == seen
    other = Visit(chromium, visit.server)
    other.open(f"/?run={visit.run_id}")
    other.wait(lambda: other.data("events") == seen[1])
    other.close()


def test_scrubbing_to_a_step_shows_exactly_its_rows(visit: Visit) -> None:
    visit.open()
    visit.ask("Count to five.", new_tokens=8)
    visit.finish()
    log = log_of(visit)
    visit.page.keyboard.press("Home")
    visit.wait(lambda: visit.data("k") == "0")
    assert visit.data("rows") == "0"
    for number, step in enumerate(log.steps, start=1):
        visit.page.keyboard.press("ArrowRight")
        visit.wait(lambda number=number: visit.data("k") == str(number))
        assert int(visit.data("rows")) == step.appended[0][1]
    visit.page.keyboard.press("ArrowLeft")
    visit.wait(lambda: visit.data("k") == str(len(log.steps) - 1))
    assert int(visit.data("rows")) == log.steps[-2].appended[0][1]


def test_leaving_the_page_and_coming_back_loses_nothing(visit: Visit) -> None:
    visit.open()
    visit.ask("Tell me a story about a fox.", new_tokens=64)
    visit.wait(lambda: int(visit.data("k") or 0) > 2)
    link = visit.page.url
    visit.page.goto("about:blank")
    visit.page.goto(link)
    visit.page.locator(".kv").wait_for()
    visit.finish()
    assert int(visit.data("events")) == len(log_of(visit))


def test_stop_ends_the_run_within_a_step_and_keeps_its_rows(visit: Visit) -> None:
    visit.open()
    visit.ask("Write a long story.", new_tokens=512, context="4096")  # most of a minute
    visit.wait(lambda: int(visit.data("k") or 0) > 1)
    visit.page.locator(".st-key-stop button").click()
    visit.finish()
    log = log_of(visit)
    assert log.finished.finish_reason == "cancelled" and len(log.steps) < 500
    assert int(visit.data("rows")) == log.num_rows[0] > 0


def test_markup_in_prompt_and_output_is_shown_as_text(visit: Visit) -> None:
    evil = (
        '<img src=x onerror="window.hit=1"><script>window.hit=1</script> \u202eabc\u202c \x00 **b**'
    )
    visit.open()
    visit.ask(f"Repeat this exactly: {evil}", new_tokens=48)
    visit.finish()
    assert visit.page.evaluate("window.hit") is None
    assert visit.page.locator(".kv img, .kv script").count() == 0
    assert "<script>" in "".join(log_of(visit).started.prompt_texts[0])


def test_projection_hides_the_controls_and_f_brings_them_back(guest: Visit) -> None:
    guest.stay()
    guest.wait(lambda: int(guest.data("rows") or 0) > 0)
    guest.page.locator(".kv .text").click()
    guest.page.keyboard.press("f")
    guest.page.get_by_role("textbox", name="Prompt").wait_for(state="hidden")
    guest.page.keyboard.press("f")
    guest.page.get_by_role("textbox", name="Prompt").wait_for(state="visible")


def test_a_downloaded_run_opens_again_equal(visit: Visit, tmp_path: Path) -> None:
    visit.open()
    visit.ask("Hello!", new_tokens=8)
    visit.finish()
    visit.page.get_by_role("button", name="Runs").click()
    with visit.page.expect_download() as download:
        visit.page.get_by_role("button", name="Download run").click()
    path = tmp_path / "run.jsonl"
    download.value.save_as(path)
    assert RunLog.read(path.read_bytes()).events == log_of(visit).events
    before = visit.run_id
    visit.page.locator('input[type="file"]').set_input_files(path)
    visit.wait(lambda: visit.run_id != before)
    visit.wait(lambda: int(visit.data("events") or 0) == len(log_of(visit)))


# What Streamlit makes an icon, a link, an address, a formula, a colour or a picture of.
LIVE = (
    ":material/delete: :smile: :red[r] [x](https://evil.example/a) https://evil.example "
    "www.evil.example a@evil.example $x^2$ <b>b</b> ![i](https://evil.example/i.png)"
)
DRAWN = """() => [...document.querySelectorAll('a, img, b, .katex, [role=img]')]
  .filter((node) => /evil/.test(node.href ?? node.src ?? '') || /^delete|^b$/.test(node.textContent)
    || node.className === 'katex').map((node) => node.outerHTML)"""


def test_icons_and_links_from_a_file_are_drawn_as_text(visit: Visit, tmp_path: Path) -> None:
    head, *lines = (FOLDER / "runs" / "2-chat.jsonl").read_text(encoding="utf-8").splitlines()
    started = json.loads(head)
    hardware = started["hardware"]
    started["hardware"] = {k: LIVE if isinstance(v, str) else v for k, v in hardware.items()}
    started["versions"] = dict.fromkeys(started["versions"], LIVE)
    started["settings"] |= {"model": LIVE, "prompts": [LIVE]}
    started["spec"] |= {"name": LIVE, "model_type": LIVE}
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join([json.dumps(started), *lines]), encoding="utf-8")
    visit.open()
    before = visit.run_id
    visit.page.get_by_role("button", name="Runs").click()
    visit.page.locator('input[type="file"]').set_input_files(path)
    visit.wait(lambda: visit.run_id != before)
    visit.page.get_by_text(re.compile("material/delete")).last.wait_for(timeout=20_000)
    assert visit.page.evaluate(DRAWN) == []
    assert not any("evil" in url for url in visit.requests)


def test_the_fallback_transport_shows_the_same_run(visit: Visit) -> None:
    page = "<!doctype html><title>app</title>"
    visit.page.route("**/api/**", lambda route: route.fulfill(content_type="text/html", body=page))
    visit.page.route_web_socket(re.compile("/api/"), lambda socket: socket.close())
    visit.open()
    visit.ask("Name a colour.", new_tokens=16)  # at once: before the page has noticed
    visit.finish()
    log = log_of(visit)
    shown = [str(len(log)), str(log.num_rows[0])]
    visit.wait(lambda: [visit.data("events"), visit.data("rows")] == shown)


def test_two_visitors_share_the_engine_in_turn(visit: Visit, chromium: object) -> None:
    visit.open()
    visit.ask("Write a long poem.", new_tokens=512, cache=False)  # it takes minutes
    visit.wait(lambda: int(visit.data("k") or 0) > 1)
    other = Visit(chromium, visit.server)
    other.open()
    other.ask("Hi", new_tokens=2)
    status = other.header()["status"]
    assert status["state"] == "queued" and status["position"] == 1
    other.wait(lambda: "place 1" in other.text(".say"))
    visit.page.locator(".st-key-stop button").click()
    other.finish()
    other.close()


def test_a_killed_engine_is_said_in_words_and_the_next_run_works(
    visit: Visit, server: Server
) -> None:
    visit.open()
    visit.ask("Write a long essay.", new_tokens=512)
    visit.wait(lambda: int(visit.data("k") or 0) > 3)
    server.engine().kill()
    visit.finish()
    log = log_of(visit)
    assert log.finished.finish_reason == "error" and log.num_rows[0] > 0
    assert int(visit.data("rows")) == log.num_rows[0]
    visit.wait(lambda: log.finished.error.text("en")[:20] in visit.text(".say"))
    visit.ask("And now?", new_tokens=2)
    visit.finish()
    assert log_of(visit).finished.finish_reason in ("length", "stop")


def test_without_torch_recorded_runs_play_and_generate_says_why(
    chromium: object, without_torch: Server
) -> None:
    visit = Visit(chromium, without_torch)
    visit.open()
    visit.wait(lambda: int(visit.data("rows") or 0) > 0)
    visit.ask("Hello", new_tokens=2)
    visit.page.get_by_text(re.compile("torch|transformers")).first.wait_for()
    assert not visit.faults
    visit.close()
