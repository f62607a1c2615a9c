"""How a race is made: runs of both lanes by turns, then what only this process can compare.

The first pair of each lane is short and dropped (a warm-up). Logits stay here: of both lanes only
the largest gap of each token is told. It knows nothing of queues or pages.

Try it: `python -m viz_engine race --prompt-tokens 128 --new-tokens 16 --out race.jsonl`
"""

import dataclasses
import datetime
import time
from collections.abc import Callable, Generator, Iterator

import numpy as np
import torch

from viz_engine.engine import generate
from viz_engine.engine.kernels.context import Capture
from viz_engine.engine.load import Loaded
from viz_engine.run import checks
from viz_engine.run.command import race_command
from viz_engine.run.events import RunFinished, RunSettings
from viz_engine.run.experiment import (
    ExperimentEvent,
    ExperimentFinished,
    ExperimentStarted,
    LogitsCompared,
    MemberEvent,
    MemberStarted,
    PrefixChanged,
)
from viz_engine.run.log import RunLog
from viz_engine.run.members import Planned
from viz_engine.run.race import RaceSettings, check_lanes
from viz_engine.text import Message, UserError

MOST_QUERIES = 24  # rows of the square that a capture keeps: those next to the newest
CAPTURED_TOKENS = 3  # the first and two decode steps: the rows of step n and of step n + 1
WARM_UP_TOKENS = 2
MOST_CHANGED_ROWS = 1024  # of the prompt, whose keys are compared under another first token


Load = Callable[[RunSettings], Loaded]


def race(
    load: Load,
    settings: RaceSettings,
    *,
    experiment_id: str,
    queued_ns: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Iterator[ExperimentEvent]:
    """The records of a race; `load` gives the model that a lane asks for.

    Raises UserError before the first record where it cannot be; after it, never: what goes wrong
    is said by the last record. A race that is stopped keeps the runs that came to their end.
    """
    check_lanes(settings)
    load = _Held(load)
    for label in settings.lanes:
        spec = load(settings.lane(label)).spec
        checks.check_race(settings, spec.num_layers, spec.num_query_heads)
    _warm_up(load, settings, cancelled)
    yield ExperimentStarted(
        experiment="race",
        experiment_id=experiment_id,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        settings=settings,
        command=race_command(settings),
    )
    made = _Race(load, settings, experiment_id, queued_ns, cancelled, clock)
    try:
        yield from made.events()
        reason, error = ("cancelled" if made.was_cancelled else "done"), made.error
    except UserError as refused:
        error = refused.message
    except Exception as caught:
        error = generate.explain(caught)
    yield ExperimentFinished(finish_reason="error" if error else reason, error=error)


class _Held:
    """The model of the lane that is on: loaded anew only where the lanes' models differ, and the
    other one let go first, for there may be room for one."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._asked: tuple[str, str, str] | None = None
        self._loaded: Loaded | None = None

    def __call__(self, run: RunSettings) -> Loaded:
        asked = (run.model, run.device, run.dtype)
        if asked != self._asked:
            self._loaded = self._asked = None
            self._loaded, self._asked = self._load(run), asked
        return self._loaded


def _warm_up(load: Load, settings: RaceSettings, cancelled: Callable[[], bool]) -> None:
    """A short run of each lane, dropped: the first products of a size are slow."""
    for label in settings.lanes:
        lane = settings.lane(label)
        short = dataclasses.replace(lane, new_tokens=min(WARM_UP_TOKENS, lane.new_tokens))
        asked = {"cancelled": cancelled, "options": generate.Options(samples="none")}
        # Refusals are of the whole race, so the whole length is asked for first.
        next(generate.generate(load(lane), lane, run_id="", **asked))
        for event in generate.generate(load(lane), short, run_id="warm-up", **asked):
            if isinstance(event, RunFinished) and event.error is not None:
                raise UserError(event.error.key, **event.error.params)


class _Race:
    """The state of one race: what the first pair of runs has shown."""

    def __init__(
        self,
        load: Load,
        settings: RaceSettings,
        experiment_id: str,
        queued_ns: int | None,
        cancelled: Callable[[], bool],
        clock: Callable[[], int],
    ) -> None:
        self.load = load
        self.settings = settings
        self.experiment_id = experiment_id
        self.queued_ns = queued_ns
        self.cancelled = cancelled
        self.clock = clock
        self.was_cancelled = False
        self.error: Message | None = None
        self.num_members = 0
        self.first: list[RunLog] = []  # each lane's first run, the second lane's first
        self.logits: list[torch.Tensor] = []  # of the lane that ran first, `[vocab]` a token

    def events(self) -> Iterator[ExperimentEvent]:
        """All but the first and the last record."""
        comparison = _Comparison(self.logits)
        for planned in self.settings.order():
            if self._stops():
                return
            keep = None  # logits are only kept by reference while the run is on
            if planned.repeat == 0 and not self.first:
                keep = lambda step, logits: self.logits.append(logits[0].clone())  # noqa: E731
            elif planned.repeat == 0:
                keep = lambda step, logits: comparison.take(logits[0])  # noqa: E731
            options = generate.Options(on_logits=keep, samples=self._samples(planned))
            log = yield from self._member(planned, options)
            if self.was_cancelled or self.error:
                return
            if planned.repeat == 0:
                self.first.append(log)
                if len(self.first) == 2:
                    yield comparison.compared()
                    self.logits.clear()
        if self.settings.layer is not None:
            yield from self._captures()
        if not self._stops() and (changed := self._prefix_changed()) is not None:
            yield changed

    def _stops(self) -> bool:
        self.was_cancelled = self.was_cancelled or self.cancelled()
        return self.was_cancelled

    def _member(
        self, planned: Planned, options: generate.Options, purpose: str = "measured"
    ) -> Generator[ExperimentEvent, None, RunLog]:
        """A run and its log."""
        member, self.num_members = self.num_members, self.num_members + 1
        yield MemberStarted(
            member=member, label=planned.label, repeat=planned.repeat, purpose=purpose
        )
        log = RunLog()
        for event in generate.generate(
            self.load(planned.run),
            planned.run,
            run_id=f"{self.experiment_id}-{member}",
            queued_ns=self.queued_ns,
            cancelled=self.cancelled,
            clock=self.clock,
            options=options,
        ):
            log.append(event)
            yield MemberEvent(member, event)
        self.was_cancelled = log.finished.finish_reason == "cancelled"
        self.error = log.finished.error
        return log

    def _samples(self, planned: Planned) -> str:
        """Rows are sampled in the first repeat only: at the end, outside all times, where they are
        all still there."""
        if planned.run.cache == "none" or planned.repeat:
            return "none"
        return "last" if _keeps_all(self.load(planned.run)) else "each"

    def _captures(self) -> Iterator[ExperimentEvent]:
        """A short run of each lane with the tokens of the race, for the attention weights."""
        layer, head = self.settings.layer, self.settings.query_head
        for label in self.settings.lanes:
            loaded = self.load(self.settings.lane(label))
            compatible = loaded.compatibility
            if not compatible.own_attention or not compatible.can_roll_back:
                return
            if loaded.spec.layers[layer].kind != "full":
                return
        tokens = [t for step in self.first[1].steps for t in step.token_ids[0]]
        for label in self.settings.lanes[::-1]:
            if self._stops():
                return
            lane = self.settings.lane(label)
            short = dataclasses.replace(lane, new_tokens=CAPTURED_TOKENS, warm_up=False)
            options = generate.Options(
                forced_tokens=[tokens[:CAPTURED_TOKENS]],
                samples="none",
                capture=Capture(layer, head, MOST_QUERIES),
            )
            yield from self._member(Planned(label=label, repeat=0, run=short), options, "look")
            if self.error:
                return

    def _prefix_changed(self) -> PrefixChanged | None:
        """Read the prompt twice, its first token being another one the second time, and compare
        the keys. None for a model that does not keep every row."""
        loaded = self.load(self.settings.lane(self.settings.lanes[1]))
        ids = list(self.first[0].started.prompt_token_ids[0])[:MOST_CHANGED_ROWS]
        if not _keeps_all(loaded) or any(not s.num_kv_heads for s in loaded.spec.layers):
            return None
        other = next((token for token in ids if token != ids[0]), ids[0] ^ 1)
        before, after = (_keys(loaded, [first, *ids[1:]]) for first in (ids[0], other))
        changes = torch.stack([_change(a, b) for a, b in zip(before, after, strict=True)], dim=1)
        with np.errstate(divide="ignore"):
            levels = np.clip(np.rint(128 + 12 * np.log2(changes.numpy())), 1, 255)
        levels = np.where(changes.numpy() > 0, levels, 0).astype(np.uint8)
        texts = loaded.tokenizer.texts([ids[0]]), loaded.tokenizer.texts([other])
        return PrefixChanged(
            before=texts[0][0],
            after=texts[1][0],
            num_rows=len(ids),
            num_layers=loaded.spec.num_layers,
            changes=levels.tobytes(),
        )


def _keeps_all(loaded: Loaded) -> bool:
    """Whether a run keeps every row to its end, in a cache of ours."""
    kept = all(layer.kind in ("full", "latent") for layer in loaded.spec.layers)
    return kept and not loaded.compatibility.hf_layers


def _keys(loaded: Loaded, ids: list[int]) -> list[torch.Tensor]:
    """The keys of each layer `[H, rows, D]` after one forward of a prompt."""
    cache = generate.new_cache(loaded, "full", 1, len(ids))
    cache.reserve(len(ids))
    tokens = torch.tensor([ids], device=loaded.device)
    positions = torch.arange(len(ids), device=loaded.device)[None]
    generate.forward(loaded, tokens, positions, None, cache)
    return [keys[0].float().cpu() for keys, _ in cache.peek(0, len(ids))]


class _Comparison:
    """The second lane ran first; the first one's logits are held against its, token by token,
    until they choose differently: after that the two read different texts."""

    def __init__(self, logits: list[torch.Tensor]) -> None:
        self.logits = logits
        self.gaps: list[float] = []
        self.margins: list[float] = []
        self.largest = 0.0
        self.first_difference: int | None = None

    def take(self, without: torch.Tensor) -> None:
        """Logits `[vocab]` of the next token in the first lane."""
        index = len(self.gaps)
        if self.first_difference is not None or index >= len(self.logits):
            return
        if self.logits[index].shape != without.shape:  # of two models: not comparable
            return
        cached, without = self.logits[index].float(), without.float()
        best = without.topk(2).values
        self.gaps.append(float((cached - without).abs().max()))
        self.margins.append(float(best[0] - best[1]))
        self.largest = max(self.largest, float(without.abs().max()))
        if int(cached.argmax()) != int(without.argmax()):
            self.first_difference = index

    def compared(self) -> LogitsCompared:
        return LogitsCompared(
            gaps=tuple(self.gaps),
            margins=tuple(self.margins),
            largest_logit=self.largest,
            first_difference=self.first_difference,
        )


def _change(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """The largest |K' - K| / |K| over the heads, for each row, of keys `[H, rows, D]`."""
    moved = torch.linalg.vector_norm(after - before, dim=-1)
    length = torch.linalg.vector_norm(before, dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    return (moved / length).max(dim=0).values
