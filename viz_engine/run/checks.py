"""What cannot be run, and why: settings out of range, the model's window, memory.

Asked before anything starts, by the page and by the engine alike, so it knows no torch and looks
at no machine: whoever asks says how much memory there is.

Try it: tests/engine/test_generate.py lists every refusal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from viz_engine.model.spec import ModelSpec
from viz_engine.numbers import grouped, mib
from viz_engine.run import cost
from viz_engine.run.events import MAX_BATCH, MAX_INT, RunSettings
from viz_engine.run.log import MAX_COLUMNS
from viz_engine.run.members import changed
from viz_engine.run.race import RaceSettings, check_lanes
from viz_engine.text import UserError

CACHES = cost.POLICIES  # that a run may have


def check(
    spec: ModelSpec,
    settings: RunSettings,
    prompt_lens: Sequence[int],
    available_bytes: int | None = None,
) -> None:
    """Raises UserError where a run of these prompt lengths cannot be.

    `settings.dtype` must be chosen. `available_bytes` is what the engine's process may take in
    all, the weights included; None: memory is not checked.
    """
    check_settings(settings)
    longest = max(prompt_lens)
    check_window(spec, longest)
    window = spec.max_context_len
    if window is not None and settings.new_tokens > window - longest + 1:
        # the last token never gets a row
        raise UserError(
            "error.new_tokens_window",
            new_tokens=settings.new_tokens,
            prompt_len=longest,
            window=window,
            most=window - longest + 1,
        )
    need = footprint(
        spec,
        settings.dtype,
        batch=settings.batch,
        prompt_len=longest,
        new_tokens=settings.new_tokens,
        cached=settings.cache != "none",
    )
    check_fits(need, available_bytes)


def check_window(spec: ModelSpec, prompt_len: int) -> None:
    """Raises UserError where a prompt is longer than the model can attend to."""
    if spec.max_context_len is not None and prompt_len > spec.max_context_len:
        window = spec.max_context_len
        raise UserError("error.prompt_window", prompt_len=prompt_len, window=window)


def check_settings(settings: RunSettings) -> None:
    """Raises UserError on a setting that is out of its range, whatever the model."""
    if settings.new_tokens < 1:
        raise UserError("error.new_tokens_zero", new_tokens=settings.new_tokens)
    if not 1 <= settings.batch <= MAX_BATCH:
        raise UserError("error.batch", batch=settings.batch, most=MAX_BATCH)
    if len(settings.prompts) not in (1, settings.batch):
        raise UserError(
            "error.prompt_count", num_prompts=len(settings.prompts), batch=settings.batch
        )
    if settings.chunk_len < 0:
        raise UserError("error.chunk_len", chunk_len=settings.chunk_len)
    numbers = (settings.seed, settings.chunk_len, *(settings.stop_token_ids or ()))
    if not all(0 <= number <= MAX_INT for number in numbers):
        raise UserError("error.whole_number", most=MAX_INT)
    if not 0 <= settings.temperature <= 10:
        raise UserError("error.temperature", temperature=settings.temperature)
    if not 0 < settings.top_p <= 1:
        raise UserError("error.top_p", top_p=settings.top_p)
    if settings.cache not in CACHES:
        raise UserError("error.cache_policy", cache=settings.cache[:40], known=", ".join(CACHES))
    if settings.speculation is not None:
        raise UserError("error.speculation")
    if settings.context_len is not None and not 1 <= settings.context_len <= MAX_COLUMNS:
        asked = settings.context_len
        raise UserError("error.context_len", context_len=asked, most=grouped(MAX_COLUMNS))


def check_race(settings: RaceSettings, num_layers: int, num_query_heads: int | None) -> None:
    """Raises UserError where a race cannot be, whatever its prompt."""
    check_lanes(settings)
    for label in settings.lanes:
        lane = changed(settings.run, label)
        check_settings(lane)
        if lane.batch != 1 or len(lane.prompts) != 1:
            raise UserError("error.race_batch")
        if lane.temperature != 0:
            raise UserError("error.race_temperature")
    if settings.layer is None:
        return
    if not 0 <= settings.layer < num_layers:
        raise UserError("error.race_layer", layer=settings.layer, most=num_layers - 1)
    if num_query_heads is not None and not 0 <= settings.query_head < num_query_heads:
        raise UserError("error.race_head", head=settings.query_head, most=num_query_heads - 1)


OVERHEAD_BYTES = (
    600 * 1024**2
)  # torch, tokenizer, activations of one piece: what the engine process holds beside the two below


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that a run takes at its end."""

    weight_bytes: int
    kv_reserved_bytes: int
    num_rows: int  # of one sequence

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_reserved_bytes + OVERHEAD_BYTES


def footprint(
    spec: ModelSpec,
    dtype: str,
    *,
    batch: int,
    prompt_len: int,
    new_tokens: int,
    cached: bool = True,
) -> Footprint:
    """Weights and reserved rows at the last step: the last token never gets a row."""
    columns = prompt_len + max(new_tokens - 1, 0)
    reserved = cost.reserved_bytes(spec, dtype, batch=batch, num_columns=columns)
    return Footprint(
        weight_bytes=cost.weight_bytes(spec, dtype),
        kv_reserved_bytes=reserved if cached else 0,
        num_rows=columns,
    )


def check_fits(need: Footprint, available_bytes: int | None) -> None:
    """Raises UserError with the numbers where `need` is more than `available_bytes` (None:
    unknown, passes)."""
    if available_bytes is not None and need.total_bytes > available_bytes:
        raise UserError(
            "error.memory",
            total=mib(need.total_bytes),
            weights=mib(need.weight_bytes),
            cache=mib(need.kv_reserved_bytes),
            available=mib(available_bytes),
        )
