"""The table of devices: every figure names a source, units are told apart, rates are dense."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from viz_engine.memory import devices
from viz_engine.memory.devices import GB, GIB, Device, Figure
from viz_engine.run import machine
from viz_engine.run.ceilings import Ceiling, Ceilings

NAMES = [row.name for row in devices.devices()]


def figures(row: Device) -> list[Figure]:
    optional = (row.reported, row.seen, row.bandwidth)
    return [row.memory, *(f for f in optional if f is not None), *row.tflops.values()]


def test_the_table_goes_from_a_gaming_card_to_a_gb200() -> None:
    assert len(NAMES) == len(set(NAMES)) > 40
    assert NAMES[0] == "GeForce RTX 3060 12 GB" and "NVIDIA GB200 (one GPU)" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_names_the_page_that_it_comes_from(name: str) -> None:
    for figure in figures(devices.device(name)):
        assert figure.source.startswith("https://") and figure.checked in ("page", "copies")
        assert " " not in figure.source and figure.value > 0 and figure.plain > 0


def test_every_source_is_used() -> None:
    table = json.loads(devices.TABLE.read_text(encoding="utf-8"))
    used = {figure.source for row in devices.devices() for figure in figures(row)}
    assert used == {source["url"] for source in table["sources"].values()}


def test_a_vendor_gb_and_a_gib_are_told_apart() -> None:
    h100 = devices.device("NVIDIA H100 80 GB SXM")
    assert h100.memory.plain == 80 * GB
    # https://github.com/modal-labs/modal-client/pull/2797: 81559 MiB are 85 520 809 984 bytes.
    assert h100.reported.plain == 85_520_809_984
    assert h100.capacity_bytes == int(79.18 * GIB)  # what CUDA lets a program have of it
    trainium = devices.device("AWS Trainium2")
    assert trainium.capacity_bytes == 96 * GIB  # no reported size: the vendor's own unit


@pytest.mark.parametrize("name", NAMES)
def test_what_a_driver_reports_is_near_what_the_vendor_sells(name: str) -> None:
    row = devices.device(name)
    if row.reported is not None and row.kind != "unified":
        assert 0.9 * row.memory.value * GIB < row.capacity_bytes < 1.01 * row.memory.value * GIB


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("NVIDIA H200 SXM", 143_771),
        ("NVIDIA B200 (HGX)", 183_359),
        ("GeForce RTX 4080", 16_376),
        ("RTX A6000", 49_140),
        ("RTX 6000 Ada", 49_140),
    ],
)
def test_a_gb_of_gpu_memory_is_not_a_thousand_million_bytes(name: str, mib: int) -> None:
    assert devices.device(name).reported.plain == mib * 2**20


@pytest.mark.parametrize(
    ("name", "gib"),  # as the thread named in the row prints it: "has a total capacity of"
    [
        ("GeForce RTX 3090", 23.68),
        ("GeForce RTX 4090", 23.64),
        ("GeForce RTX 5080", 15.48),
        ("GeForce RTX 5090", 31.37),
        ("NVIDIA T4", 14.56),
        ("NVIDIA A10", 21.99),
        ("NVIDIA L40S", 44.53),
        ("NVIDIA A100 40 GB", 39.50),
        ("NVIDIA H100 80 GB SXM", 79.18),
    ],
)
def test_where_a_log_states_what_cuda_sees_it_is_planned_with(name: str, gib: float) -> None:
    row = devices.device(name)
    assert row.capacity is row.seen and row.capacity_bytes == int(gib * GIB)
    assert row.seen.source != row.reported.source


@pytest.mark.parametrize("name", NAMES)
def test_every_row_says_which_of_its_sizes_is_planned_with(name: str) -> None:
    row = devices.device(name)
    said = devices.size_message(row)
    assert said.text("en") != said.text("zh") and row.name in said.text("en")
    shown = row.seen or row.reported
    assert (str(shown) in said.text("en")) if shown else ("no public table" in said.text("en"))
    if row.seen is not None and row.reported is not None:
        assert 0.97 * row.reported.plain < row.seen.plain < row.reported.plain
    assert row.capacity_bytes <= min(f.plain for f in (shown or row.memory,))


def test_what_is_said_to_be_kept_is_no_less_than_what_logs_show() -> None:
    both = [row for row in devices.devices() if row.reported and row.seen]
    kept = [1 - row.seen.plain / row.reported.plain for row in both]
    assert 0.029 < max(kept) < 0.03  # the T4's
    rtx_4080 = devices.size_message(devices.device("GeForce RTX 4080"))
    assert all("3 %" in rtx_4080.text(language) for language in ("en", "zh"))


def test_most_rows_were_checked_against_what_a_driver_reports() -> None:
    unchecked = [row.name for row in devices.devices() if not (row.reported or row.seen)]
    assert len(unchecked) == 12, unchecked


@pytest.mark.parametrize("name", NAMES)
def test_narrower_formats_are_never_slower_and_never_the_sparse_figure(name: str) -> None:
    rates = devices.device(name).tflops
    order = [rates[key].value for key in ("bf16", "fp8", "fp4") if key in rates]
    assert order == sorted(order)
    if len(order) > 1:  # a sparse figure beside a dense one would be four times, not two
        assert order[1] / order[0] < 4.5 and not ("bf16" in rates and "fp16" in rates)


def test_a_format_without_a_unit_is_computed_in_sixteen_bits() -> None:
    a100 = devices.device("NVIDIA A100 80 GB SXM")
    assert a100.flops_per_s("fp8").value == a100.flops_per_s("float16").value == 312
    assert devices.device("NVIDIA GB200 (one GPU)").flops_per_s("fp4").value == 10_000
    assert devices.device("Apple M3 Ultra 512 GB").flops_per_s("bf16") is None


def test_an_unknown_device_names_those_that_are_near() -> None:
    with pytest.raises(KeyError, match="NVIDIA H200 SXM"):
        devices.device("h200")


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("NVIDIA H200", "NVIDIA H200 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 80 GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80 GB SXM"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80 GB SXM"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80 GB PCIe"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40 GB"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("Tesla T4", "NVIDIA T4"),
    ],
)
def test_a_device_is_found_by_what_it_calls_itself(called: str, name: str) -> None:
    found = devices.called(called)
    assert found.name == name and found.bandwidth and found.promised("float32")


def test_what_a_maker_promises_is_not_guessed() -> None:
    assert devices.called("AMD EPYC") is None
    assert devices.called("NVIDIA L40S").name == "NVIDIA L40S"  # not an L4
    assert devices.called("NVIDIA H100 NVL") is None
    assert devices.called("NVIDIA GeForce RTX 3090 Ti") is None
    assert devices.device("NVIDIA T4").promised("bfloat16") is None
    assert devices.device("NVIDIA A100 80 GB SXM").promised("float32").plain == 19.5e12


def test_measured_ceilings_are_the_rates_of_this_machine() -> None:
    best = Ceiling(per_s=3e9, spread=0.0, num=4, kernel="k")
    found = devices.this_machine(
        Ceilings(
            machine="m",
            device="cpu",
            num_threads=1,
            measured_at="2026-01-01",
            buffer_bytes=1,
            bandwidth=best,
            kernels={},
            flops={"float32": best, "bfloat16": replace(best, per_s=1e9)},
        )
    )
    assert found.bandwidth.plain == 3e9 and found.bandwidth.checked == "here"
    assert found.flops_per_s("bf16").plain == 3e9  # widened, where that is faster


def test_this_machine_says_its_memory_and_claims_no_rate() -> None:
    here = devices.this_machine()
    assert here.capacity_bytes == machine.memory_bytes()
    assert here.bandwidth is None and here.flops_per_s("bf16") is None


@pytest.mark.process
def test_a_peak_is_what_the_process_itself_held() -> None:
    ask = "from viz_engine.run import machine; print(machine.peak_process_bytes())"
    held = bytearray(b"x") * 300_000_000
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, check=True, text=True)
    assert machine.peak_process_bytes() > len(held) > int(done.stdout)
    del held
    assert machine.peak_process_bytes() > 300_000_000  # it stays what it was
