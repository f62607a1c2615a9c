"""The scripts of the two pages that follow a run, without a browser."""

from collections.abc import Callable, Iterator

import pytest
from streamlit.testing.v1 import AppTest

from tests.support.child import Idle
from viz_engine.paths import ROOT
from viz_engine.server import registry
from viz_engine.server.runs import Run
from viz_engine.server.supervisor import Supervisor
from viz_engine.text import t
from viz_engine.view import components
from viz_engine.view.live import mount as live_mount
from viz_engine.view.race import mount as race_mount


@pytest.fixture
def runs() -> Iterator[registry.Registry]:
    """A registry whose engine never answers, the pages' own while a test is on."""
    before = registry.registry()
    engine = Supervisor(lambda on_line, on_exit: Idle())
    engine.start = engine.check  # no thread of its own
    runs = registry.Registry(engine, alive=lambda session_id: True)
    registry.install(runs)
    yield runs
    registry.install(before)


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the view was mounted with, instead of a view."""
    mounts: list[dict] = []

    def component(*, data: dict, **_: object) -> dict:
        mounts.append(dict(data))
        return {}

    for mount in (live_mount, race_mount):
        monkeypatch.setattr(mount, "_component", lambda: component)
    return mounts


def before_the_view(act: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do that to the run once the page has its buttons and has yet to mount the view."""
    follow = components.follow

    def follow_then(component: object, run: Run, **rest: object) -> object:
        act(run)
        return follow(component, run, **rest)

    monkeypatch.setattr(components, "follow", follow_then)


PAGES = {
    "live": ("prompt", "generate", "stop"),
    "race": ("race_prompt", "race_start", "race_stop"),
}


def asked(page: str, **state: object) -> AppTest:
    """A page whose button has been pressed; its run ends before the view is mounted."""
    test = AppTest.from_file(str(ROOT / "pages" / "shell.py"), default_timeout=120)
    test.query_params["lang"] = "en"
    test.run()
    test.switch_page(str(ROOT / "pages" / f"{page}.py")).run()
    for key, value in state.items():
        test.session_state[key] = value
    prompt, start, _ = PAGES[page]
    test.text_area(key=prompt).set_value("hello")
    test.button(key=start).click().run()
    assert not test.exception
    return test


def keys(test: AppTest) -> set[str | None]:
    return {button.key for button in test.button}


@pytest.mark.parametrize("page", PAGES)
def test_a_run_that_ends_while_the_page_is_made_still_tells_it(
    runs: registry.Registry, mounts: list[dict], monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    before_the_view(lambda run: run and run.finish(None), monkeypatch)
    test = asked(page)
    _, start, stop = PAGES[page]
    assert stop in keys(test) and mounts[-1]["over"] is False
    test.run()  # as the view asks for where it learns of an end that the page had not seen
    assert start in keys(test) and mounts[-1]["over"] is True


def test_a_run_fed_through_the_page_that_ends_while_it_is_made_brings_the_button_back(
    runs: registry.Registry, mounts: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_view(lambda run: run.finish(None), monkeypatch)
    test = asked("live", live_view={"transport": "poll"})
    assert mounts[-1]["transport"] == "poll" and "generate" in keys(test)


@pytest.mark.parametrize(
    ("page", "prefix", "preset"), [("live", "", "preset"), ("race", "race_", "race.preset")]
)
def test_a_language_translates_the_presets_text_and_nothing_of_the_visitors(
    runs: registry.Registry, mounts: list[dict], page: str, prefix: str, preset: str
) -> None:
    test = AppTest.from_file(str(ROOT / "pages" / "shell.py"), default_timeout=120)
    test.query_params["lang"] = "en"
    test.run()
    test.switch_page(str(ROOT / "pages" / f"{page}.py")).run()
    prompt, sizes = f"{prefix}prompt", f"{prefix}new_tokens"
    assert test.text_area(key=prompt).value == t(f"{preset}.document.prompt", "en")
    test.select_slider(key=sizes).set_value(8).run()
    test.button_group(key="language").set_value("zh").run()
    assert not test.exception and test.select_slider(key=sizes).value == 8
    assert test.text_area(key=prompt).value == t(f"{preset}.document.prompt", "zh")
    test.text_area(key=prompt).set_value("my own words").run()
    test.button_group(key="language").set_value("en").run()
    assert test.text_area(key=prompt).value == "my own words"
    assert test.select_slider(key=sizes).value == 8


def test_a_link_to_a_run_of_the_other_kind_is_unknown(
    runs: registry.Registry, mounts: list[dict]
) -> None:
    for page, other in (("live", "race"), ("race", "live")):
        run_id = mounts_of(other, mounts)
        test = AppTest.from_file(str(ROOT / "pages" / "shell.py"), default_timeout=120)
        test.query_params["lang"] = "en"
        test.run()
        test.query_params["run" if page == "live" else "race"] = run_id
        test.switch_page(str(ROOT / "pages" / f"{page}.py")).run()
        assert not test.exception and "does not hold" in test.warning[0].value
        assert mounts[-1]["run_id"].startswith("recorded-")


def mounts_of(page: str, mounts: list[dict]) -> str:
    """The id of a run that was asked for on that page."""
    asked(page)
    return mounts[-1]["run_id"]
