"""The contracts of a log: positions, found rows, rollback, eviction, drafts, columns, cells."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import producer
from tests.support.records import finished, started, step
from tests.support.specs import TOY as SPEC
from viz_engine.run import cost
from viz_engine.run.events import KeptCells, KVSample, RunSettings, RunStarted, StepFinished
from viz_engine.run.files import LogError
from viz_engine.run.log import RunLog

SETTINGS = RunSettings(model="toy", prompts=("a",), dtype="float32", device="cpu")
NUM_CELLS = SPEC.num_columns


def begun(prompt_lens: tuple[int, ...] = (4,), **changes: object) -> RunStarted:
    """A run of prompts of these lengths."""
    cache = changes.pop("cache", "full")
    return started(
        settings=dataclasses.replace(SETTINGS, batch=len(prompt_lens), cache=cache),
        prompt_token_ids=tuple((1,) * n for n in prompt_lens),
        prompt_texts=tuple(("a",) * n for n in prompt_lens),
        **changes,
    )


def drop(*ranges: tuple[int, int]) -> tuple[tuple[tuple[int, int], ...]]:
    return (ranges,)


def given_tokens(*ids: int) -> dict[str, object]:
    return {"token_ids": (ids,), "token_texts": (("c",) * len(ids),)}


def kept(first: int, stop: int, rows: list[set[int]], **changes: object) -> KeptCells:
    """`rows` says for each row the cells that are held."""
    bits = sum(1 << (at * NUM_CELLS + cell) for at, row in enumerate(rows) for cell in row)
    data = bits.to_bytes(-(-len(rows) * NUM_CELLS // 8), "little")
    record = KeptCells(step=0, sequence=0, first=first, stop=stop, kept=data)
    return dataclasses.replace(record, **changes)


ALL = set(range(NUM_CELLS))


# ---- found rows, rollback, eviction --------------------------------------------------------------


def test_found_rows_are_held_and_appended_begins_behind_them() -> None:
    log = RunLog.of([begun((5, 4), found_len=(3, 2))])
    assert log.num_rows == [3, 2]
    both = {
        "num_new_tokens": (2, 2),
        "context_len": (5, 4),
        "appended": ((3, 5), (2, 4)),
        "dropped": ((), ()),
        "token_ids": ((3,), (3,)),
        "token_texts": (("c",), ("c",)),
    }
    log.append(step(0, 3, 5, **both))
    assert log.num_rows == [5, 4] and log.columns == [5] and log.columns_fed(0) == 2
    assert log.step_cost(0).kv_bytes_written == 2 * 2 * cost.row_bytes(SPEC, "float32")


def test_rejected_drafts_are_taken_back_and_their_positions_written_again() -> None:
    drafted = {"drafted": ((7, 8, 9),), **given_tokens(7, 6)}
    log = RunLog.of([begun(), step(0, 0, 4), step(1, 4, 8, dropped=drop((6, 8)), **drafted)])
    assert log.num_rows == [6] and log.columns == [4, 8]
    log.append(step(2, 6, 7, num_columns=7))
    assert log.num_rows == [7] and log.columns[-1] == 7


def test_an_eviction_leaves_the_end_where_it_is_and_counts() -> None:
    log = RunLog.of([begun(), step(0, 0, 4, dropped=drop((1, 3))), step(1, 4, 5, num_columns=3)])
    assert log.num_rows == [3] and log.columns == [4, 3]
    with pytest.raises(LogError, match="evicted before"):
        log.append(step(2, 5, 6, dropped=drop((2, 3))))
    with pytest.raises(LogError, match="do not continue"):
        log.append(step(2, 1, 2))
    log.append(step(2, 5, 6, dropped=drop((0, 1), (3, 5))))
    assert log.num_rows == [1] and log.histories[0].seen == 6


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ((begun(found_len=(1, 1)),), "each sequence"),
        ((begun(found_len=(4,)),), "before its last token"),
        ((begun(found_len=(1,), cache="none"),), "without a cache"),
        ((begun(found_len=(2,)), step(0, 0, 4)), "do not continue"),
        ((begun(), step(0, 0, 4, dropped=drop((3, 4), (1, 2)), num_new_tokens=(3,))), "continue"),
        ((begun(), step(0, 0, 4), step(1, 4, 5, dropped=drop((4, 5)))), "newest row"),
        ((begun(), step(0, 0, 4), step(1, 4, 5, dropped=drop((3, 5)))), "newest row"),
        ((begun(), step(0, 0, 4, context_len=(5,))), "more positions attended"),
        ((begun(), step(0, 0, 4, kv_bytes_needed=1)), "needed"),
        (
            (begun(cache="none"), step(0, 0, 0, num_new_tokens=(4,), context_len=(4,),
             dropped=drop((0, 1)))),
            "without a cache",
        ),
    ],
)  # fmt: skip
def test_rows_that_do_not_follow_are_refused(broken: tuple, why: str) -> None:
    with pytest.raises(LogError, match=why):
        RunLog.of(broken)


@pytest.mark.parametrize(
    ("drafted", "ids", "why"),
    [
        (((7, 8, 9),), (7, 8, 9, 5), None),
        (((7, 8, 9),), (7, 8), None),
        (((7, 8, 9),), (), None),
        (((),), (5,), None),
        (((7, 8, 9), ()), (7,), "each sequence"),
        (((7, 8, 9, 9),), (7,), "more drafts"),
        (((7, 8, 9),), (7, 8, 9, 5, 5), "drafted and one"),
        (((),), (5, 5), "drafted and one"),
        (((7, 8, 9),), (8, 8), "not drafted"),
    ],
)
def test_accepted_tokens_are_the_drafts_and_one_more(
    drafted: tuple, ids: tuple[int, ...], why: str | None
) -> None:
    log = RunLog.of([begun(), step(0, 0, 4)])
    event = step(1, 4, 8, drafted=drafted, **given_tokens(*ids))
    if why is None:
        log.append(event)
        return
    with pytest.raises(LogError, match=why):
        log.append(event)


def test_a_refused_record_changes_nothing() -> None:
    log = RunLog.of([begun(), step(0, 0, 4, dropped=drop((1, 2)))])
    for event in (
        step(1, 4, 5, dropped=drop((1, 3))),
        step(1, 4, 5, num_columns=2),
        step(1, 4, 5, dropped=drop((0, 1)), kv_bytes_needed=1),
    ):
        with pytest.raises(LogError):
            log.append(event)
        assert len(log) == 2 and log.num_rows == [3] and log.columns == [4]
    log.append(step(1, 4, 5, dropped=drop((0, 1)), num_columns=4))
    assert log.num_rows == [3]


@dataclasses.dataclass
class Sequence:
    """What one sequence holds, as a list of positions: the oracle."""

    held: list[int]
    seen: int


@st.composite
def runs(draw: st.DrawFn) -> tuple[list, list[list[int]], list[int]]:
    """Records of a run that evicts, takes back and finds rows; the rows held and the columns
    attended after each step."""
    lens = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    found = tuple(draw(st.integers(0, n - 1)) if len(lens) == 1 else 0 for n in lens)
    records: list = [begun(lens, found_len=found)]
    state = [Sequence(list(range(n)), n) for n in found]
    rows, columns, at, clock = [], [], max(found), 10
    apart = False
    longest = max(lens)
    for number in range(draw(st.integers(1, 12))):
        prefill = at < longest
        fed = draw(st.integers(1, longest - at)) if prefill else draw(st.integers(1, 4))
        appended, dropped, attended = [], [], []
        for one, n in zip(state, lens, strict=True):
            pad = longest - n
            new = max(0, at + fed - pad) - max(0, at - pad) if prefill else fed
            first, stop = one.seen, one.seen + new
            one.held += range(first, stop)
            attended.append(len(one.held) if apart else max(longest - n, 0) + stop)
            ranges = []
            if not prefill and len(lens) == 1 and new > 1 and draw(st.booleans()):
                stop_at = draw(st.integers(first + 1, stop - 1))
                ranges.append((stop_at, stop))
                one.held = [p for p in one.held if p < stop_at]
            one.seen = ranges[0][0] if ranges else stop
            free = [p for p in one.held if p < one.seen - 1]
            if free and draw(st.booleans()):
                start = draw(st.sampled_from(free))
                end = start + 1
                while end in free and draw(st.booleans()):
                    end += 1
                ranges.insert(draw(st.integers(0, len(ranges))), (start, end))
                one.held = [p for p in one.held if not start <= p < end]
            appended.append((first, stop))
            dropped.append(tuple(ranges))
        at += fed
        alive = [a for a, (first, stop) in zip(attended, appended, strict=True) if stop > first]
        columns.append(max(alive))
        new = tuple(stop - first for first, stop in appended)
        records.append(
            step(
                number, 0, 0, phase="prefill" if prefill else "decode", start_ns=clock,
                end_ns=clock + 1, num_new_tokens=new, context_len=tuple(b for _, b in appended),
                appended=tuple(appended), dropped=tuple(dropped), token_ids=((3,),) * len(lens),
                token_texts=(("c",),) * len(lens), num_columns=columns[-1],
            )
        )  # fmt: skip
        clock += 2
        apart |= any(
            ranges and (start, end) != (one.seen, stop)
            for ranges, one, (_, stop) in zip(dropped, state, appended, strict=True)
            for start, end in ranges
        )
        rows.append([len(one.held) for one in state])
    records.append(finished(end_ns=clock, sequence_reasons=("length",) * len(lens)))
    return records, rows, columns


@given(runs())
def test_rows_and_columns_are_those_of_a_list_of_positions(
    made: tuple[list, list[list[int]], list[int]],
) -> None:
    records, rows, columns = made
    log = RunLog()
    for record in records:
        log.append(record)
        if isinstance(record, StepFinished):
            assert log.num_rows == rows[record.step]
    assert log.columns == columns
    again = RunLog.read(log.to_jsonl().encode())
    assert again.events == log.events and again.num_rows == log.num_rows
    assert [s.step for s, here in log.with_costs() if here is not None] == list(range(len(rows)))


@given(runs(), st.data())
def test_a_position_that_is_gone_or_never_was_cannot_be_evicted(
    made: tuple[list, list[list[int]], list[int]], data: st.DataObject
) -> None:
    records, _, _ = made
    log = RunLog.of(records[:-1])
    b = data.draw(st.integers(0, len(log.histories) - 1))
    history = log.histories[b]
    gone = [p for p in range(history.seen) if history.evicted.meets(p, p + 1)]
    position = data.draw(st.sampled_from([*gone, history.seen - 1, history.seen, history.seen + 1]))
    last = log.steps[-1]
    batch = len(log.histories)
    ranges = [() for _ in range(batch)]
    ranges[b] = ((position, position + 1),)
    event = dataclasses.replace(
        last, step=last.step + 1, phase="decode", start_ns=last.end_ns, end_ns=last.end_ns,
        appended=tuple((h.seen, h.seen) for h in log.histories), num_new_tokens=(0,) * batch,
        context_len=tuple(h.seen for h in log.histories), dropped=tuple(ranges), num_columns=None,
    )  # fmt: skip
    with pytest.raises(LogError):
        log.append(event)


# ---- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt_lens": (12,), "new_tokens": 9},
        {"prompt_lens": (700,), "new_tokens": 20},
        {"prompt_lens": (30, 18, 300, 7), "new_tokens": 24, "ended_at": {1: 5, 2: 11}},
        {"prompt_lens": (30, 18, 300, 7), "new_tokens": 24, "ended_at": {2: 2}, "cache": "none"},
        {"prompt_lens": (40,), "new_tokens": 6, "cache": "none"},
    ],
)
def test_columns_that_an_old_file_lacks_are_those_that_were_counted(asked: dict) -> None:
    log = producer.log(**asked)
    assert log.columns == [s.num_columns for s in log.steps]
    old = RunLog.of(
        dataclasses.replace(e, num_columns=None) if isinstance(e, StepFinished) else e for e in log
    )
    assert old.columns == log.columns and [*old.with_costs()] == [
        (dataclasses.replace(s, num_columns=None), here) for s, here in log.with_costs()
    ]


@pytest.mark.parametrize(("number", "fits"), [(4, True), (3, False), (5, False), (0, False)])
def test_columns_that_do_not_fit_the_rows_are_refused(number: int, fits: bool) -> None:
    log = RunLog.of([begun()])
    if fits:
        log.append(step(0, 0, 4, num_columns=number))
        return
    with pytest.raises(LogError, match="columns do not fit"):
        log.append(step(0, 0, 4, num_columns=number))


def test_where_rows_have_holes_columns_are_at_least_the_rows_held() -> None:
    log = RunLog.of([begun(), step(0, 0, 4, dropped=drop((1, 3)), num_columns=4)])
    with pytest.raises(LogError, match="columns do not fit"):
        log.append(step(1, 4, 5, num_columns=2))
    log.append(step(1, 4, 5, num_columns=5))  # a cache that masks rows and does not close up


# ---- kept cells ----------------------------------------------------------------------------------


@given(st.data())
def test_kept_cells_are_bits_row_by_row(data: st.DataObject) -> None:
    num = data.draw(st.integers(3, 40))
    gone = data.draw(st.sets(st.integers(0, num - 2), max_size=num))
    log = RunLog.of(
        [begun((num,)), step(0, 0, num, dropped=(tuple((p, p + 1) for p in sorted(gone)),))]
    )
    first = data.draw(st.integers(0, num - 1))
    stop = data.draw(st.integers(first + 1, num))
    some = st.sets(st.sampled_from(sorted(ALL)), min_size=1)
    rows = [set() if p in gone else data.draw(some) for p in range(first, stop)]
    event = kept(first, stop, rows)
    if not gone and all(row == ALL for row in rows):
        with pytest.raises(LogError, match="nothing was dropped"):
            log.append(event)
        return
    log.append(event)
    for at, row in enumerate(rows):
        for cell in range(NUM_CELLS):
            i = at * NUM_CELLS + cell
            assert event.kept[i >> 3] >> (i & 7) & 1 == (cell in row)
    wrong = data.draw(st.integers(0, len(rows) - 1))
    rows[wrong] = set() if rows[wrong] else {0}
    with pytest.raises(LogError, match="do not agree"):
        log.append(kept(first, stop, rows))


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (kept(0, 2, [ALL, ALL]), "nothing was dropped"),
        (kept(0, 2, [{0}, ALL], sequence=1), "not there"),
        (kept(0, 2, [{0}, ALL], step=1), "not the last"),
        (kept(0, 5, [{0}, ALL, ALL, ALL, ALL]), "not there"),
        (kept(2, 2, []), "not there"),
        (kept(0, 2, [{0}, ALL], kept=b""), "bits"),
        (kept(0, 2, [{0}, ALL], kept=b"\x0d\x00"), "bits"),
        (kept(0, 2, [{0}, ALL], kept=b"\x1d"), "bits"),
        (kept(0, 2, [set(), ALL]), "do not agree"),
    ],
)
def test_kept_cells_that_cannot_be_are_refused(event: KeptCells, why: str) -> None:
    log = RunLog.of([begun(), step(0, 0, 4)])
    with pytest.raises(LogError, match=why):
        log.append(event)


def test_a_model_that_nobody_knows_has_no_samples_and_no_costs() -> None:
    log = RunLog.of([begun(spec=None), step(0, 0, 4, dropped=drop((0, 1)))])
    assert log.step_cost(0) is None and list(log.with_costs()) == [(log.steps[0], None)]
    for event in (
        KVSample(step=0, sequence=0, first=0, stop=1, k=b"", v=b""),
        kept(1, 2, [{0}]),
    ):
        with pytest.raises(LogError, match="heads are not known"):
            log.append(event)
    assert RunLog.read(log.to_jsonl().encode()).events == log.events
