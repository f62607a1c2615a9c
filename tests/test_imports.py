"""Imports only go down: the table of the architecture, held as data."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Each module may import those of the groups before its own, and those named before it in its group.
GROUPS = (
    ("text", "spec", "hardware", "prompt", "model_files"),
    ("cost", "events", "race_log"),
    (
        "config_keys",
        "weights",
        "quantization",
        "layer_kinds",
        "layer_rows",
        "config",
        "kv",
        "engines",
        "reserve",
        "logs",
        "config_files",
    ),
    (
        "metrics",
        "race",
        "definitions",
        "roofline",
        "memory",
        "size",
        "capacity",
        "bill",
        "bill_link",
        "residual",
        "checks",
        "sweep",
        "fits",
        "diagnose",
        "latency",
        "command",
    ),
    (
        "threads",
        "kernels",
        "attention",
        "cache",
        "probe",
        "linear",
        "norm",
        "trace",
        "models",
        "ceilings",
        "decode",
        "engine",
        "race_runs",
    ),
    ("worker", "engine_process", "live", "recorded", "sweep_job", "routes", "static_files"),
    (
        "ask_boxes",
        "charts",
        "memory_charts",
        "race_charts",
        "markup",
        "bill_words",
        "bill_frames",
        "bill_figures",
        "evidence",
        "latency_charts",
        "latency_view",
        "kv_matrix",
        "bill_view",
    ),
    ("sweep_command", "sweep_bench"),
    ("live_bench", "memory_bench", "bench_report", "contenders", "race_bench", "bench"),
    ("pages", "app", "__main__"),
)
# At their top:
TORCH_USERS = {
    "kernels",
    "norm",
    "attention",
    "cache",
    "probe",
    "linear",
    "trace",
    "models",
    "ceilings",
    "decode",
    "engine",
}
TORCH_USERS |= {"race_runs", "contenders", "race_bench", "bench"}
# Inside a function that runs in the engine process:
TORCH_LATE = {"worker", "sweep_command", "sweep_bench", "__main__"}
PLOTLY_USERS = {"charts", "memory_charts", "race_charts"}
STREAMLIT_USERS = {"pages", "ask_boxes", "kv_matrix", "bill_view", "live", "app"}
TORCH = {"torch", "transformers", "gguf"}


def python_files() -> list[Path]:
    """The product's own files: app.py, pages and the engine."""
    return [
        ROOT / "app.py",
        *sorted((ROOT / "pages").glob("*.py")),
        *sorted((ROOT / "viz_engine").glob("*.py")),
    ]


def module_of(path: Path) -> str:
    return "pages" if path.parent.name == "pages" else path.stem


def imports_of(path: Path) -> list[tuple[str, bool]]:
    """(dotted name, at top level) of everything a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [f"{base}.{a.name}" for a in node.names] if base == "viz_engine" else [base]
        else:
            continue
        found += [(name, id(node) not in late) for name in names]
    return found


def rank(module: str) -> tuple[int, int]:
    for group, names in enumerate(GROUPS):
        if module in names:
            return group, names.index(module)
    raise AssertionError(f"{module} is in no group of the import table")


@pytest.mark.parametrize("path", python_files(), ids=lambda path: path.name)
def test_imports_only_go_down(path: Path) -> None:
    module = module_of(path)
    if module == "__init__":
        assert imports_of(path) == []
        return
    for name, at_top in imports_of(path):
        root, _, rest = name.partition(".")
        if root == "viz_engine":
            target = rest.split(".")[0]
            assert rank(target) < rank(module), f"{module} imports {target}"
            if target in TORCH_USERS and module not in TORCH_USERS:
                assert module in TORCH_LATE and not at_top, f"{module} reaches torch by {target}"
        elif root in TORCH:
            assert module in TORCH_USERS or (module in TORCH_LATE and not at_top), module
        elif root == "streamlit":
            assert module in STREAMLIT_USERS, f"{module} imports streamlit"
        elif root == "plotly":
            assert module in PLOTLY_USERS, f"{module} imports plotly"


def test_every_module_is_in_the_table() -> None:
    named = {name for group in GROUPS for name in group}
    assert {module_of(path) for path in python_files()} - {"__init__"} == named
