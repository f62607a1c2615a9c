"""A server program of this app's on a free port, and whether its engine process is there."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping

import httpx
import psutil

from tests.support.fake_engine import until
from viz_engine.paths import ROOT

ENV = os.environ | {"PYTHONPATH": str(ROOT)}


def free_port() -> int:
    """Of those that no system gives to whoever asks for any: it is still free when it is taken."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def answers(url: str) -> bool:
    try:
        return httpx.get(url).json() == {"ok": True}
    except (httpx.HTTPError, ValueError):
        return False


def is_engine(process: psutil.Process) -> bool:
    """Not between its birth and its own program, when it still looks like its parent."""
    return "viz_engine.engine.worker" in process.cmdline()


@contextlib.contextmanager
def served(*command: str, ping: str, env: Mapping[str, str] = ENV) -> Iterator[psutil.Process]:
    """A server program, from when it answers `ping` until it has ended by SIGTERM."""
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL) as popen:
        try:
            until(lambda: popen.poll() is None and answers(ping))
            yield psutil.Process(popen.pid)
            popen.send_signal(signal.SIGTERM)
            popen.wait(120)
        finally:
            popen.kill()


class Server:
    """`streamlit run app.py` (or another program on a port) with its engine process."""

    def __init__(self, *command: str, **env: str) -> None:
        port = str(free_port())
        self.url = f"http://127.0.0.1:{port}"
        command = command or (sys.executable, "-m", "streamlit", "run", "app.py", "--server.port")
        path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        self._popen = subprocess.Popen(
            [*command, port],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path} | env,
            stdout=subprocess.DEVNULL,
        )
        self.web = psutil.Process(self._popen.pid)
        until(lambda: answers(f"{self.url}/api/ping"))

    def engine(self) -> psutil.Process:
        until(lambda: [child for child in self.web.children() if is_engine(child)])
        return self.web.children()[0]

    def stop(self) -> None:
        self._popen.terminate()
        try:
            self._popen.wait(120)
        finally:
            self._popen.kill()
