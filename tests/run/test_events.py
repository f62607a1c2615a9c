"""The records and the log: what is written is read back, and what does not follow is refused."""

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import finished, started, step
from viz_engine.run import files
from viz_engine.run.codec import from_line, settings_from_dict, settings_to_dict, to_line
from viz_engine.run.events import (
    AttentionSample,
    EnginePart,
    Event,
    KeptCells,
    KVSample,
    RunSettings,
    StepFinished,
    Telemetry,
)
from viz_engine.run.files import LogError
from viz_engine.run.log import RunLog
from viz_engine.text import Message, UserError

KEPT = KeptCells(step=0, sequence=0, first=0, stop=2, kept=bytes((0b0111,)))
SAMPLE = KVSample(step=0, sequence=0, first=0, stop=2, k=bytes(4), v=bytes(range(4)))
RECORDS = (
    started(),
    step(0, 0, 2),
    SAMPLE,
    KEPT,
    AttentionSample(
        step=0, sequence=0, layer=0, query_head=0, first_query=1, weights=((0.5, 0.5),)
    ),
    Telemetry(
        t_ns=20, memory_used_bytes=7, utilisation=0.5, memory_bus_utilisation=None, power_w=None
    ),
    step(1, 2, 3),
    finished(error=Message(key="error.x")),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind)
def test_a_record_is_one_ascii_line_and_reads_back_equal(record: Event) -> None:
    line = to_line(record)
    assert line.isascii() and "\n" not in line
    assert from_line(line) == record


def test_a_log_reads_back_equal() -> None:
    log = RunLog.of(RECORDS)
    again = RunLog.read(log.to_jsonl().replace("\\ud800", "?").encode())  # as a file has it
    assert again.to_jsonl() == log.to_jsonl().replace("\\ud800", "?")
    assert again.events[1:] == log.events[1:] and again.num_rows == [3] and again.num_columns == 3


def test_unknown_fields_are_ignored_and_unknown_kinds_refused() -> None:
    data = json.loads(to_line(SAMPLE))
    assert from_line(json.dumps(data | {"later": 1})) == SAMPLE
    with pytest.raises(UserError, match="unknown kind"):
        from_line(json.dumps(data | {"kind": "dream"}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", "0"),
        ("step", True),
        ("step", 1.5),
        ("step", 2**60),
        ("step", -1),
        ("k", "***"),
        ("k", None),
        ("step", 1.0),
        ("step", "\ud800"),
        ("k", "AA="),
        ("k", "A A="),
        ("k", "AA==AA=="),
        ("first", [1]),
        ("scale", 3),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(field: str, value: object) -> None:
    data = json.loads(to_line(SAMPLE)) | {field: value}
    with pytest.raises(UserError, match=f"kv_sample.{field}"):
        from_line(json.dumps(data))


@pytest.mark.parametrize(
    "line", ["", "7", "[]", "null", "{", '{"kind":null}', "[" * 100_000, '{"kind":["a"]}']
)
def test_a_line_that_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(UserError):
        from_line(line)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
def test_a_number_that_is_none_is_refused(number: str) -> None:
    line = to_line(started())
    for field in ('"temperature":0.0', '"torch":"0"'):
        with pytest.raises(UserError):
            from_line(line.replace(field, f"{field.partition(':')[0]}:{number}"))


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("spec", "layers", 1, "num_kv_heads"), -1, "run_started.spec.layers.num_kv_heads"),
        (("spec", "layers", 1, "num_kv_heads"), True, "run_started.spec.layers.num_kv_heads"),
        (("spec", "layers", 1, "window"), "\ud800", "run_started.spec.layers.window"),
        (("settings", "temperature"), 2**53, "run_started.settings.temperature"),
        (("settings", "prompts", 0), 7, "run_started.settings.prompts"),
        (("reasons", 0, "params", "n"), {"a": 1}, "run_started.reasons.params"),
        (("versions", "torch"), 2, "run_started.versions"),
        (("prompt_token_ids", 0, 1), 2**53, "run_started.prompt_token_ids"),
        (("hardware",), None, "run_started.hardware"),
        (("hardware", "name"), ..., "run_started.hardware.name"),
    ],
)
def test_a_wrong_field_deep_in_a_record_is_named_by_its_path(
    path: tuple, value: object, where: str
) -> None:
    data = json.loads(to_line(started()))
    inner = data
    for name in path[:-1]:
        inner = inner[name]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    with pytest.raises(UserError, match=re.escape(f"“{where}”")):
        from_line(json.dumps(data))


@given(st.data())
def test_whatever_is_put_into_a_line_is_read_or_refused_in_words(data: st.DataObject) -> None:
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    )
    line = json.loads(to_line(data.draw(st.sampled_from(RECORDS))))
    at = line
    while True:
        keys = sorted(at) if isinstance(at, dict) else range(len(at))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(at[key], dict | list) and at[key] and data.draw(st.booleans())):
            break
        at = at[key]
    at[key] = data.draw(values)
    try:
        record = from_line(json.dumps(line))
    except UserError as error:
        assert error.message.key in ("error.file_line", "error.file_kind", "error.file_field")
        return
    assert from_line(to_line(record)) == record


def test_a_file_of_another_version_says_so() -> None:
    data = RunLog.of(RECORDS).to_jsonl().replace('"schema":1', '"schema":99').encode()
    with pytest.raises(UserError, match="another version") as caught:
        RunLog.read(data)
    assert "其他版本" in caught.value.message.text("zh")


def test_every_required_field_is_needed() -> None:
    for field in dataclasses.fields(StepFinished):
        if field.default is not dataclasses.MISSING:
            continue
        data = json.loads(to_line(step(0, 0, 2)))
        del data[field.name]
        with pytest.raises(UserError, match=field.name):
            from_line(json.dumps(data))


def test_fields_that_old_files_lack_have_defaults() -> None:
    whole = {
        "run_started": ("derived", "found_len"),
        "step_finished": ("num_columns", "drafted", "kv_bytes_needed"),
    }
    for record in (started(), step(0, 0, 2)):
        data = json.loads(to_line(record))
        for name in whole[record.kind]:
            del data[name]
        assert from_line(json.dumps(data)) == record
    part = EnginePart(name="x", on=True, reason=Message(key="x.y"), numbers={"ms": 1.5, "num": 2})
    data = json.loads(to_line(started(parts=(part,))))
    assert from_line(json.dumps(data)).parts == (part,)
    del data["parts"][0]["numbers"]
    assert from_line(json.dumps(data)).parts == (dataclasses.replace(part, numbers={}),)


@pytest.mark.parametrize("value", ["34.1 MiB", True, None, [1], 2**60])
def test_the_numbers_of_a_part_are_numbers(value: object) -> None:
    part = EnginePart(name="x", on=True, reason=Message(key="x.y"))
    data = json.loads(to_line(started(parts=(part,))))
    data["parts"][0]["numbers"] = {"bytes": value}
    with pytest.raises(UserError, match=r"run_started.parts.numbers"):
        from_line(json.dumps(data))


def test_settings_survive_a_permalink() -> None:
    settings = RunSettings(model="m", prompts=("a", "b"), batch=2, stop_token_ids=())
    assert settings_from_dict(json.loads(json.dumps(settings_to_dict(settings)))) == settings


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ((step(0, 0, 2),), "begins with RunStarted"),
        ((started(), started()), "one RunStarted"),
        ((started(accepted_ns=0),), "before it was queued"),
        ((started(prompt_token_ids=()),), "each sequence"),
        ((started(prompt_texts=(("a",),)),), "do not match"),
        ((started(), step(1, 0, 2)), "is due"),
        ((started(), step(0, 1, 3)), "do not continue"),
        ((started(), step(0, 0, 2, end_ns=1)), "time goes back"),
        ((started(), step(0, 0, 2), step(1, 2, 3, start_ns=3)), "time goes back"),
        ((started(), step(0, 0, 2), step(1, 3, 4)), "do not continue"),
        ((started(), step(0, 0, 2), step(1, 2, 3), step(2, 3, 4, phase="prefill")), "after decode"),
        ((started(), step(0, 0, 2, phase="sleep")), "phase"),
        ((started(), step(0, 0, 2, token_ids=())), "sequences"),
        ((started(), step(0, 0, 2, token_texts=((),))), "do not match"),
        ((started(), step(0, 0, 2, context_len=(1,))), "more tokens fed"),
        ((started(), SAMPLE), "rows that are not there"),
        ((started(), step(0, 0, 2), dataclasses.replace(SAMPLE, k=b"")), "rows x columns"),
        (
            (started(), step(0, 0, 2), dataclasses.replace(SAMPLE, first=9**9, stop=9**9, k=b"")),
            "rows that are not there",
        ),
        ((started(), step(0, 0, 9**9)), "more positions"),
        ((started(), step(0, 0, 2, dropped=(((10**15, 0),),))), "dropped"),
        ((started(), step(0, 0, 2, dropped=(((0, 3),),))), "dropped"),
        ((started(), step(0, 0, 2, start_ns=1)), "time goes back"),
        ((started(), dataclasses.replace(SAMPLE, sequence=1)), "not there"),
        ((started(), finished(finish_reason="bored")), "finish_reason"),
        ((started(), step(0, 0, 2), finished(end_ns=3)), "time goes back"),
        ((started(), finished(), SAMPLE), "nothing follows"),
    ],
)
def test_what_does_not_follow_is_refused(broken: tuple, why: str) -> None:
    with pytest.raises(LogError, match=why):
        RunLog.of(broken)


def test_without_a_cache_nothing_is_appended_and_all_is_fed_again() -> None:
    begin = started(
        settings=RunSettings(model="toy", prompts=("a",), dtype="float32", cache="none")
    )
    whole = {"appended": ((0, 0),), "num_new_tokens": (2,), "context_len": (2,)}
    log = RunLog.of([begin, step(0, 0, 2, **whole)])
    assert log.num_rows == [0]
    with pytest.raises(LogError, match="without a cache"):
        RunLog.of([begin, step(0, 0, 2)])
    with pytest.raises(LogError, match="fed again"):
        RunLog.of([begin, step(0, 0, 2, **(whole | {"num_new_tokens": (1,)}))])


def test_a_speculative_step_may_drop_its_rejected_tail() -> None:
    log = RunLog.of([started(), step(0, 0, 2), step(1, 2, 6, dropped=(((4, 6),),)), step(2, 4, 5)])
    assert log.num_rows == [5]


def test_a_truncated_file_is_read_as_far_as_it_goes() -> None:
    text = RunLog.of(RECORDS).to_jsonl()
    log = RunLog.read(text[: text.rfind('"kind":"run_finished"') + 30].encode())
    assert log.finished is None and len(log.steps) == 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no run"),
        (b"\n\n", "no run"),
        (b"hello\n", "Line 1"),
        (b"\xff\xfe\x00", "Line 1"),
        (b'{"kind":"run_started"}\n', "run_started.run_id"),
        (b"PK\x03\x04" + bytes(100), "Line 1"),
    ],
)
def test_a_foreign_file_is_refused_with_its_line(data: bytes, why: str) -> None:
    with pytest.raises(UserError, match=why):
        RunLog.read(data)


def test_a_huge_file_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    with pytest.raises(UserError, match="MiB"):
        RunLog.read(bytes(11))


def test_a_wrong_line_in_the_middle_is_named() -> None:
    lines = RunLog.of(RECORDS).to_jsonl().splitlines()
    lines[2] = lines[2][:20]
    with pytest.raises(UserError, match="Line 3"):
        RunLog.read("\n".join(lines).encode() + b"\n")
