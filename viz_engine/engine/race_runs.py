"""How a race is made: runs of both lanes by turns, then what only this process can compare.

The first pair of each lane is short and dropped (a warm-up). Logits stay here: of both lanes only
the largest gap of each token is told. It knows nothing of queues or pages.

Try it: `python -m viz_engine race --prompt-tokens 128 --new-tokens 16 --out race.jsonl`
"""

import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from viz_engine.engine import generate
from viz_engine.engine.kernels.attention import AttentionLook
from viz_engine.engine.load import Loaded
from viz_engine.run import checks
from viz_engine.run.command import race_command
from viz_engine.run.events import Event, RunFinished, RunSettings
from viz_engine.run.log import RunLog
from viz_engine.run.race import (
    CACHES,
    LaneStarted,
    LogitsCompared,
    PrefixChanged,
    RaceEvent,
    RaceFinished,
    RaceSettings,
    RaceStarted,
)
from viz_engine.text import Message, UserError

MOST_QUERIES = 24  # rows of the square that a look keeps: those next to the newest
LOOK_TOKENS = 3  # the first and two decode steps: the rows of step n and of step n + 1
WARM_UP_TOKENS = 2
MOST_CHANGED_ROWS = 1024  # of the prompt, whose keys are compared under another first token


def race(
    loaded: Loaded,
    settings: RaceSettings,
    *,
    race_id: str,
    queued_ns: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Iterator[RaceEvent]:
    """The records of a race.

    Raises UserError before the first record where it cannot be; after it, never: what goes wrong
    is said by the last record. A race that is stopped keeps the runs that came to their end.
    """
    checks.check_race(settings, loaded.spec.num_layers, loaded.spec.num_query_heads)
    _warm_up(loaded, settings.run, cancelled)
    yield RaceStarted(
        race_id=race_id,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        settings=settings,
        command=race_command(settings),
    )
    made = _Race(loaded, settings, race_id, queued_ns, cancelled, clock)
    try:
        yield from made.events()
        reason, error = ("cancelled" if made.was_cancelled else "done"), made.error
    except UserError as refused:
        error = refused.message
    except Exception as caught:
        error = generate.explain(caught)
    yield RaceFinished(finish_reason="error" if error else reason, error=error)


def lane_settings(settings: RunSettings, cache: str) -> RunSettings:
    """What one lane does: greedy, so that both lanes choose for themselves and can agree."""
    return dataclasses.replace(settings, cache=cache, temperature=0.0, batch=1)


def _warm_up(loaded: Loaded, settings: RunSettings, cancelled: Callable[[], bool]) -> None:
    """A short run of each lane, dropped: the first products of a size are slow."""
    for cache in CACHES:
        short = dataclasses.replace(
            lane_settings(settings, cache), new_tokens=min(WARM_UP_TOKENS, settings.new_tokens)
        )
        asked = {"cancelled": cancelled, "options": generate.Options(samples="none")}
        # Refusals are of the whole race, so the whole length is asked for first.
        next(generate.generate(loaded, lane_settings(settings, cache), run_id="", **asked))
        for event in generate.generate(loaded, short, run_id="warm-up", **asked):
            if isinstance(event, RunFinished) and event.error is not None:
                raise UserError(event.error.key, **event.error.params)


class _Race:
    """The state of one race: what the first pair of runs has shown."""

    def __init__(
        self,
        loaded: Loaded,
        settings: RaceSettings,
        race_id: str,
        queued_ns: int | None,
        cancelled: Callable[[], bool],
        clock: Callable[[], int],
    ) -> None:
        self.loaded = loaded
        self.settings = settings
        self.race_id = race_id
        self.queued_ns = queued_ns
        self.cancelled = cancelled
        self.clock = clock
        self.was_cancelled = False
        self.error: Message | None = None
        self.first: dict[str, RunLog] = {}  # lane -> its first run
        self.logits: list[torch.Tensor] = []  # of the lane that ran first, `[vocab]` a token
        self.comparison: _Comparison | None = None

    def events(self) -> Iterator[RaceEvent]:
        """All but the first and the last record."""
        for repeat in range(self.settings.repeats):
            # The lane with the cache first: a race that is stopped early then has one lane.
            for cache in CACHES[:: 1 if repeat % 2 else -1]:
                yield LaneStarted(cache=cache, repeat=repeat, purpose="measured")
                yield from self._measured(cache, repeat)
                if self.was_cancelled or self.error:
                    return
            if repeat == 0:
                yield self.comparison.compared()
                self.logits = []
        if self.settings.layer is not None:
            yield from self._looks()
        if not self._stops() and (changed := self._prefix_changed()) is not None:
            yield changed

    def _stops(self) -> bool:
        self.was_cancelled = self.was_cancelled or self.cancelled()
        return self.was_cancelled

    def _measured(self, cache: str, repeat: int) -> Iterator[Event]:
        """A timed run. Its logits are only kept by reference while it runs."""
        keep = None
        if repeat == 0 and cache == "full":
            keep = lambda step, logits: self.logits.append(logits[0].clone())  # noqa: E731
        elif repeat == 0:
            self.comparison = _Comparison(self.logits)
            keep = lambda step, logits: self.comparison.take(logits[0])  # noqa: E731
        log = RunLog()
        samples = self._samples() if cache != "none" and repeat == 0 else "none"
        options = generate.Options(on_logits=keep, samples=samples)
        for event in self._generate(cache, f"{cache}-{repeat}", options):
            log.append(event)
            yield event
        self._take_end(log)
        if repeat == 0:
            self.first[cache] = log

    def _generate(
        self, cache: str, name: str, options: generate.Options, settings: RunSettings | None = None
    ) -> Iterator[Event]:
        return generate.generate(
            self.loaded,
            lane_settings(settings or self.settings.run, cache),
            run_id=f"{self.race_id}-{name}",
            queued_ns=self.queued_ns,
            cancelled=self.cancelled,
            clock=self.clock,
            options=options,
        )

    def _take_end(self, log: RunLog) -> None:
        self.was_cancelled = log.finished.finish_reason == "cancelled"
        self.error = log.finished.error

    def _samples(self) -> str:
        """Rows are sampled at the end, outside all times, where they are all still there."""
        kept = all(layer.kind in ("full", "latent") for layer in self.loaded.spec.layers)
        return "last" if kept and not self.loaded.probed.theirs else "each"

    def _looks(self) -> Iterator[RaceEvent]:
        """A short run of each lane with the tokens of the race, for the attention weights."""
        spec = self.loaded.spec.layers[self.settings.layer]
        probed = self.loaded.probed
        if not probed.own_attention or not probed.can_roll_back or spec.kind != "full":
            return
        tokens = [t for step in self.first["none"].steps for t in step.token_ids[0]][:LOOK_TOKENS]
        short = dataclasses.replace(self.settings.run, new_tokens=LOOK_TOKENS, warm_up=False)
        for cache in CACHES[::-1]:
            if self._stops():
                return
            look = AttentionLook(self.settings.layer, self.settings.query_head, MOST_QUERIES)
            yield LaneStarted(cache=cache, repeat=0, purpose="look")
            options = generate.Options(forced_tokens=[tokens], samples="none", capture=look)
            log = RunLog()
            for event in self._generate(cache, f"{cache}-look", options, short):
                log.append(event)
                yield event
            self._take_end(log)
            if self.error:
                return

    def _prefix_changed(self) -> PrefixChanged | None:
        """Read the prompt twice, its first token being another one the second time, and compare
        the keys. None for a model that does not keep every row."""
        ids = list(self.first["full"].started.prompt_token_ids[0])[:MOST_CHANGED_ROWS]
        if self._samples() != "last" or any(not s.num_kv_heads for s in self.loaded.spec.layers):
            return None
        other = next((token for token in ids if token != ids[0]), ids[0] ^ 1)
        before, after = (self._keys([first, *ids[1:]]) for first in (ids[0], other))
        changes = torch.stack([_change(a, b) for a, b in zip(before, after, strict=True)], dim=1)
        with np.errstate(divide="ignore"):
            levels = np.clip(np.rint(128 + 12 * np.log2(changes.numpy())), 1, 255)
        levels = np.where(changes.numpy() > 0, levels, 0).astype(np.uint8)
        texts = self.loaded.tokenizer.texts([ids[0]]), self.loaded.tokenizer.texts([other])
        return PrefixChanged(
            before=texts[0][0],
            after=texts[1][0],
            num_rows=len(ids),
            num_layers=self.loaded.spec.num_layers,
            changes=levels.tobytes(),
        )

    def _keys(self, ids: list[int]) -> list[torch.Tensor]:
        """The keys of each layer `[H, rows, D]` after one forward of a prompt."""
        cache = generate.new_cache(self.loaded, "full", 1, len(ids))
        cache.reserve(len(ids))
        device = self.loaded.device
        tokens = torch.tensor([ids], device=device)
        positions = torch.arange(len(ids), device=device)[None]
        generate.forward(self.loaded, tokens, positions, None, cache)
        return [keys[0].float().cpu() for keys, _ in cache.peek(0, len(ids))]


class _Comparison:
    """The lane with the cache ran first; the other's logits are held against its, token by token,
    until they choose differently: after that the two read different texts."""

    def __init__(self, logits: list[torch.Tensor]) -> None:
        self.logits = logits
        self.gaps: list[float] = []
        self.margins: list[float] = []
        self.largest = 0.0
        self.first_difference: int | None = None

    def take(self, without: torch.Tensor) -> None:
        """Logits `[vocab]` of the next token without a cache."""
        index = len(self.gaps)
        if self.first_difference is not None or index >= len(self.logits):
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
