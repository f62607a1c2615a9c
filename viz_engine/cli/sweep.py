"""`sweep`, `diagnose` and `ceilings` of the command line.

Progress goes to stderr, what was found to stdout: words, or with --json one JSON document.

Try it: `python -m viz_engine sweep --what ttft --budget 30`
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from viz_engine.analysis import diagnose, points
from viz_engine.analysis.points import points_of
from viz_engine.model.files import DEFAULT_MODEL
from viz_engine.model.tokenizer import FILLERS
from viz_engine.run import ceilings as kept_ceilings
from viz_engine.run import machine as run_machine
from viz_engine.run import sweep
from viz_engine.run.codec import settings_to_dict
from viz_engine.run.command import QUESTIONS, label_of
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.files import what_is
from viz_engine.run.log import RunLog
from viz_engine.run.members import SETTINGS
from viz_engine.run.sweep import SweepSettings, values_of
from viz_engine.text import Message, UserError


def add_commands(commands: argparse._SubParsersAction) -> None:
    """The three parsers."""
    one = commands.add_parser("sweep", help="the same run at several lengths or batch sizes")
    add_arguments(one)
    one.add_argument("--out", help="also write the runs to this file (.jsonl)")
    one.set_defaults(do=_sweep)
    two = commands.add_parser("diagnose", help="where the time goes: a verdict on runs or sweeps")
    two.add_argument("files", nargs="+", help="files of `sweep` or `record`")
    two.add_argument("--json", action="store_true")
    two.set_defaults(do=_diagnose)
    three = commands.add_parser("ceilings", help="measure this machine's bandwidth and FLOP rate")
    three.add_argument("--device", default="auto")
    three.add_argument("--json", action="store_true")
    three.set_defaults(do=_ceilings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say what a sweep is."""
    add = parser.add_argument
    add(
        "--what",
        choices=(*sweep.KINDS, *SETTINGS),
        default="ttft",
        metavar="WHAT",
        help="ttft against length, itl against context, batch, or a setting of a run",
    )
    add("--values", help="prompt lengths, batch sizes or what the setting takes, with commas")
    add("--repeats", type=int, default=sweep.REPEATS, metavar="N")
    add("--budget", type=float, default=sweep.BUDGET_S, metavar="S", help="seconds, for all runs")
    add("--new-tokens", type=int, metavar="N", help="of each run")
    add("--prompt-tokens", type=int, metavar="N", help="of each run of a batch sweep")
    add("--filler", choices=FILLERS, default="en")
    add("--model", default=DEFAULT_MODEL)
    add("--device", default="auto")
    add("--dtype", default="auto")
    add("--seed", type=int, default=0, help="of the order")
    add("--json", action="store_true")


def settings_of(args: argparse.Namespace) -> SweepSettings:
    """The sweep that parsed options ask for. Raises UserError on values that are no numbers."""
    run = RunSettings(
        model=args.model,
        prompts=(QUESTIONS[args.filler],),
        device=args.device,
        dtype=args.dtype,
        filler=args.filler,
    )
    made = sweep.default_settings(args.what, run)
    run = made.run
    if args.new_tokens is not None:
        run = dataclasses.replace(run, new_tokens=args.new_tokens)
    if args.prompt_tokens is not None and made.varied != "context_len":
        run = dataclasses.replace(run, context_len=args.prompt_tokens)
    values = made.values if args.values is None else _values(made.varied, args.values)
    asked = dataclasses.replace(
        made,
        run=run,
        values=values,
        repeats=args.repeats,
        budget_s=args.budget,
        seed=args.seed,
    )
    sweep.check_sweep(asked)
    return asked


def _values(varied: str, text: str) -> tuple[int | float | str, ...]:
    if varied in sweep.VARIED.values():
        return values_of(text)
    return tuple(label_of(f"{varied}={value}")[varied] for value in text.split(","))


def _say(text: str) -> None:
    print(f"\r{text}        ", end="", file=sys.stderr, flush=True)


def _progress(message: Message, fraction: float | None) -> None:
    _say(str(message) + ("" if fraction is None else f" {fraction:.0%}"))


def _sweep(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    if args.out and not Path(args.out).resolve().parent.is_dir():
        raise UserError("error.out_file", path=args.out, reason="no such folder")
    run_machine.share_cores()
    from viz_engine.engine import ceilings, experiment, load

    run = settings.run
    loaded = load.load(run.model, run.device, run.dtype, _progress)
    kept = kept_ceilings.load(loaded.hardware.name, loaded.device)
    if kept is None:
        _say("measuring this machine's ceilings")
        kept = ceilings.measure(loaded.device, loaded.hardware.name)
        kept_ceilings.save(kept)
    log = experiment.measure(loaded, settings, _say, kept)
    print(file=sys.stderr)
    if args.out:
        try:
            Path(args.out).write_text(log.to_jsonl(), encoding="ascii", newline="\n")
        except OSError as error:
            reason = error.strerror or "?"
            raise UserError("error.out_file", path=args.out, reason=reason) from None
    print(json.dumps(document(log), indent=1) if args.json else table(log))
    return 1 if log.ended == "error" else 0


def document(log: ExperimentLog) -> dict[str, object]:
    """A sweep as JSON: its points with all values, in seconds."""
    return {
        "settings": settings_to_dict(log.settings),
        "ceilings": None if log.ceilings is None else kept_ceilings.to_dict(log.ceilings),
        "ended": log.ended,
        "error": None if log.error is None else str(log.error),
        "points": [dataclasses.asdict(point) for point in points_of(log)],
    }


def table(log: ExperimentLog) -> str:
    """A sweep as lines: medians with p10 to p90, in milliseconds."""
    what = log.settings.what
    name = {"ttft": "prompt", "itl": "context"}.get(what, what)
    lines = [f"{name:>8}  runs  TTFT ms (p10-p90)            ITL ms (p10-p90)"]
    for point in points_of(log):
        figures = [_cell(point.ttft_s), _cell(point.itl_s)]
        lines.append(f"{point.value:>8}  {point.num_runs:>4}  {figures[0]:<27}  {figures[1]}")
    if points.thin(log):
        lines.append(
            f"fewer than {points.SPREAD_RUNS} runs: no p10-p90, and one run may be far off"
        )
    if log.ended != "done":
        lines.append(f"ended: {log.ended}" + (f" ({log.error})" if log.error else ""))
    return "\n".join(lines)


def _cell(one: points.Spread | None) -> str:
    if one is None:
        return "-"
    if one.p10 is None:
        return f"{one.median * 1e3:.1f} (-)"
    return f"{one.median * 1e3:.1f} ({one.p10 * 1e3:.1f}-{one.p90 * 1e3:.1f})"


def read_logs(
    files: list[str],
) -> tuple[list[RunLog], kept_ceilings.Ceilings | None, list[RunLog] | None]:
    """The runs in files of `sweep` or `record`, the ceilings that a sweep carries, and those of
    the runs that are the first sweep of the batch. Raises UserError with the file that cannot be
    read."""
    logs, ceilings, batch = [], None, None
    for name in files:
        try:
            data = Path(name).read_bytes()
        except OSError as error:
            raise UserError("sweep.no_file", path=name, reason=error.strerror or "?") from None
        if what_is(data) == "sweep":
            log = ExperimentLog.read(data, "sweep")
            logs += log.runs()
            ceilings = ceilings or log.ceilings
            if batch is None and log.settings.what == "batch":
                batch = log.runs()
        else:
            logs.append(RunLog.read(data))
    if ceilings is None and logs and logs[0].started is not None:
        machine = logs[0].started.hardware
        ceilings = kept_ceilings.load(machine.name, machine.device)
    return logs, ceilings, batch


def _diagnose(args: argparse.Namespace) -> int:
    found = diagnose.diagnose(*read_logs(args.files))
    print(json.dumps(diagnose.to_dict(found), indent=1) if args.json else diagnose.words(found))
    return 0


def _ceilings(args: argparse.Namespace) -> int:
    run_machine.share_cores()
    from viz_engine.engine import ceilings
    from viz_engine.engine.device import choose_device, describe_device

    device, _ = choose_device(args.device)
    found = ceilings.measure(device, describe_device(device).name)
    kept_ceilings.save(found)
    if args.json:
        print(json.dumps(kept_ceilings.to_dict(found), indent=1))
        return 0
    one = found.bandwidth
    print(f"{found.machine}, {found.device}, {found.num_threads} threads")
    print(f"memory    {one.per_s / 1e9:8.1f} GB/s     spread {one.spread:.0%}  {one.kernel}")
    for dtype, one in found.flops.items():
        print(f"{dtype:<9} {one.per_s / 1e9:8.1f} GFLOP/s  spread {one.spread:.0%}  {one.kernel}")
    return 0
