"""Timing lines of llama.cpp, as people paste them into its issues."""

import time

import pytest

from viz_engine.analysis import timing_lines
from viz_engine.text import UserError

# ggml-org/llama.cpp issue 2237: llama-cli counts steps.
CLI = """\
llama_print_timings:        load time =   907.71 ms
llama_print_timings:      sample time =   301.80 ms /   512 runs   (    0.59 ms per token,  1696.48 tokens per second)
llama_print_timings: prompt eval time =  6294.68 ms /   271 tokens (   23.23 ms per token,    43.05 tokens per second)
llama_print_timings:        eval time = 115222.19 ms /   510 runs   (  225.93 ms per token,     4.43 tokens per second)
"""  # noqa: E501
# ggml-org/llama.cpp pull requests 23269 and 12603: llama-server counts tokens; with drafts.
SERVER = """\
[42027] 1.37.495.377 I slot print_timing: id  0 | task 388 | 
[42027] prompt eval time =     789.03 ms /    27 tokens (   29.22 ms per token,    34.22 tokens per second)
[42027]        eval time =   16112.50 ms /   192 tokens (   83.92 ms per token,    11.92 tokens per second)
[42027]       total time =   16901.53 ms /   219 tokens
prompt eval time =     393.25 ms /    13 tokens (   30.25 ms per token,    33.06 tokens per second)
       eval time =    9840.04 ms /   200 tokens (   49.20 ms per token,    20.33 tokens per second)
      total time =   10233.29 ms /   213 tokens
slot print_timing: id  0 | task 0 |
draft acceptance rate = 0.23026 (   70 accepted /   304 generated)
"""  # noqa: E501


def test_llama_cli_counts_steps() -> None:
    (one,) = timing_lines.read(CLI)
    assert (one.prompt_tokens, one.new_tokens, one.num_gaps) == (271, 510, 510)
    assert one.itl_s == pytest.approx(0.22593, rel=1e-4)
    assert one.prefill_per_s == pytest.approx(43.05, rel=1e-3)
    assert one.ratio == pytest.approx(225.93 / 23.23, rel=1e-3)


def test_llama_server_counts_tokens_of_which_the_first_takes_no_step() -> None:
    one, two = timing_lines.read(SERVER)
    assert (one.new_tokens, one.num_gaps) == (192, 191)
    assert one.itl_s == pytest.approx(16.1125 / 191)
    assert (one.drafts_made, two.drafts_accepted, two.drafts_made) == (None, 70, 304)
    assert two.line_number == 5


def test_a_decimal_comma_changes_no_number() -> None:
    comma = "\n".join(line.replace(".", ",") for line in SERVER.splitlines())
    assert timing_lines.read(comma) == timing_lines.read(SERVER)


def test_half_a_request_keeps_what_it_says() -> None:
    (prompt,) = timing_lines.read(CLI.splitlines()[2])
    (written,) = timing_lines.read(CLI.splitlines()[3])
    assert prompt.itl_s is None and prompt.ratio is None and prompt.prefill_per_s
    assert written.prefill_per_s is None and written.itl_s
    assert timing_lines.read("eval time = 3.00 ms / 1 tokens")[0].itl_s is None
    assert timing_lines.read("prompt eval time = 0.00 ms / 0 tokens")[0].prefill_per_s is None


def test_what_is_no_time_is_refused_with_its_line() -> None:
    with pytest.raises(UserError, match="line 2"):
        timing_lines.read("\nprompt eval time = 1.234.56 ms / 3 tokens")
    with pytest.raises(UserError):
        timing_lines.read("total time = 3 ms")
    assert not timing_lines.holds("evaluation") and timing_lines.holds(CLI)


@pytest.mark.parametrize(
    "line", ["eval time = " + "9" * 4000, "prompt " * 600, "eval time" + " " * 4000, "eval time = "]
)
def test_time_grows_with_the_text_alone(line: str) -> None:
    text = (line + "\n") * (5_000_000 // len(line))
    start = time.process_time()
    with pytest.raises(UserError):
        timing_lines.read(text)
    assert not timing_lines.holds(text)
    assert time.process_time() - start < 2
