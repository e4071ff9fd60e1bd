"""What left on purpose, as pure functions of the ancestry: gone, back again, left out."""

import numpy as np
import pytest

from frazil.errors import StageStaleError
from frazil.ingest.messages import BatchPlan
from frazil.ledger.coordinates import (
    DeadLetterCoordinates,
    encode_dead_letters,
    join_dead_letters,
    parse_dead_letters,
    plain_runs,
)
from frazil.ledger.deletions import find_deletion
from frazil.ledger.history import Spans, Step, find_deleted, list_spans
from frazil.ledger.offsets import OffsetRange, encode_ranges
from frazil.ledger.recovery_point import History, LedgerEntry, keys
from frazil.recovery.replay_rules import list_erased_offsets, require_nothing_erased_since

PLACE = ("orders", 0)


def published(kind: str, start: int, end: int) -> Step:
    """Make a batch or replay of one range."""
    return Step(
        LedgerEntry(1, None, 0, {}), kind, None, None, {"orders": {0: OffsetRange(start, end)}}
    )


def left(kind: str, *offsets: int, letters: tuple[int, ...] = ()) -> Step:
    """Make a deletion of rows and of one attempt's letters."""
    held: DeadLetterCoordinates = {"try": {PLACE: np.array(letters)}} if letters else {}
    gone = {PLACE: np.array(offsets, dtype=np.int64)}
    return Step(LedgerEntry(2, 1, 0, {}), kind, None, None, {}, {}, gone, held)


BATCH = published(keys.INGEST, 0, 10)


@pytest.mark.parametrize(
    ("steps", "gone"),
    [
        pytest.param((BATCH, left(keys.ERASE, 3, 5)), [3, 5], id="erased"),
        pytest.param((BATCH, left(keys.EXPIRE_ROWS, 3, 5)), [3, 5], id="too old"),
        pytest.param((BATCH, left(keys.ERASE, 3, letters=(4,))), [3, 4], id="letters too"),
        pytest.param(
            (BATCH, left(keys.ERASE, 3), published(keys.REPLAY, 0, 10)), [3], id="no replay helps"
        ),
        pytest.param(
            (BATCH, left(keys.EXPIRE_ROWS, 3, 8), published(keys.REPLAY, 0, 5)),
            [8],
            id="a replay brings back what was too old",
        ),
        pytest.param(
            (BATCH, left(keys.ERASE, 3), published(keys.INGEST, 0, 4)),
            [],
            id="another record at the same offset",
        ),
        pytest.param(
            (BATCH, left(keys.ERASE, 3), left(keys.EXPIRE_ROWS, 7)), [3, 7], id="one after another"
        ),
    ],
)
def test_what_left_on_purpose_is_gone_until_something_brings_it_back(
    steps: tuple[Step, ...], gone: list[int]
) -> None:
    spans = list_spans(steps).get(PLACE, Spans())

    assert find_deleted(steps, spans, PLACE).tolist() == gone


def test_a_replay_leaves_out_what_was_erased_inside_of_its_range_alone() -> None:
    steps = (BATCH, left(keys.ERASE, 2, 3, 9), left(keys.EXPIRE_ROWS, 4))

    found = list_erased_offsets(steps, {"orders": {0: OffsetRange(3, 9), 1: OffsetRange(0, 5)}})

    assert found == {"orders": {0: [(3, 4)]}}


def make_plan(left_out: dict[str, dict[int, list[tuple[int, int]]]]) -> BatchPlan:
    """Make a replay of the first ten offsets."""
    numbers = {"base_epoch": 1, "schema_id": 0, "spec_id": 0}
    texts = dict.fromkeys(
        ("table_uuid", "base_batch", "batch_id", "suite_hash", "stream_hash", "transform_version"),
        "x",
    )
    return BatchPlan.model_validate(
        {
            **numbers,
            **texts,
            "stream": "orders",
            "table": "demo.orders",
            "cluster_id": "c",
            "topic_ids": {},
            "next_offsets": {},
            "ranges": {"orders": {0: (0, 10)}},
            "left_out": left_out,
        }
    )


def test_a_replay_that_was_staged_before_an_erasure_is_stale() -> None:
    steps = (BATCH, left(keys.ERASE, 3))

    require_nothing_erased_since(
        steps, BatchPlan.parse(make_plan({"orders": {0: [(3, 4)]}}).encode())
    )
    with pytest.raises(StageStaleError, match="were erased since the plan"):
        require_nothing_erased_since(steps, make_plan({}))


def test_letters_survive_their_encoding_and_join_without_doubles() -> None:
    one: DeadLetterCoordinates = {"a": {PLACE: np.array([3, 4, 9])}}
    other: DeadLetterCoordinates = {
        "a": {PLACE: np.array([4, 5])},
        "b": {("orders", 1): np.array([0])},
    }

    joined = join_dead_letters([one, parse_dead_letters(encode_dead_letters(other))])

    plain = {attempt: plain_runs(held) for attempt, held in joined.items()}
    assert plain == {"a": {"orders": {0: [(3, 6), (9, 10)]}}, "b": {"orders": {1: [(0, 1)]}}}


def entry_of(number: int, kind: str, **told: str) -> LedgerEntry:
    """Make an ancestor."""
    summary = {keys.KIND: kind, **{f"frazil.{name}": text for name, text in told.items()}}
    return LedgerEntry(number, number - 1 or None, 0, summary)


@pytest.mark.parametrize(
    ("kind", "replayed", "found"),
    [
        (keys.ERASE, False, 2),
        (keys.ERASE, True, 2),
        (keys.EXPIRE_ROWS, False, 2),
        (keys.EXPIRE_ROWS, True, None),
    ],
)
def test_an_offset_finds_the_deletion_that_stands(
    kind: str,
    found: int | None,
    *,
    replayed: bool,
) -> None:
    ranges = encode_ranges({"orders": {0: OffsetRange(0, 10)}})
    entries = [
        entry_of(1, keys.INGEST, ranges=ranges),
        entry_of(2, kind, coordinates='{"orders":{"0":[3]}}'),
    ]
    entries += [entry_of(3, keys.REPLAY, ranges=ranges)] if replayed else []
    history = History("t", "u", len(entries), {e.snapshot_id: e for e in entries}, {})

    deletion = find_deletion(history, "orders", PLACE, 3)

    assert (deletion.snapshot_id if deletion else None) == found
    assert find_deletion(history, "orders", PLACE, 4) is None
