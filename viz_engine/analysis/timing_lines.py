"""Timing lines that llama.cpp prints after a request, read from a paste.

`prompt eval time` is prefill, up to the first token; `eval time` the tokens after it. llama-cli
counts the steps ("runs"); llama-server counts the tokens, of which the first costs no step, so its
own mean was over one too many for years: here a step's time is always the time over the gaps.
Sources: print_timings of tools/server/server-context.cpp, llama_perf_context_print of
src/llama-context.cpp. Numbers may be written with a decimal comma, as the locale has it.

Try it: `python -c "from viz_engine.analysis import timing_lines; \
print(timing_lines.read('prompt eval time = 393.25 ms / 13 tokens'))"`
"""

import re
from dataclasses import dataclass

from viz_engine.text import UserError

MAX_LINE_CHARS = 1000  # of a line, what is looked at
MAX_REQUESTS = 200
_TIME = re.compile(r"(prompt |generation )? ?eval time {0,20}= {0,20}([\d.,]{1,20}) ms / {0,20}"
                   r"(\d{1,9}) (tokens|runs)")  # fmt: skip
_DRAFTS = re.compile(
    r"draft acceptance(?: rate)? {0,9}= {0,9}[\d.,]{1,12} \( {0,9}(\d{1,9}) accepted"
    r" {0,9}/ {0,9}(\d{1,9}) generated\)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One request's lines. Seconds and numbers; None where its line is missing."""

    line_number: int
    prompt_tokens: int | None = None  # read; those found in the cache are not among them
    prompt_s: float | None = None
    new_tokens: int | None = None
    eval_s: float | None = None
    by_runs: bool = False  # llama-cli's: steps, not tokens
    drafts_accepted: int | None = None
    drafts_made: int | None = None

    @property
    def num_gaps(self) -> int | None:
        """Times between tokens that `eval_s` is made of."""
        return None if self.new_tokens is None else self.new_tokens - (not self.by_runs)

    @property
    def itl_s(self) -> float | None:
        """Mean time between tokens; None where fewer than two were written."""
        return self.eval_s / self.num_gaps if self.num_gaps and self.eval_s else None

    @property
    def prefill_per_s(self) -> float | None:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prompt_s if self.prompt_s and self.prompt_tokens else None

    @property
    def ratio(self) -> float | None:
        """Times that a written token takes as long as one that is read."""
        both = self.itl_s and self.prefill_per_s
        return self.itl_s * self.prefill_per_s if both else None


def holds(text: str) -> bool:
    """Whether a text has such a line."""
    return any(_TIME.search(line[:MAX_LINE_CHARS]) for line in _candidates(text))


def read(text: str) -> tuple[Timing, ...]:
    """The requests in a paste, in its order, at most `MAX_REQUESTS`. Raises UserError where it has
    no timing line, or one whose number cannot be read."""
    found: list[dict] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line[:MAX_LINE_CHARS]
        if "eval time" in line and (match := _TIME.search(line)) is not None:
            _take(found, number, match)
        elif "draft acceptance" in line and found and (match := _DRAFTS.search(line)):
            found[-1] |= {"drafts_accepted": int(match[1]), "drafts_made": int(match[2])}
        if len(found) > MAX_REQUESTS:
            found.pop()
            break
    if not found:
        raise UserError("paste.no_timings")
    return tuple(Timing(**one) for one in found)


def _candidates(text: str) -> list[str]:
    return [line for line in text.splitlines() if "eval time" in line]


def _take(found: list[dict], number: int, match: re.Match) -> None:
    """A prompt's line begins a request; the other belongs to the one that has none yet."""
    seconds = _number(match[2], number) / 1e3
    if match[1] == "prompt ":
        found.append({"line_number": number, "prompt_s": seconds, "prompt_tokens": int(match[3])})
        return
    if not found or "eval_s" in found[-1]:
        found.append({"line_number": number})
    found[-1] |= {"eval_s": seconds, "new_tokens": int(match[3]), "by_runs": match[4] == "runs"}


def _number(text: str, line_number: int) -> float:
    """Two decimals behind a point or a comma, as the program prints them."""
    whole, mark, decimals = text.replace(",", ".").rpartition(".")
    if "." in whole or not (whole + decimals).isdecimal():
        raise UserError("paste.bad_timing", line=line_number, text=text)
    return float(f"{whole}.{decimals}" if mark else decimals)
