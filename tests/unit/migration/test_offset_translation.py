"""Where a log goes on in its copy: found exactly, or refused; never guessed (D6)."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.errors import NotMovableError
from frazil.migration.offset_translation import (
    WANTED_RECORDS,
    CopiedRecords,
    KnownRecords,
    RecordPosition,
    fingerprint_record,
    translate_offset,
)

Record = tuple[int, bytes | None]
PLACE = RecordPosition("orders", "orders", 0, 5)


def fingerprints(records: Sequence[Record]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array([fingerprint_record(*record) for record in records], np.int64)


def read(records: Sequence[Record], after: Sequence[Record] = (), **others: object) -> KnownRecords:
    kept = records[-WANTED_RECORDS:]
    instants = None if after else np.array([at for at, _ in kept], np.int64)
    made = {"source": "rows", "timestamps_ms": instants, **others}
    return KnownRecords(fingerprints(kept), fingerprints(after[:WANTED_RECORDS]), **made)  # type: ignore[arg-type]


def copied(
    records: Sequence[Record],
    offsets: Sequence[int] | None = None,
    end: int | None = None,
    *,
    is_whole: bool = True,
) -> CopiedRecords:
    places = list(range(len(records))) if offsets is None else list(offsets)
    last = places[-1] + 1 if places else 0
    return CopiedRecords(
        offsets=np.array(places, np.int64),
        fingerprints=fingerprints(records),
        earliest=places[0] if places and is_whole else 0,
        end=last if end is None else end,
        is_whole=is_whole,
    )


def distinct(count: int) -> list[Record]:
    return [(1000 + number, b"k%d" % number) for number in range(count)]


@pytest.mark.parametrize(
    ("known", "copy", "new_next"),
    [
        (read(distinct(5)), copied(distinct(8)), 5),
        (read(distinct(5)), copied(distinct(5)), 5),
        (read(distinct(5)), copied(distinct(8), range(40, 48)), 45),
        (read(distinct(5)), copied(distinct(8), [0, 2, 4, 6, 8, 11, 12, 13]), 9),
        (read(distinct(5)), copied(distinct(8)[3:], range(70, 75)), 72),
        (read(distinct(3), distinct(8)[3:]), copied(distinct(8)[3:], range(70, 75)), 70),
        (read([], distinct(4), min_timestamp_ms=0), copied(distinct(4), range(9, 13)), 9),
        (
            read([], is_empty=True),
            CopiedRecords(fingerprints([]), fingerprints([]), 12, 12, is_whole=True),
            12,
        ),
    ],
    ids=[
        "the same offsets",
        "nothing that is new yet",
        "a shift",
        "holes",
        "a copy that begins within what was read",
        "a copy that begins where the old log was read to",
        "nothing before, and the old log tells what comes",
        "two empty logs",
    ],
)
def test_a_log_goes_on_behind_the_last_record_that_was_read(
    known: KnownRecords, copy: CopiedRecords, new_next: int
) -> None:
    assert translate_offset(PLACE, known, copy).new_next == new_next


def test_a_partition_of_which_nothing_was_read_begins_at_the_copys_first_record() -> None:
    begun = RecordPosition("orders", "orders", 0, 0)

    assert translate_offset(begun, read([]), copied(distinct(4))).new_next == 0
    with pytest.raises(NotMovableError, match="are known"):
        translate_offset(begun, read([]), copied(distinct(4), range(3, 7)))


TWINS: list[Record] = [(1, b"a"), (2, None), (2, None), (2, None), (2, None), (3, b"z")]


@pytest.mark.parametrize(
    ("known", "copy", "text"),
    [
        (read(TWINS[1:3]), copied(TWINS[1:], is_whole=False), "possible next offsets"),
        (read(TWINS[:3]), copied(TWINS), "possible next offsets: 3"),
        (read(distinct(5)), copied(distinct(8)[4:]), "have one timestamp"),
        (read(distinct(5)), copied(distinct(9)[6:]), "are not found"),
        (read(distinct(5)), copied([]), "are not found"),
        (read(distinct(5)), copied(distinct(4)), "are not found"),
        (read(distinct(5)), copied([*distinct(2), *distinct(8)[3:]]), "are not found"),
        (read(distinct(5)), copied([*distinct(4), *distinct(8)[3:]]), "are not found"),
        (read(distinct(5)), copied([*distinct(6), *distinct(6)[4:]]), "possible next offsets: 5"),
        (read(distinct(5), distinct(8)[6:]), copied(distinct(8)), "are not found"),
        (read(distinct(5), is_complete=False), copied(distinct(8)), "are missing"),
        (read([]), copied(distinct(8)), "are known"),
    ],
    ids=[
        "equal records on both sides, nothing else",
        "equal records on both sides",
        "a copy that has one record that was read",
        "a copy that begins too late",
        "an empty copy",
        "a copy that is behind what was read",
        "a copy that lacks a record",
        "a copy that has a record twice before",
        "a copy that has a record again behind",
        "a copy that goes on otherwise",
        "records that were skipped",
        "no evidence",
    ],
)
def test_what_does_not_fit_or_fits_twice_is_refused_with_a_next_step(
    known: KnownRecords, copy: CopiedRecords, text: str
) -> None:
    with pytest.raises(NotMovableError, match=text) as caught:
        translate_offset(PLACE, known, copy)

    assert "--next orders:0:OFFSET" in caught.value.next_step


def test_the_old_cluster_tells_equal_records_apart() -> None:
    known = read(TWINS[:3], TWINS[3:])

    assert translate_offset(PLACE, known, copied(TWINS)).new_next == 3


@pytest.mark.parametrize(
    ("known", "given", "text"),
    [
        (read(TWINS[:3]), 3, None),
        (read(distinct(5), is_complete=False), 5, None),
        (read([]), 5, None),
        (read(distinct(5)), 4, "1 record from offset 4 on would be read twice"),
        (read(distinct(5)), 6, "would be lost"),
        (read([]), 9, "is outside"),
        (read([(1, b"elsewhere"), (2, b"elsewhere")]), 5, None),
    ],
    ids=[
        *("among several", "nothing proves it", "no evidence", "doubles", "loses", "outside"),
        "a copy that shares no record",
    ],
)
def test_a_given_offset_may_say_what_is_open_and_contradict_nothing(
    known: KnownRecords, given: int, text: str | None
) -> None:
    copy = copied(TWINS if text is None and len(known.before) == 3 else distinct(8))

    if text is None:
        assert translate_offset(PLACE, known, copy, given).new_next == given
    else:
        with pytest.raises(NotMovableError, match=text):
            translate_offset(PLACE, known, copy, given)


def test_null_and_empty_keys_and_values_are_different_records() -> None:
    made = {fingerprint_record(1, k, v) for k in (None, b"", b"x") for v in (None, b"", b"x")}

    assert len(made) == 9
    assert fingerprint_record(1, b"ab", b"c") != fingerprint_record(1, b"a", b"bc")


records = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([None, b"", b"a"])), min_size=1, max_size=30
)


@settings(max_examples=400)
@given(log=records, data=st.data())
def test_a_boundary_that_is_found_is_the_true_one_whatever_the_offsets(
    log: list[Record], data: st.DataObject
) -> None:
    tells_after = data.draw(st.booleans())
    log = log if tells_after else sorted(log, key=lambda record: record[0])
    middle = data.draw(st.integers(0, len(log)))
    holes = data.draw(st.lists(st.integers(1, 4), min_size=len(log), max_size=len(log)))
    shift = data.draw(st.integers(0, 50))
    first = data.draw(st.integers(0, middle))
    last = data.draw(st.integers(middle, len(log)))
    offsets = [shift + sum(holes[:number]) for number in range(len(log))]
    known = read(log[:middle], log[middle:] if tells_after else ())
    copy = copied(log[first:last], offsets[first:last])

    try:
        found = translate_offset(PLACE, known, copy)
    except NotMovableError:
        return

    unread = [offset for offset in offsets[first:last] if offset >= found.new_next]
    assert unread == offsets[middle:last]


@settings(max_examples=200)
@given(log=st.lists(st.integers(0, 9), unique=True, min_size=2, max_size=10), data=st.data())
def test_records_that_differ_are_always_found_and_never_doubled_by_a_copy_that_has_some_twice(
    log: list[int], data: st.DataObject
) -> None:
    whole: list[Record] = [(at, b"k") for at in log]
    middle = data.draw(st.integers(2, len(whole)))
    wrong = data.draw(st.integers(0, middle - 1))
    known = read(whole[:middle])

    assert translate_offset(PLACE, known, copied(whole)).new_next == middle
    doubled = [*whole[: wrong + 1], *whole[wrong:]]
    try:
        found = translate_offset(PLACE, known, copied(doubled))
    except NotMovableError:
        return
    assert doubled[found.new_next :] == whole[middle:]
