"""The engine process itself: the program that holds the model and does one run at a time.

`python -m viz_engine.engine.worker` speaks the lines of `run/protocol.py` over its stdin and stdout
and ends when its stdin does. It knows nothing of queues or visitors; `server/supervisor.py` starts
and watches it.

Try it: `(echo '{"kind":"prepare"}'; sleep 20) | python -m viz_engine.engine.worker`
"""

import gc
import importlib
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from viz_engine.model.files import DEFAULT_MODEL
from viz_engine.run import machine as run_machine
from viz_engine.run import protocol
from viz_engine.run.codec import settings_from_dict
from viz_engine.run.events import Event, RunSettings
from viz_engine.run.experiment import KINDS, ExperimentEvent, to_line
from viz_engine.run.protocol import (
    Alive,
    Cancel,
    Done,
    Prepare,
    Progress,
    Ready,
    Record,
    Refused,
    Reply,
    Start,
)
from viz_engine.text import Message, UserError

if TYPE_CHECKING:
    from viz_engine.engine.load import Loaded

BEAT_S = 1.0  # between signs of life


class _Cancelled(Exception):
    """Raised out of a load that nobody waits for any more."""


class _Child:
    """The state of the child: its reply pipe, what is cancelled, the model that it holds."""

    def __init__(self, replies: BinaryIO) -> None:
        self._replies = replies
        self._lock = threading.Lock()
        self.inbox: queue.SimpleQueue[tuple[Start | Prepare, int]] = queue.SimpleQueue()
        self.cancelled: set[str] = set()
        self._loaded: Loaded | None = None
        self._keys: set[tuple[str, str, str]] = set()

    def send(self, message: Reply) -> None:
        line = protocol.to_bytes(message)
        try:
            with self._lock:
                self._replies.write(line)
                self._replies.flush()
        except OSError:
            os._exit(0)  # nobody listens any more

    def beat(self) -> None:
        while True:
            self.send(Alive())
            time.sleep(BEAT_S)

    def read(self, commands: BinaryIO) -> None:
        """Take commands while a run is on. The parent's end closes this pipe, and ends us, whatever
        the main thread is doing."""
        for line in commands:
            try:
                command = protocol.command_of(line)
            except ValueError:  # deaf it would outlive its parent
                traceback.print_exc()
                os._exit(1)
            if isinstance(command, Cancel):
                self.cancelled.add(command.run_id)
            else:
                self.inbox.put((command, time.perf_counter_ns()))
        os._exit(0)

    def serve(self) -> None:
        """Do what is asked, one command after the other."""
        problem = None
        run_machine.share_cores()
        try:
            from viz_engine.engine import device as devices
            from viz_engine.engine import generate, load  # noqa: F401  torch may be missing

            memory_bytes = run_machine.memory_bytes()
            device, _ = devices.choose_device("auto")
            dtype, _ = devices.choose_dtype("auto", device)
            ready = Ready(
                devices=tuple(devices.devices()),
                device=device,
                dtype=dtype,
                memory_bytes=memory_bytes,
            )
        except (ImportError, OSError) as error:
            traceback.print_exc()
            problem = _import_problem(error)
            ready = Ready(devices=(), problem=problem)
        self.send(ready)
        while True:
            command, heard_ns = self.inbox.get()
            if isinstance(command, Start) and problem is not None:
                self.send(Refused(run_id=command.run_id, message=problem))
            elif isinstance(command, Start):
                self._run(command, heard_ns - command.waited_ns)
            elif problem is None:
                self._prepare()

    def _prepare(self) -> None:
        """Load the default model. What goes wrong is said when a run asks for it."""
        try:
            self._load(RunSettings(model=DEFAULT_MODEL, prompts=("",)), None)
        except Exception as error:
            if not isinstance(error, UserError):
                traceback.print_exc()
        finally:
            self.send(Progress())

    def _run(self, command: Start, queued_ns: int) -> None:
        from viz_engine.engine.device import is_out_of_memory

        run_id = command.run_id
        try:
            for event in self._events(command, queued_ns):
                self.send(Record(run_id, to_line(event)))
            self.send(Done(run_id=run_id))
        except Exception as error:  # whatever a model does, the next run must work
            if not isinstance(error, UserError | _Cancelled):
                traceback.print_exc()
            full = is_out_of_memory(error)
            why = Message(key="service.out_of_memory") if full else _why(error)
            self.send(Refused(run_id=run_id, message=why))
        finally:
            self.cancelled.discard(run_id)

    def _events(self, command: Start, queued_ns: int) -> Iterator[ExperimentEvent | Event]:
        """The records of the run or the experiment that a command asks for."""
        run_id, what = command.run_id, command.what
        asked = {"queued_ns": queued_ns, "cancelled": lambda: run_id in self.cancelled}
        if what == "run":
            from viz_engine.engine import generate

            settings = settings_from_dict(command.settings)
            loaded = self._load(settings, run_id)
            options = generate.Options(samples=command.samples)
            return generate.generate(loaded, settings, run_id=run_id, options=options, **asked)
        kind = KINDS[what]
        module, _, maker = kind.maker.partition(":")
        make = getattr(importlib.import_module(module), maker)
        settings = settings_from_dict(command.settings, kind.settings)
        load = partial(self._load, run_id=run_id)
        return make(load, settings, experiment_id=run_id, **asked)

    def _load(self, settings: RunSettings, run_id: str | None) -> "Loaded":
        """The model asked for: the one that is held, or a new one in its place."""
        from viz_engine.engine import load

        def progress(message: Message, fraction: float | None) -> None:
            if run_id in self.cancelled:
                raise _Cancelled
            self.send(Progress(run_id=run_id, message=message, fraction=fraction))

        if run_id in self.cancelled:
            raise _Cancelled
        asked = (settings.model, settings.device, settings.dtype)
        if asked not in self._keys:
            self._loaded, self._keys = None, set()  # room for the new one first
            gc.collect()
            self._loaded = load.load(*asked, progress)
            self._keys = {asked}
        if run_id in self.cancelled:
            raise _Cancelled
        if settings.warm_up and run_id is not None:  # what comes next, until the first record
            progress(Message(key="progress.warm_up"), None)
        return self._loaded


def _why(error: Exception) -> Message:
    if isinstance(error, UserError):
        return error.message
    if isinstance(error, _Cancelled):
        return Message(key="service.cancelled")
    params = {"name": type(error).__name__, "reason": str(error)[:300]}
    return Message(key="service.engine_error", params=params)


def _import_problem(error: Exception) -> Message:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return Message(key="service.missing_package", params={"name": error.name})
    return Message(key="service.broken_package", params={"reason": str(error)[:300]})


def main() -> None:
    """Serve until stdin closes. Ctrl-C in a terminal is the parent's to handle: it then closes our
    stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What libraries print goes to stderr: the protocol keeps the pipes to itself.
    commands, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    child = _Child(replies)
    threading.Thread(target=child.beat, daemon=True).start()
    threading.Thread(target=child.read, args=(commands,), daemon=True).start()
    child.serve()


if __name__ == "__main__":
    main()
