"""A choice as the parameters of an address, and bills as a table to download.

What an address says is checked against what the page offers: nothing of it is taken as it stands.
It knows nothing of Streamlit.

Try it: `python -c "from viz_engine.memory import link; \
print(link.address({'ctx': '8192'}))"`
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode

from viz_engine.memory.deployment import Settings
from viz_engine.memory.estimate import MOST, Choice, Estimate
from viz_engine.memory.lengths import MAX_TOKENS
from viz_engine.memory.plan import Limit

LINK = {  # parameter of the address -> field of Settings
    "ctx": "context_len",
    "seq": "num_sequences",
    "kv": "kv_format",
    "v": "v_format",
    "w": "weight_format",
    "tp": "tp",
    "pp": "pp",
    "engine": "engine",
    "block": "block_len",
    "batch": "batched_tokens",
    "util": "utilization",
    "drafts": "num_draft_tokens",
}
LOAD = {"prompt": (1, MAX_TOKENS), "new": (1, MAX_TOKENS)}  # averages of the requests
THINK = (0.0, 1e6)  # seconds
FLAGS = {"prefix": lambda settings: settings.state_blocks > 1, "kvu": lambda s: s.unified}
NAMES = ("model", "gpu", "n", *LINK, *FLAGS, *LOAD, "think")  # of all parameters
ALWAYS = ("ctx", "seq", "engine")  # named even where plain: the page begins with others
WHOLE = {  # numbers that can be typed: least and most
    "ctx": (1, MOST["context_len"]),
    "seq": (1, MOST["num_sequences"]),
    "block": (1, 2**20),
    "batch": (1, 2**24),
    "drafts": (0, 64),
}


def to_query(model_name: str, device_name: str, choice: Choice) -> dict[str, str]:
    """A choice as parameters of an address; what is plain is left out, but for what the
    page begins with otherwise."""
    plain = Settings(context_len=0)
    found = {"model": model_name, "gpu": device_name, "n": str(choice.num_devices)}
    for key, name in LINK.items():
        value = getattr(choice.settings, name)
        if value is not None and (value != getattr(plain, name) or key in ALWAYS):
            found[key] = str(value)
    found |= {key: "1" for key, on in FLAGS.items() if on(choice.settings)}
    lengths = choice.load.lengths
    if lengths.num == 1:  # a spread or pairs of the visitor's are not in an address
        found |= {"prompt": f"{lengths.prompt_mean:.0f}", "new": f"{lengths.output_mean:.0f}"}
    return found | {"think": f"{choice.load.think_s:g}"}


def address(query: Mapping[str, str]) -> str:
    """The part of an address after the question mark."""
    return urlencode(query)


def from_query(
    query: Mapping[str, str], offered: Mapping[str, Sequence[object]]
) -> tuple[dict[str, object], list[str]]:
    """The values that an address names, of those that are `offered` for each parameter or can be
    typed, exactly, and the parameters whose value is none of them."""
    found, wrong = {}, []
    for key in dict.fromkeys((*offered, *WHOLE, "util", *FLAGS, *LOAD, "think")):
        text = query.get(key)
        if text is None:
            continue
        try:
            found[key] = _value(key, text, offered)
        except (KeyError, ValueError):
            wrong.append(key)
    return found, wrong


def _value(key: str, text: str, offered: Mapping[str, Sequence[object]]) -> object:
    """What a parameter's text stands for. Raises KeyError or ValueError on none."""
    if key in FLAGS:
        return {"1": True, "0": False}[text]
    if key == "util":
        share = float(text) if text.isascii() and len(text) < 20 else 0.0
        if not 0 < share <= 1:
            raise ValueError(text)
        return share
    if key == "think":
        pause = float(text) if text.isascii() and len(text) < 20 else -1.0
        if not THINK[0] <= pause <= THINK[1]:
            raise ValueError(text)
        return pause
    if key in WHOLE or key in LOAD:
        least, most = (WHOLE | LOAD)[key]
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise ValueError(text)
        if not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)
    return {str(value): value for value in offered[key]}[text]


def to_csv(bills: Iterable[tuple[str, Estimate]]) -> str:
    """A row for each choice: settings, then bytes with the unit in the column's name."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    fields = ["context_len", "num_sequences", "kv_format", "v_format", "weight_format"]
    fields += ["tp", "pp", "engine"]
    names = ["weights", "k", "v", "latent", "state", "activations", "overhead"]
    sizes = [f"{name}_bytes" for name in names] + ["total_bytes", "low_bytes", "high_bytes"]
    rest = ["device_bytes", "budget_bytes", "fits", "longest_context", "most_sequences"]
    rest += ["ttft_least_s", "itl_least_s", "provenance"]
    writer.writerow(["model", "device", "devices", *fields, *sizes, *rest])
    for name, found in bills:
        choice, settings, plan = found.choice, found.choice.settings, found.plan
        known = choice.knows_weights
        writer.writerow(
            [
                name,
                choice.device.name,
                choice.num_devices,
                *(getattr(settings, field) for field in fields),
                *(
                    "" if not known and part == "weights" else found.parts.get(part, 0)
                    for part in names
                ),
                *((plan.total_bytes, plan.low_bytes, plan.high_bytes) if known else ("",) * 3),
                choice.device.capacity_bytes,
                choice.budget_bytes,
                found.fits if known else "",
                *(_limit(limit) if known else "" for limit in (found.longest, found.most)),
                found.ttft.bound_s if found.ttft else "",
                found.itl.bound_s if found.itl else "",
                "predicted",
            ]
        )
    return lines.getvalue()


def _limit(limit: Limit) -> int | str:
    return "unbounded" if limit.unbounded else limit.value
