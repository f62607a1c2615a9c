"""Members of an experiment: planned, made, and which is due within a budget of time.

A member is a log with a label, the settings by which it differs from the others. Time is what the
runs took, loading and waiting left out. Who makes them is not known here.

Try it: `python -m pytest tests/run/test_sweep.py -k budget`
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from viz_engine.run.codec import settings_from_dict
from viz_engine.run.events import RunSettings
from viz_engine.run.log import RunLog
from viz_engine.text import Message, UserError

Label = Mapping[str, str | int | float | bool | None]  # settings of a run -> what this one has
ENDED = ("stop", "length")  # what a run says that came to its end
SETTINGS = tuple(f.name for f in fields(RunSettings))
TOKEN_WORK = 8.0  # a decode step counts as this many prompt tokens until runs have shown better


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A member that is to be made."""

    label: Label
    repeat: int
    run: RunSettings

    @property
    def work(self) -> float:
        """Its size beside that of others."""
        return self.run.batch * (self.run.context_len or 64) + TOKEN_WORK * self.run.new_tokens


@dataclass(slots=True)
class Member:
    """A member as far as it is made. One that was refused has an error and an empty log."""

    label: Label
    repeat: int
    purpose: str  # measured; look: its times stand for nothing
    log: RunLog = field(default_factory=RunLog)
    refused: Message | None = None

    @property
    def open(self) -> bool:
        return self.refused is None and self.log.finished is None

    @property
    def done(self) -> bool:
        """Whether it came to its end."""
        return self.log.finished is not None and self.log.finished.finish_reason in ENDED

    @property
    def error(self) -> Message | None:
        return self.log.finished.error if self.log.finished else self.refused

    @property
    def seconds(self) -> float:
        if self.open or self.log.started is None:
            return 0.0
        return max(self.log.finished.end_ns - self.log.started.accepted_ns, 0) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an experiment is. Seconds left are an estimate from the members so far, None before
    any came to its end."""

    num_done: int
    num_total: int
    elapsed_s: float
    left_s: float | None
    newest: Member | None
    repeats: int  # of each label
    of: int  # tokens that the newest was asked for

    @property
    def num_tokens(self) -> int:
        """Tokens that the newest member has given."""
        steps = self.newest.log.steps if self.newest else ()
        return sum(len(ids) for step in steps for ids in step.token_ids)

    @property
    def fraction(self) -> float | None:
        """How far the newest is among the repeats: a member's end counts as the start of another,
        so that what follows the last is seen."""
        if self.newest is None or not self.of:
            return None
        if self.newest.purpose == "look":
            return 1.0
        return (self.newest.repeat + self.num_tokens / self.of * 0.9) / self.repeats

    @property
    def message(self) -> Message | None:
        """What is on now, in words."""
        if self.newest is None:
            return None
        if self.newest.purpose == "look":
            return Message(key="service.race_look")
        params = {"repeat": self.newest.repeat + 1, "repeats": self.repeats}
        params |= {"token": self.num_tokens, "of": self.of}
        if self.newest.label == {"cache": "none"}:
            return Message(key="service.race_none", params=params)
        if self.newest.label == {"cache": "full"}:
            return Message(key="service.race_full", params=params)
        label = ", ".join(f"{name}={value}" for name, value in self.newest.label.items())
        return Message(key="service.member", params=params | {"label": label})


def changed(run: RunSettings, label: Label) -> RunSettings:
    """The run with what a label says. Raises UserError on a setting that no run has, or a value
    that it cannot take."""
    unknown = next((name for name in label if name not in SETTINGS), None)
    if unknown is not None:
        raise UserError("experiment.no_setting", name=unknown[:40], known=", ".join(SETTINGS))
    checked = settings_from_dict({"model": "", "prompts": [], **label})
    return dataclasses.replace(run, **{name: getattr(checked, name) for name in label})


class Standing:
    """Where an experiment stands: its `order`, the members so far, and seconds for all of them
    (None: as long as it takes)."""

    def __init__(
        self, order: Sequence[Planned], members: Sequence[Member], budget_s: float | None
    ) -> None:
        self._newest = members[-1] if members else None
        self.members = [one for one in members if one.purpose == "measured"]
        self._order = order
        self._places = {(_key(p.label), p.repeat): i for i, p in enumerate(order)}
        self._made = [self._places.get((_key(one.label), one.repeat)) for one in self.members]
        # What was refused (beyond the model's window) or failed is not tried again.
        self._left_out = {_key(one.label) for one in self.members if one.error is not None}
        self._took: dict[object, list[float]] = {}  # label -> seconds of each member
        self._work = 0.0  # of those
        for one, place in zip(self.members, self._made, strict=True):
            if one.done and place is not None:
                self._took.setdefault(_key(one.label), []).append(one.seconds)
                self._work += order[place].work
        self.elapsed_s = sum(one.seconds for one in self.members)
        self.left_s = None if budget_s is None else budget_s - self.elapsed_s

    def due(self) -> Planned | None:
        """The next member to make, None where the experiment is over. One that would not fit into
        what is left of the budget is passed by, and shorter ones are still made."""
        for planned in self._rest():
            if self.left_s is None or 0 < self.left_s >= (self._estimate(planned) or 0):
                return planned
        return None

    def outcome(self) -> tuple[str, Message | None]:
        """Why an experiment is over for which nothing is due, and what went wrong in it. A member
        that was refused is no error of the whole, if others came to their end before it."""
        made = set(self._made)
        passed_by = any(
            i not in made and _key(p.label) not in self._left_out for i, p in enumerate(self._order)
        )
        reason, error, any_done = "budget" if passed_by else "done", None, False
        for one in self.members:
            any_done = any_done or one.done
            if one.error is not None:
                error = one.error
                if one.log.started is not None or not any_done:
                    reason = "error"
        return reason, error

    def progress(self) -> Progress:
        """How far it is."""
        under_way = [
            self._order[place]
            for one, place in zip(self.members, self._made, strict=True)
            if one.open and place is not None
        ]
        rest = [*self._rest(), *under_way]
        estimates = [self._estimate(planned) for planned in rest]
        left_s = None if None in estimates else sum(estimates)
        if left_s is not None and self.left_s is not None:
            left_s = min(left_s, max(self.left_s, 0.0))
        num_done = sum(one.done for one in self.members)
        return Progress(
            num_done=num_done,
            num_total=num_done + len(rest),
            elapsed_s=self.elapsed_s,
            left_s=left_s,
            newest=self._newest,
            repeats=max((planned.repeat for planned in self._order), default=0) + 1,
            of=next((p.run.new_tokens for p in under_way[-1:] or self._order), 0),
        )

    def _rest(self) -> list[Planned]:
        """What follows the newest member in the order."""
        first = max((place for place in self._made if place is not None), default=-1) + 1
        return [p for p in self._order[first:] if _key(p.label) not in self._left_out]

    def _estimate(self, planned: Planned) -> float | None:
        """Seconds of a member: what those of its label took, or in proportion to its work."""
        alike = self._took.get(_key(planned.label))
        if alike:
            return sum(alike) / len(alike)
        done_s = sum(map(sum, self._took.values()))
        return done_s * planned.work / self._work if self._work else None


def _key(label: Label) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(label.items()))
