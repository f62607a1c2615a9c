"""Who is served, in words: cards of users, durations and requests in flight.

Functions of an `Estimate`, of what it serves and `say`, which looks up a text. It knows nothing of
Streamlit.

Try it: `streamlit run app.py`, the page Memory, its section Users
"""

from viz_engine.memory import capacity, estimate
from viz_engine.memory.capacity import Served
from viz_engine.memory.estimate import Estimate, Service
from viz_engine.numbers import NONE, grouped, three, time_text
from viz_engine.text import Say
from viz_engine.view.markup import Number
from viz_engine.view.memory.words import card


def service_cards(
    found: Estimate, service: Service, rate: float, say: Say, language: str
) -> list[Number]:
    """Who is served by all copies, and how many requests are in flight at `rate` a second."""
    load, copies = found.choice.load, found.choice.num_replicas
    if service.paged is None:
        why = estimate.why_no_time(found.choice).text(language)
        note = why if service.room else say("mem.none_fits")
        return [
            Number(label=say("mem.card.users"), value=NONE, tag=say("mem.predicted"), note=note)
        ]
    reserved, middle = service.reserved, _middle(service)
    return [
        card(
            "users",
            say,
            value=grouped(service.paged.users * copies),
            note=_rate(service.paged, copies, say),
            formula="\n".join(_users_lines(found, service, say)),
        ),
        card(
            "reserved",
            say,
            value=grouped(reserved.users * copies),
            note=_rate(reserved, copies, say),
            formula=say("mem.formula.room", num=grouped(reserved.sequences)),
        ),
        card(
            "duration",
            say,
            value=time_text(service.duration_s),
            note=say("mem.duration_note", **middle),
            formula=say(
                "mem.formula.duration",
                tokens=grouped(max(load.output_len - 1, 0)),
                total=time_text(service.duration_s),
                **middle,
            ),
        ),
        _flight_card(found, service, rate, say),
    ]


def _middle(service: Service) -> dict[str, str]:
    """TTFT and ITL in the middle of their ranges."""
    both = {"ttft": service.ttft, "itl": service.itl}
    return {name: time_text(estimate.middle(time)) for name, time in both.items()}


def _rate(served: Served, copies: int, say: Say) -> str:
    return say("mem.users_note", rate=three(served.requests_per_s * copies), copies=copies)


def _users_lines(found: Estimate, service: Service, say: Say) -> tuple[str, str, str]:
    """How many tokens a request holds on average, how many requests that is, how many users."""
    load, paged = found.choice.load, service.paged
    return (
        say(
            "mem.formula.held",
            prompt=grouped(load.prompt_len),
            half=grouped(load.mean_held_len - load.prompt_len),
            held=grouped(load.mean_held_len),
        ),
        say("mem.formula.room", num=grouped(paged.sequences)),
        say(
            "mem.formula.little",
            num=grouped(paged.sequences),
            answer=time_text(service.duration_s),
            think=time_text(load.think_s),
            users=grouped(paged.users),
            copies=found.choice.num_replicas,
        ),
    )


def _flight_card(found: Estimate, service: Service, rate: float, say: Say) -> Number:
    """Requests in flight at `rate`, each as slow as those beside it make it."""
    copies, load = found.choice.num_replicas, found.choice.load
    room = service.paged.sequences * copies
    steady = estimate.in_flight(found, service, rate)
    if steady is None:
        most = three(service.paged.requests_per_s * copies)
        note = say("mem.flight_over", room=grouped(room), rate=f"{rate:g}", most=most)
        return card("flight", say, value=NONE, tone="bad", note=note)
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
    return card(
        "flight",
        say,
        value=three(flight),
        tone="good",
        note=say("mem.flight_note", room=grouped(room), answer=answer),
        formula="\n".join(lines),
    )
