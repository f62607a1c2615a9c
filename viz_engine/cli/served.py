"""Who is served, for the command `size`: lengths of requests in, people, tokens and cost out.

Try it: `python -m viz_engine size --model llama-3.1-8b --engine vllm \
--gpu "NVIDIA H100 80 GB SXM" --prompt 2048 --answer 512 --think 30`
"""

import argparse
from pathlib import Path

from viz_engine.memory import estimate, lengths, service
from viz_engine.memory.capacity import Workload
from viz_engine.memory.deployment import Settings
from viz_engine.memory.devices import Device
from viz_engine.memory.estimate import Choice
from viz_engine.memory.lengths import MAX_BYTES, MAX_TOKENS, Lengths
from viz_engine.model.config import ModelConfig
from viz_engine.numbers import grouped
from viz_engine.text import UserError

TURNS = "reading prompts and writing tokens in turns"
OVERLAP = "both at once"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What people ask, and what a GPU costs."""
    add = parser.add_argument
    add("--prompt", type=int, metavar="N", help="tokens of an average prompt: who is served")
    add("--answer", type=int, default=512, metavar="N", help="tokens of an average answer")
    add("--lengths", metavar="FILE", help="CSV of requests: tokens read, tokens written")
    add("--think", type=float, default=0.0, metavar="S", help="seconds before people ask again")
    add("--price", type=float, metavar="N", help="of a GPU and hour: cost of a million tokens")


def asked_lengths(args: argparse.Namespace) -> Lengths | None:
    """The lengths that the options say; None where they say none. Raises UserError."""
    if args.lengths is not None:
        path = Path(args.lengths)
        try:
            with path.open("rb") as file:
                return lengths.read(file.read(MAX_BYTES + 1))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError("error.size_file", path=args.lengths[:200], reason=reason) from None
    if args.prompt is None:
        return None
    for value in (args.prompt, args.answer):
        if not 1 <= value <= MAX_TOKENS:
            raise UserError("lengths.option", value=str(value)[:40], most=grouped(MAX_TOKENS))
    return lengths.averages(args.prompt, args.answer)


def answer(
    args: argparse.Namespace, asked: Lengths, model: ModelConfig, settings: Settings, device: Device
) -> dict[str, object]:
    """What one copy of the model serves. Raises UserError on a pause or a price that is none."""
    for name, value in (("think", args.think), ("price", args.price)):
        if value is not None and not 0 <= value <= 1e9:
            raise UserError("lengths.number", name=name, value=str(value)[:40])
    choice = Choice(
        model=model,
        settings=settings,
        device=device,
        num_devices=settings.tp * settings.pp,
        load=Workload(lengths=asked, think_s=args.think),
    )
    found = estimate.make(choice)
    served = service.of(found)
    if served.paged is None:
        reason = str(estimate.why_no_time(choice)) if served.room else "nothing fits"
        return {"users": _range(None, "people", reason)}
    made = {
        "held_tokens": _range((service.held_len(choice),) * 2, "tokens", "mean of a request"),
        "requests_at_once": _range((served.room,) * 2, "requests", "that fit at that length"),
        "requests_per_s": _range(served.paged.requests_per_s, "requests/s", "one copy"),
        "prompts_per_s_bound": _range((served.bound_per_s,) * 2, "prompts/s", "1 / least TTFT"),
        "answer_s": _range(served.paged.duration_s, "seconds", "N / X"),
        "users": _range(served.paged.users, "people", "N + X x pause"),
    }
    if args.price is not None:
        written, every = service.costs(choice, served.paged, args.price)
        source = "price x GPUs / 3600 / (requests/s x tokens) x 10^6"
        made["cost_million_written"] = _range(tuple(reversed(written)), "price", source)
        made["cost_million_tokens"] = _range(tuple(reversed(every)), "price", source)
    return made


def _range(ends: tuple[float, float] | None, unit: str, source: str) -> dict[str, object]:
    """(in turns, at once) as the other quantities of the command are."""
    value = None if ends is None else ends[0] if ends[0] == ends[1] else list(ends)
    if isinstance(value, list):
        source = f"{source}; {TURNS}, and {OVERLAP}"
    return {"value": value, "unit": unit, "how": "predicted", "source": source}
