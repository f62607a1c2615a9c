"""A contender's process: what goes over the pipes, that it is stopped between answers, how it
ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from viz_engine.bench.process import STOPS, Contender
from viz_engine.paths import ROOT
from viz_engine.text import UserError

pytestmark = pytest.mark.process

FAKE = """
import os, sys, time
from viz_engine.bench import process

class Fake:
    def __init__(self, size, fails=False):
        if fails:
            raise ValueError("no room for it")
        self.size = size

    def about(self):
        return {"size": self.size, "pid": os.getpid(), "torch": "torch" in sys.modules}

    def decode(self, tokens, at=None):
        print("what a library prints")
        return [token * self.size for token in tokens] + [at]

    def fail(self):
        raise RuntimeError("out of tokens")

    def die(self, code):
        print("a last word", file=sys.stderr, flush=True)
        os._exit(code)

process.serve(Fake)
"""
COMMAND = (sys.executable, "-c", FAKE)


@pytest.fixture
def fake() -> Iterator[Contender]:
    with Contender("fake", COMMAND, size=3) as child:
        yield child


def state_of(pid: int) -> str:
    """As the system names it: R, S, T (stopped) ...; "" where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def becomes(pid: int, *states: str) -> bool:
    """Whether it is soon in one of them."""
    stop = time.monotonic() + 20
    while state_of(pid) not in states and time.monotonic() < stop:
        os.sched_yield()
    return state_of(pid) in states


def test_calls_are_answered_by_the_childs_methods_without_torch(fake: Contender) -> None:
    about = fake.about()
    assert about["size"] == 3 and about["pid"] != os.getpid() and not about["torch"]
    assert fake.ask("decode", tokens=[1, 2]) == [3, 6, None]
    assert fake.ask("decode", tokens=[], at=7) == [7], "what libraries print is no answer"


@pytest.mark.skipif(not STOPS or sys.platform != "linux", reason="reads /proc")
def test_a_child_is_stopped_but_while_it_is_asked(fake: Contender) -> None:
    pid = fake.about()["pid"]
    assert becomes(pid, "T")
    for _ in range(3):
        assert fake.ask("decode", tokens=[5]) == [15, None]
        assert becomes(pid, "T")


def test_an_error_of_the_child_is_said_in_words_and_it_goes_on(fake: Contender) -> None:
    fake.about()
    with pytest.raises(UserError) as caught:
        fake.ask("fail")
    assert (
        caught.value.message.key == "error.contender_failed"
        and "fake" in str(caught.value)
        and "RuntimeError: out of tokens" in str(caught.value)
    )
    assert "out of tokens" in caught.value.message.text("zh")
    assert fake.ask("decode", tokens=[1]) == [3, None]


def test_a_child_that_cannot_be_made_is_said_in_words() -> None:
    with Contender("fake", COMMAND, size=3, fails=True) as child:
        with pytest.raises(UserError) as caught:
            child.about()
        assert "no room for it" in str(caught.value)


@pytest.mark.parametrize("killed", [False, True])
def test_a_child_that_dies_is_an_error_in_words_and_no_wait(fake: Contender, killed: bool) -> None:
    pid = fake.about()["pid"]
    if killed:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(UserError) as caught:
        fake.ask("die", code=3)
    said = str(caught.value)
    assert caught.value.message.key == "error.contender_ended"
    assert ("exit code -9" in said) if killed else ("exit code 3" in said and "a last word" in said)
    with pytest.raises(UserError):
        fake.ask("decode", tokens=[1])


def test_a_program_that_is_not_there_or_says_nothing_is_an_error() -> None:
    with Contender("silent", (sys.executable, "-c", "")) as child, pytest.raises(UserError):
        child.about()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_end_with_the_parent_however_it_ends() -> None:
    program = (
        "import sys; from viz_engine.bench.process import Contender\n"
        f"children = [Contender('fake', {COMMAND!r}, size=1) for _ in range(3)]\n"
        "print(*[child.about()['pid'] for child in children], flush=True)\n"
        "sys.stdin.read()"
    )
    parent = subprocess.Popen(
        (sys.executable, "-c", program),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3 and all(becomes(pid, "T") for pid in pids)
        parent.kill()
        parent.wait()
        assert all(becomes(pid, "", "Z") for pid in pids)


def test_closing_ends_a_stopped_child(fake: Contender) -> None:
    pid = fake.about()["pid"]
    fake.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
