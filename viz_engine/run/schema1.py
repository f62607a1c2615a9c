"""Files of schema 1, when races and sweeps were two formats, line by line as those of today.

A race was a list of runs with `lane_started` before each; a sweep a head with its settings, then
its runs, and no end. It knows the lines only, not what a log demands.

Try it: `python -m pytest tests/run/test_schema1.py`
"""

import json
from collections import Counter
from collections.abc import Mapping

from viz_engine.text import UserError

RACE = ("race_started", "lane_started", "race_finished")
SWEEP = "sweep"


class Upgrade:
    """The lines of one file, in order."""

    def __init__(self) -> None:
        self._member = -1
        self._varied = ""  # of a sweep: the setting that differs
        self._repeats: Counter[object] = Counter()
        self._ended: str | None = None  # of a sweep: why it is over

    def lines(self, line: bytes) -> list[str]:
        """A line as the lines of today that say the same. Raises UserError."""
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError("error.file_line") from None
        kind = data.get("kind") if isinstance(data, dict) else None
        if kind == SWEEP:
            return self._sweep(data)
        if kind == "race_started":
            return [_line(_race(data))]
        if kind == "lane_started":
            label = {"cache": _field(data, "cache")}
            return [self._begin(label, _field(data, "repeat"), _field(data, "purpose"))]
        if kind == "race_finished":
            return [_line(data | {"kind": "experiment_finished"})]
        if kind in ("logits_compared", "prefix_changed"):
            return [line.decode()]
        begin = [self._run(data)] if kind == "run_started" and self._varied else []
        return [*begin, _line(data | {"member": self._member}) if kind else line.decode()]

    def last(self) -> list[str]:
        """The lines that the file lacks at its end."""
        if self._ended is None:
            return []
        return [_line({"kind": "experiment_finished", "finish_reason": self._ended})]

    def _sweep(self, data: Mapping[str, object]) -> list[str]:
        try:
            self._varied = "batch" if data["settings"]["what"] == "batch" else "context_len"
            self._ended = str(data.get("ended", "done"))
            head = {
                "kind": "experiment_started",
                "experiment": "sweep",
                "experiment_id": "",
                "started_at": "",
                "settings": data["settings"],
                "command": "",
                "schema": _next_schema(data),
            }
        except (KeyError, TypeError):
            raise UserError("sweep.bad_file") from None
        lines = [_line(head)]
        if data.get("ceilings") is not None:
            lines.append(_line({"kind": "ceilings_found", "ceilings": data["ceilings"]}))
        return lines

    def _run(self, data: Mapping[str, object]) -> str:
        """The line that tells of a run of a sweep before its first."""
        value = _field(data, "settings").get(self._varied)
        label = {self._varied: value}
        self._repeats[value] += 1
        return self._begin(label, self._repeats[value] - 1, "measured")

    def _begin(self, label: Mapping[str, object], repeat: object, purpose: object) -> str:
        self._member += 1
        return _line(
            {
                "kind": "member_started",
                "member": self._member,
                "label": label,
                "repeat": repeat,
                "purpose": purpose,
            }
        )


def upgrade_of(line: bytes) -> Upgrade | None:
    """What reads a file that begins with this line; None where it is not of schema 1."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kind = data.get("kind") if isinstance(data, dict) else None
    return Upgrade() if kind in (*RACE, SWEEP) else None


def _race(data: Mapping[str, object]) -> dict[str, object]:
    return {
        "kind": "experiment_started",
        "experiment": "race",
        "experiment_id": _field(data, "race_id"),
        "started_at": _field(data, "started_at"),
        "settings": _field(data, "settings"),
        "command": _field(data, "command"),
        "schema": _next_schema(data),
    }


def _next_schema(data: Mapping[str, object]) -> int:
    if data.get("schema", 1) != 1:
        raise UserError("error.file_schema", schema=str(data["schema"])[:20], known=1)
    return 2


def _field(data: Mapping[str, object], name: str) -> object:
    if name not in data:
        raise UserError("error.file_field", field=f"{data['kind']}.{name}")
    return data[name]


def _line(data: Mapping[str, object]) -> str:
    return json.dumps(data, separators=(",", ":"))
