"""A child program that speaks lines over its stdin and stdout, and why it has ended.

It knows nothing of what a line says or when a child is due.

Try it: `python -m pytest tests/server/test_worker.py -k real`
"""

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable

from viz_engine.paths import ROOT
from viz_engine.run import protocol
from viz_engine.text import Message

EXIT_S = 10.0  # it has closed its stdout: time to end by itself


class ChildProcess:
    """A running child: one thread reads its lines, one writes to it, so that a child that does
    not read never holds up its parent."""

    def __init__(
        self,
        command: tuple[str, ...],
        on_line: Callable[["ChildProcess", bytes], None],
        on_exit: Callable[["ChildProcess", int], None],
    ) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )
        self.pid = self._popen.pid
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._threads = (
            threading.Thread(target=self._read, args=(on_line, on_exit), daemon=True),
            threading.Thread(target=self._write, daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def send(self, message: protocol.Command) -> None:
        self._outbox.put(protocol.to_bytes(message))

    def kill(self) -> None:
        self._popen.kill()

    def close(self, timeout_s: float = 2.0) -> None:
        """Close its stdin, on which it ends by itself; kill it where it does not."""
        self._outbox.put(None)
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        for thread in self._threads:
            thread.join(timeout_s)

    def _read(self, on_line: Callable, on_exit: Callable) -> None:
        with self._popen.stdout as stdout:
            for line in stdout:
                on_line(self, line)
        try:
            code = self._popen.wait(EXIT_S)
        except subprocess.TimeoutExpired:  # closed its stdout and lives on
            self._popen.kill()
            code = self._popen.wait()
        self._outbox.put(None)
        on_exit(self, code)

    def _write(self) -> None:
        try:
            with self._popen.stdin as stdin:
                while (data := self._outbox.get()) is not None:
                    stdin.write(data)
                    stdin.flush()
        except OSError:
            pass  # it has died; the reader tells


def exit_reason(code: int) -> Message:
    """Why a child has ended, from its exit code (negative: the signal that killed it)."""
    if code == -9:
        return Message(key="service.exit_killed")
    if code == -11:
        return Message(key="service.exit_crashed")
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return Message(key="service.exit_signal", params={"name": name})
    return Message(key="service.exit_code", params={"code": code})
