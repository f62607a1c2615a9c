"""A stand-in for the engine process: the real child program with a model that a test scripts.

The model's name says what loading does, the first prompt (JSON) what the run does:
`{"steps": 5, "pieces": 2, "delay_s": 0.01, "at": {"1": "die"}}`. What can happen at a step: die,
crash, exit, hang (stopped, no heartbeat), stuck (heartbeats, no step, deaf), asked (until it is
asked to stop), raise, memory, skip, print, end, wait:PATH (until that file is there), or once:PATH
(the first time it makes that file, from then on as asked). Steps before `pieces` are prefill.

Started with the word `die` it dies at once, with `no_torch` it cannot import torch.
"""

import dataclasses
import json
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator

from tests.support.specs import TOY
from viz_engine.engine import worker
from viz_engine.run import cost
from viz_engine.run.ceilings import Ceiling, Ceilings
from viz_engine.run.events import (
    Event,
    Hardware,
    KVSample,
    RunFinished,
    RunSettings,
    RunStarted,
    StepFinished,
)
from viz_engine.server import child
from viz_engine.text import Message, UserError

PIECE = 4  # tokens in a piece of prefill


def settings(model: str = "fake", **script: object) -> RunSettings:
    """What to submit so that the fake follows `script`."""
    return RunSettings(model=model, dtype="float32", device="cpu", prompts=(json.dumps(script),))


def spawn(mode: str = "") -> Callable:
    """What to give `Supervisor` so that this program is its engine process."""
    command = (sys.executable, "-m", "tests.support.fake_engine", mode)
    return lambda on_line, on_exit: child.ChildProcess(command, on_line, on_exit)


def until(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    """Wait for `condition`. Raises AssertionError where it does not come about in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.002)


@dataclasses.dataclass(frozen=True)
class Options:
    """What of a run's options the fake takes."""

    samples: str = "each"


def generate(
    loaded: object,
    settings: RunSettings,
    *,
    run_id: str,
    queued_ns: int,
    cancelled: Callable[[], bool],
    options: Options = Options(),
) -> Iterator[Event]:
    """A run of `steps` steps, rows and bytes as the toy model would have them."""
    script = json.loads(settings.prompts[0])
    steps, pieces = script.get("steps", 5), script.get("pieces", 2)
    if "refuse" in script:
        raise UserError("error.file_empty")
    act(script.get("at", {}).get("warm_up", ""))
    prompt_len = pieces * PIECE
    yield started(settings, run_id, queued_ns, prompt_len)
    reason, rows = "length", 0
    for step in range(steps):
        if cancelled():
            reason = "cancelled"
            break
        what = script.get("at", {}).get(str(step), "")
        step += act(what, cancelled)
        time.sleep(script.get("delay_s", 0))
        new = PIECE if step < pieces else 1
        phase = "prefill" if step < pieces else "decode"
        token = ((step,), (f" t{step}",)) if step >= pieces - 1 else ((), ())
        yield forward(settings, step, phase, rows, new, prompt_len, *token)
        if script.get("samples") and options.samples == "each":
            size = bytes([128]) * (new * TOY.num_columns)
            yield KVSample(step=step, sequence=0, first=rows, stop=rows + new, k=size, v=size)
        rows += new
    if script.get("at", {}).get("end") != "end":
        now = time.perf_counter_ns()
        yield RunFinished(end_ns=now, finish_reason=reason, sequence_reasons=(reason,))


def act(what: str, cancelled: Callable[[], bool] = lambda: False) -> int:
    """Do what the script says before a step; the number is how far the step count jumps."""
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "exit":
        os._exit(3)
    elif what == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "asked" or (what.startswith("once:") and os.path.exists(what[5:])):
        while not cancelled():
            time.sleep(0.002)
    elif what.startswith("once:"):
        open(what[5:], "w").close()
    elif what == "stuck":
        time.sleep(600)
    elif what == "raise":
        raise RuntimeError("the model fell over")
    elif what == "memory":
        raise MemoryError
    elif what == "print":
        print("a library says hello", flush=True)
        os.write(1, b"and again\n")
    elif what.startswith("wait:"):
        while not os.path.exists(what[5:]):
            time.sleep(0.002)
    return 7 if what == "skip" else 0


def started(settings: RunSettings, run_id: str, queued_ns: int, prompt_len: int) -> RunStarted:
    return RunStarted(
        run_id=run_id,
        started_at="2026-01-01T00:00:00+00:00",
        source="engine",
        settings=settings,
        spec=TOY,
        hardware=Hardware(device="cpu", name="fake", num_threads=1, memory_bytes=None),
        prompt_token_ids=(tuple(range(prompt_len)),),
        prompt_texts=(tuple(f"w{i} " for i in range(prompt_len)),),
        accepted_ns=time.perf_counter_ns(),
        queued_ns=queued_ns,
        versions={},
        command="",
        reasons=(),
        parts=(),
    )


def forward(
    settings: RunSettings,
    step: int,
    phase: str,
    rows: int,
    new: int,
    prompt_len: int,
    ids: tuple[int, ...],
    texts: tuple[str, ...],
) -> StepFinished:
    start_ns = time.perf_counter_ns()
    here = cost.step(
        TOY,
        settings.dtype,
        batch=1,
        num_new=new,
        num_columns=rows + new,
        prompt_columns=prompt_len,
        cached=True,
    )
    return StepFinished(
        step=step,
        phase=phase,
        start_ns=start_ns,
        end_ns=time.perf_counter_ns(),
        device_ns=None,
        num_new_tokens=(new,),
        context_len=(rows + new,),
        appended=((rows, rows + new),),
        dropped=((),),
        token_ids=(ids,),
        token_texts=(texts,),
        kv_live_bytes=here.kv_live_bytes,
        kv_reserved_bytes=here.kv_reserved_bytes,
        weight_bytes_read=here.weight_bytes_read,
        kv_bytes_read=here.kv_bytes_read,
        kv_bytes_written=here.kv_bytes_written,
        device_memory_bytes=None,
        num_columns=rows + new,
    )


def load(model: str, device: str, dtype: str, progress: Callable) -> object:
    """What the model's name says: fake, or an action such as die, raise, hang, wait:PATH."""
    message = Message(key="service.loading")
    progress(message, 0.0)
    if model.startswith("wait:"):
        while not os.path.exists(model[5:]):
            progress(message, 0.5)
            time.sleep(0.005)
    elif model == "refuse":
        raise UserError("error.file_empty")
    else:
        act(model)
    progress(message, 1.0)
    return types.SimpleNamespace(model=model)


def measure(device: str, machine: str) -> Ceilings:
    """Ceilings without a measurement."""
    one = Ceiling(per_s=1e9, spread=0.0, num=1, kernel="fake")
    return Ceilings(
        machine=machine,
        device=device,
        num_threads=1,
        measured_at="2026-01-01T00:00:00+00:00",
        buffer_bytes=1,
        bandwidth=one,
        kernels={},
        flops={"float32": one},
    )


def main() -> None:
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode == "die":
        os._exit(5)
    fakes = {
        "viz_engine.engine.generate": types.SimpleNamespace(generate=generate, Options=Options),
        "viz_engine.engine.load": types.SimpleNamespace(load=load),
        "viz_engine.engine.device": types.SimpleNamespace(
            devices=lambda: ["cpu"],
            choose_device=lambda wanted: ("cpu", None),
            choose_dtype=lambda wanted, device: ("bfloat16", None),
            is_out_of_memory=lambda error: isinstance(error, MemoryError),
            describe_device=lambda device: types.SimpleNamespace(name="fake"),
        ),
        "viz_engine.engine.ceilings": types.SimpleNamespace(measure=measure),
    }
    if mode == "no_torch":
        fakes = {"torch": None, "transformers": None}
    sys.modules.update(fakes)
    worker.main()


if __name__ == "__main__":
    main()
