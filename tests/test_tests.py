"""The tests' own order: what several of them need stands in tests/support/."""

import ast
from pathlib import Path

import pytest

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
