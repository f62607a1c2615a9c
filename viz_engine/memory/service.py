"""Who a choice serves: requests a second, people, tokens a second and what a million of them costs.

Times come from `estimate.py`, ranges from `capacity.py`. All of it is predicted: one copy of the
model, shared evenly where there are several. It knows nothing of words.

Try it: `python -m viz_engine size --model llama-3.1-8b --gpu "NVIDIA H100 80 GB SXM" --engine vllm`
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

from viz_engine.memory import capacity, deployment, estimate
from viz_engine.memory import plan as memory_plan
from viz_engine.memory.capacity import Served
from viz_engine.memory.estimate import Choice, Estimate
from viz_engine.memory.speed import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What one copy of the model serves when requests have the lengths that were asked, and what it
    would serve if each reserved the longest. Times in seconds, the middle of the expected range."""

    room: int  # requests that fit at a time, each as long as on average
    paged: Served | None
    reserved: Served | None
    ttft_s: float | None  # mean over the prompts, each read alone
    read_s: float | None  # the same of a prompt among as many as a forward has room for
    itl_s: float | None  # of a full copy
    bound_per_s: float | None  # requests whose prompts can be read at the very most


def of(found: Estimate) -> Service:
    """With blocks on demand a request holds its prompt and what it has written so far; with the
    longest length reserved it holds that from its first token on."""
    choice, load = found.choice, found.choice.load
    held = replace(choice.settings, context_len=held_len(choice))
    limit = memory_plan.most_sequences(choice.model, held, choice.device.capacity_bytes)
    room = deployment.MAX_SEQUENCES if limit.unbounded else limit.value
    first, step = _mean_ttft(choice, estimate.middle), _itl(choice, room, estimate.middle)
    read = _mean_ttft(choice, estimate.middle, together=True)
    if first is None or step is None:
        return Service(
            room=room,
            paged=None,
            reserved=None,
            ttft_s=first,
            read_s=read,
            itl_s=step,
            bound_per_s=None,
        )
    most = deployment.MAX_SEQUENCES if found.most.unbounded else found.most.value
    fewer = min(most, room)

    def served(num: int) -> Served:
        return capacity.served(
            num,
            ttft_s=first,
            itl_s=_itl(choice, num, estimate.middle) or 0.0,
            output_len=load.lengths.output_mean,
            think_s=load.think_s,
            read_s=read,
        )

    return Service(
        room=room,
        paged=served(room),
        reserved=served(fewer),
        ttft_s=first,
        read_s=read,
        itl_s=step,
        # The stages of a pipeline read different prompts at the same time.
        bound_per_s=choice.settings.pp
        / _mean_ttft(choice, lambda time: time.bound_s, together=True),
    )


def held_len(choice: Choice) -> int:
    """Tokens that a request in flight holds on average."""
    return max(1, round(choice.load.lengths.held_mean))


def _mean_ttft(
    choice: Choice, pick: Callable[[StepTime], float], *, together: bool = False
) -> float | None:
    """Over the prompts, each read alone, or `together` with as many of its length as a forward has
    room for, which share the reading of the weights; None where a time has no basis."""
    found = []
    for prompt in choice.load.lengths.prompts:
        num = max(1, choice.deployment.batched_tokens // prompt) if together else 1
        if (time := estimate.ttft(choice, prompt, num)) is None:
            return None
        found.append(pick(time) / num)
    return fmean(found)


def _itl(choice: Choice, num: int, pick: Callable[[StepTime], float]) -> float | None:
    """A step beside `num` - 1 others; None where nothing fits or it has no basis."""
    time = estimate.itl(choice, held_len(choice), num) if num else None
    return None if time is None else pick(time)


def in_flight(found: Estimate, served: Service, rate: float) -> list[tuple[int, float] | None]:
    """(requests in flight in one copy, how long one then takes in seconds) when `rate` requests a
    second arrive at all copies, evenly shared: without overlap of reading and writing, and with.
    Each is as slow as those beside it make it. None where more arrive than leave."""
    choice = found.choice
    rate = rate / choice.num_replicas

    def duration_s(num: int, overlap: bool) -> float:
        return capacity.duration(
            rate,
            ttft_s=served.ttft_s,
            itl_s=_itl(choice, num, estimate.middle),
            output_len=choice.load.lengths.output_mean,
            overlap=overlap,
        )

    room = served.paged.sequences
    return [
        capacity.steady(rate, room, lambda num, overlap=overlap: duration_s(num, overlap))
        if rate * read < 1
        else None
        for overlap, read in ((False, served.ttft_s), (True, served.read_s))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPoint:
    """Tokens a second with `sequences` at a time: (of a person who waits, of a GPU), at the least
    times with perfect overlap, and at both ends of what is expected."""

    sequences: int
    bound: tuple[float, float]
    fast: tuple[float, float]
    slow: tuple[float, float]


def speeds(found: Estimate, served: Service) -> list[SpeedPoint]:
    """From one request at a time to all that fit, in powers of two: what a person gets is bought
    with what the GPU gives."""
    choice, points = found.choice, []
    if served.paged is None or not served.room:
        return []
    ends = (
        (lambda time: time.bound_s, 1),
        (lambda time: time.fast_s, 1),
        (lambda time: time.slow_s, 0),
    )
    firsts = [_mean_ttft(choice, pick) for pick, _ in ends]
    reads = [_mean_ttft(choice, pick, together=True) for pick, _ in ends]
    reads[0], pp = 1 / served.bound_per_s, choice.settings.pp
    num = 1
    while True:
        pairs = []
        # At the bound each stage of a pipeline steps its part of the requests meanwhile.
        besides = (max(1, num // pp), num, num)
        for first, read, (pick, which), beside in zip(firsts, reads, ends, besides, strict=True):
            rate = capacity.served(
                num,
                ttft_s=first,
                itl_s=_itl(choice, beside, pick),
                output_len=choice.load.lengths.output_mean,
                read_s=read,
            ).requests_per_s[which]
            tokens = rate * choice.load.lengths.output_mean
            pairs.append((tokens / num, tokens / gpus_of_a_copy(choice)))
        points.append(SpeedPoint(sequences=num, bound=pairs[0], fast=pairs[1], slow=pairs[2]))
        if num >= min(served.room, MAX_POINT):
            return points
        num = min(2 * num, served.room)


MAX_POINT = 2**16


def gpus_of_a_copy(choice: Choice) -> int:
    return choice.settings.tp * choice.settings.pp


def costs(
    choice: Choice, served: Served, price: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """A million tokens written, and a million read or written, each (perfect overlap, no overlap),
    in the unit of `price`, which is for a GPU and hour; those outside a whole copy are paid too.
    The whole price stands on either: they are two ways to share out one cost, not a sum."""
    lengths = choice.load.lengths
    a_second = price * choice.num_devices / choice.num_replicas / 3600
    written, every = (
        tuple(a_second / (rate * tokens) * 1e6 for rate in reversed(served.requests_per_s))
        for tokens in (lengths.output_mean, lengths.output_mean + lengths.prompt_mean)
    )
    return written, every
