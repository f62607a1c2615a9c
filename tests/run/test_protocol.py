"""The messages between the two processes: what is said is heard, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import finished, started, step
from viz_engine.run.codec import from_line, settings_from_dict, settings_to_dict, to_line
from viz_engine.run.protocol import (
    COMMANDS,
    REPLIES,
    Alive,
    Cancel,
    Done,
    Prepare,
    Progress,
    Ready,
    Record,
    Refused,
    Start,
    command_of,
    reply_of,
    to_bytes,
)
from viz_engine.text import Message

WHY = Message(key="service.loading", params={"name": "天空", "n": 2, "share": 0.5})
SETTINGS = started().settings
RECORDS = (started(), step(0, 0, 2), finished())
ASKED = (
    Start(run_id="r", what="run", settings=settings_to_dict(SETTINGS), waited_ns=7, samples="none"),
    Cancel(run_id="r"),
    Prepare(),
)
SAID = (
    Ready(devices=("cpu", "cuda:0"), device="cpu", dtype="bfloat16", memory_bytes=2**40),
    Ready(devices=(), problem=WHY),
    Alive(),
    Progress(run_id="r", message=WHY, fraction=0.25),
    Progress(),
    Refused(run_id="r", message=WHY),
    Done(run_id="r"),
)


@pytest.mark.parametrize("message", ASKED, ids=lambda message: message.kind)
def test_a_command_is_one_ascii_line_and_is_heard_as_it_was_said(message: object) -> None:
    line = to_bytes(message)
    assert line.isascii() and line.count(b"\n") == 1 and b"\t" not in line
    assert command_of(line) == message and {m.kind for m in ASKED} == set(COMMANDS)


@pytest.mark.parametrize("message", SAID, ids=lambda message: message.kind)
def test_a_reply_is_one_ascii_line_and_is_heard_as_it_was_said(message: object) -> None:
    line = to_bytes(message)
    assert line.isascii() and line.count(b"\n") == 1 and b"\t" not in line
    assert reply_of(line) == message and {m.kind for m in SAID} == set(REPLIES)


def test_settings_arrive_as_they_were() -> None:
    asked = command_of(to_bytes(ASKED[0]))
    assert settings_from_dict(asked.settings) == SETTINGS


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind)
def test_a_record_goes_as_the_line_of_its_file(record: object) -> None:
    said = to_bytes(Record("id-1_x", to_line(record)))
    assert said == b"id-1_x\t" + to_line(record).encode() + b"\n"
    heard = reply_of(said)
    assert heard == Record("id-1_x", to_line(record)) and from_line(heard.line) == record


@given(st.text(), st.text())
def test_no_text_makes_another_message_of_it(name: str, text: str) -> None:
    message = Refused(run_id=name, message=Message(key=text, params={"name": text}))
    assert reply_of(to_bytes(message)) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json\n",
        b"[1]\n",
        b"{}\n",
        b'{"kind":"sing"}\n',
        b'{"kind":"done"}\n',
        b'{"kind":"done","run_id":1}\n',
        b'{"kind":"ready","devices":"cpu"}\n',
        b'{"kind":"progress","fraction":NaN}\n',
        b"r\t\xff\n",
        b"\xff\tx\n",
        b"\xff\xfe\n",
    ],
)
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    for read in (reply_of, command_of):
        with pytest.raises(ValueError):
            read(line)


def test_each_side_hears_only_the_other() -> None:
    with pytest.raises(ValueError):
        reply_of(to_bytes(Prepare()))
    with pytest.raises(ValueError):
        command_of(to_bytes(Alive()))
