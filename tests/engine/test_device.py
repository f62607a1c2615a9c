"""The device and the dtype that are chosen, and why; CUDA's clock and memory on fakes."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from viz_engine.engine import device
from viz_engine.run import machine
from viz_engine.text import UserError


def test_device_and_dtype_are_chosen_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device.choose_device("auto")[0] == "cpu"
    with pytest.raises(UserError, match="no device “cuda” here. This machine has: cpu"):
        device.choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Fast One")
    chosen, reason = device.choose_device("auto")
    assert chosen == "cuda:0" and "Fast One" in str(reason)
    assert device.choose_device("cuda:1")[0] == "cuda:1"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **kwargs: False)
    assert device.choose_dtype("auto", "cuda:0")[0] == "float16"


def test_a_processor_without_bfloat16_instructions_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path / "one"))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    times = {torch.float32: 2_000_000, torch.bfloat16: 5_000_000}
    monkeypatch.setattr(device, "one_row_ns", lambda width, dtype: times[dtype])
    dtype, reason = device.choose_dtype("auto", "cpu")
    assert dtype == "float32" and "2.00 ms" in str(reason) and "5.00 ms" in str(reason)
    times[torch.bfloat16] = 2_400_000
    assert device.choose_dtype("auto", "cpu") == ("float32", reason), "kept: no run is another's"
    monkeypatch.setenv("SECOND_TOKEN_CACHE", str(tmp_path / "two"))
    assert device.choose_dtype("auto", "cpu")[0] == "bfloat16", "half the memory, hardly slower"
    with pytest.raises(UserError, match="float16"):
        device.choose_dtype("float16", "cpu")


# --- CUDA, on fakes --------------------------------------------------------------------------


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.calls: list[str] = []

    def record(self) -> None:
        self.calls.append("record")

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self.calls == ["record"] and other.calls == ["record", "synchronize"]
        return 1.25


def test_cuda_steps_are_timed_by_events_after_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    assert device.stop_timer(device.start_timer("cuda:0")) == 1_250_000
    assert device.stop_timer(device.start_timer("cpu")) is None


def test_cuda_memory_is_what_the_allocator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: device.index * 100)
    assert device.device_memory_bytes("cuda:3") == 300
    assert device.device_memory_bytes("cpu") is None
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert device.available_bytes("cuda:0") == 1007


def test_gpu_sensors_that_are_missing_read_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def missing(handle: object) -> None:
        raise NVMLError

    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5 * 2**30),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=75, memory=40),
        nvmlDeviceGetPowerUsage=missing,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    reading = machine.read_gpu(0)
    assert reading == machine.Reading(
        memory_used_bytes=5 * 2**30, utilisation=0.75, memory_bus_utilisation=0.4, power_w=None
    )
    fake.nvmlInit = lambda: missing(None)
    assert machine.read_gpu(0) == machine.Reading()
