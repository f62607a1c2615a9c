"""Who is served, in words: cards of people, durations, requests in flight, tokens and their cost.

Functions of an `Estimate`, of what it serves and `say`, which looks up a text. A range goes from no
overlap of reading and writing to perfect overlap. It knows nothing of Streamlit.

Try it: `streamlit run app.py`, the page Memory, its section Users
"""

from collections.abc import Callable

from viz_engine.memory import capacity, estimate
from viz_engine.memory import service as memory_service
from viz_engine.memory.capacity import Served
from viz_engine.memory.estimate import Estimate
from viz_engine.memory.lengths import Lengths
from viz_engine.memory.service import Service
from viz_engine.numbers import NONE, grouped, share, three, time_text
from viz_engine.text import Say
from viz_engine.view import charts, markup
from viz_engine.view.charts import Axis, Series
from viz_engine.view.markup import Number
from viz_engine.view.memory.words import card


def service_cards(
    found: Estimate, service: Service, rate: float, say: Say, language: str
) -> list[Number]:
    """Who is served by all copies, and how many requests are in flight at `rate` a second."""
    copies = found.choice.num_replicas
    if service.paged is None:
        why = estimate.why_no_time(found.choice).text(language)
        note = why if service.room else say("mem.none_fits")
        return [
            Number(label=say("mem.card.users"), value=NONE, tag=say("mem.predicted"), note=note)
        ]
    paged, reserved = service.paged, service.reserved
    durations = paged.duration_s[::-1]
    return [
        card(
            "users",
            say,
            value=_range([num * copies for num in paged.users], grouped),
            note=_rates(paged, copies, say),
            formula="\n".join(_users_lines(found, service, say)),
        ),
        card(
            "reserved",
            say,
            value=_range([num * copies for num in reserved.users], grouped),
            note=_rates(reserved, copies, say),
            formula=say("mem.formula.room", num=grouped(reserved.sequences)),
        ),
        card(
            "duration",
            say,
            value=_range(durations, time_text),
            note=say("mem.duration_note", **_times(service)),
            formula=say(
                "mem.formula.full",
                num=grouped(paged.sequences),
                rates=_range(paged.requests_per_s, three),
                total=_range(durations, time_text),
            ),
        ),
        card(
            "reading",
            say,
            value=share(paged.requests_per_s[1] / service.bound_per_s),
            note=say("mem.reading_note", bound=three(service.bound_per_s * copies)),
            formula=say(
                "mem.formula.reading",
                rate=three(paged.requests_per_s[1]),
                bound=three(service.bound_per_s),
            ),
        ),
        _flight_card(found, service, rate, say),
        _tokens_card(found, service, say),
    ]


def cost_cards(
    found: Estimate, service: Service, price: float, unit: str, say: Say
) -> list[Number]:
    """What a million tokens cost at a price for a GPU and hour; none where nobody is served."""
    if service.paged is None or not service.paged.sequences:
        return []
    written, every = memory_service.costs(found.choice, service.paged, price)
    choice, lengths = found.choice, found.choice.load.lengths
    gpus = three(choice.num_devices / choice.num_replicas)  # those outside a whole copy paid too
    made = []
    for name, ends, tokens in (
        ("cost_written", written, lengths.output_mean),
        ("cost_every", every, lengths.output_mean + lengths.prompt_mean),
    ):
        value = f"{_range(ends, three)} {unit}".strip()
        formula = say(
            "mem.formula.cost",
            price=f"{price:g}",
            gpus=gpus,
            rates=_range(service.paged.requests_per_s, three),
            tokens=three(tokens),
            value=value,
        )
        made.append(card(name, say, value=value, note=say("mem.cost_note"), formula=formula))
    return made


def lengths_table(lengths: Lengths, say: Say) -> str:
    """What the requests' lengths come to."""
    head = [say(f"mem.lengths.{name}") for name in ("what", "mean", "p50", "p90", "most")]
    rows = [
        [say(f"mem.lengths.{name}"), three(mean), *map(grouped, quantiles)]
        for name, mean, quantiles in (
            ("read", lengths.prompt_mean, lengths.prompt_quantiles),
            ("written", lengths.output_mean, lengths.output_quantiles),
        )
    ]
    return markup.table(head, rows)


def speed_chart(
    found: Estimate, service: Service, say: Say, theme: str
) -> tuple[charts.Figure, str] | None:
    """Tokens a second of a person who waits against those of a GPU; None where nobody is served."""
    points = memory_service.speeds(found, service)
    if not points:
        return None
    lines = []
    for name, colour, line in (
        ("bound", "muted", "dash"),
        ("fast", "new", "solid"),
        ("slow", "read", "solid"),
    ):
        pairs = [getattr(point, name) for point in points]
        lines.append(
            Series(
                name=say(f"mem.speed.{name}"),
                x=[one for one, _ in pairs],
                y=[gpu for _, gpu in pairs],
                colour=colour,
                line=line,
                marker="" if name == "bound" else "circle",
                size=7,
                hover=[
                    say(
                        "mem.speed.hover",
                        num=grouped(point.sequences),
                        one=three(pair[0]),
                        gpu=three(pair[1]),
                    )
                    for point, pair in zip(points, pairs, strict=True)
                ],
            )
        )
    figure = charts.xy(
        lines,
        x=Axis(title=say("mem.speed.x"), log=True),
        y=Axis(title=say("mem.speed.y"), log=True),
        theme=theme,
    )
    last = points[-1]
    text = say(
        "mem.speed.alt",
        num=grouped(last.sequences),
        gpu=_range((last.slow[1], last.fast[1]), three),
        one=_range((last.slow[0], last.fast[0]), three),
    )
    return figure, text


def _range(ends: tuple[float, ...] | list[float], show: Callable[[float], str]) -> str:
    """Two ends, or one number where they read the same."""
    low, high = map(show, ends)
    return low if low == high else f"{low} – {high}"


def _times(service: Service) -> dict[str, str]:
    """TTFT and ITL in the middle of their ranges."""
    return {"ttft": time_text(service.ttft_s), "itl": time_text(service.itl_s)}


def _rates(served: Served, copies: int, say: Say) -> str:
    rates = _range([rate * copies for rate in served.requests_per_s], three)
    return say("mem.users_note", rate=rates)


def _users_lines(found: Estimate, service: Service, say: Say) -> list[str]:
    """How many tokens a request holds on average, how many requests that is, how many of them leave
    a second, how many people that is."""
    load, paged = found.choice.load, service.paged
    numbers = {"num": grouped(paged.sequences), **_times(service)}
    numbers["tokens"] = three(max(load.lengths.output_mean - 1, 0))
    low, high = map(three, paged.requests_per_s)
    return [
        say("mem.formula.held", held=grouped(memory_service.held_len(found.choice))),
        say("mem.formula.room", num=grouped(paged.sequences)),
        say("mem.formula.turns", rate=low, **numbers),
        say("mem.formula.overlap", rate=high, **numbers | {"ttft": time_text(service.read_s)}),
        say("mem.formula.together", tokens=grouped(found.choice.deployment.batched_tokens)),
        say(
            "mem.formula.people",
            num=grouped(paged.sequences),
            rates=_range(paged.requests_per_s, three),
            think=time_text(load.think_s),
            users=_range(paged.users, grouped),
            copies=found.choice.num_replicas,
        ),
    ]


def _tokens_card(found: Estimate, service: Service, say: Say) -> Number:
    """Tokens written a second by one copy, and by one of its GPUs."""
    mean, gpus = found.choice.load.lengths.output_mean, memory_service.gpus_of_a_copy(found.choice)
    rates = service.paged.requests_per_s
    return card(
        "tokens",
        say,
        value=_range([rate * mean for rate in rates], three),
        note=say("mem.tokens_note", gpu=_range([rate * mean / gpus for rate in rates], three)),
        formula=say("mem.formula.tokens", rates=_range(rates, three), tokens=three(mean)),
    )


def _flight_card(found: Estimate, service: Service, rate: float, say: Say) -> Number:
    """Requests in flight at `rate`, each as slow as those beside it make it."""
    copies = found.choice.num_replicas
    room = service.paged.sequences * copies
    turns, overlap = memory_service.in_flight(found, service, rate)
    if overlap is None:
        most = three(service.paged.requests_per_s[1] * copies)
        note = say("mem.flight_over", room=grouped(room), rate=f"{rate:g}", most=most)
        return card("flight", say, value=NONE, tone="bad", note=note)
    ends = [one for one in (overlap, turns) if one is not None]
    flights = [capacity.in_flight(rate, duration) for _, duration in ends]
    answers = [duration for _, duration in ends]
    if turns is None:
        value = f"≥ {three(flights[0])}"
        note = say("mem.flight_perhaps", room=grouped(room), answer=time_text(answers[0]))
        tone = "bad"
    else:
        value, tone = _range(flights, three), "good"
        note = say("mem.flight_note", room=grouped(room), answer=_range(answers, time_text))
    lines = [
        say("mem.formula.flight_load", num=grouped(beside))
        + " "
        + say(
            "mem.formula.flight",
            rate=f"{rate:g}",
            answer=time_text(duration),
            flight=three(capacity.in_flight(rate, duration)),
        )
        for beside, duration in ends
    ]
    return card("flight", say, value=value, tone=tone, note=note, formula="\n".join(lines))
