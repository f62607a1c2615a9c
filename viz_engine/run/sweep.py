"""A sweep: the same run at several values of one setting, repeated in shuffled order.

What it asks for and the order of its members. The records are those of any experiment
(run/experiment), which members are due says run/members; who makes them is not known here.

Try it: `python -m viz_engine sweep --what ttft --budget 60 --out sweep.jsonl`
"""

import dataclasses
import random
import re
from dataclasses import dataclass

from viz_engine.run.checks import check_settings
from viz_engine.run.events import MAX_BATCH, Event, KVSample, RunSettings, RunStarted
from viz_engine.run.members import SETTINGS, Label, Planned, changed
from viz_engine.text import UserError

KINDS = ("ttft", "itl", "batch")
VARIED = {"ttft": "context_len", "itl": "context_len", "batch": "batch"}
VALUES = {
    "ttft": (64, 128, 256, 512, 1024, 2048),
    "itl": (64, 256, 512, 1024, 2048),
    "batch": (1, 2, 4, 8),
}
NEW_TOKENS = {"ttft": 8, "itl": 24, "batch": 16}
BATCH_CONTEXT = 256  # prompt length while the batch grows
REPEATS, BUDGET_S = 3, 120.0
MAX_VALUES, MAX_REPEATS, MAX_BUDGET_S = 16, 20, 3600.0
MAX_MEMBERS = MAX_VALUES * MAX_REPEATS


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """What is measured. `run` is what all runs share; `values` are prompt lengths in tokens
    (ttft), context lengths (itl), batch sizes (batch), or what the setting that `what` names
    takes."""

    kind = "sweep_settings"
    what: str
    run: RunSettings
    values: tuple[int | float | str, ...]
    repeats: int = REPEATS
    budget_s: float = BUDGET_S
    seed: int = 0  # of the order

    @property
    def varied(self) -> str:
        """The setting that differs from run to run."""
        return VARIED.get(self.what, self.what)

    def label(self, value: int | float | str) -> Label:
        return {self.varied: value}

    def run_at(self, value: int | float | str) -> RunSettings:
        """The run at one value. It never stops early: every repeat does the same work."""
        return dataclasses.replace(changed(self.run, self.label(value)), stop_token_ids=())

    def order(self) -> list[Planned]:
        """All runs: each value once, shuffled, then all again: a drift of the machine meets every
        value alike, and a sweep that is stopped early has as many of each."""
        rng = random.Random(self.seed)
        found = []
        for repeat in range(self.repeats):
            values = list(self.values)
            rng.shuffle(values)
            found += [
                Planned(label=self.label(value), repeat=repeat, run=self.run_at(value))
                for value in values
            ]
        return found


def default_settings(what: str, run: RunSettings) -> SweepSettings:
    """The usual values for `what`; `run` gives model, device, dtype, prompt."""
    changes = {"new_tokens": NEW_TOKENS.get(what, NEW_TOKENS["ttft"])}
    if what == "batch":
        changes["context_len"] = BATCH_CONTEXT
    run = dataclasses.replace(run, **changes)
    return SweepSettings(what=what, run=run, values=VALUES.get(what, ()))


def check_sweep(settings: SweepSettings) -> None:
    """Raises UserError on settings that no model could follow."""
    if settings.what not in (*KINDS, *SETTINGS):
        raise UserError("sweep.bad_kind", known=", ".join(KINDS))
    most = MAX_BATCH if settings.varied == "batch" else 2**22
    values = settings.values
    numbers = settings.varied in VARIED.values()
    if not 1 <= len(values) <= MAX_VALUES or (
        numbers and not all(type(value) is int and 1 <= value <= most for value in values)
    ):
        raise UserError("sweep.bad_values", most=MAX_VALUES, limit=most)
    twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
    if twice is not None:
        raise UserError("sweep.twice", value=twice)
    if not 1 <= settings.repeats <= MAX_REPEATS:
        raise UserError("sweep.bad_repeats", most=MAX_REPEATS)
    if not 1 <= settings.budget_s <= MAX_BUDGET_S:
        raise UserError("sweep.bad_budget", most=round(MAX_BUDGET_S))
    for value in values:
        check_settings(settings.run_at(value))


def lean(event: Event) -> Event | None:
    """A record as a sweep keeps it: no magnitudes, and no texts of the prompt, which all share."""
    if isinstance(event, RunStarted):
        texts = tuple(("",) * len(t) for t in event.prompt_texts)
        return dataclasses.replace(event, prompt_texts=texts)
    return None if isinstance(event, KVSample) else event


def values_of(text: str) -> tuple[int, ...]:
    """`64,128; 256` as numbers. Raises UserError on anything else: not on a list without commas
    either, for `2 048` is one number to whoever copies it from the page."""
    words = [word.strip() for word in re.split("[,;，；、]", text) if word.strip()]
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise UserError("sweep.bad_numbers", text=text[:60])
    return tuple(int(word[:9]) for word in words)
