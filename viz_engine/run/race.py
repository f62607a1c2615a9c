"""A race: one run against another that differs in a setting or several, token by token.

What it asks for and the order of its members. The records are those of any experiment
(run/experiment); how a race is made is not known here (engine/race_runs), nor what follows from it
(analysis/race).

Try it: `python -m viz_engine race --prompt-tokens 128 --new-tokens 16 --out race.jsonl`
"""

import dataclasses
from dataclasses import dataclass

from viz_engine.run.events import RunSettings, RunStarted
from viz_engine.run.files import LogError
from viz_engine.run.members import Label, Planned, changed
from viz_engine.text import UserError

LANES: tuple[Label, Label] = ({"cache": "none"}, {"cache": "full"})
MAX_REPEATS = 5
MAX_MEMBERS = 2 * MAX_REPEATS + 2  # and a look at each lane
PROMPT = {"model", "prompts", "context_len", "filler", "chat"}  # settings that change the prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSettings:
    """What was asked for. `lanes` say what each of the two changes of `run`; against the first
    the second is compared."""

    kind = "race_settings"
    run: RunSettings
    repeats: int = 2  # runs of each lane
    layer: int | None = None  # whose attention is looked at; None: no look
    query_head: int = 0
    lanes: tuple[Label, ...] = LANES

    def lane(self, label: Label) -> RunSettings:
        """What one lane does: greedy, so that both lanes choose for themselves and can agree.
        Raises UserError."""
        return dataclasses.replace(changed(self.run, label), temperature=0.0, batch=1)

    def order(self) -> list[Planned]:
        """All runs by turns. The second lane first: a race that is stopped early then has one."""
        return [
            Planned(label=label, repeat=repeat, run=self.lane(label))
            for repeat in range(self.repeats)
            for label in self.lanes[:: 1 if repeat % 2 else -1]
        ]


def check_lanes(settings: RaceSettings) -> None:
    """Raises UserError where there are not two lanes that differ."""
    if not 1 <= settings.repeats <= MAX_REPEATS:
        raise UserError("error.race_repeats", repeats=settings.repeats, most=MAX_REPEATS)
    if len(settings.lanes) != 2 or settings.lanes[0] == settings.lanes[1]:
        raise UserError("error.race_lanes")
    for label in settings.lanes:
        settings.lane(label)


def check_run(settings: RaceSettings, first: RunStarted, started: RunStarted) -> None:
    """Raises LogError where a run cannot stand beside the first one."""
    if started.settings.batch != 1:
        raise LogError("a race is run with one sequence")
    one_prompt = not any(PROMPT & label.keys() for label in settings.lanes)
    if one_prompt and started.prompt_token_ids != first.prompt_token_ids:
        raise LogError("the lanes read different prompts")
