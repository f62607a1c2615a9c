"""Records made by hand, of a toy model: what a test does not care about has a plain value."""

from tests.support.specs import TOY
from viz_engine.run.events import Hardware, RunFinished, RunSettings, RunStarted, StepFinished
from viz_engine.text import Message


def started(**changes: object) -> RunStarted:
    values = {
        "run_id": "r",
        "started_at": "2026-01-01T00:00:00Z",
        "source": "engine",
        "settings": RunSettings(model="toy", prompts=("a",), dtype="float32", device="cpu"),
        "spec": TOY,
        "hardware": Hardware(device="cpu", name="toy", num_threads=1, memory_bytes=None),
        "prompt_token_ids": ((1, 2),),
        "prompt_texts": (("a", "\ud800"),),
        "accepted_ns": 5,
        "queued_ns": 1,
        "versions": {"torch": "0"},
        "command": "record",
        "reasons": (Message(key="x.y", params={"n": 1}),),
        "parts": (),
    }
    return RunStarted(**(values | changes))


def step(number: int, first: int, stop: int, **changes: object) -> StepFinished:
    values = {
        "step": number,
        "phase": "prefill" if number == 0 else "decode",
        "start_ns": 10 * (number + 1),
        "end_ns": 10 * (number + 1) + 5,
        "device_ns": None,
        "num_new_tokens": (stop - first,),
        "context_len": (stop,),
        "appended": ((first, stop),),
        "dropped": ((),),
        "token_ids": ((3,),),
        "token_texts": (("c",),),
        "kv_live_bytes": 0,
        "kv_reserved_bytes": 0,
        "weight_bytes_read": 0,
        "kv_bytes_read": 0,
        "kv_bytes_written": 0,
        "device_memory_bytes": None,
    }
    return StepFinished(**(values | changes))


def finished(**changes: object) -> RunFinished:
    values = {"end_ns": 99, "finish_reason": "length", "sequence_reasons": ("length",)}
    return RunFinished(**(values | changes))
