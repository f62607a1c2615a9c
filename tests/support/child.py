"""Engine processes that are none: one that says what a test makes it say, one that does nothing."""

from tests.support import fake_engine
from tests.support.fake_engine import PIECE, forward
from viz_engine.run import protocol
from viz_engine.run.codec import to_line
from viz_engine.run.events import RunFinished
from viz_engine.server.runs import Run

SETTINGS = fake_engine.settings()


class Child:
    """A child that says only what a test makes it say."""

    def __init__(self, on_line, on_exit) -> None:
        self.on_line, self.on_exit = on_line, on_exit
        self.sent: list[protocol.Command] = []
        self.killed = self.closed = False
        self.pid = 1

    def send(self, message) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        self.closed = True

    def exit(self, code: int) -> None:
        self.on_exit(self, code)

    def say(self, message: protocol.Reply) -> None:
        self.on_line(self, protocol.to_bytes(message))

    def ready(self) -> None:
        self.say(protocol.Ready(devices=("cpu",), memory_bytes=1))

    def event(self, run: Run, event) -> None:
        self.say(protocol.Record(run.id, to_line(event)))

    def begin(self, run: Run, prompt_len: int = 2 * PIECE) -> None:
        self.event(run, fake_engine.started(SETTINGS, run.id, 0, prompt_len))

    def step(self, run: Run) -> None:
        step, rows = len(run.log.steps), run.log.num_columns
        prefill = step < 2
        ids, texts = ((), ()) if step == 0 else ((step,), ("x",))
        new, phase = (PIECE, "prefill") if prefill else (1, "decode")
        self.event(run, forward(SETTINGS, step, phase, rows, new, 2 * PIECE, ids, texts))

    def finish(self, run: Run, reason: str = "length") -> None:
        last = run.log.steps[-1].end_ns if run.log.steps else run.log.started.accepted_ns
        ended = RunFinished(end_ns=last, finish_reason=reason, sequence_reasons=(reason,))
        self.event(run, ended)
        self.say(protocol.Done(run_id=run.id))

    @property
    def asked(self) -> list[str]:
        return [message.kind for message in self.sent]


class Idle:
    """A child that does nothing."""

    pid = 1

    def send(self, message: object) -> None:
        pass
