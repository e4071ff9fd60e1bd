"""Decide whether another writer's table can be adopted, and at which offsets; pure functions.

The next offset of a partition is the one after its highest row (protocol.md, Adopt). Offsets
between a partition's rows that have no row are *offset holes*: *empty* ones are transaction markers
or aborted records, *lost* ones are records that Kafka still delivers, and *unknown* ones may have
been records that Kafka no longer has.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from frazil.errors import (
    NotAdoptableError,
    OffsetsWentBackError,
    PartitionsShrankError,
    RetentionGapError,
    TopicRecreatedError,
)
from frazil.ingest.planning import list_gaps
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.coordinates import (
    NO_OFFSETS,
    SHOWN_COORDINATES,
    Coordinates,
    Offsets,
    Partition,
    count_coordinates,
    find_runs,
)
from frazil.ledger.offsets import (
    OffsetRange,
    describe_offset,
    describe_partition,
    describe_range,
    describe_ranges,
)
from frazil.messages import count_noun
from frazil.migration.foreign_rows import OffsetColumns, TableOffsets

_CHECK_SOURCE = "check `source` and its connection; only a table of this topic can be adopted"


OffsetRuns: TypeAlias = Offsets
"""Ascending half-open runs of one partition's offsets, of shape (runs, 2).

Between two rows of a compacted topic there may be billions of offsets.
"""

Holes: TypeAlias = Mapping[Partition, OffsetRuns]


@dataclass(frozen=True)
class OffsetHoles:
    """Offsets without a row between a table's rows, by what Kafka delivers there now."""

    lost: Holes = field(default_factory=dict)
    unknown: Holes = field(default_factory=dict)
    empty: Holes = field(default_factory=dict)

    @property
    def possible_records(self) -> int:
        """Return the number of holes that are or may have been records."""
        return count_holes(self.lost) + count_holes(self.unknown)


def count_holes(holes: Holes) -> int:
    """Count the offsets of all runs."""
    return sum(int((runs[:, 1] - runs[:, 0]).sum()) for runs in holes.values())


@dataclass(frozen=True)
class Adoption:
    """The result of an adoption, with the next offset of each partition.

    `first` is the lowest offset of each partition's rows. `gaps` are ranges of offsets, by
    partition, that are neither in the table nor in Kafka.
    """

    columns: tuple[OffsetColumns, ...]
    rows: int
    first: tuple[int | None, ...]
    offsets: tuple[int, ...]
    holes: OffsetHoles
    gaps: Mapping[int, OffsetRange]

    def encode(self) -> str:
        """Return the value of `frazil.adopted` as JSON."""
        columns = self.columns[0]
        return json.dumps(
            {
                "writer": columns.writer,
                "columns": list(columns.names),
                "rows": self.rows,
                "first": list(self.first),
                "holes": {
                    "lost": count_holes(self.holes.lost),
                    "unknown": count_holes(self.holes.unknown),
                    "empty": count_holes(self.holes.empty),
                },
                "given-up": {str(p): [r.start, r.end] for p, r in self.gaps.items()},
            },
            separators=(",", ":"),
        )


def require_identified_rows(stream: str, topic: TopicFacts, table_offsets: TableOffsets) -> None:
    """Check that every row has an offset of this topic, and that no two rows have the same one.

    Raises:
        NotAdoptableError: the error has counts and the first coordinates.
    """
    if table_offsets.without_offset:
        raise NotAdoptableError(
            f"stream {stream}: rows of the table without partition or offset: "
            f"{table_offsets.without_offset}; their records cannot be identified",
            f"delete these rows or fill in their offsets, then run `frazil adopt {stream}` again",
        )
    negative = sum(
        len(offsets) if partition < 0 else int(np.count_nonzero(offsets < 0))
        for (_, partition), offsets in table_offsets.offsets.items()
    )
    if negative:
        raise NotAdoptableError(
            f"stream {stream}: rows of the table with a negative partition or offset: {negative}; "
            "no record has one",
            f"delete these rows or correct their offsets, then run `frazil adopt {stream}` again",
        )
    others = sorted({name for name, _ in table_offsets.offsets} - {topic.topic})
    if others:
        raise NotAdoptableError(
            f"stream {stream}: the table has rows of topics {', '.join(others)}; the stream file "
            f"names topic {topic.topic}",
            f"copy the rows of {topic.topic} into a table of their own and adopt that one: a "
            "stream cannot adopt a table of several topics",
        )
    _require_distinct_rows(stream, table_offsets)


def _require_distinct_rows(stream: str, table_offsets: TableOffsets) -> None:
    duplicates = {
        partition: unique[counts > 1]
        for partition, offsets in table_offsets.offsets.items()
        for unique, counts in [np.unique(offsets, return_counts=True)]
        if (counts > 1).any()
    }
    if duplicates:
        raise NotAdoptableError(
            f"stream {stream}: the table has {count_noun(count_coordinates(duplicates), 'record')} "
            f"more than once: {describe_offsets(duplicates)}",
            "delete the duplicate rows (Spark: MERGE or INSERT OVERWRITE by topic, partition and "
            f"offset), then run `frazil adopt {stream}` again",
        )


def require_same_topic(stream: str, topic: TopicFacts, table_offsets: TableOffsets) -> None:
    """Check that the table's partitions and offsets exist in the topic.

    Raises:
        PartitionsShrankError: the table has partitions that the topic lacks.
        OffsetsWentBackError: the table has offsets beyond Kafka's end.
    """
    partitions = {partition for _, partition in table_offsets.offsets}
    if max(partitions, default=0) >= len(topic.partitions):
        raise PartitionsShrankError(
            f"stream {stream}: the table has rows of "
            f"{describe_partition(topic.topic, max(partitions))}, the topic "
            f"has {count_noun(len(topic.partitions), 'partition')}: it was created again, or it is "
            "another topic",
            _CHECK_SOURCE,
        )
    for partition, offsets in _iterate(topic, table_offsets):
        end = topic.partitions[partition].end
        if len(offsets) and offsets[-1] >= end:
            raise OffsetsWentBackError(
                f"stream {stream}: the table has "
                f"{describe_offset(topic.topic, partition, offsets[-1])}, Kafka ends at {end}: "
                "the topic was created again or truncated, or it is another topic",
                _CHECK_SOURCE,
            )


def require_same_records(
    stream: str,
    topic: TopicFacts,
    table_offsets: TableOffsets,
    delivered_ms: Mapping[int, int | None],
) -> None:
    """Check that a topic was not created again and has since grown beyond the table.

    The record at a partition's highest offset in the table must have the same timestamp in Kafka.
    `delivered_ms` are Kafka's timestamps there, in milliseconds since 1970, where it has any.

    Raises:
        TopicRecreatedError: the timestamps differ.
    """
    for partition, offsets in _iterate(topic, table_offsets):
        ours = table_offsets.final_ms.get((topic.topic, partition))
        if ours is None or partition not in delivered_ms or delivered_ms[partition] == ours:
            continue
        raise TopicRecreatedError(
            f"stream {stream}: {describe_offset(topic.topic, partition, offsets[-1])} has "
            f"timestamp {ours} in the table and {delivered_ms[partition]} in Kafka: these "
            "are different records",
            f"{_CHECK_SOURCE}. If the timestamp column is not Kafka's timestamp, leave it out: "
            "--columns partition=COLUMN,offset=COLUMN",
        )


def list_holes(topic: TopicFacts, table_offsets: TableOffsets) -> dict[Partition, OffsetRuns]:
    """Return the offsets between a partition's rows that have no row."""
    found = {}
    for partition, offsets in _iterate(topic, table_offsets):
        before = np.flatnonzero(np.diff(offsets) > 1)
        if len(before):
            runs = np.column_stack([offsets[before] + 1, offsets[before + 1]])
            found[topic.topic, partition] = runs
    return found


def classify_holes(
    topic: TopicFacts, holes: Holes, delivered: Mapping[int, Offsets], *, is_compacted: bool
) -> OffsetHoles:
    """Classify offset holes as lost, unknown or empty.

    `topic` has the offsets of the stream's isolation level. A hole that Kafka does not deliver is
    unknown below the earliest offset, at or after the end (a transaction is open), and in a
    compacted topic, where the record may have been deleted since.
    """
    lost, unknown, empty = {}, {}, {}
    for (name, partition), runs in holes.items():
        own = np.unique(delivered.get(partition, NO_OFFSETS))
        at = np.searchsorted(runs[:, 0], own, side="right") - 1
        own = own[(at >= 0) & (own < runs[at, 1])]
        rest = _make_runs((runs[:, 0], own + 1), (own, runs[:, 1]))
        available = topic.partitions[partition]
        first, end = available.earliest, max(available.earliest, available.end)
        if is_compacted:
            first = end = int(runs[-1, 1])
        below, above = np.minimum(rest, first), np.maximum(rest, end)
        lost[name, partition] = np.array(find_runs(own), np.int64).reshape(-1, 2)
        unknown[name, partition] = _make_runs(
            (below[:, 0], above[:, 0]), (below[:, 1], above[:, 1])
        )
        empty[name, partition] = _make_runs(*((each,) for each in rest.clip(first, end).T))
    return OffsetHoles(lost, unknown, empty)


def _make_runs(starts: Iterable[Offsets], ends: Iterable[Offsets]) -> OffsetRuns:
    """Return runs that do not overlap, from their starts and ends in any order, without empty ones.

    To leave out an offset, it is one of the ends, and the offset behind it one of the starts.
    """
    runs = np.column_stack([np.sort(np.concatenate([*each])) for each in (starts, ends)])
    return runs[runs[:, 0] < runs[:, 1]]


def decide_adoption(
    stream: str,
    columns: tuple[OffsetColumns, ...],
    topic: TopicFacts,
    table_offsets: TableOffsets,
    holes: OffsetHoles,
    *,
    accept_holes: bool,
) -> Adoption:
    """Decide the next offset of each partition.

    Raises:
        NotAdoptableError: there are holes that may be records, without `accept_holes`.
        RetentionGapError: Kafka no longer has the next offset, without `accept_holes`.
    """
    firsts = {partition: int(o[0]) for partition, o in _iterate(topic, table_offsets) if len(o)}
    nexts = {partition: int(o[-1]) + 1 for partition, o in _iterate(topic, table_offsets) if len(o)}
    starts = [nexts.get(partition, 0) for partition in range(len(topic.partitions))]
    gaps = list_gaps(starts, topic.partitions)
    if not accept_holes:
        _require_no_holes(stream, holes)
        _require_no_gaps(stream, topic, gaps)
    return Adoption(
        columns=columns,
        rows=sum(len(offsets) for offsets in table_offsets.offsets.values()),
        first=tuple(firsts.get(partition) for partition in range(len(topic.partitions))),
        offsets=tuple(
            gaps[partition].end if partition in gaps else start
            for partition, start in enumerate(starts)
        ),
        holes=holes,
        gaps=gaps,
    )


def _require_no_holes(stream: str, holes: OffsetHoles) -> None:
    if holes.possible_records:
        lost, unknown = count_holes(holes.lost), count_holes(holes.unknown)
        parts = [
            f"{count_noun(lost, 'record')} that Kafka still delivers: {describe_holes(holes.lost)}"
            if lost
            else "",
            f"{unknown} that may be lost records, transaction markers or compacted records; Kafka "
            f"no longer has them: {describe_holes(holes.unknown)}"
            if unknown
            else "",
        ]
        raise NotAdoptableError(
            f"stream {stream}: offsets without a row between the table's rows: "
            f"{holes.possible_records}: " + "; ".join(part for part in parts if part),
            "let the other writer write the missing rows, or accept that they stay missing: "
            f"`frazil adopt {stream} --accept-holes`",
        )


def _require_no_gaps(stream: str, topic: TopicFacts, gaps: Mapping[int, OffsetRange]) -> None:
    if gaps:
        raise RetentionGapError(
            f"stream {stream}: Kafka no longer has the next offsets: "
            f"{describe_ranges({topic.topic: gaps})} are neither in the table nor in Kafka",
            "accept this gap and continue at the earliest offsets: "
            f"`frazil adopt {stream} --accept-holes`",
        )


def describe_adoption(
    topic: str, adoption: Adoption, partitions: Iterable[PartitionOffsets]
) -> str:
    """Describe an adoption; the text ends with "; ", so that the next offsets can follow."""
    unread = sum(
        max(0, each.end - start) for each, start in zip(partitions, adoption.offsets, strict=True)
    )
    holes = adoption.holes
    empty, lost, unknown = map(count_holes, (holes.empty, holes.lost, holes.unknown))
    parts = [
        (
            f"{count_noun(adoption.rows, 'row')} of {topic}, coordinates in the columns of "
            f"{adoption.columns[0].writer} ({', '.join(adoption.columns[0].names)})"
        ),
        f"{count_noun(empty, 'offset hole')} without a record in Kafka",
        (
            f"{count_noun(lost, 'missing record')} accepted that Kafka still delivers: "
            f"{describe_holes(holes.lost)}"
        ),
        (
            f"{count_noun(unknown, 'offset hole')} accepted that may be missing records: "
            f"{describe_holes(holes.unknown)}"
        ),
        f"gap accepted, no longer in Kafka: {describe_ranges({topic: adoption.gaps})}",
        f"{count_noun(unread, 'offset')} to read in Kafka",
    ]
    return "; ".join(part for part in parts if not part.endswith(": ") and part[:2] != "0 ") + "; "


def describe_offsets(coordinates: Coordinates) -> str:
    """Return the first coordinates as text, and how many more there are."""
    every = [
        describe_offset(t, p, o)
        for (t, p), offsets in sorted(coordinates.items())
        for o in offsets[:20]
    ]
    shown = ", ".join(every[:SHOWN_COORDINATES])
    left = count_coordinates(coordinates) - min(len(every), SHOWN_COORDINATES)
    return f"{shown} and {left} more" if left > 0 else shown


def describe_holes(holes: Holes) -> str:
    """Return the first holes as text, runs as ranges, and how many more offsets there are."""
    spans = [
        (topic, partition, OffsetRange(start, end))
        for (topic, partition), runs in sorted(holes.items())
        for start, end in runs[:SHOWN_COORDINATES].tolist()
    ][:SHOWN_COORDINATES]
    shown = ", ".join(
        describe_range(*each) if each[2].width > 1 else describe_offset(*each[:2], each[2].start)
        for each in spans
    )
    left = count_holes(holes) - sum(span.width for _, _, span in spans)
    return f"{shown} and {left} more" if left > 0 else shown


def _iterate(topic: TopicFacts, table_offsets: TableOffsets) -> Iterable[tuple[int, Offsets]]:
    for partition in range(len(topic.partitions)):
        yield partition, table_offsets.offsets.get((topic.topic, partition), NO_OFFSETS)
