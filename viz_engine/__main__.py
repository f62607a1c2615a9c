"""The command line: `python -m viz_engine record`, `size`, `sweep`, `diagnose`, `bench` ...

Progress goes to stderr. What a visitor can put right is one sentence and exit code 2.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from viz_engine.bench import command as bench_command
from viz_engine.cli import record, size, sweep
from viz_engine.text import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 the run ended in an error, 2 it could not start, 130 interrupted."""
    args = parser().parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):  # a name from a file may hold what no encoding can write
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return args.do(args)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> argparse.ArgumentParser:
    """All commands, each with what does it."""
    made = argparse.ArgumentParser(prog="python -m viz_engine")
    commands = made.add_subparsers(required=True)
    record.add_commands(commands)
    size.add_command(commands)
    sweep.add_commands(commands)
    bench_command.add_command(commands)
    return made


if __name__ == "__main__":
    sys.exit(main())
