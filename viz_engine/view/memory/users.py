"""Who is served, in words: cards of users, durations and requests in flight.

Functions of an `Estimate`, of what it serves and `say`, which looks up a text. It knows nothing of
Streamlit.

Try it: `streamlit run app.py`, the page Memory, its section Users
"""

from viz_engine.memory import capacity, estimate
from viz_engine.memory.estimate import Estimate, Service
from viz_engine.memory.speed import StepTime
from viz_engine.numbers import grouped, three, time_text
from viz_engine.text import Say
from viz_engine.view.markup import Number


def service_cards(
    found: Estimate, service: Service, rate: float, say: Say, language: str
) -> list[Number]:
    """Who is served by all copies, and how many requests are in flight at `rate` a second."""
    load, copies = found.choice.load, found.choice.num_replicas
    if service.paged is None:
        why = estimate.why_no_time(found.choice).text(language)
        note = why if service.room else say("mem.none_fits")
        return [Number(label=say("mem.card.users"), value="-", tag=say("mem.predicted"), note=note)]
    paged, answer = service.paged, time_text(service.duration_s)
    held = say(
        "mem.formula.held",
        prompt=grouped(load.prompt_len),
        half=grouped(load.mean_held_len - load.prompt_len),
        held=grouped(load.mean_held_len),
    )
    little = say(
        "mem.formula.little",
        num=grouped(paged.sequences),
        answer=answer,
        think=time_text(load.think_s),
        users=grouped(paged.users),
        copies=copies,
    )
    middle = {name: time_text(estimate.middle(t)) for name, t in _both(service).items()}
    return [
        Number(
            label=say("mem.card.users"),
            help=say("mem.card.users_help"),
            tag=say("mem.predicted"),
            value=grouped(paged.users * copies),
            note=say("mem.users_note", rate=three(paged.requests_per_s * copies), copies=copies),
            formula="\n".join(
                (held, say("mem.formula.room", num=grouped(paged.sequences)), little)
            ),
        ),
        Number(
            label=say("mem.card.reserved"),
            help=say("mem.card.reserved_help"),
            tag=say("mem.predicted"),
            value=grouped(service.reserved.users * copies),
            note=say(
                "mem.users_note",
                rate=three(service.reserved.requests_per_s * copies),
                copies=copies,
            ),
            formula=say("mem.formula.room", num=grouped(service.reserved.sequences)),
        ),
        Number(
            label=say("mem.card.duration"),
            help=say("mem.card.duration_help"),
            tag=say("mem.predicted"),
            value=answer,
            note=say("mem.duration_note", **middle),
            formula=say(
                "mem.formula.duration",
                tokens=grouped(max(load.output_len - 1, 0)),
                total=answer,
                **middle,
            ),
        ),
        _flight_card(found, service, rate, say),
    ]


def _flight_card(found: Estimate, service: Service, rate: float, say: Say) -> Number:
    """Requests in flight at `rate`, each as slow as those beside it make it."""
    copies, load = found.choice.num_replicas, found.choice.load
    room = service.paged.sequences * copies
    shown = {"label": say("mem.card.flight"), "help": say("mem.card.flight_help")}
    shown["tag"] = say("mem.predicted")
    steady = estimate.in_flight(found, service, rate)
    if steady is None:
        most = three(service.paged.requests_per_s * copies)
        note = say("mem.flight_over", room=grouped(room), rate=f"{rate:g}", most=most)
        return Number(value="-", tone="bad", note=note, **shown)
    beside, duration = steady
    flight, answer = capacity.in_flight(rate, duration), time_text(duration)
    step = estimate.itl(found.choice, load.mean_held_len, beside)
    lines = (
        say("mem.formula.flight_load", num=grouped(beside)),
        say(
            "mem.formula.duration",
            tokens=grouped(max(load.output_len - 1, 0)),
            total=answer,
            ttft=time_text(estimate.middle(service.ttft)),
            itl=time_text(estimate.middle(step)),
        ),
        say("mem.formula.flight", rate=f"{rate:g}", answer=answer, flight=three(flight)),
    )
    return Number(
        value=three(flight),
        tone="good",
        note=say("mem.flight_note", room=grouped(room), answer=answer),
        formula="\n".join(lines),
        **shown,
    )


def _both(service: Service) -> dict[str, StepTime]:
    return {"ttft": service.ttft, "itl": service.itl}
