"""The one rule of the layout: a package imports only what stands left of it."""

import ast
import graphlib
from pathlib import Path

import pytest

from viz_engine.paths import ROOT

# From left to right; those of one row do not import each other.
ORDER = (
    ("paths",),
    ("text", "numbers"),
    ("model",),
    ("run",),
    ("memory",),
    ("analysis",),
    ("serving",),
    ("engine", "server"),
    ("view",),
    ("pages", "cli"),
    ("app",),
    ("bench",),
    ("__main__",),
)
# Inside one of them, from left to right too.
INSIDE = {"engine": ("kernels", "cache", "")}
TORCH = {"torch", "transformers", "gguf"}
TORCH_USERS = {"engine", "bench"}
STREAMLIT_USERS = {"server", "view", "pages", "app"}
PLOTLY_USERS = {"view"}
WEB = {"server", "view", "pages", "app"}


def python_files() -> list[Path]:
    """The product's own files: app.py, pages and the engine."""
    return [
        ROOT / "app.py",
        *sorted((ROOT / "pages").glob("*.py")),
        *sorted((ROOT / "viz_engine").rglob("*.py")),
    ]


def module_of(path: Path) -> str:
    """Its dotted name, `viz_engine.` left out: `engine.cache.slab`, `pages.live`, `app`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "viz_engine" else parts)


MODULES = {module_of(path): path for path in python_files()}


def imports_of(path: Path) -> set[str]:
    """Dotted names of all that a file imports, at its top or in a function; of this program the
    modules, `viz_engine.` left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            own = name.removeprefix("viz_engine.")
            if own == name:
                found.add(name)
            else:  # a module, or a name in one
                found.add(own if own in MODULES else own.rpartition(".")[0])
    return found


def ours(path: Path) -> set[str]:
    return {name for name in imports_of(path) if name in MODULES}


def rank(module: str) -> int:
    package = module.split(".")[0]
    for place, names in enumerate(ORDER):
        if package in names:
            return place
    raise AssertionError(f"{package} has no place in the order")


def test_every_package_has_its_place() -> None:
    packages = {name.split(".")[0] for name in MODULES} - {"__init__"}
    assert packages <= {name for row in ORDER for name in row}


@pytest.mark.parametrize("module", [name for name in MODULES if name != "__init__"])
def test_a_package_imports_only_what_stands_left_of_it(module: str) -> None:
    package = module.split(".")[0]
    for target in ours(MODULES[module]):
        other = target.split(".")[0]
        if other == package:
            continue
        assert rank(target) < rank(module), f"{module} imports {target}"
        assert other != "engine" or package not in WEB, f"{module} reaches torch by {target}"


@pytest.mark.parametrize("package", INSIDE)
def test_folders_inside_a_package_have_an_order_too(package: str) -> None:
    order = INSIDE[package]

    def place(module: str) -> int:
        folder = module.split(".")[1] if module.count(".") > 1 else ""
        return order.index(folder)

    for module, path in MODULES.items():
        if module.startswith(f"{package}."):
            for target in ours(path):
                if target.startswith(f"{package}."):
                    assert place(target) <= place(module), f"{module} imports {target}"


def test_no_circle_between_modules() -> None:
    graph = {module: ours(path) for module, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, with the circle


@pytest.mark.parametrize("module", [name for name in MODULES if name != "__init__"])
def test_torch_streamlit_and_plotly_stand_where_they_may(module: str) -> None:
    package = module.split(".")[0]
    for name in imports_of(MODULES[module]):
        root = name.split(".")[0]
        if root in TORCH:
            assert package in TORCH_USERS, f"{module} imports {root}"
        elif root == "streamlit":
            assert package in STREAMLIT_USERS, f"{module} imports streamlit"
        elif root == "plotly":
            assert package in PLOTLY_USERS, f"{module} imports plotly"


def test_init_files_are_empty() -> None:
    for module, path in MODULES.items():
        if module.endswith("__init__"):
            assert not imports_of(path), module
            assert module == "__init__" or not path.read_text(), module
