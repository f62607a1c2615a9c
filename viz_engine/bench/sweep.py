"""`bench --sweep`: a sweep twice, and how far the medians of the second agree with the first.

The target: within 15 % for 90 % of the points. The two are made by turns, a run of each, so that a
drift of the machine meets both; the order of the second's values is another one. Five repeats: of
three, a median still moves by a fifth on a busy machine.

Try it: `python -m viz_engine bench --sweep ttft`
"""

import argparse
import dataclasses
import json
import sys
from dataclasses import dataclass
from functools import partial

from viz_engine.analysis.points import points_of
from viz_engine.model.files import DEFAULT_MODEL
from viz_engine.run import machine, sweep
from viz_engine.run.command import QUESTIONS
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import ExperimentLog

WITHIN, FOR_SHARE = 0.15, 0.9
REPEATS, BUDGET_S = 5, 120.0  # of each of the two


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure at one value, in both sweeps. Seconds."""

    figure: str
    value: int
    first_s: float
    second_s: float

    @property
    def share(self) -> float:
        """How much longer the second took, as a share of the first."""
        return self.second_s / self.first_s - 1


def differences(one: ExperimentLog, other: ExperimentLog) -> list[Difference]:
    """The medians that both sweeps have."""
    again = {point.value: point for point in points_of(other)}
    found = []
    for point in points_of(one):
        for figure in ("ttft_s", "itl_s"):
            first = getattr(point, figure)
            second = getattr(again.get(point.value), figure, None)
            if first is not None and second is not None:
                found.append(
                    Difference(
                        figure=figure[:-2].upper(),
                        value=point.value,
                        first_s=first.median,
                        second_s=second.median,
                    )
                )
    return found


def agreement(found: list[Difference]) -> float | None:
    """The share of the points whose medians lie within WITHIN; None of none."""
    return sum(abs(one.share) <= WITHIN for one in found) / len(found) if found else None


def run(args: argparse.Namespace) -> int:
    """Measure twice and print. A target that is missed is said, not counted as an error."""
    settings = sweep.default_settings(
        args.sweep, RunSettings(model=DEFAULT_MODEL, prompts=(QUESTIONS["en"],))
    )
    settings = dataclasses.replace(settings, repeats=REPEATS, budget_s=BUDGET_S)
    machine.share_cores()
    from viz_engine.engine import experiment, load

    loaded = load.load(DEFAULT_MODEL)
    both = [dataclasses.replace(settings, seed=seed) for seed in (0, 1)]
    say = partial(print, file=sys.stderr)
    found = differences(*experiment.measure_by_turns(loaded, both, say))
    print(json.dumps(document(found), indent=1) if args.json else table(found))
    return 0


def document(found: list[Difference]) -> dict[str, object]:
    """The differences and what they come to."""
    share = agreement(found)
    return {
        "points": [dataclasses.asdict(one) | {"share": one.share} for one in found],
        "within": WITHIN,
        "agreement": share,
        "target": FOR_SHARE,
        "met": share is not None and share >= FOR_SHARE,
    }


def table(found: list[Difference]) -> str:
    """The differences as lines, and the target."""
    lines = ["figure   value   first ms  second ms   difference"]
    for one in found:
        first, second = one.first_s * 1e3, one.second_s * 1e3
        lines.append(
            f"{one.figure:<6} {one.value:>7} {first:>10.1f} {second:>10.1f} {one.share:>11.1%}"
        )
    share = agreement(found)
    if share is None:
        return "\n".join([*lines, "no point was measured twice"])
    met = "met" if share >= FOR_SHARE else "missed"
    target = f"target {FOR_SHARE:.0%}: {met}"
    lines.append(f"{share:.0%} of {len(found)} points agree within {WITHIN:.0%}; {target}")
    return "\n".join(lines)
