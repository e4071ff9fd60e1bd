"""Records that do not fit: kept whole, skipped and counted, or a stop, as the stream file says."""

import json

import pytest
from confluent_kafka import Producer
from conftest import Lab, good_values

from faults.batches import Batches
from frazil.errors import BatchBlockedError, BudgetExceededError
from frazil.ingest.messages import Published

pytestmark = pytest.mark.stack
UNREADABLE: list[bytes | None] = [b"no json", b'{"id": "no number"}']
INCOMPLETE: list[bytes | None] = [b'{"name": "no id"}', b'{"amount": 1.5}']


def letters_of(batches: Batches) -> list[dict[str, object]]:
    """Read the dead letters on their table's main."""
    name = f"{batches.lab.table}__dead_letters"
    if not batches.catalog.table_exists(name):
        return []
    rows = batches.catalog.load_table(name).scan().to_arrow().sort_by("detail")
    return list(rows.to_pylist())


def read_batch(batches: Batches, *bad: bytes | None, **errors: object) -> Published:
    """Read six good records and bad ones with these settings."""
    lab = batches.lab
    lab.write_stream(errors={"max_bad_ratio": 1.0, **errors})
    lab.create_topic()
    lab.produce([*good_values(6), *bad])
    return batches.publish()


@pytest.mark.core
def test_e1_e2_a_record_that_cannot_be_read_is_kept_whole_and_the_run_goes_on(
    batches: Batches,
) -> None:
    lab = batches.lab
    lab.create_topic(partitions=1, **{"retention.ms": "-1"})
    lab.produce(good_values(3), partitions=1)
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    headers = [("trace", b"\x00\xff"), ("trace", None)]
    producer.produce(
        lab.topic, b"\xffno json", b"k", 0, headers=headers, timestamp=1_700_000_000_000
    )
    producer.flush(30)

    published = batches.publish()

    (letter,) = letters_of(batches)
    assert (published.rows_written, published.rows_quarantined) == (3, 1)
    assert (letter["value"], letter["reason"]) == (b"\xffno json", "invalid_utf8")
    place = letter["_kafka"]
    assert isinstance(place, dict)
    assert (place["offset"], place["key"], place["timestamp"].timestamp()) == (3, b"k", 1.7e9)
    assert [(h["key"], h["value"]) for h in place["headers"]] == headers
    assert batches.faults() == ()


def test_e9_a_record_without_a_required_column_is_a_letter_that_names_it(batches: Batches) -> None:
    published = read_batch(batches, b'{"name": "no id"}', b'{"id": null}')

    assert (published.rows_written, published.rows_quarantined) == (6, 2)
    found = [(letter["reason"], letter["detail"]) for letter in letters_of(batches)]
    assert found == [("required_missing", "id is required")] * 2
    assert batches.faults() == ()


def test_e15_a_null_value_is_a_letter_and_a_null_key_is_no_fault(batches: Batches) -> None:
    lab = batches.lab
    lab.create_topic(partitions=1)
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    producer.produce(lab.topic, good_values(1)[0], None, 0)
    producer.produce(lab.topic, None, b"deleted", 0)
    producer.flush(30)

    batches.publish()

    (row,) = batches.table.scan().to_arrow().to_pylist()
    (letter,) = letters_of(batches)
    assert row["_kafka"]["key"] is None
    assert (letter["value"], letter["reason"]) == (None, "null_value")
    assert batches.faults() == ()


@pytest.mark.parametrize(
    ("tolerance", "bad", "quarantined", "skipped"),
    [
        ("none", (), 0, 0),
        ("invalid_data", (*UNREADABLE, b"", None), 0, 4),
        ("all", (*UNREADABLE, *INCOMPLETE, None), 0, 5),
        ("quarantine", (*UNREADABLE, *INCOMPLETE, None), 5, 0),
    ],
)
def test_each_tolerance_keeps_the_good_records_and_accounts_for_the_others(
    batches: Batches, tolerance: str, bad: tuple[bytes | None, ...], quarantined: int, skipped: int
) -> None:
    published = read_batch(batches, *bad, tolerance=tolerance)

    counts = (published.rows_written, published.rows_quarantined, published.rows_skipped)
    assert counts == (6, quarantined, skipped)
    assert len(letters_of(batches)) == quarantined
    assert batches.faults() == ()


def test_e5_one_bad_record_stops_no_small_batch(batches: Batches) -> None:
    published = read_batch(batches, UNREADABLE[0], max_bad_ratio=0.05)

    assert (published.rows_written, published.rows_quarantined) == (6, 1)
    assert batches.faults() == ()


@pytest.mark.parametrize(
    ("errors", "bad", "says"),
    [
        ({"tolerance": "none"}, UNREADABLE[:1], "tolerance is none"),
        ({"tolerance": "invalid_data"}, INCOMPLETE[:1], "bad for other reasons"),
        ({"max_bad_records": 1}, UNREADABLE, "max_bad_records is 1"),
        ({"max_bad_ratio": 0.1}, UNREADABLE, "max_bad_ratio is 0.1"),
        ({"max_bad_ratio": 0}, UNREADABLE[:1], "max_bad_ratio is 0"),
    ],
    ids=["none", "invalid_data", "count", "ratio", "a ratio of 0"],
)
def test_what_a_stream_does_not_tolerate_stops_the_batch_unseen(
    batches: Batches, errors: dict[str, object], bad: list[bytes | None], says: str
) -> None:
    with pytest.raises(BudgetExceededError, match=says):
        read_batch(batches, *bad, **errors)

    assert batches.places() == {}
    assert letters_of(batches) == []


def test_e5_a_rollout_that_makes_every_record_bad_stops_before_anything_is_kept(
    batches: Batches,
) -> None:
    lab: Lab = batches.lab
    lab.create_topic()
    lab.produce([json.dumps({"identifier": i}).encode() for i in range(100)])

    with pytest.raises(BudgetExceededError, match="100 of 100 records are bad"):
        batches.run()
    with pytest.raises(BatchBlockedError):
        batches.run()

    assert batches.places() == {}
    assert letters_of(batches) == []
    letters = batches.catalog.load_table(f"{lab.table}__dead_letters")
    assert list(letters.metadata.refs) == ["main"]
    assert batches.faults() == ()
