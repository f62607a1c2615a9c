"""The tests' own order: what several of them need stands in tests/support/, and what is slow is
marked."""

import ast
from pathlib import Path

import pytest

from tests.support import speeds
from viz_engine.paths import ROOT

FILES = sorted((ROOT / "tests").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Dotted names that a file imports; of a `from` the module and its name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_imported_from_a_test_file(path: Path) -> None:
    ours = {name for name in imported(path) if name.split(".")[0] == "tests"}
    assert all(name.startswith("tests.support.") for name in ours), ours


def test_a_file_that_loads_torch_by_what_it_imports_is_marked() -> None:
    assert speeds.loads_torch(ROOT / "tests" / "support" / "tally.py")
    assert speeds.loads_torch(ROOT / "viz_engine" / "engine" / "generate.py")
    assert not speeds.loads_torch(ROOT / "viz_engine" / "server" / "registry.py")
    assert not speeds.loads_torch(ROOT / "tests" / "support" / "models.py")  # in a function only


@pytest.mark.parametrize(
    ("event", "args", "mark"),
    [
        ("import", ("torch", None), "`model`"),
        ("import", ("transformers", None), "`model`"),
        ("subprocess.Popen", ("/usr/bin/python3", ["python3", "-c", ""], None, None), "`process`"),
        ("subprocess.Popen", (None, ["sh", "-c", "true"], None, None), "`process`"),
        ("os.posix_spawn", ("/bin/true", ["true"], {}), "`process`"),
        ("os.fork", (), "`process`"),
    ],
)
def test_an_unmarked_test_is_kept_from_what_is_slow(event: str, args: tuple, mark: str) -> None:
    with pytest.raises(AssertionError, match=mark):
        speeds.refuse_the_slow(event, args)
    assert mark in speeds.refused.pop()


def test_a_program_of_a_moment_may_be_started_by_any_test() -> None:
    for name in ("node", "git"):
        speeds.refuse_the_slow("subprocess.Popen", (f"/usr/bin/{name}", [name], None, None))
    speeds.refuse_the_slow("import", ("json", None))
    assert not speeds.refused


def test_marks_follow_the_folder_and_the_fixtures() -> None:
    assert speeds.marks_of_file(ROOT / "tests" / "browser" / "test_x.py") == {"browser"}
    assert speeds.marks_of_fixtures(["tiny", "starts_a_program", "tmp_path"]) == {
        "model",
        "process",
    }
