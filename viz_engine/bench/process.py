"""A contender of the bench in a process of its own, which runs only while it is asked something.

Parent and child speak JSON over pipes, a line each: the first line says how the child is made, and
each after that calls one of its methods; to each the child answers with a value or an error.
Between answers it is stopped (SIGSTOP), so that none of its threads takes anything from the one
that is timed. It knows nothing of models.

Try it: tests/bench/test_process.py
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from viz_engine.paths import ROOT
from viz_engine.text import UserError

STOPS = hasattr(signal, "SIGSTOP")
REST_S = 0.3  # where a process cannot be stopped: by then its threads have ceased to spin
PATIENCE_S = 5.0  # for a child to end by itself
PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Child(Protocol):
    """What a child serves: any method whose arguments and value are JSON."""

    def about(self) -> dict[str, object]:
        """Answers the line that it is made by."""


class Contender:
    """The parent's end. Raises UserError, in words, once the child has ended or says an error."""

    def __init__(self, name: str, command: Sequence[str], **made_by: object) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            # A group of its own: where the parent is killed, it is hung up on and so ends, stopped
            # or not.
            process_group=0 if STOPS else None,
        )
        self._write(made_by)

    def about(self) -> dict[str, object]:
        """Wait until it is made; what it says of itself. Called first, once."""
        return self._answer()

    def ask(self, call: str, /, **arguments: object) -> object:
        """The value of one of the child's methods."""
        if STOPS:
            self._process.send_signal(signal.SIGCONT)
        else:
            time.sleep(REST_S)
        self._write({"call": call, "with": arguments})
        return self._answer()

    def close(self) -> None:
        """End it."""
        if STOPS:
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.close()
            self._process.wait(PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, message: dict[str, object]) -> None:
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def _answer(self) -> object:
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        if STOPS:
            self._process.send_signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise UserError("error.contender_failed", name=self.name, reason=answer["error"])
        return answer["value"]

    def _ended(self) -> UserError:
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "-")
        return UserError("error.contender_ended", name=self.name, code=code, said=last[:200])


def serve(make: Callable[..., Child]) -> None:
    """The child's end: until the parent closes its pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    child: Child | None = None
    for line in sys.stdin:
        given = json.loads(line)
        try:
            if child is None:
                child = make(**given)
                value = child.about()
            else:
                value = getattr(child, given["call"])(**given["with"])
            answer = {"value": value}
        except Exception as error:  # whatever a library raises: the parent says it
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), file=answers, flush=True)
        if child is None:
            return
