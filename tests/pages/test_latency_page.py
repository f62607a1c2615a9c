"""The latency page's script, without a browser: what its boxes ask for."""

import shlex
from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from tests.support import fake_engine
from viz_engine.paths import ROOT
from viz_engine.server import registry, supervisor
from viz_engine.server.limits import Limits


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[registry.Registry]:
    """A registry with the fake engine, the pages' own while a test is on."""
    before = registry.registry()
    runs = registry.Registry(supervisor.Supervisor(fake_engine.spawn()))
    registry.install(runs)
    yield runs
    runs.stop()
    registry.install(before)


def page() -> AppTest:
    test = AppTest.from_file(str(ROOT / "pages" / "shell.py"), default_timeout=300)
    test.query_params["lang"] = "en"
    test.run()
    test.switch_page(str(ROOT / "pages" / "latency.py")).run()
    assert not test.exception
    return test


@pytest.mark.process
def test_the_chosen_model_device_and_type_are_measured(runs: registry.Registry) -> None:
    test = page()
    test.text_input(key="lat_model").set_value(" some-org/some-model ")
    test.selectbox(key="lat_device").set_value("auto")
    test.selectbox(key="lat_dtype").set_value("float32")
    test.button(key="lat_start").click().run()
    assert not test.exception
    sweep = runs.get(test.session_state.lat_job)
    run = sweep.settings.run
    assert (run.model, run.device, run.dtype) == ("some-org/some-model", "auto", "float32")
    runs.cancel(sweep.id)


@pytest.mark.process
def test_stop_ends_the_sweep_and_the_first_button_comes_back(runs: registry.Registry) -> None:
    test = page()
    test.text_input(key="lat_model").set_value("stuck")
    test.button(key="lat_start").click().run()
    sweep = runs.get(test.session_state.lat_job)
    assert not sweep.finished
    test.button(key="lat_stop").click().run()
    fake_engine.until(lambda: sweep.finished)
    assert sweep.log.ended == "cancelled"
    assert test.run().button(key="lat_start")
    assert "stopped before its end" in test.warning[0].value


def test_the_command_names_what_was_chosen() -> None:
    test = page()
    test.text_input(key="lat_model").set_value("a; b")
    test.text_input(key="lat_values").set_value("64; 128")
    test.session_state.lat_section = "share"
    test.run()
    (command,) = (code.value for code in test.code if code.value.startswith("python"))
    words = shlex.split(command)
    assert words[words.index("--model") + 1] == "a; b"
    assert words[words.index("--values") + 1] == "64,128" and "--device" not in words


def test_what_is_to_be_measured_is_what_is_shown() -> None:
    test = page()
    for what in ("itl", "batch", "ttft"):
        test.button_group(key="lat_what").set_value(what).run()
        assert test.session_state.lat_section == what


def test_the_page_says_how_many_runs_the_button_makes() -> None:
    test = page()
    test.text_input(key="lat_values").set_value("64, 128").run()
    test.selectbox(key="lat_repeats").set_value(5).run()
    assert any("10 runs" in caption.value for caption in test.caption)
    test.text_input(key="lat_values").set_value("x").run()
    assert not test.exception and not any("10 runs" in one.value for one in test.caption)
    assert any("not a list of whole numbers" in one.value for one in test.caption)


def test_a_hosted_server_lets_no_other_model_be_named(runs: registry.Registry) -> None:
    runs.limits = Limits(models=("default", "other"))
    test = page()
    assert [box.key for box in test.text_input] == ["lat_values"]
    assert test.selectbox(key="lat_model").options == ["default", "other"]


def test_a_name_that_can_be_no_model_gets_a_sentence(runs: registry.Registry) -> None:
    test = page()
    test.text_input(key="lat_model").set_value("a b c")
    test.button(key="lat_start").click().run()
    assert not test.exception and "lat_job" not in test.session_state
    assert "a b c" in test.warning[0].value.replace("\\", "")
