"""`record` and `race` of the command line: a run, or a race, made here and written to a file.

Progress goes to stderr; a refusal leaves no file.

Try it: `python -m viz_engine record --prompt-tokens 600 --new-tokens 40 --out run.jsonl`
"""

import argparse
import contextlib
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, TypeVar

from viz_engine.run import checks, command, machine
from viz_engine.run.codec import to_line
from viz_engine.run.events import RunFinished, RunSettings, RunStarted, StepFinished
from viz_engine.run.experiment import ExperimentFinished, ExperimentLog
from viz_engine.run.log import RunLog
from viz_engine.run.race import RaceSettings
from viz_engine.text import Message, UserError

Asked = TypeVar("Asked", RunSettings, RaceSettings)


def add_commands(commands: argparse._SubParsersAction) -> None:
    """The two parsers."""
    record = commands.add_parser("record", help="run a model once and write the run to a file")
    command.add_arguments(record)
    record.set_defaults(do=_record)
    race = commands.add_parser("race", help="race a run without a cache against one with it")
    command.add_arguments(race)
    command.add_race_arguments(race)
    race.set_defaults(do=_race, out="race.jsonl")


def _record(args: argparse.Namespace) -> int:
    settings = _asked(command.settings_of, args)
    checks.check_settings(settings)  # before a model is loaded
    machine.share_cores()
    from viz_engine.engine import generate, load

    loaded = load.load(settings.model, settings.device, settings.dtype, _say)
    log = RunLog()
    events = generate.generate(loaded, settings, run_id=uuid.uuid4().hex)
    first = next(events)  # a refusal leaves no file
    with _open(args.out) as out:
        for event in _and_rest(first, events):
            log.append(event)
            if isinstance(event, RunStarted):
                _note_length(event)
            out.write(to_line(event) + "\n")
            if isinstance(event, StepFinished):
                print("\r", end="", file=sys.stderr)
                _show_step(log, event)
    return _conclude(log.finished, args.out)


def _asked(settings_of: Callable[[argparse.Namespace], Asked], args: argparse.Namespace) -> Asked:
    """The settings that the options ask for."""
    try:
        settings = settings_of(args)
    except json.JSONDecodeError:
        raise UserError("error.prompt_json") from None
    if not getattr(settings, "run", settings).prompts:
        raise UserError("error.no_prompt")
    return settings


def _race(args: argparse.Namespace) -> int:
    settings = _asked(command.race_settings_of, args)
    checks.check_settings(settings.run)
    machine.share_cores()
    from viz_engine.engine import load, race_runs

    def loaded(run: RunSettings) -> load.Loaded:
        return load.load(run.model, run.device, run.dtype, _say)

    log = ExperimentLog()
    events = race_runs.race(loaded, settings, experiment_id=uuid.uuid4().hex)
    first = next(events)
    with _open(args.out) as out:
        for event in _and_rest(first, events):
            log.append(event)
            out.write(log.to_line(event) + "\n")
            run, record = log.part(event)
            if isinstance(record, StepFinished):
                lane = log.members[-1]
                name = " ".join(map(str, lane.label.values()))
                print(f"\r{name} {lane.repeat} ", end="", file=sys.stderr)
                _show_step(run, record)
    return _conclude(log.finished, args.out)


def _note_length(started: RunStarted) -> None:
    asked = started.settings.context_len
    if asked is not None and started.prompt_columns > asked:
        message = Message(
            key="note.prompt_longer", params={"asked": asked, "tokens": started.prompt_columns}
        )
        print(message, file=sys.stderr)


def _and_rest(first: object, rest: Iterator) -> Iterator:
    yield first
    yield from rest


@contextlib.contextmanager
def _open(out: str) -> Iterator[TextIO]:
    if out == "-":
        yield sys.stdout
        return
    try:
        file = Path(out).open("w", encoding="ascii", newline="\n")
    except OSError as error:
        raise UserError("error.out_file", path=out, reason=error.strerror or "?") from None
    with file:
        yield file


def _say(message: Message, fraction: float | None) -> None:
    share = "" if fraction is None else f" {fraction:.0%}"
    print(f"\r{message}{share}", end="", file=sys.stderr, flush=True)
    if fraction is None or fraction >= 1:
        print(file=sys.stderr)


def _show_step(log: RunLog, step: StepFinished) -> None:
    """One line that overwrites itself: where the run is and how long this step took."""
    of = log.started.settings.new_tokens
    num = sum(1 for s in log.steps if any(s.token_ids))
    line = f"{step.phase} {max(step.context_len)} rows, token {num}/{of}, "
    print(f"{line}{step.duration_ns / 1e6:.1f} ms   ", end="", file=sys.stderr, flush=True)


def _conclude(finished: RunFinished | ExperimentFinished, out: str) -> int:
    if finished.error is not None:
        print(f"\n{finished.error}", file=sys.stderr)
        return 1
    print(f"\n{out} written, finish reason: {finished.finish_reason}", file=sys.stderr)
    return 0
