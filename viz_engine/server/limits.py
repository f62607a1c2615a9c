"""What one visitor may ask of this server, whatever a page sends.

Try it: `python -c "from viz_engine.server import limits; print(limits.Limits.from_env())"`
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from viz_engine.model.files import DEFAULT_MODEL
from viz_engine.numbers import grouped
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import Settings
from viz_engine.text import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server. Each is set by the environment variable
    SECOND_TOKEN_MAX_ and its name in capitals."""

    batch: int = 16
    new_tokens: int = 4096
    prompt_chars: int = 200_000
    queue: int = 16  # runs waiting
    run_s: int = 1800  # then a run is stopped
    sweep_s: int = 600  # the most that a sweep's budget may be
    run_sockets: int = 1000  # who may watch one run
    client_sockets: int = 200  # of one address: a classroom may be one
    kept_runs: int = 64  # finished runs in memory
    kept_mib: int = 256  # of their lines together
    models: tuple[str, ...] | None = None  # None: any model

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Limits":
        """Limits of this server. SECOND_TOKEN_HOSTED=1 offers the default model and those that
        SECOND_TOKEN_MODELS lists, separated by commas. Raises ValueError that names a variable
        that is not a whole number of at least 1."""
        limits = cls()
        for f in fields(cls):
            name = f"SECOND_TOKEN_MAX_{f.name.upper()}"
            if f.name == "models" or not env.get(name):
                continue
            if not env[name].strip().isdecimal() or int(env[name]) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1: {env[name]!r}")
            limits = replace(limits, **{f.name: int(env[name])})
        if env.get("SECOND_TOKEN_HOSTED", "") not in ("", "0"):
            listed = (name.strip() for name in env.get("SECOND_TOKEN_MODELS", "").split(","))
            models = dict.fromkeys([DEFAULT_MODEL, *filter(None, listed)])
            limits = replace(limits, models=tuple(models))
        return limits

    def check(self, settings: RunSettings | Settings) -> None:
        """Raises UserError where `settings` ask for more than this server gives: of an experiment,
        its budget or one of its members."""
        if getattr(settings, "budget_s", 0) > self.sweep_s:
            raise UserError("sweep.bad_budget", most=self.sweep_s)
        if isinstance(settings, RunSettings):
            self._check_run(settings)
            return
        for planned in settings.order():
            self._check_run(planned.run)

    def _check_run(self, settings: RunSettings) -> None:
        num_chars = sum(len(prompt) for prompt in settings.prompts)
        if num_chars > self.prompt_chars:
            chars, limit = grouped(num_chars), grouped(self.prompt_chars)
            raise UserError("service.prompt_size", chars=chars, limit=limit)
        if not 1 <= settings.batch <= self.batch or len(settings.prompts) > self.batch:
            raise UserError("service.batch", batch=settings.batch, limit=self.batch)
        if not 1 <= settings.new_tokens <= self.new_tokens:
            tokens = settings.new_tokens
            raise UserError("service.new_tokens", tokens=tokens, limit=self.new_tokens)
        self.check_model(settings.model)

    def check_model(self, model: str) -> None:
        """Raises UserError where this server does not offer `model`: to be asked before anything
        looks for it on the disk."""
        if self.models is not None and model not in self.models:
            offered = ", ".join(self.models)
            raise UserError("service.model", model=model[:80], offered=offered)
