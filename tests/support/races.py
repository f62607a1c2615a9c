"""The records of a race whose runs are produced."""

from tests.support import producer
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import (
    ExperimentFinished,
    ExperimentStarted,
    MemberEvent,
    MemberStarted,
)
from viz_engine.run.race import RaceSettings

PROMPT = "a prompt of some length, long enough for two pieces"
RUN = RunSettings(
    model="tiny", prompts=(PROMPT,), chat=False, new_tokens=6, chunk_len=20, stop_token_ids=()
)
SETTINGS = RaceSettings(run=RUN, repeats=2, layer=1, query_head=2)


def staged(
    *lanes: tuple[str, int], prompt_len: int = 300, new_tokens: int = 8, **finish: object
) -> list[object]:
    """The records of a race of produced runs: (cache, milliseconds of a step) each."""
    settings = RaceSettings(
        run=RunSettings(model="test-model", prompts=("test",), new_tokens=new_tokens),
        repeats=max(1, len(lanes) // 2),
    )
    events: list[object] = [
        ExperimentStarted(
            experiment="race",
            experiment_id="r",
            started_at="2026-01-02T03:04:05+00:00",
            settings=settings,
            command="",
        )
    ]
    for i, (cache, step_ms) in enumerate(lanes):
        events.append(MemberStarted(member=i, label={"cache": cache}, repeat=i // 2))
        piece = 128 if cache == "full" else prompt_len
        run = producer.events(
            (prompt_len,), new_tokens, cache=cache, piece=piece, step_ms=step_ms, sampled=False
        )
        events += [MemberEvent(i, event) for event in run]
    return [*events, ExperimentFinished(**({"finish_reason": "done"} | finish))]
