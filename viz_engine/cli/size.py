"""`python -m viz_engine size`, and the same as one function for notebooks.

    from viz_engine.cli.size import size
    answer = size("llama-3.1-8b", context_len=32768, num_sequences=16, engine="vllm",
                  memory_bytes=80 * 10**9)
    answer["kv_bytes"]          # {"value": 68719476736, "unit": "bytes", "how": "predicted", ...}

Every quantity has its value, its unit, how it came about (predicted, estimate, read, default,
derived, assumed, cited) and from what. No torch. It knows nothing of pages.

Try it: `python -m viz_engine size --model llama-3.1-8b --context 32768 --sequences 16`
"""

import argparse
import difflib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from viz_engine.cli import served
from viz_engine.memory import deployment, devices, log_comparison, plan, server_log, serving_engines
from viz_engine.memory.deployment import Settings
from viz_engine.model import config, formats, hub_config
from viz_engine.model.config import ModelConfig
from viz_engine.numbers import mib
from viz_engine.text import UserError

Quantity = dict[str, object]  # value, unit, how, source


def add_command(commands: argparse._SubParsersAction) -> None:
    """The parser."""
    parser = commands.add_parser("size", help="what a model takes in memory, and what fits")
    parser.set_defaults(do=run)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--config", metavar="PATH", help="a config.json, its folder, or -")
    model.add_argument("--model", metavar="PRESET", help="a model of the table; ? lists them")
    add = parser.add_argument
    add("--context", type=int, default=8192, metavar="N", help="tokens of each sequence")
    add("--sequences", type=int, default=1, metavar="N", help="sequences at once")
    known = "auto, " + ", ".join(formats.CACHES)
    add("--kv-dtype", default="auto", metavar="TYPE", help=f"K, or K/V apart: {known}")
    add("--weight-dtype", default="auto", metavar="TYPE", help=", ".join(formats.WEIGHTS))
    add("--parameters", type=int, metavar="N", help="where the config does not tell their number")
    add("--tp", type=int, default=1, metavar="N", help="tensor parallel")
    add("--pp", type=int, default=1, metavar="N", help="pipeline stages")
    add("--dcp", type=int, default=1, metavar="N", help="decode-context parallel")
    add("--engine", default="exact", choices=deployment.ENGINES)
    add("--block-size", type=int, metavar="N", help="tokens in a block or page")
    add("--batched-tokens", type=int, metavar="N", help="tokens in one forward")
    add("--draft-layers", action="store_true", help="multi-token-prediction layers too")
    add("--draft-tokens", type=int, default=0, metavar="N", help="drafted in each step")
    add("--prefix-caching", action="store_true", help="vLLM: prefixes of states are kept too")
    add("--unified", action="store_true", help="llama.cpp: one cache for all sequences (-kvu)")
    add("--gpu", metavar="NAME", help="a device of the table; ? lists them")
    add("--memory-gib", type=float, metavar="N", help="a device's memory instead of --gpu")
    add("--utilization", type=float, metavar="SHARE", help="share of it that may be used")
    served.add_options(parser)
    add("--log", metavar="FILE", help="a server's start-up log to compare with, or - for stdin")
    add("--json", action="store_true", help="JSON in place of lines")


def run(args: argparse.Namespace) -> int:
    """Print the answer. Raises UserError with what is wrong."""
    if "?" in (args.model, args.gpu):
        names = config.preset_table() if args.model == "?" else (d.name for d in devices.devices())
        print("\n".join(names))
        return 0
    if args.log is not None:
        print(_log_lines(args))
        return 0
    lengths, model, asked = served.asked_lengths(args), _model(args), _asked(args)
    if lengths is not None and args.gpu is None:
        raise UserError("lengths.no_device")
    answer = size(model, **asked, gpu=args.gpu, memory_bytes=_memory(args))
    if lengths is not None:
        answer |= served.answer(args, lengths, model, Settings(**asked), _device(args.gpu))
    print(json.dumps(answer, indent=1, ensure_ascii=False) if args.json else _lines(answer))
    return 0


def _asked(args: argparse.Namespace) -> dict[str, object]:
    """The options as fields of `Settings`."""
    key, _, value = args.kv_dtype.partition("/")
    return dict(
        context_len=args.context,
        num_sequences=args.sequences,
        kv_format=key,
        v_format=value or None,
        weight_format=args.weight_dtype,
        num_parameters=args.parameters,
        tp=args.tp,
        pp=args.pp,
        dcp=args.dcp,
        engine=args.engine,
        block_len=args.block_size,
        batched_tokens=args.batched_tokens,
        draft_layers=args.draft_layers,
        num_draft_tokens=args.draft_tokens,
        state_blocks=2 if args.prefix_caching else 1,
        unified=args.unified,
        utilization=args.utilization,
    )


def _model(args: argparse.Namespace) -> ModelConfig:
    if args.model is not None:
        return config.preset(args.model)
    path = Path(args.config)
    if path.is_dir() or path.name == "config.json":
        folder = path if path.is_dir() else path.parent
        return config.read_files(hub_config.read_folder(folder), name=folder.resolve().name)
    return config.read(_bytes_of(args.config), name=path.stem)


def _bytes_of(path: str) -> bytes:
    """A file, or stdin for "-"."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError("error.size_file", path=path[:200], reason=reason) from None


def _log_lines(args: argparse.Namespace) -> str:
    """A log's numbers beside ours, as lines or as JSON."""
    log = server_log.read(_bytes_of(args.log).decode("utf-8", "replace"))
    choices = log_comparison.chosen(Settings(**_asked(args)), log.engine)
    rows = [
        {
            "start": found.start + 1,
            "line": found.finding.line_number,
            "rank": found.finding.rank,
            "engine": found.finding.engine,
            "number": found.finding.kind,
            "logged": found.finding.value,
            "ours": found.ours,
            "ours_range": found.ours_range,
            "unit": found.finding.unit,
            "verdict": found.verdict,
            "meaning": str(found.finding.meaning),
            "cause": None if found.cause is None else str(found.cause),
            "assumed": dict(found.assumed),
        }
        for found in log_comparison.compare(log, _model(args), choices)
    ]
    if args.json:
        return json.dumps({"engine": log.engine, "numbers": rows}, indent=1, ensure_ascii=False)
    lines = []
    for number, start in enumerate(log.starts, 1):
        own = [row for row in rows if row["start"] == number]
        said = ", ".join(f"{name} = {value}" for name, value in start.settings.items())
        head = f"start {number}: " if len(log.starts) > 1 else ""
        lines.append(f"{head}{log.engine}; the log says {said or 'nothing of its settings'}")
        if own[0]["assumed"]:
            chosen = ", ".join(f"{name} = {value}" for name, value in own[0]["assumed"].items())
            lines.append(f"where it is silent, your options hold: {chosen}")
        lines += [
            f"line {row['line']}: {row['number']} {_amount(row['logged'], row['unit'])}; "
            f"ours {_ours(row)}: {row['verdict']}. {row['cause'] or row['meaning']}"
            for row in own
        ]
    return "\n".join(lines)


def _ours(row: Mapping[str, object]) -> str:
    """Our number of a log's line, as a range where it follows from rounded numbers."""
    if row["ours"] is None:
        return "-"
    ends = row["ours_range"] or (row["ours"],)
    return " to ".join(_amount(end, str(row["unit"])) for end in ends)


def _amount(value: float, unit: str) -> str:
    """A number of a log with its unit, every digit of it."""
    if unit == "times":
        return f"{value:.2f} times"
    shown = f"{value:,.0f} {unit}"
    return f"{shown} ({mib(value)})" if unit == "bytes" else shown


def _memory(args: argparse.Namespace) -> int | None:
    if args.memory_gib is None:
        return None
    if not 0 < args.memory_gib < 2**30:
        raise UserError("error.size_memory", value=str(args.memory_gib)[:40])
    return int(args.memory_gib * 1024**3)


def size(
    model: ModelConfig | str | bytes | Mapping[str, object],
    *,
    context_len: int,
    gpu: str | None = None,
    memory_bytes: int | None = None,
    **settings: object,
) -> dict[str, object]:
    """What a model takes in memory, and what fits.

    `model`: a `config.ModelConfig`, the name of a preset, the text of a config.json or the mapping
    in it. `settings`: the other fields of `deployment.Settings` (num_sequences, kv_format,
    weight_format, tp, engine ...). `gpu` names a device of the table, `memory_bytes` gives its
    memory instead; without both, nothing is said of what fits. Sizes are of one rank.

    Returns quantities by name, each a mapping of value, unit, how and source; `layers` by kind;
    `from` where each size of the model came from; `warnings` as sentences. Raises UserError.
    """
    found = _found(model)
    asked = Settings(context_len=context_len, **settings)
    made = plan.plan(found, asked)
    answer: dict[str, object] = {
        "model": found.name,
        "engine": asked.engine,
        "num_ranks": made.num_ranks,
    }
    answer |= {f"{part.kind}_bytes": _part(part) for part in made.parts}
    answer["total_bytes"] = _predicted(made.total_bytes, "bytes", "all parts of one rank")
    answer["growth_bytes"] = _predicted(
        made.growth_bytes, "bytes a token and sequence", "rows of the layers that grow"
    )
    answer["num_parameters"] = _predicted(found.num_parameters, "weights", "matrices of the config")
    answer["num_active_parameters"] = _predicted(
        found.num_active_parameters, "weights a token", "experts that a token is routed to"
    )
    if asked.num_parameters is not None:
        given = {"value": asked.num_parameters, "unit": "weights", "how": "given"}
        answer["num_parameters"] = given | {"source": "num_parameters"}
        del answer["num_active_parameters"]
    if not found.knows_weights(asked.weight_format, asked.num_parameters):
        if gpu is not None:
            _device(gpu)  # refused where it is none
        reason = "the weights are not known: give --parameters (num_parameters)"
        for name, unit in (("weights_bytes", "bytes"), ("total_bytes", "bytes")):
            answer[name] = _predicted(None, unit, reason)
        gpu = memory_bytes = None  # nothing can be said of what fits
    answer |= _engine_view(made)
    answer |= _fit(found, asked, made, gpu, memory_bytes)
    answer["layers"] = [
        {
            "kind": kind.kind,
            "num_layers": kind.num_layers,
            "window": kind.window,
            "row_bytes": kind.row_bytes,
            "rows": kind.rows,
            "state_bytes": kind.state_bytes,
            "num_bytes": kind.num_bytes,
            "formula": str(kind.formula),
        }
        for kind in made.kinds
    ]
    answer["from"] = {
        d.field: {"value": d.value, "how": d.how, "source": d.source} for d in found.derivations
    }
    answer["warnings"] = [str(warning) for warning in made.warnings]
    return answer


def _found(model: ModelConfig | str | bytes | Mapping[str, object]) -> ModelConfig:
    if isinstance(model, ModelConfig):
        return model
    if isinstance(model, str) and "{" not in model:
        return config.preset(model)
    return config.read(model)


def _predicted(value: object, unit: str, source: str) -> Quantity:
    return {"value": value, "unit": unit, "how": "predicted", "source": source}


def _part(part: plan.Part) -> Quantity:
    found = _predicted(part.num_bytes, "bytes", str(part.formula))
    if part.is_estimate:
        found |= {"how": "estimate", "low": part.low, "high": part.high}
    return found


def _engine_view(made: plan.Plan) -> dict[str, object]:
    """What the engine's own log would say, where it says more than bytes."""
    served = made.deployment
    if served.engine == "vllm":
        pool = serving_engines.vllm_pool(served, made.settings.context_len)
        groups = ", ".join(f"{g.num_layers} {g.kind}" for g in pool.groups)
        return {
            "vllm_block_len": _predicted(pool.block_len, "tokens", "attention layers"),
            "vllm_block_bytes": _predicted(pool.block_bytes, "bytes", f"groups: {groups}"),
            "vllm_request_bytes": _predicted(
                pool.request_bytes, "bytes", f"{pool.blocks_per_request} blocks for one request"
            ),
        }
    if served.engine == "tensorrt-llm":
        pool = serving_engines.trt_pool(served)
        source = f"{pool.block_len} tokens of all layers"
        return {"trt_block_bytes": _predicted(pool.block_bytes, "bytes", source)}
    return {}


def _fit(
    model: ModelConfig,
    asked: Settings,
    made: plan.Plan,
    gpu: str | None,
    memory_bytes: int | None,
) -> dict[str, object]:
    if memory_bytes is None and gpu is None:
        return {}
    how, source = "given", "memory_bytes"
    if memory_bytes is None:
        device = _device(gpu)
        memory_bytes = device.capacity_bytes
        how, source = "cited", f"{devices.size_message(device)} {device.capacity.source}"
    answer: dict[str, object] = {
        "memory_bytes": {"value": memory_bytes, "unit": "bytes", "how": how, "source": source},
        "budget_bytes": _predicted(
            made.deployment.budget_bytes(memory_bytes), "bytes", "the share that the engine uses"
        ),
        "fits": made.fits(memory_bytes),
    }
    for name, unit, find in (
        ("longest_context", "tokens of each sequence", plan.longest_context),
        ("most_sequences", "sequences", plan.most_sequences),
    ):
        limit = find(model, asked, memory_bytes)
        answer[name] = _predicted(limit.value, unit, "no limit" if limit.unbounded else "inverse")
    if not made.fits(memory_bytes):
        answer["options"] = [
            {
                "change": str(option.change),
                "total_bytes": option.plan.total_bytes,
                "fits": option.fits,
            }
            for option in plan.options_to_fit(model, asked, memory_bytes)
        ]
    return answer


def _device(name: str) -> devices.Device:
    try:
        return devices.device(name)
    except KeyError:
        raise UserError("error.size_gpu", name=name[:60], known=_nearest(name)) from None


def _nearest(name: str) -> str:
    """The devices whose names are like `name`, at most three; all of them where none is."""
    names = [device.name for device in devices.devices()]
    asked = name.lower().split()
    holding = [known for known in names if all(word in known.lower() for word in asked)]
    like = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return ", ".join((asked and holding[:3]) or like or names)


def _short(value: object) -> str:
    """A whole number with every digit, another with four."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _lines(answer: Mapping[str, object]) -> str:
    """The answer as lines: name, value with its unit, how, source."""
    lines = [f"{answer['model']}, engine {answer['engine']}, one of {answer['num_ranks']} ranks"]
    for name, found in answer.items():
        if not isinstance(found, dict) or "value" not in found:
            continue
        value, unit = found["value"], found["unit"]
        if value is None:
            shown = "-"
        elif unit == "bytes":
            shown = f"{value:,} bytes ({mib(value)})"
        else:
            ends = value if isinstance(value, list) else [value]
            shown = f"{' to '.join(map(_short, ends))} {unit}"
        if "low" in found:
            shown += f", {mib(found['low'])} to {mib(found['high'])}"
        lines.append(f"{name:22} {shown}  [{found['how']}] {found['source']}")
    if "fits" in answer:
        lines.append(f"{'fits':22} {'yes' if answer['fits'] else 'no'}")
    for option in answer.get("options", ()):
        verdict = "fits" if option["fits"] else "does not fit"
        lines.append(f"  {option['change']}: {mib(option['total_bytes'])}, {verdict}")
    lines += [
        f"layers {x['kind']:15} {x['num_layers']:4}  {x['formula']}" for x in answer["layers"]
    ]
    lines += [
        f"from   {field:22} {d['value']}  [{d['how']}] {d['source']}"
        for field, d in answer["from"].items()
    ]
    lines += [f"note   {warning}" for warning in answer["warnings"]]
    return "\n".join(lines)
