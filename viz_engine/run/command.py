"""RunSettings as a command line and back: what `record` takes and what each run says re-makes it.

Both directions stand here so that they cannot drift (tests/cli/test_record.py). No torch.

Try it: `python -m viz_engine record --help`
"""

import argparse
import json
import re
import shlex
from dataclasses import MISSING, fields

from viz_engine.model.files import DEFAULT_MODEL
from viz_engine.model.tokenizer import FILLERS
from viz_engine.run.checks import CACHES
from viz_engine.run.events import RunSettings
from viz_engine.run.members import Label
from viz_engine.run.race import LANES, MAX_REPEATS, RaceSettings
from viz_engine.run.sweep import SweepSettings
from viz_engine.text import UserError

PROGRAM = ("python", "-m", "viz_engine", "record")
# What is asked of a document when only its length is given.
QUESTIONS = {
    "en": "In two or three sentences, what does the text above say?",
    "zh": "请用两三句话说明上面的文字讲了什么。",
}
# Setting -> option, for those that are one value each.
OPTIONS = {
    "context_len": "--prompt-tokens",
    "filler": "--filler",
    "new_tokens": "--new-tokens",
    "batch": "--batch",
    "cache": "--cache",
    "chunk_len": "--chunk-len",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "seed": "--seed",
}
DEFAULTS = {f.name: f.default for f in fields(RunSettings) if f.default is not MISSING}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `record`."""
    add = parser.add_argument
    add("--prompt", action="append", default=[], help="repeat it for a batch of several prompts")
    add("--prompt-json", action="append", default=[], help="a prompt as a JSON string")
    add("--prompt-tokens", type=int, metavar="N", help="fill the prompt up to N tokens")
    add("--filler", choices=FILLERS, default="en", help="language of the text that fills it up")
    add("--new-tokens", type=int, default=DEFAULTS["new_tokens"], metavar="N")
    add("--batch", type=int, metavar="B", help="sequences; default: one for each prompt")
    add("--cache", choices=CACHES, default="full", help="none: every step reads everything again")
    add("--model", default=DEFAULT_MODEL, help="the default's name, a folder, or a hub id")
    add("--device", default="auto", help="auto, cpu, cuda:0 ...")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    add("--temperature", type=float, default=0.0, help="0: greedy")
    add("--top-p", type=float, default=1.0)
    add("--seed", type=int, default=0)
    add("--raw", action="store_true", help="no chat template")
    add("--chunk-len", type=int, default=DEFAULTS["chunk_len"], help="0: prefill in one piece")
    add("--stop-id", type=int, action="append", help="token that ends a text, not the model's own")
    add("--ignore-stop", action="store_true", help="write on to the last token")
    add("--no-warm-up", action="store_true")
    add("--out", default="run.jsonl", help="the file to write; - is the standard output")


def add_race_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `race` has besides those of `record`."""
    add = parser.add_argument
    add(
        "--repeats", type=int, default=2, metavar="N", help=f"runs of each lane, 1 to {MAX_REPEATS}"
    )
    add("--layer", type=int, metavar="L", help="also keep the attention weights of this layer")
    add("--query-head", type=int, default=0, metavar="H", help="and of this query head of it")
    add(
        "--lane",
        action="append",
        metavar="SETTING=VALUE,...",
        help="what a lane changes; given twice. Default: cache=none, cache=full",
    )


def race_settings_of(args: argparse.Namespace) -> RaceSettings:
    """The race that parsed options ask for."""
    return RaceSettings(
        run=settings_of(args),
        repeats=args.repeats,
        layer=args.layer,
        query_head=args.query_head,
        lanes=LANES if args.lane is None else tuple(map(label_of, args.lane)),
    )


def label_of(text: str) -> Label:
    """`cache=none,chunk_len=64` as a label: JSON values, or else words. Raises UserError."""
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise UserError("experiment.bad_lane", text=text[:60])
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found


def race_command(settings: RaceSettings) -> str:
    """The command that makes this race again, for a POSIX shell."""
    words = [record_command(settings.run).replace(" record", " race", 1)]
    words += ["--repeats", str(settings.repeats)]
    if settings.layer is not None:
        words += ["--layer", str(settings.layer), "--query-head", str(settings.query_head)]
    for label in settings.lanes if settings.lanes != LANES else ():
        changes = (f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in label.items())
        words += ["--lane", shlex.quote(",".join(changes))]
    return " ".join(words)


def sweep_command(settings: SweepSettings) -> str:
    """The command that makes this sweep again, for a POSIX shell."""
    run = settings.run
    words = [*PROGRAM[:-1], "sweep", "--what", settings.what]
    words += ["--values", ",".join(map(str, settings.values)), "--repeats", str(settings.repeats)]
    words += ["--budget", f"{settings.budget_s:g}", "--new-tokens", str(run.new_tokens)]
    if run.context_len is not None:
        words += ["--prompt-tokens", str(run.context_len)]
    words += ["--filler", run.filler] * (run.filler != "en")
    words += ["--model", run.model] * (run.model != DEFAULT_MODEL)
    words += ["--device", run.device, "--dtype", run.dtype, "--seed", str(settings.seed)]
    return shlex.join(words)


def settings_of(args: argparse.Namespace) -> RunSettings:
    """The settings that parsed options ask for."""
    prompts = [*args.prompt, *(str(json.loads(text)) for text in args.prompt_json)]
    if not prompts and args.prompt_tokens is not None:
        prompts = [QUESTIONS[args.filler]]
    return RunSettings(
        model=args.model,
        prompts=tuple(prompts),
        device=args.device,
        dtype=args.dtype,
        cache=args.cache,
        batch=len(prompts) if args.batch is None else args.batch,
        context_len=args.prompt_tokens,
        filler=args.filler,
        chat=not args.raw,
        new_tokens=args.new_tokens,
        stop_token_ids=() if args.ignore_stop else args.stop_id and tuple(args.stop_id),
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        chunk_len=args.chunk_len,
        warm_up=not args.no_warm_up,
    )


def record_command(settings: RunSettings) -> str:
    """The command that makes this run again, for a POSIX shell. What is default is left out."""
    words = list(PROGRAM)
    for prompt in settings.prompts:
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", prompt):
            words.append("--prompt-json=" + json.dumps(prompt))
        else:
            words.append("--prompt=" + prompt)
    for name, option in OPTIONS.items():
        value = getattr(settings, name)
        default = len(settings.prompts) if name == "batch" else DEFAULTS[name]
        if value != default:
            words += [option, str(value)]
    words += ["--model", settings.model] * (settings.model != DEFAULT_MODEL)
    words += ["--device", settings.device, "--dtype", settings.dtype]
    words += ["--raw"] * (not settings.chat)
    if settings.stop_token_ids is not None:
        words += ["--ignore-stop"] * (not settings.stop_token_ids)
        words += [word for id in settings.stop_token_ids for word in ("--stop-id", str(id))]
    words += ["--no-warm-up"] * (not settings.warm_up)
    return shlex.join(words)
