"""The memory page's numbers as data: what a choice of model, settings and device comes to.

One `Estimate` for each choice, made of `plan.py` and `capacity.py`. Words, pictures and links are
other modules'. It knows nothing of Streamlit.

Try it: `python -c "from viz_engine.memory import estimate; print(estimate.CONTEXT_LENS[-1])"`
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from viz_engine.memory import deployment, reserve, speed
from viz_engine.memory import plan as memory_plan
from viz_engine.memory.capacity import Workload
from viz_engine.memory.deployment import Deployment, Settings
from viz_engine.memory.devices import Device
from viz_engine.memory.plan import Limit, Plan
from viz_engine.memory.speed import StepTime
from viz_engine.model import formats, weights
from viz_engine.model.config import ModelConfig
from viz_engine.run import cost
from viz_engine.run.cost import Work
from viz_engine.text import Message, UserError

# Where the sliders stop: powers of two with the halves between them, and ten million.
CONTEXT_LENS = (
    *(n * 2**power for power in range(9, 23) for n in (2, 3) if n * 2**power < 10_000_000),
    10_000_000,
)
SEQUENCES = (*range(1, 9), *(n * 2**power for power in range(2, 10) for n in (3, 4)), 4096)
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64, 72, 128, 256)
# Most that the page asks for: half of what can be sized, since it says what twice as much comes to.
MOST = {
    "context_len": deployment.MAX_CONTEXT // 2,
    "num_sequences": deployment.MAX_SEQUENCES // 2,
}
ACCIDENT_LENS = (4096, 32768)  # the classic raise of the maximum length


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is chosen: `num_devices` of `device` hold as many copies of the model as they can."""

    model: ModelConfig
    settings: Settings
    device: Device
    num_devices: int
    load: Workload

    @property
    def deployment(self) -> Deployment:
        return deployment.resolve(self.model, self.settings)

    @property
    def num_replicas(self) -> int:
        """Whole copies of the model that the devices hold: `devices // (tp x pp)`."""
        return self.num_devices // (self.settings.tp * self.settings.pp)

    @property
    def knows_weights(self) -> bool:
        """Whether anything says how many weights there are: without them no total is an answer."""
        asked = self.settings
        return self.model.knows_weights(asked.weight_format, asked.num_parameters)

    @property
    def budget_bytes(self) -> int:
        """What the engine takes of one device."""
        return self.deployment.budget_bytes(self.device.capacity_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A choice and what it comes to. Bytes are of the device that holds most."""

    choice: Choice
    plan: Plan
    request: Plan  # one request of that length, the whole model on one device, nothing rounded
    rank_request: Plan  # the same on the device that holds most of it, nothing rounded
    request_bytes: int  # its cache on all devices together, what is held several times included
    growth_bytes: int  # what one more token adds to that
    reserved_bytes: int  # what the engine reserves for it on the device that holds most
    longest: Limit
    most: Limit
    most_twice: Limit  # at twice the length
    parts: Mapping[str, int]  # of frames.PARTS
    ttft: StepTime | None  # one request of `context_len` tokens
    itl: StepTime | None  # all sequences at `context_len`

    @property
    def fits(self) -> bool:
        return self.plan.fits(self.choice.device.capacity_bytes)


def make(choice: Choice) -> Estimate:
    """The estimate of a choice. Raises UserError where the settings contradict each other."""
    model, settings, device = choice.model, choice.settings, choice.device
    plan = memory_plan.plan(model, settings)
    plain, one = _unrounded(plan)
    share = memory_plan.plan(plain, replace(one, pp=1))  # of each rank that shares all layers
    return Estimate(
        choice=choice,
        plan=plan,
        request=memory_plan.plan(plain, replace(one, tp=1, pp=1, dcp=1)),
        rank_request=memory_plan.plan(plain, one),
        request_bytes=share.kv_bytes * settings.tp,
        growth_bytes=share.growth_bytes * settings.tp,
        reserved_bytes=memory_plan.plan(model, replace(settings, num_sequences=1)).kv_bytes,
        longest=memory_plan.longest_context(model, settings, device.capacity_bytes),
        most=memory_plan.most_sequences(model, settings, device.capacity_bytes),
        most_twice=memory_plan.most_sequences(
            model,
            replace(settings, context_len=2 * settings.context_len),
            device.capacity_bytes,
        ),
        parts=parts(plan),
        ttft=ttft(choice, settings.context_len),
        itl=itl(choice, settings.context_len, settings.num_sequences),
    )


def _unrounded(plan: Plan) -> tuple[ModelConfig, Settings]:
    """One sequence in the engine's number formats, without its rounding."""
    served = plan.deployment
    model = served.model
    plain = model if served.dtype == model.dtype else replace(model, dtype=served.dtype)
    formats = {"kv_format": served.k_format, "v_format": served.v_format}
    return plain, replace(_bare(plan.settings), num_sequences=1, **formats)


def _bare(settings: Settings) -> Settings:
    """Without an engine, and without what only an engine has."""
    return replace(settings, engine="exact", block_len=None, state_blocks=1, unified=False)


def parts(plan: Plan) -> dict[str, int]:
    """The bytes of a plan, K and V apart."""
    latent = [row for row in plan.kinds if row.kind == "latent"]
    others = [row for row in plan.kinds if row.kind != "latent"]
    found = {
        "weights": plan.part("weights").num_bytes,
        "k": sum(row.key_bytes for row in others),
        "v": sum(row.value_bytes for row in others),
        "latent": sum(row.num_bytes for row in latent),
    }
    for name in ("state", "activations", "overhead"):
        found[name] = plan.part(name).num_bytes
    return {name: value for name, value in found.items() if value}


# ---- speed -------------------------------------------------------------------------------------


def bits_of(choice: Choice, weight_format: str) -> float:
    """Bits of a weight in that format; "auto" is what the engine loads the model in,
    the mean where that is a mix of types."""
    return choice.model.weight_bits(weight_format, choice.deployment.dtype)


def _kv_bytes(choice: Choice, context_len: int, num_sequences: int) -> int:
    """Rows and states in use on one rank, nothing rounded; all stages of a pipeline."""
    served = deployment.resolve(choice.model, replace(_bare(choice.settings), pp=1))
    return sum(kind.num_bytes for kind in reserve.kinds(served, context_len, num_sequences))


def _step(
    choice: Choice, work: Callable[..., Work], kv_bytes: int, **lengths: int
) -> StepTime | None:
    """The time of a forward that `work` describes; None where one of its parts has no basis."""
    model, settings = choice.model, choice.settings
    if model.weights is None:
        return None
    bits = formats.weight_bits(settings.weight_format, choice.deployment.dtype)
    stored = formats.is_auto(settings.weight_format)
    least, most = (
        work(
            model,
            weight_bytes=cost.read_weight_bytes(
                model, bits, tp=settings.tp, stored=stored, active=active
            ),
            kv_bytes=kv_bytes,
            **lengths,
        )
        for active in (True, False)
    )
    name = compute_format(choice)
    return speed.step_time(least, choice.device, name, ranks=settings.tp, most=most)


def compute_format(choice: Choice) -> str:
    """What the products are computed in: 8-bit and 4-bit floating point where weights are kept so
    and the device has units for it, else 16 bits."""
    name, stored = choice.settings.weight_format, choice.model.stored
    if stored is not None and formats.is_auto(name):
        name = stored.method
    return {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}.get(name, "bf16")


def ttft(choice: Choice, prompt_len: int, num_prompts: int = 1) -> StepTime | None:
    """Least time to read one prompt, or several in one forward (`cost.prefill_work`). None where
    one of its parts has no basis (`why_no_time`)."""
    kv_bytes = _kv_bytes(choice, prompt_len, num_prompts)
    return _step(choice, cost.prefill_work, kv_bytes, prompt_len=prompt_len, batch=num_prompts)


def itl(choice: Choice, context_len: int, num_sequences: int) -> StepTime | None:
    """Least time of a step that writes one token of each sequence (`cost.decode_work`). None where
    one of its parts has no basis (`why_no_time`)."""
    kv_bytes = _kv_bytes(choice, context_len, num_sequences)
    return _step(choice, cost.decode_work, kv_bytes, context_len=context_len, batch=num_sequences)


def why_no_time(choice: Choice) -> Message:
    """What is missing where `ttft` or `itl` is None."""
    if choice.device.bandwidth is None:
        return Message(key="mem.no_bandwidth")
    if choice.model.weights is None:
        return Message(key="mem.no_products")
    return Message(key="mem.no_rate")


def middle(time: StepTime) -> float:
    """The middle of the expected range, in seconds."""
    return (time.fast_s + time.slow_s) / 2


# ---- warnings ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Accident:
    """One of the three classic mistakes, checked on this choice."""

    kind: str  # weights_only, longer, more
    bad: bool  # before it fits, after it does not
    fits: bool  # after
    before_bytes: int
    after_bytes: int


def accidents(found: Estimate) -> tuple[Accident, ...]:
    """Planning for the weights alone; raising the length from 4K to 32K; doubling the batch. None
    of them where the weights are not known."""
    if not found.choice.knows_weights:
        return ()
    choice, settings = found.choice, found.choice.settings
    budget = choice.budget_bytes
    alone = found.plan.part("weights").num_bytes
    total = found.plan.total_bytes
    only = Accident(
        kind="weights_only",
        bad=alone <= budget < total,
        fits=total <= budget,
        before_bytes=alone,
        after_bytes=total,
    )
    short, long = (
        memory_plan.plan(choice.model, replace(settings, context_len=length))
        for length in ACCIDENT_LENS
    )
    longer = Accident(
        kind="longer",
        bad=short.total_bytes <= budget < long.total_bytes,
        fits=long.total_bytes <= budget,
        before_bytes=short.kv_bytes,
        after_bytes=long.kv_bytes,
    )
    double = memory_plan.plan(
        choice.model, replace(settings, num_sequences=2 * settings.num_sequences)
    )
    more = Accident(
        kind="more",
        bad=total <= budget < double.total_bytes,
        fits=double.total_bytes <= budget,
        before_bytes=found.plan.kv_bytes,
        after_bytes=double.kv_bytes,
    )
    return only, longer, more


# ---- curves ------------------------------------------------------------------------------------


def over_context(choice: Choice) -> tuple[list[int], list[Plan]]:
    """Plans at powers of two of the context, up to ten million."""
    return _sweep(choice, "context_len", [2**n for n in range(9, 24)] + [10_000_000])


def over_sequences(choice: Choice) -> tuple[list[int], list[Plan]]:
    """Plans at powers of two of the sequences."""
    return _sweep(choice, "num_sequences", [2**n for n in range(0, 13)])


def _sweep(choice: Choice, name: str, values: list[int]) -> tuple[list[int], list[Plan]]:
    made = [memory_plan.plan(choice.model, replace(choice.settings, **{name: n})) for n in values]
    return values, made


def model_weight_bytes(choice: Choice, weight_format: str | None = None) -> int | None:
    """Bytes of all weights, on all ranks of one copy together, nothing held twice. None where
    their number is not known."""
    asked, name = choice.settings.num_parameters, weight_format or choice.settings.weight_format
    if formats.is_auto(name) and asked is None and choice.model.file_bytes is not None:
        return choice.model.file_bytes
    num = asked or choice.model.num_parameters
    bits = bits_of(choice, name)
    return None if num is None else weights.file_bytes(num, bits)


def crossing(found: Estimate) -> int | None:
    """Sequences of this length whose cache outweighs the weights, on the device that holds most:
    the first such number. None where there is no cache or no weights are known."""
    one, held = found.rank_request.kv_bytes, found.rank_request.part("weights").num_bytes
    return held // one + 1 if one and found.choice.knows_weights else None


def options(found: Estimate) -> tuple[memory_plan.Option, ...]:
    """What must change so that it fits, each change alone."""
    choice = found.choice
    return memory_plan.options_to_fit(choice.model, choice.settings, choice.device.capacity_bytes)


def precisions(choice: Choice, names: Iterable[str]) -> list[tuple[str, Plan, Limit]]:
    """Each weight format with its plan and the sequences that then fit; of weights that only
    files state, the released one."""
    made = []
    for name in names:
        if not choice.model.knows_weights(name, choice.settings.num_parameters):
            continue
        asked = replace(choice.settings, weight_format=name)
        most = memory_plan.most_sequences(choice.model, asked, choice.device.capacity_bytes)
        made.append((name, memory_plan.plan(choice.model, asked), most))
    return made


def check(choice: Choice) -> None:
    """Raises UserError where the devices cannot hold one copy of the model."""
    if choice.num_replicas < 1:
        ranks = choice.settings.tp * choice.settings.pp
        raise UserError("mem.error_devices", devices=choice.num_devices, ranks=ranks)
