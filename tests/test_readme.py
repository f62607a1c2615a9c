"""The README is true: its tree equals the files, its commands exist."""

import re
import subprocess

from viz_engine.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def tree_of_readme() -> set[str]:
    """Paths of the annotated tree: the fenced block that begins with app.py; folders end in /."""
    block = next(b for b in re.findall(r"```\n(.*?)```", README, re.S) if b.startswith("app.py"))
    paths, folders = set(), []
    for line in block.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders = folders[:depth]
        if name.endswith("/"):
            folders.append(name)
        paths.add("".join(folders) + ("" if name.endswith("/") else name))
    return paths


def tracked_files() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {path for path in listed.stdout.split() if (ROOT / path).exists()}


def test_tree_in_the_readme_equals_the_files() -> None:
    named = tree_of_readme()
    files = {path for path in named if not path.endswith("/")}
    closed = {  # folders whose files the tree does not list one by one
        path
        for path in named
        if path.endswith("/") and not any(p.rpartition("/")[0] + "/" == path for p in files)
    }
    tracked = tracked_files() - {"README.md"}
    assert files <= tracked, f"not there: {sorted(files - tracked)}"
    missing = {path for path in tracked - files if not any(path.startswith(f) for f in closed)}
    assert not missing, f"not in the README: {sorted(missing)}"
    assert all(any(path.startswith(folder) for path in tracked) for folder in closed)


def test_commands_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"`make ([a-z]+)`", README)) | set(
        re.findall(r"^make (\w+)", README, re.M)
    )
    assert {"run", "test"} <= named <= targets


def test_files_named_in_the_readme_are_there() -> None:
    for path in re.findall(r"\]\(((?!https?:)[^)#]+)\)", README):
        assert (ROOT / path).exists(), path
