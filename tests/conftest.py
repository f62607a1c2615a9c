"""Models for the tests: the packaged default, and tiny random ones of each family."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import speeds
from tests.support.models import write_tiny
from viz_engine.run import machine

# Before any test imports torch. One thread: with two, a product is summed in an order that depends
# on how busy the machine is, and no test could ask for logits equal to the bit.
os.environ.setdefault("OMP_NUM_THREADS", "1")
machine.share_cores()
# The same examples every time, and as long for each as the machine needs.
hypothesis.settings.load_profile("ci")


# Files of minutes, first: a process that is given one at last keeps the others waiting.
LONG = ("web_process", "architectures", "worker", "oracle", "diagnose", "generate", "config_oracle")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only the unmarked tests")


def pytest_configure(config: pytest.Config) -> None:
    for name, what in speeds.MARKS.items():
        config.addinivalue_line("markers", f"{name}: {what}")


def pytest_collection(session: pytest.Session) -> None:
    if session.config.option.quick:
        sys.addaudithook(speeds.refuse_the_slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --quick a file whose every test is marked is not even imported."""
    return True if config.option.quick and speeds.marks_of_file(collection_path) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    for mark in speeds.marks_of_file(item.path) | speeds.marks_of_fixtures(item.fixturenames):
        item.add_marker(mark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order in which `--dist loadfile` hands out the files; with --quick, the unmarked."""
    place = {f"test_{name}": at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))
    if config.option.quick:
        marked = [i for i in items if any(i.get_closest_marker(mark) for mark in speeds.MARKS)]
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The largest gap of the oracle's cases (their property `logit_gap`)."""
    gaps = {
        report.nodeid.partition("::")[2]: value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "logit_gap" and report.when == "call"
    }
    if gaps:
        worst = max(gaps, key=gaps.get)
        terminalreporter.write_line(
            f"largest logit gap to transformers in float32: {gaps[worst]:.1e} ({worst}), "
            f"{len(gaps)} cases"
        )


@pytest.fixture(scope="session")
def starts_a_program() -> None:
    """What a fixture asks for that starts one: the tests that use it get the mark `process`."""


@pytest.fixture(autouse=True)
def nothing_refused() -> Iterator[None]:
    """With --quick a test fails that was kept from something slow, even where it went on."""
    yield
    found = speeds.refused[:]
    speeds.refused.clear()
    assert not found, found


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """family, changes of its config -> folder; made once."""
    made: dict[str, Path] = {}

    def make(family: str = "llama", **changes: object) -> Path:
        key = json.dumps([family, changes], sort_keys=True)
        if key not in made:
            made[key] = write_tiny(tmp_path_factory.mktemp(family), family, **changes)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny(tiny_folder: Callable[..., Path]) -> Callable[..., object]:
    """family, dtype, changes -> Loaded; made once."""
    made: dict[str, object] = {}

    def load(family: str = "llama", dtype: str = "float32", **changes: object) -> object:
        from viz_engine.engine import load as engine_load

        key = json.dumps([family, dtype, changes], sort_keys=True)
        if key not in made:
            made[key] = engine_load.load(str(tiny_folder(family, **changes)), "cpu", dtype)
        return made[key]

    return load


@pytest.fixture(scope="session")
def default_model() -> Callable[[str], object]:
    """dtype -> the packaged model, loaded once (and converted, where it never was)."""
    made: dict[str, object] = {}

    def load(dtype: str = "float32") -> object:
        from viz_engine.engine import load as engine_load

        if dtype not in made:
            made[dtype] = engine_load.load(device="cpu", dtype=dtype)
        return made[dtype]

    return load
