"""What module docstrings tell a reader to try is there: modules, names, programs, tests."""

import ast
import builtins
import re
from pathlib import Path

import pytest

from viz_engine.paths import ROOT

FILES = [*(ROOT / "viz_engine").rglob("*.py"), *(ROOT / "pages").glob("*.py"), ROOT / "app.py"]
DOCS = {path: ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "" for path in FILES}
TOLD = {path: doc for path, doc in DOCS.items() if "Try it" in doc}


def file_of(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py", base / "__main__.py"):
        if path.is_file():
            return path
    return None


def names_in(path: Path) -> set[str]:
    """What a module defines or imports at its top, and the modules beside it in a package."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        else:
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if path.name == "__init__.py":
        names |= {p.stem for p in path.parent.iterdir()}
    return names


def check_code(code: str) -> None:
    """Imports exist, and so does every attribute asked of an imported module of ours."""
    tree = ast.parse(code)
    modules: dict[str, Path] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("viz_engine"):
            home = file_of(node.module)
            assert home is not None, node.module
            for alias in node.names:
                assert alias.name in names_in(home), f"{node.module}.{alias.name}"
                if inner := file_of(f"{node.module}.{alias.name}"):
                    modules[alias.asname or alias.name] = inner
    bound = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if home := modules.get(node.value.id):
                assert node.attr in names_in(home), f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Name):
            assert node.id in bound, node.id


@pytest.mark.parametrize("path", TOLD, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_docstring_tells_to_try_is_there(path: Path) -> None:
    told = TOLD[path].partition("Try it")[2]
    for code in re.findall(r'python -c "(.*?)"`', told, re.S):
        check_code(code.replace("\\\n", "").replace('\\"', '"'))
    for module in re.findall(r"python -m (viz_engine[\w.]*)", told):
        assert file_of(module), module
    for test in re.findall(r"tests/[\w/]+\.py", told):
        assert (ROOT / test).is_file(), test
    assert re.search(r"python -[cm]|tests/|streamlit run|node|make ", told), "nothing to try"
