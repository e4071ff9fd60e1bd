"""The last records that were read, as a table and its dead letters know them.

They keep a record's timestamp and key beside its offset. A batch says how many records it read: one
whose rows and letters are fewer is no evidence. Records of two clusters may have one coordinate, so
rows come from the files of their batch while its snapshot is kept.
"""

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from pyiceberg.table import Table

from frazil.errors import NotMovableError
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.data_files import read_files, read_staged_frame
from frazil.kafka.cluster import KafkaLog, TopicFacts
from frazil.kafka.consumer import OffsetConsumer
from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition
from frazil.ledger.history import Step
from frazil.ledger.keys import unpack
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.state import StreamState
from frazil.migration.offset_translation import (
    NO_PRINTS,
    WANTED_RECORDS,
    CopiedRecord,
    KnownRecord,
    Prints,
    fingerprint_record,
)

_MAX_BATCHES = 20


_TYPES: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int64(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "key": pa.binary(),
}


_COLUMNS = tuple(f"{keys.KAFKA_COLUMN}.{name}" for name in _TYPES)


@dataclass(frozen=True)
class _Columns:
    """The metadata of records, as far as it is compared."""

    columns: tuple[str, ...] = _COLUMNS


@dataclass
class LedgerRecords:
    """Records that the table and its dead letters hold, batch by batch, newest first."""

    table: Table
    letters: Table | None
    steps: tuple[Step, ...]
    _read: dict[int, pa.Table] = field(default_factory=dict)

    def find_known(self, partition: Partition, old_next: int) -> KnownRecord:
        """Find the last records that were read before an offset, without a gap among them."""
        expected, batches = old_next, 0
        parts: list[pa.Table] = []
        is_complete = True
        for index in range(len(self.steps) - 1, -1, -1):
            step = self.steps[index]
            start, end = _find_move(step, partition)
            if end is None or start == end:
                continue
            if end != expected or step.kind not in {keys.INGEST, keys.MOVE}:
                break
            if step.kind == keys.INGEST and _count_read(step, partition):
                rows = self._fetch(index, partition)
                batches += 1
                is_whole = pc.count_distinct(rows["offset"]).as_py() == len(rows)
                if not is_whole or len(rows) != _count_read(step, partition):
                    is_complete = bool(parts)
                    parts = parts or [rows]
                    break
                parts.insert(0, rows)
            expected = start
            if _is_enough(parts) or batches == _MAX_BATCHES:
                break
        return _know(parts, is_complete=is_complete)

    def _fetch(self, index: int, partition: Partition) -> pa.Table:
        """Fetch a batch's records of one partition, ascending."""
        if index not in self._read:
            self._read[index] = self._fetch_batch(self.steps[index])
        rows = self._read[index]
        is_own = pc.and_(
            pc.equal(rows["topic"], partition[0]), pc.equal(rows["partition"], partition[1])
        )
        moved = self.steps[index].ranges[partition[0]][partition[1]]
        inside = pc.and_(
            pc.greater_equal(rows["offset"], moved.start), pc.less(rows["offset"], moved.end)
        )
        return rows.filter(pc.and_(is_own, inside)).sort_by("offset")

    def _fetch_batch(self, step: Step) -> pa.Table:
        """Read what a batch published: its rows and its letters, of all partitions."""
        snapshot_id = step.entry.snapshot_id
        if self.table.snapshot_by_id(snapshot_id) is not None:
            rows = read_staged_frame(self.table, snapshot_id, [_Columns()])
        else:
            rows = self._find_in_head(step)
        found = [_flatten(rows)]
        if self.letters is not None and keys.ATTEMPT in step.entry.summary:
            attempt = step.entry.summary[keys.ATTEMPT]
            with translated_errors(f"reading dead letters of {attempt}"):
                scan = self.letters.scan(
                    row_filter=f"attempt = '{attempt}'", selected_fields=_COLUMNS
                )
                found.append(_flatten(scan.to_arrow()))
        return pa.concat_tables(found)

    def _find_in_head(self, step: Step) -> pa.Table:
        """Find a batch's rows by their coordinates, where its snapshot has expired."""
        topic, partition, offset = _COLUMNS[:3]
        wanted = " or ".join(
            f"({topic} = '{name}' and {partition} = {number} and {offset} >= {span.start} "
            f"and {offset} < {span.end})"
            for name, parts in step.ranges.items()
            for number, span in parts.items()
        )
        with translated_errors(f"reading rows of {'.'.join(self.table.name())}"):
            tasks = self.table.scan(row_filter=wanted).plan_files()
            return read_files(self.table, self.table.schema().select(*_COLUMNS), tasks)


def _find_move(step: Step, partition: Partition) -> tuple[int, int | None]:
    """Give a partition's next offset before and after a step; None after it says nothing."""
    topic, number = partition
    before, after = (
        state.offsets.get(topic, ()) if state else () for state in (step.before, step.after)
    )
    start = before[number] if number < len(before) else 0
    return start, after[number] if number < len(after) else None


def _count_read(step: Step, partition: Partition) -> int:
    counts = json.loads(unpack(step.entry.summary.get(keys.COUNTS, "{}")))
    read, _ = counts.get(partition[0], {}).get(str(partition[1]), (0, 0))
    return int(read)


def _flatten(rows: pa.Table) -> pa.Table:
    kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
    columns = {name: pc.struct_field(kafka, name) for name in _TYPES}
    instants = columns["timestamp"]
    columns["timestamp"] = instants.cast(pa.timestamp("ms", instants.type.tz), safe=False)
    return pa.table({name: columns[name].cast(kind) for name, kind in _TYPES.items()})


def _is_enough(parts: list[pa.Table]) -> bool:
    """Say whether these are enough records, and not all of one instant, which shows little."""
    if sum(map(len, parts)) < WANTED_RECORDS:
        return False
    return len(pc.unique(pa.concat_tables(parts)["timestamp"])) > 1


def _know(parts: list[pa.Table], *, is_complete: bool) -> KnownRecord:
    """Print the last of these records, as far back as another instant."""
    rows = pa.concat_tables(parts) if parts else pa.table({"timestamp": [], "key": []})
    times = rows["timestamp"].to_numpy()
    others = np.flatnonzero(times != times[-1]) if len(rows) else NO_PRINTS
    start = max(0, len(rows) - WANTED_RECORDS)
    rows = rows.slice(min(start, int(others[-1])) if len(others) else start)
    instants = [-1 if at is None else at for at in rows["timestamp"].to_pylist()]
    prints = [
        fingerprint_record(*each) for each in zip(instants, rows["key"].to_pylist(), strict=True)
    ]
    return KnownRecord(
        before=np.array(prints, np.int64),
        after=NO_PRINTS,
        source="rows and dead letters, by timestamp and key",
        is_complete=is_complete,
        floor_ms=min(instants, default=None),
        instants_ms=np.array(instants, np.int64),
    )


@dataclass
class _Consumed:
    """What a consumer was shown of one partition."""

    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    prints: "array[int]" = field(default_factory=lambda: array("q"))
    floor_ms: int | None = None

    def between(self, span: OffsetRange) -> tuple[Offsets, Prints]:
        """Give offsets and prints of a range."""
        offsets = np.array(self.offsets, np.int64)
        is_inside = (offsets >= span.start) & (offsets < span.end)
        return offsets[is_inside], np.array(self.prints, np.int64)[is_inside]


@dataclass(frozen=True)
class FingerprintLog:
    """A cluster's topic as prints of its records; with values, or by timestamp and key alone.

    Without times, where a copy has other ones than its source.
    """

    kafka: KafkaLog
    config: Mapping[str, str]
    isolation: str
    with_values: bool
    with_times: bool = True

    def find_known(self, state: StreamState, topic: TopicFacts) -> dict[int, KnownRecord]:
        """Find the records around each recovery point on the cluster that the ledger read.

        Raises:
            NotMovableError: it is another cluster or topic, or it ends before the recovery point.
        """
        _validate_known_topic(state, topic)
        spans: dict[int, OffsetRange] = {}
        nexts = dict(enumerate(state.offsets.get(topic.topic, ())))
        for number, old_next in nexts.items():
            kept = topic.partitions[number]
            if old_next > kept.end:
                raise NotMovableError(
                    f"{topic.topic}-{number}: the old cluster ends at offset {kept.end}, the "
                    f"ledger has read to {old_next}: its log was cut",
                    "leave --old-connection out: then the table's own rows are compared",
                )
            start = max(kept.earliest, old_next - WANTED_RECORDS)
            if kept.earliest <= old_next:
                spans[number] = OffsetRange(start, min(kept.end, old_next + WANTED_RECORDS))
        heard = self._consume(topic.topic, spans)
        return {
            number: self._know(number, old_next, topic, heard.get(number, _Consumed()))
            for number, old_next in nexts.items()
        }

    def _know(self, number: int, old_next: int, topic: TopicFacts, heard: _Consumed) -> KnownRecord:
        kept = topic.partitions[number]
        first = max(0, old_next - WANTED_RECORDS)
        return KnownRecord(
            before=heard.between(OffsetRange(first, old_next))[1],
            after=heard.between(OffsetRange(old_next, old_next + WANTED_RECORDS))[1],
            source="the old cluster's records, byte by byte",
            floor_ms=heard.floor_ms,
            is_empty=kept.earliest == kept.end == old_next,
        )

    def read_copies(
        self, topic: TopicFacts, known: Mapping[int, KnownRecord], given: Mapping[int, int]
    ) -> dict[int, CopiedRecord]:
        """Read each partition from where its boundary may lie to its end."""
        count = len(topic.partitions)
        first = self.kafka.fetch_offsets_at(topic.topic, count, 0, self.isolation)
        starts: dict[int, int] = {}
        for number, each in known.items():
            kept = topic.partitions[number]
            start = kept.end
            if each.floor_ms is not None:
                at = max(0, each.floor_ms)
                start = self.kafka.fetch_offsets_at(topic.topic, count, at, self.isolation)[number]
            if number in given:
                start = min(start, max(0, given[number] - WANTED_RECORDS))
            starts[number] = max(start, kept.earliest)
        spans = {
            number: OffsetRange(start, topic.partitions[number].end)
            for number, start in starts.items()
            if start < topic.partitions[number].end
        }
        heard = self._consume(topic.topic, spans)
        copies: dict[int, CopiedRecord] = {}
        for number, start in starts.items():
            kept = topic.partitions[number]
            offsets, prints = heard.get(number, _Consumed()).between(OffsetRange(0, kept.end))
            is_whole = start <= first[number]
            copies[number] = CopiedRecord(offsets, prints, kept.earliest, kept.end, is_whole)
        return copies

    def _consume(self, topic: str, spans: Mapping[int, OffsetRange]) -> dict[int, _Consumed]:
        heard: dict[int, _Consumed] = {number: _Consumed() for number in spans}

        def see(message: Message) -> None:
            own = heard[message.partition() or 0]
            at_ms = message.timestamp()[1] if self.with_times else 0
            value = message.value() if self.with_values else b""
            own.offsets.append(message.offset() or 0)
            own.prints.append(fingerprint_record(at_ms, _bytes(message.key()), _bytes(value)))
            own.floor_ms = at_ms if own.floor_ms is None else min(own.floor_ms, at_ms)

        if spans:
            OffsetConsumer(self.kafka, self.config).fetch_delivered(
                topic, spans, self.isolation, see
            )
        return heard


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _validate_known_topic(state: StreamState, topic: TopicFacts) -> None:
    """Refuse to compare with what the ledger never read."""
    known = (state.cluster_id, state.topic_ids.get(topic.topic, topic.topic_id))
    if known != (topic.cluster_id, topic.topic_id):
        raise NotMovableError(
            f"topic {topic.topic} of the old connection has id {topic.topic_id} on cluster "
            f"{topic.cluster_id}; the ledger read id {known[1]} on cluster {known[0]}",
            "give the connection of the cluster that the ledger read, or leave it out",
        )
