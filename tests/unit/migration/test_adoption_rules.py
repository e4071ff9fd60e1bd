"""Whether another writer's table can be taken over, decided from rows and Kafka's offsets."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lake import TOPIC_ID, make_topic

from frazil.errors import (
    FrazilError,
    NotAdoptableError,
    OffsetsWentBackError,
    PartitionsShrankError,
    RetentionGapError,
    TopicRecreatedError,
)
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.coordinates import Offsets
from frazil.ledger.offsets import OffsetRange
from frazil.migration.adoption_rules import (
    Adoption,
    Holes,
    OffsetHoles,
    classify_holes,
    count_holes,
    decide_adoption,
    describe_adoption,
    list_holes,
    require_identified_rows,
    require_same_records,
    require_same_topic,
)
from frazil.migration.foreign_rows import LAYOUTS, TableOffsets

CONNECT = LAYOUTS[3]
TOPIC = make_topic((10, 10))


def at(*offsets: int) -> Offsets:
    return np.array(offsets, np.int64)


def places(*by_partition: Offsets, **others: object) -> TableOffsets:
    offsets = {("orders", p): each for p, each in enumerate(by_partition) if len(each)}
    return TableOffsets(offsets, **others)  # type: ignore[arg-type]


def aged(*earliest: int, end: int = 10) -> TopicFacts:
    kept = tuple(PartitionOffsets(each, end) for each in earliest)
    return TopicFacts("orders", TOPIC_ID, "cluster-1", kept)


def decide(
    topic: TopicFacts,
    found: TableOffsets,
    holes: OffsetHoles | None = None,
    *,
    accept: bool = False,
) -> Adoption:
    return decide_adoption(
        "orders", (CONNECT,), topic, found, holes or OffsetHoles(), accept_holes=accept
    )


@pytest.mark.parametrize(
    ("found", "offsets", "first"),
    [
        (places(at(0, 1, 2), at(0)), (3, 1), (0, 0)),
        (places(at(4, 5), at()), (6, 0), (4, None)),
        (places(at(), at()), (0, 0), (None, None)),
        (places(at(*range(10)), at(*range(10))), (10, 10), (0, 0)),
    ],
    ids=["behind the rows", "from 0 where there is none", "an empty table", "nothing waits"],
)
def test_reading_goes_on_behind_the_highest_row(
    found: TableOffsets, offsets: tuple[int, ...], first: tuple[int | None, ...]
) -> None:
    adoption = decide(TOPIC, found)

    assert (adoption.offsets, adoption.first) == (offsets, first)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (places(at(0), without_offset=3), "without partition or offset: 3"),
        (
            TableOffsets({("orders", -1): at(0, 1), ("orders", 0): at(-2, 0)}),
            "with a negative partition or offset: 3; ",
        ),
        (TableOffsets({("other", 0): at(0)}), "has rows of topics other"),
        (places(at(0, 1, 1, 2, 2, 2)), "the table has 2 records more than once: orders:0:1, "),
    ],
    ids=["without an offset", "below 0", "of another topic", "doubled"],
)
def test_rows_that_nobody_can_place_are_refused(found: TableOffsets, text: str) -> None:
    with pytest.raises(NotAdoptableError, match=text):
        require_identified_rows("orders", TOPIC, found)


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (places(at(0), at(0), at(0)), PartitionsShrankError),
        (places(at(9, 10)), OffsetsWentBackError),
    ],
    ids=["fewer partitions", "offsets beyond the end"],
)
def test_a_log_that_is_not_the_tables_is_refused(
    found: TableOffsets, error: type[FrazilError]
) -> None:
    with pytest.raises(error, match="created again"):
        require_same_topic("orders", TOPIC, found)


def test_the_last_row_at_the_end_of_the_log_is_no_other_log() -> None:
    assert require_same_topic("orders", TOPIC, places(at(8, 9), at())) is None


@pytest.mark.parametrize(
    ("delivered", "is_refused"),
    [({0: 500}, False), ({0: 501}, True), ({0: None}, True), ({}, False)],
    ids=["the same instant", "another instant", "no record there", "nobody knows"],
)
def test_a_topic_that_was_recreated_and_has_grown_shows_by_its_timestamps(
    delivered: dict[int, int | None], *, is_refused: bool
) -> None:  # D5
    found = places(at(0, 1), final_ms={("orders", 0): 500})

    if is_refused:
        with pytest.raises(TopicRecreatedError, match="different records"):
            require_same_records("orders", TOPIC, found, delivered)
    else:
        require_same_records("orders", TOPIC, found, delivered)


def plain(holes: Holes) -> list[int]:
    return [
        offset for runs in holes.values() for start, end in runs for offset in range(start, end)
    ]


@pytest.mark.parametrize(
    ("topic", "is_compacted", "lost", "unknown", "empty"),
    [
        (aged(0, 0), False, [4], [], [2, 3]),
        (aged(3, 0), False, [4], [2], [3]),
        (aged(0, 0), True, [4], [2, 3], []),
        (aged(0, 0, end=3), False, [4], [3], [2]),
    ],
    ids=["Kafka has all", "Kafka has lost some", "a compacted topic proves nothing", "an open one"],
)
def test_holes_are_sorted_by_what_kafka_says(
    topic: TopicFacts, *, is_compacted: bool, lost: list[int], unknown: list[int], empty: list[int]
) -> None:
    found = list_holes(topic, places(at(1, 5), at(7, 8)))

    holes = classify_holes(topic, found, {0: at(1, 4, 5)}, is_compacted=is_compacted)

    assert (plain(holes.lost), plain(holes.unknown), plain(holes.empty)) == (lost, unknown, empty)


def runs(*pairs: tuple[int, int]) -> Holes:
    return {("orders", 0): np.array(pairs, np.int64)}


@given(
    rows=st.sets(st.integers(0, 30), min_size=1),
    sent=st.sets(st.integers(0, 30)),
    kept=st.tuples(st.integers(0, 35), st.integers(0, 35)),
    is_compacted=st.booleans(),
)
def test_runs_hold_what_single_offsets_would(
    rows: set[int], sent: set[int], kept: tuple[int, int], *, is_compacted: bool
) -> None:
    topic, found = aged(min(kept), 0, end=max(kept)), places(at(*sorted(rows)), at(7, 8))
    every = {*range(min(rows), max(rows))} - rows
    unknown = {o for o in every - sent if is_compacted or not min(kept) <= o < max(kept)}

    listed = list_holes(topic, found)
    holes = classify_holes(topic, listed, {0: at(*sorted(sent))}, is_compacted=is_compacted)

    assert plain(listed) == sorted(every)
    assert plain(holes.lost) == sorted(every & sent)
    assert plain(holes.unknown) == sorted(unknown)
    assert plain(holes.empty) == sorted(every - sent - unknown)


def test_billions_of_holes_of_a_compacted_topic_are_counted() -> None:
    topic, found = aged(0, 0, end=6_000_000_000), places(at(0, 5_000_000_000))

    holes = classify_holes(topic, list_holes(topic, found), {0: at(0, 9)}, is_compacted=True)

    assert (holes.possible_records, count_holes(holes.lost)) == (4_999_999_999, 1)
    with pytest.raises(NotAdoptableError, match=r"orders:0:1-9, orders:0:10-5000000000\n"):
        decide(topic, found, holes)


LOST = OffsetHoles(lost=runs((4, 5)), unknown=runs((2, 4)))


def test_holes_that_may_be_records_need_a_persons_word() -> None:
    found = places(at(1, 5))
    with pytest.raises(
        NotAdoptableError, match=r"rows: 3: 1 record .* orders:0:4; 2 that may .* orders:0:2-4"
    ):
        decide(TOPIC, found, LOST)

    assert decide(TOPIC, found, LOST, accept=True).offsets == (6, 0)


def test_holes_that_kafka_proves_empty_need_none() -> None:
    holes = OffsetHoles(empty=runs((2, 5)))

    assert decide(TOPIC, places(at(1, 5)), holes).holes.possible_records == 0


def test_what_kafka_lost_before_it_was_read_needs_a_persons_word() -> None:
    topic, found = aged(4, 0), places(at(0, 1), at(0))
    with pytest.raises(RetentionGapError, match=r"orders:0:2-4"):
        decide(topic, found)

    adoption = decide(topic, found, accept=True)

    assert (adoption.offsets, adoption.gaps) == ((4, 1), {0: OffsetRange(2, 4)})


def test_the_snapshot_says_what_was_taken_over_and_given_up() -> None:
    adoption = decide(aged(4, 0), places(at(0, 1), at(0)), LOST, accept=True)

    told = json.loads(adoption.encode())

    assert told["writer"] == "Kafka Connect"
    assert (told["rows"], told["first"]) == (3, [0, 0])
    assert told["holes"] == {"lost": 1, "unknown": 2, "empty": 0}
    assert told["given-up"] == {"0": [2, 4]}


def test_a_dry_run_says_what_waits_and_what_is_given_up() -> None:
    topic = aged(4, 0)
    adoption = decide(topic, places(at(0, 1), at(0)), LOST, accept=True)

    text = describe_adoption("orders", adoption, topic.partitions)

    assert "3 rows of orders" in text
    assert "1 missing record accepted that Kafka still delivers: orders:0:4" in text
    assert "gap accepted, no longer in Kafka: orders:0:2-4" in text
    assert "15 offsets to read in Kafka" in text
