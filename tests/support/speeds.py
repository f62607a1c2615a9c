"""The tests' speeds: marks that say what a test loads or starts, and a run of those without.

`model` loads torch, `process` starts a program, `browser` drives one. Where a file's folder, its
imports or a test's fixtures say it, the mark is set for them; else the test carries it.
"""

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from viz_engine.paths import ROOT

MARKS = {
    "model": "loads torch",
    "process": "starts a program",
    "browser": "drives Chromium against a real server",
}
FIXTURES = {
    "tiny": "model",
    "tiny_folder": "model",
    "default_model": "model",
    "starts_a_program": "process",
}
HEAVY = {"torch", "transformers"}
# Programs that any test may start: they take a tenth of a second.
SMALL = {"node", "git"}
STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system"}


def marks_of_file(path: Path) -> set[str]:
    """The marks that all its tests have."""
    if path.suffix != ".py":
        return set()
    if (ROOT / "tests" / "browser") in path.parents:
        return {"browser"}
    return {"model"} if loads_torch(path) else set()


def marks_of_fixtures(names: Iterable[str]) -> set[str]:
    return {FIXTURES[name] for name in names if name in FIXTURES}


refused: list[str] = []  # what unmarked tests were kept from


def refuse_the_slow(event: str, args: tuple[object, ...]) -> None:
    """An audit hook (sys.addaudithook) for a run of unmarked tests: nothing loads torch or starts
    a program."""
    if event == "import" and args[0] in HEAVY:
        refused.append(f"{args[0]} is loaded: the test needs the mark `model`")
    elif event in STARTS and _program(args) not in SMALL:
        refused.append(f"{_program(args)} is started: the test needs the mark `process`")
    else:
        return
    raise AssertionError(refused[-1])


def _program(args: tuple[object, ...]) -> str:
    """Of an event's arguments, the name of what is to run."""
    path = args[0] if args and args[0] else next(iter(args[1:2]), "")
    if isinstance(path, list | tuple):
        path = path[0]
    return Path(str(path)).name


@functools.cache
def loads_torch(path: Path) -> bool:
    """Whether importing that file loads torch, by itself or by what it imports. Imports within
    functions do not count."""
    seen: set[Path] = set()
    ahead = [path]
    while ahead:
        here = ahead.pop()
        if here in seen:
            continue
        seen.add(here)
        for name in _imports(here):
            if name.split(".")[0] in HEAVY:
                return True
            ahead += _files(name)
    return False


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Dotted names of what a file imports while it is imported."""
    return tuple(_names(ast.parse(path.read_text(encoding="utf-8"))))


def _names(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        ):
            yield from _names(child)


def _files(name: str) -> list[Path]:
    """This repository's files that an import of that name reads."""
    parts = name.split(".")
    if parts[0] not in ("viz_engine", "tests", "app"):
        return []
    stems = [ROOT.joinpath(*parts[:stop]) for stop in range(1, len(parts) + 1)]
    found = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
    return [file for file in found if file.is_file()]
