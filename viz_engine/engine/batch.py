"""The sequences of a run, side by side: what each is fed, what it has read, what it writes.

Shorter prompts are padded on the left to the length of the longest; "positions" here are those of
the padded batch, "own" tokens are a sequence's without its pads. It knows nothing of caches, steps'
times or models.

Try it: tests/engine/test_batch.py
"""

from collections.abc import Sequence

import torch

from viz_engine.model.tokenizer import PromptTokenizer, TextStream
from viz_engine.run.events import RunSettings


class Batch:
    """All positions of a run, and how far each sequence is."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        settings: RunSettings,
        tokenizer: PromptTokenizer,
        *,
        pad_token_id: int,
        device: str,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`settings`: with nothing left to choose. `forced`: tokens that each sequence takes in
        place of the model's choice; one whose list is used up ends."""
        self.size = len(prompts)
        self.cached = settings.cache != "none"
        self.new_tokens = settings.new_tokens
        self.stop_token_ids = settings.stop_token_ids
        self.forced = forced
        self.padded_len = max(map(len, prompts))  # of the prompts
        self.pads = [self.padded_len - len(ids) for ids in prompts]
        self.own_len = [0] * self.size  # own tokens attended so far
        self.num_written = [0] * self.size
        self.reasons: list[str | None] = [None] * self.size  # why a sequence has ended
        self.streams = [TextStream(tokenizer) for _ in prompts]
        shape = (self.size, self.padded_len + settings.new_tokens)
        ids = torch.full(shape, pad_token_id, dtype=torch.long)
        own = torch.ones(shape, dtype=torch.bool)
        for b, prompt in enumerate(prompts):
            ids[b, self.pads[b] : self.padded_len] = torch.tensor(prompt)
            own[b, : self.pads[b]] = False
        self.ids = ids.to(device)  # [B, padded length + new tokens]
        self.positions = (own.cumsum(dim=1) - 1).clamp(min=0).to(device)  # of own tokens, likewise
        # Numbers, as generate gives them: some models calculate with the mask. None without pads.
        self.mask = own.long().to(device) if any(self.pads) else None

    @property
    def goes_on(self) -> bool:
        """Whether a sequence has not ended."""
        return None in self.reasons

    def feed(self, first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Ids and positions `[B, stop - first]` and the mask `[B, stop]` of a forward."""
        fed = slice(first, stop)
        mask = None if self.mask is None else self.mask[:, :stop]
        return self.ids[:, fed], self.positions[:, fed], mask

    def forced_tokens(self) -> list[int | None]:
        """The next token that each sequence is to take; None for one that has ended."""
        return [
            None if reason else ids[n]
            for ids, n, reason in zip(self.forced, self.num_written, self.reasons, strict=True)
        ]

    def per_sequence(
        self, first: int, stop: int, tokens: Sequence[int | None]
    ) -> dict[str, object]:
        """The fields of StepFinished that have one entry a sequence, of the forward that was fed
        `[first, stop)`. Takes in the tokens that it gave, None where it gave none."""
        ended = [reason is not None for reason in self.reasons]
        before = self.own_len
        self.own_len = [
            own if end else max(stop - pad, 0)
            for pad, own, end in zip(self.pads, before, ended, strict=True)
        ]
        starts = before if self.cached else [0] * self.size
        fed = [
            0 if end else now - start
            for now, start, end in zip(self.own_len, starts, ended, strict=True)
        ]
        if self.cached:
            appended = tuple(zip(before, self.own_len, strict=True))
        else:
            appended = ((0, 0),) * self.size
        texts = tuple(
            () if token is None else (self.accept(b, token, stop),)
            for b, token in enumerate(tokens)
        )
        return {
            "num_new_tokens": tuple(fed),
            "context_len": tuple(self.own_len),
            "appended": appended,
            "dropped": ((),) * self.size,
            "token_ids": tuple(() if token is None else (token,) for token in tokens),
            "token_texts": texts,
        }

    def accept(self, b: int, token: int, position: int) -> str:
        """Take a token of sequence `b`: its place among the ids, whether its sequence ends; gives
        its text."""
        self.num_written[b] += 1
        used_up = self.forced is not None and self.num_written[b] == len(self.forced[b])
        if token in self.stop_token_ids:
            self.reasons[b] = "stop"
        elif self.num_written[b] == self.new_tokens or used_up:
            self.reasons[b] = "length"
        else:
            self.ids[b, position] = token
        return self.streams[b].push(token, last=self.reasons[b] is not None)
