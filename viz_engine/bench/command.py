"""`bench` of the command line: which of the measurements is asked for, and whether it is kept.

Try it: `python -m viz_engine bench --help`
"""

import argparse

from viz_engine.bench import benchmarks, live, memory
from viz_engine.bench import sweep as bench_sweep
from viz_engine.run import machine, sweep

SWITCHES = ("quick", "full", "live", "memory", "race")


def add_command(commands: argparse._SubParsersAction) -> None:
    """The parser."""
    bench = commands.add_parser("bench", help="measure the engine, or the page in a browser")
    bench.add_argument("--quick", action="store_true", help="the engine, few repeats")
    bench.add_argument("--full", action="store_true", help="adds 8 000 tokens at batch 8")
    bench.add_argument("--live", action="store_true", help="the page instead of the engine")
    bench.add_argument("--memory", action="store_true", help="the calculator and its page")
    bench.add_argument("--race", action="store_true", help="what the cache saves")
    bench.add_argument("--sweep", choices=sweep.KINDS, help="a sweep twice: how far it agrees")
    bench.add_argument("--write", action="store_true", help="keep what it prints in BENCHMARKS.md")
    live.add_arguments(bench.add_argument_group("of --live, and --json of both"))
    bench.set_defaults(do=_bench)


def _bench(args: argparse.Namespace) -> int:
    if not args.write:
        return _measure(args)
    asked = [f"--{name}" for name in SWITCHES if vars(args)[name]]
    asked += ["--sweep", args.sweep] if args.sweep else []
    with benchmarks.written(" ".join(["python -m viz_engine bench", *asked])):
        return _measure(args)


def _measure(args: argparse.Namespace) -> int:
    if args.live:
        return live.run(args)
    if args.memory:
        return memory.run(args)
    if args.sweep:
        return bench_sweep.run(args)
    machine.share_cores()
    if args.race:
        from viz_engine.bench import race as bench_race

        return bench_race.run(args)
    from viz_engine.bench import engine as bench_engine

    return bench_engine.run(args)
