"""How the released weights are stored, from the `quantization_config` of a config.json.

Bits of a weight, scales included, and which matrices keep the model's own type. A method that is
not known here gives None, never a guess: the weights then count in the model's own type, and a
sentence says so. It knows nothing of bytes or ranks.

Try it: `python -m viz_engine size --model gpt-oss-20b --context 8192`
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from viz_engine.model.config_keys import whole
from viz_engine.model.formats import FORMATS
from viz_engine.model.spec import WeightGroup
from viz_engine.text import Message

KEYS = ("quantization_config", "compression_config")
# Lists of modules that keep the model's own type, by the names that methods give them.
KEPT = ("modules_to_not_convert", "ignored_layers", "ignore", "llm_int8_skip_modules", "exclude")
KEPT += ("exclude_modules",)
# Parts of a module's name -> the groups of weights that it stands for, by how their names begin.
MODULES = {
    "lm_head": ("head",),
    "embed": ("embedding",),
    "self_attn": ("attention.",),
    "shared_expert": ("mlp.shared_",),
    "mlp.experts": ("mlp.expert_",),
    "linear_attn": ("state",),
    "mamba": ("state",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """`method` as the config calls it, `bits` of a converted weight, the groups of weights that
    are not converted by how their names begin, and the key that said all that. `experts_only`:
    nothing but the experts is converted."""

    method: str
    bits: float
    kept: tuple[str, ...]
    source: str
    experts_only: bool = False

    def converts(self, group: WeightGroup) -> bool:
        """Whether the weights of `group` are stored in `bits`: matrices of layers that no list
        leaves out. Tables, routers, norms and biases are not matrices of layers."""
        if group.stays_wide or group.looked_up:
            return False
        if self.experts_only and not group.name.startswith("mlp.expert_"):
            return False
        return not group.name.startswith(self.kept)


def read(
    outer: Mapping[str, object],
    text: Mapping[str, object],
    warnings: list[Message],
    beside: Mapping[str, object] | None = None,
) -> Stored | None:
    """What the file, or its language part, says of how its weights are stored, else the
    hf_quant_config.json `beside` it. None where it says
    nothing, and, with a warning, where its method is not known here. Raises UserError where a
    number in it is none."""
    for part in (outer, text):
        for key in KEYS:
            if part.get(key) is not None:
                return _read(key, part[key], warnings)
    return None if beside is None else _read("hf_quant_config.json", beside, warnings)


def _read(key: str, said: object, warnings: list[Message]) -> Stored | None:
    table = said if isinstance(said, dict) else {}
    producer = table.get("producer")  # ModelOpt's early files name no method
    made_by = producer.get("name", "?") if isinstance(producer, dict) else "?"
    method = str(table.get("quant_method", made_by))[:40]
    bits = _bits(key, method, table)
    if bits is None:
        params = {"key": key, "method": method}
        warnings.append(Message(key="size.warn_quantization", params=params))
        return None
    return Stored(
        method=method,
        bits=bits,
        kept=_kept(table),
        source=key,
        experts_only=method == "mxfp4",
    )


def _bits(key: str, method: str, table: Mapping[str, object]) -> float | None:
    """Bits of a converted weight with its scales. fp8: an f32 scale a block (DeepSeek), else one a
    matrix. GPTQ and AWQ: a 16-bit scale and a zero of as many bits as a weight for each group.
    bitsandbytes: 4 bits with an f32 scale for 64 weights, or an 8-bit one of a second level;
    8 bits with one scale a row. compressed-tensors: as its groups say, if they agree."""
    if method in ("fp8", "fbgemm_fp8"):
        block = table.get("weight_block_size")
        if not isinstance(block, list) or len(block) != 2:
            return 8.0
        return 8 + 32 / (whole(f"{key}.weight_block_size", block[0]) * whole(key, block[1]))
    if method == "mxfp4":
        return FORMATS["mxfp4"].weight_bits
    if method in ("gptq", "awq"):
        return _grouped(key, table, ("bits", "w_bit"), zero=True)
    if method == "bitsandbytes":
        return _bitsandbytes(table)
    if method == "compressed-tensors":
        groups = table.get("config_groups")
        groups = groups.values() if isinstance(groups, dict) else ()
        weights = [g["weights"] for g in groups if isinstance(g, dict) and _is_table(g, "weights")]
        found = {_grouped(key, w, ("num_bits",), zero=w.get("symmetric") is False) for w in weights}
        return found.pop() if len(found) == 1 else None
    if method == "modelopt":
        return {"FP8": 8.0, "NVFP4": FORMATS["nvfp4"].weight_bits}.get(str(table.get("quant_algo")))
    return None


def _is_table(outer: Mapping[str, object], name: str) -> bool:
    return isinstance(outer.get(name), dict)


def _grouped(
    key: str, table: Mapping[str, object], names: tuple[str, ...], *, zero: bool
) -> float | None:
    """Bits of a weight that shares a scale with its group; -1 or nothing is a whole row, whose
    scale is not counted."""
    name = next((n for n in names if table.get(n) is not None), None)
    if name is None:
        return None
    bits = whole(f"{key}.{name}", table[name], most=16)
    size = table.get("group_size", table.get("q_group_size"))
    if size is None or size == -1:
        return float(bits)
    return bits + (16 + bits * zero) / whole(f"{key}.group_size", size)


def _bitsandbytes(table: Mapping[str, object]) -> float | None:
    if table.get("load_in_4bit") or table.get("_load_in_4bit"):
        twice = bool(table.get("bnb_4bit_use_double_quant"))
        return 4 + (8 / 64 + 32 / (64 * 256) if twice else 32 / 64)
    return 8.0 if table.get("load_in_8bit") or table.get("_load_in_8bit") else None


def _kept(table: Mapping[str, object]) -> tuple[str, ...]:
    """The groups that lists of modules name as a whole; a name with the number of one layer in it
    speaks of that layer only and is passed over."""
    listed = [table[name] for name in KEPT if isinstance(table.get(name), list)]
    found = []
    for name in (str(entry) for entries in listed for entry in entries):
        if any(piece.isdecimal() for piece in name.split(".")):
            continue
        found += [prefix for part, names in MODULES.items() if part in name for prefix in names]
    return tuple(dict.fromkeys(found))


def apply(stored: Stored, groups: tuple[WeightGroup, ...], own: float) -> tuple[WeightGroup, ...]:
    """`groups`, each with the bits that its weights are stored in; `own` are those of the model's
    own type."""
    return tuple(
        replace(group, stored_bits=stored.bits if stored.converts(group) else own)
        for group in groups
    )
