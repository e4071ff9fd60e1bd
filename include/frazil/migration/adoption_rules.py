"""Whether another writer's table can be taken over, and where reading goes on: pure functions.

The next offset of a partition is the one after its highest row (protocol.md, Adopt). What lies
between its rows and has none is a *hole*: never a record (Kafka delivers nothing there), a record
that Kafka still delivers and the table lacks, or one of which nobody can say any more.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
)
from frazil.ledger.offsets import OffsetRange, describe_ranges
from frazil.migration.foreign_rows import OffsetColumns, TableOffsets


@dataclass(frozen=True)
class OffsetHoles:
    """Offsets between a table's rows that have none: by what Kafka says of them today."""

    lost: Coordinates = field(default_factory=dict)
    unknown: Coordinates = field(default_factory=dict)
    empty: Coordinates = field(default_factory=dict)

    @property
    def doubtful(self) -> int:
        """Count those that are records or may have been."""
        return count_coordinates(self.lost) + count_coordinates(self.unknown)


@dataclass(frozen=True)
class Adoption:
    """A table as it is taken over; `given_up` is what Kafka lost before anybody read it."""

    columns: tuple[OffsetColumns, ...]
    rows: int
    first: tuple[int | None, ...]
    offsets: tuple[int, ...]
    holes: OffsetHoles
    given_up: Mapping[int, OffsetRange]

    def encode(self) -> str:
        """Write `frazil.adopted`: where the rows below the offsets came from."""
        columns = self.columns[0]
        return json.dumps(
            {
                "writer": columns.writer,
                "columns": list(columns.names),
                "rows": self.rows,
                "first": list(self.first),
                "holes": {
                    "lost": count_coordinates(self.holes.lost),
                    "unknown": count_coordinates(self.holes.unknown),
                    "empty": count_coordinates(self.holes.empty),
                },
                "given-up": {str(p): [r.start, r.end] for p, r in self.given_up.items()},
            },
            separators=(",", ":"),
        )


def require_identified_rows(stream: str, topic: TopicFacts, places: TableOffsets) -> None:
    """Refuse rows that do not say which record they are, or that are there twice.

    Raises:
        NotAdoptableError: with counts and the first coordinates.
    """
    if places.unplaced:
        raise NotAdoptableError(
            f"stream {stream}: {places.unplaced} rows of the table have no offset: nobody can say "
            "which records they are",
            "delete those rows or fill in their offsets, then look again",
        )
    others = sorted({name for name, _ in places.offsets} - {topic.topic})
    if others:
        raise NotAdoptableError(
            f"stream {stream}: the table holds rows of {', '.join(others)}; the stream file names "
            f"topic {topic.topic}",
            "a table of several topics cannot be taken over by one stream: copy the topic's rows "
            "into a table of their own",
        )
    doubled = {
        partition: unique[times > 1]
        for partition, offsets in places.offsets.items()
        for unique, times in [np.unique(offsets, return_counts=True)]
        if (times > 1).any()
    }
    if doubled:
        raise NotAdoptableError(
            f"stream {stream}: {count_coordinates(doubled)} records are in the table more than "
            f"once: {describe_offsets(doubled)}",
            "take the doubled rows out first (Spark: MERGE or INSERT OVERWRITE by topic, partition "
            "and offset), then look again",
        )


def require_same_topic(stream: str, topic: TopicFacts, places: TableOffsets) -> None:
    """Refuse offsets that are not those of this topic: it was recreated, or it is another one.

    Raises:
        PartitionsShrankError: the table has partitions that the topic lacks.
        OffsetsWentBackError: the table has offsets beyond Kafka's end.
    """
    numbers = {partition for _, partition in places.offsets}
    if max(numbers, default=0) >= len(topic.partitions):
        raise PartitionsShrankError(
            f"stream {stream}: the table has rows of {topic.topic}-{max(numbers)}, the topic has "
            f"{len(topic.partitions)} partitions: it was created again, or it is another topic",
            "check `source` and its connection; a table of another log cannot be adopted",
        )
    for partition, offsets in _iterate(topic, places):
        end = topic.partitions[partition].end
        if len(offsets) and offsets[-1] >= end:
            raise OffsetsWentBackError(
                f"stream {stream}: the table has {topic.topic}-{partition}@{offsets[-1]}, Kafka "
                f"ends at {end}: the topic was created again or truncated, or it is another one",
                "check `source` and its connection; a table of another log cannot be adopted",
            )


def require_same_records(
    stream: str, topic: TopicFacts, places: TableOffsets, delivered_ms: Mapping[int, int | None]
) -> None:
    """Refuse a topic that was recreated and has grown beyond the table (D5).

    The record at a partition's highest offset has the timestamp that the table says, or it is
    another record. `delivered_ms` are Kafka's timestamps there, as far as it tells them.

    Raises:
        TopicRecreatedError: with both timestamps.
    """
    for partition, offsets in _iterate(topic, places):
        ours = places.final_ms.get((topic.topic, partition))
        if ours is None or partition not in delivered_ms or delivered_ms[partition] == ours:
            continue
        raise TopicRecreatedError(
            f"stream {stream}: {topic.topic}-{partition}@{offsets[-1]} has timestamp {ours} in the "
            f"table and {delivered_ms[partition]} in Kafka: these are two records",
            "the topic was created again, or it is another one; a table of another log cannot be "
            "adopted. If the column holds another time, name the columns without timestamp",
        )


def list_holes(topic: TopicFacts, places: TableOffsets) -> dict[Partition, Offsets]:
    """List the offsets between a partition's rows that have none."""
    found = {}
    for partition, offsets in _iterate(topic, places):
        if len(offsets) and offsets[-1] - offsets[0] + 1 > len(offsets):
            every = np.arange(offsets[0], offsets[-1] + 1)
            found[topic.topic, partition] = np.setdiff1d(every, offsets, assume_unique=True)
    return found


def sort_holes(
    topic: TopicFacts,
    holes: Coordinates,
    delivered: Mapping[int, Offsets],
    *,
    is_compacted: bool,
) -> OffsetHoles:
    """Sort holes by what Kafka says of them; `topic` is as the stream's isolation level sees it.

    Below the earliest offset nobody can say, nor behind the end, where a transaction is open; nor
    in a compacted topic, where it may have been a record when the other writer read it.
    """
    lost, unknown, empty = {}, {}, {}
    for (name, partition), offsets in holes.items():
        still = np.isin(offsets, delivered.get(partition, NO_OFFSETS))
        kept = topic.partitions[partition]
        is_outside = (offsets < kept.earliest) | (offsets >= kept.end)
        is_open = ~still & (is_compacted | is_outside)
        lost[name, partition] = offsets[still]
        unknown[name, partition] = offsets[is_open]
        empty[name, partition] = offsets[~still & ~is_open]
    return OffsetHoles(lost, unknown, empty)


def decide_adoption(
    stream: str,
    columns: tuple[OffsetColumns, ...],
    topic: TopicFacts,
    places: TableOffsets,
    holes: OffsetHoles,
    *,
    accept_holes: bool,
) -> Adoption:
    """Decide where reading goes on.

    Raises:
        NotAdoptableError: there are holes and nobody accepted them.
        RetentionGapError: Kafka no longer holds the next offset, and nobody accepted that.
    """
    firsts = {partition: int(o[0]) for partition, o in _iterate(topic, places) if len(o)}
    nexts = {partition: int(o[-1]) + 1 for partition, o in _iterate(topic, places) if len(o)}
    starts = [nexts.get(partition, 0) for partition in range(len(topic.partitions))]
    gaps = list_gaps(starts, topic.partitions)
    if not accept_holes:
        _require_no_holes(stream, holes)
        _require_no_gaps(stream, topic, gaps)
    return Adoption(
        columns=columns,
        rows=sum(len(offsets) for offsets in places.offsets.values()),
        first=tuple(firsts.get(partition) for partition in range(len(topic.partitions))),
        offsets=tuple(
            gaps[partition].end if partition in gaps else start
            for partition, start in enumerate(starts)
        ),
        holes=holes,
        given_up=gaps,
    )


def _require_no_holes(stream: str, holes: OffsetHoles) -> None:
    if holes.doubtful:
        lost, unknown = count_coordinates(holes.lost), count_coordinates(holes.unknown)
        parts = [
            f"{lost} are records that Kafka still delivers: {describe_offsets(holes.lost)}"
            if lost
            else "",
            f"{unknown} may have been control records or compacted ones, or lost rows, and Kafka "
            f"cannot tell any more: {describe_offsets(holes.unknown)}"
            if unknown
            else "",
        ]
        raise NotAdoptableError(
            f"stream {stream}: {holes.doubtful} offsets between the table's rows have none: "
            + "; ".join(part for part in parts if part),
            f"let the other writer fill them, or `frazil adopt {stream} --accept-holes`: they are "
            "then given up in your name",
        )


def _require_no_gaps(stream: str, topic: TopicFacts, gaps: Mapping[int, OffsetRange]) -> None:
    if gaps:
        raise RetentionGapError(
            f"stream {stream}: Kafka no longer holds the next offset: "
            f"{describe_ranges({topic.topic: gaps})} is neither in the table nor in Kafka",
            f"`frazil adopt {stream} --accept-holes` gives these offsets up in your name and goes "
            "on from the earliest ones",
        )


def describe_adoption(
    topic: str, adoption: Adoption, partitions: Iterable[PartitionOffsets]
) -> str:
    """Say what is taken over, for people; ends so that where reading goes on can follow."""
    waiting = sum(
        max(0, kept.end - start) for kept, start in zip(partitions, adoption.offsets, strict=True)
    )
    holes = adoption.holes
    parts = [
        (
            f"{adoption.rows} rows of {topic} with the coordinates of {adoption.columns[0].writer} "
            f"({', '.join(adoption.columns[0].names)})"
        ),
        f"{count_coordinates(holes.empty)} offsets without a row, of which Kafka delivers none",
        (
            f"{count_coordinates(holes.lost)} records given up that Kafka still delivers: "
            f"{describe_offsets(holes.lost)}"
        ),
        (
            f"{count_coordinates(holes.unknown)} offsets given up of which nobody can tell: "
            f"{describe_offsets(holes.unknown)}"
        ),
        f"given up because Kafka lost it: {describe_ranges({topic: adoption.given_up})}",
        f"{waiting} offsets wait in Kafka",
    ]
    return "; ".join(part for part in parts if not part.endswith(": ") and part[:2] != "0 ") + "; "


def describe_offsets(places: Coordinates) -> str:
    """Name the first coordinates."""
    every = [f"{t}-{p}@{o}" for (t, p), offsets in sorted(places.items()) for o in offsets[:20]]
    shown = ", ".join(every[:SHOWN_COORDINATES])
    left = count_coordinates(places) - min(len(every), SHOWN_COORDINATES)
    return f"{shown} and {left} more" if left > 0 else shown


def _iterate(topic: TopicFacts, places: TableOffsets) -> Iterable[tuple[int, Offsets]]:
    for partition in range(len(topic.partitions)):
        yield partition, places.offsets.get((topic.topic, partition), NO_OFFSETS)
