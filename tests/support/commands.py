"""The command line's own reading of a command."""

import shlex

from viz_engine import __main__ as main
from viz_engine.run import command
from viz_engine.run.events import RunSettings


def parsed(line: str) -> RunSettings:
    """The settings that a `record` command asks for."""
    words = shlex.split(line)
    assert tuple(words[:4]) == command.PROGRAM
    return command.settings_of(main.parser().parse_args(words[3:]))
