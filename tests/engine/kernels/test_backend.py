"""The kernels of a model's forwards: chosen once, the same in Python and in a traced step."""

from collections.abc import Callable

import pytest
import torch

from viz_engine.engine import generate, trace
from viz_engine.engine.kernels import context
from viz_engine.engine.kernels.backend import Backend
from viz_engine.engine.load import Loaded
from viz_engine.run.events import RunSettings
from viz_engine.run.log import RunLog

ALL_ON = Backend(
    compiled_decode=True, compiled_prefill=True, upcast_prefill=True, onednn_off_for_one_token=True
)


def seen() -> tuple[bool, bool, bool]:
    on = context.current()
    return on.compiled, on.upcast, torch._C._get_mkldnn_enabled()


def test_a_prefill_and_a_decode_step_have_each_their_kernels() -> None:
    before = seen()
    with ALL_ON.prefill():
        assert seen() == (True, True, True)
    with ALL_ON.decode(1):
        assert seen() == (True, False, False), "one token: without oneDNN"
    with ALL_ON.decode(2):
        assert seen() == (True, False, True)
    with Backend(compiled_prefill=True).decode(1):
        assert seen() == (False, False, True)
    assert seen() == before


def test_every_choice_has_a_part_with_its_reason(tiny: Callable[..., Loaded]) -> None:
    loaded = tiny("llama", "bfloat16")
    on = {part.name: part.on for part in loaded.backend.parts}
    assert on["compiled_attention"] is loaded.backend.compiled_decode
    assert on["compiled_attention_prefill"] is loaded.backend.compiled_prefill
    assert all(part.reason.text("zh") for part in loaded.backend.parts)
    assert all(part in loaded.parts for part in loaded.backend.parts)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_traced_step_is_played_with_the_kernels_of_a_step_in_python(
    tiny: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    loaded = tiny()
    kernels: dict[str, set[object]] = {"traced": set(), "python": set()}
    play, call = trace.Traced.__call__, generate.call

    def played(*given: object) -> torch.Tensor:
        kernels["traced"].add(seen())
        return play(*given)

    def called(network: object, arguments: object, given: dict) -> torch.Tensor:
        if given["input_ids"].shape[1] == 1:
            kernels["python"].add(seen())
        return call(network, arguments, given)

    monkeypatch.setattr(loaded, "backend", ALL_ON)
    monkeypatch.setattr(loaded, "traces", {})
    monkeypatch.setattr(trace.Traced, "__call__", played)
    monkeypatch.setattr(generate, "call", called)
    settings = RunSettings(
        model="tiny", prompts=("abc",), batch=batch, chat=False, new_tokens=4, stop_token_ids=()
    )
    for eager in (False, True):
        options = generate.Options(eager=eager)
        log = RunLog.of(generate.generate(loaded, settings, run_id="r", options=options))
        assert log.finished.error is None
    assert kernels["traced"] == kernels["python"] == {(True, False, batch == 2)}
