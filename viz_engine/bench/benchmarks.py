"""BENCHMARKS.md: what each bench printed last, under its command, with the day and the machine.

`bench --write` puts what it prints there, in place of what stood under the same command; the words
around the measurements are left alone. It measures nothing.

Try it: tests/bench/test_benchmarks.py
"""

import contextlib
import datetime
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from viz_engine.paths import ROOT
from viz_engine.run import machine

FILE = ROOT / "BENCHMARKS.md"


class _Tee(io.TextIOBase):
    """Writes to a stream and keeps a copy."""

    def __init__(self, stream: io.TextIOBase) -> None:
        self.stream = stream
        self.copy = io.StringIO()

    def write(self, text: str) -> int:
        self.copy.write(text)
        return self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()


@contextlib.contextmanager
def written(command: str, path: Path = FILE) -> Iterator[None]:
    """Keep what is printed inside under `command` in the file at `path`, once it is whole: what
    ends in an exception changes nothing."""
    load = os.getloadavg()[0]
    tee = _Tee(sys.stdout)
    with contextlib.redirect_stdout(tee):
        yield
    made = (
        f"{datetime.date.today().isoformat()}, {machine.cpu_name()}, {os.cpu_count()} cores, "
        f"load average before {load:.1f}, after {os.getloadavg()[0]:.1f}"
    )
    text = path.read_text(encoding="utf-8")
    path.write_text(replaced(text, command, tee.copy.getvalue(), made), encoding="utf-8")


def replaced(text: str, command: str, printed: str, made: str) -> str:
    """`text` with the block under `command` in place of the one that stood there, or with a new
    section at its end."""
    heading = f"## `{command}`\n"
    block = f"{made}\n\n```\n{printed.strip()}\n```\n"
    if heading not in text:
        return f"{text.rstrip()}\n\n{heading}\n{block}"
    before, _, after = text.partition(heading)
    section, *rest = re.split(r"(?m)^(?=## )", after, maxsplit=1)
    # A section: words, then the line and the block that were measured.
    words = re.sub(r"(?ms)^\d{4}-\d\d-\d\d, [^\n]*\n\n```\n.*?^```\n", "", section).strip()
    words = f"{words}\n\n" if words else ""
    tail = "\n" if rest else ""
    return f"{before}{heading}\n{words}{block}{tail}{''.join(rest)}"
