"""What a file of this app's holds, and its lines read into a log, within bounds.

A file is data from elsewhere: its size, the numbers of a record and the steps that have to be
worked out are looked at before anything is done with them. It knows nothing of what a log demands.

Try it: `python -c "from viz_engine.run.files import what_is; \
print(what_is(open('run.jsonl','rb').read()))"`
"""

import json
import re
import typing
from contextlib import suppress

from viz_engine.run.events import StepFinished
from viz_engine.text import UserError, whole_characters

MAX_FILE_BYTES = 64 * 1024**2
MAX_HEAD_BYTES = 2**20  # of a file's first line
FIRST_LINES = {"run_started": "run", "race_started": "race", "sweep": "sweep"}  # -> what it is
PAGES = {  # of what this app's files hold -> the sentence that names the page for one
    "run": "error.file_is_run",
    "race": "error.file_is_race",
    "sweep": "error.file_is_sweep",
}
# What a reader holds and works out grows with them: an attention picture of 700 x 700, a model of
# 128 layers and 8 000 steps are within.
MAX_RECORD_NUMBERS = 2**19
MAX_FILE_NUMBERS = 2**22
MAX_LAYER_STEPS = 2**20
MIN_LAYERS = 16  # that a step counts as: its record and its frame cost as much


class LogError(ValueError):
    """A record that breaks an invariant of the log: a fault of its source, never of the visitor."""


def what_is(data: bytes) -> str | None:
    """What a file of this app's holds ("run", "race" or another experiment), by its first line;
    None where that does not say so."""
    try:
        head = json.loads(data[:MAX_HEAD_BYTES].split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return None
    kind = head.get("kind") if isinstance(head, dict) else None
    what = head.get("experiment") if kind == "experiment_started" else FIRST_LINES.get(str(kind))
    return what if isinstance(what, str) else None


def check_first_line(data: bytes, own: str | None) -> None:
    """Raises UserError that names the right page, where a file is this app's own but holds another
    thing than `own` (None: any experiment); what else may be wrong is for others to say."""
    what = what_is(data)
    if what in PAGES and what != own and (own is not None or what == "run"):
        raise UserError(PAGES[what])


_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed")


def _whole(line: bytes) -> bytes:
    """A line of a file without halves of characters, which no page can show."""
    if _HALF.search(line) is None:
        return line
    with suppress(ValueError, RecursionError):  # for the reader to refuse
        return json.dumps(whole_characters(json.loads(line)), separators=(",", ":")).encode()
    return line


def _num_layers(log: typing.Any, event: object) -> int:
    """Layers that a record makes a reader work out: of a step, those of its run."""
    run, record = log.part(event)
    if not isinstance(record, StepFinished):
        return 0
    spec = run.started.spec
    return max(MIN_LAYERS, len(spec.layers)) if spec else MIN_LAYERS


def read_into(log: typing.Any, data: bytes) -> None:
    """Append the lines of a file to a log. Raises UserError with the line that is wrong and why;
    a last line that was cut in the middle is left out."""
    if len(data) > MAX_FILE_BYTES:
        raise UserError("error.file_size", size=len(data) // 2**20, most=MAX_FILE_BYTES // 2**20)
    lines = data.splitlines()
    num_numbers = layer_steps = num_events = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        num_numbers += (size := line.count(b",") + 1)
        if size > MAX_RECORD_NUMBERS or num_numbers > MAX_FILE_NUMBERS:
            raise UserError("error.file_numbers", line=number)
        try:
            log.take_line(_whole(line))
            layer_steps += sum(_num_layers(log, event) for event in log.events[num_events:])
            num_events = len(log.events)
            if layer_steps > MAX_LAYER_STEPS:
                raise UserError("error.file_layer_steps", most=MAX_LAYER_STEPS)
        except UserError as error:
            if number == len(lines) and log.steps and not data.endswith(b"\n"):
                break
            reason = error.message
            raise UserError("error.file_at_line", line=number, reason=reason) from None
        except LogError as error:
            raise UserError("error.file_order", line=number, reason=str(error)) from None
