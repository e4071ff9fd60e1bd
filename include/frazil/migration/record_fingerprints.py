"""Read fingerprints of a partition's records around an offset, from the table or from a cluster.

The table and its dead letters have each record's timestamp and key. A batch records how many
records it read; if it has fewer rows and dead letters, its records are not complete. Records of two
clusters may have one coordinate, so rows are read from their batch's own files, unless its snapshot
has expired.
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
from frazil.kafka.consumer import OffsetConsumer, read_timestamp
from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition
from frazil.ledger.history import Step
from frazil.ledger.keys import unpack
from frazil.ledger.offsets import OffsetRange, describe_partition
from frazil.ledger.state import StreamState
from frazil.messages import name_field
from frazil.migration.offset_translation import (
    NO_FINGERPRINTS,
    WANTED_RECORDS,
    CopiedRecords,
    Fingerprints,
    KnownRecords,
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
    """The columns that fingerprints need."""

    columns: tuple[str, ...] = _COLUMNS


@dataclass
class LedgerRecords:
    """Records that the table and its dead letters hold, batch by batch, newest first."""

    table: Table
    dead_letters: Table | None
    steps: tuple[Step, ...]
    _batches: dict[int, pa.Table] = field(default_factory=dict)

    def find_last_records(self, partition: Partition, old_next: int) -> KnownRecords:
        """Return the last records read before an offset, back to the first incomplete batch."""
        expected, batches = old_next, 0
        parts: list[pa.Table] = []
        is_complete = True
        for index in range(len(self.steps) - 1, -1, -1):
            step = self.steps[index]
            start, end = _find_offsets(step, partition)
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
        return _summarize(parts, is_complete=is_complete)

    def _fetch(self, index: int, partition: Partition) -> pa.Table:
        """Return a batch's records of one partition, by ascending offset."""
        if index not in self._batches:
            self._batches[index] = self._fetch_batch(self.steps[index])
        rows = self._batches[index]
        is_own = pc.and_(
            pc.equal(rows["topic"], partition[0]), pc.equal(rows["partition"], partition[1])
        )
        span = self.steps[index].ranges[partition[0]][partition[1]]
        is_inside = pc.and_(
            pc.greater_equal(rows["offset"], span.start), pc.less(rows["offset"], span.end)
        )
        return rows.filter(pc.and_(is_own, is_inside)).sort_by("offset")

    def _fetch_batch(self, step: Step) -> pa.Table:
        """Read all rows and dead letters that a batch published."""
        snapshot_id = step.entry.snapshot_id
        if self.table.snapshot_by_id(snapshot_id) is not None:
            rows = read_staged_frame(self.table, snapshot_id, [_Columns()])
        else:
            rows = self._read_from_head(step)
        tables = [_flatten(rows)]
        if self.dead_letters is not None and keys.ATTEMPT in step.entry.summary:
            attempt = step.entry.summary[keys.ATTEMPT]
            with translated_errors(f"reading dead letters of {attempt}"):
                scan = self.dead_letters.scan(
                    row_filter=f"attempt = '{attempt}'", selected_fields=_COLUMNS
                )
                tables.append(_flatten(scan.to_arrow()))
        return pa.concat_tables(tables)

    def _read_from_head(self, step: Step) -> pa.Table:
        """Read a batch's rows by their coordinates, if its snapshot has expired."""
        topic, partition, offset = _COLUMNS[:3]
        condition = " or ".join(
            f"({topic} = '{name}' and {partition} = {number} and {offset} >= {span.start} "
            f"and {offset} < {span.end})"
            for name, parts in step.ranges.items()
            for number, span in parts.items()
        )
        with translated_errors(f"reading rows of {'.'.join(self.table.name())}"):
            tasks = self.table.scan(row_filter=condition).plan_files()
            return read_files(self.table, self.table.schema().select(*_COLUMNS), tasks)


def _find_offsets(step: Step, partition: Partition) -> tuple[int, int | None]:
    """Return a partition's next offsets before and after a step; None if it has none after."""
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
    timestamps = columns["timestamp"]
    columns["timestamp"] = timestamps.cast(pa.timestamp("ms", timestamps.type.tz), safe=False)
    return pa.table({name: columns[name].cast(kind) for name, kind in _TYPES.items()})


def _is_enough(parts: list[pa.Table]) -> bool:
    """Return whether the records locate the offset: enough of them, with several timestamps."""
    if sum(map(len, parts)) < WANTED_RECORDS:
        return False
    return len(pc.unique(pa.concat_tables(parts)["timestamp"])) > 1


def _summarize(parts: list[pa.Table], *, is_complete: bool) -> KnownRecords:
    """Return the last of these records, back to one with another timestamp."""
    rows = pa.concat_tables(parts) if parts else pa.table({"timestamp": [], "key": []})
    times = rows["timestamp"].to_numpy()
    differing = np.flatnonzero(times != times[-1]) if len(rows) else NO_FINGERPRINTS
    start = max(0, len(rows) - WANTED_RECORDS)
    rows = rows.slice(min(start, int(differing[-1])) if len(differing) else start)
    timestamps = [-1 if at is None else at for at in rows["timestamp"].to_pylist()]
    fingerprints = [
        fingerprint_record(*each) for each in zip(timestamps, rows["key"].to_pylist(), strict=True)
    ]
    return KnownRecords(
        before=np.array(fingerprints, np.int64),
        after=NO_FINGERPRINTS,
        source="rows and dead letters, by timestamp and key",
        is_complete=is_complete,
        min_timestamp_ms=min(timestamps, default=None),
        timestamps_ms=np.array(timestamps, np.int64),
    )


@dataclass
class _Consumed:
    """The records of one partition that a consumer read."""

    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    fingerprints: "array[int]" = field(default_factory=lambda: array("q"))
    min_timestamp_ms: int | None = None

    def between(self, span: OffsetRange) -> tuple[Offsets, Fingerprints]:
        """Return the offsets and fingerprints in a range."""
        offsets = np.array(self.offsets, np.int64)
        is_inside = (offsets >= span.start) & (offsets < span.end)
        return offsets[is_inside], np.array(self.fingerprints, np.int64)[is_inside]


@dataclass(frozen=True)
class FingerprintLog:
    """Fingerprints of the records on one cluster.

    `with_values` is False to compare with a table, which has timestamps and keys only; `with_times`
    is False if the copy sets timestamps of its own.
    """

    kafka: KafkaLog
    config: Mapping[str, str]
    isolation: str
    with_values: bool
    with_times: bool = True

    def find_last_records(self, state: StreamState, topic: TopicFacts) -> dict[int, KnownRecords]:
        """Return the records around each next offset on the old cluster.

        Raises:
            NotMovableError: another cluster or topic, or it ends before the next offset.
        """
        _require_old_topic(state, topic)
        spans: dict[int, OffsetRange] = {}
        nexts = dict(enumerate(state.offsets.get(topic.topic, ())))
        for number, old_next in nexts.items():
            offsets = topic.partitions[number]
            if old_next > offsets.end:
                raise NotMovableError(
                    f"{describe_partition(topic.topic, number)} ends at offset {offsets.end} "
                    f"on the old cluster, the ledger's next offset is {old_next}: the topic "
                    "lost records",
                    f"leave out {name_field('old_connection')} to compare with the rows of the "
                    "table",
                )
            start = max(offsets.earliest, old_next - WANTED_RECORDS)
            if offsets.earliest <= old_next:
                spans[number] = OffsetRange(start, min(offsets.end, old_next + WANTED_RECORDS))
        consumed = self._consume(topic.topic, spans)
        return {
            number: self._select(number, old_next, topic, consumed.get(number, _Consumed()))
            for number, old_next in nexts.items()
        }

    def _select(
        self, number: int, old_next: int, topic: TopicFacts, consumed: _Consumed
    ) -> KnownRecords:
        offsets = topic.partitions[number]
        first = max(0, old_next - WANTED_RECORDS)
        return KnownRecords(
            before=consumed.between(OffsetRange(first, old_next))[1],
            after=consumed.between(OffsetRange(old_next, old_next + WANTED_RECORDS))[1],
            source="records of the old cluster",
            min_timestamp_ms=consumed.min_timestamp_ms,
            is_empty=offsets.earliest == offsets.end == old_next,
        )

    def read_copies(
        self, topic: TopicFacts, known: Mapping[int, KnownRecords], given: Mapping[int, int]
    ) -> dict[int, CopiedRecords]:
        """Read each partition from its lowest possible next offset to its end."""
        count = len(topic.partitions)
        first = self.kafka.fetch_offsets_at(topic.topic, count, 0, self.isolation)
        starts: dict[int, int] = {}
        for number, each in known.items():
            offsets = topic.partitions[number]
            start = offsets.end
            if each.min_timestamp_ms is not None:
                at = max(0, each.min_timestamp_ms)
                start = self.kafka.fetch_offsets_at(topic.topic, count, at, self.isolation)[number]
            if number in given:
                start = min(start, max(0, given[number] - WANTED_RECORDS))
            starts[number] = max(start, offsets.earliest)
        spans = {
            number: OffsetRange(start, topic.partitions[number].end)
            for number, start in starts.items()
            if start < topic.partitions[number].end
        }
        consumed = self._consume(topic.topic, spans)
        copies: dict[int, CopiedRecords] = {}
        for number, start in starts.items():
            offsets = topic.partitions[number]
            found, fingerprints = consumed.get(number, _Consumed()).between(
                OffsetRange(0, offsets.end)
            )
            is_whole = start <= first[number]
            copies[number] = CopiedRecords(
                found, fingerprints, offsets.earliest, offsets.end, is_whole
            )
        return copies

    def _consume(self, topic: str, spans: Mapping[int, OffsetRange]) -> dict[int, _Consumed]:
        consumed: dict[int, _Consumed] = {number: _Consumed() for number in spans}

        def add(message: Message) -> None:
            own = consumed[message.partition() or 0]
            known_ms = read_timestamp(message)
            at_ms = (-1 if known_ms is None else known_ms) if self.with_times else 0
            value = message.value() if self.with_values else b""
            own.offsets.append(message.offset() or 0)
            own.fingerprints.append(fingerprint_record(at_ms, _bytes(message.key()), _bytes(value)))
            own.min_timestamp_ms = (
                at_ms if own.min_timestamp_ms is None else min(own.min_timestamp_ms, at_ms)
            )

        if spans:
            OffsetConsumer(self.kafka, self.config).fetch_delivered(
                topic, spans, self.isolation, add
            )
        return consumed


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _require_old_topic(state: StreamState, topic: TopicFacts) -> None:
    """Check that the old connection points to the topic that the stream has read."""
    read = (state.cluster_id, state.topic_ids.get(topic.topic, topic.topic_id))
    if read != (topic.cluster_id, topic.topic_id):
        raise NotMovableError(
            f"topic {topic.topic} of the old connection has id {topic.topic_id} on cluster "
            f"{topic.cluster_id}; the ledger read id {read[1]} on cluster {read[0]}",
            "give the connection of the cluster that the stream has read, or leave it out",
        )
